"""Candidates of ranked lists: distinct SIDs, behind each of which stand its items; or the items themselves."""

from collections.abc import Iterable, Sequence
from typing import Protocol, overload

import numpy as np


class CandidateGroups(Protocol):
    """What items share, so that they are one candidate: SIDs (`SidTable`), or titles (`Titles`)."""

    @property
    def unit(self) -> str:
        """What the items of a group have in common: "SID" or "title"."""
        ...

    @property
    def sids(self) -> Sequence[str]:
        """What the group of each item is called, N texts."""
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
        """A hash that two tables share if they group the same items in the same way."""
        ...


class CandidateItems(Sequence[list[int]]):
    """Items of each candidate, best first, as two arrays: a list of a million lists would take a hundred times that.

    Args:
        items: int64 (N,), item indices, those of a candidate together, the candidates in order.
        starts: int64 (C + 1,), the places in `items` of candidate c are starts[c] to starts[c + 1] - 1.
    """

    def __init__(self, items: np.ndarray, starts: np.ndarray):
        self._items, self._starts = items, starts

    def __len__(self) -> int:
        """Number of candidates, C."""
        return len(self._starts) - 1

    @overload
    def __getitem__(self, candidate: int) -> list[int]: ...

    @overload
    def __getitem__(self, candidate: slice) -> list[list[int]]: ...

    def __getitem__(self, candidate: int | slice) -> list[int] | list[list[int]]:
        """The items of one candidate, or of some."""
        if isinstance(candidate, slice):
            return [self[place] for place in range(len(self))[candidate]]
        place = range(len(self))[candidate]
        found: list[int] = self._items[self._starts[place] : self._starts[place + 1]].tolist()
        return found


def ranked_items(numbers: np.ndarray, popularity: np.ndarray) -> CandidateItems:
    """Items behind each candidate, the more popular first, then the lower item index.

    Args:
        numbers: int64 (N,), candidate of each item: `SidTable.sid_numbers`.
        popularity: int64 (N,), how often each item is a training target.

    Returns:
        One list for each candidate.

    Example:
        >>> list(ranked_items(np.array([0, 1, 1]), np.array([5, 2, 3])))
        [[0], [2, 1]]
    """
    order = np.lexsort((np.arange(len(numbers)), -popularity, numbers))
    starts = np.append(0, np.cumsum(np.bincount(numbers)))
    return CandidateItems(order, starts)


def list_items(
    candidates: Iterable[int], behind: Sequence[Sequence[int]], k: int, allowed: np.ndarray | None = None
) -> tuple[list[int], list[int]]:
    """The items of the first `k` candidates that have any that may be listed.

    Args:
        candidates: Candidates, best first.
        behind: Items of each candidate, best first.
        k: How many candidates are listed.
        allowed: bool (N,), the items that may be listed; all if None.

    Returns:
        The items, and for each the place of its candidate among the candidates given.

    Example:
        >>> list_items([1, 0], [[0], [2, 1]], 2, np.array([True, True, False]))
        ([1, 0], [0, 1])
    """
    items: list[int] = []
    places: list[int] = []
    listed = 0
    for place, candidate in enumerate(candidates):
        if listed == k:
            break
        left = behind[candidate] if allowed is None else [item for item in behind[candidate] if allowed[item]]
        items += left
        places += [place] * len(left)
        listed += bool(left)
    return items, places


class CandidateMasks:
    """Which candidates have an item that may be listed.

    Args:
        numbers: int64 (N,), candidate of each item; every number from 0 to the largest is there.
    """

    def __init__(self, numbers: np.ndarray):
        self.order = np.argsort(numbers, kind="stable")
        self.starts = np.flatnonzero(np.diff(numbers[self.order], prepend=-1))

    def __call__(self, allowed: np.ndarray) -> np.ndarray:
        """From bool (B, N), items, to bool (B, C), candidates.

        Example:
            >>> CandidateMasks(np.array([1, 0, 1]))(np.array([[True, False, False]])).tolist()
            [[False, True]]
        """
        found: np.ndarray = np.logical_or.reduceat(allowed[:, self.order], self.starts, axis=1)
        return found
