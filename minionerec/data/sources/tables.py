"""Reader of any two tables, csv, tsv, jsonl or parquet: items, and interactions, which are read part by part."""

import html
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html.entities import html5
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pandas.api.extensions import ExtensionArray

from minionerec.core.cells import EXACT, frame_of, plain_text, texts_of
from minionerec.core.errors import DataError, shown, truncate
from minionerec.core.log import get_logger, progress
from minionerec.data.context_columns import MANY, TRACKED, name_problem, report
from minionerec.data.files import check_file
from minionerec.data.filters import Condition, parse_conditions
from minionerec.data.names import COLUMNS, EVENTS, ITEM_COLUMNS, OF_INTERACTIONS, OF_ITEMS, TIME_UNITS
from minionerec.data.source import BadRows, InteractionBatch, item_table
from minionerec.data.sources.table_files import (
    KINDS,
    LINES,
    PARQUET,
    SEPARATORS,
    TableFiles,
    check_names,
    common_schema,
    kind_of,
    plain,
    read_schema,
    readable_table,
    row_location,
)
from minionerec.data.sources.text import INSIDE, PART, read_json_parts, read_text_parts, read_text_table
from minionerec.data.sources.times import TimeColumn
from minionerec.data.units import SECOND

logger = get_logger(__name__)

_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w+);")
ROWS = 1 << 18
"""Rows of a parquet file that are cleaned at a time."""
RATING = "rating"
"""Name of a column that is no request feature without being named: it is known after the choice."""
_NO_TEXTS = "no texts"
_REMEDIES = {
    "item": ", which holds for items and interactions",
    "time": ", or give time=none where the rows are in the order of time",
    "title": "; if the items have no titles, add an empty column: init then chooses vectors of interactions "
    "(encoder: interactions)",
}
BROKEN_ID = r"[\n\r\x00]"
"""Pattern of what no id holds."""


def read_table(path: Path, bad: BadRows | None = None, needed: Collection[str] | None = None) -> pd.DataFrame:
    """One csv, tsv, jsonl or parquet table; every cell of a csv or tsv file as the text it is.

    Args:
        path: The file.
        bad: Counts lines of a text file that are no rows; one is an error if None.
        needed: Columns of a parquet file that must be readable, all if None; others that cannot be read are left out.

    Raises:
        DataError: If the file is missing, of an unknown kind, or cannot be read.
    """
    kind = kind_of(path)
    if kind in SEPARATORS:
        return read_text_table(path, SEPARATORS[kind], bad=bad)
    check_file(path, "Give the path of a csv, tsv, jsonl or parquet table.")
    if kind == LINES:
        return next(read_json_parts(path, None, bad))
    if kind != PARQUET:
        raise DataError(f"{path}: unknown kind of table {kind!r}; known: {', '.join(KINDS)}. Convert or rename it.")
    with readable_table(path), pq.ParquetFile(path) as file:
        return _frame(file.read(), path, needed)


def _frame(table: pa.Table | pa.RecordBatch, path: Path, needed: Collection[str] | None = None) -> pd.DataFrame:
    """Columns of a parquet file, see `minionerec.core.cells.frame_of`."""
    try:
        return frame_of(table, needed)
    except DataError as error:
        raise DataError(f"{path}: {error} Write it as another type, or leave it out.") from None


