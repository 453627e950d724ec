"""Assignment of items to codes of equal size, near the cheapest there is: an auction."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from minionerec.core.errors import DataError

TOLERANCE = 0.05  # in practice the total ends within 0.05 % of the least; a fifth of this takes twice as long
COSTS_BYTES = 1 << 30
"""Bytes of costs, float32 (items, codes), that are held at once; beyond them most items are assigned by price alone."""
_ROWS = 1 << 13  # at a time: what fits into the cache


def balanced_assign(
    costs: np.ndarray,
    prices: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    places: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Give every code floor(N / C) or ceil(N / C) items at nearly the least total cost.

    An auction (Bertsekas, "The auction algorithm", 1988; with equal objects, Bertsekas and Castañon, 1989): a code has
    a price and as many places as it may have items. An item without a place bids for the code with the least cost plus
    price; its bid is the price at which its second choice would be as good, plus epsilon. A code that is full keeps
    its highest bids, its price is the lowest of them, and whoever is outbid bids again. When all have a place, the
    total is at most N x epsilon above the least for the same places. Prices from a similar problem (a sample of the
    items, or the iteration before) save most of the bids.

    Deviations: the first bids are all made at once, and later ones one by one; the N mod C codes that may have one
    item more are those with the most first bids.

    Args:
        costs: float32 (N, C), cost of each item at each code; a constant per row changes nothing.
        prices: float (C,), where to start; zeros if None.
        tolerance: Epsilon as a share of the spread of costs: mean over (some of the) rows of mean - minimum.
        places: int64 (C,), most items of each code, at least 1 each and N in all; equal sizes if None.

    Returns:
        Codes, int32 (N,), and final prices, float64 (C,). Ties go to the lower code, and to the earlier item.

    Raises:
        DataError: If there are fewer items than codes.

    Example:
        >>> balanced_assign(np.array([[0, 9], [1, 3], [0, 2], [0, 1.5]], np.float32))[0].tolist()
        [0, 0, 1, 1]
    """
    n, size = costs.shape
    if n < size and places is None:
        raise DataError(f"{n} items cannot fill {size} codes. Lower codebook_sizes to at most {n}.")
    prices = np.zeros(size) if prices is None else np.array(prices, dtype=np.float64)
    codes = np.zeros(n, dtype=np.int32)
    if size == 1:
        return codes, prices
    epsilon = _epsilon(costs, tolerance)
    bids = np.empty(n)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        codes[rows], bids[rows] = _first_bids(costs[rows], prices)
    bids += epsilon

    wanted = np.bincount(codes, minlength=size)
    places = _equal_places(wanted) if places is None else places
    heaps, waiting = _take_first_bids(codes, bids, wanted, places, prices)
    _bid_again(costs, codes, prices, heaps, waiting, places.tolist(), epsilon)
    return codes, prices


def _equal_places(wanted: np.ndarray) -> np.ndarray:
    """Places of each code, int64 (C,): as many in all as items that want one, at most one more here than there."""
    each, more = divmod(int(wanted.sum()), len(wanted))
    places = np.full(len(wanted), each)
    places[np.argsort(-wanted, kind="stable")[:more]] += 1
    return places


def balanced_stream(
    items: int,
    blocks: Iterable[tuple[slice, np.ndarray]],
    costs_of: Callable[[np.ndarray], np.ndarray],
    prices: np.ndarray,
) -> np.ndarray:
    """Codes of equal size for more items than have room for their costs in memory, at little more than the least cost.

    At good prices (those of a large sample) the code with the least cost plus price is nearly balanced. Every item
    takes it; codes with too many keep those to whom the second choice would be dearest (ties: the earlier), and the
    others are auctioned among the places that are left (`balanced_assign`).

    Args:
        items: Number of items, N, at least that of codes.
        blocks: Rows and their costs, float32 (n, C), all items once.
        costs_of: Costs of some items, int64 (n,) ascending: float32 (n, C).
        prices: float64 (C,).

    Returns:
        int32 (N,).
    """
    codes, margin = np.empty(items, dtype=np.int32), np.empty(items, dtype=np.float32)
    for rows, costs in blocks:
        first, bid = _first_bids(costs, prices)
        codes[rows], margin[rows] = first, bid - prices[first]
    wanted = np.bincount(codes, minlength=len(prices))
    places = _equal_places(wanted)
    order = np.lexsort((-margin, codes))  # of equal margins the earlier item first
    rank = np.arange(items) - (np.cumsum(wanted) - wanted)[codes[order]]
    outbid = np.sort(order[rank >= places[codes[order]]])
    del margin, order, rank
    room = places - np.minimum(wanted, places)
    most = max(1, COSTS_BYTES // (4 * len(prices)))
    for part in np.array_split(outbid, -(-len(outbid) // most)) if len(outbid) else []:
        opened = np.flatnonzero(room)
        costs = np.ascontiguousarray(costs_of(part)[:, opened])
        found = opened[balanced_assign(costs, prices[opened], places=room[opened])[0]]
        codes[part] = found
        room -= np.bincount(found, minlength=len(prices))
    return codes


def _epsilon(costs: np.ndarray, tolerance: float) -> float:
    """By how much each bid rises."""
    looked_at = costs[:: max(1, len(costs) // _ROWS)]
    spread = float((looked_at.mean(axis=1) - looked_at.min(axis=1)).mean())
    # Never below what rounding leaves of a difference of float32 costs; any epsilon will do where all costs are equal.
    return max(tolerance * spread, 1e-6 * float(np.abs(looked_at).max())) or 1.0


def _take_first_bids(
    codes: np.ndarray, bids: np.ndarray, wanted: np.ndarray, places: np.ndarray, prices: np.ndarray
) -> tuple[list[list[tuple[float, int]]], list[int]]:
    """Give each code its highest bids, and full ones their price.

    Args:
        codes: int32 (N,), which code each item bids for.
        bids: float64 (N,), how much.
        wanted: int64 (C,), how many items bid for each code.
        places: int64 (C,), how many it may have.
        prices: float64 (C,); those of full codes are set.

    Returns:
        Per code its bids as a heap of (bid, -item): the first is the next to go; and the items without a place.
    """
    order = np.lexsort((-bids, codes))  # each code's bids, highest first; of equal ones the earlier item
    ends = np.cumsum(wanted)
    heaps: list[list[tuple[float, int]]] = []
    waiting: list[np.ndarray] = []
    for code, (start, end) in enumerate(zip(ends - wanted, ends, strict=True)):
        kept, outbid = order[start:end][: places[code]], order[start:end][places[code] :]
        heaps.append(list(zip(bids[kept][::-1].tolist(), (-kept[::-1]).tolist(), strict=True)))  # sorted: a heap
        waiting.append(outbid)
        if len(kept) == places[code]:
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
    """Let items without a place bid one by one until all have one; `codes`, `prices` and `heaps` are changed."""
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
    """First choice of each item, and the price up to which it stays the first choice: two (n,)."""
    values = costs + prices.astype(np.float32)
    rows = np.arange(len(values))
    first = values.argmin(axis=1)
    least = values[rows, first]
    values[rows, first] = np.inf
    return first, prices[first] + (values.min(axis=1) - least)
