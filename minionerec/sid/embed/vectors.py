"""Item vectors of a corpus, from any encoder."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from minionerec.core.artefacts import file_sha256
from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.log import get_logger, progress
from minionerec.data.corpus import Corpus
from minionerec.sid.embed.encoder import INTERACTIONS, TFIDF, WORDLLAMA, VectorSource, encoder_inputs
from minionerec.sid.embed.hf import HFEncoder, TextVectors, hub_commit
from minionerec.sid.embed.interactions import beside, interaction_vectors
from minionerec.sid.embed.stored import (
    VECTORS_FILE,
    VectorRows,
    check_vectors,
    is_large,
    load_vector_table,
    load_vectors,
    open_vectors,
    vector_file,
)
from minionerec.sid.embed.texts import item_texts, l2_normalise, tfidf_svd, wordllama_vectors
from minionerec.sid.table import ids_of

logger = get_logger(__name__)


# Vectors of texts, cached by the hash of the text, so that no text is encoded twice by the same encoder.

PART_TEXTS = 512
"""Texts of a cache file; a killed run loses at most the file in progress."""


def text_key(text: str) -> bytes:
    """SHA-256 of a text, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


class VectorCache:
    """Cache folder of one encoder: files of keys, vectors and token counts, each written atomically.

    Several processes may write at the same time.

    Args:
        folder: The folder; created by the first write.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def write(self, texts: Sequence[str], encoded: TextVectors) -> None:
        """Add the vectors of texts.

        Raises:
            ArtefactError: If the folder cannot be written.
        """
        keys = b"".join(map(text_key, texts))
        name = hashlib.sha256(keys).hexdigest()[:32]
        content = {"keys": np.frombuffer(keys, dtype=np.uint8).reshape(len(texts), 32)}
        content |= dict(zip(("vectors", "tokens", "truncated"), encoded, strict=True))
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
        """The distinct texts without a cached vector, in the order given."""
        known = {row.tobytes() for part in self._parts() for row in part["keys"]}
        return [text for text in dict.fromkeys(texts) if text_key(text) not in known]

    def read(self, texts: Sequence[str]) -> TextVectors:
        """The vectors of cached texts.

        Raises:
            ArtefactError: If a text is not cached.
        """
        positions: dict[bytes, list[int]] = {}
        for position, text in enumerate(texts):
            positions.setdefault(text_key(text), []).append(position)
        tokens, truncated = np.zeros(len(texts), dtype=np.int32), np.zeros(len(texts), dtype=bool)
        vectors: np.ndarray | None = None
        for part in self._parts():
            if vectors is None:
                vectors = np.zeros((len(texts), part["vectors"].shape[1]), dtype=np.float32)
            for row, key in enumerate(part["keys"]):
                for position in positions.pop(key.tobytes(), ()):
                    vectors[position], tokens[position] = part["vectors"][row], part["tokens"][row]
                    truncated[position] = part["truncated"][row]
        if positions or vectors is None:
            raise ArtefactError(f"{self.folder}: lacks {len(positions)} vectors. Was it changed meanwhile? Run again.")
        return vectors, tokens, truncated


def encode_cached(texts: Sequence[str], cache: VectorCache, **encoder: Any) -> TextVectors:
    """Vectors of texts, encoding only texts that the cache lacks and caching each part as soon as it is computed.

    A killed run resumes. Vectors of a resumed run, or of one with smaller batches, may differ in their last bits,
    because texts are batched differently.

    Args:
        texts: N texts.
        cache: Cache of this encoder with these settings only.
        encoder: The arguments of `HFEncoder`.

    Raises:
        ConfigError: As in `HFEncoder`.
        DataError: As in `HFEncoder.encode`.
        ArtefactError: If the cache cannot be written.
    """
    missing = sorted(cache.missing(texts), key=len, reverse=True)  # by length, to reduce padding
    parts = [missing[start : start + PART_TEXTS] for start in range(0, len(missing), PART_TEXTS)]
    if parts:
        model = HFEncoder(**encoder)
        for part in progress(parts, "encoding texts", unit="part"):
            cache.write(part, model.encode(part))
    return cache.read(texts)


def make_vectors(
    corpus: Corpus,
    source: VectorSource,
    counts: dict[str, Any],
    fitted_on: Sequence[str] | None = None,
) -> np.ndarray:
    """Compute or load the vectors of a corpus's items.

    Args:
        corpus: The corpus.
        source: The encoder and its options.
        counts: Mapping that receives the number of items and dimensions, and the encoder's counts.
        fitted_on: Texts that TF-IDF is fitted on; those of the corpus if None. Ignored by other encoders.

    Returns:
        float32 (N, D), row i for item index i, all finite.

    Raises:
        DataError: If there is no text, given vectors do not fit the corpus, or vectors of interactions are requested
            and there are none.
        ConfigError: If the encoder is unknown.
    """
    if not source.reads_interactions:
        return _text_vectors(corpus, source, counts, fitted_on)
    vectors = interaction_vectors(corpus, source.dimensions, source.seed)
    without = int((~vectors.any(axis=1)).sum())
    counts["items_without_interactions"] = without
    if without:
        logger.info("%d of %d items are in no pair of training interactions.", without, len(vectors))
    if source.encoder != INTERACTIONS:
        vectors = beside(_text_vectors(corpus, source, counts, fitted_on), vectors)
    counts.update(items=len(vectors), dimensions=vectors.shape[1])
    return vectors


def _text_vectors(
    corpus: Corpus,
    source: VectorSource,
    counts: dict[str, Any],
    fitted_on: Sequence[str] | None,
) -> np.ndarray:
    encoder, item_ids = source.encoder, corpus.items["item_id"].astype(str).tolist()
    ready = encoder_inputs(encoder).get("vectors")
    if ready is not None:
        if ready.suffix == ".parquet":
            vectors = load_vector_table(ready, item_ids)
        else:
            vectors = load_vectors(vector_file(ready, item_ids), len(item_ids))
    else:
        texts = item_texts(corpus)
        filled = [text for text in texts if text]
        empty, duplicate = len(texts) - len(filled), len(filled) - len(set(filled))
        counts.update({"empty_texts": empty, "duplicate_texts": duplicate})
        if empty:
            instead = (
                "their vectors are of interactions alone" if source.reads_interactions else "each gets the zero vector"
            )
            logger.warning("%d of %d items have no text; %s.", empty, len(texts), instead)
        if duplicate:
            same = "" if source.reads_interactions else ", and so its vector"
            logger.info("%d of %d items have the text of an earlier item%s.", duplicate, len(texts), same)
        if encoder == TFIDF:
            vectors = tfidf_svd(texts, source.dimensions, source.seed, fitted_on)
        elif encoder == WORDLLAMA:
            vectors = wordllama_vectors(texts)
        else:
            vectors = _encode(texts, source, counts)
        vectors = check_vectors(vectors, len(item_ids), f"encoder {encoder}")
    counts.update(items=len(item_ids), dimensions=vectors.shape[1])
    return vectors


def vectors_in_blocks(corpus: Corpus, source: VectorSource, counts: dict[str, Any]) -> VectorRows:
    """Compute `make_vectors`, or open a large `.npy` file for reading in blocks.

    Args:
        corpus: The corpus.
        source: The encoder and its options.
        counts: As in `make_vectors`.

    Returns:
        An array; or, from `STREAMED_FROM` bytes on, a `minionerec.sid.embed.stored.VectorFile`, whose values are
        checked when they are read.

    Raises:
        DataError: As `make_vectors`.
        ConfigError: As `make_vectors`.
    """
    ready = None if source.reads_interactions else encoder_inputs(source.encoder).get("vectors")
    if ready is None or not is_large(ready if ready.is_file() else ready / VECTORS_FILE):
        return make_vectors(corpus, source, counts)
    ids = ids_of(corpus.items)
    vectors = open_vectors(vector_file(ready, ids), len(ids))
    counts.update(items=len(ids), dimensions=vectors.shape[1])
    logger.info("%s: %d vectors of %d dimensions stay in their file and are read in blocks.", ready, *vectors.shape)
    return vectors


def _encode(texts: list[str], source: VectorSource, counts: dict[str, Any]) -> np.ndarray:
    nonempty = [position for position, text in enumerate(texts) if text]
    with tempfile.TemporaryDirectory() as scratch:
        encoded, tokens, truncated = encode_cached(
            [texts[position] for position in nonempty],
            VectorCache(Path(source.cache or scratch) / _encoder_key(source)),
            model_name_or_path=source.encoder,
            pooling=source.pooling,
            max_length=source.max_length,
            device=source.device,
            prefix=source.prefix,
            dtype=source.dtype,
        )
    counts.update(truncated=int(truncated.sum()), tokenless=int((tokens == 0).sum()), tokens=int(tokens.sum()))
    if not counts["tokens"]:
        raise DataError(f"{source.encoder}: its tokenizer makes no token of any of the {len(nonempty)} texts.")
    if counts["truncated"]:
        longest = int(tokens.max())
        logger.warning(
            "%d of %d texts were truncated to %d tokens; %s.",
            counts["truncated"],
            len(nonempty),
            longest,
            "the encoder reads no more" if longest < source.max_length else "raise max_length to keep more",
        )
    vectors = np.zeros((len(texts), encoded.shape[1]), dtype=np.float32)
    vectors[nonempty] = l2_normalise(encoded)
    return vectors


def _encoder_key(source: VectorSource) -> str:
    """Name of the cache folder: a hash of the model and of all options that affect a vector."""
    files = {name: file_sha256(path) for name, path in encoder_inputs(source.encoder).items()}
    model = files or [source.encoder, hub_commit(source.encoder)]
    key = [model, source.pooling, source.prefix, source.max_length, source.dtype]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
