"""Candidates of ranked lists: distinct SIDs, behind each of which stand its items; or the items themselves."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np


def ranked_items(numbers: np.ndarray, popularity: np.ndarray) -> list[list[int]]:
    """Items behind each candidate, the more popular first, then the lower item index.

    Args:
        numbers: int64 (N,), candidate of each item: `SidTable.sid_numbers`.
        popularity: int64 (N,), how often each item is a training target.

    Returns:
        One list for each candidate.

    Example:
        >>> ranked_items(np.array([0, 1, 1]), np.array([5, 2, 3]))
        [[0], [2, 1]]
    """
    lists: list[list[int]] = [[] for _ in range(int(numbers.max()) + 1)]
    for item in np.lexsort((np.arange(len(numbers)), -popularity)):
        lists[numbers[item]].append(int(item))
    return lists


def list_items(
    candidates: Iterable[int], behind: Sequence[Sequence[int]], k: int, without: Collection[int] = ()
) -> tuple[list[int], list[int]]:
    """The items of the first `k` candidates that have any left.

    Args:
        candidates: Candidates, best first.
        behind: Items of each candidate, best first.
        k: How many candidates are listed.
        without: Items that must not be listed.

    Returns:
        The items, and for each the place of its candidate among the candidates given.

    Example:
        >>> list_items([1, 0], [[0], [2, 1]], 2, {2})
        ([1, 0], [0, 1])
    """
    items: list[int] = []
    places: list[int] = []
    listed = 0
    for place, candidate in enumerate(candidates):
        if listed == k:
            break
        left = [item for item in behind[candidate] if item not in without]
        items += left
        places += [place] * len(left)
        listed += bool(left)
    return items, places


def left_out(without: Sequence[Collection[int]] | None, rows: int) -> list[frozenset[int]]:
    """The items that must not be listed, row by row: empty sets where nothing is said."""
    if without is None:
        return [frozenset()] * rows
    return [frozenset(int(item) for item in items) for items in without]
