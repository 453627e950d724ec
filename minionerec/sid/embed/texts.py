"""Texts of items: reading, joining, and vectors of TF-IDF and WordLlama."""

import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from minionerec.core.artefacts import open_artefact, read_json, unchanged_input, write_text_atomic
from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.log import get_logger, progress
from minionerec.core.parquet import read_parquet
from minionerec.data.corpus import Corpus
from minionerec.data.names import ITEM_COLUMNS, TEXT_COLUMNS
from minionerec.data.rows import SplitExamples
from minionerec.sid.embed.encoder import WORDLLAMA, WORDLLAMA_TOKENIZER, WORDLLAMA_WEIGHTS, encoder_inputs

logger = get_logger(__name__)

_BLOCK = 512  # texts that are compared with all others at once
_ROUNDING = 32 * float(np.finfo(np.float32).eps)  # similarities, at most 1, that differ by less are equal
_MAX_TIED = 8  # multiple of the requested neighbours above which those tied at the end are left out


def load_items(path: str | os.PathLike[str], texts: bool = True) -> Corpus:
    """Load a corpus artefact without its examples.

    Args:
        path: The artefact.
        texts: Whether titles and descriptions are read.

    Raises:
        ArtefactError: If `path` is not a finished and unchanged corpus, or its items cannot be read.
    """
    counts = open_artefact(path, "corpus")["counts"]
    columns = dict.fromkeys(ITEM_COLUMNS if texts else ITEM_COLUMNS[:1], "text")
    remedy = "Run the stage that makes the corpus again (minionerec prepare-data)."
    file, none = Path(path) / "items.parquet", SplitExamples.none()
    items = read_parquet(file, columns, only=not texts, remedy=remedy)
    if len(items) != counts.get("items"):
        raise ArtefactError(f"{file}: has {len(items)} items, but the corpus counts {counts.get('items')}. {remedy}")
    return Corpus(items, none, none, none, split="", max_history=0, counts=counts)


def item_texts(corpus: Corpus) -> list[str]:
    """The text of each item: its title and description, or the columns that the corpus names (`text_columns`).

    They are joined by one space; every run of white space becomes one space.

    Args:
        corpus: The corpus.

    Returns:
        N texts, text i for item index i; "" where all columns of an item are empty.

    Raises:
        DataError: If no item has any text.
    """
    names = corpus.counts.get("text_columns", TEXT_COLUMNS)
    columns = [corpus.items[name].fillna("").astype(str).tolist() for name in names]
    texts = [" ".join(" ".join(cells).split()) for cells in zip(*columns, strict=True)]
    if not any(texts):
        raise DataError(
            f"none of the {len(texts)} items has a {' or a '.join(names)}, so no vector can be made from text. "
            "Give vectors of interactions (encoder: interactions), or ready ones (encoder: PATH.npy, one row per item)."
        )
    return texts


def joined_texts(corpus: Corpus, numbers: np.ndarray) -> list[str]:
    """Texts of the items of each group, e.g. of each SID, in the order of ids, joined by a space; "" without a text.

    Args:
        corpus: The corpus.
        numbers: int64 (N,), the group of each item; groups are numbered from 0.
    """
    group_texts: list[list[str]] = [[] for _ in range(int(numbers.max(initial=-1)) + 1)]
    try:
        texts = item_texts(corpus)
        for item in np.argsort(corpus.id_positions).tolist():
            group_texts[numbers[item]] += [texts[item]] if texts[item] else []
    except DataError:
        pass
    return [" ".join(texts) for texts in group_texts]


# TF-IDF and truncated SVD: item vectors with no network and no accelerator.


