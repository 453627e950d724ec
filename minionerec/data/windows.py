"""The rows of a corpus as windows of consecutive items, for training at all positions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitRows
from minionerec.data.sequences import cut_windows, ranges

logger = get_logger(__name__)

_CROPPED = 0.5  # share of variants that lose their oldest items
_PART = 1 << 20  # rows that are compared at a time
_LEFT_OUT = 0.25  # chance of any other item to be left out
_CHUNK = 1 << 20  # rows


@dataclass(frozen=True)
class Window:
    """Consecutive items of one user, and from which item on there is a loss.

    Attributes:
        items: int32 (n,), oldest first.
        first_target: Index in `items` of the first item that is a target here; the earlier ones are only read.
        rows: int64 (n,), the row of the split whose target each item is; -1 for items that are no row's.
        together: Whether earlier items may be of one moment, so that only its own targets may ever be targets.
    """

    items: np.ndarray
    first_target: int
    rows: np.ndarray
    together: bool = False


@dataclass(frozen=True)
class FlatWindows:
    """W windows (`minionerec.data.windows.Window`) in a few arrays.

    Attributes:
        items: int32 (M,), item indices, oldest first; windows of one sequence share them.
        rows: int64 (M,), the row whose target each item is; -1 for items that are no row's.
        begins: int64 (W,): window w is `items[begins[w] : ends[w]]`.
        ends: int64 (W,).
        firsts: int64 (W,), how many items of each window are only read.
    """

    items: np.ndarray
    rows: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    firsts: np.ndarray

    def __len__(self) -> int:
        """Number of windows, W."""
        return len(self.begins)

    @classmethod
    def of(cls, windows: Sequence[Window]) -> "FlatWindows":
        """From windows one by one."""
        items = np.concatenate([np.zeros(0, np.int32), *(window.items for window in windows)])
        rows = np.concatenate([np.zeros(0, np.int64), *(window.rows for window in windows)])
        sizes = np.array([len(window.items) for window in windows], dtype=np.int64)
        firsts = np.array([window.first_target for window in windows], dtype=np.int64)
        ends = np.cumsum(sizes)
        return cls(items, rows, ends - sizes, ends, firsts)

    def take(self, chosen: np.ndarray) -> "FlatWindows":
        """Some of the windows, by number, in the order given."""
        return FlatWindows(self.items, self.rows, self.begins[chosen], self.ends[chosen], self.firsts[chosen])

    def each(self, together: bool) -> Iterator[Window]:
        """The windows one by one; `together` as they have it."""
        for begin, end, first in zip(self.begins.tolist(), self.ends.tolist(), self.firsts.tolist(), strict=True):
            yield Window(self.items[begin:end], first, self.rows[begin:end], together)


def user_windows(corpus: Corpus, split: str = "train") -> list[Window]:
    """The rows of one split as windows of at most `max_history` + 1 items, each row's target a target exactly once.

    A user's rows are joined where each history continues the row before. The first window begins with the user's
    first item; where a user has more items, later windows overlap by half a history, so that a target never sees less
    than half of `max_history` items that its row has. With at most `max_history` + 1 items a user is one window, and
    every target sees exactly the history of its row.

    Where items of one moment are one step (`Corpus.together`), rows of one step share their history and do not continue
    one another: all but one begin a window of their own, and so does the row of the next step.

    Returns:
        Windows in the order of each user's first row.
    """
    rows = corpus.rows(split)
    found, sequences = row_windows(rows, corpus.max_history)
    if corpus.together:
        logger.info(
            "Items of one moment are not in each other's history: %s of %s %s rows begin a window in which the user's "
            "row before is no target.",
            f"{sequences - len(np.unique(rows.user_numbers)):,}",
            f"{len(rows):,}",
            split,
        )
    return list(found.each(corpus.together))


def row_windows(rows: SplitRows, max_history: int) -> tuple[FlatWindows, int]:
    """The windows of `user_windows`, in a few arrays, and how many sequences the rows make."""
    _, firsts, users = np.unique(rows.user_numbers, return_index=True, return_inverse=True)
    order = np.argsort(firsts[users], kind="stable")  # user by user, in the order of their first rows
    heads = np.flatnonzero(~_continued(rows, order, max_history))
    read = rows.lengths[order[heads]]
    sizes = np.diff(np.append(heads, len(order)))  # rows of each sequence
    stops = np.cumsum(read + sizes)
    begins = stops - read - sizes
    items, numbers = np.empty(int(stops[-1]), np.int32), np.full(int(stops[-1]), -1, np.int64)
    items[ranges(begins, begins + read)] = rows.items[ranges(rows.begins[order[heads]], rows.ends[order[heads]])]
    places = ranges(begins + read, stops)
    items[places], numbers[places] = rows.targets[order], order
    cut = cut_windows(begins, stops, read, max_history)
    return FlatWindows(items, numbers, *cut).take(np.argsort(cut[0], kind="stable")), len(heads)


def _continued(rows: SplitRows, order: np.ndarray, max_history: int) -> np.ndarray:
    """Which rows, in an order, have the history of the row before and its target as theirs: bool (R,)."""
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


def varied_windows(windows: Sequence[Window], count: int, seed: int) -> list[Window]:
    """Variants of windows: half of them lose their oldest items, and each item but the last is left out by chance.

    They are histories that nobody has, but somebody might (crop and mask of Xie et al., "Contrastive Learning for
    Sequential Recommendation", 2022, section 3.2). Every item but the first is a target; where items of one moment are
    one step, only those that are targets of the window and have an item before them. Windows of two items have no
    variant but themselves, and those of one item none.

    Args:
        windows: Windows, which need no targets of their own.
        count: Variants of each.
        seed: Seed of chance.
    """
    rng = np.random.default_rng(seed)
    varied = []
    for window in windows:
        size = len(window.items)
        for _ in range(count if size > 1 else 0):
            kept = rng.random(size) >= _LEFT_OUT
            kept[: rng.integers(size - 1) if rng.random() < _CROPPED else 0] = False
            kept[-1] = True
            if kept.sum() < 2:
                kept[-2] = True
            first = max(1, int(kept[: window.first_target].sum())) if window.together else 1
            varied.append(Window(window.items[kept], first, window.rows[kept], window.together))
    return varied


class Recency:
    """How much training rows weigh by their age, of mean 1, known from their numbers alone.

    A row weighs exp(-recency · age), where its age is the share of the rows after it. Only a split by global time has
    its rows in the order of time; with any other all rows weigh 1.

    Args:
        split: Name of the split.
        count: Number of all training rows, R.
        recency: How fast weights fall.
    """

    def __init__(self, split: str, count: int, recency: float):
        self._ages = recency_of(split, count, recency)
        chunks = (np.arange(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))
        self.mean = sum(float(self._ages(chunk).sum(dtype=np.float64)) for chunk in chunks) / max(1, count)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Weights of rows, by their numbers from 0: float32."""
        return self._ages(rows) / np.float32(self.mean)


def recency_weights(corpus: Corpus, recency: float) -> np.ndarray:
    """How much each training row weighs: exp(-recency · age), where a row's age is the share of the rows after it.

    Only a split by global time has its rows in the order of time; with any other all rows weigh 1.

    Returns:
        float32 (R,), at most 1.
    """
    count = len(corpus.rows("train"))
    return recency_of(corpus.split, count, recency)(np.arange(count))


def recency_of(split: str, count: int, recency: float) -> Callable[[np.ndarray], np.ndarray]:
    """What gives the weights of training rows by their numbers; see `recency_weights`.

    Args:
        split: Name of the split.
        count: Number of training rows.
        recency: How fast weights fall.
    """
    if recency and "global time" not in split:
        logger.info("The split is %s: its rows are not in order of time, so all targets weigh alike.", split)
        recency = 0.0
    return lambda rows: np.exp(-recency * (1 - (rows + 1) / count)).astype(np.float32)
