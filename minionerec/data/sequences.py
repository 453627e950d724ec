"""Histories and targets as arrays, made once: no Python per row when batches are formed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from minionerec.core.errors import DataError
from minionerec.data.times import RowTimes

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Sequences:
    """All items of each user, oldest first.

    Attributes:
        items: int32 (M,), items 1 to N, user by user.
        offsets: int64 (U + 1,); user u has `items[offsets[u] : offsets[u + 1]]`.
        users: U names.
        catalogue: Columns `item_id`, `title`, `description`; row i is item i + 1.
        counts: What was left out, and sizes.
    """

    items: np.ndarray
    offsets: np.ndarray
    users: Sequence[str]
    catalogue: pd.DataFrame
    counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> np.ndarray:
        """Number of items of each user: int64 (U,)."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Samples:
    """Rows of one split: a history and the item after it.

    Attributes:
        users: int64 (R,), user numbers.
        targets: int64 (R,), items from 1.
        flat: int32 (M,), where the histories lie.
        begins: int64 (R,); row r's whole history is `flat[begins[r] : ends[r]]`.
        ends: int64 (R,).
        max_len: Most items of a history that a model reads, L.
        padding: Side of the padding.
        moments: int8 (R,), what each row asks for, places in `minionerec.data.moments.MOMENTS`; None where no time is
            known.
    """

    users: np.ndarray
    targets: np.ndarray
    flat: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    max_len: int
    padding: Side
    moments: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.targets)

    @cached_property
    def histories(self) -> np.ndarray:
        """The newest items of each history, padded with 0: int32 (R, L)."""
        newest = np.maximum(self.begins, self.ends - self.max_len)
        return padded(self.flat, newest, self.ends, self.max_len, self.padding)

    def take(self, chosen: np.ndarray | slice) -> "Samples":
        """Some of the rows, by number, in the order given."""
        parts = {name: getattr(self, name)[chosen] for name in ("users", "targets", "begins", "ends")}
        return replace(self, **parts, moments=None if self.moments is None else self.moments[chosen])

    def seen(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """All items of the whole histories of some rows: row numbers from 0 within them, and items; both int64 (K,)."""
        begins, ends = self.begins[rows], self.ends[rows]
        return np.repeat(np.arange(len(begins)), ends - begins), self.flat[ranges(begins, ends)].astype(np.int64)


@dataclass(frozen=True)
class Windows:
    """Rows for training at all positions.

    Attributes:
        histories: int32 (W, L), padded with 0.
        targets: int32 (W, L), the item after each position; 0 where there is none, or where it has its loss in another
            window.
        moments: int8 (W, L), what the row of each target asks for, places in `minionerec.data.moments.MOMENTS`, unknown
            where there is no target; None where no time is known.
    """

    histories: np.ndarray
    targets: np.ndarray
    moments: np.ndarray | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        """Number of windows, W."""
        return len(self.histories)


@dataclass(frozen=True)
class Split:
    """Everything that a protocol makes of the data.

    Attributes:
        train: Training rows.
        valid: Validation rows.
        test: Test rows.
        windows: Training targets, once each, in windows; a user's first item is none.
        num_items: Number of items, N.
        user_names: U names; user numbers in the samples are places here.
        catalogue: The items, as in `Sequences`.
        counts: Numbers of rows, and of what was left out; `split` names the rule of the split, for tables.
        times: Split → times of its rows; None where they are unknown.
    """

    train: Samples
    valid: Samples
    test: Samples
    windows: Windows
    num_items: int
    user_names: Sequence[str]
    catalogue: pd.DataFrame
    counts: Mapping[str, Any]
    times: Mapping[str, RowTimes] | None = None

    @property
    def title(self) -> str:
        """The rule of the split, as tables name it, e.g. "last two out"."""
        return str(self.counts["split"])

    def rows(self, name: str) -> Samples:
        """The rows of "train", "valid" or "test".

        Raises:
            DataError: If there is no such split.
        """
        known = {"train": self.train, "valid": self.valid, "test": self.test}
        if name not in known:
            raise DataError(f"unknown split {name!r}; known splits: {', '.join(known)}.")
        return known[name]

    def every_row(self, name: str) -> Samples:
        """`rows`, by the name that a corpus on disk has for it."""
        return self.rows(name)

    def times_of(self, name: str) -> RowTimes | None:
        """The times of the rows of "train", "valid" or "test"; None where they are unknown.

        Raises:
            DataError: If there is no such split.
        """
        self.rows(name)
        return None if self.times is None else self.times[name]

    def users(self, name: str) -> list[str]:
        """The user of each row of a split; "" for one who has no training row."""
        return [self.user_names[user] for user in self.rows(name).users]

    def targets(self, name: str) -> np.ndarray:
        """The target of each row of a split: int32 (R,), item indices from 0."""
        return (self.rows(name).targets - 1).astype(np.int32)

    def histories(self, name: str) -> list[np.ndarray]:
        """The whole history of each row of a split: int32 item indices from 0, oldest first."""
        rows = self.rows(name)
        items = (rows.flat - 1).astype(np.int32)
        return [items[begin:end] for begin, end in zip(rows.begins, rows.ends, strict=True)]

    def popularity(self) -> np.ndarray:
        """How often each item is the target of a training row: int64 (N,)."""
        return np.bincount(self.train.targets - 1, minlength=self.num_items)


def ranges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """All places of half-open ranges, one range after another.

    Example:
        >>> ranges(np.array([5, 0]), np.array([7, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    lengths = ends - begins
    places: np.ndarray = np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    return places


def padded(flat: np.ndarray, begins: np.ndarray, ends: np.ndarray, width: int, padding: Side) -> np.ndarray:
    """Ranges of an array as rows of equal width, filled up with 0.

    Args:
        flat: int (M,).
        begins: int64 (R,).
        ends: int64 (R,), each at most `width` beyond its begin.
        width: Width of the rows.
        padding: Side that is filled up.

    Returns:
        int32 (R, width).

    Example:
        >>> padded(np.array([4, 5, 6]), np.array([0, 1]), np.array([1, 3]), 3, "left").tolist()
        [[0, 0, 4], [0, 5, 6]]
    """
    rows = np.zeros((len(begins), width), dtype=np.int32)
    lengths = ends - begins
    columns = ranges(np.zeros_like(lengths), lengths)
    shift = np.repeat(width - lengths, lengths) if padding == "left" else 0
    rows[np.repeat(np.arange(len(begins)), lengths), columns + shift] = flat[ranges(begins, ends)]
    return rows


def cut_windows(
    begins: np.ndarray, ends: np.ndarray, firsts: np.ndarray, max_len: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where windows of at most `max_len` + 1 items begin and end in sequences, and how many of each are only read.

    Args:
        begins: int64 (S,), where the sequences begin.
        ends: int64 (S,), where they end.
        firsts: int64 (S,), how many items of each sequence are only read.
        max_len: Longest history.

    Returns:
        Three times int64 (W,): the first windows of all sequences, then the second ones, and so on.
    """
    size, step = max_len + 1, max(1, max_len // 2)
    begins, firsts = begins + np.maximum(firsts - max_len, 0), np.minimum(firsts, max_len)
    left = ends - begins > firsts
    parts = [np.zeros((0, 3), dtype=np.int64)]
    while left.any():
        begins, ends, firsts = begins[left], ends[left], firsts[left]
        stops = np.minimum(begins + size, ends)
        parts.append(np.stack([begins, stops, firsts], axis=1))
        begins, firsts = begins + step, stops - begins - step
        left = stops < ends
    begins, ends, firsts = np.concatenate(parts).T
    return begins, ends, firsts


def make_windows(
    flat: np.ndarray, begins: np.ndarray, ends: np.ndarray, firsts: np.ndarray, max_len: int, padding: Side
) -> Windows:
    """Training rows with a target at every position, each item from its user's `firsts` on a target exactly once.

    A sequence of at most `max_len` + 1 items is one window. A longer one gives several, which overlap by half, so that
    a target sees at least half of `max_len` items where its user has so many before it.

    Args:
        flat: int32 (M,), items.
        begins: int64 (S,), where the sequences begin.
        ends: int64 (S,), where they end.
        firsts: int64 (S,), how many items of each sequence are only read; at least 1.
        max_len: Longest history.
        padding: Side of the padding.

    Example:
        >>> windows = make_windows(np.arange(1, 6), np.array([0]), np.array([5]), np.array([1]), 2, "right")
        >>> windows.histories.tolist(), windows.targets.tolist()
        ([[1, 2], [2, 3], [3, 4]], [[2, 3], [0, 4], [0, 5]])
    """
    begins, ends, firsts = cut_windows(begins, ends, firsts, max_len)
    lengths = ends - 1 - begins
    targets = padded(flat, begins + 1, ends, max_len, padding)
    place = np.arange(max_len) - (max_len - lengths if padding == "left" else 0 * lengths)[:, None]
    targets[place < firsts[:, None] - 1] = 0
    return Windows(padded(flat, begins, ends - 1, max_len, padding), targets)


def sequences_from_source(source: Any) -> Sequences:
    """Interactions in the order of a source as sequences of users.

    Args:
        source: `minionerec.data.source.Source`, its interactions of each user in time order.
    """
    order = np.argsort(source.users, kind="stable")
    lengths = np.bincount(source.users, minlength=len(source.user_ids))
    return Sequences(
        items=(source.item_index[order] + 1).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        users=[str(user) for user in source.user_ids.to_pylist()],
        catalogue=source.items,
        counts={"users": len(lengths), "items": len(source.items), "interactions": len(order)},
    )
