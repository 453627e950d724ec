"""From tables to an engine's table `raw`: parquet is read by the engine, text by this process, part by part."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.errors import DataError
from minionerec.data.engines import statements
from minionerec.data.engines.build import Raw
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.handing import InteractionPart, hand_over
from minionerec.data.engines.parquet import ParquetVisits, stays_whole
from minionerec.data.files import check_file, open_bytes
from minionerec.data.source import BadRows
from minionerec.data.sources.ids import place_of, rows_with_ids
from minionerec.data.sources.records import find_records, line_ends, split_cells
from minionerec.data.sources.table_files import PARQUET, SEPARATORS, TableFiles, check_names, common_schema, plain
from minionerec.data.sources.tables import (
    DESCRIPTION,
    Catalogue,
    check_columns,
    lines_inside,
    parse_items,
    read_table,
    refuse_unknown,
    without_index,
)
from minionerec.data.sources.text import text_part
from minionerec.data.sources.times import FEWEST, all_dates, read_times_of_part, refuse_unit
from minionerec.data.units import BEYOND, NANOSECOND, SECOND, SMALL, date_form, mixed_units, unit_numbers

# Text tables in parts of whole records, for those that no memory holds.

PART = 1 << 24
"""Bytes of a part, about."""


def read_text_parts(path: Path, separator: str, bad: BadRows | None = None, size: int = PART) -> Iterator[pd.DataFrame]:
    """The parts of a text table with a header, one after another, each as `read_text_table` gives the whole.

    A quoted cell is never cut, so a quote that swallows much of a file makes a part of it all.

    Args:
        path: The file, UTF-8.
        separator: What stands between cells.
        bad: As in `read_text_table`.
        size: Bytes of a part, about.

    Raises:
        DataError: As `read_text_table`.
    """
    check_file(path, "Give the path of a table.")
    head, rest, before = b"", b"", 0
    with open_bytes(path) as file:
        while read := file.read(size):
            content = head + rest + read
            cut = _cut(content, separator)
            if cut is None:
                rest += read
                continue
            yield text_part(path, separator, content[:cut], before, bad)
            body, rest = content[len(head) : cut], content[cut:]
            lines = len(line_ends(body))
            if not head:
                first = find_records(content[:cut], separator)
                head, before = content[first.begins[0] : first.ends[0]].rstrip(b"\r\n") + b"\n", -1
            before += lines
    if rest.strip() or not head:
        yield text_part(path, separator, head + rest, before, bad)


def _cut(content: bytes, separator: str) -> int | None:
    """Where a part may end: behind a record that is whole, before one that is no longer than the header."""
    records = find_records(content, separator)
    if len(records) < 4:
        return None
    most = _cells(content, records.begins[0], records.ends[0], separator)
    for last in range(len(records) - 2, 1, -1):  # the last one may go on in what is not read yet
        if _cells(content, records.begins[last], records.ends[last], separator) <= most:
            return int(records.begins[last])
    return None


def _cells(content: bytes, begin: np.int64, end: np.int64, separator: str) -> int:
    text = content[begin:end].decode("utf-8", errors="replace")
    return len(next(split_cells(text, separator), []))


ROWS = 1 << 18
"""Rows of a parquet file that are cleaned at a time, where the engine cannot do it itself."""


def read_tables_with(
    engine: Engine,
    interactions: str | os.PathLike[str] | TableFiles,
    items: Path,
    bad: BadRows,
    *,
    item_column: str = "item_id",
    title_column: str = "title",
    description_column: str = DESCRIPTION,
    user_column: str = "user_id",
    time_column: str = "timestamp",
    size: int = PART,
) -> Raw:
    """What `minionerec.data.sources.tables.read_tables` reads, as an engine's table `raw`; items are held in memory.

    A text table is cleaned in parts. Rows that cannot be used are counted the same. Where they are too many, an error
    of their ids or dates counts those of the part in which it was met; of several kinds of bad rows the one that is met
    first is named.

    Args:
        engine: The engine.
        interactions: csv, tsv or parquet, or a folder of such files, as in `read_tables`.
        items: csv, tsv or parquet.
        bad: Counts rows that cannot be used.
        item_column: As in `read_tables`, like the other columns.
        title_column: Of items.
        description_column: Of items.
        user_column: Of interactions.
        time_column: Of interactions.
        size: Bytes of a part of a text table, about.

    Raises:
        DataError: As `read_tables`; and of a parquet file whose ids are neither text nor whole numbers.
    """
    catalogue = parse_items(
        read_table(items, bad),
        items,
        bad,
        item_column=item_column,
        title_column=title_column,
        description_column=description_column,
    )
    columns = {"user_column": user_column, "item_column": item_column, "time_column": time_column}
    files = TableFiles.at(interactions)
    if files.suffix in SEPARATORS:
        return _Parts(files, catalogue, columns, bad).read(engine, _text_parts(files, columns, bad, size))
    if files.suffix != PARQUET:
        read_table(files.files[0], bad)  # says what is wrong with it
    schema = common_schema(files, columns.values())
    check_columns(without_index(schema.empty_table().to_pandas()), files.files[0], columns)
    visits = ParquetVisits(files, schema, user_column, item_column, time_column)
    if visits.readable:
        return visits.read(engine, catalogue, bad)
    _check_ids(engine, schema, files.files[0], (user_column, item_column))
    tables = _parquet_parts(files, schema, list(columns.values()))
    return _Parts(files, catalogue, columns, bad).read(engine, tables)


@dataclass
class _First:
    """Rows of a kind: how many, and of the first its number, its place in words, its time and its item.

    `least` and `most` are the ends of their times, `dates` tells whether all are digits of dates, `different` has some.
    """

    row: int
    place: str
    time: pd.Series
    item: str
    count: int = 0
    least: float = np.inf
    most: float = -np.inf
    dates: bool = True
    different: set[float] = field(default_factory=set)

    def add(self, times: np.ndarray) -> None:
        """Count the times of some more rows."""
        self.count += len(times)
        self.least, self.most = min(self.least, float(times.min())), max(self.most, float(times.max()))
        self.dates = self.dates and date_form(times) is not None
        if self.dates and len(self.different) < FEWEST:
            self.different.update(np.unique(times)[:FEWEST].tolist())


@dataclass
class _Parts:
    """A table that is cleaned part by part; of units of time and unknown items all parts are asked together."""

    files: TableFiles
    catalogue: Catalogue
    columns: Mapping[str, str]
    bad: BadRows
    lines: int = 0
    ticks: int | None = None
    rows: int = 0
    of_unit: dict[int, _First] = field(default_factory=dict)
    unknown: dict[int, _First] = field(default_factory=dict)

    def read(self, engine: Engine, tables: Iterator[tuple[Path, pd.DataFrame]]) -> Raw:
        """Clean the parts, each with its file, and hand them over."""
        count, real = hand_over(engine, map(self._clean, tables), self._stays)
        ticks = NANOSECOND if self.ticks is None else self.ticks
        counts = lines_inside(self.catalogue.lines, self.lines)
        return Raw(self.catalogue.items, self.files.where, count, True, real, ticks, counts)

    def _clean(self, part: tuple[Path, pd.DataFrame]) -> InteractionPart:
        """The rows of a part that have ids and a time; items that nobody knows are -1."""
        path, table = part
        user, item, time = (self.columns[f"{name}_column"] for name in ("user", "item", "time"))
        table, lines = rows_with_ids(table, path, (user, item), self.bad, time=time)
        self.lines += lines
        place = partial(place_of, table, path)
        times, right, self.ticks = read_times_of_part(table[time], place, self.bad, self.ticks)
        chosen, times = table[right], times[right]
        index = self.catalogue.index.get_indexer(pd.Index(chosen[item])).astype(np.int32)
        units = unit_numbers(times) if self.ticks == SECOND else np.full(len(times), SMALL)
        for found, some in ((self.of_unit, np.ones(len(times), dtype=bool)), (self.unknown, index < 0)):
            for unit in np.unique(units[some]).tolist():
                rows = np.flatnonzero(some & (units == unit))
                row = int(rows[0])
                if unit not in found:
                    where = place(int(chosen.index[row]))
                    found[unit] = _First(self.rows + row, where, chosen[time].iloc[[row]], chosen[item].iloc[row])
                found[unit].add(times[rows])
        self.rows += len(chosen)
        return InteractionPart(pa.array(chosen[user], pa.string(), from_pandas=True), index, times)

    def _stays(self) -> str:
        """Count the rows of another unit than most, and those whose item nobody knows; says which are neither."""
        strange = self._refuse_units() if self.ticks == SECOND and self.of_unit else set()
        unknown = [first for unit, first in self.unknown.items() if unit not in strange]
        if unknown:
            first = min(unknown, key=lambda each: each.row)
            n = sum(each.count for each in unknown)
            refuse_unknown(first.place, self.columns["item_column"], first.item, n, self.catalogue, self.bad)
        left_out = [f"{statements.units('stamp')} <> {unit}" for unit in sorted(strange)]
        return " AND ".join(["item >= 0", *left_out])

    def _refuse_units(self) -> set[int]:
        """Count the rows of another unit than most, and refuse digits of dates; gives these units."""
        known = self.of_unit
        others = [first.least for unit, first in known.items() if unit != SMALL]
        ends = (known[SMALL].most, min(others)) if SMALL in known and others else (0.0, 0.0)
        usual, strange = mixed_units({unit: first.count for unit, first in known.items()}, *ends)
        if strange:
            first = min((known[unit] for unit in strange), key=lambda each: each.row)
            n = sum(known[unit].count for unit in strange)
            refuse_unit(first.place, first.time, 0, usual, n, self.bad)
        kept = [each for unit, each in known.items() if unit not in strange]
        dates = usual != SMALL and all(each.dates for each in kept)
        different = set[float]().union(*(each.different for each in kept))
        if usual == BEYOND or (dates and len(different) >= FEWEST):
            first = min(kept, key=lambda each: each.row)
            form = date_form(first.time.astype(float).to_numpy()) if dates else None
            raise all_dates(first.place, first.time, 0, form)
        return strange


def _check_ids(engine: Engine, schema: pa.Schema, path: Path, names: tuple[str, str]) -> None:
    """Check that ids are such as mean the same in every part of a file."""
    for name in names:
        kind = plain(schema.field(name).type)
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
            raise DataError(
                f"{path}: column {name!r} is {kind}; engine {engine.name!r} reads ids that are text or whole numbers. "
                "Write it as one of these, or set engine to 'memory'."
            )


def _text_parts(
    files: TableFiles, columns: Mapping[str, str], bad: BadRows, size: int
) -> Iterator[tuple[Path, pd.DataFrame]]:
    """The parts of some text tables with their files, one file after another."""
    first: list[str] | None = None
    for path in files.files:
        for table in read_text_parts(path, SEPARATORS[files.suffix], bad, size):
            first = first or list(table.columns)
            check_names(table.columns, path, first, files.files[0])
            check_columns(table, path, columns)
            yield path, table


def _parquet_parts(files: TableFiles, schema: pa.Schema, names: list[str]) -> Iterator[tuple[Path, pd.DataFrame]]:
    """Some columns of parquet files in parts; whole numbers with gaps are doubles in all of them, as in one table."""
    doubled = [
        name
        for name in names
        if pa.types.is_integer(schema.field(name).type)
        and not stays_whole(schema, name)
        and any(_has_gaps(path, name) for path in files.files)
    ]
    for path in files.files:
        begin = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS, columns=names):
                for name in doubled:
                    place = batch.schema.get_field_index(name)
                    batch = batch.set_column(place, name, batch.column(place).cast(pa.float64(), safe=False))
                table = without_index(batch.to_pandas())
                table.index = pd.RangeIndex(begin, begin + len(table))
                begin += len(table)
                yield path, table


def _has_gaps(path: Path, name: str) -> bool:
    with pq.ParquetFile(path) as file:
        return any(batch.column(0).null_count for batch in file.iter_batches(ROWS, columns=[name]))
