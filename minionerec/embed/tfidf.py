"""TF-IDF and truncated SVD: item vectors with no network and no accelerator."""

from collections.abc import Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger

logger = get_logger(__name__)


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


def tfidf_svd(texts: Sequence[str], dimensions: int, seed: int) -> np.ndarray:
    """Latent semantic vectors of texts: TF-IDF over words and word pairs, truncated SVD, rows of length 1.

    Term weights are (1 + log count) times the inverse document frequency. Words are runs of letters and digits of any
    length, in lower case, since a catalogue's single characters (sizes, thread numbers) carry meaning. The linear
    algebra runs on one thread, so that the same input and seed give the same bytes on one machine.

    Args:
        texts: N texts.
        dimensions: Wished width D; clipped to what N texts and their terms can fill, and said so.
        seed: Seed of the randomised SVD.

    Returns:
        float32 (N, D), row i of text i; zeros where a text holds no word.

    Raises:
        DataError: If no text holds a word.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from threadpoolctl import threadpool_limits

    vectoriser = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    try:
        weights = vectoriser.fit_transform(texts)  # sparse (N, terms)
    except ValueError as error:
        if "vocabulary" not in str(error):
            raise
        raise DataError(
            f"none of the {len(texts)} texts holds a word, so TF-IDF has nothing to count. Give item titles, or ready "
            "vectors (encoder: PATH.npy)."
        ) from None
    fitting = min(dimensions, *weights.shape)
    if fitting < dimensions:
        logger.info(
            "TF-IDF: %d texts with %d terms fill %d dimensions; %d were asked for.", *weights.shape, fitting, dimensions
        )
    with threadpool_limits(limits=1):
        reduced = TruncatedSVD(fitting, random_state=seed).fit(weights).transform(weights)  # (N, D)
        return l2_normalise(reduced)
