"""Item vectors of a corpus, from any encoder."""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import file_sha256
from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.embed.cache import VectorCache, encode_cached
from minionerec.embed.config import EncoderSettings, encoder_inputs
from minionerec.embed.hf import hub_commit
from minionerec.embed.items import HasItems
from minionerec.embed.mapped import Rows, is_large
from minionerec.embed.ready import (
    VECTORS_FILE,
    check_vectors,
    load_vector_artefact,
    load_vector_table,
    load_vectors,
    open_vector_artefact,
    open_vectors,
)
from minionerec.embed.texts import count_texts, item_texts
from minionerec.embed.tfidf import l2_normalise, tfidf_svd

logger = get_logger(__name__)


def make_vectors(
    corpus: HasItems, settings: EncoderSettings, counts: dict[str, Any], fitted_on: Sequence[str] | None = None
) -> np.ndarray:
    """Vectors of a corpus's items from the encoder that the settings name.

    Args:
        corpus: The corpus.
        settings: Which encoder, and how.
        counts: Gets the number of items and dimensions, and what the encoder counts.
        fitted_on: Texts that TF-IDF is fitted on; those of the corpus if None. Other encoders have no need of them.

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
            vectors = tfidf_svd(texts, settings.dimensions, settings.seed, fitted_on)
        else:
            vectors = _encode(texts, settings, counts)
        vectors = check_vectors(vectors, len(item_ids), f"encoder {encoder}")
    counts.update(items=len(item_ids), dimensions=vectors.shape[1])
    return vectors


def large_vectors(encoder: str) -> Path | None:
    """The `.npy` file that an encoder reads, on its own or in an artefact, if it is large enough to stay there."""
    ready = encoder_inputs(encoder).get("vectors")
    if ready is None or ready.suffix == ".parquet":
        return None
    file = ready if ready.is_file() else ready / VECTORS_FILE
    return file if is_large(file) else None


def vectors_in_blocks(corpus: HasItems, settings: EncoderSettings, counts: dict[str, Any]) -> Rows:
    """As `make_vectors`, for those who can do with some rows at a time: large `.npy` files stay where they are.

    Args:
        corpus: The corpus.
        settings: Which encoder, and how.
        counts: As there.

    Returns:
        An array, or a `minionerec.embed.mapped.VectorFile` from `STREAMED_FROM` bytes on, whose values are checked
        when they are read.

    Raises:
        DataError: As there.
        ConfigError: As there.
    """
    if large_vectors(settings.encoder) is None:
        return make_vectors(corpus, settings, counts)
    ready, ids = encoder_inputs(settings.encoder)["vectors"], corpus.items["item_id"]
    vectors = open_vectors(ready, len(ids)) if ready.is_file() else open_vector_artefact(ready, ids)
    counts.update(items=len(ids), dimensions=vectors.shape[1])
    logger.info("%s: %d vectors, %d wide, stay in their file and are read in blocks.", ready, *vectors.shape)
    return vectors


def _encode(texts: list[str], settings: EncoderSettings, counts: dict[str, Any]) -> np.ndarray:
    filled = [place for place, text in enumerate(texts) if text]
    with tempfile.TemporaryDirectory() as scratch:
        encoded = encode_cached(
            [texts[place] for place in filled],
            VectorCache(Path(settings.cache or scratch) / _encoder_key(settings)),
            settings.processes,
            model_name_or_path=settings.encoder,
            pooling=settings.pooling,
            batch_size=settings.batch_size,
            max_length=settings.max_length,
            device=settings.device,
            prefix=settings.prefix,
            dtype=settings.dtype,
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


def _encoder_key(settings: EncoderSettings) -> str:
    """Name of the cache folder of one model and manner of reading, of all that decides what a vector is."""
    files = {name: file_sha256(path) for name, path in encoder_inputs(settings.encoder).items()}
    model = files or [settings.encoder, hub_commit(settings.encoder)]
    manner = [model, settings.pooling, settings.prefix, settings.max_length, settings.dtype]
    return hashlib.sha256(json.dumps(manner, sort_keys=True).encode()).hexdigest()[:16]
