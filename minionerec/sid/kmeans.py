"""K-means for semantic IDs: residual, balanced residual, and optimised product quantisation (OPQ)."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger, progress
from minionerec.core.values import in_words
from minionerec.sid.embed.stored import VectorRows, blocks, checked_values

# Residual k-means, plain and balanced: level by level, cluster the residuals of the levels before.

logger = get_logger(__name__)

ITEMS_PER_CODE = 14  # the published tables' ratio: 3,686 items on 256 codes
BALANCED_ITERATIONS = 6  # of centroids and balanced assignment, after plain k-means
_INIT_POINTS_PER_CODE = 32  # points per code for k-means++, whose cost grows with codes x points
_INIT_WIDTH = 64  # dimensions of the random projection for k-means++
_BLOCK = 1 << 14  # vectors at once


def most_codes(levels: int, n_items: int) -> int:
    """Maximum number of codes of a level that N items can fill; see `fit_codebook_sizes`."""
    roomy = int(np.ceil(2 * n_items ** (1 / levels)))
    return min(n_items, max(n_items // ITEMS_PER_CODE, roomy))


def fit_codebook_sizes(codebook_sizes: Sequence[int], n_items: int) -> tuple[int, ...]:
    """Reduce codebook sizes to what a catalogue can fill.

    A level gets at most one code per 14 items, so that most codes are learnt from several items, but at least
    2 N^(1/L) codes: with 2^L SIDs per item, collisions can be relocated.

    Args:
        codebook_sizes: Requested codes per level.
        n_items: Number of items, N.

    Returns:
        Codes per level, at most the requested number and at most N.

    Example:
        >>> fit_codebook_sizes((256, 256, 256), 3686), fit_codebook_sizes((256, 256, 256), 300)
        ((256, 256, 256), (21, 21, 21))
    """
    limit = most_codes(len(codebook_sizes), n_items)
    sizes = tuple(min(size, limit) for size in codebook_sizes)
    if sizes != tuple(codebook_sizes):
        logger.info(
            "%d items fill no more than %d codes per level: taking %s instead of %s.",
            n_items,
            limit,
            "/".join(map(str, sizes)),
            "/".join(map(str, codebook_sizes)),
        )
    return sizes


def residual_kmeans(
    vectors: VectorRows,
    codebook_sizes: Sequence[int] = (256, 256, 256),
    seed: int = 42,
    iterations: int = 25,
    *,
    balanced: bool = False,
    train_rows: int | None = None,
    threads: int = 1,
    device: str = "cpu",
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Codes of all items by k-means on residuals, initialised by k-means++.

    Level l clusters r_l, with r_0 the vectors and r_(l+1) = r_l - codebook_l[code_l]; each item takes its nearest
    centroid (squared L2). This is the residual quantiser of Chen, Guan and Wang (2010) with a beam of 1. Deviations:

    1. k-means (faiss on a CPU) starts from greedy k-means++ on at most 32 points per code instead of random points.
    2. All vectors train every level, unless `train_rows` limits them.
    3. Balanced: k-means continues for at most 6 iterations with `minionerec.sid.kmeans.balanced_assign` in place of
       the nearest centroid, and the final assignment is balanced, too: each code of a level gets floor(N / C_l) or
       ceil(N / C_l) items (by `minionerec.sid.kmeans.balanced_stream` for many items). Residuals are those of the
       balanced codes.

    Args:
        vectors: float (N, D), row i = item i, all finite; in memory or in a file.
        codebook_sizes: Codes per level, C_l.
        seed: Level l uses seed + l; equal vectors, seed, threads and device give equal bytes.
        iterations: Lloyd iterations per level.
        balanced: Give all codes of a level the same number of items.
        train_rows: If given, all levels train on the same sample of this many vectors (`training_rows`).
        threads: CPU threads of faiss and BLAS during the call.
        device: "cpu", or a torch device such as "cuda" for codes and means.

    Returns:
        Codes, int32 (N, L); and per level a codebook, float32 (C_l, D).

    Raises:
        DataError: If the vectors are not a finite table, or there are fewer items than codes.
    """
    check_vectors(vectors, codebook_sizes)
    from threadpoolctl import threadpool_limits

    trained = training_rows(len(vectors), train_rows or len(vectors), seed)
    with threadpool_limits(limits=threads):
        residuals = np.asarray(vectors[trained], dtype=np.float32)  # a copy that each level reduces
        if not balanced:
            codebooks = fit_residual(residuals, codebook_sizes, seed, iterations, threads=threads, device=device)
            del residuals
            return assign(vectors, codebooks, threads, device)[0], codebooks
        return _balanced(vectors, residuals, trained, codebook_sizes, seed, iterations, device)


