"""A file of histories, read some rows at a time."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.errors import DataError, shown
from minionerec.data.files import parse_json, repeated_keys
from minionerec.data.moments import MOMENTS

COLUMNS = ("history", "user", "only", "without", "moment")
KINDS = (".parquet", ".jsonl")


def read_histories(path: Path, rows_at_once: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Rows of a file of histories, in parts.

    Args:
        path: parquet, or one JSON object a line.
        rows_at_once: Rows of a part.

    Yields:
        The number of its first row, from 0, and the rows: "history" is a list of texts, "user" a text (its number where
        there is none), "only" a list or None, "without" a list, "moment" one of `MOMENTS` or None.

    Raises:
        DataError: If the file cannot be read, or a row is not what it should be; the message names file and row.
    """
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        raise DataError(f"{path}: unknown kind of file {suffix!r}; known: {', '.join(KINDS)}. Convert it.")
    start = 0
    for part in (_parquet_parts if suffix == ".parquet" else _line_parts)(path, rows_at_once):
        yield start, [_checked(row, path, start + place) for place, row in enumerate(part)]
        start += len(part)


def count_histories(path: Path) -> int | None:
    """Rows of the file, where it says so without being read; None elsewhere."""
    return pq.ParquetFile(path).metadata.num_rows if path.suffix.lower() == ".parquet" else None


def _parquet_parts(path: Path, rows_at_once: int) -> Iterator[list[dict[str, Any]]]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if "history" not in names:
                raise DataError(f"{path}: column 'history' is missing; it has {', '.join(names)}. Name it history.")
            columns = [name for name in COLUMNS if name in names]
            for batch in file.iter_batches(batch_size=rows_at_once, columns=columns):
                yield batch.to_pylist()
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]}). Write it again.") from None


def _line_parts(path: Path, rows_at_once: int) -> Iterator[list[dict[str, Any]]]:
    with path.open("rb") as file:
        numbered = enumerate(file, 1)
        while part := [_line(line, path, number) for number, line in islice(numbered, rows_at_once)]:
            yield part


def _line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: not valid JSON ({str(error)[:200]}). Mend it.") from None
    if not isinstance(row, dict):
        raise DataError(f'{path}, line {number}: expected an object such as {{"history": ["id", "id"]}}.')
    if twice := repeated_keys(row):
        raise DataError(f"{path}, line {number}: the key {shown(min(twice))} is there twice. Keep one.")
    foreign = sorted(set(row) - set(COLUMNS))
    if foreign:
        raise DataError(f"{path}, line {number}: unknown name {foreign[0]!r}; known: {', '.join(COLUMNS)}.")
    return row


def _checked(row: Mapping[str, Any], path: Path, number: int) -> dict[str, Any]:
    """A row with all its parts."""
    where = f"{path}, row {number + 1}"
    user = row.get("user")
    if not (user is None or isinstance(user, str | int)):
        raise DataError(f"{where}: user is {str(user)[:60]!r}; expected a text or a whole number.")
    moment = row.get("moment")
    if not (moment is None or moment in MOMENTS):
        raise DataError(f"{where}: moment is {str(moment)[:60]!r}; expected one of {', '.join(MOMENTS)}.")
    only = row.get("only")
    return {
        "user": str(number) if user is None else str(user),
        "history": _ids(row.get("history"), "history", where),
        "only": None if only is None else _ids(only, "only", where),
        "without": [] if row.get("without") is None else _ids(row["without"], "without", where),
        "moment": moment,
    }


def _ids(value: Any, name: str, where: str) -> list[str]:
    """A list of ids as texts; whole numbers are taken as they are written."""
    if isinstance(value, list | np.ndarray) and all(
        isinstance(item, str) or (isinstance(item, int) and not isinstance(item, bool)) for item in value
    ):
        return [str(item) for item in value]
    raise DataError(f"{where}: {name} is {str(value)[:60]!r}; expected a list of item ids.")
