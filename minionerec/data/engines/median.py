"""The middle one of many numbers, found by counting: no engine has to hold or to sort them."""

from minionerec.data.engines.engine import Engine
from minionerec.data.engines.statements import real

PARTS = 1024


def median(engine: Engine, table: str, column: str, count: int) -> float:
    """The median of a column without gaps, as `numpy.median` gives it.

    The range that holds the number is cut into `PARTS` and counted, until one value is left in it: a handful of scans.

    Args:
        engine: The engine.
        table: Its table.
        column: The column.
        count: Rows of the table, at least 1.
    """
    low = _at(engine, table, column, (count - 1) // 2)
    high = low if count % 2 else _at(engine, table, column, count // 2)
    return (low + high) / 2


def _at(engine: Engine, table: str, column: str, rank: int) -> float:
    """The number of a rank, from 0, in rising order."""
    number = f"CAST({column} AS DOUBLE)"
    low, high = engine.row(f"SELECT min({number}), max({number}) FROM {table}")
    while low < high and (width := (high / 2 - low / 2) / PARTS):  # halves, for their distance may be no double
        part = f"floor(({number} / 2 - {real(low / 2)}) / {real(width)})"
        inside = f"{number} BETWEEN {real(low)} AND {real(high)}"
        found = engine.rows(
            f"SELECT {part} AS part, count(*), min({number}), max({number}) FROM {table} WHERE {inside} "
            "GROUP BY part ORDER BY part"
        )
        for _, size, low, high in found:  # noqa: B007
            if rank < size:
                break
            rank -= size
    return float(low)
