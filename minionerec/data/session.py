"""The session context: whether the next item is in the session of the newest one, or in a later one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from minionerec.core.log import get_logger
from minionerec.data.contexts import LATER, SAME, UNKNOWN
from minionerec.data.names import SPLITS
from minionerec.data.times import NO_TIME, RowTimes
from minionerec.data.units import unit_numbers

if TYPE_CHECKING:
    from minionerec.data.corpus import Corpus

logger = get_logger(__name__)


def row_contexts(times: RowTimes | None, count: int) -> np.ndarray:
    """The session context of each of R rows, by its times: int8 (R,), indices into `SESSION_CONTEXTS`.

    Args:
        times: The rows' times; None where nothing is known.
        count: Number of rows, R.

    Example:
        >>> times = RowTimes(np.array([5, 7, NO_TIME]), np.array([5, 5, 5]))
        >>> row_contexts(times, 3).tolist()
        [1, 2, 0]
    """
    found = np.full(count, UNKNOWN, dtype=np.int8)
    if times is not None:
        found[times.same] = SAME
        found[times.later] = LATER
    return found


def corpus_contexts(corpus: "Corpus", split: str = "train") -> np.ndarray:
    """The session context of each example of a split.

    Args:
        corpus: A corpus; of a large one the examples are read a part at a time.
        split: Name of the split.

    Returns:
        int8 (R,), indices into `SESSION_CONTEXTS`.
    """
    found = np.full(corpus.sizes[split], UNKNOWN, dtype=np.int8)
    for numbers, rows in corpus.batches(split):
        found[numbers] = row_contexts(rows.times, len(rows))
    return found


SESSION_UNITS = {86_400: "day", 3_600: "hour", 60: "minute", 1: "second"}
"""Seconds of the units that a corpus may have its times in, and their names."""


@dataclass(frozen=True)
class SessionClock:
    """Derives the session context of a request from times, as `row_contexts` does for the examples of a corpus.

    Examples have one time, and so the context "same", where their times are equal. Where a corpus has whole days, the
    times of requests have hours: they are compared by the unit of the corpus.

    Attributes:
        seconds: Length of the unit, a key of `SESSION_UNITS`: the largest that all times of the corpus are whole
            multiples of, from `start` on.
        start: Seconds since 1970 at which one of the units begins, such as midnight in the zone of the corpus.
        together: Whether items of one time are one step of the corpus, so that all of its examples are later ones.
    """

    seconds: int
    start: int = 0
    together: bool = False

    @classmethod
    def of(cls, corpus: "Corpus") -> "SessionClock | None":
        """The clock of a corpus; None where it has no times, or its times are a mere order."""
        start, newest, step = 0, NO_TIME, -1
        for split in SPLITS if corpus.has_times else ():
            for _, rows in corpus.batches(split):
                if rows.times is None:
                    continue
                times = np.concatenate([rows.times.time, rows.times.previous])
                times = times[times != NO_TIME]
                if not len(times):
                    continue
                if step < 0:
                    start, step = int(times[0]), 0
                step, newest = int(np.gcd.reduce(times - start, initial=step)), max(newest, int(times.max()))
        if unit_numbers(np.array(newest)) != 0:
            return None
        seconds = next(seconds for seconds in SESSION_UNITS if step % seconds == 0)
        return cls(seconds, start % seconds, corpus.together)

    @property
    def unit(self) -> str:
        """Name of the unit."""
        return SESSION_UNITS[self.seconds]

    def context(self, newest: int, now: int) -> int:
        """The session context of a request, an index into `SESSION_CONTEXTS`.

        Args:
            newest: Time of the history's newest item, seconds since 1970.
            now: Time of the request, not earlier.

        Example:
            >>> SessionClock(86_400).context(1_541_376_000, 1_541_376_000 + 86_399)
            1
            >>> SessionClock(86_400).context(1_541_376_000 + 86_399, 1_541_376_000 + 86_400)
            2
        """
        units = [(time - self.start) // self.seconds for time in (newest, now)]
        return LATER if self.together or units[1] > units[0] else SAME


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


def warn_without_times(
    corpus: object, setting: str = "session_context is true", instead: str = "leave session_context out"
) -> None:
    """Warn that a model cannot learn the session context, of which no training example tells it.

    Args:
        corpus: Path of the corpus, which has no times of training examples.
        setting: The setting that asks for it.
        instead: What else may be done than to prepare a corpus with times.
    """
    logger.warning(
        "%s, but %s has no times of training examples, so the session context of each is unknown and the model cannot "
        "learn it. Prepare it from a source with times (of the published data with --times_by_order true), or %s.",
        setting,
        corpus,
        instead,
    )
