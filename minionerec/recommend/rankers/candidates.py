"""Candidates of ranked lists: distinct SIDs with their items, or the items themselves."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minionerec.data.rows import LazySequence
from minionerec.models.decoding.titles import Titles
from minionerec.sid.table import SidTable

CandidateGroups = SidTable | Titles
"""Groups of items that are one candidate: those of one semantic ID, or of one title."""


def ranked_items(numbers: np.ndarray, popularity: np.ndarray, id_positions: np.ndarray) -> Sequence[list[int]]:
    """Items of each candidate, the more popular first, then the one whose id comes first.

    Args:
        numbers: int64 (N,), candidate of each item: `SidTable.sid_numbers`.
        popularity: int64 (N,), how often each item is a training target.
        id_positions: int64 (N,), of each item in the order of ids (`minionerec.data.corpus.Corpus.id_positions`).

    Returns:
        One list for each candidate, made on access: lists of lists would need a hundred times the memory.

    Example:
        >>> list(ranked_items(np.array([0, 1, 1]), np.array([5, 2, 2]), np.array([0, 2, 1])))
        [[0], [2, 1]]
    """
    order = np.lexsort((id_positions, -popularity, numbers))
    starts = np.append(0, np.cumsum(np.bincount(numbers)))

    def block(first: int, last: int) -> list[list[int]]:
        return [order[starts[number] : starts[number + 1]].tolist() for number in range(first, last)]

    return LazySequence(len(starts) - 1, block)


def list_items(
    candidates: Iterable[int], items_of: Sequence[Sequence[int]], k: int, allowed: np.ndarray | None = None
) -> tuple[list[int], list[int]]:
    """The items of the first `k` candidates that have allowed items.

    Args:
        candidates: Candidates, best first.
        items_of: Items of each candidate, best first.
        k: Number of candidates listed.
        allowed: bool (N,), the items that may be listed; all if None.

    Returns:
        The items, and for each the index of its candidate.

    Example:
        >>> list_items([1, 0], [[0], [2, 1]], 2, np.array([True, True, False]))
        ([1, 0], [0, 1])
    """
    items: list[int] = []
    indices: list[int] = []
    listed = 0
    for index, candidate in enumerate(candidates):
        if listed == k:
            break
        left = items_of[candidate] if allowed is None else [item for item in items_of[candidate] if allowed[item]]
        items += left
        indices += [index] * len(left)
        listed += bool(left)
    return items, indices


def first_candidates(items: Iterable[int], numbers: np.ndarray, k: int, allowed: np.ndarray | None = None) -> list[int]:
    """Distinct items in order, of the allowed ones, up to `k` distinct candidates.

    Args:
        items: Item indices.
        numbers: int64 (N,), candidate of each item.
        k: Number of candidates.
        allowed: bool (N,), the items that may be listed; all if None.

    Example:
        >>> first_candidates([2, 0, 2, 1, 3], np.array([0, 1, 0, 2]), 2)
        [2, 0, 1]
    """
    chosen: dict[int, None] = {}
    seen: set[int] = set()
    for item in items:
        if allowed is not None and not allowed[item]:
            continue
        number = int(numbers[item])
        if number not in seen and len(seen) == k:
            break
        seen.add(number)
        chosen[item] = None
    return list(chosen)


def candidate_maxima(numbers: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The largest value of each candidate's items: a function from (..., N), items, to (..., C), candidates.

    Of bools these are the candidates of which any item is True.

    Args:
        numbers: int64 (N,), candidate of each item; all numbers from 0 to the largest occur.

    Example:
        >>> candidate_maxima(np.array([1, 0, 1]))(np.array([[2.0, 3.0, 5.0]])).tolist()
        [[3.0, 5.0]]
    """
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return lambda values: np.maximum.reduceat(values[..., order], starts, axis=-1)
