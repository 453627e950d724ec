"""The examples of one split: users, histories, targets and times, in a few arrays."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np

from minionerec.core.errors import DataError
from minionerec.data.columns import mapped_parts
from minionerec.data.times import RowTimes

T = TypeVar("T")
_MADE = 1 << 16  # entries of a lazy sequence that are made at a time

Side = Literal["left", "right"]
"""Side of the padding."""


def ranges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """All positions of half-open ranges, one range after another.

    Example:
        >>> ranges(np.array([5, 0]), np.array([7, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    lengths = ends - begins
    positions: np.ndarray = np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    return positions


def padded(
    flat: np.ndarray, begins: np.ndarray, ends: np.ndarray, width: int, padding: Side, shift: int = 0
) -> np.ndarray:
    """Ranges of an array as rows of equal length, padded with 0.

    Args:
        flat: int (M,).
        begins: int64 (R,).
        ends: int64 (R,), each at most `width` beyond its begin.
        width: Length of the rows.
        padding: Side that is filled up.
        shift: Added to the values, so that none is 0: 1 for item indices.

    Returns:
        int32 (R, width).

    Example:
        >>> padded(np.array([4, 5, 6]), np.array([0, 1]), np.array([1, 3]), 3, "left").tolist()
        [[0, 0, 4], [0, 5, 6]]
    """
    rows = np.zeros((len(begins), width), dtype=np.int32)
    lengths = ends - begins
    columns = ranges(np.zeros_like(lengths), lengths)
    before = np.repeat(width - lengths, lengths) if padding == "left" else 0
    rows[np.repeat(np.arange(len(begins)), lengths), columns + before] = flat[ranges(begins, ends)] + shift
    return rows


class LazySequence(Sequence[T]):
    """A sequence whose entries are made on access.

    Args:
        size: Number of entries.
        block: Makes those from one index to before another.

    Example:
        >>> squares = LazySequence(4, lambda start, stop: [i * i for i in range(start, stop)])
        >>> squares[3], squares[1:3], list(squares), len(squares)
        (9, [1, 4], [0, 1, 4, 9], 4)
    """

    def __init__(self, size: int, block: Callable[[int, int], list[T]]):
        self._size, self._block = size, block

    def __len__(self) -> int:
        """Number of entries."""
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        """One entry, or a list of some."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._block(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        found = index + len(self) if index < 0 else int(index)
        if not 0 <= found < len(self):
            raise IndexError(f"index {index} of {len(self)}.")
        return self._block(found, found + 1)[0]

    def __iter__(self) -> Iterator[T]:
        """All entries, some thousands made at a time."""
        starts = range(0, len(self), _MADE)
        return chain.from_iterable(self._block(start, min(start + _MADE, len(self))) for start in starts)

    def tolist(self) -> list[T]:
        """All entries."""
        return self._block(0, len(self))


class ItemEvents(NamedTuple):
    """The events of examples, by the numbers of the corpus's `event_names`.

    Attributes:
        of_items: int16 (M,), the event of each item of `SplitExamples.items`.
        of_targets: int16 (R,), that of each target.
    """

    of_items: np.ndarray
    of_targets: np.ndarray


class StoredCodes(NamedTuple):
    """The codes of a request feature that is a column of the interactions.

    Attributes:
        codes: int16 (R,), number of the value from 1; 0 where it is unknown.
        values: Name of each code from 1.
    """

    codes: np.ndarray
    values: tuple[str, ...]

    def take(self, chosen: np.ndarray | slice) -> "StoredCodes":
        """Some of the codes, by number or by mask, in the order given."""
        return StoredCodes(self.codes[chosen], self.values)


@dataclass(frozen=True)
class SplitExamples:
    """R examples of one split.

    Attributes:
        user_ids: object (U,), str: the users that examples may have; those of several splits may be one array.
        user_numbers: int32 (R,), the index of each example's user in `user_ids`.
        items: int32 (M,), which holds the histories; examples of a user share it.
        begins: int64 (R,): example r's history is `items[begins[r] : ends[r]]`, item indices, oldest first.
        ends: int64 (R,); a history may be empty.
        targets: int32 (R,), item indices.
        times: When targets and the newest items of histories were; None where unknown.
        starts: int64 (R,): `items[starts[r] : ends[r]]` is all that is known of what the user had before, whose newest
            items are the history; None where nothing older is known.
        events: Events of items and targets; None where interactions have no events.
        contexts: Name of each column of the interactions that is a request feature → the codes of the targets.
    """

    user_ids: np.ndarray
    user_numbers: np.ndarray
    items: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    targets: np.ndarray
    times: RowTimes | None = None
    starts: np.ndarray | None = None
    events: ItemEvents | None = None
    contexts: Mapping[str, StoredCodes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        users: Sequence[str],
        histories: Iterable[Sequence[int] | np.ndarray],
        targets: Sequence[int] | np.ndarray,
        times: RowTimes | None = None,
    ) -> "SplitExamples":
        """Examples from R users, R histories and R targets.

        Raises:
            DataError: If their numbers differ.
        """
        parts = [np.asarray(history, dtype=np.int32) for history in histories]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        if not len(users) == len(parts) == len(targets):
            raise DataError(
                f"examples need one of each: got {len(users)} users, {len(parts)} histories, {len(targets)} targets."
            )
        known: dict[str, int] = {}
        numbers = np.array([known.setdefault(user, len(known)) for user in users], dtype=np.int32)
        ends = np.cumsum(lengths)
        flat = np.concatenate([np.zeros(0, np.int32), *parts])
        ids = np.array(list(known), dtype=object)
        return cls(ids, numbers, flat, ends - lengths, ends, np.asarray(targets, dtype=np.int32), times)

    @classmethod
    def none(cls, timed: bool = False) -> "SplitExamples":
        """No example."""
        empty = np.zeros(0, np.int64)
        return cls.of([], [], empty, RowTimes(empty, empty) if timed else None)

    def __len__(self) -> int:
        """Number of examples, R."""
        return len(self.targets)

    def __iter__(self) -> Iterator[tuple[str, np.ndarray, int]]:
        """User, history and target of each example."""
        return zip(self.users.tolist(), self.histories, self.targets.tolist(), strict=True)

    @property
    def users(self) -> np.ndarray:
        """The user of each example: object (R,), str."""
        users: np.ndarray = self.user_ids[self.user_numbers]
        return users

    @property
    def histories(self) -> LazySequence[np.ndarray]:
        """The history of each example: int32 item indices, oldest first."""
        return self._past(self.items, self.begins)

    @property
    def seen(self) -> LazySequence[np.ndarray]:
        """All that the user of each example had before, the history last: int32 item indices, oldest first."""
        return self._past(self.items, self.firsts)

    @property
    def seen_events(self) -> LazySequence[np.ndarray]:
        """The event of each item of `seen`: int16.

        Raises:
            DataError: If interactions have no events.
        """
        return self._past_events(self.firsts)

    @property
    def firsts(self) -> np.ndarray:
        """Where what each user had before begins: int64 (R,), `starts` or else `begins`."""
        return self.begins if self.starts is None else self.starts

    @property
    def history_events(self) -> LazySequence[np.ndarray]:
        """The event of each item of `histories`: int16; see `seen_events`."""
        return self._past_events(self.begins)

    def _past_events(self, begins: np.ndarray) -> LazySequence[np.ndarray]:
        if self.events is None:
            raise DataError("the examples have no events. Prepare the corpus with targets.")
        return self._past(self.events.of_items, begins)

    def _past(self, values: np.ndarray, begins: np.ndarray) -> LazySequence[np.ndarray]:
        def block(start: int, stop: int) -> list[np.ndarray]:
            bounds = zip(begins[start:stop].tolist(), self.ends[start:stop].tolist(), strict=True)
            return [values[begin:end] for begin, end in bounds]

        return LazySequence(len(self), block)

    @property
    def lengths(self) -> np.ndarray:
        """Items in each history: int64 (R,)."""
        lengths: np.ndarray = self.ends - self.begins
        return lengths

    @property
    def newest(self) -> np.ndarray:
        """The newest item of each history: int32 (R,), -1 where it is empty."""
        newest = np.full(len(self), -1, dtype=np.int32)
        some = self.ends > self.begins
        newest[some] = self.items[self.ends[some] - 1]
        return newest

    def flat_histories(self) -> tuple[np.ndarray, np.ndarray]:
        """All histories one after another, int32 (T,), and where each begins and the last ends, int64 (R + 1,)."""
        return self.items[ranges(self.begins, self.ends)], np.concatenate([[0], np.cumsum(self.lengths)])

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """The positions of `items` that are in a history, each once, and their examples: both int64 (P,)."""
        some = np.flatnonzero(self.ends > self.begins)
        changes = np.bincount(self.begins[some], minlength=len(self.items) + 1)
        changes -= np.bincount(self.ends[some], minlength=len(self.items) + 1)
        positions = np.flatnonzero(np.cumsum(changes)[:-1] > 0)
        owners = np.full(len(self.items), -1, dtype=np.int64)
        owners[self.begins[some]] = self.user_numbers[some]
        known = np.maximum.accumulate(np.where(owners >= 0, np.arange(len(owners)), 0))
        return positions, owners[known[positions]]

    def padded(self, width: int, padding: Side) -> np.ndarray:
        """The newest items of each history as models read them: int32 (R, width), items from 1, padded with 0."""
        return padded(self.items, np.maximum(self.begins, self.ends - width), self.ends, width, padding, 1)

    def padded_events(self, width: int, padding: Side) -> np.ndarray:
        """The events of the items of `padded`, from 1: int32 (R, width), 0 at padding and where they are unknown."""
        events = np.full(len(self.items), -1, np.int16) if self.events is None else self.events.of_items
        return padded(events, np.maximum(self.begins, self.ends - width), self.ends, width, padding, 1)

    def take(self, chosen: np.ndarray | slice) -> "SplitExamples":
        """Some of the examples, by number or by mask, in the order given."""
        times = None if self.times is None else RowTimes(self.times.time[chosen], self.times.previous[chosen])
        return replace(
            self,
            user_numbers=self.user_numbers[chosen],
            begins=self.begins[chosen],
            ends=self.ends[chosen],
            targets=self.targets[chosen],
            times=times,
            starts=None if self.starts is None else self.starts[chosen],
            events=None if self.events is None else ItemEvents(self.events.of_items, self.events.of_targets[chosen]),
            contexts={name: stored.take(chosen) for name, stored in self.contexts.items()},
        )

    def compact(self) -> "SplitExamples":
        """The same examples without unused users and items."""
        size = len(self.items) + 1
        used = np.cumsum(np.bincount(self.firsts, minlength=size) - np.bincount(self.ends, minlength=size))[:-1] > 0
        position = np.concatenate([[0], np.cumsum(used)])
        users, numbers = np.unique(self.user_numbers, return_inverse=True)
        return replace(
            self,
            user_ids=self.user_ids[users],
            user_numbers=numbers.astype(np.int32),
            items=self.items[used],
            begins=position[self.begins],
            ends=position[self.ends],
            starts=None if self.starts is None else position[self.starts],
            events=None if self.events is None else ItemEvents(self.events.of_items[used], self.events.of_targets),
        )


_COLUMNS = {"items": "int32", "begins": "int64", "ends": "int64", "targets": "int32"}


def mapped(parts: Iterable[SplitExamples], folder: Path | None) -> SplitExamples:
    """Histories and targets written into files, from which they are mapped, all of one user: no more is stored.

    Args:
        parts: As of `minionerec.data.columns.mapped_parts`.
        folder: As of `minionerec.data.columns.mapped_parts`.
    """

    def columns() -> Iterator[dict[str, np.ndarray]]:
        start = 0
        for rows in parts:
            bounds = {"begins": rows.begins + start, "ends": rows.ends + start}
            start += len(rows.items)
            yield {"items": rows.items, **bounds, "targets": rows.targets}

    found: dict[str, Any] = mapped_parts(folder, _COLUMNS, columns())
    users = np.broadcast_to(np.int32(0), len(found["targets"]))
    return SplitExamples(user_ids=np.array([""], dtype=object), user_numbers=users, **found)


def joined_codes(parts: Sequence[Mapping[str, StoredCodes]]) -> dict[str, StoredCodes]:
    """The codes of all parts, one part after another, of the columns that all parts have."""
    names = [name for name in (parts[0] if parts else ()) if all(name in part for part in parts)]
    return {
        name: StoredCodes(np.concatenate([part[name].codes for part in parts]), parts[0][name].values) for name in names
    }


def joined(parts: Sequence[SplitExamples]) -> SplitExamples:
    """The examples of all parts, one part after another; with times, events and contexts where all parts have them."""
    held = [part.compact() for part in parts]
    known: dict[str, int] = {}
    numbers = [np.array([known.setdefault(user, len(known)) for user in part.user_ids], np.int32) for part in held]
    sizes = np.cumsum([0, *(len(part.items) for part in held)])
    times = [part.times for part in held if part.times is not None]
    columns = [np.concatenate([getattr(one, name) for one in times]) for name in ("time", "previous") if times]
    events = [part.events for part in held if part.events is not None]
    with_events = bool(held) and len(events) == len(held)
    return SplitExamples(
        np.array(list(known), dtype=object),
        np.concatenate([own[part.user_numbers] for own, part in zip(numbers, held, strict=True)]),
        np.concatenate([part.items for part in held]),
        np.concatenate([part.begins + size for part, size in zip(held, sizes, strict=False)]),
        np.concatenate([part.ends + size for part, size in zip(held, sizes, strict=False)]),
        np.concatenate([part.targets for part in held]),
        RowTimes(*columns) if len(times) == len(held) else None,
        np.concatenate([part.firsts + size for part, size in zip(held, sizes, strict=False)]),
        ItemEvents(*(np.concatenate(flat) for flat in zip(*events, strict=True))) if with_events else None,
        joined_codes([part.contexts for part in held]),
    )
