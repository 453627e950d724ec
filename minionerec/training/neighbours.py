"""Vectors of semantic IDs from texts and interactions, and the most similar semantic IDs of each."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.models.nn.experts import ItemLikeness
from minionerec.sid.embed.encoder import INTERACTIONS, TFIDF, VectorSource
from minionerec.sid.embed.interactions import beside
from minionerec.sid.embed.texts import joined_texts, l2_normalise, nearest_texts, nearest_texts_by_each, tfidf_svd
from minionerec.sid.embed.vectors import make_vectors

_INTERACTION_WIDTH = 128  # of the vectors of interactions by which SIDs are compared
_TEXT_WIDTH = 128  # of those of texts


def sid_text(
    corpus: Corpus, numbers: np.ndarray, encoder: str, width: int, fitted_on: Sequence[str] | None = None
) -> np.ndarray:
    """Text vectors of the distinct SIDs, float32 (N, T): means over their items, of length about the root of T.

    Args:
        corpus: The corpus.
        numbers: int64 (I,), the SID of each of its items, from 0 to N - 1.
        encoder: See `minionerec.sid.embed.encoder.VectorSource`.
        width: Width of TF-IDF vectors.
        fitted_on: Texts that TF-IDF is fitted on; those of the corpus if None.
    """
    vectors = make_vectors(corpus, VectorSource(encoder=encoder, dimensions=width), {}, fitted_on)
    text = sid_means(vectors, numbers)
    text *= np.sqrt(vectors.shape[1], dtype=np.float32)
    return text


def sid_means(vectors: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Means of vectors of items, (I, D), over the items of each SID: float32 (N, D); numbers as of `sid_text`."""
    means = np.zeros((int(numbers.max()) + 1, vectors.shape[1]), dtype=np.float32)
    np.add.at(means, numbers, vectors)
    means /= np.bincount(numbers)[:, None].astype(np.float32)
    return means


def sid_likeness(corpus: Corpus, numbers: np.ndarray, encoder: str, text: np.ndarray | None) -> ItemLikeness:
    """Similarities of the most similar SIDs, and their vectors; none where nothing is known of any item.

    The similarity by all data is the mean of two cosines: that of TF-IDF weights of texts, uncompressed, and that of
    the vectors of `encoder` beside those of training interactions (`minionerec.sid.embed.interactions.beside`). Both
    similarities are of the same pairs, the nearest by either; where a pair is not among the nearest by one of them, it
    is 0 by that. The vectors are those of `text`, of length 1.

    Args:
        corpus: The corpus.
        numbers: See `sid_text`.
        encoder: Where `text` comes from.
        text: float32 (N, T), vectors of the distinct SIDs (`sid_text`); None where the model has none.
    """
    vectors = text
    if encoder != INTERACTIONS:
        try:
            together = l2_normalise(sid_text(corpus, numbers, INTERACTIONS, _INTERACTION_WIDTH))
            vectors = together if text is None else beside(text, together)
        except DataError:  # no two items have a user in common
            pass
    pairs = of_same_pairs(*nearest_texts_by_each(joined_texts(corpus, numbers), [vectors, None]))
    alone = np.zeros((int(numbers.max()) + 1, 0), dtype=np.float32) if text is None else l2_normalise(text)
    return ItemLikeness(*pairs, alone)


def corpus_likeness(corpus: Corpus, numbers: np.ndarray) -> ItemLikeness:
    """`sid_likeness` by TF-IDF of texts and by training interactions; arguments as of `sid_text`."""
    try:
        text = sid_text(corpus, numbers, TFIDF, _TEXT_WIDTH)
    except DataError:  # no item has a text
        text = None
    return sid_likeness(corpus, numbers, TFIDF, text)


def text_likeness(texts: Sequence[str]) -> ItemLikeness:
    """Similarities and vectors of N items by TF-IDF of their texts alone."""
    words = nearest_texts(texts)
    try:
        vectors = tfidf_svd(texts, _TEXT_WIDTH, VectorSource.seed)
    except DataError:  # no item has a text
        vectors = np.zeros((len(texts), 0), dtype=np.float32)
    return ItemLikeness(words, words, vectors)


def of_same_pairs(first: csr_array, second: csr_array) -> tuple[csr_array, csr_array]:
    """Two tables with the entries of either, 0 where one lacks the other's."""
    parts = [each.tocoo() for each in (first, second)]
    keys = [each.row.astype(np.int64) * each.shape[1] + each.col for each in parts]
    both = np.union1d(*keys)
    rows, columns = np.divmod(both, first.shape[1])
    offsets = np.concatenate([[0], np.bincount(rows, minlength=len(first.indptr) - 1).cumsum()]).astype(np.int32)
    found = []
    for own, each in zip(keys, (first, second), strict=True):
        values = np.zeros(len(both), dtype=np.float32)
        values[np.searchsorted(both, own)] = each.data
        found.append(csr_array((values, columns.astype(np.int32), offsets), shape=first.shape))
    return found[0], found[1]
