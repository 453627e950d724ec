"""From files to an engine's table `raw`: parquet by the engine, text in parts, other sources by way of memory."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.errors import DataError
from minionerec.data.engines.build import Raw
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.handing import Part, hand_over
from minionerec.data.engines.parquet import ParquetVisits, plain, read_schema
from minionerec.data.source import BadRows
from minionerec.data.sources.tables import (
    DESCRIPTION,
    SEPARATORS,
    Catalogue,
    clean_visits,
    column_of,
    lines_inside,
    parse_items,
    read_table,
)
from minionerec.data.sources.text_parts import PART, read_text_parts
from minionerec.data.units import NANOSECOND

ROWS = 1 << 18
"""Rows of a parquet file that are cleaned at a time, where the engine cannot do it itself."""


def read_tables_with(
    engine: Engine,
    interactions: Path,
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

    A text table is cleaned in parts. Rows that cannot be used are counted the same; where they are too many, the error
    counts those of the part that it names.

    Args:
        engine: The engine.
        interactions: csv, tsv or parquet.
        items: The same.
        bad: Counts rows that cannot be used.
        item_column: As in `read_tables`, like the others.
        title_column: Column of titles.
        description_column: Column of descriptions.
        user_column: Column of user ids.
        time_column: Column of times.
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
    if interactions.suffix.lower() == ".parquet":
        schema = read_schema(interactions)
        _check_columns(schema.empty_table().to_pandas(), interactions, columns)
        visits = ParquetVisits(interactions, schema, user_column, item_column, time_column)
        if visits.readable:
            return visits.read(engine, catalogue, bad)
        _check_ids(engine, schema, interactions, (user_column, item_column))
        parts = _parquet_parts(interactions, schema, list(columns.values()))
    elif interactions.suffix.lower() in SEPARATORS:
        parts = read_text_parts(interactions, SEPARATORS[interactions.suffix.lower()], bad, size)
    else:
        read_table(interactions, bad)  # says what is wrong with it
    return _clean(engine, parts, interactions, catalogue, columns, bad)


def _clean(
    engine: Engine,
    tables: Iterator[pd.DataFrame],
    path: Path,
    catalogue: Catalogue,
    columns: Mapping[str, str],
    bad: BadRows,
) -> Raw:
    """Clean tables one after another, and hand them over."""
    lines, ticks = 0, None

    def parts() -> Iterator[Part]:
        nonlocal lines, ticks
        for table in tables:
            _check_columns(table, path, columns)
            found = clean_visits(table, path, catalogue, bad, ticks=ticks, **columns)
            lines, ticks = lines + found.lines, found.ticks
            yield Part(pa.array(found.people, pa.string(), from_pandas=True), found.item_index, found.times)

    count, real = hand_over(engine, parts())
    ticks = NANOSECOND if ticks is None else ticks
    return Raw(catalogue.items, str(path), count, True, real, ticks, lines_inside(catalogue.lines, lines))


def _check_columns(table: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> None:
    for flag, name in columns.items():
        column_of(table, path, name, flag)


def _check_ids(engine: Engine, schema: pa.Schema, path: Path, names: tuple[str, str]) -> None:
    """Check that ids are such as mean the same in every part of a file."""
    right: list[Callable[[pa.DataType], bool]] = [pa.types.is_string, pa.types.is_large_string, pa.types.is_integer]
    for name in names:
        kind = plain(schema.field(name).type)
        if not any(is_so(kind) for is_so in right):
            raise DataError(
                f"{path}: column {name!r} is {kind}; engine {engine.name!r} reads ids that are text or whole numbers. "
                "Write it as one of these, or set engine to 'memory'."
            )


def _parquet_parts(path: Path, schema: pa.Schema, names: list[str]) -> Iterator[pd.DataFrame]:
    """Some columns of a parquet file in parts; whole numbers with gaps are doubles in all of them, as in one table."""
    with pq.ParquetFile(path) as file:
        doubled = [name for name in names if pa.types.is_integer(schema.field(name).type) and _has_gaps(path, name)]
        begin = 0
        for batch in file.iter_batches(ROWS, columns=names):
            for name in doubled:
                batch = batch.set_column(
                    batch.schema.get_field_index(name), name, batch[name].cast(pa.float64(), safe=False)
                )
            table = batch.to_pandas().reset_index(drop=True)
            table.index = pd.RangeIndex(begin, begin + len(table))
            begin += len(table)
            yield table


def _has_gaps(path: Path, name: str) -> bool:
    with pq.ParquetFile(path) as file:
        return any(batch[name].null_count for batch in file.iter_batches(ROWS, columns=[name]))
