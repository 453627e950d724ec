"""Times of examples: of the target, and of the newest item of its history."""

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
