"""Times of a corpus whose source has none, such as the published files: from a csv file that names its examples."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from minionerec.core.errors import DataError, shown
from minionerec.data.chains import chain_examples
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.sources.tables import csv_rows
from minionerec.data.times import NO_TIME

COLUMNS = ("split", "row", "timestamp", "previous_timestamp")
"""Columns of a file of times."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_LARGEST = np.iinfo(np.int64).max


def with_times_of_file(corpus: Corpus, path: Path) -> Corpus:
    """The same corpus with the times of a csv file.

    The file names an example by its split and row, and gives the time of its target and of the newest item of its
    history. An interaction that is both, the target of one example and the newest item of the user's next one, has the
    time that either gives. So the last training examples of users have times where a file names none of the split.

    Args:
        corpus: A corpus without times.
        path: csv file with the columns `COLUMNS`: row counts from 0 in the split's order, times are whole seconds
            since 1970 or empty, other columns are ignored. It names all examples of a split or none.

    Returns:
        The corpus, with times in all splits: `NO_TIME` where the file gives none.

    Raises:
        DataError: Naming file and line of what is wrong with it; if it names no example, or some of a split and not
            all, or gives one interaction two times.
    """
    chains = chain_examples(corpus.splits(), corpus.max_history, corpus.together)
    positions = {split: np.empty(size, dtype=np.int64) for split, size in corpus.sizes.items()}
    for number, split in enumerate(SPLITS):
        targets = np.flatnonzero(chains.splits == number)
        positions[split][chains.rows[targets]] = targets
    firsts = set(chains.offsets[:-1].tolist())
    times, line_of = np.full(len(chains.items), NO_TIME), np.zeros(len(chains.items), dtype=np.int64)
    named = {split: np.zeros(size, dtype=np.int64) for split, size in corpus.sizes.items()}
    for line, split, row, time, previous in _lines(path, corpus.sizes):
        if named[split][row]:
            raise DataError(
                f"{path}, line {line}: example {row} of split {split!r} is already on line {named[split][row]}. "
                "Keep one."
            )
        named[split][row] = line
        position = int(positions[split][row])
        if previous != NO_TIME and position in firsts:
            raise DataError(
                f"{path}, line {line}, column 'previous_timestamp': {previous}, but the history of example {row} of "
                f"split {split!r} is empty. Give the times of this corpus; a time that is not there is an empty cell."
            )
        for index, seconds in ((position, time), (position - 1, previous)):
            if seconds == NO_TIME:
                continue
            if times[index] not in (NO_TIME, seconds):
                raise DataError(
                    f"{path}, line {line}: gives {seconds} as the time of an interaction of example {row} of split "
                    f"{split!r}, which has {times[index]} on line {line_of[index]}. Give the times of this corpus."
                )
            times[index], line_of[index] = seconds, line
    _check_named(path, named)
    timed = replace(chains, times=times)
    train, valid, test = (
        replace(rows, times=timed.split_examples(split, corpus.max_history, corpus.together)[1].times)
        for split, rows in corpus.splits().items()
    )
    return replace(corpus, train=train, valid=valid, test=test)


def _check_named(path: Path, named: dict[str, np.ndarray]) -> None:
    """Check that all examples of each split are named, or none of it, and not none of all splits."""
    counts = {split: int(np.count_nonzero(lines)) for split, lines in named.items()}
    if not any(counts.values()):
        raise DataError(f"{path}: names no example. Give the times of this corpus.")
    for split, count in counts.items():
        if 0 < count < len(named[split]):
            raise DataError(
                f"{path}: names {count} of the {len(named[split])} examples of split {split!r}. Give the times of this "
                "corpus; those that are not known are empty cells."
            )


def _lines(path: Path, sizes: dict[str, int]) -> Iterator[tuple[int, str, int, int, int]]:
    """Line, split, row, time and previous time of each line; of a time that is not known `NO_TIME`."""
    for line, (split, *cells) in csv_rows(path, COLUMNS):
        where = f"{path}, line {line}"
        if split not in SPLITS:
            raise DataError(f"{where}, column 'split': {shown(split)} is none of {', '.join(SPLITS)}. Mend the line.")
        row = _whole(cells[0], where, "row")
        if not 0 <= row < sizes[split]:
            raise DataError(
                f"{where}, column 'row': {row}, but split {split!r} has examples 0 to {sizes[split] - 1}. Give the "
                "times of this corpus."
            )
        time, previous = (
            _whole(cell, where, column) if cell.strip() else NO_TIME
            for cell, column in zip(cells[1:], COLUMNS[2:], strict=True)
        )
        yield line, split, row, time, previous


def _whole(text: str, where: str, column: str) -> int:
    """A whole number that 64 bits hold and that is not `NO_TIME`."""
    number = int(text) if _WHOLE.fullmatch(text.strip()) else None
    if number is None or abs(number) > _LARGEST:
        raise DataError(f"{where}, column {column!r}: {shown(text)} is no whole number of 64 bits. Mend the line.")
    return number
