"""Texts of items: reading and joining, vectors of TF-IDF and WordLlama, and the texts that TF-IDF was fitted on."""

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

_TEXTS_AT_ONCE = 512  # texts that are compared with all others at a time
_ROUNDING = 32 * float(np.finfo(np.float32).eps)  # similarities, at most 1, that differ by less are equal
_MOST_TIED = 8  # times as many neighbours as requested, above which those tied at the end are left out


def load_items(path: str | os.PathLike[str], texts: bool = True) -> Corpus:
    """The items of a corpus artefact, as a corpus without examples: for stages that have no use for these.

    Args:
        path: The artefact.
        texts: Whether titles and descriptions are read, too.

    Raises:
        ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or its
            items cannot be read.
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
        N texts, text i of item index i; "" where all columns of an item are empty.

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
    """The texts of the items of each number, e.g. of each SID, in the order of ids, joined by a space: "" without any.

    Args:
        corpus: The corpus.
        numbers: int64 (N,), the number of each item; all from 0 to the largest occur.
    """
    found: list[list[str]] = [[] for _ in range(int(numbers.max(initial=-1)) + 1)]
    try:
        texts = item_texts(corpus)
        for item in np.argsort(corpus.id_positions).tolist():
            found[numbers[item]] += [texts[item]] if texts[item] else []
    except DataError:
        pass
    return [" ".join(texts) for texts in found]


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
"""A word, as a regular expression; of scripts that write no spaces between words a character."""


def word_pattern(texts: Sequence[str]) -> str:
    """What counts as a word of some texts, as a regular expression: a run of letters and digits.

    Where more than one text in a hundred is, at least in part, of a script without spaces between words (Chinese,
    Japanese, Thai, Lao, Khmer, Burmese), each character of these scripts is a word.

    Example:
        >>> [re.findall(word_pattern([text]), text) for text in ("M3 bolt", "M3螺栓")]
        [['M3', 'bolt'], ['M3', '螺', '栓']]
    """
    unspaced = re.compile(f"[{_UNSPACED}]")
    return WORD_OR_CHARACTER if 100 * sum(bool(unspaced.search(text)) for text in texts) > len(texts) else _WORD


def _tfidf(texts: Sequence[str]) -> Any:
    """Weights of words and word pairs, to be fitted on texts; see `tfidf_svd`."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=word_pattern(texts), dtype=np.float32)


def nearest_texts(texts: Sequence[str], count: int = 20, vectors: np.ndarray | None = None) -> csr_array:
    """The most similar of the other texts for each text, by the cosine of TF-IDF weights (`tfidf_svd`), uncompressed.

    Args:
        texts: N texts.
        count: Most similar texts of a text; fewer where no more share a word with it. All that are as similar as the
            last of them are kept too, or, where that makes more than eight times as many, none of these is: which texts
            are neighbours does not depend on the order of texts.
        vectors: float (N, D), vectors of the same texts by another encoder: the similarity is then the mean of the
            cosine of TF-IDF weights and of theirs, where that is above 0.

    Returns:
        float32 (N, N), in row i the similarities of the others to text i.

    Example:
        >>> found = nearest_texts(["red oak table", "oak table", "lamp"])
        >>> found.indptr.tolist(), found.indices.tolist()
        ([0, 1, 2, 2], [1, 0])
    """
    return nearest_texts_by_each(texts, [vectors], count)[0]


def nearest_texts_by_each(
    texts: Sequence[str], encoders: Sequence[np.ndarray | None], count: int = 20
) -> list[csr_array]:
    """`nearest_texts` with the vectors of each of several encoders; texts are compared once.

    Args:
        texts: N texts.
        encoders: `vectors` of `nearest_texts`, of each encoder.
        count: As of `nearest_texts`.

    Returns:
        float32 (N, N) for each encoder.
    """
    try:
        weights = _tfidf(texts).fit_transform(texts)
    except ValueError:  # no text holds a word
        weights = csr_array((len(texts), 1), dtype=np.float32)
    others = [None if vectors is None else l2_normalise(vectors) for vectors in encoders]
    tables: list[list[csr_array]] = [[] for _ in encoders]
    for begin in progress(range(0, len(texts), _TEXTS_AT_ONCE), "comparing texts", unit="parts"):
        part = slice(begin, begin + _TEXTS_AT_ONCE)
        words = (weights[part] @ weights.T).toarray()
        for own, table in zip(others, tables, strict=True):
            alike = words if own is None else (words + own[part] @ own.T) / 2
            table.append(_nearest(alike, begin, min(count, len(texts))))
    empty = csr_array((0, len(texts)), dtype=np.float32)
    return [csr_array(vstack([empty, *table], format="csr")) for table in tables]


def _nearest(alike: np.ndarray, begin: int, count: int) -> csr_array:
    """The largest similarities above 0 of some texts, `begin` the number of the first, to others: float32 (B, N)."""
    alike[np.arange(len(alike)), begin + np.arange(len(alike))] = 0
    least = np.partition(alike, -count, axis=1)[:, -count, None]
    kept = (alike >= least - _ROUNDING) & (alike > 0)
    many = kept.sum(1) > _MOST_TIED * count
    kept[many] = alike[many] > least[many] + _ROUNDING
    others = [np.flatnonzero(row) for row in kept]
    sizes = [len(other) for other in others]
    rows, columns = np.repeat(np.arange(len(alike)), sizes), np.concatenate(others)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    table = (alike[rows, columns].astype(np.float32), columns.astype(np.int32), offsets.astype(np.int32))
    return csr_array(table, shape=alike.shape)


