"""Item vectors from training interactions: factors of item co-occurrence, alone or beside vectors of texts."""

import numpy as np
from scipy.sparse import csr_array

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.transitions import training_transitions
from minionerec.sid.embed.texts import l2_normalise

logger = get_logger(__name__)

_REACH, _DECAY = 10, 0.8  # pairs of a history that count, and the weight of each further step apart
_SMOOTHING = 0.75  # power of frequencies in the denominator, which keeps rare pairs from dominating
_PART = np.float32(0.5**0.5)  # length of each of two parts of a vector of length 1


def interaction_vectors(corpus: Corpus, dimensions: int, seed: int) -> np.ndarray:
    """Vectors of items that are near where the same users interact with both within a few steps; rows of length 1.

    A truncated SVD of the positive pointwise mutual information of items at most 10 steps apart in training windows,
    pairs further apart weighing less, frequencies smoothed (Levy, Goldberg and Dagan, "Improving Distributional
    Similarity with Lessons Learned from Word Embeddings", TACL 2015). Validation and test examples are not read. The
    linear algebra runs on one thread, so that the same input and seed give the same bytes on one machine.

    Args:
        corpus: The corpus.
        dimensions: Wished dimensions D; clipped to the number of items with a pair, with a log message.
        seed: Seed of the randomised SVD.

    Returns:
        float32 (N, D), row i of item index i; zeros where an item is in no pair.

    Raises:
        DataError: If training histories hold fewer than two items that are in a pair with positive information.
    """
    from sklearn.decomposition import TruncatedSVD
    from threadpoolctl import threadpool_limits

    information = _positive_information(corpus)
    paired = np.flatnonzero(np.diff(information.indptr))
    if len(paired) < 2:
        raise DataError(
            f"the training examples hold {len(paired)} items that users have together with another, so no vector can "
            "be made from interactions. Give an encoder of texts, such as tfidf."
        )
    fitting = min(dimensions, len(paired))
    if fitting < dimensions:
        logger.info(
            "Interactions: %d items with pairs fill %d dimensions; %d were requested.", len(paired), fitting, dimensions
        )
    with threadpool_limits(limits=1):
        axes = TruncatedSVD(fitting, random_state=seed).fit(information)
        return l2_normalise(axes.transform(information))


def _positive_information(corpus: Corpus) -> csr_array:
    """log(n_ij / (n_i q_j)) of items i and j where it is positive, with q_j the smoothed share of j: float32 (N, N)."""
    found = training_transitions(corpus, corpus.max_history, _REACH, _DECAY, reverse=1.0)
    size = corpus.n_items
    rows, columns = found.tocoo().coords
    others = rows != columns
    rows, columns, counts = rows[others], columns[others], found.data[others].astype(np.float64)
    totals = np.bincount(rows, counts, minlength=size)
    shares = totals**_SMOOTHING
    shares /= max(float(shares.sum()), 1.0)
    values = np.log(counts / (totals[rows] * shares[columns])) if len(rows) else counts
    kept = values > 0
    return csr_array((values[kept].astype(np.float32), (rows[kept], columns[kept])), shape=(size, size))


def text_part(vectors: np.ndarray) -> np.ndarray:
    """Vectors of texts as the first part of vectors that interactions are beside: float32 (N, T), each of equal length.

    Args:
        vectors: float (N, T).
    """
    return l2_normalise(vectors) * _PART


def beside(texts: np.ndarray, interactions: np.ndarray) -> np.ndarray:
    """Vectors of texts, and beside them those of interactions, both parts of equal length.

    Args:
        texts: float (N, T).
        interactions: float32 (N, D), rows of length 1, or of zeros where an item has none.

    Returns:
        float32 (N, T + D).
    """
    return np.hstack([text_part(texts), interactions * _PART])
