"""Items that share an SID: counting them in every reading, and moving them apart."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.sid.residual_kmeans import distances, reconstruct
from minionerec.sid.sinkhorn import encode_together

ROUNDS = 20
"""Most rounds of "sinkhorn": LC-Rec's."""


@dataclass(frozen=True)
class CollisionCounts:
    """How far SIDs tell items apart. "Collision rate" is ambiguous in this field, so each reading has its own name.

    Attributes:
        items: Number of items, N.
        unique: Number of distinct SIDs.
        groups: SIDs that two or more items share.
        identified_items: Items that their SID alone names: nobody shares it.
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
    """Codes after collisions were resolved, and what that took.

    Attributes:
        codes: int32 (N, L), or (N, L + 1) where an extra token was added; -1 where an item has no code at the end.
        method: Name of the method.
        before: Counts of the codes as given.
        after: Counts of the codes as returned.
        moved: Items whose SID changed.
        distance_paid: Sum over moved items of the squared distance between vector and reconstruction, after less
            before; 0 where nothing moves in space; None where no vectors were given.
    """

    codes: np.ndarray
    method: str
    before: CollisionCounts
    after: CollisionCounts
    moved: int
    distance_paid: float | None


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
    sizes = np.array(list(Counter(map(tuple, codes.tolist())).values()))
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


@dataclass(frozen=True)
class _Table:
    """Codes with collisions, int32 (N, L), and what methods may need to resolve them."""

    codes: np.ndarray
    vectors: np.ndarray | None
    codebooks: Sequence[np.ndarray] | None
    taken: np.ndarray
    capacity: int


def _groups(codes: np.ndarray) -> dict[tuple[int, ...], list[int]]:
    """Item indices of each SID, ascending, in order of each SID's first item."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item, sid in enumerate(map(tuple, codes.tolist())):
        found[sid].append(item)
    return found


def _keep(table: _Table) -> np.ndarray:
    return table.codes


def _extra_token(table: _Table, everyone: bool = False) -> np.ndarray:
    """Append a level that numbers the members of each colliding group in item order; -1 for all other items.

    Numbers begin at 0, or behind those of the SIDs already taken. With `everyone` an item that is alone has number 0
    (Rajput et al., "Recommender Systems with Generative Retrieval", 2023), so that all SIDs grow by one code.
    """
    codes, levels = table.codes, table.codes.shape[1]
    first_free: dict[tuple[int, ...], int] = {}
    for row in table.taken.tolist():
        sid = tuple(row[:levels])
        first_free[sid] = max(first_free.get(sid, 0), max(row[levels:], default=-1) + 1)
    ranks = np.full((len(codes), 1), -1, dtype=np.int32)
    for sid, items in _groups(codes).items():
        if len(items) == 1 and sid not in first_free and not everyone:
            continue
        if min(sid) < 0:
            raise DataError("an extra token needs SIDs of one length; these differ in length. Take collisions: keep.")
        ranks[items, 0] = first_free.get(sid, 0) + np.arange(len(items))
    return codes if (ranks < 0).all() else np.hstack([codes, ranks])


def _space(table: _Table, method: str) -> tuple[np.ndarray, Sequence[np.ndarray]]:
    """Vectors and codebooks, of which the codes must be full rows."""
    codes, vectors, codebooks = table.codes, table.vectors, table.codebooks
    if vectors is None or codebooks is None:
        raise DataError(f"{method} needs the item vectors and the codebooks. Take collisions: keep or extra_token.")
    sizes = [len(codebook) for codebook in codebooks]
    if codes.shape[1] != len(sizes) or (codes < 0).any() or (codes >= sizes).any():
        raise DataError(f"{method} needs codes of {len(sizes)} full levels within codebook sizes {sizes}.")
    return vectors, codebooks