def l2_normalise(vectors: np.ndarray) -> np.ndarray:
    """Scale each row to length 1; rows of zeros stay as they are.

    Args:
        vectors: float (N, D).

    Returns:
        float32 (N, D).

    Example:
        >>> l2_normalise(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


# Vowel signs and the like of Hebrew, Arabic and the scripts of South and South-East Asia, which \w leaves out.
_MARKS = "".join(chr(code) for code in range(0x590, 0x1D00) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
_UNSPACED = (  # characters of scripts without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u1000-\u102a\u1050-\u1055\u1780-\u17b3"
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
_WORD = rf"\w[\w{_MARKS}]*"
WORD_OR_CHARACTER = rf"[{_UNSPACED}][{_MARKS}]*|[^\W{_UNSPACED}]+(?:[{_MARKS}]+[^\W{_UNSPACED}]*)*"
"""Regular expression of a word, or of a character of a script without spaces between words."""


def word_pattern(texts: Sequence[str]) -> str:
    """Regular expression of a word: a run of letters and digits.

    If more than 1 % of the texts contain a script without spaces between words (Chinese, Japanese, Thai, Lao, Khmer,
    Burmese), each character of these scripts is a word.

    Example:
        >>> [re.findall(word_pattern([text]), text) for text in ("M3 bolt", "M3螺栓")]
        [['M3', 'bolt'], ['M3', '螺', '栓']]
    """
    unspaced = re.compile(f"[{_UNSPACED}]")
    return WORD_OR_CHARACTER if 100 * sum(bool(unspaced.search(text)) for text in texts) > len(texts) else _WORD


def _tfidf(texts: Sequence[str]) -> Any:
    """Vectoriser of words and word pairs, not yet fitted; see `tfidf_svd`."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=word_pattern(texts), dtype=np.float32)


def nearest_texts(texts: Sequence[str], count: int = 20, vectors: np.ndarray | None = None) -> csr_array:
    """Find the most similar other texts of each text, by the cosine of full TF-IDF weights (see `tfidf_svd`).

    Args:
        texts: N texts.
        count: Neighbours of a text; fewer if fewer texts share a word with it. Texts tied with the last neighbour are
            included, or, if that makes more than eight times as many, all of the tied texts are left out, so the
            result does not depend on the order of texts.
        vectors: float (N, D), vectors of the same texts by another encoder. If given, the similarity is the mean of
            both cosines, where that is positive.

    Returns:
        float32 (N, N), in row i the similarities of the others to text i.

    Example:
        >>> neighbours = nearest_texts(["red oak table", "oak table", "lamp"])
        >>> neighbours.indptr.tolist(), neighbours.indices.tolist()
        ([0, 1, 2, 2], [1, 0])
    """
    return nearest_texts_by_each(texts, [vectors], count)[0]


def nearest_texts_by_each(
    texts: Sequence[str], encoders: Sequence[np.ndarray | None], count: int = 20
) -> list[csr_array]:
    """Compute `nearest_texts` for several encoders, comparing TF-IDF weights once.

    Args:
        texts: N texts.
        encoders: Argument `vectors` of `nearest_texts` for each encoder.
        count: As in `nearest_texts`.

    Returns:
        float32 (N, N) for each encoder.
    """
    try:
        weights = _tfidf(texts).fit_transform(texts)
    except ValueError:  # no text holds a word
        weights = csr_array((len(texts), 1), dtype=np.float32)
    normalised = [None if vectors is None else l2_normalise(vectors) for vectors in encoders]
    tables: list[list[csr_array]] = [[] for _ in encoders]
    for begin in progress(range(0, len(texts), _BLOCK), "comparing texts", unit="parts"):
        part = slice(begin, begin + _BLOCK)
        words = (weights[part] @ weights.T).toarray()
        for vectors, table in zip(normalised, tables, strict=True):
            similarities = words if vectors is None else (words + vectors[part] @ vectors.T) / 2
            table.append(_nearest(similarities, begin, min(count, len(texts))))
    empty = csr_array((0, len(texts)), dtype=np.float32)
    return [csr_array(vstack([empty, *table], format="csr")) for table in tables]


