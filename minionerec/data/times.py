"""Times of examples: of the target, and of the newest item of its history."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minionerec.core.errors import DataError, shown
from minionerec.core.log import get_logger
from minionerec.data.files import csv_rows

if TYPE_CHECKING:
    from minionerec.data.corpus import Corpus
    from minionerec.data.rows import SplitExamples

logger = get_logger(__name__)

NO_TIME = int(np.iinfo(np.int64).min)
"""Value of unknown times."""
FILE_COLUMNS = ("split", "row", "timestamp", "previous_timestamp")
"""Columns of a file of times."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class RowTimes:
    """The times of the examples of one split.

    Attributes:
        time: int64 (R,), seconds since 1970 of each example's target; `NO_TIME` where unknown.
        previous: int64 (R,), of the newest item of its history; `NO_TIME` where unknown or where the history is empty.
    """

    time: np.ndarray
    previous: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Examples of which both times are known: bool (R,)."""
        known: np.ndarray = (self.time != NO_TIME) & (self.previous != NO_TIME)
        return known

    @property
    def later(self) -> np.ndarray:
        """Examples whose target is later than the newest item of the history: bool (R,)."""
        later: np.ndarray = self.known & (self.time > self.previous)
        return later

    @property
    def same(self) -> np.ndarray:
        """Examples whose target is of the same time as the newest item of the history: bool (R,)."""
        same: np.ndarray = self.known & (self.time == self.previous)
        return same


def timed_examples(data: "Corpus", split: str, path: str | Path | None = None) -> "SplitExamples":
    """The examples of a split, with their times.

    Args:
        data: A corpus. Where it has times, these are taken.
        split: "train", "valid" or "test".
        path: csv file with the columns `FILE_COLUMNS`: row counts from 0 in the split's order, times are whole seconds
            since 1970 or empty, other columns are ignored. It is read where the data have no times.

    Returns:
        The examples, without times where neither the data nor the file know those of any.

    Raises:
        DataError: Naming file and line of what is wrong with the file; if it names some examples of the split and not
        all.
    """
    rows = data.rows(split)
    if data.has_times:
        if path is not None:
            logger.info("The corpus has times of its own: %s is not read.", path)
        return rows
    return replace(rows, times=None if path is None else _read_file(Path(path), split, len(rows)))


def _read_file(path: Path, split: str, count: int) -> RowTimes | None:
    """The times of one split of `count` examples, from a file that may name other splits, too."""
    found = RowTimes(np.full(count, NO_TIME), np.full(count, NO_TIME))
    lines: dict[int, int] = {}
    for line, (name, *cells) in csv_rows(path, FILE_COLUMNS, "Give the path of the times."):
        where = f"{path}, line {line}"
        if name not in ("train", "valid", "test"):
            raise DataError(f"{where}, column 'split': {shown(name)} is none of train, valid, test. Mend the line.")
        if name != split:
            continue
        row = _whole(cells[0], where, "row")
        if not 0 <= row < count:
            raise DataError(
                f"{where}, column 'row': {row}, but split {split!r} has examples 0 to {count - 1}. Give the times of "
                "this corpus."
            )
        if row in lines:
            raise DataError(f"{where}: example {row} of split {split!r} is already on line {lines[row]}. Keep one.")
        lines[row] = line
        found.time[row], found.previous[row] = (
            _whole(cell, where, column) if cell.strip() else NO_TIME
            for cell, column in zip(cells[1:], FILE_COLUMNS[2:], strict=True)
        )
    if not lines:
        return None
    if len(lines) < count:
        raise DataError(
            f"{path}: names {len(lines)} of the {count} examples of split {split!r}. Give the times of this corpus; "
            "those that are not known are empty cells."
        )
    return found


def _whole(text: str, where: str, column: str) -> int:
    """A whole number that 64 bits hold and that is not `NO_TIME`."""
    number = int(text) if _WHOLE.fullmatch(text.strip()) else None
    if number is None or abs(number) > _LARGEST:
        raise DataError(f"{where}, column {column!r}: {shown(text)} is no whole number of 64 bits. Mend the line.")
    return number
