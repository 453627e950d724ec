"""The session context: whether the next item is in the session of the newest one, or in a later one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minionerec.core.log import get_logger
from minionerec.data.times import NO_TIME, RowTimes, row_times

if TYPE_CHECKING:
    from minionerec.data.corpus import Corpus

logger = get_logger(__name__)

UNKNOWN, SAME, LATER = 0, 1, 2
SESSION_CONTEXTS = ("unknown", "same", "later")
"""The values of a session context; models read their indices."""


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


def training_contexts(corpus: "Corpus") -> np.ndarray:
    """The session context of each training example: int8 (R,), indices into `SESSION_CONTEXTS`."""
    found = np.full(corpus.sizes["train"], UNKNOWN, dtype=np.int8)
    for numbers, rows in corpus.batches("train"):
        found[numbers] = row_contexts(rows.times, len(rows))
    return found


def split_contexts(
    data: "Corpus", split: str, count: int, path: str | Path | None = None, *, given: bool = True
) -> np.ndarray:
    """The session contexts of the targets of a split, as a shop knows them that sees a user stay, or come back.

    Args:
        data: A corpus.
        split: "valid" or "test".
        count: Number of its rows, R.
        path: File of times, as of `minionerec.data.times.row_times`.
        given: Whether they are given; if not, all are unknown.

    Returns:
        int8 (R,), indices into `SESSION_CONTEXTS`.

    Raises:
        DataError: As of `minionerec.data.times.row_times`.
    """
    contexts = row_contexts(row_times(data, split, path) if given else None, count)
    known = int((contexts != UNKNOWN).sum())
    logger.info("The session context of %d of %d examples is known.", known, count)
    return contexts


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
    """Warn that a model cannot learn the session context from a corpus without times.

    Args:
        corpus: Path of the corpus, which has no times.
        setting: The setting that asks for it.
        instead: What else may be done than to prepare a corpus with times.
    """
    logger.warning(
        "%s, but %s has no times, so every session context is unknown and the model cannot learn it. Prepare it from a "
        "source with times (of the published data with --times_by_order true), or %s.",
        setting,
        corpus,
        instead,
    )
