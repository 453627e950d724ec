"""Candidates of ranked lists: distinct SIDs with their items, or the items themselves."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from minionerec.data.rows import LazySequence


class CandidateGroups(Protocol):
    """Groups of items that are one candidate: SIDs (`SidTable`), or titles (`Titles`)."""

    @property
    def unit(self) -> str:
        """The common property of a group: "SID" or "title"."""
        ...

    @property
    def sids(self) -> Sequence[str]:
        """The name of each item's group, N texts."""
        ...

    @property
    def sid_numbers(self) -> np.ndarray:
        """The group of each item, from 0: int64 (N,)."""
        ...

    @property
    def n_unique(self) -> int:
        """Number of groups."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for tables with the same groups."""
        ...


def ranked_items(numbers: np.ndarray, popularity: np.ndarray) -> Sequence[list[int]]:
    """Items of each candidate, the more popular first, then the lower item index.

    Args:
        numbers: int64 (N,), candidate of each item: `SidTable.sid_numbers`.
        popularity: int64 (N,), how often each item is a training target.

    Returns:
        One list for each candidate, made on access: lists of lists would need a hundred times the memory.

    Example:
        >>> list(ranked_items(np.array([0, 1, 1]), np.array([5, 2, 3])))
        [[0], [2, 1]]
    """
    order = np.lexsort((np.arange(len(numbers)), -popularity, numbers))
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


def candidate_masks(numbers: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The candidates that have an allowed item: a function from bool (B, N), items, to bool (B, C), candidates.

    Args:
        numbers: int64 (N,), candidate of each item; all numbers from 0 to the largest occur.

    Example:
        >>> candidate_masks(np.array([1, 0, 1]))(np.array([[True, False, False]])).tolist()
        [[False, True]]
    """
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return lambda allowed: np.logical_or.reduceat(allowed[:, order], starts, axis=1)
