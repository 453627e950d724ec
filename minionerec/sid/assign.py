"""Codes of any number of items in one pass over their vectors, which may lie in a file."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from minionerec.embed.mapped import Rows
from minionerec.sid.residual_kmeans import distances

_ROWS = 1 << 14  # vectors at once, as in `minionerec.sid.residual_kmeans.encode`: the same products, the same codes


def assign(
    vectors: Rows, codebooks: Sequence[np.ndarray], threads: int = 1, device: str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """Codes of all items as of `encode`, and how far they lie from them, in one pass over the vectors.

    Args:
        vectors: float (N, D), read block by block, each block by one thread.
        codebooks: Per level float32 (C_l, D).
        threads: Blocks that are at work at a time.
        device: As for `residual_kmeans`.

    Returns:
        Codes, int32 (N, L); and squared distances of vectors and reconstructions, float32 (N,).
    """
    from threadpoolctl import threadpool_limits

    codes, left = np.empty((len(vectors), len(codebooks)), dtype=np.int32), np.empty(len(vectors), dtype=np.float32)

    books = None
    if device != "cpu":
        from minionerec.sid.on_device import CodesOn

        books = CodesOn(codebooks, device)

    def block(start: int) -> None:
        rows = slice(start, min(start + _ROWS, len(vectors)))
        if books is not None:
            codes[rows], left[rows] = books.encode(np.asarray(vectors[rows], dtype=np.float32))
            return
        residuals = np.array(vectors[rows], dtype=np.float32, order="C", copy=isinstance(vectors, np.ndarray) or None)
        for level, codebook in enumerate(codebooks):
            codes[rows, level] = distances(residuals, codebook).argmin(axis=1)
            residuals -= codebook[codes[rows, level]]
        left[rows] = np.einsum("nd,nd->n", residuals, residuals)

    with threadpool_limits(limits=1), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(block, range(0, len(vectors), _ROWS)):
            pass
    return codes, left
