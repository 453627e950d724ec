"""Moving items apart that share an SID: to the nearest free code, by arrays and by prefixes, whatever their number."""

from collections.abc import Iterator, Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.sid.embed.mapped import VectorRows
from minionerec.sid.order import SortedRows, row_keys
from minionerec.sid.residual_kmeans import distances, reconstruct

FEW = 1 << 14
"""Items that move are so few that their distances are sums of squared differences; those of more are products."""
ORDERS_BYTES = 1 << 30
"""Bytes of the orders in which items would take the codes of the last level: so many are made at once."""
_ROWS = 1 << 14
_MOST = 2**62


def relocate(
    codes: np.ndarray,
    vectors: VectorRows,
    codebooks: Sequence[np.ndarray],
    taken: np.ndarray,
    capacity: int,
    left: np.ndarray | None = None,
) -> np.ndarray:
    """Move whoever finds an SID full to the nearest free code.

    An SID has room for `capacity` items, less those that have taken it already. The members nearest to their
    reconstruction stay (ties: lower index). The others move in order of that distance (ties: lower index), each at the
    deepest level under whose prefix there is room: mostly the last level. From there down, each level takes the code
    nearest to the residual that still has room below it.

        prefix (a, b) with room     ->  (a, b, nearest free c)
        (a, b) full, (a,) with room ->  (a, nearest b' with room, nearest free c)
        (a,) full                   ->  (nearest a' with room, ...)

    Of the vectors only those of items in full groups are read, in blocks and in their order, and once more, one by
    one, those that find their prefix full.

    Args:
        codes: int32 (N, L), all levels full.
        vectors: float32 (N, D).
        codebooks: Per level float32 (C_l, D).
        taken: int32 (P, L or more), SIDs of other items.
        capacity: Most items of an SID.
        left: float32 (N,), squared distance of each item to its reconstruction; computed where needed if None.

    Returns:
        int32 (N, L).

    Raises:
        DataError: If there are fewer places than items.
    """
    levels, sizes = len(codebooks), [len(codebook) for codebook in codebooks]
    others = taken[:, :levels]
    keys, first, group = np.unique(
        row_keys(np.vstack([others, codes])), return_index=True, return_inverse=True
    )  # (G,), (G,), (P + N,)
    group = group.reshape(-1)
    held = np.minimum(np.bincount(group[: len(others)], minlength=len(keys)), capacity)  # (G,), places taken
    _check_room(len(codes), sizes, capacity, int(held.sum()))
    own = group[len(others) :]
    staying = np.minimum(np.bincount(own, minlength=len(keys)), capacity - held)
    movers, distance = _movers(codes, vectors, codebooks, own, staying, left)
    held += staying
    places = _Places(np.vstack([others, codes])[first], held, sizes, capacity)
    del keys, first, group, own, staying
    order = np.argsort(distance, kind="stable")  # movers ascend, so that ties go to the lower item
    return _moved(codes, vectors, codebooks, places, movers[order])


def _check_room(items: int, sizes: Sequence[int], capacity: int, taken: int) -> None:
    if capacity * int(np.prod(np.array(sizes, dtype=object))) - taken >= items:
        return
    room = f"{items} distinct SIDs" if capacity == 1 else f"room at {capacity} items an SID"
    beside = f" beside the {taken} places taken" if taken else ""
    raise DataError(
        f"{items} items have no {room} in codebooks of {'/'.join(map(str, sizes))} codes{beside}. "
        "Raise codebook_sizes, add a level, or take collisions: extra_token."
    )


