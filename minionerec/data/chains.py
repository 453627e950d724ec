"""Users' sequences, the form of a corpus on disk: each example is a position in one, so no item is stored twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from minionerec.core.errors import DataError
from minionerec.data.names import SPLITS
from minionerec.data.rows import ItemEvents, SplitExamples, StoredCodes, joined_codes, ranges
from minionerec.data.times import NO_TIME, RowTimes

NO_INDEX = -1
"""Example and split of a position that is the target of no example."""


@dataclass(frozen=True)
class Chains:
    """C sequences of items, M items together.

    Attributes:
        users: object (C,), str: whose sequence each is.
        offsets: int64 (C + 1,): sequence c is positions `offsets[c]` to `offsets[c + 1] - 1` of the arrays below.
        items: int32 (M,), item indices, oldest first.
        times: int64 (M,), seconds since 1970, `NO_TIME` where unknown; None where no time is known.
        rows: int32 (M,), the number of the example whose target this is; `NO_INDEX` where it is no example's.
        splits: int8 (M,), the index of that example's split in `SPLITS`; `NO_INDEX` where `rows` is.
        events: int16 (M,), number of the event of each item; None where interactions have no events.
        contexts: Name of each column of the interactions that is a request feature → its codes, of M items.
    """

    users: np.ndarray
    offsets: np.ndarray
    items: np.ndarray
    times: np.ndarray | None
    rows: np.ndarray
    splits: np.ndarray
    events: np.ndarray | None = None
    contexts: Mapping[str, StoredCodes] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of sequences, C."""
        return len(self.users)

    @property
    def lengths(self) -> np.ndarray:
        """Items of each sequence: int64 (C,)."""
        return np.diff(self.offsets)

    def split_examples(self, split: str, max_history: int, together: bool) -> tuple[np.ndarray, SplitExamples]:
        """The examples of one split, in the order of their numbers.

        Args:
            split: Its name.
            max_history: Most items that a history holds.
            together: Whether items of one time are one step: then histories end where the target's step begins.

        Returns:
            int64 (R,), the number of each example, ascending; and the examples.
        """
        positions = np.flatnonzero(self.splits == SPLITS.index(split))
        positions = positions[np.argsort(self.rows[positions], kind="stable")]
        owners = np.searchsorted(self.offsets, positions, side="right") - 1
        ends = self._steps()[positions] if together and self.times is not None else positions
        begins = np.maximum(self.offsets[owners], ends - max_history)
        times = None
        if self.times is not None:
            newest = np.full(len(positions), NO_TIME)
            some = ends > begins
            newest[some] = self.times[ends[some] - 1]
            times = RowTimes(self.times[positions], newest)
        targets, starts = self.items[positions].astype(np.int32), self.offsets[owners]
        events = None if self.events is None else ItemEvents(self.events, self.events[positions])
        contexts = {name: stored.take(positions) for name, stored in self.contexts.items()}
        owner = owners.astype(np.int32)
        rows = SplitExamples(self.users, owner, self.items, begins, ends, targets, times, starts, events, contexts)
        return self.rows[positions].astype(np.int64), rows

    def _steps(self) -> np.ndarray:
        """Start of the run of equal times of each position: int64 (M,)."""
        times = np.zeros(len(self.items), np.int64) if self.times is None else self.times
        starts = np.diff(times, prepend=0) != 0
        starts[self.offsets[:-1][self.lengths > 0]] = True
        begins = np.flatnonzero(starts)
        steps: np.ndarray = np.repeat(begins, np.diff(np.append(begins, len(times))))
        return steps

    def take(self, chosen: np.ndarray) -> "Chains":
        """Some of the sequences, by number, in the order given."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[chosen])])
        positions = ranges(self.offsets[:-1][chosen], self.offsets[1:][chosen])
        times = None if self.times is None else self.times[positions]
        events = None if self.events is None else self.events[positions]
        contexts = {name: stored.take(positions) for name, stored in self.contexts.items()}
        parts = (self.items[positions], times, self.rows[positions], self.splits[positions], events, contexts)
        return Chains(self.users[chosen], offsets, *parts)


def concatenated(parts: Sequence[Chains]) -> Chains:
    """The sequences of all parts, one part after another.

    Raises:
        DataError: If some have times, or events, and some have none.
    """
    timed = [part.times for part in parts if part.times is not None]
    events = [part.events for part in parts if part.events is not None]
    if any(some and len(some) < len(parts) for some in (timed, events)):
        raise DataError("some sequences have times or events and some have none.")
    lengths = [np.zeros(1, np.int64), *(part.lengths for part in parts)]
    return Chains(
        np.concatenate([np.zeros(0, object), *(part.users for part in parts)]),
        np.cumsum(np.concatenate(lengths)),
        np.concatenate([np.zeros(0, np.int32), *(part.items for part in parts)]),
        np.concatenate(timed) if timed else None,
        np.concatenate([np.zeros(0, np.int32), *(part.rows for part in parts)]),
        np.concatenate([np.zeros(0, np.int8), *(part.splits for part in parts)]),
        np.concatenate(events) if events else None,
        joined_codes([part.contexts for part in parts]),
    )


class _Open:
    """A sequence that examples are appended to."""

    def __init__(self, history: list[int], newest: int, events: list[int]) -> None:
        self.items, self.rows, self.splits = history, [NO_INDEX] * len(history), [NO_INDEX] * len(history)
        self.events = events
        self.times = [NO_TIME] * len(history)
        if history:
            self.times[-1] = newest
        self.step = len(history)

    def continues(self, history: list[int], time: int, newest: int, limit: int, stepwise: bool) -> int | None:
        """End of an example's history for its target to come next; None where it does not fit."""
        if not history:
            return None
        end = self.step if stepwise and self.rows[-1] != NO_INDEX and time == self.times[-1] else len(self.items)
        whole = len(history) == end or len(history) == limit
        fits = whole and self.items[max(0, end - len(history)) : end] == history and self.times[end - 1] == newest
        return end if fits and (not stepwise or end != len(self.items) or time != self.times[-1]) else None

    def add(self, target: int, time: int, row: int, split: int, end: int, event: int) -> None:
        self.step = end
        self.items.append(target)
        self.events.append(event)
        self.times.append(time)
        self.rows.append(row)
        self.splits.append(split)


