"""EASE: item-to-item weights in closed form (Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", 2019)."""

from collections.abc import Iterable

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array

from minionerec.core.errors import ConfigError

_SINGLE = 2000  # entries above which weights are computed in float32
_MIRRORED = 512  # rows of a symmetric matrix that are copied at a time


def count_together(sets: Iterable[csr_array], size: int) -> np.ndarray:
    """Count the sets with both of two entries.

    Args:
        sets: Some sets each, (S, N) of 0 and 1.
        size: Number of entries, N.

    Returns:
        float32 (N, N), symmetric; the diagonal is the number of sets with an entry.
    """
    counts: np.ndarray | None = None
    for part in sets:
        pairs = (part.T @ part).toarray()
        counts = pairs if counts is None else np.add(counts, pairs, out=counts)
    return np.zeros((size, size), np.float32) if counts is None else counts


def ease_weights(gram: np.ndarray, ridge: float) -> np.ndarray:
    """Weights of EASE (equation 8): float32 (N, N), column j the weights for entry j, 0 for itself.

    Args:
        gram: float (N, N), result of `count_together`.
        ridge: Added to the diagonal, more than 0.

    Raises:
        ConfigError: If the ridge is too small for the matrix to be inverted.
    """
    matrix: np.ndarray = np.array(gram.T, dtype=np.float32 if len(gram) > _SINGLE else np.float64, order="F")
    np.fill_diagonal(matrix, matrix.diagonal().astype(np.float64) + ridge)
    factor, inverse = lapack.get_lapack_funcs(("potrf", "potri"), (matrix,))
    upper, failed = factor(matrix, lower=False, overwrite_a=True, clean=True)
    if failed:
        raise ConfigError(f"ridge {ridge:g} is too small for {len(gram)} candidates; give a larger one.")
    half, _ = inverse(upper, lower=False, overwrite_c=True)
    precision = half.T  # in C's order; its upper triangle, not written by LAPACK, becomes the mirror of the lower
    for start in range(0, len(gram), _MIRRORED):
        end = min(start + _MIRRORED, len(gram))
        precision[start:end, end:] = precision[end:, start:end].T
        block = np.tril(precision[start:end, start:end])
        precision[start:end, start:end] = block + np.tril(block, -1).T
    precision /= -precision.diagonal()
    weights: np.ndarray = precision.astype(np.float32, copy=False)
    np.fill_diagonal(weights, 0)
    return weights


def largest_weights(weights: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the largest positive weights of each row.

    Args:
        weights: float32 (N, N).
        most: How many of a row are kept, at most.

    Returns:
        The columns, int32 (N, K) with K = min(N, most), and their weights, float32 (N, K), 0 in place of negative ones.
    """
    size, kept = len(weights), min(len(weights), most)
    columns, values = np.zeros((size, kept), dtype=np.int32), np.zeros((size, kept), dtype=np.float32)
    for start in range(0, size, _MIRRORED):
        rows = slice(start, start + _MIRRORED)
        columns[rows] = np.argpartition(-weights[rows], kept - 1, axis=1)[:, :kept]
        values[rows] = np.take_along_axis(weights[rows], columns[rows].astype(np.int64), axis=1).clip(min=0)
    return columns, values