def _movers(
    codes: np.ndarray,
    vectors: VectorRows,
    codebooks: Sequence[np.ndarray],
    group: np.ndarray,
    staying: np.ndarray,
    left: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Items that must move, ascending, int64 (M,), and their distances, float32 (M,)."""
    full = np.bincount(group, minlength=len(staying)) > staying
    crowd = np.flatnonzero(full[group])
    if left is None:
        distance = np.empty(len(crowd), dtype=np.float32)
        for part in _parts(len(crowd)):
            items = crowd[part]
            distance[part] = ((vectors[items] - reconstruct(codes[items], codebooks)) ** 2).sum(axis=1)
    else:
        distance = left[crowd]
    groups = group[crowd]
    order = np.lexsort((distance, groups))  # stable: of equal distances the lower item first
    sizes = np.bincount(groups, minlength=len(staying))
    rank = np.arange(len(crowd)) - (np.cumsum(sizes) - sizes)[groups[order]]
    moving = np.sort(order[rank >= staying[groups[order]]])
    return crowd[moving], distance[moving]


def _parts(size: int, rows: int = _ROWS) -> Iterator[slice]:
    return (slice(start, min(start + rows, size)) for start in range(0, size, rows))


class _Node:
    """Items that have a place under a prefix: under each code that may follow, and in all."""

    __slots__ = ("all", "first", "last", "under")

    def __init__(self, first: int, last: int, under: np.ndarray):
        self.first, self.last, self.under, self.all = first, last, under, int(under.sum())


class _Places:
    """Places of SIDs, counted under every prefix that was looked at.

    Args:
        rows: int32 (G, L), SIDs in order.
        held: int64 (G,), items that have a place there.
        sizes: Codes per level.
        capacity: Places of an SID.
    """

    def __init__(self, rows: np.ndarray, held: np.ndarray, sizes: Sequence[int], capacity: int):
        self.rows, self.held, self.sizes = SortedRows(rows), held, sizes
        below = [capacity * int(np.prod(np.array(sizes[depth:], dtype=object))) for depth in range(len(sizes) + 1)]
        self.room = [min(number, _MOST) for number in below]  # places under a prefix of each length
        self._nodes: dict[tuple[int, ...], _Node] = {(): self._opened((), 0, len(rows))}

    def _opened(self, prefix: tuple[int, ...], first: int, last: int) -> _Node:
        found = self.rows.columns[len(prefix)][first:last]
        under = np.bincount(found, weights=self.held[first:last], minlength=self.sizes[len(prefix)])
        return _Node(first, last, under.astype(np.int64))

    def node(self, prefix: tuple[int, ...]) -> _Node:
        """The node of a prefix of length 0 to L - 1; those above it are opened as well."""
        found = self._nodes.get(prefix)
        if found is None:
            above = self.node(prefix[:-1])
            span = self.rows.below(len(prefix) - 1, prefix[-1], above.first, above.last)
            found = self._nodes[prefix] = self._opened(prefix, *span)
        return found

    def occupy(self, sid: tuple[int, ...]) -> None:
        """Give one more item a place."""
        for depth, code in enumerate(sid):
            node = self.node(sid[:depth])
            node.under[code] += 1
            node.all += 1


def _moved(
    codes: np.ndarray, vectors: VectorRows, codebooks: Sequence[np.ndarray], places: _Places, movers: np.ndarray
) -> np.ndarray:
    """Codes with every mover at its new place; movers, int64 (M,), in the order in which they choose."""
    levels, few = len(codebooks), len(movers) <= FEW
    moved = codes.copy()
    kind = np.min_scalar_type(len(codebooks[-1]) - 1)
    capacity = places.room[levels]
    squares = [None if few else (codebook * codebook).sum(axis=1) for codebook in codebooks]
    for part in _parts(len(movers), max(1, ORDERS_BYTES // (len(codebooks[-1]) * kind.itemsize))):
        items = movers[part]
        orders = _last_orders(codes, vectors, codebooks, items, kind, few)
        for item, prefix, order in zip(items.tolist(), codes[items, :-1].tolist(), orders, strict=True):
            node = places.node(tuple(prefix))
            if node.all < places.room[levels - 1]:
                sid = (*prefix, int(order[(node.under[order] < capacity).argmax()]))
            else:
                sid = _elsewhere(vectors[item], tuple(prefix), codebooks, places, squares)
            places.occupy(sid)
            moved[item] = sid
    return moved


def _last_orders(
    codes: np.ndarray,
    vectors: VectorRows,
    codebooks: Sequence[np.ndarray],
    items: np.ndarray,
    kind: np.dtype[np.unsignedinteger],
    few: bool,
) -> np.ndarray:
    """The codes of the last level from the nearest to the farthest, for each item under its prefix: (M, C)."""
    orders = np.empty((len(items), len(codebooks[-1])), dtype=kind)
    ascending = np.argsort(items)  # as they lie in the file
    for part in _parts(len(items)):
        rows = items[ascending[part]]
        residuals = vectors[rows]
        if len(codebooks) > 1:
            residuals = residuals - reconstruct(codes[rows, :-1], codebooks[:-1])
        if few:
            costs = np.stack([_costs(codebooks[-1], residual) for residual in residuals])
        else:
            costs = distances(residuals, codebooks[-1])
        orders[ascending[part]] = np.argsort(costs, axis=1, kind="stable")
    return orders


def _costs(codebook: np.ndarray, residual: np.ndarray, squares: np.ndarray | None = None) -> np.ndarray:
    """Squared distance of a residual to each code: float32 (C,).

    Where the squares of the codes are given it is a product, and less the residual's own square.
    """
    exact = squares is None
    found: np.ndarray = ((codebook - residual) ** 2).sum(axis=1) if exact else squares - 2 * (codebook @ residual)
    return found


def _elsewhere(
    vector: np.ndarray,
    prefix: tuple[int, ...],
    codebooks: Sequence[np.ndarray],
    places: _Places,
    squares: Sequence[np.ndarray | None],
) -> tuple[int, ...]:
    """The SID of an item whose prefix of length L - 1 is full; squares of the codes per level, or None of each."""
    depth = next(d for d in range(len(prefix) - 1, -1, -1) if places.node(prefix[:d]).all < places.room[d])
    prefix = prefix[:depth]
    residual = vector - sum(codebooks[level][code] for level, code in enumerate(prefix))
    for level in range(depth, len(codebooks)):
        order = np.argsort(_costs(codebooks[level], residual, squares[level]), kind="stable")
        code = int(order[(places.node(prefix).under[order] < places.room[level + 1]).argmax()])
        residual = residual - codebooks[level][code]
        prefix = (*prefix, code)
    return prefix
