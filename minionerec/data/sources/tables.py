"""Reader of any two tables: items and interactions, each csv, tsv or parquet."""

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.core.errors import DataError, shown
from minionerec.core.log import get_logger
from minionerec.data.files import check_file, plain_text
from minionerec.data.source import BadRows, Source, item_table
from minionerec.data.sources.tangles import drop_swallowing
from minionerec.data.sources.text import TextFile, read_text_table
from minionerec.data.sources.times import read_times

log = get_logger(__name__)
SEPARATORS = {".csv": ",", ".tsv": "\t"}
DESCRIPTION = "description"


def _place(table: pd.DataFrame, path: Path, row: int) -> str:
    """Where a person finds row `row` (from 0): the line of a text file as an editor counts, else the row from 1."""
    file: TextFile | None = table.attrs.get("file")
    line = None if file is None else file.line(row)
    return f"{path}, row {row + 1}" if line is None else f"{path}, line {line}"


def read_table(path: Path, bad: BadRows | None = None) -> pd.DataFrame:
    """One csv, tsv or parquet table; every cell of a text file as the text it is.

    Args:
        path: The file.
        bad: Counts lines of a text file with more cells than the header; one is an error if None.

    Raises:
        DataError: If the file is missing, of an unknown kind, or cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in SEPARATORS:
        return read_text_table(path, SEPARATORS[suffix], bad=bad)
    check_file(path, "Give the path of a csv, tsv or parquet table.")
    if suffix != ".parquet":
        raise DataError(f"{path}: unknown kind of table {suffix!r}; known: .csv, .tsv, .parquet. Convert or rename it.")
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())}). Write it again.") from None
    kept = [name for name in table.index.names if name is not None and name not in table.columns]
    for name in kept:  # columns that pandas had made its index
        table[name] = table.index.get_level_values(str(name))
    return table.reset_index(drop=True)


def column_of(table: pd.DataFrame, path: Path, name: str, flag: str | None) -> pd.Series:
    """A column of a table.

    Args:
        table: The table, from `read_table`.
        path: Its file, for messages.
        name: The column.
        flag: The flag that names another column; None where the name is fixed.

    Raises:
        DataError: If it is missing or there twice.
    """
    if name not in table.columns:
        columns = ", ".join(str(column) for column in table.columns)
        remedy = f"Name the right one with --{flag}" if flag else "Rename the right one"
        raise DataError(f"{path}: column {name!r} is missing; it has {columns}. {remedy}.")
    file: TextFile | None = table.attrs.get("file")
    names = list(table.columns) if file is None else [title.partition(":")[0] for title in file.header]
    if (list(table.columns) if name not in names else names).count(name) > 1:
        raise DataError(f"{path}: column {name!r} is there twice. Name each column once.")
    column: pd.Series = table[name]
    return column


def rows_with_ids(
    table: pd.DataFrame,
    path: Path,
    ids: tuple[str, ...],
    bad: BadRows,
    *,
    time: str | None = None,
    known: Mapping[str, Collection[str]] | None = None,
) -> tuple[pd.DataFrame, int]:
    """The rows of a table that swallow no others and have an id in each of some columns.

    Args:
        table: The table, from `read_table`.
        path: Its file, for messages.
        ids: Columns of ids; theirs come as texts.
        bad: Counts the other rows.
        time: As in `drop_swallowing`.
        known: As in `drop_swallowing`.

    Returns:
        The rows with the index that they had; how many lines lie inside their cells.

    Raises:
        DataError: If there are such rows, as far as `bad` does not allow them.
    """
    table, lines = drop_swallowing(table, path, ids, time, bad, known=known)
    for name in ids:
        table = _drop_without_id(table, name, path, bad)
    return table, lines


def _drop_without_id(table: pd.DataFrame, name: str, path: Path, bad: BadRows) -> pd.DataFrame:
    """The rows that have an id in a column, the ids as text, whole numbers as their digits."""
    column = table[name]
    missing = column.isna().to_numpy()
    wrong = np.zeros(len(column), dtype=bool)
    if pd.api.types.is_float_dtype(column.dtype):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = ~missing & ~(np.abs(numbers) < 2.0**53)  # others are no whole numbers that a float can tell apart
        column = column.where(~wrong)
        if (column[column.notna()] == column[column.notna()].round()).all():
            column = column.astype("Int64")
    elif column.dtype == object:
        wrong = ~missing & ~column.map(_is_id).to_numpy(dtype=bool)
        column = column.where(~wrong)
    ids = column.astype(object).where(column.notna(), "").astype("str")
    wrong |= broken_ids(ids)
    rows = table.index
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        bad.add(
            "malformed_id",
            f"{_place(table, path, int(rows[row]))}, column {name!r}: {shown(table[name].iloc[row])} is no id; "
            f"expected a text of one line or a whole number ({int(wrong.sum())} such rows). Mend or drop the row.",
            int(wrong.sum()),
        )
    empty = np.flatnonzero((ids == "").to_numpy(dtype=bool) & ~wrong)
    if len(empty):
        what = "missing" if missing[empty[0]] else "empty"
        place = f"{_place(table, path, int(rows[empty[0]]))}, column {name!r}"
        bad.add("missing_id", f"{place}: the id is {what}. Fill it in or drop the row.", len(empty))
    return table.assign(**{name: ids})[(ids != "").to_numpy(dtype=bool) & ~wrong]


def _is_id(value: object) -> bool:
    """Whether a value of a column of objects can be an id."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, bytes):
        try:
            value.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True
    return np.isscalar(value) or hasattr(value, "as_tuple") or hasattr(value, "hex")


