"""Whether the next item comes at the moment of the newest one, or later: what is known when somebody asks."""

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
MOMENTS = ("unknown", "same", "later")
"""What a question may say of its moment; their places are the numbers that models read."""


def row_moments(times: RowTimes | None, count: int) -> np.ndarray:
    """What each of R rows asks for, by its times: int8 (R,), places in `MOMENTS`.

    Args:
        times: The rows' times; None where nothing is known.
        count: Number of rows, R.

    Example:
        >>> times = RowTimes(np.array([5, 7, NO_TIME]), np.array([5, 5, 5]))
        >>> row_moments(times, 3).tolist()
        [1, 2, 0]
    """
    found = np.full(count, UNKNOWN, dtype=np.int8)
    if times is not None:
        found[times.same] = SAME
        found[times.later] = LATER
    return found


def training_moments(corpus: "Corpus") -> np.ndarray:
    """What each training example asks for: int8 (R,), places in `MOMENTS`."""
    found = np.full(corpus.sizes["train"], UNKNOWN, dtype=np.int8)
    for numbers, rows in corpus.batches("train"):
        found[numbers] = row_moments(rows.times, len(rows))
    return found


def told_moments(data: "Corpus", split: str, count: int, path: Path | None = None, *, tell: bool = True) -> np.ndarray:
    """What a model is told of the moments of targets: what a shop knows that sees somebody come back, or stay.

    Args:
        data: A corpus.
        split: "valid" or "test".
        count: Number of its rows, R.
        path: File of times, as of `minionerec.data.times.row_times`.
        tell: Whether anything is told.

    Returns:
        int8 (R,), places in `MOMENTS`.

    Raises:
        DataError: As of `minionerec.data.times.row_times`.
    """
    moments = row_moments(row_times(data, split, path) if tell else None, count)
    told = int((moments != UNKNOWN).sum())
    logger.info("%d of %d rows say whether the target came at a later moment.", told, count)
    return moments


def times_by_order(splits: Sequence[Sequence[str]]) -> list[RowTimes]:
    """Times of rows that come in the order of time, where nothing but their order is known.

    Rows of one user that stand right behind one another are taken to be of one moment, all others of different ones.
    So the later is the greater and the same moment the same number, and distances mean nothing. Before the first row of
    a user nothing is known.

    Args:
        splits: The user of each row, split after split.

    Returns:
        For each split the times of its rows: the number, from 0 through all splits, of the first row of its moment.

    Example:
        >>> [(times.time.tolist(), times.same.tolist()) for times in times_by_order([["a", "a", "b"], ["a"]])]
        [([0, 0, 2], [False, True, False]), ([3], [False])]
    """
    newest: dict[str, tuple[int, int]] = {}  # of each user: row, and the first row of its moment
    row, found = 0, []
    for users in splits:
        time, previous = np.empty(len(users), dtype=np.int64), np.full(len(users), NO_TIME)
        for place, user in enumerate(users):
            last, moment = newest.get(user, (-2, NO_TIME))
            time[place] = moment if last == row - 1 else row
            previous[place] = moment
            newest[user] = (row, int(time[place]))
            row += 1
        found.append(RowTimes(time, previous))
    return found


def warn_untold(corpus: object, asked: str = "moments is true", instead: str = "leave moments out") -> None:
    """Say that a model which is to be told moments learns nothing of them.

    Args:
        corpus: Path of the corpus, which has no times.
        asked: Which setting asks for moments.
        instead: What else may be done than to prepare a corpus with times.
    """
    logger.warning(
        "%s, but %s has no times, so no moment is known and the model learns nothing of them. Prepare it from a source "
        "with times (of the published data with --times_by_order true), or %s.",
        asked,
        corpus,
        instead,
    )