def column_of(table: pd.DataFrame, path: Path, name: str, flag: str | None) -> pd.Series:
    """A column of a table.

    Args:
        table: The table, from `read_table`.
        path: Its file, for messages.
        name: The column.
        flag: What the column holds, a key of `COLUMNS`, or another setting that names it; None if the name is fixed.

    Raises:
        DataError: If it is missing or there twice.
    """
    if name not in table.columns:
        columns = ", ".join(str(column) for column in table.attrs.get("columns", table.columns))
        option = f"--columns {flag}=NAME" if flag in COLUMNS else f"--{flag}"
        remedy = f"Name the right one with {option}{_REMEDIES.get(flag, '')}" if flag else "Rename the right one"
        other = next((sign for sign in (";", "\t", "|", ",") if name in columns.split(sign)), None)
        if len(table.columns) == 1 and other is not None:
            sign = "tabs" if other == "\t" else repr(other)
            remedy = f"Its cells are separated by {sign}: save it with commas as .csv, or with tabs as .tsv"
        raise DataError(f"{path}: column {name!r} is missing; it has {columns}. {remedy}.")
    if list(table.columns).count(name) > 1:
        raise DataError(f"{path}: column {name!r} occurs twice. Name each column once.")
    column: pd.Series = table[name]
    return column


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The line, and the cells of some columns, of each row of a csv file.

    Raises:
        DataError: If the file cannot be read, a column is missing or there twice, or a line is no row.
    """
    table = read_text_table(path, ",")
    cells = [column_of(table, path, name, None).tolist() for name in columns]
    return zip((table.index + 1).tolist(), zip(*cells, strict=True), strict=True)


def decoded(text: str) -> str:
    """A text whose HTML entities, each from & to ;, are the characters that they stand for; any other stays as it is.

    Example:
        >>> decoded("Might &amp; Magic&#174;"), decoded("R&D; AT&T &unknown;")
        ('Might & Magic®', 'R&D; AT&T &unknown;')
    """
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(entity: re.Match[str]) -> str:
    text = entity[0]
    return html.unescape(text) if text[1] == "#" else html5.get(text[1:], text)


def _texts(table: pd.DataFrame, name: str, path: Path) -> pd.Series:
    """Texts with "" for what is missing, HTML entities decoded, without white space around them.

    Raises:
        DataError: If a cell is no text; the message names the row.
    """
    texts, wrong = texts_of(table[name])
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{row_location(path, int(table.index[row]))}, column {name!r}: {shown(table[name].iloc[row])} is "
            f"no text in UTF-8, number or list of these ({int(wrong.sum())} such rows). Write it as a text."
        )
    return texts.map(decoded).str.strip()


def _rows_with_ids(table: pd.DataFrame, path: Path, ids: Iterable[str], bad: BadRows) -> pd.DataFrame:
    """The rows of a table that have an id in each of some columns, the ids as text; `bad` counts the others.

    They keep their index.

    Raises:
        DataError: If there are other rows, as far as `bad` does not allow them.
    """
    for name in ids:
        column = table[name]
        inexact = (
            column.map(_is_inexact) if column.dtype == object or pd.api.types.is_float_dtype(column.dtype) else None
        )
        texts, no_texts = texts_of(column if inexact is None else column.where(~inexact), lists=False)
        wrong = no_texts | texts.str.contains(BROKEN_ID).to_numpy(dtype=bool)
        wrong |= False if inexact is None else inexact.to_numpy(dtype=bool)
        if wrong.any():
            row, n = int(np.flatnonzero(wrong)[0]), int(wrong.sum())
            bad.add(
                "malformed_id",
                f"{row_location(path, int(table.index[row]))}, column {name!r}: {shown(column.iloc[row])} is no id; "
                f"expected a text of one line or a whole number ({n} such rows). Correct or drop the row.",
                n,
            )
        empty = np.flatnonzero((texts == "").to_numpy(dtype=bool) & ~wrong)
        if len(empty):
            where, what = (
                row_location(path, int(table.index[empty[0]])),
                "missing" if pd.isna(column.iloc[empty[0]]) else "empty",
            )
            bad.add(
                "missing_id", f"{where}, column {name!r}: the id is {what}. Fill it in or drop the row.", len(empty)
            )
        table = table.assign(**{name: texts})[(texts != "").to_numpy(dtype=bool) & ~wrong]
    return table


def _is_inexact(cell: object) -> bool:
    """Whether a cell is a float that does not distinguish whole numbers, or infinite."""
    return isinstance(cell, float | np.floating) and abs(float(cell)) >= EXACT


def _without_repeats(table: pd.DataFrame, column: str, what: str, path: Path, bad: BadRows) -> pd.DataFrame:
    """The rows of a table of items or users (`what`) whose id no earlier row has; `bad` counts the others."""
    ids = table[column]
    repeats = ids.duplicated()
    if repeats.any():
        row = ids.index[repeats][0]
        first = ids.index[ids == ids[row]][0]
        bad.add(
            f"duplicate_{what}",
            f"{row_location(path, row)}: {what} {shown(ids[row])} is already in {row_location(path, first)}. Keep one "
            f"row of each {what}.",
            int(repeats.sum()),
        )
    return table[~repeats]


class TableSource:
    """An `InteractionSource` that cleans tables part by part, and checks times and unknown items over all parts.

    Args:
        interactions: The parts, each with its file.
        where: The name of the interactions in messages.
        items: The table of items, and its file.
        bad: Counts the rows that cannot be used.
        columns: As of `read_tables`.
        time_unit: See `read_tables`.
        conditions: Conditions on the interactions.
        events: See `read_tables`.
        contexts: See `read_tables`.
        users: Columns of users, by id; None without such a table.

    Raises:
        DataError: If the items lack a column, or rows of them cannot be used and are more than `bad` allows.
    """

    def __init__(
        self,
        interactions: Iterable[tuple[Path, pd.DataFrame]],
        where: str,
        items: tuple[pd.DataFrame, Path],
        bad: BadRows,
        columns: Mapping[str, str],
        time_unit: str | None = None,
        conditions: Sequence[Condition] = (),
        events: bool = False,
        contexts: Collection[str] | None = (),
        users: pd.DataFrame | None = None,
    ) -> None:
        self.where, self._columns, self._bad, self._tables = where, {**COLUMNS, **columns}, bad, interactions
        self.items, self._item_lines = parse_items(*items, bad, self._columns)
        self._index, self._path = pd.Index(self.items["item_id"]), items[1]
        self._times = TimeColumn(bad, time_unit, f", or name the unit with --time_unit ({', '.join(TIME_UNITS)})")
        self._unknown, self._unknown_count, self._lines = "", 0, 0
        self._conditions, self._left_out = conditions, 0
        self._event_numbers: dict[str, int] | None = {} if events else None
        self._named_contexts, self._users = contexts, users
        self._contexts: dict[str, dict[str, int] | str] = {}
        self._candidates: list[str] = []
        self.ticks: int | None = SECOND

    @property
    def timed(self) -> bool:
        """See `InteractionSource`."""
        return bool(self._columns["time"])

    @property
    def counts(self) -> Mapping[str, int]:
        """See `InteractionSource`: how many lines lie inside quoted cells, where there are some, and rows left out."""
        inside = {"lines_inside_item_cells": self._item_lines, "lines_inside_interaction_cells": self._lines}
        left_out = {"interactions_left_out_by_where": self._left_out} if self._conditions else {}
        return {name: n for name, n in inside.items() if n} | left_out

    @property
    def events(self) -> Sequence[str]:
        """See `InteractionSource`; in the order in which they first appear."""
        return tuple(self._event_numbers or ())

    @property
    def contexts(self) -> Mapping[str, Sequence[str] | str]:
        """See `InteractionSource`; values in the order in which they first appear."""
        return {name: of if isinstance(of, str) else tuple(of) for name, of in self._contexts.items()}

    def batches(self) -> Iterator[InteractionBatch]:
        """See `InteractionSource`.

        Raises:
            DataError: If there is no row, the unit of times is not clear, or rows cannot be used and are more than
                `bad` allows.
        """
        empty, names = True, None
        for path, table in self._tables:
            for flag in OF_INTERACTIONS:
                if flag != "time" or self.timed:
                    column_of(table, path, self._columns[flag], flag)
            if names is None:
                names = [str(name) for name in table.attrs.get("columns", table.columns)]
                self._choose_contexts(names, table)
                self._candidates = [name for name, of in self._contexts.items() if not isinstance(of, str)]
            empty = empty and not len(table)
            yield self._clean(path, table)
        if empty:
            raise DataError(f"{self.where}: holds a header and no interaction. Expected a row an interaction.")
        if self._conditions:
            where = " and ".join(map(str, self._conditions))
            logger.info("%s: %s rows are left out, which do not meet %s.", self.where, f"{self._left_out:,}", where)
        if self.timed:
            self.ticks = self._times.ticks()
        if self._unknown_count:
            self._bad.add(
                "unknown_item",
                f"{self._unknown} is not in {self._path} ({self._unknown_count} such rows). Add the items or drop the "
                "rows.",
                self._unknown_count,
            )

    def _choose_contexts(self, names: Sequence[str], table: pd.DataFrame) -> None:
        """Choose the columns that may be request features; log those that are not read where none are inferred.

        Args:
            names: All columns.
            table: The first part, with those that were read from the file.

        Raises:
            ConfigError: If one that is named cannot be one.
        """
        flags = [*OF_INTERACTIONS, *["event"] * (self._event_numbers is not None)]
        of_flags = {self._columns[flag] for flag in flags}
        read = of_flags | {condition.column for condition in self._conditions}
        unread = [name for name in dict.fromkeys(names) if name not in read]
        named = self._named_contexts
        of_users = [] if self._users is None else [str(name) for name in self._users.columns]
        for name in dict.fromkeys([*unread, *of_users]) if named is None else named:
            self._contexts[name] = self._problem(name, names, of_users, table, of_flags) or {}
        if named is None:  # reported with those that turn out to be none
            return
        report(self.where, (), {name: of for name, of in self._contexts.items() if isinstance(of, str)}, named)
        unread = [name for name in unread if name not in named]
        if unread:
            event = self._columns["event"]
            hint = f" Without targets each row counts alike, whatever its {event!r} is." if event in unread else ""
            logger.info("%s: columns that are not read: %s.%s", self.where, truncate(", ".join(unread), 200), hint)

    def _problem(
        self,
        name: str,
        names: Sequence[str],
        of_users: Sequence[str],
        table: pd.DataFrame,
        of_flags: Collection[str],
    ) -> str:
        """Why a column is no request feature, as far as its name and the first part of the table tell; "" if not."""
        problems = {
            f"the columns are {', '.join([*names, *of_users])}": name not in names and name not in of_users,
            "users and interactions have such a column": name in names and name in of_users,
            "it occurs twice": max(list(names).count(name), list(of_users).count(name)) > 1,
            "it is read as something else": name in of_flags,
            "without targets each row counts alike": name == self._columns["event"],
            "it is known after the choice": name == RATING and self._named_contexts is None,
            name_problem(name): name_problem(name) != "",
            _NO_TEXTS: name not in table.columns and name not in of_users,
        }
        return next((problem for problem, holds in problems.items() if holds), "")

    def _cells_of(self, name: str, table: pd.DataFrame) -> pd.Series:
        """A column of interactions, or of their users."""
        if self._users is None or name in table.columns:
            return table[name]
        return self._users[name].reindex(table[self._columns["user"]].to_numpy())

    def _numbers_of(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """The numbers of the rows' values in columns that may be request features, each int16 (B,), -1 without one."""
        numbers = {}
        for name in self._candidates:
            numbers[name] = np.full(len(table), -1, dtype=np.int16)
            known = self._contexts[name]
            if isinstance(known, str) or not len(table):
                continue
            column = self._cells_of(name, table)
            try:
                positions, cells = pd.factorize(column)
                texts, wrong = texts_of(pd.Series(cells))
            except TypeError:  # lists
                texts, wrong = pd.Series(dtype="str"), np.ones(1, dtype=bool)
            if wrong.any():
                self._contexts[name] = _NO_TEXTS
                continue
            texts = texts.map(decoded).str.strip()
            of_cells = [known.setdefault(text, len(known)) if text else -1 for text in texts]
            if len(known) > TRACKED:
                self._contexts[name] = MANY
            else:
                numbers[name] = np.array([*of_cells, -1], dtype=np.int16)[positions]
        return numbers

    def _clean(self, path: Path, table: pd.DataFrame) -> InteractionBatch:
        """The rows of a part that have ids and a time."""
        user, item, time = (self._columns[name] for name in ("user", "item", "time"))
        self._lines += table.attrs.get(INSIDE, 0)
        table = self._chosen(_rows_with_ids(table, path, (user, item), self._bad), path)
        events, table = self._events_of(table, path)
        times = None
        if time:
            times, right = self._times.read(table[time], partial(row_location, path))
            if not right.all():
                times, table = times[right], table[right]
                events = None if events is None else events[right]
        index = self._index.get_indexer(pd.Index(table[item])).astype(np.int32)
        unknown = np.flatnonzero(index < 0)
        if len(unknown) and not self._unknown_count:
            first = int(unknown[0])
            where = row_location(path, int(table.index[first]))
            self._unknown = f"{where}, column {item!r}: item {shown(table[item].iloc[first])}"
        self._unknown_count += len(unknown)
        users = pa.array(table[user], pa.string(), from_pandas=True)
        return InteractionBatch(users, index, times, events, self._numbers_of(table))

    def _chosen(self, table: pd.DataFrame, path: Path) -> pd.DataFrame:
        """The rows that meet all conditions."""
        for condition in self._conditions:
            column_of(table, path, condition.column, None)
            texts = _texts(table, condition.column, path)
            met, wrong = condition.holds(texts)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                self._bad.add(
                    "bad_number",
                    f"{row_location(path, int(table.index[row]))}, column {condition.column!r}: "
                    f"{shown(texts.iloc[row])} is no number ({int(wrong.sum())} such rows), so that '{condition}' "
                    "cannot be told. Correct or drop them.",
                    int(wrong.sum()),
                )
            self._left_out += int((~met & ~wrong).sum())
            table = table[met]
        return table

    def _events_of(self, table: pd.DataFrame, path: Path) -> tuple[np.ndarray | None, pd.DataFrame]:
        """The numbers of the rows' events, int16 (B,), and the rows that have one."""
        if self._event_numbers is None:
            return None, table
        name = self._columns["event"]
        column_of(table, path, name, "event")
        texts = _texts(table, name, path)
        empty = (texts == "").to_numpy()
        if empty.any():
            row = int(table.index[empty][0])
            self._bad.add(
                "no_event",
                f"{row_location(path, row)}: column {name!r} is empty ({int(empty.sum())} such rows), but targets are "
                "given. Fill in or drop these rows.",
                int(empty.sum()),
            )
            table, texts = table[~empty], texts[~empty]
        numbers, names = pd.factorize(texts)
        for event in names:
            self._event_numbers.setdefault(str(event), len(self._event_numbers))
        if len(self._event_numbers) > EVENTS:
            raise DataError(
                f"{self.where}: column {name!r} holds more than {EVENTS:,} different texts, such as "
                f"{shown(str(names[-1]))}. Name the column of the kinds of events with --columns event=NAME."
            )
        known = np.array([self._event_numbers[str(event)] for event in names], dtype=np.int16)
        return known[numbers], table


