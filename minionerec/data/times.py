"""Times of examples: of the target, and of the newest item of its history."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_TIME = int(np.iinfo(np.int64).min)
"""Value of unknown times."""


@dataclass(frozen=True)
class RowTimes:
    """The times of the examples of one split.

    Attributes:
        time: int64 (R,), seconds since 1970 of each example's target; `NO_TIME` where unknown.
        previous: int64 (R,), of the newest item of its history; `NO_TIME` where unknown or where the history is empty.
    """

    time: np.ndarray
    previous: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Examples of which both times are known: bool (R,)."""
        known: np.ndarray = (self.time != NO_TIME) & (self.previous != NO_TIME)
        return known

    @property
    def later(self) -> np.ndarray:
        """Examples whose target is later than the newest item of the history: bool (R,)."""
        later: np.ndarray = self.known & (self.time > self.previous)
        return later

    @property
    def same(self) -> np.ndarray:
        """Examples whose target is of the same time as the newest item of the history: bool (R,)."""
        same: np.ndarray = self.known & (self.time == self.previous)
        return same


def times_by_order(splits: Sequence[Sequence[str]]) -> list[RowTimes]:
    """Times of rows that come in the order of time, where nothing but their order is known.

    Adjacent rows of one user are taken to have one timestamp, all others different ones.
    So the later is the greater and the same time the same number, and distances mean nothing. Before the first row of
    a user nothing is known.

    Args:
        splits: The user of each row, split after split.

    Returns:
        For each split the times of its rows: the number, from 0 through all splits, of the first row of the same time.

    Example:
        >>> [(times.time.tolist(), times.same.tolist()) for times in times_by_order([["a", "a", "b"], ["a"]])]
        [([0, 0, 2], [False, True, False]), ([3], [False])]
    """
    newest: dict[str, tuple[int, int]] = {}  # of each user: row, and the first row with its timestamp
    row, found = 0, []
    for users in splits:
        time, previous = np.empty(len(users), dtype=np.int64), np.full(len(users), NO_TIME)
        for position, user in enumerate(users):
            last, newest_time = newest.get(user, (-2, NO_TIME))
            time[position] = newest_time if last == row - 1 else row
            previous[position] = newest_time
            newest[user] = (row, int(time[position]))
            row += 1
        found.append(RowTimes(time, previous))
    return found
