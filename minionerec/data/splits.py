"""Rows from time-ordered interactions, ties among them, and the two ways to split: pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from minionerec.core.errors import ConfigError
from minionerec.data.times import RowTimes

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
class SourceExamples:
    """One row for each interaction that has an earlier one of the same user: R rows, in the order of their targets.

    Attributes:
        targets: int64 (R,), ascending: place of each row's target among the M interactions.
        by_user: int32 (M,), the items, user by user, each user's in the order in which they were chosen.
        places: int64 (R,): row r's target is `by_user[places[r]]`.
        begins: int64 (R,): row r's history is `by_user[begins[r] : ends[r]]`, oldest first: the user's interactions
            before the target, the newest `max_history` of them.
        ends: int64 (R,), the same as `places` unless what was chosen together is one step.
        truncated: Number of rows whose user has more earlier interactions than the history holds.
        offsets: int64 (U + 1,): user u's are `by_user[offsets[u] : offsets[u + 1]]`.
        moments: int64 (M,), the moment of each of `by_user`, None where unknown.
    """

    targets: np.ndarray
    by_user: np.ndarray
    places: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    truncated: int
    offsets: np.ndarray
    moments: np.ndarray | None = None

    @property
    def times(self) -> RowTimes | None:
        """The moments of targets and of the newest items of histories, None where unknown."""
        if self.moments is None:
            return None
        return RowTimes(self.moments[self.places], self.moments[self.ends - 1])

    def take(self, chosen: np.ndarray, users: np.ndarray) -> "SourceExamples":
        """Some of the rows.

        Args:
            chosen: bool (R,).
            users: int (R,), user of each row.
        """
        begins = self.begins[chosen]
        return replace(
            self,
            targets=self.targets[chosen],
            places=self.places[chosen],
            begins=begins,
            ends=self.ends[chosen],
            truncated=int((begins > self.offsets[users[chosen]]).sum()),
        )


def build_rows(
    users: np.ndarray, items: np.ndarray, max_history: int, moments: np.ndarray | None = None, together: bool = False
) -> SourceExamples:
    """Turn interactions into (history, target) rows; a user with n interactions gives n - 1 rows.

    With `together` all that a user chose at one moment is one step: its items have the same history, the user's earlier
    moments, and none is in the history of another. The first step gives no row. A history of more than `max_history`
    items loses its oldest, which may cut a step in two.

    Args:
        users: int (M,), user of each interaction, in the order in which they happened.
        items: int (M,), item of each interaction.
        max_history: Most items that a history holds.
        moments: int64 (M,), when each happened, never falling; None where unknown.
        together: Whether the interactions of one user and moment are one step.

    Returns:
        The rows, ordered by their target's place.

    Raises:
        ConfigError: If `max_history` is below 1, or steps are asked for without moments.

    Example:
        >>> rows = build_rows(np.array([0, 1, 0, 0]), np.array([5, 6, 7, 8]), max_history=1)
        >>> rows.targets.tolist(), rows.by_user.tolist(), rows.begins.tolist(), rows.ends.tolist(), rows.truncated
        ([2, 3], [5, 7, 8, 6], [0, 1], [1, 2], 1)
        >>> rows = build_rows(np.zeros(3, int), np.array([5, 7, 8]), 9, moments=np.array([0, 1, 1]), together=True)
        >>> rows.begins.tolist(), rows.ends.tolist(), rows.by_user[rows.places].tolist()
        ([0, 0], [1, 1], [7, 8])
    """
    if max_history < 1:
        raise ConfigError(f"max_history is {max_history}; a history holds at least 1 item.")
    if together and moments is None:
        raise ConfigError("items of one moment are to be one step, but there are no times. Give times, or ties: keep.")
    order = stable_order(users)
    ordered = None if moments is None else moments[order].astype(np.int64)
    is_first = np.diff(users[order], prepend=-1) != 0
    first = _run_begins(is_first)  # (M,) where the user's interactions begin
    place = np.arange(len(users))
    step = place
    if together and ordered is not None:
        step = _run_begins(is_first | (np.diff(ordered, prepend=0) != 0))
    has_history = step > first
    places = place[has_history][stable_order(order[has_history])]
    ends = step[places]
    begins = np.maximum(first[ends], ends - max_history)
    return SourceExamples(
        targets=order[places],
        by_user=items[order].astype(np.int32),
        places=places,
        begins=begins,
        ends=ends,
        truncated=int((begins > first[ends]).sum()),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(users))]),
        moments=ordered,
    )


def _run_begins(starts: np.ndarray) -> np.ndarray:
    """Where the run of each place begins: int64 (M,), from whether each place begins one, bool (M,)."""
    begins = np.flatnonzero(starts)
    return np.repeat(begins, np.diff(np.append(begins, len(starts))))


def evenly_thinned(labels: np.ndarray, most: int) -> np.ndarray:
    """Which rows stay when valid and test are to have at most `most` rows each, evenly spread over their order.

    Row r of R of a split stays where r · most mod R < most, and is then row r · most // R.

    Args:
        labels: int8 (R,), 0 train, 1 valid, 2 test.
        most: Rows of valid and of test at most; 0 leaves all.

    Returns:
        bool (R,).

    Example:
        >>> evenly_thinned(np.array([0, 0, 0, 2, 2, 2, 2, 2, 1]), 2).tolist()
        [True, True, True, True, False, False, True, False, True]
    """
    stays = np.ones(len(labels), dtype=bool)
    for label in (VALID, TEST):
        rows = np.flatnonzero(labels == label)
        if most and len(rows) > most:
            stays[rows] = np.arange(len(rows)) * most % len(rows) < most
    return stays


def shuffled_ties(users: np.ndarray, moments: np.ndarray, seed: int) -> np.ndarray:
    """An order of interactions in which each user's choices of one moment are shuffled, and nothing else moves.

    Args:
        users: int (M,), user of each interaction, in the order in which they happened.
        moments: int64 (M,), when each happened, never falling.
        seed: Seed of chance.

    Returns:
        int64 (M,): the interaction that goes to each place; one of the same user and moment.

    Example:
        >>> shuffled_ties(np.array([0, 1, 0, 0]), np.array([3, 3, 3, 4]), seed=0).tolist()
        [2, 1, 0, 3]
    """
    order = stable_order(users)
    starts = (np.diff(users[order], prepend=-1) != 0) | (np.diff(moments[order], prepend=0) != 0)
    tied = np.flatnonzero(~starts | ~np.append(starts[1:], True))
    begins = _run_begins(starts)[tied]
    mixed = tied[np.lexsort((np.random.default_rng(seed).random(len(tied)), begins))]
    taken = np.arange(len(users))
    taken[order[tied]] = order[mixed]
    return taken


def global_time_split(n_rows: int, parts: Sequence[int] = (8, 1, 1), moments: np.ndarray | None = None) -> np.ndarray:
    """Cut rows that are already in time order into train, valid and test by position.

    Borders are rounded down, as the published data's are. Users are not kept whole: one may first appear in test.

    Args:
        n_rows: Number of rows, R.
        parts: Proportions of train, valid and test.
        moments: int64 (R,), never falling: where given, a border that would cut a moment in two moves back to the
            beginning of that moment, so that none lies on both sides.

    Returns:
        int8 (R,): 0 train, 1 valid, 2 test.

    Example:
        >>> np.bincount(global_time_split(45_324)).tolist()
        [36259, 4532, 4533]
        >>> global_time_split(5, (3, 1, 1), moments=np.array([1, 2, 3, 3, 4])).tolist()
        [0, 0, 1, 1, 2]
    """
    borders = np.cumsum(parts[:2]) * n_rows // sum(parts)
    if moments is not None and n_rows:
        borders = np.searchsorted(moments, moments[borders])
    labels = np.full(n_rows, TEST, dtype=np.int8)
    labels[: borders[1]] = VALID
    labels[: borders[0]] = TRAIN
    return labels


def leave_last_out_split(users: np.ndarray, moments: np.ndarray | None = None) -> np.ndarray:
    """Each user's last row becomes test, the one before it valid, all earlier ones train.

    Args:
        users: int (R,), user of each row, rows in time order.
        moments: int64 (R,), never falling: where given, all rows of a user's last moment become test, each a row of its
            own, all of the moment before it valid.

    Returns:
        int8 (R,): 0 train, 1 valid, 2 test. A user with one row, or one moment, has it in test.

    Example:
        >>> leave_last_out_split(np.array([4, 7, 4, 4])).tolist()
        [0, 2, 1, 2]
        >>> leave_last_out_split(np.array([4, 4, 4, 4]), moments=np.array([1, 2, 3, 3])).tolist()
        [0, 1, 2, 2]
    """
    order = stable_order(users)
    sorted_users = users[order]
    starts = np.ones(len(users), dtype=bool)
    if moments is not None:
        starts = (np.diff(sorted_users, prepend=-1) != 0) | (np.diff(moments[order], prepend=0) != 0)
    step = np.cumsum(starts)
    last = np.flatnonzero(np.diff(sorted_users, append=-1) != 0)
    from_end = np.repeat(step[last], np.diff(last, prepend=-1)) - step  # (R,) steps to the user's last
    labels = np.empty(len(users), dtype=np.int8)
    labels[order] = np.where(from_end == 0, TEST, np.where(from_end == 1, VALID, TRAIN))
    return labels
