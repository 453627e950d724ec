"""Examples as windows of consecutive items, for training at all positions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minionerec.core.log import get_logger
from minionerec.data.columns import mapped_parts
from minionerec.data.rows import Side, SplitExamples, padded, ranges

logger = get_logger(__name__)

_CROPPED = 0.5  # share of variants that lose their oldest items
_PART = 1 << 20  # examples that are compared at a time
_LEFT_OUT = 0.25  # chance of any other item to be left out
_CHUNK = 1 << 22  # examples


@dataclass(frozen=True)
class FlatWindows:
    """W windows: consecutive items of one user each, and the item from which on there is a loss.

    Attributes:
        items: int32 (M,), item indices, oldest first; windows of one sequence share them.
        rows: int64 (M,), the example of the split whose target each item is; -1 for items that are no example's.
        begins: int64 (W,): window w is `items[begins[w] : ends[w]]`.
        ends: int64 (W,).
        firsts: int64 (W,), how many items of each window are only read.
        events: int16 (M,), the event of each item (`minionerec.data.rows.ItemEvents`); None where there are none.
    """

    items: np.ndarray
    rows: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    firsts: np.ndarray
    events: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of windows, W."""
        return len(self.begins)

    def take(self, chosen: np.ndarray | slice) -> "FlatWindows":
        """Some of the windows, by number, in the order given."""
        return replace(self, begins=self.begins[chosen], ends=self.ends[chosen], firsts=self.firsts[chosen])