def _relocate(table: _Table) -> np.ndarray:
    """Move whoever finds an SID full to the nearest free code.

    An SID has room for `capacity` items, less those that have taken it already. The members nearest to their
    reconstruction stay (ties: lower index). The others move in order of that distance (ties: lower index), each at the
    deepest level under whose prefix there is room: mostly the last level. From there down, each level takes the code
    nearest to the residual that still has room below it.

        prefix (a, b) with room     ->  (a, b, nearest free c)
        (a, b) full, (a,) with room ->  (a, nearest b' with room, nearest free c)
        (a,) full                   ->  (nearest a' with room, ...)
    """
    codes, capacity = table.codes, table.capacity
    vectors, codebooks = _space(table, "relocate")
    sizes = [len(codebook) for codebook in codebooks]
    levels = len(sizes)
    # Prefix of any length -> items that have a place under it, each SID holding at most `capacity`.
    used: Counter[tuple[int, ...]] = Counter()
    places = [capacity * int(np.prod(np.array(sizes[depth:], dtype=object))) for depth in range(levels + 1)]

    def occupy(sid: tuple[int, ...], items: int) -> None:
        for depth in range(levels + 1):
            used[sid[:depth]] += items

    for sid, count in Counter(map(tuple, table.taken[:, :levels].tolist())).items():
        occupy(sid, min(count, capacity))
    if places[0] - used[()] < len(codes):
        room = f"{len(codes)} distinct SIDs" if capacity == 1 else f"room at {capacity} items an SID"
        taken = f" beside the {used[()]} places taken" if used[()] else ""
        raise DataError(
            f"{len(codes)} items have no {room} in codebooks of {'/'.join(map(str, sizes))} codes{taken}. "
            "Raise codebook_sizes, add a level, or take collisions: extra_token."
        )
    distance = ((vectors - reconstruct(codes, codebooks)) ** 2).sum(axis=1)  # (N,)
    movers: list[int] = []
    for sid, items in _groups(codes).items():
        staying = min(len(items), capacity - used[sid])
        occupy(sid, staying)
        movers += sorted(items, key=lambda i: (distance[i], i))[staying:]

    moved = codes.copy()
    for item in sorted(movers, key=lambda i: (distance[i], i)):
        prefix = tuple(codes[item].tolist())
        depth = next(d for d in range(levels - 1, -1, -1) if used[prefix[:d]] < places[d])
        prefix = prefix[:depth]
        residual = vectors[item] - sum(codebooks[d][code] for d, code in enumerate(prefix))
        for level in range(depth, levels):
            costs = ((codebooks[level] - residual) ** 2).sum(axis=1)  # (C,)
            order = np.argsort(costs, kind="stable").tolist()
            code = next(code for code in order if used[(*prefix, code)] < places[level + 1])
            residual = residual - codebooks[level][code]
            prefix = (*prefix, code)
        occupy(prefix, 1)
        moved[item] = prefix
    return moved


def _sinkhorn(table: _Table) -> np.ndarray:
    """Encode the members of each group together at the last level, in rounds, until nothing changes (LC-Rec).

    Unlike there, a group chooses among the codes that nobody else has under its prefix, so that no round adds a
    collision.
    """
    vectors, codebooks = _space(table, "sinkhorn")
    codes, last = table.codes.copy(), codebooks[-1]
    left = vectors - reconstruct(codes, codebooks) + last[codes[:, -1]]  # (N, D), what the last level stands for
    squares = (left * left).sum(axis=1, keepdims=True)
    others = [tuple(row[: len(codebooks)]) for row in table.taken.tolist()]
    for _ in range(ROUNDS):
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


METHODS: dict[str, Callable[[_Table], np.ndarray]] = {
    "keep": _keep,
    "relocate": _relocate,
    "sinkhorn": _sinkhorn,
    "extra_token": _extra_token,
    "extra_token_all": partial(_extra_token, everyone=True),
}


def resolve_collisions(
    codes: np.ndarray,
    method: str,
    *,
    vectors: np.ndarray | None = None,
    codebooks: Sequence[np.ndarray] | None = None,
    taken: np.ndarray | None = None,
    capacity: int = 1,
) -> Resolution:
    """Resolve collisions and count them before and after.

    Args:
        codes: int (N, L), row i = item i.
        method: "keep" leaves them; "relocate" moves whoever finds an SID full, all but the best-placed items of it, to
            the nearest free code at the last level under the same prefix (higher up only where a prefix holds more
            items than places); "sinkhorn" encodes the members of each group together at the last level, whose codes
            they share out by entropic optimal transport, and keeps what still collides; "extra_token" adds a level
            that numbers the members of each group, so that SIDs differ in length; "extra_token_all" adds it to all.
        vectors: float32 (N, D), what the codes were made from; needed by "relocate" and "sinkhorn".
        codebooks: Per level float32 (C_l, D); needed by "relocate" and "sinkhorn".
        taken: int (P, L or more), SIDs of other items, which stay as they are; none if None.
        capacity: Most items that may share an SID after "relocate".

    Returns:
        The new codes, the counts before and after (of these N items and the P others), and the distance paid.

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
    resolved = METHODS[method](_Table(codes, vectors, codebooks, others, capacity))
    changed = (resolved[:, :width] != codes).any(axis=1) | (resolved[:, width:] >= 0).any(axis=1)  # (N,)
    paid = None
    if vectors is not None and codebooks is not None:
        tables = (reconstruct(table[changed], codebooks).astype(np.float64) for table in (codes, resolved))
        before, after = (((vectors[changed] - table) ** 2).sum() for table in tables)
        paid = float(after - before)
    count_before, count_after = (count_collisions(stack_codes(others, table)) for table in (codes, resolved))
    return Resolution(resolved, method, count_before, count_after, int(changed.sum()), paid)


def stack_codes(*tables: np.ndarray) -> np.ndarray:
    """Tables of codes, each int (N_i, L_i), one below the other; -1 fills the end of shorter rows.

    Example:
        >>> stack_codes(np.array([[1]]), np.array([[2, 3]])).tolist()
        [[1, -1], [2, 3]]
    """
    width = max(table.shape[1] for table in tables)
    wide = [np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1) for table in tables]
    return np.ascontiguousarray(np.vstack(wide), dtype=np.int32)