def _nearest(similarities: np.ndarray, begin: int, count: int) -> csr_array:
    """The largest positive similarities (B, N) of texts `begin` to `begin` + B to the others: float32 (B, N)."""
    similarities[np.arange(len(similarities)), begin + np.arange(len(similarities))] = 0
    lowest = np.partition(similarities, -count, axis=1)[:, -count, None]
    selected = (similarities >= lowest - _ROUNDING) & (similarities > 0)
    many = selected.sum(1) > _MAX_TIED * count
    selected[many] = similarities[many] > lowest[many] + _ROUNDING
    neighbours = [np.flatnonzero(row) for row in selected]
    sizes = [len(other) for other in neighbours]
    rows, columns = np.repeat(np.arange(len(similarities)), sizes), np.concatenate(neighbours)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    table = (similarities[rows, columns].astype(np.float32), columns.astype(np.int32), offsets.astype(np.int32))
    return csr_array(table, shape=similarities.shape)


def tfidf_svd(texts: Sequence[str], dimensions: int, seed: int, fitted_on: Sequence[str] | None = None) -> np.ndarray:
    """Latent semantic vectors of texts: TF-IDF over words and word pairs, truncated SVD, rows of length 1.

    Term weights are (1 + log count) times the inverse document frequency. Words are runs of letters and digits in lower
    case of any length, since single characters of a catalogue (sizes, thread numbers) carry meaning; in scripts without
    spaces they are characters (`word_pattern`). The linear algebra runs on one thread, so equal inputs and seeds give
    equal bytes on one machine.

    Args:
        texts: N texts.
        dimensions: Requested dimensions D; clipped to the number of fitted texts and terms, with a log message.
        seed: Seed of the randomised SVD.
        fitted_on: M texts that vocabulary, weights and axes are fitted on; `texts` if None. Given the texts of an
            earlier call in the same order, their vectors are equal to that call's, bit by bit.

    Returns:
        float32 (N, D), row i for text i; zeros for a text without a word of the vocabulary.

    Raises:
        DataError: If no text holds a word.
    """
    from sklearn.decomposition import TruncatedSVD
    from threadpoolctl import threadpool_limits

    fitted = texts if fitted_on is None else fitted_on
    vectoriser = _tfidf(fitted)
    try:
        weights = vectoriser.fit_transform(fitted)  # sparse (M, terms)
    except ValueError as error:
        if "vocabulary" not in str(error):
            raise
        raise DataError(
            f"none of the {len(fitted)} texts holds a word, so TF-IDF has nothing to count. Give item titles, or "
            "ready vectors (encoder: PATH.npy)."
        ) from None
    if weights.shape[1] < 2:
        raise DataError(
            f"the {len(fitted)} texts hold one word between them, so TF-IDF cannot distinguish them. Give item "
            "titles, or ready vectors (encoder: PATH.npy)."
        )
    size = min(dimensions, *weights.shape)
    if size < dimensions:
        logger.info(
            "TF-IDF: %d texts with %d terms fill %d dimensions; %d were requested.", *weights.shape, size, dimensions
        )
    with threadpool_limits(limits=1):
        axes = TruncatedSVD(size, random_state=seed).fit(weights)
        vectors = l2_normalise(axes.transform(weights))  # (M, D)
        if fitted_on is None:
            return vectors
        # Transforming a fitted text again may sum its words in another order.
        known = {text: row for row, text in enumerate(fitted_on)}
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            vectors = np.vstack([vectors, l2_normalise(axes.transform(vectoriser.transform(new)))])
            known |= {text: len(fitted_on) + row for row, text in enumerate(new)}
        return vectors[[known[text] for text in texts]]


# WordLlama: static vectors of tokens, from a package.


