"""Items that share an SID: counting them in every definition, and resolving collisions."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import progress
from minionerec.core.values import in_words
from minionerec.sid.embed.stored import VectorRows
from minionerec.sid.kmeans import distances, reconstruct
from minionerec.sid.table import by_column, group_sizes, prefix_span, row_keys

# Codes for items that are encoded together: entropic optimal transport by Sinkhorn's iterations.

EPSILON = 0.003
"""Weight of the entropy, as a share of half the spread of costs: LC-Rec's."""

ITERATIONS = 50
"""Rescalings of rows and columns: LC-Rec's."""


def transport_plan(costs: np.ndarray, epsilon: float = EPSILON, iterations: int = ITERATIONS) -> np.ndarray:
    """How much of each item goes to each code, if every code is to get the same.

    Sinkhorn's iterations (Cuturi, "Sinkhorn distances", 2013) for the plan of least cost less epsilon times entropy,
    with costs centred and scaled to [-1, 1] as in LC-Rec (Zheng et al., "Adapting large language models by integrating
    collaborative semantics for recommendation", 2023): rows to 1 / B, then columns to 1 / K, in double precision.

    Args:
        costs: float (B, K), cost of each item at each code.
        epsilon: Weight of the entropy; 0.003 is about the least at which nothing underflows.
        iterations: How often rows and columns are rescaled; at least 1.

    Returns:
        float64 (B, K): columns sum to 1 / K, rows to nearly 1 / B.

    Example:
        >>> transport_plan(np.array([[0.0, 1.0], [0.2, 0.8]])).round(3).tolist()
        [[0.495, 0.0], [0.005, 0.5]]
    """
    costs = np.asarray(costs, dtype=np.float64)
    middle = (costs.max() + costs.min()) / 2
    plan: np.ndarray = np.exp(-(costs - middle) / (costs.max() - middle + 1e-5) / epsilon)
    items, codes = plan.shape
    for _ in range(iterations):
        plan /= plan.sum(axis=1, keepdims=True) * items
        plan /= plan.sum(axis=0, keepdims=True) * codes
    return plan


def encode_together(costs: np.ndarray) -> np.ndarray:
    """The code that gets most of each item under `transport_plan`, ties to the lower code: int64 (B,).

    Where items are far fewer than codes, the rule that every code is to get the same determines which codes are nearer
    to one item than to the others, not which is the nearest: items are distinguished at a high cost in distance.

    Args:
        costs: float (B, K), cost of each item at each code.

    Example:
        >>> encode_together(np.array([[0.1, 0.2, 5.0], [0.1, 0.3, 5.0]])).tolist()
        [1, 0]
    """
    codes: np.ndarray = transport_plan(costs).argmax(axis=1)
    return codes


METHODS = ("keep", "relocate", "sinkhorn", "extra_token", "extra_token_all")
_ROWS = 1 << 14  # vectors at once
ROUNDS = 20
"""Most rounds of "sinkhorn": LC-Rec's."""


@dataclass(frozen=True)
class CollisionCounts:
    """Counts of shared SIDs. "Collision rate" is ambiguous in this field, so each definition has its own name.

    Attributes:
        items: Number of items, N.
        unique: Number of distinct SIDs.
        groups: SIDs that two or more items share.
        identified_items: Items that their SID alone names: no other item shares it.
        sharing_items: Items that share their SID with another item, N - identified_items.
        sharing_rate: sharing_items / N: the share of items that an SID alone does not name.
        surplus_rate: (N - unique) / N: the share of items that would have to move for all to be unique.
        largest_bucket: Most items that share one SID; 1 where all are unique.
        used_codes: Per level, the number of distinct codes in use.
    """

    items: int
    unique: int
    groups: int
    identified_items: int
    sharing_items: int
    sharing_rate: float
    surplus_rate: float
    largest_bucket: int
    used_codes: tuple[int, ...]


