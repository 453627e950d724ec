"""Items that share an SID: counting them in every reading, and moving them apart."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.sid.residual_kmeans import reconstruct


@dataclass(frozen=True)
class CollisionCounts:
    """How far SIDs tell items apart. "Collision rate" is ambiguous in this field, so each reading has its own name.

    Attributes:
        items: Number of items, N.
        unique: Number of distinct SIDs.
        groups: SIDs that two or more items share.
        sharing_items: Items that share their SID with another item.
        sharing_rate: sharing_items / N: the share of items that an SID alone does not name.
        surplus_rate: (N - unique) / N: the share of items that would have to move for all to be unique.
        largest_bucket: Most items that share one SID; 1 where all are unique.
        used_codes: Per level, the number of distinct codes in use.
    """

    items: int
    unique: int
    groups: int
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
        sharing_items=sharing,
        sharing_rate=sharing / len(codes),
        surplus_rate=(len(codes) - len(sizes)) / len(codes),
        largest_bucket=int(sizes.max()),
        used_codes=tuple(len(np.unique(column[column >= 0])) for column in codes.T),
    )


def _groups(codes: np.ndarray) -> list[list[int]]:
    """Item indices of each SID that several items share, ascending, in order of each group's first item."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item, sid in enumerate(map(tuple, codes.tolist())):
        found[sid].append(item)
    return [items for items in found.values() if len(items) > 1]


def _keep(codes: np.ndarray, vectors: np.ndarray | None, codebooks: Sequence[np.ndarray] | None) -> np.ndarray:
    return codes


def _extra_token(codes: np.ndarray, vectors: np.ndarray | None, codebooks: Sequence[np.ndarray] | None) -> np.ndarray:
    """Append a level that numbers the members of each colliding group from 0 in item order; -1 for all other items."""
    groups = _groups(codes)
    if not groups:
        return codes
    ranks = np.full((len(codes), 1), -1, dtype=np.int32)
    for items in groups:
        if (codes[items[0]] < 0).any():
            raise DataError("extra_token needs SIDs of one length; these differ in length. Take collisions: keep.")
        ranks[items, 0] = np.arange(len(items))
    return np.hstack([codes, ranks])


def _relocate(codes: np.ndarray, vectors: np.ndarray | None, codebooks: Sequence[np.ndarray] | None) -> np.ndarray:
    """Move all but one item of each colliding group to the nearest free code.

    The member nearest to its reconstruction stays (ties: lower index). The others move in order of that distance
    (ties: lower index), each at the deepest level under whose prefix a free SID is left: mostly the last level. From
    there down, each level takes the code nearest to the residual that still has room below it.

        prefix (a, b) with room     ->  (a, b, nearest free c)
        (a, b) full, (a,) with room ->  (a, nearest b' with room, nearest free c)
        (a,) full                   ->  (nearest a' with room, ...)
    """
    if vectors is None or codebooks is None:
        raise DataError("relocate needs the item vectors and the codebooks. Take collisions: keep or extra_token.")
    sizes = [len(codebook) for codebook in codebooks]
    if codes.shape[1] != len(sizes) or (codes < 0).any() or (codes >= sizes).any():
        raise DataError(f"relocate needs codes of {len(sizes)} full levels within codebook sizes {sizes}.")
    if np.prod(np.array(sizes, dtype=object)) < len(codes):
        raise DataError(
            f"{len(codes)} items have no {len(codes)} distinct SIDs in codebooks of {'/'.join(map(str, sizes))} codes. "
            "Raise codebook_sizes, add a level, or take collisions: extra_token."
        )
    levels = len(sizes)
    below = [int(np.prod(np.array(sizes[depth:], dtype=object))) for depth in range(levels + 1)]
    distance = ((vectors - reconstruct(codes, codebooks)) ** 2).sum(axis=1)  # (N,)
    movers = [item for items in _groups(codes) for item in sorted(items, key=lambda i: (distance[i], i))[1:]]
    used: Counter[tuple[int, ...]] = Counter()  # prefix of any length -> distinct SIDs taken under it
    for sid in set(map(tuple, codes.tolist())):
        used.update(sid[:depth] for depth in range(levels + 1))

    moved = codes.copy()
    for item in sorted(movers, key=lambda i: (distance[i], i)):
        prefix = tuple(codes[item].tolist())
        depth = next(d for d in range(levels - 1, -1, -1) if used[prefix[:d]] < below[d])
        prefix = prefix[:depth]
        residual = vectors[item] - sum(codebooks[d][code] for d, code in enumerate(prefix))
        for level in range(depth, levels):
            costs = ((codebooks[level] - residual) ** 2).sum(axis=1)  # (C,)
            order = np.argsort(costs, kind="stable").tolist()
            code = next(code for code in order if used[(*prefix, code)] < below[level + 1])
            residual = residual - codebooks[level][code]
            prefix = (*prefix, code)
        used.update(prefix[:d] for d in range(levels + 1))
        moved[item] = prefix
    return moved


METHODS: dict[str, Callable[[np.ndarray, np.ndarray | None, Sequence[np.ndarray] | None], np.ndarray]] = {
    "keep": _keep,
    "relocate": _relocate,
    "extra_token": _extra_token,
}


def resolve_collisions(
    codes: np.ndarray,
    method: str,
    *,
    vectors: np.ndarray | None = None,
    codebooks: Sequence[np.ndarray] | None = None,
) -> Resolution:
    """Resolve collisions and count them before and after.

    Args:
        codes: int (N, L), row i = item i.
        method: "keep" leaves them; "relocate" moves all but the best-placed item of a group to the nearest free code at
            the last level under the same prefix (higher up only where a prefix holds more items than codes);
            "extra_token" adds a level that numbers the members of each group, so that SIDs differ in length.
        vectors: float32 (N, D), what the codes were made from; needed by "relocate".
        codebooks: Per level float32 (C_l, D); needed by "relocate".

    Returns:
        The new codes, the counts before and after, and the distance paid.

    Raises:
        ConfigError: If the method is unknown.
        DataError: If "relocate" lacks vectors or codebooks, or there are fewer SIDs than items.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown way to resolve collisions {method!r}; known: {', '.join(METHODS)}.")
    codes = np.ascontiguousarray(codes, dtype=np.int32)
    resolved = METHODS[method](codes, vectors, codebooks)
    width = codes.shape[1]
    changed = (resolved[:, :width] != codes).any(axis=1) | (resolved[:, width:] >= 0).any(axis=1)  # (N,)
    paid = None
    if vectors is not None and codebooks is not None:
        places = (reconstruct(table[changed], codebooks).astype(np.float64) for table in (codes, resolved))
        before, after = (((vectors[changed] - place) ** 2).sum() for place in places)
        paid = float(after - before)
    return Resolution(resolved, method, count_collisions(codes), count_collisions(resolved), int(changed.sum()), paid)
