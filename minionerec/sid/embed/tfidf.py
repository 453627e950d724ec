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


def tfidf_svd(texts: Sequence[str], dimensions: int, seed: int, fitted_on: Sequence[str] | None = None) -> np.ndarray:
    """Latent semantic vectors of texts: TF-IDF over words and word pairs, truncated SVD, rows of length 1.

    Term weights are (1 + log count) times the inverse document frequency. Words are runs of letters and digits of any
    length, in lower case, since a catalogue's single characters (sizes, thread numbers) carry meaning. The linear
    algebra runs on one thread, so that the same input and seed give the same bytes on one machine.

    Args:
        texts: N texts.
        dimensions: Wished width D; clipped to what the fitted texts and their terms can fill, and said so.
        seed: Seed of the randomised SVD.
        fitted_on: M texts that decide which words count, how much each weighs, and the axes; `texts` themselves if
            None. With the texts of an earlier call, in their order, those get their vectors again, bit by bit.

    Returns:
        float32 (N, D), row i of text i; zeros where a text holds no word (none that counts).

    Raises:
        DataError: If no text holds a word.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from threadpoolctl import threadpool_limits

    vectoriser = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    learned = texts if fitted_on is None else fitted_on
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
            f"the {len(learned)} texts hold one word between them, so TF-IDF cannot tell them apart. Give item titles, "
            "or ready vectors (encoder: PATH.npy)."
        )
    fitting = min(dimensions, *weights.shape)
    if fitting < dimensions:
        logger.info(
            "TF-IDF: %d texts with %d terms fill %d dimensions; %d were asked for.", *weights.shape, fitting, dimensions
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