@dataclass(frozen=True)
class Resolution:
    """How collisions were resolved, as `report.json` has it.

    Attributes:
        method: Name of the method.
        moved: Items whose SID changed.
        distance_paid: Sum over moved items of the squared distance between vector and reconstruction, after less
            before; 0 where nothing moves in space; None where no vectors were given.
        before: Counts of the codes as given.
        after: Counts of the codes as returned.
    """

    method: str
    moved: int
    distance_paid: float | None
    before: CollisionCounts
    after: CollisionCounts


def count_collisions(codes: np.ndarray) -> CollisionCounts:
    """Count shared SIDs.

    Args:
        codes: int (N, L), -1 at the end of shorter SIDs.

    Returns:
        The counts.

    Example:
        >>> counts = count_collisions(np.array([[0, 1], [0, 1], [0, 1], [1, 0]]))
        >>> counts.unique, counts.sharing_items, counts.sharing_rate, counts.surplus_rate, counts.largest_bucket
        (2, 3, 0.75, 0.5, 3)
    """
    sizes = group_sizes(codes)
    sharing = int(sizes[sizes > 1].sum())
    return CollisionCounts(
        items=len(codes),
        unique=len(sizes),
        groups=int((sizes > 1).sum()),
        identified_items=len(codes) - sharing,
        sharing_items=sharing,
        sharing_rate=sharing / len(codes),
        surplus_rate=(len(codes) - len(sizes)) / len(codes),
        largest_bucket=int(sizes.max()),
        used_codes=tuple(len(np.unique(column[column >= 0])) for column in codes.T),
    )