def tfidf_svd(texts: Sequence[str], dimensions: int, seed: int, fitted_on: Sequence[str] | None = None) -> np.ndarray:
    """Latent semantic vectors of texts: TF-IDF over words and word pairs, truncated SVD, rows of length 1.

    Term weights are (1 + log count) times the inverse document frequency. Words are runs of letters and digits of any
    length, in lower case, since a catalogue's single characters (sizes, thread numbers) carry meaning; of languages
    without spaces, characters (`word_pattern`), so that word pairs are pairs of neighbouring characters. The linear
    algebra runs on one thread, so that the same input and seed give the same bytes on one machine.

    Args:
        texts: N texts.
        dimensions: Wished dimensions D; clipped to what the fitted texts and their terms can fill, with a log message.
        seed: Seed of the randomised SVD.
        fitted_on: M texts that decide which words count, how much each weighs, and the axes; `texts` themselves if
            None. With the texts of an earlier call, in their order, those get their vectors again, bit by bit.

    Returns:
        float32 (N, D), row i of text i; zeros where a text holds no word (none that counts).

    Raises:
        DataError: If no text holds a word.
    """
    from sklearn.decomposition import TruncatedSVD
    from threadpoolctl import threadpool_limits

    learned = texts if fitted_on is None else fitted_on
    vectoriser = _tfidf(learned)
    try:
        weights = vectoriser.fit_transform(learned)  # sparse (M, terms)
    except ValueError as error:
        if "vocabulary" not in str(error):
            raise
        raise DataError(
            f"none of the {len(learned)} texts holds a word, so TF-IDF has nothing to count. Give item titles, or "
            "ready vectors (encoder: PATH.npy)."
        ) from None
    if weights.shape[1] < 2:
        raise DataError(
            f"the {len(learned)} texts hold one word between them, so TF-IDF cannot distinguish them. Give item "
            "titles, or ready vectors (encoder: PATH.npy)."
        )
    fitting = min(dimensions, *weights.shape)
    if fitting < dimensions:
        logger.info(
            "TF-IDF: %d texts with %d terms fill %d dimensions; %d were requested.", *weights.shape, fitting, dimensions
        )
    with threadpool_limits(limits=1):
        axes = TruncatedSVD(fitting, random_state=seed).fit(weights)
        vectors = l2_normalise(axes.transform(weights))  # (M, D)
        if fitted_on is None:
            return vectors
        # Transformed once more, a text's words may be summed in another order.
        known = {text: row for row, text in enumerate(fitted_on)}
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            vectors = np.vstack([vectors, l2_normalise(axes.transform(vectoriser.transform(new)))])
            known |= {text: len(fitted_on) + row for row, text in enumerate(new)}
        return vectors[[known[text] for text in texts]]


# WordLlama: static vectors of tokens, from a package.


def wordllama_vectors(texts: Sequence[str]) -> np.ndarray:
    """Vectors of texts from WordLlama: the mean of the vectors of a text's tokens, of length 1.

    Weights and tokenizer (`l2_supercat`, 256 dimensions) are read from the installed package; nothing is downloaded. A
    text's vector does not depend on other texts. See https://github.com/dleemiller/WordLlama.

    Args:
        texts: N texts.

    Returns:
        float32 (N, 256), row i of text i; zeros where a text is empty.

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
    starts = range(0, len(texts), _TEXTS_AT_ONCE)
    for start in progress(starts, "encoding texts", unit="parts"):
        encoded = tokenizer.encode_batch_fast(list(texts[start : start + _TEXTS_AT_ONCE]), add_special_tokens=False)
        tokens = [each.ids for each in encoded]
        ids = np.concatenate([np.asarray(each, dtype=np.int64) for each in tokens])
        bounds = np.cumsum([0, *map(len, tokens)])
        # Ids beyond the weights are of special tokens, and read as the last one, as WordLlama does.
        counts = csr_array(
            (np.ones(len(ids), np.float32), np.minimum(ids, len(weights) - 1), bounds), (len(tokens), len(weights))
        )
        parts.append(l2_normalise(counts @ weights))  # of length 1, so that the sum does for the mean
    return np.concatenate(parts)


# The texts that TF-IDF was first fitted on, so that later items get vectors of the same space.

FITTED_FILE = "fitted_items.json"


@dataclass(frozen=True)
class FittedTexts:
    """Items that TF-IDF was fitted on, in fitting order, with the texts of a later corpus.

    Attributes:
        item_ids: M item ids.
        texts: M texts.
        gone: Text of each of them that the later corpus has no more.
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

        An artefact that was itself extended records so in a file; any other was fitted on the items that it has. Texts
        are those of `corpus`. An item that is not there any more has its text from that file, or from the corpus that
        the artefact was made from, where that is unchanged at its path.

        Args:
            folder: SIDs, or a checkpoint.
            own_items: Its items, in its order.
            corpus: The later corpus.

        Raises:
            DataError: If the text of an item is lost.
        """
        fitted: dict[str, Any] = {"items": list(own_items), "gone": {}}
        if (folder / FITTED_FILE).is_file():
            fitted = read_json(folder / FITTED_FILE)
        known = _texts(corpus)
        lost = [item for item in fitted["items"] if item not in known and item not in fitted["gone"]]
        before = unchanged_input(folder, "corpus") if lost else None
        earlier = {} if before is None else _texts(load_items(before))
        missing = [item for item in lost if item not in earlier]
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
