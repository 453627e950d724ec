"""Rows from time-ordered interactions, and the two ways to split them: pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from minionerec.core.errors import ConfigError

TRAIN, VALID, TEST = 0, 1, 2


def stable_order(values: np.ndarray) -> np.ndarray:
    """Places in the order of their values, equal ones in their own order, as a stable argsort gives them.

    Whole numbers of a range that leaves room carry their place in their low bits and are sorted as one number, which
    numpy does many times faster.

    Args:
        values: int or float (M,).

    Returns:
        int64 (M,).

    Example:
        >>> stable_order(np.array([3, 1, 3, 2])).tolist()
        [1, 3, 0, 2]
    """
    bits = len(values).bit_length()
    if values.dtype.kind != "i" or not len(values):
        return np.argsort(values, kind="stable")
    low, high = int(values.min()), int(values.max())
    if (high - low + 1) << bits >= 1 << 63:
        return np.argsort(values, kind="stable")
    keys = ((values.astype(np.int64) - low) << bits) | np.arange(len(values))
    keys.sort()
    return keys & ((1 << bits) - 1)


@dataclass(frozen=True)
class Rows:
    """One row for each interaction that has an earlier one of the same user: R rows, in the order of their targets.

    Attributes:
        targets: int64 (R,), ascending: place of each row's target among the M interactions.
        by_user: int32 (M,), the items, user by user, each user's in the order in which they were chosen.
        begins: int64 (R,): row r's history is `by_user[begins[r] : ends[r]]`, oldest first: the user's interactions
            before the target, the newest `max_history` of them; its target's item is `by_user[ends[r]]`.
        ends: int64 (R,).
        truncated: Number of rows whose user has more earlier interactions than the history holds.
    """

    targets: np.ndarray
    by_user: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    truncated: int

    @property
    def histories(self) -> list[np.ndarray]:
        """R int32 arrays of items."""
        return [self.by_user[begin:end] for begin, end in zip(self.begins, self.ends, strict=True)]

    def take(self, chosen: np.ndarray) -> "Rows":
        """Some of the rows, by number; `truncated` stays that of all."""
        return Rows(self.targets[chosen], self.by_user, self.begins[chosen], self.ends[chosen], self.truncated)

    def flat_histories(self) -> tuple[np.ndarray, np.ndarray]:
        """All histories in one array, int32 (total,), and where each begins and the last ends, int64 (R + 1,)."""
        lengths = self.ends - self.begins
        borders = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(borders[-1]) + np.repeat(self.begins - borders[:-1], lengths)
        return self.by_user[places], borders


def build_rows(users: np.ndarray, items: np.ndarray, max_history: int) -> Rows:
    """Turn interactions into (history, target) rows; a user with n interactions gives n - 1 rows.

    Args:
        users: int (M,), user of each interaction, in the order in which they happened.
        items: int (M,), item of each interaction.
        max_history: Most items that a history holds.

    Returns:
        The rows, ordered by their target's place.

    Raises:
        ConfigError: If `max_history` is below 1.

    Example:
        >>> rows = build_rows(np.array([0, 1, 0, 0]), np.array([5, 6, 7, 8]), max_history=1)
        >>> rows.targets.tolist(), [history.tolist() for history in rows.histories], rows.truncated
        ([2, 3], [[5], [7]], 1)
    """
    if max_history < 1:
        raise ConfigError(f"max_history is {max_history}; a history holds at least 1 item.")
    order = stable_order(users)
    starts = np.flatnonzero(np.diff(users[order], prepend=-1))
    first = np.repeat(starts, np.diff(np.append(starts, len(users))))  # (M,) where the user's interactions begin
    place = np.arange(len(users))
    has_history = place > first
    ends = place[has_history][stable_order(order[has_history])]
    begins = np.maximum(first[ends], ends - max_history)
    return Rows(
        targets=order[ends],
        by_user=items[order].astype(np.int32),
        begins=begins,
        ends=ends,
        truncated=int((begins > first[ends]).sum()),
    )


def global_time_split(n_rows: int, parts: Sequence[int] = (8, 1, 1)) -> np.ndarray:
    """Cut rows that are already in time order into train, valid and test by position.

    Borders are rounded down, as the published data's are. Users are not kept whole: one may first appear in test.

    Args:
        n_rows: Number of rows, R.
        parts: Proportions of train, valid and test.

    Returns:
        int8 (R,): 0 train, 1 valid, 2 test.

    Example:
        >>> np.bincount(global_time_split(45_324)).tolist()
        [36259, 4532, 4533]
    """
    whole = sum(parts)
    labels = np.full(n_rows, TEST, dtype=np.int8)
    labels[: n_rows * (parts[0] + parts[1]) // whole] = VALID
    labels[: n_rows * parts[0] // whole] = TRAIN
    return labels


def leave_last_out_split(users: np.ndarray) -> np.ndarray:
    """Each user's last row becomes test, the one before it valid, all earlier ones train.

    Args:
        users: int (R,), user of each row, rows in time order.

    Returns:
        int8 (R,): 0 train, 1 valid, 2 test. A user with one row has it in test.

    Example:
        >>> leave_last_out_split(np.array([4, 7, 4, 4])).tolist()
        [0, 2, 1, 2]
    """
    order = stable_order(users)
    sorted_users = users[order]
    last = np.diff(sorted_users, append=-1) != 0
    ends = np.repeat(np.flatnonzero(last), np.diff(np.flatnonzero(last), prepend=-1))  # (R,) user's last place
    from_end = ends - np.arange(len(users))
    labels = np.empty(len(users), dtype=np.int8)
    labels[order] = np.where(from_end == 0, TEST, np.where(from_end == 1, VALID, TRAIN))
    return labels


def row_table(users: Sequence[str], histories: Sequence[np.ndarray], targets: np.ndarray) -> pd.DataFrame:
    """The row table of one split.

    Args:
        users: R users.
        histories: R int32 arrays of item indices, oldest first.
        targets: int32 (R,), item indices.
    """
    column = np.empty(len(histories), dtype=object)
    for place, history in enumerate(histories):  # one by one: numpy would stack histories of equal length
        column[place] = history
    return pd.DataFrame({"user": pd.Series(users, dtype="str"), "history": column, "target": targets})
