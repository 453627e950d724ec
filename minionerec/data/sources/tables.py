"""Reader of any two tables: items and interactions, each csv, tsv or parquet."""

import csv
import io
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.source import BadRows, Source, csv_line, item_table

log = get_logger(__name__)
SEPARATORS = {".csv": ",", ".tsv": "\t"}
DESCRIPTION = "description"
SECOND, NANOSECOND = 1, 10**9
"""Ticks of a time in a second."""


def _place(table: pd.DataFrame, path: Path, row: int) -> str:
    """Where a person finds row `row` (from 0): the line of a text file as an editor counts, else the row from 1."""
    line = table.attrs["line_of"](row) if "line_of" in table.attrs else None
    return f"{path}, row {row + 1}" if line is None else f"{path}, line {line}"


def read_table(path: Path) -> pd.DataFrame:
    """One csv, tsv or parquet table; every cell of a text file as the text it is.

    Raises:
        DataError: If the file is missing, of an unknown kind, or cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in SEPARATORS:
        return read_text_table(path, SEPARATORS[suffix])
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give the path of a csv, tsv or parquet table.")
    if suffix != ".parquet":
        raise DataError(f"{path}: unknown kind of table {suffix!r}; known: .csv, .tsv, .parquet. Convert or rename it.")
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's parsing errors are ValueErrors
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())}). Write it again.") from None


def read_text_table(
    path: Path, separator: str, header: Sequence[str] | None = None, *, quoted: bool = True
) -> pd.DataFrame:
    """A text table, every cell as the text it is; its `attrs["line_of"]` finds the line of a row.

    Args:
        path: The file, UTF-8 (or Latin-1 where it has no header, as older MovieLens files are).
        separator: What stands between cells.
        header: Names of the first columns where the file has no header; further columns are left out.
        quoted: Whether double quotes around a cell are not part of it.

    Raises:
        DataError: If the file is missing or cannot be read.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give the path of a table.")
    content = path.read_bytes()
    try:
        content.decode("utf-8")
        encoding = "utf-8-sig"
    except UnicodeDecodeError as error:
        if header is None:
            raise DataError(f"{path}: not UTF-8 text ({error}). Save it as UTF-8.") from None
        encoding = "latin-1"
    if len(separator) > 1:  # one character parses many times faster
        content, separator = content.replace(separator.encode(), b"\t"), "\t"
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            sep=separator,
            dtype=str,
            keep_default_na=False,
            encoding=encoding,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            header="infer" if header is None else None,
            names=None if header is None else list(header),
            usecols=None if header is None else range(len(header)),
        )
    except (OSError, ValueError) as error:  # pandas' parsing errors are ValueErrors
        raise DataError(
            f"{path}: cannot be read ({' '.join(str(error).split())}). Check its separators and quotes."
        ) from None
    if not isinstance(table.index, pd.RangeIndex):
        raise DataError(f"{path}: the rows have more cells than the header. Check the header and the separators.")
    table.attrs["line_of"] = partial(csv_line, path, separator if quoted else None, has_header=header is None)
    return table


def _column(table: pd.DataFrame, path: Path, name: str, flag: str) -> pd.Series:
    if name not in table.columns:
        columns = ", ".join(str(column) for column in table.columns)
        raise DataError(f"{path}: column {name!r} is missing; it has {columns}. Name the right one with --{flag}.")
    column: pd.Series = table[name]
    return column


def _drop_without_id(table: pd.DataFrame, name: str, path: Path, bad: BadRows) -> pd.DataFrame:
    """The rows that have an id in a column, the ids as text, whole numbers as their digits."""
    column = table[name]
    missing = column.isna().to_numpy()
    if pd.api.types.is_float_dtype(column.dtype) and (column[~missing] == column[~missing].round()).all():
        column = column.astype("Int64")
    ids = column.astype(object).where(~missing, "").astype("str")
    empty = np.flatnonzero(ids == "")
    if len(empty):
        what = "missing" if missing[empty[0]] else "empty"
        place = f"{_place(table, path, int(table.index[empty[0]]))}, column {name!r}"
        bad.add("missing_id", f"{place}: the id is {what}. Fill it in or drop the row.", len(empty))
    return table.assign(**{name: ids})[ids != ""]


def _texts(column: pd.Series) -> pd.Series:
    """Texts with "" for what is missing, without white space around them."""
    return column.astype(object).where(column.notna(), "").astype("str").str.strip()