def _balanced(
    vectors: VectorRows,
    residuals: np.ndarray,
    trained: np.ndarray,
    sizes: Sequence[int],
    seed: int,
    iterations: int,
    device: str,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Balanced codes of all vectors, and codebooks; `residuals` are the vectors of the rows `trained`, overwritten."""
    codes = np.empty((len(vectors), 0), dtype=np.int32)
    codebooks: list[np.ndarray] = []
    for level, size in enumerate(progress(sizes, "balanced residual k-means", unit="levels")):
        start = start_centroids(residuals, size, seed + level)
        codebook, prices = _balance(residuals, lloyd(residuals, start, iterations, seed + level, device), device)
        column = _balanced_codes(vectors, codes, codebooks, codebook, prices, device)
        codes = np.column_stack([codes, column])
        _reduce(residuals, codebook, column[trained])
        codebooks.append(codebook)
    return codes, codebooks


def fit_residual(
    points: np.ndarray,
    codebook_sizes: Sequence[int],
    seed: int = 42,
    iterations: int = 25,
    *,
    threads: int = 1,
    device: str = "cpu",
) -> list[np.ndarray]:
    """Fit the codebooks of `residual_kmeans` (not balanced) on training vectors.

    Args:
        points: float32 (R, D), C-contiguous; overwritten by the residuals.
        codebook_sizes: Codes per level.
        seed: As in `residual_kmeans`.
        iterations: As in `residual_kmeans`.
        threads: As in `residual_kmeans`.
        device: As in `residual_kmeans`.

    Returns:
        Per level float32 (C_l, D).
    """
    check_vectors(points, codebook_sizes)
    from threadpoolctl import threadpool_limits

    codebooks = []
    with threadpool_limits(limits=threads):
        for level, size in enumerate(progress(codebook_sizes, "residual k-means", unit="levels")):
            start = start_centroids(points, size, seed + level)
            codebook = lloyd(points, start, iterations, seed + level, device)
            _reduce(points, codebook, _nearest(points, codebook, device))
            codebooks.append(codebook)
    return codebooks


def _reduce(residuals: np.ndarray, codebook: np.ndarray, codes: np.ndarray) -> None:
    """Subtract the code vector of each row in place, block by block."""
    for start in range(0, len(residuals), _BLOCK):
        residuals[start : start + _BLOCK] -= codebook[codes[start : start + _BLOCK]]


def assign(
    vectors: VectorRows, codebooks: Sequence[np.ndarray], threads: int = 1, device: str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest code of each residual, level by level, in one pass over the vectors.

    Args:
        vectors: float (N, D), all finite; read block by block, each block by one thread.
        codebooks: Per level float32 (C_l, D).
        threads: Number of threads.
        device: As for `residual_kmeans`.

    Returns:
        Codes, int32 (N, L), and squared distances between vectors and reconstructions, float32 (N,).

    Example:
        >>> codes, _ = assign(np.array([[2.6], [0.1]]), [np.array([[0.0], [2.0]]), np.array([[0.5], [0.0]])])
        >>> codes.tolist()
        [[1, 0], [0, 1]]
    """
    from threadpoolctl import threadpool_limits

    codes, errors = np.empty((len(vectors), len(codebooks)), dtype=np.int32), np.empty(len(vectors), dtype=np.float32)
    on_device = None
    if device != "cpu":
        from minionerec.sid.on_device import encoder_on

        on_device = encoder_on(codebooks, device)

    def block(start: int) -> None:
        rows = slice(start, min(start + _BLOCK, len(vectors)))
        if on_device is not None:
            codes[rows], errors[rows] = on_device(np.asarray(vectors[rows], dtype=np.float32))
            return
        residuals = np.array(vectors[rows], dtype=np.float32, order="C", copy=isinstance(vectors, np.ndarray) or None)
        for level, codebook in enumerate(codebooks):
            codes[rows, level] = distances(residuals, codebook).argmin(axis=1)
            residuals -= codebook[codes[rows, level]]
        errors[rows] = np.einsum("nd,nd->n", residuals, residuals)

    starts = range(0, len(vectors), _BLOCK)
    with threadpool_limits(limits=1), ThreadPoolExecutor(threads) as pool:
        for _ in progress(pool.map(block, starts), "assigning codes", len(starts), unit="blocks"):
            pass
    return codes, errors


def training_rows(n_items: int, size: int, seed: int) -> np.ndarray:
    """Indices of the training vectors: min(size, N) drawn without replacement, int64, ascending."""
    if size >= n_items:
        return np.arange(n_items)
    return np.sort(np.random.default_rng(seed).choice(n_items, size, replace=False))


def distances(points: np.ndarray, codebook: np.ndarray, device: str = "cpu") -> np.ndarray:
    """Squared distance of each point to each code minus the point's squared norm: float32 (n, C)."""
    squares = (codebook * codebook).sum(axis=1)
    if device == "cpu":
        product: np.ndarray = points @ codebook.T
        product *= -2
        product += squares
        return product
    import torch

    tensors = [torch.from_numpy(array).to(device) for array in (squares, points, codebook)]
    result: np.ndarray = torch.addmm(tensors[0], tensors[1], tensors[2].T, alpha=-2).cpu().numpy()
    return result


def check_vectors(vectors: VectorRows, codebook_sizes: Sequence[int]) -> None:
    """Check that vectors can be clustered and fill the codebooks; values in a file are checked when they are read.

    Raises:
        DataError: If they are not a finite table, or there are fewer items than codes.
    """
    if len(vectors.shape) != 2 or len(vectors) == 0:
        raise DataError(f"vectors have shape {vectors.shape}; expected (items, dimensions) with at least one item.")
    if isinstance(vectors, np.ndarray):
        for rows, block in blocks(vectors):
            checked_values(block, "vectors", rows.start)
    if not codebook_sizes or min(codebook_sizes) < 1:
        raise DataError(
            f"codebook sizes are {in_words(list(codebook_sizes))}; give one number of at least 1 per level."
        )
    if len(vectors) < max(codebook_sizes):
        raise DataError(
            f"{len(vectors)} items cannot fill a codebook of {max(codebook_sizes)} codes. Lower codebook_sizes to at "
            f"most {len(vectors)}, or fit them to the catalogue (`fit_codebook_sizes`)."
        )


def _nearest(points: np.ndarray, codebook: np.ndarray, device: str) -> np.ndarray:
    if device != "cpu":
        return assign(points, [codebook], device=device)[0][:, 0]
    blocks = (points[start : start + _BLOCK] for start in range(0, len(points), _BLOCK))
    return np.concatenate([distances(block, codebook).argmin(axis=1) for block in blocks]).astype(np.int32)


def start_centroids(points: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Initial centroids of one level by greedy k-means++: float32 (C, D)."""
    from sklearn.cluster import kmeans_plusplus

    rng = np.random.default_rng(seed)
    if len(points) > size * _INIT_POINTS_PER_CODE:
        points = points[np.sort(rng.choice(len(points), size * _INIT_POINTS_PER_CODE, replace=False))]
    candidates = points
    if points.shape[1] > _INIT_WIDTH:
        candidates = points @ rng.standard_normal((points.shape[1], _INIT_WIDTH), dtype=np.float32)
    _, chosen = kmeans_plusplus(candidates, size, random_state=seed)
    return np.ascontiguousarray(points[chosen], dtype=np.float32)


def lloyd(points: np.ndarray, centroids: np.ndarray, iterations: int, seed: int, device: str) -> np.ndarray:
    """Centroids after Lloyd's iterations, by faiss on a CPU and by torch on another device."""
    if device == "cpu":
        import faiss

        kmeans = faiss.Kmeans(
            points.shape[1],
            len(centroids),
            niter=iterations,
            seed=seed,
            min_points_per_centroid=1,  # no warning: small catalogues are fine
            max_points_per_centroid=len(points),  # no silent subsampling
        )
        kmeans.train(points, init_centroids=centroids)
        return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)
    from minionerec.sid.on_device import lloyd_on

    return lloyd_on(points, centroids, iterations, device)


def _balance(points: np.ndarray, centroids: np.ndarray, device: str) -> tuple[np.ndarray, np.ndarray]:
    """Centroids of codes of equal size, and their prices."""
    prices, codes = np.zeros(len(centroids)), np.full(len(points), -1, dtype=np.int32)
    tolerance = 4 * TOLERANCE  # coarse at first: prices start far from their final values, and centroids move
    for _ in range(BALANCED_ITERATIONS):
        before = codes
        codes, prices = balanced_assign(distances(points, centroids, device), prices, tolerance)
        centroids, _ = means_of(points, codes, len(centroids))
        tolerance = TOLERANCE
        if (codes != before).mean() < 1e-3:
            break
    _, prices = balanced_assign(distances(points, centroids, device), prices)
    return centroids, prices


def _balanced_codes(
    vectors: VectorRows,
    codes: np.ndarray,
    codebooks: Sequence[np.ndarray],
    codebook: np.ndarray,
    prices: np.ndarray,
    device: str,
) -> np.ndarray:
    """Balanced codes of all items at one level, int32 (N,).

    Args:
        vectors: float (N, D).
        codes: int32 (N, l), codes at the earlier levels.
        codebooks: Codebooks of the earlier levels.
        codebook: float32 (C, D), codebook of this level.
        prices: float64 (C,), initial prices of the auction.
        device: As for `residual_kmeans`.
    """

    def costs_of(block: np.ndarray, items: slice | np.ndarray) -> np.ndarray:
        block -= reconstruct(codes[items], codebooks) if codebooks else 0
        return distances(block, codebook, device)

    cost_blocks = ((items, costs_of(block, items)) for items, block in blocks(vectors))
    if 4 * len(vectors) * len(codebook) > COSTS_BYTES:

        def costs_of_items(items: np.ndarray) -> np.ndarray:
            parts = np.array_split(items, -(-len(items) // _BLOCK))
            return np.concatenate([costs_of(np.array(vectors[part], dtype=np.float32), part) for part in parts])

        return balanced_stream(len(vectors), cost_blocks, costs_of_items, prices)
    costs = np.empty((len(vectors), len(codebook)), dtype=np.float32)
    for items, block in cost_blocks:
        costs[items] = block
    return balanced_assign(costs, prices)[0]


def means_of(points: np.ndarray, codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean, float32 (C, D), and number, int64 (C,), of each code's points; zeros for a code without points."""
    from scipy.sparse import csr_array

    sizes = np.bincount(codes, minlength=size)
    members = csr_array((np.ones(len(codes), np.float32), (codes, np.arange(len(codes)))), shape=(size, len(codes)))
    return (members @ points) / np.maximum(sizes, 1)[:, None].astype(np.float32), sizes


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


# Assignment of items to codes of equal size at nearly the least total cost, by an auction.

TOLERANCE = 0.05  # in practice within 0.05 % of the least total; a fifth of this takes twice as long
COSTS_BYTES = 1 << 30
"""Largest size in bytes of a matrix of costs; for larger ones most items are assigned by price alone."""
_CACHED_ITEMS = 1 << 13  # items at once, so that their costs fit into the cache


def balanced_assign(
    costs: np.ndarray,
    prices: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    capacities: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Give every code floor(N / C) or ceil(N / C) items at nearly the least total cost.

    An auction (Bertsekas, "The auction algorithm", 1988; with equal objects, Bertsekas and Castañon, 1989): a code has
    a price and a capacity. An unassigned item bids for the code with the least cost plus price; its bid is the price at
    which its second-best code would be as good, plus epsilon. A full code keeps its highest bids, its price is the
    lowest of them, and outbid items bid again. The final total is at most N x epsilon above the least for the same
    capacities. Prices from a similar problem (a sample of the items, or the previous iteration) save most of the bids.

    Deviations: all first bids are computed at once, later ones one by one; the N mod C codes with one item more are
    those with the most first bids.

    Args:
        costs: float32 (N, C), cost of each item at each code; a constant per row has no effect.
        prices: float (C,), initial prices; zeros if None.
        tolerance: Epsilon relative to the spread of costs: the mean over (a sample of) rows of mean - minimum.
        capacities: int64 (C,), capacity of each code, at least 1, with sum N; equal sizes if None.

    Returns:
        Codes, int32 (N,), and final prices, float64 (C,). Ties go to the lower code, and to the earlier item.

    Raises:
        DataError: If there are fewer items than codes.

    Example:
        >>> balanced_assign(np.array([[0, 9], [1, 3], [0, 2], [0, 1.5]], np.float32))[0].tolist()
        [0, 0, 1, 1]
    """
    n, size = costs.shape
    if n < size and capacities is None:
        raise DataError(f"{n} items cannot fill {size} codes. Lower codebook_sizes to at most {n}.")
    prices = np.zeros(size) if prices is None else np.array(prices, dtype=np.float64)
    codes = np.zeros(n, dtype=np.int32)
    if size == 1:
        return codes, prices
    epsilon = _epsilon(costs, tolerance)
    bids = np.empty(n)
    for start in range(0, n, _CACHED_ITEMS):
        block = slice(start, start + _CACHED_ITEMS)
        codes[block], bids[block] = _first_bids(costs[block], prices)
    bids += epsilon

    first_counts = np.bincount(codes, minlength=size)
    capacities = _equal_capacities(first_counts) if capacities is None else capacities
    heaps, waiting = _take_first_bids(codes, bids, first_counts, capacities, prices)
    _bid_again(costs, codes, prices, heaps, waiting, capacities.tolist(), epsilon)
    return codes, prices


def _equal_capacities(bid_counts: np.ndarray) -> np.ndarray:
    """Capacity of each code, int64 (C,): sums to the number of bids; codes with the most bids may have one more."""
    size, remainder = divmod(int(bid_counts.sum()), len(bid_counts))
    capacities = np.full(len(bid_counts), size)
    capacities[np.argsort(-bid_counts, kind="stable")[:remainder]] += 1
    return capacities


def balanced_stream(
    items: int,
    blocks: Iterable[tuple[slice, np.ndarray]],
    costs_of: Callable[[np.ndarray], np.ndarray],
    prices: np.ndarray,
) -> np.ndarray:
    """Balanced codes for items whose costs exceed memory, at slightly more than the least total cost.

    At good prices (those of a large sample), assigning each item to the code with the least cost plus price is nearly
    balanced. Codes with too many items keep those whose second-best code would cost most (ties: the earlier item); the
    others are auctioned among the remaining capacity (`balanced_assign`).

    Args:
        items: Number of items, N, at least the number of codes.
        blocks: Slices of items with their costs, float32 (n, C); each item occurs once.
        costs_of: Function from items, int64 (n,) ascending, to their costs, float32 (n, C).
        prices: float64 (C,).

    Returns:
        int32 (N,).
    """
    codes, margin = np.empty(items, dtype=np.int32), np.empty(items, dtype=np.float32)
    for block, costs in blocks:
        first, bid = _first_bids(costs, prices)
        codes[block], margin[block] = first, bid - prices[first]
    first_counts = np.bincount(codes, minlength=len(prices))
    capacities = _equal_capacities(first_counts)
    order = np.lexsort((-margin, codes))  # of equal margins the earlier item first
    rank = np.arange(items) - (np.cumsum(first_counts) - first_counts)[codes[order]]
    outbid = np.sort(order[rank >= capacities[codes[order]]])
    del margin, order, rank
    room = capacities - np.minimum(first_counts, capacities)
    limit = max(1, COSTS_BYTES // (4 * len(prices)))
    for part in np.array_split(outbid, -(-len(outbid) // limit)) if len(outbid) else []:
        opened = np.flatnonzero(room)
        costs = np.ascontiguousarray(costs_of(part)[:, opened])
        assigned = opened[balanced_assign(costs, prices[opened], capacities=room[opened])[0]]
        codes[part] = assigned
        room -= np.bincount(assigned, minlength=len(prices))
    return codes


def _epsilon(costs: np.ndarray, tolerance: float) -> float:
    """Increment of each bid."""
    sample = costs[:: max(1, len(costs) // _CACHED_ITEMS)]
    spread = float((sample.mean(axis=1) - sample.min(axis=1)).mean())
    # At least the rounding error of a difference of float32 costs; any positive value if all costs are zero.
    return max(tolerance * spread, 1e-6 * float(np.abs(sample).max())) or 1.0


def _take_first_bids(
    codes: np.ndarray, bids: np.ndarray, first_counts: np.ndarray, capacities: np.ndarray, prices: np.ndarray
) -> tuple[list[list[tuple[float, int]]], list[int]]:
    """Give each code its highest bids, and set the prices of full codes.

    Args:
        codes: int32 (N,), the code that each item bids for.
        bids: float64 (N,), the bids.
        first_counts: int64 (C,), number of bids for each code.
        capacities: int64 (C,), capacity of each code.
        prices: float64 (C,); entries of full codes are overwritten.

    Returns:
        Per code a heap of (bid, -item), lowest first; and the unassigned items.
    """
    order = np.lexsort((-bids, codes))  # each code's bids, highest first; ties: the earlier item
    ends = np.cumsum(first_counts)
    heaps: list[list[tuple[float, int]]] = []
    waiting: list[np.ndarray] = []
    for code, (start, end) in enumerate(zip(ends - first_counts, ends, strict=True)):
        accepted, outbid = order[start:end][: capacities[code]], order[start:end][capacities[code] :]
        heaps.append(
            list(zip(bids[accepted][::-1].tolist(), (-accepted[::-1]).tolist(), strict=True))
        )  # sorted: a heap
        waiting.append(outbid)
        if len(accepted) == capacities[code]:
            prices[code] = heaps[code][0][0]
    return heaps, np.sort(np.concatenate(waiting)).tolist()


def _bid_again(
    costs: np.ndarray,
    codes: np.ndarray,
    prices: np.ndarray,
    heaps: list[list[tuple[float, int]]],
    waiting: list[int],
    room: list[int],
    epsilon: float,
) -> None:
    """Let unassigned items bid one by one until all are assigned; updates `codes`, `prices` and `heaps`."""
    queue = deque(waiting)
    values = np.empty(costs.shape[1])
    while queue:
        item = queue.popleft()
        np.add(costs[item], prices, out=values)
        code = int(values.argmin())
        least = values[code]
        values[code] = np.inf
        bid = float(prices[code] + np.minimum.reduce(values) - least + epsilon)
        codes[item] = code
        heap = heaps[code]
        if len(heap) < room[code]:
            heapq.heappush(heap, (bid, -item))
        else:
            queue.append(-heapq.heapreplace(heap, (bid, -item))[1])
        if len(heap) == room[code]:
            prices[code] = heap[0][0]


def _first_bids(costs: np.ndarray, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best code of each item, (n,), and the highest price at which it stays the best, (n,)."""
    values = costs + prices.astype(np.float32)
    items = np.arange(len(values))
    first = values.argmin(axis=1)
    least = values[items, first]
    values[items, first] = np.inf
    return first, prices[first] + (values.min(axis=1) - least)


# Optimised product quantisation: the codes of an item are of disjoint parts of its rotated vector, in no order.


def product_kmeans(
    vectors: np.ndarray,
    codebook_sizes: Sequence[int],
    seed: int = 42,
    iterations: int = 25,
    *,
    threads: int = 1,
) -> list[np.ndarray]:
    """Codebooks by k-means on the parts of a learned rotation of vectors.

    The non-parametric algorithm of Ge et al., "Optimized Product Quantization" (2014, §3.1, alg. 1): a vector x is
    rotated to xR and split into L parts, and each part is clustered by itself. Every iteration assigns each part to its
    nearest centroid, moves centroids to the means of their points, and turns R to the orthogonal matrix for which
    xR is nearest to the centroids (the Procrustes problem). Deviations:

    1. R starts as a random rotation, and centroids as those of greedy k-means++.
    2. With R settled, k-means (faiss) continues for as many iterations, which also fills empty clusters.
    3. Where L does not divide D, the first parts are one wider than the others.

    Codebooks are rotated back to the space of the vectors, where they lie in orthogonal subspaces. So the sum of an
    item's code vectors is its reconstruction, the nearest code of each residual is that of the part, and functions for
    residual codebooks apply to these; but no digit is less significant than another.

    Args:
        vectors: float32 (R, D), all finite.
        codebook_sizes: Codes of each of L digits, L at most D.
        seed: Digit l uses seed + l; equal vectors, seed and threads give equal bytes.
        iterations: Iterations that update R, and again as many of k-means with R fixed.
        threads: CPU threads of faiss and BLAS during the call.

    Returns:
        Per digit a codebook, float32 (C_l, D).

    Raises:
        DataError: If the vectors are not a finite table, there are fewer items than codes, or more digits than
            dimensions.
    """
    check_vectors(vectors, codebook_sizes)
    width, digits = vectors.shape[1], len(codebook_sizes)
    if digits > width:
        raise DataError(
            f"vectors of {width} dimensions cannot be split into {digits} digits of at least one dimension. Lower "
            "digits, or raise dimensions."
        )
    from threadpoolctl import threadpool_limits

    parts = np.array_split(np.arange(width), digits)
    with threadpool_limits(limits=threads):
        return _fit_product(vectors, parts, codebook_sizes, seed, iterations)


def _fit_product(
    points: np.ndarray, parts: Sequence[np.ndarray], sizes: Sequence[int], seed: int, iterations: int
) -> list[np.ndarray]:
    """Codebooks of points, float32 (R, D): per digit float32 (C_l, D), in the space of the points."""
    width = points.shape[1]
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0].astype(np.float32)
    rotated = points @ rotation
    codebooks = [
        start_centroids(_columns(rotated, part), size, seed + digit)
        for digit, (part, size) in enumerate(zip(parts, sizes, strict=True))
    ]
    for _ in range(iterations):
        nearest = np.empty_like(rotated)
        for digit, part in enumerate(parts):
            codebooks[digit], nearest[:, part] = _step(_columns(rotated, part), codebooks[digit])
        left, _, right = np.linalg.svd(points.T.astype(np.float64) @ nearest)
        rotation = (left @ right).astype(np.float32)
        rotated = points @ rotation
    return [
        lloyd(_columns(rotated, part), codebook, iterations, seed + digit, "cpu") @ rotation[:, part].T
        for digit, (part, codebook) in enumerate(zip(parts, codebooks, strict=True))
    ]


def _columns(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(table[:, columns])


def _step(points: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One k-means iteration: centroids, float32 (C, d), unchanged if without points; and each point's centroid."""
    codes = distances(points, centroids).argmin(axis=1)
    means, sizes = means_of(points, codes, len(centroids))
    moved = np.where(sizes[:, None] > 0, means, centroids).astype(np.float32)
    return moved, moved[codes]
