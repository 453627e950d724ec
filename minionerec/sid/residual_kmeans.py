"""Residual k-means: level by level, cluster what the levels before have left over."""

from collections.abc import Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger

logger = get_logger(__name__)

ITEMS_PER_CODE = 14  # the published tables' ratio: 3,686 items on 256 codes
_INIT_POINTS_PER_CODE = 32  # k-means++ looks at so many points: its cost grows with codes x points


def fit_codebook_sizes(codebook_sizes: Sequence[int], n_items: int) -> tuple[int, ...]:
    """Codebook sizes that a catalogue can fill: the wished ones, or fewer where items are few.

    A level gets at most one code per 14 items, so that most codes are learnt from several items; but never so few that
    the table has no room: with L levels of at least 2 N^(1/L) codes there are 2^L SIDs per item, which leaves
    collisions somewhere to go.

    Args:
        codebook_sizes: Wished codes per level.
        n_items: Number of items, N.

    Returns:
        Codes per level, each at most as wished and at most N.

    Example:
        >>> fit_codebook_sizes((256, 256, 256), 3686), fit_codebook_sizes((256, 256, 256), 300)
        ((256, 256, 256), (21, 21, 21))
    """
    roomy = int(np.ceil(2 * n_items ** (1 / len(codebook_sizes))))
    most = min(n_items, max(n_items // ITEMS_PER_CODE, roomy))
    fitting = tuple(min(size, most) for size in codebook_sizes)
    if fitting != tuple(codebook_sizes):
        logger.info(
            "%d items fill no more than %d codes per level: taking %s instead of %s.",
            n_items,
            most,
            "/".join(map(str, fitting)),
            "/".join(map(str, codebook_sizes)),
        )
    return fitting


def residual_kmeans(
    vectors: np.ndarray,
    codebook_sizes: Sequence[int] = (256, 256, 256),
    seed: int = 42,
    iterations: int = 25,
    *,
    train_points_per_code: int | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Codes of all items by k-means on residuals (faiss), started by k-means++.

    Level l clusters r_l, with r_0 the vectors and r_(l+1) = r_l - codebook_l[code_l]; each item takes its nearest
    centroid (squared L2). That is the residual quantiser of Chen, Guan and Wang (2010) with a beam of 1. Deviations:

    1. k-means starts from greedy k-means++ on at most 32 points per code instead of random points.
    2. All vectors train every level, unless `train_points_per_code` limits them.

    Args:
        vectors: float (N, D), row i = item i, all finite.
        codebook_sizes: Codes per level, C_l.
        seed: Level l uses seed + l; equal vectors, seed and threads give equal bytes.
        iterations: Lloyd iterations per level.
        train_points_per_code: If given, a level trains on at most this many random vectors per code.
        threads: CPU threads of faiss and BLAS while this runs.

    Returns:
        Codes, int32 (N, L); and per level a codebook, float32 (C_l, D).

    Raises:
        DataError: If the vectors are not a finite table, or there are fewer items than codes.
    """
    if vectors.ndim != 2 or len(vectors) == 0:
        raise DataError(f"vectors have shape {vectors.shape}; expected (items, width) with at least one item.")
    residuals = np.array(vectors, dtype=np.float32, order="C")  # (N, D), a copy that each level reduces
    bad = np.flatnonzero(~np.isfinite(residuals).all(axis=1))
    if len(bad):
        raise DataError(
            f"the vector of item {bad[0]} is not finite ({len(bad)} of {len(vectors)}). Mend it or leave it out."
        )
    if not codebook_sizes or min(codebook_sizes) < 1:
        raise DataError(f"codebook sizes are {list(codebook_sizes)}; give one number of at least 1 per level.")
    if len(vectors) < max(codebook_sizes):
        raise DataError(
            f"{len(vectors)} items cannot fill a codebook of {max(codebook_sizes)} codes. Lower codebook_sizes to at "
            f"most {len(vectors)}, or let them be fitted to the catalogue (fit_sizes: true)."
        )
    import faiss
    from threadpoolctl import threadpool_limits

    codes = np.empty((len(vectors), len(codebook_sizes)), dtype=np.int32)  # (N, L)
    codebooks = []
    with threadpool_limits(limits=threads):
        for level, size in enumerate(codebook_sizes):
            kmeans = faiss.Kmeans(
                residuals.shape[1],
                size,
                niter=iterations,
                seed=seed + level,
                min_points_per_centroid=1,  # no warning: small catalogues are fine
                max_points_per_centroid=train_points_per_code or len(residuals),  # no silent subsampling
            )
            kmeans.train(residuals, init_centroids=_start(residuals, size, seed + level))
            _, nearest = kmeans.assign(residuals)
            codes[:, level] = nearest
            codebooks.append(np.ascontiguousarray(kmeans.centroids, dtype=np.float32))
            residuals -= codebooks[-1][codes[:, level]]
    return codes, codebooks


def _start(residuals: np.ndarray, size: int, seed: int) -> np.ndarray:
    """First centroids of one level by greedy k-means++: float32 (C, D)."""
    from sklearn.cluster import kmeans_plusplus

    points = residuals
    if len(points) > size * _INIT_POINTS_PER_CODE:
        chosen = np.random.default_rng(seed).choice(len(points), size * _INIT_POINTS_PER_CODE, replace=False)
        points = points[np.sort(chosen)]
    centroids, _ = kmeans_plusplus(points, size, random_state=seed)
    return np.ascontiguousarray(centroids, dtype=np.float32)


def reconstruct(codes: np.ndarray, codebooks: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of each item's codebook vectors over the levels that have a codebook.

    Args:
        codes: int (N, L') with L' at least the number of codebooks.
        codebooks: Per level float32 (C_l, D).

    Returns:
        float32 (N, D).

    Example:
        >>> reconstruct(np.array([[1, 0]]), [np.array([[0.0], [2.0]]), np.array([[0.5]])]).tolist()
        [[2.5]]
    """
    total = np.zeros((len(codes), codebooks[0].shape[1]), dtype=np.float32)
    for level, codebook in enumerate(codebooks):
        total += codebook[codes[:, level]]
    return total