def parse_times(table: pd.DataFrame, name: str, path: Path, bad: BadRows) -> tuple[np.ndarray, np.ndarray, int]:
    """Times that can be compared: numbers as they are, dates as nanoseconds since 1970 (UTC).

    The first row decides: a number there asks for numbers everywhere, anything else for ISO dates
    (2018-11-05, 2018-11-05T12:30:00Z); without a zone they are taken as UTC.

    Args:
        table: Holds the column; its index counts the file's rows.
        name: The column: numbers, dates, or text of either.
        path: The file, for messages.
        bad: Counts rows that are neither a finite number nor an ISO date.

    Returns:
        int64 or float64 (rows,), in one unit; bool (rows,), which are times; ticks in a second, taking numbers for
        seconds.

    Raises:
        DataError: Naming the first bad row, if `bad` does not allow it.
    """
    column, ticks = table[name], NANOSECOND
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        wrong, times = column.isna().to_numpy(), column.to_numpy(dtype="datetime64[ns]").astype(np.int64)
        expected = "a date"
    elif pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        if pd.api.types.is_integer_dtype(column.dtype) and not column.hasnans:
            times = column.to_numpy(dtype=np.int64)
        else:
            times = column.to_numpy(dtype=np.float64, na_value=np.nan)
        wrong, expected, ticks = ~np.isfinite(times), "a finite number", SECOND
    else:
        text = _texts(column)
        numbers = pd.to_numeric(text, errors="coerce").to_numpy()
        if len(text) and np.isfinite(numbers[0]):
            times, wrong, expected = numbers, ~np.isfinite(numbers), "a number, as in the first row"
            ticks = SECOND
        else:
            dates = pd.to_datetime(text.where(text.str.match(r"\d{4}-")), errors="coerce", format="ISO8601", utc=True)
            times, wrong = dates.to_numpy(dtype="datetime64[ns]").astype(np.int64), dates.isna().to_numpy()
            expected = "an ISO date such as 2018-11-05 or 2018-11-05T12:30:00"
            if len(text) and wrong[0]:
                expected = f"a number or {expected}"
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        n = int(wrong.sum())
        bad.add(
            "bad_time",
            f"{_place(table, path, int(column.index[row]))}, column {column.name!r}: {str(column.iloc[row])!r} is not "
            f"{expected} ({n} such rows). Mend or drop them.",
            n,
        )
    return times, ~wrong, ticks


def read_tables(
    interactions: str | os.PathLike[str],
    items: str | os.PathLike[str],
    bad: BadRows | None = None,
    *,
    item_column: str = "item_id",
    title_column: str = "title",
    description_column: str = DESCRIPTION,
    user_column: str = "user_id",
    time_column: str = "timestamp",
) -> Source:
    """Read items and interactions; item index i is row i of the items table.

    Args:
        interactions: csv, tsv or parquet with one row an interaction, in any order.
        items: The same with one row an item.
        bad: Counts rows that cannot be used; one is an error if None.
        item_column: Column of item ids, in both tables.
        title_column: Column of titles.
        description_column: Column of descriptions; may be absent if it is called "description".
        user_column: Column of user ids.
        time_column: Column of times: numbers or ISO dates.

    Raises:
        DataError: If a file or column is missing; and, as far as `bad` does not allow it, if an id is empty or (of an
            item) given twice, a time does not parse, or an interaction's item is unknown.
    """
    catalogue = read_table(Path(items))
    return parse_tables(
        (read_table(Path(interactions)), Path(interactions)),
        (catalogue, Path(items)),
        bad or BadRows(),
        item_column=item_column,
        title_column=title_column,
        description_column=description_column,
        user_column=user_column,
        time_column=time_column,
    )


def parse_tables(
    interactions: tuple[pd.DataFrame, Path],
    items: tuple[pd.DataFrame, Path],
    bad: BadRows,
    *,
    item_column: str,
    title_column: str,
    user_column: str,
    time_column: str,
    description_column: str = DESCRIPTION,
) -> Source:
    """The same as `read_tables` of tables that are already in memory, each with the path of its file for messages."""
    found_items = _parse_items(
        *items, bad, item_column=item_column, title_column=title_column, description_column=description_column
    )
    table, path = interactions
    for name, flag in ((user_column, "user_column"), (item_column, "item_column"), (time_column, "time_column")):
        _column(table, path, name, flag)
    for name in (user_column, item_column):
        table = _drop_without_id(table, name, path, bad)
    times, right, ticks = parse_times(table, time_column, path, bad)
    table, times = table[right], times[right]
    item_index = pd.Index(found_items["item_id"]).get_indexer(pd.Index(table[item_column]))
    unknown = np.flatnonzero(item_index < 0)
    if len(unknown):
        row = unknown[0]
        bad.add(
            "unknown_item",
            f"{_place(table, path, int(table.index[row]))}, column {item_column!r}: item "
            f"{table[item_column].iloc[row]!r} is not in {items[1]} ({len(unknown)} such rows). "
            "Add the items or drop the rows.",
            len(unknown),
        )
        table, times, item_index = table[item_index >= 0], times[item_index >= 0], item_index[item_index >= 0]
    users, user_ids = pd.factorize(table[user_column])
    return Source(
        items=found_items,
        users=users.astype(np.int32),
        item_index=item_index.astype(np.int32),
        times=times,
        user_ids=pa.array(user_ids.astype(object), pa.string()),
        where=str(path),
        ticks=ticks,
    )


def _parse_items(
    table: pd.DataFrame, path: Path, bad: BadRows, *, item_column: str, title_column: str, description_column: str
) -> pd.DataFrame:
    """The item table of `Source`: each id once, texts without white space around them."""
    for name, flag in ((item_column, "item_column"), (title_column, "title_column")):
        _column(table, path, name, flag)
    if description_column not in table.columns and description_column == DESCRIPTION:
        table = table.assign(**{DESCRIPTION: ""})
    _column(table, path, description_column, "description_column")
    table = _drop_without_id(table, item_column, path, bad)
    ids = table[item_column]
    twice = ids.duplicated()
    if twice.any():
        row = ids.index[twice][0]
        first = ids.index[ids == ids[row]][0]
        bad.add(
            "duplicate_item",
            f"{_place(table, path, row)}: item {ids[row]!r} is already in {_place(table, path, first)}. "
            "Keep one row an item.",
            int(twice.sum()),
        )
        table = table[~twice]
    title, description = (_texts(table[name]).to_numpy(object) for name in (title_column, description_column))
    return item_table(table[item_column].to_numpy(object), title=title, description=description)
