"""Rows of codes in order, by arrays alone: one number a row, and the rows under a prefix."""

from collections.abc import Sequence

import numpy as np

_MOST = 2**62


def row_keys(codes: np.ndarray) -> np.ndarray:
    """One number a row: equal where rows are, and in the order of the rows, level by level; -1 comes first.

    Args:
        codes: int (N, L), at least -1.

    Returns:
        int64 (N,).

    Example:
        >>> row_keys(np.array([[1, 0], [0, 2], [0, -1], [1, 0]])).argsort(kind="stable").tolist()
        [2, 1, 0, 3]
    """
    keys = np.zeros(len(codes), dtype=np.int64)
    below = 1  # all keys so far are
    for column in codes.T:
        width = int(column.max(initial=-1)) + 2
        if below > _MOST // width:
            found, keys = np.unique(keys, return_inverse=True)
            below = len(found)
        keys *= width
        keys += column
        keys += 1
        below *= width
    return keys


def group_sizes(codes: np.ndarray) -> np.ndarray:
    """How many rows each distinct row stands for, in the order of the rows: int64 (G,)."""
    sizes: np.ndarray = np.unique(row_keys(codes), return_counts=True)[1]
    return sizes


class SortedRows:
    """Rows in their order, in which those under a prefix lie side by side.

    Args:
        rows: int32 (G, L), in the order of the rows.
    """

    def __init__(self, rows: np.ndarray):
        self.columns = [np.ascontiguousarray(column) for column in rows.T]

    def span(self, prefix: Sequence[int], first: int = 0, last: int | None = None) -> tuple[int, int]:
        """Places [first, last) of the rows that begin with a prefix.

        Args:
            prefix: Codes of the first levels.
            first: Where to look from.
            last: Where to look to; the end if None.
        """
        last = len(self.columns[0]) if last is None else last
        for level, code in enumerate(prefix):
            first, last = self.below(level, code, first, last)
        return first, last

    def below(self, level: int, code: int, first: int, last: int) -> tuple[int, int]:
        """Places of the rows with a code at a level, among [first, last), which agree in the levels before."""
        column = self.columns[level][first:last]
        wanted = column.dtype.type(code)
        return first + int(column.searchsorted(wanted)), first + int(column.searchsorted(wanted, side="right"))
