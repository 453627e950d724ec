"""Reader of any two tables: items and interactions, each csv, tsv or parquet."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.errors import DataError, shown
from minionerec.core.log import get_logger
from minionerec.data.files import check_file
from minionerec.data.source import BadRows, Source, item_table
from minionerec.data.sources.ids import place_of, rows_with_ids
from minionerec.data.sources.table_files import PARQUET, SEPARATORS, Joined, TableFiles, check_names, common_schema
from minionerec.data.sources.text import TextFile, read_text_table
from minionerec.data.sources.times import read_times

log = get_logger(__name__)
DESCRIPTION = "description"


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
    if suffix != PARQUET:
        raise DataError(f"{path}: unknown kind of table {suffix!r}; known: .csv, .tsv, .parquet. Convert or rename it.")
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())}). Write it again.") from None
    return without_index(table)


def read_visits(files: TableFiles, bad: BadRows, columns: Mapping[str, str]) -> pd.DataFrame:
    """The table of interactions: that of a file as it is, of several files joined, in order.

    Args:
        files: The files.
        bad: As in `read_table`.
        columns: Flag → column, of those that are needed; of several parquet files no others are read.

    Raises:
        DataError: As `read_table`; and of several files, if they differ in their columns or one of these is missing.
    """
    if files.single is not None:
        return read_table(files.single, bad)
    if files.suffix == PARQUET:
        table, sizes = _joined_parquet(files, columns)
        texts: list[TextFile | None] = [None] * len(sizes)
    else:
        tables = []
        for path in files.files:
            tables.append(read_table(path, bad))
            check_names(tables[-1].columns, path, tables[0].columns, files.files[0])
            check_columns(tables[-1], path, columns)
        sizes, texts = [len(each) for each in tables], [each.attrs.pop("file") for each in tables]
        table = pd.concat(tables, ignore_index=True)
    table.attrs["joined"] = Joined(files.files, tuple(texts), np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))
    return table


def check_columns(table: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> None:
    """Check that a table has some columns (flag → column), each once, as `column_of` does."""
    for flag, name in columns.items():
        column_of(table, path, name, flag)


def _joined_parquet(files: TableFiles, columns: Mapping[str, str]) -> tuple[pd.DataFrame, list[int]]:
    """Some columns of several parquet files as one table, as one file of all would give them; rows of each."""
    schema = common_schema(files, columns.values())
    check_columns(without_index(schema.empty_table().to_pandas()), files.files[0], columns)
    chosen = pa.schema([schema.field(name) for name in dict.fromkeys(columns.values())], schema.metadata)
    parts = []
    for path in files.files:
        try:
            with pq.ParquetFile(path) as file:
                parts.append(file.read(columns=chosen.names).select(chosen.names).cast(chosen))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())}). Write it again.") from None
    return without_index(pa.concat_tables(parts).to_pandas()), [len(part) for part in parts]


def without_index(table: pd.DataFrame) -> pd.DataFrame:
    """A table that was read from parquet, with the columns that pandas had made its index as columns again."""
    kept = [name for name in table.index.names if name is not None and name not in table.columns]
    for name in kept:
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
        other = next((sign for sign in (";", "\t", "|", ",") if name in columns.split(sign)), None)
        if len(table.columns) == 1 and other is not None:
            sign = "tabs" if other == "\t" else repr(other)
            remedy = f"Its cells are separated by {sign}: save it with commas as .csv, or with tabs as .tsv"
        raise DataError(f"{path}: column {name!r} is missing; it has {columns}. {remedy}.")
    file: TextFile | None = table.attrs.get("file")
    names = list(table.columns) if file is None else [title.partition(":")[0] for title in file.header]
    if (list(table.columns) if name not in names else names).count(name) > 1:
        raise DataError(f"{path}: column {name!r} is there twice. Name each column once.")
    column: pd.Series = table[name]
    return column


def refuse_unknown(place: str, name: str, item: str, n: int, catalogue: "Catalogue", bad: BadRows) -> None:
    """Count n rows whose item is not in the catalogue; the first has this item and place."""
    bad.add(
        "unknown_item",
        f"{place}, column {name!r}: item {shown(item)} is not in {catalogue.path} ({n} such "
        f"rows{_hint(catalogue.lines)}). Add the items or drop the rows.",
        n,
    )


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
    return read_times(table[name], path, partial(place_of, table, path), bad)


@dataclass(frozen=True)
class Catalogue:
    """The items that interactions may name.

    Attributes:
        items: The item table of `Source`.
        path: Its file, for messages.
        lines: Lines inside its quoted cells.
    """

    items: pd.DataFrame
    path: Path
    lines: int

    @cached_property
    def index(self) -> pd.Index:
        """The ids, to look up."""
        ids: pd.Index = pd.Index(self.items["item_id"])
        return ids


@dataclass(frozen=True)
class Interactions:
    """The interactions of a table that can be used.

    Attributes:
        people: B users, as text.
        item_index: int32 (B,), row of each item in the catalogue.
        times: int64 or float64 (B,), in ticks.
        ticks: Ticks in a second.
        lines: Lines inside quoted cells.
    """

    people: pd.Series
    item_index: np.ndarray
    times: np.ndarray
    ticks: int
    lines: int


def clean_visits(
    table: pd.DataFrame,
    path: Path,
    catalogue: Catalogue,
    bad: BadRows,
    *,
    user_column: str,
    item_column: str,
    time_column: str,
) -> Interactions:
    """The interactions of a table that can be used.

    Args:
        table: The table, with the three columns.
        path: Its file, for messages.
        catalogue: The items.
        bad: Counts the others.
        user_column: Column of user ids.
        item_column: Column of item ids.
        time_column: Column of times.

    Raises:
        DataError: If there are others, as far as `bad` does not allow them.
    """
    table, lines = rows_with_ids(table, path, (user_column, item_column), bad, time=time_column)
    times, right, ticks = parse_times(table, time_column, path, bad)
    table, times = table[right], times[right]
    item_index = catalogue.index.get_indexer(pd.Index(table[item_column]))
    unknown = np.flatnonzero(item_index < 0)
    if len(unknown):
        row = unknown[0]
        place = place_of(table, path, int(table.index[row]))
        refuse_unknown(place, item_column, table[item_column].iloc[row], len(unknown), catalogue, bad)
        table, times, item_index = table[item_index >= 0], times[item_index >= 0], item_index[item_index >= 0]
    return Interactions(table[user_column], item_index.astype(np.int32), times, ticks, lines)


def read_tables(
    interactions: str | os.PathLike[str] | TableFiles,
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
        interactions: csv, tsv or parquet with one row an interaction, in any order; or a folder of such files, all of
            one kind and with the same columns, which stand for one file with the rows of all in the order of their
            names.
        items: csv, tsv or parquet with one row an item.
        bad: Counts rows that cannot be used; one is an error if None.
        item_column: Column of item ids, in both tables.
        title_column: Column of titles.
        description_column: Column of descriptions; may be absent if it is called "description".
        user_column: Column of user ids.
        time_column: Column of times: numbers or ISO dates.

    Raises:
        ArtefactError: If a folder holds no file to read, or a folder.
        DataError: If a file or column is missing or a column there twice, or files of a folder differ; and, as far as
            `bad` does not allow it, if a row has too many cells or a quote that swallows lines, an id is empty, of
            several lines or (of an item) given twice, a time does not parse or is of another unit, or an interaction's
            item is unknown.
    """
    bad = bad or BadRows()
    catalogue, files = read_table(Path(items), bad), TableFiles.at(interactions)
    columns = {"user_column": user_column, "item_column": item_column, "time_column": time_column}
    return parse_tables(
        (read_visits(files, bad, columns), Path(files.where)),
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
    catalogue = parse_items(
        *items, bad, item_column=item_column, title_column=title_column, description_column=description_column
    )
    table, path = interactions
    columns = {"user_column": user_column, "item_column": item_column, "time_column": time_column}
    check_columns(table, path, columns)
    visits = clean_visits(table, path, catalogue, bad, **columns)
    users, user_ids = pd.factorize(visits.people)
    return Source(
        items=catalogue.items,
        users=users.astype(np.int32),
        item_index=visits.item_index,
        times=visits.times,
        user_ids=pa.array(user_ids.astype(object), pa.string()),
        where=str(path),
        ticks=visits.ticks,
        counts=lines_inside(catalogue.lines, visits.lines),
    )


def lines_inside(items: int, interactions: int) -> dict[str, int]:
    """The counts of lines inside quoted cells, as a source has them."""
    inside = {"lines_inside_item_cells": items, "lines_inside_interaction_cells": interactions}
    return {name: n for name, n in inside.items() if n}


def _hint(lines: int) -> str:
    return f"; quoted cells of the items span {lines} lines, which a stray quote may have swallowed" if lines else ""


def parse_items(
    table: pd.DataFrame, path: Path, bad: BadRows, *, item_column: str, title_column: str, description_column: str
) -> Catalogue:
    """The items of a table, each id once, texts without white space around them.

    Raises:
        DataError: If a column is missing, or rows cannot be used and `bad` does not allow it.
    """
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
            f"{place_of(table, path, row)}: item {shown(ids[row])} is already in {place_of(table, path, first)}. "
            "Keep one row an item.",
            int(twice.sum()),
        )
        table = table[~twice]
    title, description = (_texts(table, name, path).to_numpy(object) for name in (title_column, description_column))
    items = item_table(table[item_column].to_numpy(object), title=title, description=description)
    return Catalogue(items, path, lines)
