"""Optimised product quantisation: many codes an item, each of a part of its own of the turned vector, in no order."""

from collections.abc import Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.sid.residual_kmeans import (
    check_vectors,
    distances,
    encode,
    lloyd,
    means_of,
    start_centroids,
    training_rows,
)


def product_kmeans(
    vectors: np.ndarray,
    codebook_sizes: Sequence[int],
    seed: int = 42,
    iterations: int = 25,
    *,
    train_points_per_code: int | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Codes of all items by k-means on the parts of a learned rotation of their vectors.

    The non-parametric algorithm of Ge et al., "Optimized Product Quantization" (2014, §3.1, alg. 1): a vector x is
    turned to xR and cut into L parts, and each part is clustered by itself. Every iteration assigns each part to its
    nearest centroid, moves centroids to the means of their points, and turns R to the orthogonal matrix for which
    xR is nearest to the centroids (the Procrustes problem). Deviations:

    1. R starts as a random rotation, and centroids as those of greedy k-means++.
    2. With R settled, k-means (faiss) goes on for as many iterations, which also fills empty clusters.
    3. Where L does not divide D, the first parts are one wider than the others.

    Codebooks are turned back, to the space of the vectors: each lies in a subspace of its own, at right angles to all
    others. So the sum of an item's code vectors is its reconstruction, the nearest code of each residual is that of the
    part, and what holds for residual codebooks holds for these; only that no digit means less than another.

    Args:
        vectors: float (N, D), row i = item i, all finite.
        codebook_sizes: Codes of each of L digits, L at most D.
        seed: Digit l uses seed + l; equal vectors, seed and threads give equal bytes.
        iterations: Iterations with R, and then without.
        train_points_per_code: If given, at most so many vectors per code of the largest codebook are learned from.
        threads: CPU threads of faiss and BLAS while this runs.

    Returns:
        Codes, int32 (N, L); and per digit a codebook, float32 (C_l, D).

    Raises:
        DataError: If the vectors are not a finite table, there are fewer items than codes, or more digits than
            dimensions.
    """
    check_vectors(vectors, codebook_sizes)
    width, digits = vectors.shape[1], len(codebook_sizes)
    if digits > width:
        raise DataError(
            f"{digits} digits cannot be cut from vectors {width} wide, one dimension a digit at least. Lower digits, "
            "or raise dimensions."
        )
    from threadpoolctl import threadpool_limits

    most = len(vectors) if train_points_per_code is None else max(codebook_sizes) * train_points_per_code
    parts = np.array_split(np.arange(width), digits)
    with threadpool_limits(limits=threads):
        points = np.asarray(vectors[training_rows(len(vectors), most, seed)], dtype=np.float32)
        books = _learned(points, parts, codebook_sizes, seed, iterations)
    return encode(vectors, books, threads), books


def _learned(
    points: np.ndarray, parts: Sequence[np.ndarray], sizes: Sequence[int], seed: int, iterations: int
) -> list[np.ndarray]:
    """Codebooks of points, float32 (R, D): per digit float32 (C_l, D), in the space of the points."""
    width = points.shape[1]
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0].astype(np.float32)
    turned = points @ rotation
    books = [
        start_centroids(_columns(turned, part), size, seed + digit)
        for digit, (part, size) in enumerate(zip(parts, sizes, strict=True))
    ]
    for _ in range(iterations):
        nearest = np.empty_like(turned)
        for digit, part in enumerate(parts):
            books[digit], nearest[:, part] = _step(_columns(turned, part), books[digit])
        left, _, right = np.linalg.svd(points.T.astype(np.float64) @ nearest)
        rotation = (left @ right).astype(np.float32)
        turned = points @ rotation
    return [
        lloyd(_columns(turned, part), book, iterations, seed + digit, "cpu") @ rotation[:, part].T
        for digit, (part, book) in enumerate(zip(parts, books, strict=True))
    ]


def _columns(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(table[:, columns])


def _step(points: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One iteration of k-means: centroids, float32 (C, d), those without a point as they were, and each point's."""
    codes = distances(points, centroids).argmin(axis=1)
    means, sizes = means_of(points, codes, len(centroids))
    moved = np.where(sizes[:, None] > 0, means, centroids).astype(np.float32)
    return moved, moved[codes]
