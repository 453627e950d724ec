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


def largest_weights(weights: np.ndarray, most: int) -> csr_array:
    """Keep the largest positive weights of each row.

    Args:
        weights: float32 (N, N).
        most: How many of a row are kept, at most.

    Returns:
        float32 (N, N), columns ascending.
    """
    size = len(weights)
    lengths, columns, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    for start in range(0, size, _MIRRORED):
        block = weights[start : start + _MIRRORED]
        chosen = np.ones(block.shape, dtype=bool)
        if most < size:
            chosen[:] = False
            np.put_along_axis(chosen, np.argpartition(-block, most - 1, axis=1)[:, :most], True, axis=1)
        chosen &= block > 0
        lengths.append(chosen.sum(1))
        columns.append(chosen.nonzero()[1].astype(np.int32))
        values.append(block[chosen])
    offsets = np.concatenate(lengths).cumsum()
    return csr_array((np.concatenate(values), np.concatenate(columns), offsets), shape=weights.shape)