def broken_ids(ids: pd.Series) -> np.ndarray:
    """Which ids hold the end of a line or a NUL: bool (rows,)."""
    texts = pa.array(ids, pa.string(), from_pandas=True)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    found = np.zeros(len(ids), dtype=bool)
    for sign in "\n\r\0":
        found |= pc.fill_null(pc.match_substring(texts, sign), False).to_numpy(zero_copy_only=False)
    return found


def _texts(table: pd.DataFrame, name: str, path: Path) -> pd.Series:
    """Texts with "" for what is missing, without white space around them."""
    column = table[name]
    try:
        texts = column.astype(object).where(column.notna(), "").astype("str").str.strip()
        pa.array(texts, pa.string(), from_pandas=True)
    except (UnicodeError, pa.ArrowException):
        raise DataError(f"{path}, column {name!r}: not every text is UTF-8. Save the texts as UTF-8.") from None
    return texts


def parse_times(table: pd.DataFrame, name: str, path: Path, bad: BadRows) -> tuple[np.ndarray, np.ndarray, int]:
    """The times of a column of a table, as `minionerec.data.sources.times.read_times` gives them."""
    return read_times(table[name], path, partial(_place, table, path), bad)


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
        DataError: If a file or column is missing or a column there twice; and, as far as `bad` does not allow it, if a
            row has too many cells or a quote that swallows lines, an id is empty, of several lines or (of an item)
            given twice, a time does not parse or is of another unit, or an interaction's item is unknown.
    """
    bad = bad or BadRows()
    catalogue = read_table(Path(items), bad)
    return parse_tables(
        (read_table(Path(interactions), bad), Path(interactions)),
        (catalogue, Path(items)),
        bad,
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
    found_items, item_lines = _parse_items(
        *items, bad, item_column=item_column, title_column=title_column, description_column=description_column
    )
    table, path = interactions
    for name, flag in ((user_column, "user_column"), (item_column, "item_column"), (time_column, "time_column")):
        column_of(table, path, name, flag)
    table, lines = rows_with_ids(table, path, (user_column, item_column), bad, time=time_column)
    times, right, ticks = parse_times(table, time_column, path, bad)
    table, times = table[right], times[right]
    item_index = pd.Index(found_items["item_id"]).get_indexer(pd.Index(table[item_column]))
    unknown = np.flatnonzero(item_index < 0)
    if len(unknown):
        row = unknown[0]
        bad.add(
            "unknown_item",
            f"{_place(table, path, int(table.index[row]))}, column {item_column!r}: item "
            f"{shown(table[item_column].iloc[row])} is not in {items[1]} ({len(unknown)} such "
            f"rows{_hint(item_lines)}). Add the items or drop the rows.",
            len(unknown),
        )
        table, times, item_index = table[item_index >= 0], times[item_index >= 0], item_index[item_index >= 0]
    inside = {"lines_inside_item_cells": item_lines, "lines_inside_interaction_cells": lines}
    users, user_ids = pd.factorize(table[user_column])
    return Source(
        items=found_items,
        users=users.astype(np.int32),
        item_index=item_index.astype(np.int32),
        times=times,
        user_ids=pa.array(user_ids.astype(object), pa.string()),
        where=str(path),
        ticks=ticks,
        counts={name: n for name, n in inside.items() if n},
    )


def _hint(lines: int) -> str:
    return f"; quoted cells of the items span {lines} lines, which a stray quote may have swallowed" if lines else ""


def _parse_items(
    table: pd.DataFrame, path: Path, bad: BadRows, *, item_column: str, title_column: str, description_column: str
) -> tuple[pd.DataFrame, int]:
    """The item table of `Source`, each id once, texts without white space around them; lines inside quoted cells."""
    for name, flag in ((item_column, "item_column"), (title_column, "title_column")):
        column_of(table, path, name, flag)
    if description_column not in table.columns and description_column == DESCRIPTION:
        table = table.assign(**{DESCRIPTION: ""})
    column_of(table, path, description_column, "description_column")
    if not len(table):
        raise DataError(f"{path}: holds a header and no item. Expected a row an item.")
    table, lines = rows_with_ids(table, path, (item_column,), bad)
    ids = table[item_column]
    twice = ids.duplicated()
    if twice.any():
        row = ids.index[twice][0]
        first = ids.index[ids == ids[row]][0]
        bad.add(
            "duplicate_item",
            f"{_place(table, path, row)}: item {shown(ids[row])} is already in {_place(table, path, first)}. "
            "Keep one row an item.",
            int(twice.sum()),
        )
        table = table[~twice]
    title, description = (_texts(table, name, path).to_numpy(object) for name in (title_column, description_column))
    return item_table(table[item_column].to_numpy(object), title=title, description=description), lines
