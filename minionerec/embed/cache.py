"""Vectors of texts, kept by the hash of their content, so that no text is encoded twice by the same encoder."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from minionerec.core.errors import ArtefactError
from minionerec.core.log import progress
from minionerec.embed.hf import Encoded, HFEncoder

PART_BATCHES = 16
"""Batches of a part, the unit that is written at once and that a killed run loses at most."""


def text_key(text: str) -> bytes:
    """SHA-256 of a text, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


class VectorCache:
    """A folder with the vectors of one encoder: files of keys, vectors and token counts, each written in one piece.

    Several processes may write into it at the same time.

    Args:
        folder: Made when the first part is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def write(self, texts: Sequence[str], encoded: Encoded) -> None:
        """Add the vectors of texts.

        Raises:
            ArtefactError: If the folder cannot be written.
        """
        keys = b"".join(map(text_key, texts))
        name = hashlib.sha256(keys).hexdigest()[:32]
        content = {
            "keys": np.frombuffer(keys, dtype=np.uint8).reshape(len(texts), 32),
            "vectors": encoded.vectors,
            "tokens": encoded.tokens,
            "truncated": encoded.truncated,
        }
        fresh = self.folder / f".{name}.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(content, fresh)
            fresh.replace(self.folder / f"{name}.safetensors")
        except OSError as error:
            raise ArtefactError(
                f"{self.folder}: cannot be written ({error.strerror}). Choose another cache or mend its permissions."
            ) from None

    def _parts(self) -> Iterator[dict[str, np.ndarray]]:
        for path in sorted(self.folder.glob("*.safetensors")):
            yield load_file(path)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Those texts, each once, whose vector is not here, in the order given."""
        known = {row.tobytes() for part in self._parts() for row in part["keys"]}
        return [text for text in dict.fromkeys(texts) if text_key(text) not in known]

    def read(self, texts: Sequence[str]) -> Encoded:
        """The vectors of texts that are all here.

        Raises:
            ArtefactError: If one is not.
        """
        rows: dict[bytes, list[int]] = {}
        for row, text in enumerate(texts):
            rows.setdefault(text_key(text), []).append(row)
        tokens, truncated = np.zeros(len(texts), dtype=np.int32), np.zeros(len(texts), dtype=bool)
        vectors: np.ndarray | None = None
        for part in self._parts():
            if vectors is None:
                vectors = np.zeros((len(texts), part["vectors"].shape[1]), dtype=np.float32)
            for place, key in enumerate(part["keys"]):
                for row in rows.pop(key.tobytes(), ()):
                    vectors[row], tokens[row] = part["vectors"][place], part["tokens"][place]
                    truncated[row] = part["truncated"][place]
        if rows or vectors is None:
            raise ArtefactError(f"{self.folder}: lacks {len(rows)} vectors. Was it changed meanwhile? Run again.")
        return Encoded(vectors, tokens, truncated)


def encode_cached(
    texts: Sequence[str], cache: VectorCache, processes: int = 1, *, device: str = "auto", **encoder: Any
) -> Encoded:
    """Vectors of texts, encoding only those that the cache lacks and keeping each part as soon as it is made.

    A run that was killed goes on where it was. Since batches hold what is missing, a vector may differ in its last
    bits from that of a run in one go, as it may with another batch size.

    Args:
        texts: N texts.
        cache: The vectors of this encoder with these settings, and of no other.
        processes: Processes that encode, each with its own model; with "auto" they share out the GPUs.
        device: As in `HFEncoder`.
        encoder: The other arguments of `HFEncoder`.

    Raises:
        ConfigError: As in `HFEncoder`.
        DataError: As in `HFEncoder.encode`.
        ArtefactError: If the cache cannot be written.
    """
    missing = sorted(cache.missing(texts), key=len, reverse=True)  # of like lengths, so that little padding is read
    size = PART_BATCHES * int(encoder["batch_size"])
    parts = [missing[start : start + size] for start in range(0, len(missing), size)]
    processes = min(processes, len(parts))
    if processes > 1:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            work = [
                pool.submit(_encode_parts, parts[place::processes], cache, place, processes, device, encoder)
                for place in range(processes)
            ]
            for done in progress(as_completed(work), "encoding texts", total=processes, unit="process"):
                done.result()
    elif parts:
        model = HFEncoder(device=device, **encoder)
        for part in progress(parts, "encoding texts", unit="part"):
            cache.write(part, model.encode(part))
    return cache.read(texts)


def _encode_parts(
    parts: list[list[str]], cache: VectorCache, place: int, processes: int, device: str, encoder: dict[str, Any]
) -> None:
    """What one of several processes does."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    if device == "auto" and torch.cuda.is_available():
        device = f"cuda:{place % torch.cuda.device_count()}"
    model = HFEncoder(device=device, **encoder)
    for part in parts:
        cache.write(part, model.encode(part))