def chain_examples(splits: Mapping[str, SplitExamples], max_history: int, together: bool) -> Chains:
    """Join the examples of three splits to users' sequences.

    Where an example's history is the end of the user's newest sequence, as long as a history may be, the target
    is appended to it; else the example begins a sequence of its own, with all that is known of what the user had.
    Codes of request features are those of targets, and unknown of other items.

    Args:
        splits: Split → examples, in the order in which they happened.
        max_history: Most items that a history holds.
        together: Whether examples of one user and time are one step, which share their history.

    Raises:
        DataError: If a history is longer than `max_history`, or a target has the time of its history's newest item
            though both would be one step.
    """
    timed = all(rows.times is not None for rows in splits.values())
    with_events = all(rows.events is not None for rows in splits.values())
    chains: dict[str, list[_Open]] = {}
    for number, split in enumerate(SPLITS):
        rows = splits[split]
        if len(rows) and rows.lengths.max() > max_history:
            raise DataError(
                f"{split} example {int(rows.lengths.argmax())} has a history of {rows.lengths.max()} items; "
                f"max_history is {max_history}. Truncate it to its newest items."
            )
        if together and timed and rows.times is not None and rows.times.same.any():
            raise DataError(
                f"{split} example {int(rows.times.same.argmax())} has a history that ends at the time of its "
                "target, but items with one timestamp are one step here. Leave them "
                "out of the history, or take ties: keep."
            )
        none = np.full(len(rows), NO_TIME)
        times = rows.times if timed and rows.times is not None else RowTimes(none, none)
        timestamps = (times.time.tolist(), times.previous.tolist())
        events = rows.events
        target_events = [NO_INDEX] * len(rows) if events is None else events.of_targets.tolist()
        past_events = rows.seen_events if events is not None else []
        parts = zip(rows.users.tolist(), rows.histories, rows.seen, rows.targets.tolist(), *timestamps, strict=True)
        for row, (user, past, seen, target, time, newest) in enumerate(parts):
            held, history = chains.setdefault(user, []), past.tolist()
            end = held[-1].continues(history, time, newest, max_history, together and timed) if held else None
            if end is None:
                held.append(_Open(seen.tolist(), newest, past_events[row].tolist() if with_events else []))
                end = len(seen)
            held[-1].add(target, time, row, number, end, target_events[row])
    flat = [(user, chain) for user, held in chains.items() for chain in held]
    columns = {
        name: [value for _, chain in flat for value in getattr(chain, name)]
        for name in ("items", "times", "rows", "splits", "events")
    }
    numbers, split_numbers = np.array(columns["rows"], dtype=np.int32), np.array(columns["splits"], dtype=np.int8)
    return Chains(
        np.array([user for user, _ in flat], dtype=object),
        np.cumsum([0, *(len(chain.items) for _, chain in flat)]),
        np.array(columns["items"], dtype=np.int32),
        np.array(columns["times"], dtype=np.int64) if timed else None,
        numbers,
        split_numbers,
        np.array(columns["events"], dtype=np.int16) if with_events else None,
        _codes_by_position([splits[split] for split in SPLITS], numbers, split_numbers),
    )


def _codes_by_position(
    parts: Sequence[SplitExamples], numbers: np.ndarray, splits: np.ndarray
) -> dict[str, StoredCodes]:
    """The codes of positions in sequences by those of their examples, unknown where they are the target of none."""
    starts = np.cumsum([0, *map(len, parts)])
    targets = splits != NO_INDEX
    by_position = {}
    for name, stored in joined_codes([rows.contexts for rows in parts]).items():
        codes = np.zeros(len(numbers), dtype=np.int16)
        codes[targets] = stored.codes[starts[splits[targets]] + numbers[targets]]
        by_position[name] = StoredCodes(codes, stored.values)
    return by_position
