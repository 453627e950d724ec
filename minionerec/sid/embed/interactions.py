"""Item vectors from training interactions: factors of item co-occurrence, alone or beside vectors of texts."""

import numpy as np
from scipy.sparse import csr_array

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.transitions import training_transitions
from minionerec.sid.embed.texts import l2_normalise

logger = get_logger(__name__)

_REACH, _DECAY = 10, 0.8  # largest distance of a pair in a history, and factor of its weight per step
_SMOOTHING = 0.75  # power of frequencies in the denominator, so that rare pairs do not dominate
_PART = np.float32(0.5**0.5)  # length of each of two parts of a vector of length 1


def interaction_vectors(corpus: Corpus, dimensions: int, seed: int) -> np.ndarray:
    """Vectors of length 1 that are similar for items that the same users interact with within a few steps.

    Truncated SVD of the positive pointwise mutual information of items at most 10 steps apart in training windows, with
    weights that decay with the distance and smoothed frequencies (Levy, Goldberg and Dagan, "Improving Distributional
    Similarity with Lessons Learned from Word Embeddings", TACL 2015). Validation and test examples are not read. The
    linear algebra runs on one thread, so equal inputs and seeds give equal bytes on one machine.

    Args:
        corpus: The corpus.
        dimensions: Requested dimensions D; clipped to the number of items with a pair, with a log message.
        seed: Seed of the randomised SVD.

    Returns:
        float32 (N, D), row i for item index i; zeros for an item without a pair.

    Raises:
        DataError: If fewer than two items are in a pair with positive information.
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
    transitions = training_transitions(corpus, corpus.max_history, _REACH, _DECAY, reverse=1.0)
    size = corpus.n_items
    items, neighbours = transitions.tocoo().coords
    others = items != neighbours
    items, neighbours, counts = items[others], neighbours[others], transitions.data[others].astype(np.float64)
    totals = np.bincount(items, counts, minlength=size)
    shares = totals**_SMOOTHING
    shares /= max(float(shares.sum()), 1.0)
    values = np.log(counts / (totals[items] * shares[neighbours])) if len(items) else counts
    positive = values > 0
    return csr_array((values[positive].astype(np.float32), (items[positive], neighbours[positive])), shape=(size, size))


def text_part(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors of texts to the length that they have as the first part of `beside`.

    Args:
        vectors: float (N, T).

    Returns:
        float32 (N, T).
    """
    return l2_normalise(vectors) * _PART


def beside(texts: np.ndarray, interactions: np.ndarray) -> np.ndarray:
    """Concatenate vectors of texts and of interactions, both parts scaled to equal length.

    Args:
        texts: float (N, T).
        interactions: float32 (N, D), rows of length 1, or zeros for items without one.

    Returns:
        float32 (N, T + D).
    """
    return np.hstack([text_part(texts), interactions * _PART])
