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
"""Weight of the entropy relative to half the range of costs, as in LC-Rec."""

ITERATIONS = 50
"""Iterations that rescale rows and columns, as in LC-Rec."""


def transport_plan(costs: np.ndarray, epsilon: float = EPSILON, iterations: int = ITERATIONS) -> np.ndarray:
    """Optimal transport plan from items to codes with equal total weight per code.

    Sinkhorn's iterations (Cuturi, "Sinkhorn distances", 2013) minimise cost minus epsilon times entropy, with costs
    centred and scaled to [-1, 1] as in LC-Rec (Zheng et al., "Adapting large language models by integrating
    collaborative semantics for recommendation", 2023): rows to 1 / B, then columns to 1 / K, in double precision.

    Args:
        costs: float (B, K), cost of each item at each code.
        epsilon: Weight of the entropy; values much below 0.003 underflow.
        iterations: Number of iterations; at least 1.

    Returns:
        float64 (B, K); columns sum to 1 / K, rows approximately to 1 / B.

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
    """Assign each item the code with its largest weight in `transport_plan`.

    With far fewer items than codes, equal weight per code favours codes that are nearer to one item than to the others
    over the nearest code: items get different codes at a high cost in distance.

    Args:
        costs: float (B, K), cost of each item at each code.

    Returns:
        int64 (B,); ties go to the lower code.

    Example:
        >>> encode_together(np.array([[0.1, 0.2, 5.0], [0.1, 0.3, 5.0]])).tolist()
        [1, 0]
    """
    codes: np.ndarray = transport_plan(costs).argmax(axis=1)
    return codes


METHODS = ("keep", "relocate", "sinkhorn", "extra_token", "extra_token_all")
_BLOCK = 1 << 14  # vectors read at once
ROUNDS = 20
"""Maximum rounds of "sinkhorn", as in LC-Rec."""


@dataclass(frozen=True)
class CollisionCounts:
    """Counts of shared SIDs. "Collision rate" is ambiguous in this field, so each definition has its own name.

    Attributes:
        items: Number of items, N.
        unique: Number of distinct SIDs.
        groups: Number of SIDs that two or more items share.
        identified_items: Items whose SID no other item has.
        sharing_items: Items that share their SID with another item, N - identified_items.
        sharing_rate: sharing_items / N.
        surplus_rate: (N - unique) / N: the share of items that would have to move for all SIDs to be unique.
        largest_bucket: Largest number of items with one SID; 1 if all are unique.
        used_codes: Number of distinct codes in use, per level.
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
    """Result of resolving collisions, as in `report.json`.

    Attributes:
        method: Name of the method.
        moved: Number of items whose SID changed.
        distance_paid: Increase of the squared distance between vector and reconstruction, summed over moved items;
            None without vectors.
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
    items_of: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item, sid in enumerate(map(tuple, codes.tolist())):
        items_of[sid].append(item)
    return items_of


def _extra_token(codes: np.ndarray, taken: np.ndarray, always: bool) -> np.ndarray:
    """Append a level that numbers the members of each colliding group in item order; -1 for all other items.

    Numbers start at 0, or after those of `taken`. With `always`, items without a collision get number 0 (Rajput et al.,
    "Recommender Systems with Generative Retrieval", 2023), so all SIDs grow by one code.
    """
    levels = codes.shape[1]
    groups, group = np.unique(row_keys(np.vstack([taken[:, :levels], codes])), return_inverse=True)
    others, item_group = np.split(group.reshape(-1), [len(taken)])
    first_free = np.full(len(groups), -1, dtype=np.int64)  # -1 where no other item has the SID
    np.maximum.at(first_free, others, taken[:, levels:].max(axis=1, initial=-1) + 1)
    sizes = np.bincount(item_group, minlength=len(groups))
    numbered = (sizes[item_group] > 1) | (first_free[item_group] >= 0) | always  # (N,)
    if (codes[numbered] < 0).any():
        raise DataError("an extra token needs SIDs of one length; these differ in length. Take collisions: keep.")
    if not numbered.any():
        return codes
    order = np.argsort(item_group, kind="stable")
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - (np.cumsum(sizes) - sizes)[item_group[order]]
    numbers = np.where(numbered, rank + np.maximum(first_free[item_group], 0), -1)
    return np.hstack([codes, numbers.astype(np.int32)[:, None]])


def _space(
    method: str, codes: np.ndarray, vectors: VectorRows | None, codebooks: Sequence[np.ndarray] | None
) -> tuple[VectorRows, Sequence[np.ndarray]]:
    """Check that vectors and codebooks are given and fit the codes, and return them."""
    if vectors is None or codebooks is None:
        raise DataError(f"{method} needs the item vectors and the codebooks. Take collisions: keep or extra_token.")
    sizes = [len(codebook) for codebook in codebooks]
    if codes.shape[1] != len(sizes) or (codes < 0).any() or (codes >= sizes).any():
        raise DataError(f"{method} needs codes of {len(sizes)} full levels within codebook sizes {in_words(sizes)}.")
    return vectors, codebooks


def _sinkhorn(codes: np.ndarray, vectors: VectorRows, codebooks: Sequence[np.ndarray], taken: np.ndarray) -> np.ndarray:
    """Encode the members of each group together at the last level, in rounds, until nothing changes (LC-Rec).

    Unlike LC-Rec, a group gets only codes that no other item has under its prefix, so no round adds a collision.
    """
    if not isinstance(vectors, np.ndarray):
        raise DataError("sinkhorn needs all item vectors in memory. Take collisions: relocate or extra_token.")
    codes, last = codes.copy(), codebooks[-1]
    residuals = vectors - reconstruct(codes, codebooks) + last[codes[:, -1]]  # (N, D), the residuals of the last level
    squares = (residuals * residuals).sum(axis=1, keepdims=True)
    others = [tuple(row[: len(codebooks)]) for row in taken.tolist()]
    for _ in progress(range(ROUNDS), "resolving collisions", unit="rounds"):
        before = codes.copy()
        item_counts = Counter([*others, *map(tuple, codes.tolist())])
        for sid, items in _groups(before).items():
            if item_counts[sid] == 1:
                continue
            item_counts[sid] -= len(items)
            free = np.flatnonzero([not item_counts[(*sid[:-1], code)] for code in range(len(last))])
            if len(free):
                costs = squares[items] + distances(residuals[items], last[free])
                codes[items, -1] = free[encode_together(costs)]
            item_counts.update(map(tuple, codes[items].tolist()))
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
            that numbers the members of each group, so that SIDs differ in length; "extra_token_all" adds the level to
            all items.
        vectors: float32 (N, D), the vectors that were quantised; required by "relocate" and "sinkhorn". "sinkhorn"
            needs an array, not a file.
        codebooks: Per level float32 (C_l, D); required by "relocate" and "sinkhorn".
        taken: int (P, L or more), SIDs of other items, which do not change; none if None.
        left: float32 (N,), squared distance of each item to its reconstruction; computed if None.

    Returns:
        The new codes, int32 (N, L), or (N, L + 1) with an extra token, -1 at the end of shorter SIDs; and a summary
        whose counts include the P other items.

    Raises:
        ConfigError: If the method is unknown.
        DataError: If "relocate" or "sinkhorn" lacks vectors or codebooks, or "relocate" has fewer SIDs than items.
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
        resolved = _extra_token(codes, others, always=method == "extra_token_all")
    changed = (resolved[:, :width] != codes).any(axis=1) | (resolved[:, width:] >= 0).any(axis=1)  # (N,)
    increase = None
    if vectors is not None and codebooks is not None:
        increase = _distance_increase(vectors, codebooks, np.flatnonzero(changed), codes, resolved)
    count_before, count_after = (count_collisions(stack_codes(others, table)) for table in (codes, resolved))
    return resolved, Resolution(method, int(changed.sum()), increase, count_before, count_after)


def _distance_increase(
    vectors: VectorRows, codebooks: Sequence[np.ndarray], moved: np.ndarray, codes: np.ndarray, resolved: np.ndarray
) -> float:
    """Increase of the squared distance to the reconstruction, summed over moved items."""
    increase = 0.0
    for start in range(0, len(moved), _BLOCK):
        items = moved[start : start + _BLOCK]
        points = vectors[items]
        tables = (reconstruct(table[items], codebooks).astype(np.float64) for table in (codes, resolved))
        before, after = (((points - table) ** 2).sum() for table in tables)
        increase += float(after - before)
    return increase


def stack_codes(*tables: np.ndarray) -> np.ndarray:
    """Tables of codes, each int (N_i, L_i), one below the other; -1 fills the end of shorter rows.

    Example:
        >>> stack_codes(np.array([[1]]), np.array([[2, 3]])).tolist()
        [[1, -1], [2, 3]]
    """
    width = max(table.shape[1] for table in tables)
    wide = [np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1) for table in tables]
    return np.ascontiguousarray(np.vstack(wide), dtype=np.int32)


# Resolving shared SIDs: to the nearest free code, in time that does not depend on the number of SIDs.

FEW = 1 << 14
"""Up to this many moving items, distances are sums of squared differences; for more they are matrix products."""
ORDERS_BYTES = 1 << 30
"""Bytes of a block of code orders (the codes of the last level by distance, per moving item)."""
_MAX_COUNT = 2**62


def _relocate(
    codes: np.ndarray,
    vectors: VectorRows,
    codebooks: Sequence[np.ndarray],
    taken: np.ndarray,
    left: np.ndarray | None,
) -> np.ndarray:
    """Move all items of an SID but one to the nearest free code.

    The member nearest to its reconstruction stays (ties: lower index), unless the SID is taken. The others move in
    order of that distance (ties: lower index), each below its longest prefix with room, mostly at the last level. From
    there down, each level takes the code nearest to the residual among those with room.

        prefix (a, b) with room     ->  (a, b, nearest free c)
        (a, b) full, (a,) with room ->  (a, nearest b' with room, nearest free c)
        (a,) full                   ->  (nearest a' with room, ...)

    Only vectors of items in full groups are read, in blocks in file order; an item whose prefix is full is read again.

    Raises:
        DataError: If there are fewer free SIDs than items.
    """
    levels, sizes = len(codebooks), [len(codebook) for codebook in codebooks]
    others = taken[:, :levels]
    keys, first, group = np.unique(
        row_keys(np.vstack([others, codes])), return_index=True, return_inverse=True
    )  # (G,), (G,), (P + N,)
    group = group.reshape(-1)
    item_counts = np.minimum(np.bincount(group[: len(others)], minlength=len(keys)), 1)  # (G,), items assigned
    _check_room(len(codes), sizes, int(item_counts.sum()))
    item_group = group[len(others) :]
    staying = np.minimum(np.bincount(item_group, minlength=len(keys)), 1 - item_counts)
    movers, distance = _movers(codes, vectors, codebooks, item_group, staying, left)
    item_counts += staying
    free_codes = _FreeCodes(np.vstack([others, codes])[first], item_counts, sizes)
    del keys, first, group, item_group, staying
    order = np.argsort(distance, kind="stable")  # movers ascend, so that ties go to the lower item
    return _assign(codes, vectors, codebooks, free_codes, movers[order])


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
    candidates = np.flatnonzero(full[group])
    if left is None:
        distance = np.empty(len(candidates), dtype=np.float32)
        for part in _parts(len(candidates)):
            items = candidates[part]
            distance[part] = ((vectors[items] - reconstruct(codes[items], codebooks)) ** 2).sum(axis=1)
    else:
        distance = left[candidates]
    groups = group[candidates]
    order = np.lexsort((distance, groups))  # stable: of equal distances the lower item first
    sizes = np.bincount(groups, minlength=len(staying))
    rank = np.arange(len(candidates)) - (np.cumsum(sizes) - sizes)[groups[order]]
    moving = np.sort(order[rank >= staying[groups[order]]])
    return candidates[moving], distance[moving]


def _parts(size: int, block: int = _BLOCK) -> Iterator[slice]:
    return (slice(start, min(start + block, size)) for start in range(0, size, block))


class _FreeCodes:
    """Free leaves of the trie of codes, counted for prefixes as they are visited.

    Args:
        sids: int32 (G, L), distinct SIDs in lexicographic order.
        item_counts: int64 (G,), items assigned to each SID.
        sizes: Codes per level.
    """

    def __init__(self, sids: np.ndarray, item_counts: np.ndarray, sizes: Sequence[int]):
        self.columns, self.item_counts, self.sizes = by_column(sids), item_counts, sizes
        below = [int(np.prod(np.array(sizes[depth:], dtype=object))) for depth in range(len(sizes) + 1)]
        self.room = [min(number, _MAX_COUNT) for number in below]  # SIDs under a prefix of each length
        self._under: dict[tuple[int, ...], np.ndarray] = {}

    def under(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Number of items assigned under each next code after a prefix of length 0 to L - 1: int64 (C,)."""
        counts = self._under.get(prefix)
        if counts is None:
            span = slice(*prefix_span(self.columns, prefix))
            column = self.columns[len(prefix)][span]
            weighted = np.bincount(column, weights=self.item_counts[span], minlength=self.sizes[len(prefix)])
            counts = self._under[prefix] = weighted.astype(np.int64)
        return counts

    def full(self, prefix: tuple[int, ...]) -> bool:
        """Whether no more items can be assigned under a prefix."""
        return int(self.under(prefix).sum()) >= self.room[len(prefix)]

    def occupy(self, sid: tuple[int, ...]) -> None:
        """Assign one more item."""
        for depth, code in enumerate(sid):
            self.under(sid[:depth])[code] += 1


def _assign(
    codes: np.ndarray, vectors: VectorRows, codebooks: Sequence[np.ndarray], free_codes: _FreeCodes, movers: np.ndarray
) -> np.ndarray:
    """Codes after every mover, int64 (M,) in order of assignment, got a new SID."""
    few = len(movers) <= FEW
    assigned = codes.copy()
    kind = np.min_scalar_type(len(codebooks[-1]) - 1)
    squares = [None if few else (codebook * codebook).sum(axis=1) for codebook in codebooks]

    def choices() -> Iterator[tuple[int, tuple[int, ...], np.ndarray]]:
        for part in _parts(len(movers), max(1, ORDERS_BYTES // (len(codebooks[-1]) * kind.itemsize))):
            items = movers[part]
            orders = _last_orders(codes, vectors, codebooks, items, kind, few)
            yield from zip(items.tolist(), map(tuple, codes[items, :-1].tolist()), orders, strict=True)

    for item, prefix, order in progress(choices(), "relocating items", len(movers), unit="items"):
        if not free_codes.full(prefix):
            sid = (*prefix, int(order[(free_codes.under(prefix)[order] < 1).argmax()]))
        else:
            sid = _nearest_free_sid(vectors[item], prefix, codebooks, free_codes, squares)
        free_codes.occupy(sid)
        assigned[item] = sid
    return assigned


def _last_orders(
    codes: np.ndarray,
    vectors: VectorRows,
    codebooks: Sequence[np.ndarray],
    items: np.ndarray,
    kind: np.dtype[np.unsignedinteger],
    few: bool,
) -> np.ndarray:
    """Codes of the last level by distance from the residual of each item: (M, C), nearest first."""
    orders = np.empty((len(items), len(codebooks[-1])), dtype=kind)
    ascending = np.argsort(items)  # in file order
    for part in _parts(len(items)):
        block = items[ascending[part]]
        residuals = vectors[block]
        if len(codebooks) > 1:
            residuals = residuals - reconstruct(codes[block, :-1], codebooks[:-1])
        if few:
            costs = np.stack([_costs(codebooks[-1], residual) for residual in residuals])
        else:
            costs = distances(residuals, codebooks[-1])
        orders[ascending[part]] = np.argsort(costs, axis=1, kind="stable")
    return orders


def _costs(codebook: np.ndarray, residual: np.ndarray, squares: np.ndarray | None = None) -> np.ndarray:
    """Squared distance of a residual to each code: float32 (C,).

    Given the squared norms of the codes, it is computed by a matrix product and omits the residual's squared norm.
    """
    exact = squares is None
    costs: np.ndarray = ((codebook - residual) ** 2).sum(axis=1) if exact else squares - 2 * (codebook @ residual)
    return costs


def _nearest_free_sid(
    vector: np.ndarray,
    prefix: tuple[int, ...],
    codebooks: Sequence[np.ndarray],
    free_codes: _FreeCodes,
    squares: Sequence[np.ndarray | None],
) -> tuple[int, ...]:
    """The nearest SID with room for an item whose prefix of length L - 1 is full; `squares` as of `_costs`."""
    depth = next(d for d in range(len(prefix) - 1, -1, -1) if not free_codes.full(prefix[:d]))
    prefix = prefix[:depth]
    residual = vector - sum(codebooks[level][code] for level, code in enumerate(prefix))
    for level in range(depth, len(codebooks)):
        order = np.argsort(_costs(codebooks[level], residual, squares[level]), kind="stable")
        code = int(order[(free_codes.under(prefix)[order] < free_codes.room[level + 1]).argmax()])
        residual = residual - codebooks[level][code]
        prefix = (*prefix, code)
    return prefix