def _groups(codes: np.ndarray) -> dict[tuple[int, ...], list[int]]:
    """Item indices of each SID, ascending, in order of each SID's first item."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item, sid in enumerate(map(tuple, codes.tolist())):
        found[sid].append(item)
    return found


def _extra_token(codes: np.ndarray, taken: np.ndarray, everyone: bool) -> np.ndarray:
    """Append a level that numbers the members of each colliding group in item order; -1 for all other items.

    Numbers begin at 0, or after those of the SIDs already taken. With `everyone` an item that is alone has number 0
    (Rajput et al., "Recommender Systems with Generative Retrieval", 2023), so that all SIDs grow by one code.
    """
    levels = codes.shape[1]
    groups, group = np.unique(row_keys(np.vstack([taken[:, :levels], codes])), return_inverse=True)
    others, own = np.split(group.reshape(-1), [len(taken)])
    first_free = np.full(len(groups), -1, dtype=np.int64)  # -1 where no other item has the SID
    np.maximum.at(first_free, others, taken[:, levels:].max(axis=1, initial=-1) + 1)
    sizes = np.bincount(own, minlength=len(groups))
    numbered = (sizes[own] > 1) | (first_free[own] >= 0) | everyone  # (N,)
    if (codes[numbered] < 0).any():
        raise DataError("an extra token needs SIDs of one length; these differ in length. Take collisions: keep.")
    if not numbered.any():
        return codes
    order = np.argsort(own, kind="stable")
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - (np.cumsum(sizes) - sizes)[own[order]]
    numbers = np.where(numbered, rank + np.maximum(first_free[own], 0), -1)
    return np.hstack([codes, numbers.astype(np.int32)[:, None]])


def _space(
    method: str, codes: np.ndarray, vectors: VectorRows | None, codebooks: Sequence[np.ndarray] | None
) -> tuple[VectorRows, Sequence[np.ndarray]]:
    """Vectors and codebooks, of which the codes must be full rows."""
    if vectors is None or codebooks is None:
        raise DataError(f"{method} needs the item vectors and the codebooks. Take collisions: keep or extra_token.")
    sizes = [len(codebook) for codebook in codebooks]
    if codes.shape[1] != len(sizes) or (codes < 0).any() or (codes >= sizes).any():
        raise DataError(f"{method} needs codes of {len(sizes)} full levels within codebook sizes {in_words(sizes)}.")
    return vectors, codebooks


def _sinkhorn(codes: np.ndarray, vectors: VectorRows, codebooks: Sequence[np.ndarray], taken: np.ndarray) -> np.ndarray:
    """Encode the members of each group together at the last level, in rounds, until nothing changes (LC-Rec).

    Unlike there, a group is assigned codes that no other item has under its prefix, so that no round adds a
    collision.
    """
    if not isinstance(vectors, np.ndarray):
        raise DataError("sinkhorn needs all item vectors in memory. Take collisions: relocate or extra_token.")
    codes, last = codes.copy(), codebooks[-1]
    left = vectors - reconstruct(codes, codebooks) + last[codes[:, -1]]  # (N, D), the residuals of the last level
    squares = (left * left).sum(axis=1, keepdims=True)
    others = [tuple(row[: len(codebooks)]) for row in taken.tolist()]
    for _ in progress(range(ROUNDS), "resolving collisions", unit="rounds"):
        before = codes.copy()
        held = Counter([*others, *map(tuple, codes.tolist())])
        for sid, items in _groups(before).items():
            if held[sid] == 1:
                continue
            held[sid] -= len(items)
            free = np.flatnonzero([not held[(*sid[:-1], code)] for code in range(len(last))])
            if len(free):
                costs = squares[items] + distances(left[items], last[free])
                codes[items, -1] = free[encode_together(costs)]
            held.update(map(tuple, codes[items].tolist()))
        if (codes == before).all():
            break
    return codes


def resolve_collisions(
    codes: np.ndarray,
    method: str,
    *,
    vectors: VectorRows | None = None,
    codebooks: Sequence[np.ndarray] | None = None,
    taken: np.ndarray | None = None,
    left: np.ndarray | None = None,
) -> tuple[np.ndarray, Resolution]:
    """Resolve collisions and count them before and after.

    Args:
        codes: int (N, L), row i = item i.
        method: "keep" leaves them; "relocate" moves the items of a shared SID, all but the nearest one, to
            the nearest free code at the last level under the same prefix (higher up only where a prefix holds more
            items than free codes); "sinkhorn" encodes the members of each group together at the last level, whose codes
            they share by entropic optimal transport, and keeps the remaining collisions; "extra_token" adds a level
            that numbers the members of each group, so that SIDs differ in length; "extra_token_all" adds it to all.
        vectors: float32 (N, D), from which the codes were made; needed by "relocate" and "sinkhorn". They may lie in a
            file; but "sinkhorn" needs an array.
        codebooks: Per level float32 (C_l, D); needed by "relocate" and "sinkhorn".
        taken: int (P, L or more), SIDs of other items, which stay as they are; none if None.
        left: float32 (N,), squared distance of each item to its reconstruction, where that is known already.

    Returns:
        The new codes, int32 (N, L), or (N, L + 1) where an extra token was added, -1 where an item has no code at the
        end; and how they were made, with the counts before and after of these N items and the P others.

    Raises:
        ConfigError: If the method is unknown.
        DataError: If "relocate" or "sinkhorn" lacks vectors or codebooks, or there are fewer SIDs than items for
            "relocate".
    """
    if method not in METHODS:
        raise ConfigError(f"unknown way to resolve collisions {method!r}; known: {', '.join(METHODS)}.")
    codes = np.ascontiguousarray(codes, dtype=np.int32)
    width = codes.shape[1]
    others = np.empty((0, width), dtype=np.int32) if taken is None else np.ascontiguousarray(taken, dtype=np.int32)
    if method == "keep":
        resolved = codes
    elif method == "relocate":
        resolved = _relocate(codes, *_space(method, codes, vectors, codebooks), others, left)
    elif method == "sinkhorn":
        resolved = _sinkhorn(codes, *_space(method, codes, vectors, codebooks), others)
    else:
        resolved = _extra_token(codes, others, everyone=method == "extra_token_all")
    changed = (resolved[:, :width] != codes).any(axis=1) | (resolved[:, width:] >= 0).any(axis=1)  # (N,)
    paid = None
    if vectors is not None and codebooks is not None:
        paid = _paid(vectors, codebooks, np.flatnonzero(changed), codes, resolved)
    count_before, count_after = (count_collisions(stack_codes(others, table)) for table in (codes, resolved))
    return resolved, Resolution(method, int(changed.sum()), paid, count_before, count_after)


def _paid(
    vectors: VectorRows, codebooks: Sequence[np.ndarray], moved: np.ndarray, codes: np.ndarray, resolved: np.ndarray
) -> float:
    """Squared distance of the items that moved to their reconstructions, after less before."""
    paid = 0.0
    for start in range(0, len(moved), _ROWS):
        items = moved[start : start + _ROWS]
        points = vectors[items]
        tables = (reconstruct(table[items], codebooks).astype(np.float64) for table in (codes, resolved))
        before, after = (((points - table) ** 2).sum() for table in tables)
        paid += float(after - before)
    return paid


def stack_codes(*tables: np.ndarray) -> np.ndarray:
    """Tables of codes, each int (N_i, L_i), one below the other; -1 fills the end of shorter rows.

    Example:
        >>> stack_codes(np.array([[1]]), np.array([[2, 3]])).tolist()
        [[1, -1], [2, 3]]
    """
    width = max(table.shape[1] for table in tables)
    wide = [np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1) for table in tables]
    return np.ascontiguousarray(np.vstack(wide), dtype=np.int32)


# Resolving shared SIDs: to the nearest free code, by arrays and by prefixes, whatever their number.

FEW = 1 << 14
"""Items that move are so few that their distances are sums of squared differences; those of more are products."""
ORDERS_BYTES = 1 << 30
"""Bytes of the orders in which items would take the codes of the last level: so many are made at once."""
_MOST = 2**62


def _relocate(
    codes: np.ndarray,
    vectors: VectorRows,
    codebooks: Sequence[np.ndarray],
    taken: np.ndarray,
    left: np.ndarray | None,
) -> np.ndarray:
    """Move all items of an SID but one to the nearest free code.

    The member nearest to its reconstruction stays (ties: lower index), unless the SID is taken. The others move in
    order of that distance (ties: lower index), each at the deepest level under whose prefix there is room: mostly the
    last level. From there down, each level takes the code nearest to the residual that still has room below it.

        prefix (a, b) with room     ->  (a, b, nearest free c)
        (a, b) full, (a,) with room ->  (a, nearest b' with room, nearest free c)
        (a,) full                   ->  (nearest a' with room, ...)

    Of the vectors only those of items in full groups are read, in blocks and in their order, and once more, one by
    one, those that find their prefix full.

    Raises:
        DataError: If there are fewer free SIDs than items.
    """
    levels, sizes = len(codebooks), [len(codebook) for codebook in codebooks]
    others = taken[:, :levels]
    keys, first, group = np.unique(
        row_keys(np.vstack([others, codes])), return_index=True, return_inverse=True
    )  # (G,), (G,), (P + N,)
    group = group.reshape(-1)
    held = np.minimum(np.bincount(group[: len(others)], minlength=len(keys)), 1)  # (G,), items assigned
    _check_room(len(codes), sizes, int(held.sum()))
    own = group[len(others) :]
    staying = np.minimum(np.bincount(own, minlength=len(keys)), 1 - held)
    movers, distance = _movers(codes, vectors, codebooks, own, staying, left)
    held += staying
    positions = _FreeCodes(np.vstack([others, codes])[first], held, sizes)
    del keys, first, group, own, staying
    order = np.argsort(distance, kind="stable")  # movers ascend, so that ties go to the lower item
    return _moved(codes, vectors, codebooks, positions, movers[order])


def _check_room(items: int, sizes: Sequence[int], taken: int) -> None:
    if int(np.prod(np.array(sizes, dtype=object))) - taken >= items:
        return
    beside = f" besides the {taken} taken" if taken else ""
    raise DataError(
        f"{items} items have no {items} distinct SIDs in codebooks of {'/'.join(map(str, sizes))} codes{beside}. "
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


class _FreeCodes:
    """Free leaves of the trie of codes, counted under every prefix visited.

    Args:
        rows: int32 (G, L), SIDs in order.
        held: int64 (G,), items assigned there.
        sizes: Codes per level.
    """

    def __init__(self, rows: np.ndarray, held: np.ndarray, sizes: Sequence[int]):
        self.columns, self.held, self.sizes = by_column(rows), held, sizes
        below = [int(np.prod(np.array(sizes[depth:], dtype=object))) for depth in range(len(sizes) + 1)]
        self.room = [min(number, _MOST) for number in below]  # SIDs under a prefix of each length
        self._under: dict[tuple[int, ...], np.ndarray] = {}

    def under(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Items assigned under each next code after a prefix of length 0 to L - 1: int64 (C,)."""
        found = self._under.get(prefix)
        if found is None:
            span = slice(*prefix_span(self.columns, prefix))
            column = self.columns[len(prefix)][span]
            counts = np.bincount(column, weights=self.held[span], minlength=self.sizes[len(prefix)])
            found = self._under[prefix] = counts.astype(np.int64)
        return found

    def full(self, prefix: tuple[int, ...]) -> bool:
        """Whether no more items can be assigned under a prefix."""
        return int(self.under(prefix).sum()) >= self.room[len(prefix)]

    def occupy(self, sid: tuple[int, ...]) -> None:
        """Assign one more item."""
        for depth, code in enumerate(sid):
            self.under(sid[:depth])[code] += 1


def _moved(
    codes: np.ndarray, vectors: VectorRows, codebooks: Sequence[np.ndarray], positions: _FreeCodes, movers: np.ndarray
) -> np.ndarray:
    """Codes with every mover at its new code; movers, int64 (M,), in order of assignment."""
    few = len(movers) <= FEW
    moved = codes.copy()
    kind = np.min_scalar_type(len(codebooks[-1]) - 1)
    squares = [None if few else (codebook * codebook).sum(axis=1) for codebook in codebooks]

    def choices() -> Iterator[tuple[int, tuple[int, ...], np.ndarray]]:
        for part in _parts(len(movers), max(1, ORDERS_BYTES // (len(codebooks[-1]) * kind.itemsize))):
            items = movers[part]
            orders = _last_orders(codes, vectors, codebooks, items, kind, few)
            yield from zip(items.tolist(), map(tuple, codes[items, :-1].tolist()), orders, strict=True)

    for item, prefix, order in progress(choices(), "relocating items", len(movers), unit="items"):
        if not positions.full(prefix):
            sid = (*prefix, int(order[(positions.under(prefix)[order] < 1).argmax()]))
        else:
            sid = _elsewhere(vectors[item], prefix, codebooks, positions, squares)
        positions.occupy(sid)
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
    positions: _FreeCodes,
    squares: Sequence[np.ndarray | None],
) -> tuple[int, ...]:
    """The SID of an item whose prefix of length L - 1 is full; squares of the codes per level, or None of each."""
    depth = next(d for d in range(len(prefix) - 1, -1, -1) if not positions.full(prefix[:d]))
    prefix = prefix[:depth]
    residual = vector - sum(codebooks[level][code] for level, code in enumerate(prefix))
    for level in range(depth, len(codebooks)):
        order = np.argsort(_costs(codebooks[level], residual, squares[level]), kind="stable")
        code = int(order[(positions.under(prefix)[order] < positions.room[level + 1]).argmax()])
        residual = residual - codebooks[level][code]
        prefix = (*prefix, code)
    return prefix
