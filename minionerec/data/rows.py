"""The rows of one split: users, histories, targets, and when; in a few arrays, however many rows there are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from minionerec.core.errors import DataError
from minionerec.data.times import RowTimes


class Histories(Sequence[np.ndarray]):
    """The histories of rows: int32 arrays of item indices, oldest first, made when asked for.

    Args:
        items: int32 (M,).
        begins: int64 (R,); history r is `items[begins[r] : ends[r]]`.
        ends: int64 (R,).
    """

    def __init__(self, items: np.ndarray, begins: np.ndarray, ends: np.ndarray):
        self._items, self._begins, self._ends = items, begins, ends

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, row: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, row: slice) -> list[np.ndarray]: ...

    def __getitem__(self, row: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        return self._items[self._begins[row] : self._ends[row]]

    def __iter__(self) -> Iterator[np.ndarray]:
        items = self._items
        for begin, end in zip(self._begins.tolist(), self._ends.tolist(), strict=True):
            yield items[begin:end]

    def tolist(self) -> list[np.ndarray]:
        """All of them."""
        return list(self)


@dataclass(frozen=True)
class SplitRows:
    """R rows of one split.

    Attributes:
        user_ids: object (U,), str: the users that rows may have; those of several splits may be one array.
        user_numbers: int32 (R,), the place of each row's user in `user_ids`.
        items: int32 (M,), in which the histories lie; rows of a user share it.
        begins: int64 (R,): row r's history is `items[begins[r] : ends[r]]`, item indices, oldest first.
        ends: int64 (R,); a history may be empty.
        targets: int32 (R,), item indices.
        times: When targets and the newest items of histories were; None where nobody knows.
    """

    user_ids: np.ndarray
    user_numbers: np.ndarray
    items: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    targets: np.ndarray
    times: RowTimes | None = None

    @classmethod
    def of(
        cls,
        users: Sequence[str],
        histories: Iterable[Sequence[int] | np.ndarray],
        targets: Sequence[int] | np.ndarray,
        times: RowTimes | None = None,
    ) -> "SplitRows":
        """Rows from R users, R histories and R targets.

        Raises:
            DataError: If they are not as many.
        """
        parts = [np.asarray(history, dtype=np.int32) for history in histories]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        if not len(users) == len(parts) == len(targets):
            raise DataError(
                f"rows need one of each: got {len(users)} users, {len(parts)} histories, {len(targets)} targets."
            )
        known: dict[str, int] = {}
        numbers = np.array([known.setdefault(user, len(known)) for user in users], dtype=np.int32)
        ends = np.cumsum(lengths)
        flat = np.concatenate([np.zeros(0, np.int32), *parts])
        ids = np.array(list(known), dtype=object)
        return cls(ids, numbers, flat, ends - lengths, ends, np.asarray(targets, dtype=np.int32), times)

    @classmethod
    def none(cls, timed: bool = False) -> "SplitRows":
        """No row."""
        empty = np.zeros(0, np.int64)
        return cls.of([], [], empty, RowTimes(empty, empty) if timed else None)

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.targets)

    def __iter__(self) -> Iterator[tuple[str, np.ndarray, int]]:
        """User, history and target of each row."""
        return zip(self.users.tolist(), self.histories, self.targets.tolist(), strict=True)

    @property
    def users(self) -> np.ndarray:
        """The user of each row: object (R,), str."""
        users: np.ndarray = self.user_ids[self.user_numbers]
        return users

    @property
    def histories(self) -> Histories:
        """The history of each row."""
        return Histories(self.items, self.begins, self.ends)

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
        lengths = self.lengths
        borders = np.concatenate([[0], np.cumsum(lengths)])
        flat: np.ndarray = self.items[np.arange(borders[-1]) + np.repeat(self.begins - borders[:-1], lengths)]
        return flat, borders

    def take(self, chosen: np.ndarray | slice) -> "SplitRows":
        """Some of the rows, by number or by mask, in the order given."""
        times = None if self.times is None else RowTimes(self.times.time[chosen], self.times.previous[chosen])
        return replace(
            self,
            user_numbers=self.user_numbers[chosen],
            begins=self.begins[chosen],
            ends=self.ends[chosen],
            targets=self.targets[chosen],
            times=times,
        )

    def compact(self) -> "SplitRows":
        """The same rows without users and items that are none of theirs."""
        flat, borders = self.flat_histories()
        users, numbers = np.unique(self.user_numbers, return_inverse=True)
        return replace(
            self,
            user_ids=self.user_ids[users],
            user_numbers=numbers.astype(np.int32),
            items=flat,
            begins=borders[:-1],
            ends=borders[1:],
        )

    def with_items(self, items: np.ndarray) -> "SplitRows":
        """The same rows of items with other indices.

        Args:
            items: int (N,), the new index of each item index.
        """
        numbers = items.astype(np.int32)
        return replace(self, items=numbers[self.items], targets=numbers[self.targets])


def joined(parts: Sequence[SplitRows]) -> SplitRows:
    """The rows of all parts, one part after another; with times where all parts have them."""
    held = [part.compact() for part in parts]
    known: dict[str, int] = {}
    numbers = [np.array([known.setdefault(user, len(known)) for user in part.user_ids], np.int32) for part in held]
    sizes = np.cumsum([0, *(len(part.items) for part in held)])
    times = [part.times for part in held if part.times is not None]
    columns = [np.concatenate([getattr(one, name) for one in times]) for name in ("time", "previous") if times]
    return SplitRows(
        np.array(list(known), dtype=object),
        np.concatenate([own[part.user_numbers] for own, part in zip(numbers, held, strict=True)]),
        np.concatenate([part.items for part in held]),
        np.concatenate([part.begins + size for part, size in zip(held, sizes, strict=False)]),
        np.concatenate([part.ends + size for part, size in zip(held, sizes, strict=False)]),
        np.concatenate([part.targets for part in held]),
        RowTimes(*columns) if len(times) == len(held) else None,
    )
