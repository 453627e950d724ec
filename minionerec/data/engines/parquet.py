"""Interactions of parquet files, read and cleaned by the engine itself as `minionerec.data.sources.tables` does."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from minionerec.core.errors import DataError
from minionerec.data.engines.build import Raw
from minionerec.data.engines.engine import DIGITS, Engine, linked_name
from minionerec.data.engines.statements import has_form, real, units, whole
from minionerec.data.source import BadRows
from minionerec.data.sources.ids import refuse_malformed, refuse_missing
from minionerec.data.sources.table_files import TableFiles, plain
from minionerec.data.sources.tables import Catalogue, lines_inside, refuse_unknown, without_index
from minionerec.data.sources.times import DATE, FEWEST, NUMBER, all_dates, refuse_time, refuse_unit
from minionerec.data.units import BEYOND, DATE_FORMS, NANOSECOND, SECOND, SMALL, date_form, mixed_units

_USER, _ITEM, _TIME = 1, 3, 5
"""Why a row cannot be used: these for ids that are malformed, one more for those that are missing; the time is none."""
_EXACT = 2.0**53
_ROWS = 2**32
"""More than a parquet file has rows."""


@dataclass(frozen=True)
class ParquetVisits:
    """Parquet files of interactions with columns that an engine can read as they are.

    Attributes:
        files: The files.
        schema: Their columns.
        user: Column of user ids.
        item: Column of item ids.
        time: Column of times.
    """

    files: TableFiles
    schema: pa.Schema
    user: str
    item: str
    time: str

    @property
    def readable(self) -> bool:
        """Whether an engine can: ids are texts or whole numbers, times numbers or timestamps, names differ at all."""
        kinds = [plain(self.schema.field(name).type) for name in (self.user, self.item, self.time)]
        names = [name.casefold() for name in self.schema.names]
        alone = all(names.count(name.casefold()) == 1 for name in (self.user, self.item, self.time))
        return alone and all(_is_id(kind) for kind in kinds[:2]) and _is_time(kinds[2])

    def read(self, engine: Engine, catalogue: Catalogue, bad: BadRows) -> Raw:
        """Make the engine's table `raw`.

        Raises:
            DataError: Naming the first row that cannot be used, as far as `bad` does not allow it.
        """
        gaps, is_date = self._gaps(engine), _is_date(self._kind(self.time))
        unit = str(SMALL) if is_date else units("stamp")
        engine.table("given", f"SELECT *, {unit} AS unit FROM ({self._given(engine, gaps)}) AS read_in")
        found = engine.rows("SELECT reason, unit, count(*), min(place) FROM given GROUP BY reason, unit")
        self._refuse(found, is_date, bad)
        strange = set() if is_date else self._refuse_units(engine, found, bad)
        fits = " AND ".join(["reason = 0", *(f"unit <> {unit}" for unit in sorted(strange))])
        ids = pa.array(catalogue.items["item_id"], pa.string(), from_pandas=True)
        shelf = pa.table({"code": ids, "item": pa.array(np.arange(len(ids)), pa.int32())})
        engine.load("shelf", shelf.schema, [shelf])
        engine.table(
            "raw",
            f"SELECT g.place, g.person, s.item, g.stamp FROM given g JOIN shelf s ON g.code = s.code WHERE {fits}",
        )
        (count,) = engine.row("SELECT count(*) FROM raw")
        (fitting,) = engine.row(f"SELECT count(*) FROM given WHERE {fits}")
        if count < fitting:
            place, code = engine.row(
                "SELECT g.place, g.code FROM given g LEFT JOIN shelf s ON g.code = s.code "
                f"WHERE {fits} AND s.item IS NULL ORDER BY g.place LIMIT 1"
            )
            refuse_unknown(self._place(place), self.item, code, fitting - count, catalogue, bad)
        engine.drop("given")
        engine.drop("shelf")
        counts = lines_inside(catalogue.lines, 0)
        doubles = not is_date and (pt.is_floating(self._kind(self.time)) or gaps[2])
        return Raw(catalogue.items, self.files.where, count, True, doubles, NANOSECOND if is_date else SECOND, counts)

    def _kind(self, name: str) -> pa.DataType:
        return plain(self.schema.field(name).type)

    def _gaps(self, engine: Engine) -> list[bool]:
        """Which of the three columns have gaps that make doubles of whole numbers."""
        names = (self.user, self.item, self.time)
        counts = ", ".join(f"count(*) - count({engine.identifier(name)})" for name in names)
        gaps = engine.row(f"SELECT {counts} FROM {self._source(engine)[0]}")
        return [bool(n) and not stays_whole(self.schema, name) for name, n in zip(names, gaps, strict=True)]

    def _given(self, engine: Engine, gaps: list[bool]) -> str:
        """The statement of all rows, cleaned, with the `reason` why one cannot be used."""
        user, item, time = (engine.identifier(name) for name in (self.user, self.item, self.time))
        kind = self._kind(self.time)
        if _is_date(kind):
            per_second = 10**9 if kind.unit == "ns" else 10**6
            low, high = (
                int(np.datetime64(day, "s").astype(np.int64)) * per_second for day in ("1678-01-01", "2262-01-01")
            )
            ticks = engine.since_1970(time, kind.unit)
            right = f"({time} IS NOT NULL AND {ticks} >= {whole(low)} AND {ticks} < {whole(high)})"
            stamp = f"CASE WHEN {right} THEN {ticks} * {NANOSECOND // per_second} END"
        elif pt.is_floating(kind) or gaps[2]:
            stamp = f"CAST({time} AS DOUBLE)"
            right = f"({time} IS NOT NULL AND abs({stamp}) < {real(2.0**63)})"
            stamp = f"CASE WHEN {stamp} = {real(0.0)} THEN {real(0.0)} ELSE {stamp} END"  # no zero below zero
        else:
            stamp, right = f"CAST({time} AS BIGINT)", f"({time} IS NOT NULL)"
        reason = (
            f"CASE WHEN {self._broken(user, self.user, gaps[0])} THEN {_USER} WHEN {_empty(user)} THEN {_USER + 1} "
            f"WHEN {self._broken(item, self.item, gaps[1])} THEN {_ITEM} WHEN {_empty(item)} THEN {_ITEM + 1} "
            f"WHEN NOT {right} THEN {_TIME} ELSE 0 END"
        )
        source, place = self._source(engine)
        return (
            f"SELECT {place} AS place, CAST({user} AS STRING) AS person, CAST({item} AS STRING) AS code, "
            f"{stamp} AS stamp, {reason} AS reason FROM {source}"
        )

    def _source(self, engine: Engine) -> tuple[str, str]:
        """What stands behind FROM, and an interaction's place: the file's number and the row's, as one."""
        if self.files.single is not None:
            return engine.parquet(self.files.single), engine.row_number()
        number = f"CAST(left(right({engine.file_name()}, {len(linked_name(0))}), {DIGITS}) AS BIGINT)"
        return engine.parquet_files(self.files.files), f"({number} * {whole(_ROWS)} + {engine.row_number()})"

    def _broken(self, column: str, name: str, gaps: bool) -> str:
        """Whether an id is malformed: a text of several lines, or a number that a double cannot hold."""
        if pt.is_integer(self._kind(name)):
            return f"coalesce(abs(CAST({column} AS DOUBLE)) >= {real(_EXACT)}, FALSE)" if gaps else "FALSE"
        signs = " OR ".join(f"contains({column}, chr({sign}))" for sign in (10, 13, 0))
        return f"coalesce({signs}, FALSE)"

    def _refuse(self, found: list[tuple[int, int, int, int]], is_date: bool, bad: BadRows) -> None:
        """Count the rows that cannot be used, in the order in which the memory engine does."""
        for reason in range(1, _TIME + 1):
            groups = [(place, n) for why, _, n, place in found if why == reason]
            if not groups:
                continue
            place, n = min(groups)[0], sum(n for _, n in groups)
            column = self._column(place, self.user if reason < _ITEM else self.item if reason < _TIME else self.time)
            if reason == _TIME:
                refuse_time(self._place(place), column, 0, DATE if is_date else NUMBER, n, bad)
            elif reason in (_USER, _ITEM):
                refuse_malformed(self._place(place), str(column.name), column.iloc[0], n, bad)
            else:
                refuse_missing(self._place(place), str(column.name), bool(column.isna().iloc[0]), n, bad)

    def _refuse_units(self, engine: Engine, found: list[tuple[int, int, int, int]], bad: BadRows) -> set[int]:
        """Count the rows of another unit than most; gives these units.

        Raises:
            DataError: If most numbers are the digits of dates, or lie after 2100 in the unit of their size.
        """
        groups = {unit: (n, place) for why, unit, n, place in found if why == 0}
        if not groups:
            return set()
        ends = (0.0, 0.0)
        if SMALL in groups and len(groups) > 1:
            ends = engine.row(
                f"SELECT CAST(max(CASE WHEN unit = {SMALL} THEN stamp END) AS DOUBLE), "
                f"CAST(min(CASE WHEN unit <> {SMALL} THEN stamp END) AS DOUBLE) FROM given WHERE reason = 0"
            )
        usual, strange = mixed_units({unit: n for unit, (n, _) in groups.items()}, *ends)
        if strange:
            place = min(groups[unit][1] for unit in strange)
            column = self._column(place, self.time)
            n = sum(groups[unit][0] for unit in strange)
            refuse_unit(self._place(place), column, 0, usual, n, bad)
        place = min(place for unit, (_, place) in groups.items() if unit not in strange)
        column = self._column(place, self.time)
        form = None if usual == SMALL else self._date_form(engine, column, sorted(strange))
        if usual == BEYOND or form is not None:
            raise all_dates(self._place(place), column, 0, form)
        return strange

    def _date_form(self, engine: Engine, first: pd.Series, strange: list[int]) -> str | None:
        """The form of dates that all times have, a few different ones at least; `first` is the first of them."""
        form = date_form(first.to_numpy())
        if form is None:
            return None
        forms = " OR ".join(f"({has_form('stamp', each, engine.divide)})" for each in DATE_FORMS)
        fits = f"CASE WHEN stamp = floor(stamp) AND ({forms}) THEN 1 ELSE 0 END"
        where = " AND ".join(["reason = 0", *(f"unit <> {unit}" for unit in strange)])
        least, different = engine.row(f"SELECT min({fits}), count(DISTINCT stamp) FROM given WHERE {where}")
        return form if least == 1 and different >= FEWEST else None

    def _place(self, place: int) -> str:
        number, row = divmod(place, _ROWS)
        return f"{self.files.files[number]}, row {row + 1}"

    def _column(self, place: int, name: str) -> pd.Series:
        """One value of a column."""
        number, row = divmod(place, _ROWS)
        path = self.files.files[number]
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if row < size:
                    column: pd.Series = file.read_row_group(group, [name]).slice(row, 1).to_pandas()[name]
                    return column
                row -= size
        raise DataError(f"{path}: was changed while it was read. Start again.")


def stays_whole(schema: pa.Schema, name: str) -> bool:
    """Whether pandas, which wrote the file, reads a column with gaps as whole numbers, and not as doubles."""
    return isinstance(without_index(schema.empty_table().to_pandas())[name].dtype, pd.api.extensions.ExtensionDtype)


def _is_id(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or (pt.is_integer(kind) and kind != pa.uint64()))


def _is_date(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind))


def _is_time(kind: pa.DataType) -> bool:
    number = pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)
    return bool(number and kind != pa.uint64()) or _is_date(kind)


def _empty(column: str) -> str:
    return f"({column} IS NULL OR CAST({column} AS STRING) = '')"
