"""Interactions that this process has read, handed to an engine as its table `raw`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from minionerec.data.engines.build import Raw
from minionerec.data.engines.engine import Engine
from minionerec.data.source import Source

PART = 1 << 20
"""Interactions handed over at a time."""
SCHEMA = pa.schema(
    [
        ("place", pa.int64()),
        ("person", pa.string()),
        ("item", pa.int32()),
        ("whole", pa.int64()),
        ("real", pa.float64()),
    ]
)


@dataclass(frozen=True)
class InteractionPart:
    """Some interactions, in the source's order.

    Attributes:
        people: B users.
        items: int32 (B,), rows of the item table.
        times: int64 or float64 (B,); None where there are none.
    """

    people: pa.Array
    items: np.ndarray
    times: np.ndarray | None


def source_parts(source: Source) -> Iterator[InteractionPart]:
    """What a reader found, part by part."""
    for start in range(0, len(source.users), PART):
        some = slice(start, start + PART)
        people = source.user_ids.take(pa.array(source.users[some]))
        people = people.combine_chunks() if isinstance(people, pa.ChunkedArray) else people
        times = None if source.times is None else source.times[some]
        yield InteractionPart(people, source.item_index[some], times)


def hand_over(
    engine: Engine, parts: Iterable[InteractionPart], stays: Callable[[], str] = lambda: "item >= 0"
) -> tuple[int, bool]:
    """Make the engine's table `raw`.

    Whole numbers stay whole where all are; one part of doubles makes all doubles, as one column of all would be.

    Args:
        engine: The engine.
        parts: The interactions.
        stays: Says, once all parts were seen, which stay: a condition in SQL.

    Returns:
        How many there are, and whether their times are doubles.
    """
    count, real = 0, False

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count, real
        for part in parts:
            size = len(part.items)
            places = np.arange(count, count + size)
            times = np.zeros(size, dtype=np.int64) if part.times is None else part.times
            columns = [pa.array(places), part.people.cast(pa.string()), pa.array(part.items, pa.int32())]
            if times.dtype.kind == "f":
                real = real or bool(size)
                columns += [pa.nulls(size, pa.int64()), pa.array(times + 0.0)]
            else:
                columns += [pa.array(times, pa.int64()), pa.nulls(size, pa.float64())]
            count += size
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    engine.load("read_in", SCHEMA, batches())
    stamp = "coalesce(real, CAST(whole AS DOUBLE))" if real else "whole"
    whole = f"SELECT place, person, item, {stamp} AS stamp FROM read_in"
    engine.table("raw", f"SELECT place, person, item, stamp FROM ({whole}) AS handed WHERE {stays()}")
    engine.drop("read_in")
    (kept,) = engine.row("SELECT count(*) FROM raw")
    return kept, real


def hand_over_source(engine: Engine, source: Source) -> Raw:
    """The same of a source that was read into memory."""
    count, real = hand_over(engine, source_parts(source))
    return Raw(source.items, source.where, count, source.times is not None, real, source.ticks, source.counts)
