"""Reader of any two tables: items and interactions, each csv, tsv or parquet."""

import os
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


def _place(path: Path, row: int) -> str:
    """Where a person finds row `row` (from 0): the line of a text file as an editor counts, else the row from 1."""
    separator = SEPARATORS.get(path.suffix.lower())
    line = None if separator is None else csv_line(path, separator, row)
    return f"{path}, row {row + 1}" if line is None else f"{path}, line {line}"


def read_table(path: Path) -> pd.DataFrame:
    """One table; every cell of a text file as the text it is.

    Raises:
        DataError: If the file is missing, of an unknown kind, or cannot be read.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give the path of a csv, tsv or parquet table.")
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path)
        if suffix not in SEPARATORS:
            raise DataError(
                f"{path}: unknown kind of table {suffix!r}; known: .csv, .tsv, .parquet. Convert or rename it."
            )
        table = pd.read_csv(path, sep=SEPARATORS[suffix], dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}). Save it as UTF-8.") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's parsing errors are ValueErrors
        raise DataError(
            f"{path}: cannot be read ({' '.join(str(error).split())}). Check its commas and quotes."
        ) from None
    if not isinstance(table.index, pd.RangeIndex):
        raise DataError(f"{path}: the rows have more cells than the header. Check the header and the commas.")
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
        place = f"{_place(path, int(table.index[empty[0]]))}, column {name!r}"
        bad.add("missing_id", f"{place}: the id is {what}. Fill it in or drop the row.", len(empty))
    return table.assign(**{name: ids})[ids != ""]


def _texts(column: pd.Series) -> pd.Series:
    """Texts with "" for what is missing, without white space around them."""
    return column.astype(object).where(column.notna(), "").astype("str").str.strip()


def parse_times(column: pd.Series, path: Path, bad: BadRows) -> tuple[np.ndarray, np.ndarray, int]:
    """Times that can be compared: numbers as they are, dates as nanoseconds since 1970 (UTC).

    The first row decides: a number there asks for numbers everywhere, anything else for ISO dates
    (2018-11-05, 2018-11-05T12:30:00Z); without a zone they are taken as UTC.

    Args:
        column: Numbers, dates, or text of either; its index counts the file's rows.
        path: The file, for messages.
        bad: Counts rows that are neither a finite number nor an ISO date.

    Returns:
        int64 or float64 (rows,), in one unit; bool (rows,), which are times; ticks in a second, taking numbers for
        seconds.

    Raises:
        DataError: Naming the first bad row, if `bad` does not allow it.
    """
    ticks = NANOSECOND
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
            f"{_place(path, int(column.index[row]))}, column {column.name!r}: {str(column.iloc[row])!r} is not "
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
    bad = bad or BadRows()
    path = Path(items)
    table = read_table(path)
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
            f"{_place(path, row)}: item {ids[row]!r} is already in {_place(path, first)}. Keep one row an item.",
            int(twice.sum()),
        )
        table = table[~twice]
    title, description = (_texts(table[name]).to_numpy(object) for name in (title_column, description_column))
    found_items = item_table(table[item_column].to_numpy(object), title=title, description=description)

    path = Path(interactions)
    table = read_table(path)
    for name, flag in ((user_column, "user_column"), (item_column, "item_column"), (time_column, "time_column")):
        _column(table, path, name, flag)
    for name in (user_column, item_column):
        table = _drop_without_id(table, name, path, bad)
    times, right, ticks = parse_times(table[time_column], path, bad)
    table, times = table[right], times[right]
    item_index = pd.Index(found_items["item_id"]).get_indexer(pd.Index(table[item_column]))
    unknown = np.flatnonzero(item_index < 0)
    if len(unknown):
        row = unknown[0]
        bad.add(
            "unknown_item",
            f"{_place(path, int(table.index[row]))}, column {item_column!r}: item {table[item_column].iloc[row]!r} is "
            f"not in {items} ({len(unknown)} such rows). Add the items or drop the rows.",
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