def wordllama_vectors(texts: Sequence[str]) -> np.ndarray:
    """Vectors of texts from WordLlama: the mean of the vectors of a text's tokens, scaled to length 1.

    Weights and tokenizer (`l2_supercat`, 256 dimensions) are read from the installed package; nothing is downloaded. A
    text's vector does not depend on other texts. See https://github.com/dleemiller/WordLlama.

    Args:
        texts: N texts.

    Returns:
        float32 (N, 256), row i for text i; zeros for an empty text.

    Raises:
        ConfigError: If the package is not installed or lacks a file.
    """
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    files = encoder_inputs(WORDLLAMA)
    weights = load_file(files[f"encoder/{WORDLLAMA_WEIGHTS}"])["embedding.weight"].astype(np.float32)
    tokenizer = Tokenizer.from_file(str(files[f"encoder/{WORDLLAMA_TOKENIZER}"]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    parts = [np.zeros((0, weights.shape[1]), np.float32)]
    starts = range(0, len(texts), _BLOCK)
    for start in progress(starts, "encoding texts", unit="parts"):
        encoded = tokenizer.encode_batch_fast(list(texts[start : start + _BLOCK]), add_special_tokens=False)
        tokens = [encoding.ids for encoding in encoded]
        ids = np.concatenate([np.asarray(text_tokens, dtype=np.int64) for text_tokens in tokens])
        bounds = np.cumsum([0, *map(len, tokens)])
        # Special tokens beyond the weights are read as the last token, as WordLlama does.
        counts = csr_array(
            (np.ones(len(ids), np.float32), np.minimum(ids, len(weights) - 1), bounds), (len(tokens), len(weights))
        )
        parts.append(l2_normalise(counts @ weights))  # normalised, so the sum is as good as the mean
    return np.concatenate(parts)


# The texts that TF-IDF was first fitted on, so that later items get vectors of the same space.

FITTED_FILE = "fitted_items.json"


@dataclass(frozen=True)
class FittedTexts:
    """Items that TF-IDF was fitted on, in fitting order, with the texts of a later corpus.

    Attributes:
        item_ids: M item ids.
        texts: M texts.
        gone: Item id → text, for items that the later corpus lacks.
    """

    item_ids: Sequence[str]
    texts: Sequence[str]
    gone: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the ids, and the texts of removed items, into an artefact."""
        content = {"items": list(self.item_ids), "gone": dict(self.gone)}
        write_text_atomic(folder / FITTED_FILE, json.dumps(content) + "\n")

    @classmethod
    def of(cls, folder: Path, own_items: Sequence[str], corpus: Corpus) -> "FittedTexts":
        """The items that an artefact's vectors were fitted on.

        An extended artefact lists these items in a file; any other was fitted on its own items. Texts are taken from
        `corpus`; for an item that it lacks, from that file, or from the artefact's corpus if that is unchanged.

        Args:
            folder: SIDs, or a checkpoint.
            own_items: Items of the artefact, in its order.
            corpus: The later corpus.

        Raises:
            DataError: If the text of an item is not found.
        """
        fitted: dict[str, Any] = {"items": list(own_items), "gone": {}}
        if (folder / FITTED_FILE).is_file():
            fitted = read_json(folder / FITTED_FILE)
        known = _texts(corpus)
        absent = [item for item in fitted["items"] if item not in known and item not in fitted["gone"]]
        former = unchanged_input(folder, "corpus") if absent else None
        earlier = {} if former is None else _texts(load_items(former))
        missing = [item for item in absent if item not in earlier]
        if missing:
            raise DataError(
                f"{folder}: TF-IDF was fitted on {len(fitted['items'])} items, and {len(missing)} of them, such as "
                f"{missing[0]!r}, are neither in the new corpus nor in the former one. Keep these items, "
                "restore the former corpus at its path, or rebuild all SIDs."
            )
        gone = {item: text for item, text in {**fitted["gone"], **earlier}.items() if item not in known}
        gone = {item: gone[item] for item in fitted["items"] if item in gone}
        return cls(fitted["items"], [known[item] if item in known else gone[item] for item in fitted["items"]], gone)


def _texts(corpus: Corpus) -> dict[str, str]:
    return dict(zip(corpus.items["item_id"].astype(str).tolist(), item_texts(corpus), strict=True))