def read_tables(
    interactions: str | os.PathLike[str] | TableFiles,
    items: str | os.PathLike[str],
    bad: BadRows | None = None,
    *,
    size: int = PART,
    time_unit: str | None = None,
    where: str = "",
    events: bool = False,
    contexts: Collection[str] | None = (),
    users: str | os.PathLike[str] | None = None,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> TableSource:
    """Read items, and interactions part by part; item index i is row i of the items table.

    Of a table that is larger than a part, an error of ids or times counts the rows of the part in which it was met, and
    of several kinds of bad rows the one that is met first is named.

    Args:
        interactions: csv, tsv, jsonl or parquet with one row an interaction, in any order; or a folder of such files,
            all of one kind and with the same columns, which stand for one file with the rows of all in the order of
            their names. The texts of csv, tsv and jsonl may be packed (.csv.gz).
        items: csv, tsv, jsonl or parquet with one row an item.
        bad: Counts rows that cannot be used; one is an error if None.
        size: Bytes of a part of a text table, about.
        time_unit: Unit of times that are numbers, a key of `minionerec.data.names.TIME_UNITS`; by the magnitude of all
            if None.
        where: Conditions that rows of interactions must meet (`minionerec.data.filters.parse_conditions`).
        events: Whether interactions have events.
        contexts: Columns of interactions, or of users, that are request features; all that may be if None.
        users: csv, tsv, jsonl or parquet with one row a user, whose columns may be request features; users that it
            lacks have no values. None without such a table.
        columns: Names of columns, by keys of `minionerec.data.names.COLUMNS`: item ids (in both tables), titles,
            descriptions, user ids, times (numbers or ISO dates), and events. Without a column of times ("") rows are in
            the order of time.

    Raises:
        ArtefactError: If a folder holds no file to read, or a folder.
        DataError: If a file or column is missing or a column there twice, files of a folder differ, or the unit of
            times is not clear; and, as far as `bad` does not allow it, if a row has more or fewer cells than the header
            or is not CSV, an id is empty, of several lines or (of an item or user) given twice, a time does not parse,
            or an interaction's item is unknown. Errors of interactions are raised when they are read.
    """
    bad = bad or BadRows()
    of_items = [name for flag, name in {**COLUMNS, **columns}.items() if flag in OF_ITEMS]
    catalogue, files = read_table(Path(items), bad, of_items), TableFiles.at(interactions)
    conditions = parse_conditions(where)
    if files.kind in (*SEPARATORS, LINES):
        tables = _text_parts(files, bad, size)
    else:
        flags = (*OF_INTERACTIONS, *["event"] * events)
        named = {flag: {**COLUMNS, **columns}[flag] for flag in flags}
        others = [condition.column for condition in conditions]
        if files.kind == PARQUET:
            others += _context_names(files, contexts)
        tables = _parquet_parts(files, named, others)
    catalogue_file = catalogue, Path(items)
    known = None if users is None else _read_users(Path(users), {**COLUMNS, **columns}["user"], bad)
    return TableSource(
        tables, files.where, catalogue_file, bad, columns, time_unit, conditions, events, contexts, known
    )


def _read_users(path: Path, user: str, bad: BadRows) -> pd.DataFrame:
    """The columns of a table of users, by id; see `read_tables`."""
    table = read_table(path, bad, (user,))
    column_of(table, path, user, "user")
    return _without_repeats(_rows_with_ids(table, path, (user,), bad), user, "user", path, bad).set_index(user)


def column_names(files: TableFiles, bad: BadRows) -> list[str]:
    """The columns of some files, by the first of them.

    Raises:
        DataError: If it cannot be read.
    """
    if files.kind not in (*SEPARATORS, LINES):
        return list(read_schema(files.files[0]).names)
    _, part = next(iter(_text_parts(files, bad, 1 << 16)))
    return [str(name) for name in part.columns]


def _text_parts(files: TableFiles, bad: BadRows, size: int) -> Iterator[tuple[Path, pd.DataFrame]]:
    """The parts of some text tables with their files, one file after another."""
    first: list[str] | None = None
    for path in files.files:
        lines = files.kind == LINES
        parts = read_json_parts(path, size, bad) if lines else read_text_parts(path, SEPARATORS[files.kind], bad, size)
        length = path.stat().st_size if path.is_file() else 0  # what is no file is reported as it is read
        for table in progress(parts, f"reading {path.name}", -(-length // size), unit="parts"):
            if lines:  # a key may be missing where it has no value
                table = table.reindex(columns=list(dict.fromkeys([*(first or []), *table.columns])))
                yield path, table
                first = list(table.columns)
                continue
            first = first or list(table.columns)
            check_names(table.columns, path, first, files.files[0])
            yield path, table


def _context_names(files: TableFiles, named: Collection[str] | None) -> list[str]:
    """The columns of parquet files that are read for request features: those named, or all texts and truth values."""
    if named is not None:
        return [name for name in named if name in read_schema(files.files[0]).names]
    schemas = [read_schema(path) for path in files.files]

    def is_text(schema: pa.Schema, name: str) -> bool:
        kind = plain(schema.field(name).type) if schema.names.count(name) == 1 else pa.null()
        return any(of(kind) for of in (pt.is_string, pt.is_large_string, pt.is_string_view, pt.is_boolean))

    return [name for name in schemas[0].names if all(is_text(schema, name) for schema in schemas)]


def _parquet_parts(
    files: TableFiles, columns: Mapping[str, str], others: Sequence[str]
) -> Iterator[tuple[Path, pd.DataFrame]]:
    """Some columns of parquet files in parts: those that flags name, and others."""
    if files.kind != PARQUET:
        read_table(files.files[0])  # raises the error
    columns = {flag: name for flag, name in columns.items() if flag != "time" or name}
    names = list(dict.fromkeys([*columns.values(), *others]))
    schema = common_schema(files, names)
    whole = _frame(schema.empty_table(), files.files[0])
    for flag, name in [*columns.items(), *((None, name) for name in others)]:
        column_of(whole, files.files[0], name, flag)
    for path in files.files:
        begin = 0
        with readable_table(path), pq.ParquetFile(path) as file:
            batches = file.iter_batches(ROWS, columns=names)
            parts = -(-file.metadata.num_rows // ROWS)
            for batch in progress(batches, f"reading {path.name}", parts, unit="parts"):
                table = _frame(batch, path)
                table.index = pd.RangeIndex(begin, begin + len(table))
                table.attrs["columns"] = schema.names
                begin += len(table)
                yield path, table


def parse_items(table: pd.DataFrame, path: Path, bad: BadRows, columns: Mapping[str, str]) -> tuple[pd.DataFrame, int]:
    """The items of a table, each id once, with all its columns as texts; and the number of lines inside its cells.

    Raises:
        DataError: If a column is missing, or rows cannot be used and `bad` does not allow it.
    """
    item_column, title_column, description_column = (columns[name] for name in OF_ITEMS)
    for name, flag in ((item_column, "item"), (title_column, "title")):
        column_of(table, path, name, flag)
    if description_column not in table.columns and description_column == COLUMNS["description"]:
        table = table.assign(**{description_column: ""})
    column_of(table, path, description_column, "description")
    if not len(table):
        raise DataError(f"{path}: holds a header and no item. Expected a row an item.")
    lines = table.attrs.get(INSIDE, 0)
    table = _rows_with_ids(table, path, (item_column,), bad)
    table = _without_repeats(table, item_column, "item", path, bad)
    title, description = (_texts(table, name, path).to_numpy(object) for name in (title_column, description_column))
    items = item_table(table[item_column].to_numpy(object), title=title, description=description)
    return items.assign(**further_columns(table, path, {item_column, title_column, description_column})), lines


def further_columns(table: pd.DataFrame, path: Path, read: Collection[str]) -> dict[str, ExtensionArray]:
    """Read the columns of an items table besides id, title and description: texts, None where a cell is missing.

    One that occurs twice, has the name of one of the three, or has a cell that is no text is left out, with a warning.

    Args:
        table: The table, indexed by the rows of its file.
        path: The file, for messages.
        read: Columns that are read as id, title and description.
    """
    columns: dict[str, ExtensionArray] = {}
    for name in dict.fromkeys(name for name in table.columns if name not in read):
        problem = ""
        if list(table.columns).count(name) > 1:
            problem = "it occurs twice"
        elif name in ITEM_COLUMNS or not isinstance(name, str) or not name or not plain_text(name):
            problem = "a column of a corpus cannot have this name"
        else:
            texts, wrong = texts_of(table[name])
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                where = row_location(path, int(table.index[row]))
                problem = f"{shown(table[name].iloc[row])} ({where}) is no text, number or list of these"
            texts = texts.str.strip()
        if problem:
            logger.warning("%s: column %s is left out of the corpus: %s.", path, shown(name), problem)
        else:
            columns[name] = texts.where(texts != "").astype("str").array
    return columns