def window_bounds(
    begins: np.ndarray, ends: np.ndarray, firsts: np.ndarray, max_len: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bounds of windows of at most `max_len` + 1 items in sequences, and how many items of each have no loss.

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


Windows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Windows as models read them, int32 (W, L) each: histories, items from 1, padded with 0; targets, the item after each
position, 0 where there is none, or where it has its loss in another window; and the number of the example whose target
that is, -1 where there is no target, or no example is known."""


def padded_windows(found: FlatWindows, width: int, padding: Side) -> Windows:
    """Windows as rows of equal length, each split to fit (`window_bounds`), items from 1.

    Args:
        found: The windows.
        width: Longest history, L.
        padding: Side of the padding.

    Example:
        >>> one, none = np.array([0]), np.full(5, -1)
        >>> found = padded_windows(FlatWindows(np.arange(5), none, one, one + 5, one + 1), 2, "right")
        >>> found[0].tolist(), found[1].tolist()
        ([[1, 2], [2, 3], [3, 4]], [[2, 3], [0, 4], [0, 5]])
    """
    begins, ends, firsts = window_bounds(found.begins, found.ends, np.maximum(found.firsts, 1), width)
    lengths = ends - 1 - begins
    position = np.arange(width) - (width - lengths if padding == "left" else 0 * lengths)[:, None]
    only_read = position < firsts[:, None] - 1
    targets, numbers = (padded(values, begins + 1, ends, width, padding, 1) for values in (found.items, found.rows))
    targets[only_read], numbers[only_read] = 0, 0
    return padded(found.items, begins, ends - 1, width, padding, 1), targets, numbers - 1


def padded_events(found: FlatWindows, width: int, padding: Side) -> np.ndarray:
    """Events of the histories of `padded_windows`, from 1: int32 (W, L), 0 at padding and where they are unknown."""
    begins, ends, _ = window_bounds(found.begins, found.ends, np.maximum(found.firsts, 1), width)
    events = np.full(len(found.items), -1, np.int16) if found.events is None else found.events
    return padded(events, begins, ends - 1, width, padding, 1)


def mapped_windows(parts: Iterable[FlatWindows], folder: Path | None, width: int, padding: Side) -> Windows:
    """Windows padded into files (`padded_windows`), from which they are mapped.

    Args:
        parts: As of `minionerec.data.columns.mapped_parts`.
        folder: As of `minionerec.data.columns.mapped_parts`.
        width: Longest history, L.
        padding: Side of the padding.
    """
    names = ("histories", "targets", "rows")
    columns = (dict(zip(names, padded_windows(found, width, padding), strict=True)) for found in parts)
    mapped = mapped_parts(folder, dict.fromkeys(names, "int32"), columns)
    histories, targets, rows = (mapped[name].reshape(-1, width) for name in names)
    return histories, targets, rows


def row_windows(rows: SplitExamples, max_history: int) -> tuple[FlatWindows, int]:
    """Examples of one split as windows of at most `max_history` + 1 items, each target exactly once.

    A user's examples are joined where each history continues the example before. The first window begins with the
    user's first item; where a user has more items, later windows overlap by half a history, so that a target never sees
    less than half of `max_history` items that its example has. With at most `max_history` + 1 items a user is one
    window, and every target sees exactly the history of its example.

    Where items with one timestamp are one step, examples of one step share their history and do not continue one
    another:
    all but one begin a window of their own, and so does the example of the next step.

    Returns:
        Windows in the order of each user's first example, and how many sequences the examples make.
    """
    if not len(rows):
        none = np.zeros(0, np.int64)
        return FlatWindows(none.astype(np.int32), none, none, none, none), 0
    _, firsts, users = np.unique(rows.user_numbers, return_index=True, return_inverse=True)
    order = np.argsort(firsts[users], kind="stable")  # user by user, in the order of their first examples
    heads = np.flatnonzero(~_continued(rows, order, max_history))
    read = rows.lengths[order[heads]]
    sizes = np.diff(np.append(heads, len(order)))  # examples of each sequence
    stops = np.cumsum(read + sizes)
    begins = stops - read - sizes
    items, numbers = np.empty(int(stops[-1]), np.int32), np.full(int(stops[-1]), -1, np.int64)
    items[ranges(begins, begins + read)] = rows.items[ranges(rows.begins[order[heads]], rows.ends[order[heads]])]
    positions = ranges(begins + read, stops)
    items[positions], numbers[positions] = rows.targets[order], order
    events = None
    if rows.events is not None:
        events = np.empty(len(items), np.int16)
        history = ranges(rows.begins[order[heads]], rows.ends[order[heads]])
        events[ranges(begins, begins + read)] = rows.events.of_items[history]
        events[positions] = rows.events.of_targets[order]
    bounds = window_bounds(begins, stops, read, max_history)
    return FlatWindows(items, numbers, *bounds, events=events).take(np.argsort(bounds[0], kind="stable")), len(heads)


def _continued(rows: SplitExamples, order: np.ndarray, max_history: int) -> np.ndarray:
    """Which examples, in an order, have as history that of the previous one and its target: bool (R,)."""
    before, after = order[:-1], order[1:]
    lengths = rows.lengths
    fits = (rows.user_numbers[before] == rows.user_numbers[after]) & (lengths[after] > 0)
    fits &= lengths[after] == np.minimum(lengths[before] + 1, max_history)
    fits &= rows.newest[after] == rows.targets[before]
    for start in range(0, len(order), _PART):
        some = np.flatnonzero(fits[start : start + _PART]) + start
        shared = lengths[after[some]] - 1
        here = ranges(rows.begins[after[some]], rows.ends[after[some]] - 1)
        there = ranges(rows.ends[before[some]] - shared, rows.ends[before[some]])
        differ = np.repeat(some, shared)[rows.items[here] != rows.items[there]]
        fits[differ] = False
    return np.append(False, fits)


def varied_windows(windows: FlatWindows, partly_targets: bool, count: int, seed: int | Sequence[int]) -> FlatWindows:
    """Windows, and variants of them: half of these lose their oldest items, and each item but the last may be left out.

    They are histories that no user has, but some could (crop and mask of Xie et al., "Contrastive Learning for
    Sequential Recommendation", 2022, section 3.2). Every item but the first is a target; where a corpus has other items
    too (`Corpus.partly_targets`), only those that are targets of the window and have an item before them. Windows of
    two items have no variant but themselves, and those of one item none.

    Args:
        windows: W windows, which need no targets of their own.
        partly_targets: Whether items after the first may be no targets.
        count: Variants of each.
        seed: Seed of chance.

    Returns:
        The windows, and after them the variants of each.
    """
    rng = np.random.default_rng(seed)
    taken, firsts = [np.zeros(0, np.int64)], []
    for begin, end, first in zip(windows.begins.tolist(), windows.ends.tolist(), windows.firsts.tolist(), strict=True):
        size = end - begin
        for _ in range(count if size > 1 else 0):
            kept = rng.random(size) >= _LEFT_OUT
            kept[: rng.integers(size - 1) if rng.random() < _CROPPED else 0] = False
            kept[-1] = True
            if kept.sum() < 2:
                kept[-2] = True
            firsts.append(max(1, int(kept[:first].sum())) if partly_targets else 1)
            taken.append(begin + np.flatnonzero(kept))
    positions, borders = np.concatenate(taken), len(windows.items) + np.cumsum([len(part) for part in taken])
    return FlatWindows(
        np.concatenate([windows.items, windows.items[positions]]),
        np.concatenate([windows.rows, windows.rows[positions]]),
        np.concatenate([windows.begins, borders[:-1]]),
        np.concatenate([windows.ends, borders[1:]]),
        np.concatenate([windows.firsts, np.array(firsts, np.int64)]),
        None if windows.events is None else np.concatenate([windows.events, windows.events[positions]]),
    )


def recency_weights(split: str, count: int, recency: float) -> Callable[[np.ndarray], np.ndarray]:
    """A function from numbers of training examples to their weights: those of `recency_of`, scaled to mean 1.

    Args:
        split: Name of the split.
        count: Number of all training examples, R.
        recency: How fast weights fall.
    """
    ages = recency_of(split, count, recency)
    starts = range(0, max(1, count), _CHUNK)
    chunks = [np.arange(start, min(start + _CHUNK, max(1, count))) for start in starts]
    mean = np.float32(np.average([ages(chunk).mean() for chunk in chunks], weights=list(map(len, chunks))))
    return lambda rows: ages(rows) / mean


def recency_of(split: str, count: int, recency: float) -> Callable[[np.ndarray], np.ndarray]:
    """A function from numbers of training examples to their weights: exp(-recency · age), float32, at most 1.

    An example's age is the share of the examples after it. Only a split by global time has its examples in the order of
    time; with any other all examples weigh 1.

    Args:
        split: Name of the split.
        count: Number of training examples.
        recency: How fast weights fall.
    """
    if recency and "global time" not in split:
        logger.info("The split is %s: its examples are not in order of time, so all targets have equal weight.", split)
        recency = 0.0
    return lambda rows: np.exp(-recency * (1 - (rows + 1) / count)).astype(np.float32)
