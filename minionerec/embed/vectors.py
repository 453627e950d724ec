"""Item vectors from any encoder, the checks on ready ones, and the stage that keeps them as an artefact."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import (
    MANIFEST,
    file_sha256,
    is_current,
    read_json,
    read_manifest,
    to_plain,
    write_artefact,
    write_text_atomic,
)
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.embed.cache import VectorCache, encode_cached
from minionerec.embed.hf import DTYPES, POOLINGS, hub_commit
from minionerec.embed.texts import count_texts, item_texts
from minionerec.embed.tfidf import l2_normalise, tfidf_svd

logger = get_logger(__name__)

VECTORS_FILE = "vectors.npy"
ITEMS_FILE = "items.json"
_READY = {".npy": "a .npy file with one row per item", ".parquet": "a table with columns item_id and vector"}
_MODEL_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")


@dataclass
class EncoderConfig:
    """Where item vectors come from; the part that `EmbedConfig` and `SidConfig` share."""

    corpus: str = field(
        default="runs/demo/corpus", metadata={"help": "Directory of the corpus whose items are encoded."}
    )
    encoder: str = field(
        default="tfidf",
        metadata={
            "help": "Source of item vectors: 'tfidf' (TF-IDF + truncated SVD, offline), the path of a .npy file with "
            "one row per item in item order, of a .parquet file with columns item_id and vector in any order, the "
            "output of embed_items, or a Hugging Face model by name or directory."
        },
    )
    dimensions: int = field(default=64, metadata={"help": "Width of TF-IDF vectors; lowered for small catalogues."})
    pooling: str = field(
        default="mean",
        metadata={"help": "How a Hugging Face model's token states become one vector: mean, last or cls."},
    )
    prefix: str = field(default="", metadata={"help": "Text put before each item's text for a Hugging Face model."})
    max_length: int = field(default=512, metadata={"help": "Most tokens of a text that a Hugging Face model reads."})
    batch_size: int = field(default=32, metadata={"help": "Texts per forward pass of a Hugging Face model."})
    dtype: str = field(
        default="float32", metadata={"help": "Type of a Hugging Face model's weights: float32, bfloat16 or float16."}
    )
    normalise: bool = field(
        default=True,
        metadata={"help": "Scale vectors of a Hugging Face model to length 1 (TF-IDF vectors always are)."},
    )
    device: str = field(
        default="auto",
        metadata={"help": "Where a Hugging Face model runs: auto (GPU where there is one), cpu, cuda, ..."},
    )
    processes: int = field(
        default=1,
        metadata={"help": "Processes that run a Hugging Face model, each with a copy of it; they share out the GPUs."},
    )
    cache: str | None = field(
        default=None,
        metadata={
            "help": "Folder that keeps the vectors of a Hugging Face model by the hash of their text, so that only new "
            "texts are encoded and a killed run goes on; embed_items takes its output's name with .cache by default."
        },
    )
    seed: int = field(default=42, metadata={"help": "Seed of everything random in this stage."})

    def __post_init__(self) -> None:
        """Check values that stand alone.

        Raises:
            ConfigError: Naming the setting, its value and what is allowed.
        """
        for name, known in (("pooling", tuple(POOLINGS)), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}.")
        for name in ("dimensions", "max_length", "batch_size", "processes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.encoder:
            raise ConfigError(
                "encoder is empty; give 'tfidf', a .npy or .parquet file, a directory of vectors or a model's name."
            )


@dataclass
class EmbedConfig(EncoderConfig):
    """Settings of the stage that turns item texts into vectors."""

    output: str = field(
        default="runs/demo/vectors", metadata={"help": "Directory to write vectors.npy and manifest into."}
    )


@dataclass(frozen=True)
class EmbedResult:
    """What `run_embed` made.

    Attributes:
        output: The artefact's directory.
        counts: Items, dimensions, and what the encoder counted (empty, duplicate and truncated texts...).
        up_to_date: Whether the output already stood, made from the same settings and inputs.
    """

    output: Path
    counts: Mapping[str, Any]
    up_to_date: bool


def check_vectors(vectors: np.ndarray, n_items: int, where: str) -> np.ndarray:
    """Check that vectors are a finite table with one row per item.

    Args:
        vectors: Any array.
        n_items: Number of items, N.
        where: What to call the vectors in messages, e.g. the file's path.

    Returns:
        float32 (N, D).

    Raises:
        DataError: On another number of axes or rows, a type that is not numeric, or a value that is not finite.
    """
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or vectors.shape[1] == 0:
        raise DataError(
            f"{where}: holds {vectors.dtype} of shape {vectors.shape}; expected numbers of shape ({n_items}, width)."
        )
    if len(vectors) != n_items:
        raise DataError(
            f"{where}: {len(vectors)} rows for {n_items} items. Row i must be the vector of item i of the corpus; "
            "make the vectors from this corpus."
        )
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(vectors))
    if len(bad):
        row, column = bad[0].tolist()
        rows = len(np.unique(bad[:, 0]))
        raise DataError(
            f"{where}: row {row}, column {column} is {vectors[row, column]} ({rows} such rows of {n_items}). "
            "Every value must be a finite float32; mend or leave out these items."
        )
    return vectors


def load_vectors(path: str | os.PathLike[str], n_items: int) -> np.ndarray:
    """Read a `.npy` file with one row per item, in item order.

    Args:
        path: The file; arrays of Python objects are refused.
        n_items: Number of items, N.

    Returns:
        float32 (N, D).

    Raises:
        DataError: If the file is missing or no `.npy`, or as in `check_vectors`; the message names file and row.
    """
    try:
        vectors = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Give a .npy file with one row per item.") from None
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: not a readable .npy file of numbers ({error}). Write it with numpy.save.") from None
    if not isinstance(vectors, np.ndarray):
        raise DataError(f"{path}: holds several arrays; expected one .npy array with one row per item.")
    return check_vectors(vectors, n_items, str(path))


def load_vector_table(path: str | os.PathLike[str], item_ids: Sequence[str]) -> np.ndarray:
    """Read a parquet file with columns `item_id` and `vector` (lists of numbers), one row an item, in any order.

    Rows of other items are passed over.

    Args:
        path: The file.
        item_ids: N item ids.

    Returns:
        float32 (N, D), row i of the i-th item.

    Raises:
        DataError: If the file cannot be read or lacks a column, an item is missing or comes twice, or vectors differ
            in length or are not finite.
    """
    try:
        table = pd.read_parquet(path, columns=["item_id", "vector"])
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({' '.join(str(error).split())}). Write it with columns item_id and vector."
        ) from None
    ids = pd.Index(table["item_id"].astype(str))
    if ids.has_duplicates:
        raise DataError(f"{path}: item {ids[ids.duplicated()][0]!r} has two rows. Keep one row an item.")
    places = ids.get_indexer(pd.Index(item_ids))
    lost = np.flatnonzero(places < 0)
    if len(lost):
        raise DataError(
            f"{path}: has no row for item {item_ids[lost[0]]!r} ({len(lost)} such of {len(item_ids)}). "
            "Add their vectors."
        )
    chosen = table["vector"].iloc[places]
    try:
        vectors = np.stack([np.asarray(vector, dtype=np.float64) for vector in chosen])
    except (ValueError, TypeError):
        raise DataError(f"{path}: column 'vector' must hold lists of numbers, all of one length.") from None
    return check_vectors(vectors, len(item_ids), str(path))


def load_vector_artefact(path: str | os.PathLike[str], item_ids: Sequence[str]) -> np.ndarray:
    """Read the output of `run_embed` and check that it speaks of these items in this order.

    Raises:
        ArtefactError: If `path` is not a finished artefact of kind "vectors".
        DataError: If the items differ (the message names the first), or as in `load_vectors`.
    """
    read_manifest(path, "vectors")
    ours = read_json(Path(path) / ITEMS_FILE)
    if ours != list(item_ids):
        pairs = zip(ours, item_ids, strict=False)
        place = next((i for i, (mine, other) in enumerate(pairs) if mine != other), min(len(ours), len(item_ids)))
        raise DataError(
            f"{path}: its {len(ours)} vectors are not those of the corpus's {len(item_ids)} items; they first differ "
            f"at item {place}. Make the vectors from this corpus."
        )
    return load_vectors(Path(path) / VECTORS_FILE, len(item_ids))


def encoder_inputs(encoder: str) -> dict[str, Path]:
    """Files and artefacts that an encoder reads, as `write_artefact` records them; a model of the hub has none.

    Raises:
        DataError: If the encoder is a `.npy` or `.parquet` file that does not exist.
    """
    path = Path(encoder).expanduser()
    if path.suffix in _READY:
        if not path.is_file():
            raise DataError(f"{path}: no such file. Give {_READY[path.suffix]}.")
        return {"vectors": path}
    if (path / MANIFEST).is_file() and read_manifest(path)["kind"] == "vectors":
        return {"vectors": path}
    if encoder != "tfidf" and path.is_dir():
        return {f"encoder/{file.name}": file for file in sorted(path.iterdir()) if file.suffix in _MODEL_FILES}
    return {}


def make_vectors(corpus: Corpus, settings: EncoderConfig, counts: dict[str, Any]) -> np.ndarray:
    """Vectors of a corpus's items from the encoder that the settings name.

    Args:
        corpus: The corpus.
        settings: Which encoder, and how.
        counts: Gets the number of items and dimensions, and what the encoder counts.

    Returns:
        float32 (N, D), row i of item index i, all finite.

    Raises:
        DataError: If there is no text, or ready vectors do not fit the corpus.
        ConfigError: If the encoder is unknown.
    """
    encoder, item_ids = settings.encoder, corpus.items["item_id"].astype(str).tolist()
    ready = encoder_inputs(encoder).get("vectors")
    if ready is not None:
        if ready.suffix == ".parquet":
            vectors = load_vector_table(ready, item_ids)
        elif ready.is_file():
            vectors = load_vectors(ready, len(item_ids))
        else:
            vectors = load_vector_artefact(ready, item_ids)
    else:
        texts = item_texts(corpus)
        texts_found = count_texts(texts)
        counts.update({"empty_texts": texts_found.empty, "duplicate_texts": texts_found.duplicate})
        if texts_found.empty:
            logger.warning("%d of %d items have no text; each gets the zero vector.", texts_found.empty, len(texts))
        if texts_found.duplicate:
            logger.info(
                "%d of %d items have the text of an earlier item, and so its vector.", texts_found.duplicate, len(texts)
            )
        if encoder == "tfidf":
            vectors = tfidf_svd(texts, settings.dimensions, settings.seed)
        else:
            vectors = _encode(texts, settings, counts)
        vectors = check_vectors(vectors, len(item_ids), f"encoder {encoder}")
    counts.update(items=len(item_ids), dimensions=vectors.shape[1])
    return vectors


def _encode(texts: list[str], settings: EncoderConfig, counts: dict[str, Any]) -> np.ndarray:
    filled = [place for place, text in enumerate(texts) if text]
    names = ("pooling", "batch_size", "max_length", "device", "prefix", "dtype")
    arguments = {name: getattr(settings, name) for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        cache = VectorCache(Path(settings.cache or scratch) / _encoder_key(settings))
        encoded = encode_cached(
            [texts[place] for place in filled],
            cache,
            settings.processes,
            model_name_or_path=settings.encoder,
            **arguments,
        )
    counts.update(encoded.counts())
    if not counts["tokens"]:
        raise DataError(f"{settings.encoder}: its tokenizer makes no token of any of the {len(filled)} texts.")
    if counts["truncated"]:
        logger.warning(
            "%d of %d texts were cut at %d tokens; raise max_length to keep more.",
            counts["truncated"],
            len(texts),
            int(encoded.tokens.max()),
        )
    vectors = np.zeros((len(texts), encoded.vectors.shape[1]), dtype=np.float32)
    vectors[filled] = l2_normalise(encoded.vectors) if settings.normalise else encoded.vectors
    return vectors


def _encoder_key(settings: EncoderConfig) -> str:
    """Name of the cache folder of one model and manner of reading, of all that decides what a vector is."""
    files = {name: file_sha256(path) for name, path in encoder_inputs(settings.encoder).items()}
    model = files or [settings.encoder, hub_commit(settings.encoder)]
    manner = [model, settings.pooling, settings.prefix, settings.max_length, settings.dtype]
    return hashlib.sha256(json.dumps(manner, sort_keys=True).encode()).hexdigest()[:16]


def run_embed(config: EmbedConfig) -> EmbedResult:
    """Encode the items of a corpus: an artefact of kind "vectors" with `vectors.npy` and `items.json`.

    `vectors.npy` is float32 (N, D), row i = item i of the corpus's items; `items.json` lists the N item ids in that
    order, so that a later stage can tell whether the vectors are of its items.

    Args:
        config: The stage's settings.

    Returns:
        Where the vectors lie and what was counted.

    Raises:
        ArtefactError: If the corpus is missing or the output cannot be written.
        DataError: If there is no text, or ready vectors do not fit the corpus.
        ConfigError: If the encoder is unknown.
    """
    output = Path(config.output)
    inputs: dict[str, str | Path] = {"corpus": config.corpus, **encoder_inputs(config.encoder)}
    read_manifest(config.corpus, "corpus")
    if any(output.resolve() == Path(path).resolve() for path in inputs.values()):
        raise ArtefactError(f"{output}: is also an input of this stage. Choose another output.")
    if is_current(output, "vectors", config, inputs):
        logger.info("%s is up to date.", output)
        return EmbedResult(output, read_manifest(output)["counts"], True)
    corpus = Corpus.load(config.corpus)
    counts: dict[str, Any] = {}
    vectors = make_vectors(corpus, replace(config, cache=config.cache or f"{output}.cache"), counts)
    with write_artefact(output, "vectors", config=config, inputs=inputs, seed=config.seed, counts=counts) as place:
        np.save(place / VECTORS_FILE, vectors, allow_pickle=False)
        write_text_atomic(place / ITEMS_FILE, json.dumps(corpus.items["item_id"].astype(str).tolist()) + "\n")
    logger.info("Vectors of %d items, %d wide, are in %s.", *vectors.shape, output)
    return EmbedResult(output, to_plain(counts), False)
