"""Parquet files: reading with checks of columns and errors in one line, and writing of given data frames."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minionerec.core.artefacts import atomic_write
from minionerec.core.cells import arrow_table, is_frame
from minionerec.core.errors import ArtefactError, MinioneRecError, fault, one_line
from minionerec.core.paths import input_path

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

KINDS = {"text": "texts", "whole": "whole numbers", "number": "numbers", "lists": "lists of whole numbers"}


def read_parquet(
    path: str | os.PathLike[str],
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
    within: Mapping[str, tuple[int, int]] | None = None,
    only: bool = False,
    error: type[MinioneRecError] = ArtefactError,
    remedy: str = "Run the stage that makes it again.",
) -> "pd.DataFrame":
    """Read a parquet file.

    Args:
        path: The file.
        columns: Column → key of `KINDS`, for the required columns; missing values are refused.
        optional: Column → key of `KINDS`, for columns that may be absent.
        within: Column of whole numbers, or of lists of them → its allowed minimum and maximum, if it is present.
        only: Whether to read only the columns of `columns` and `optional`.
        error: Class of the exception that is raised.
        remedy: Last sentence of its message.

    Raises:
        error: If the file cannot be read or lacks a column, or a column has gaps or another type.
    """
    import pyarrow.parquet as pq

    with readable(path, error=error, remedy=remedy):
        schema = pq.ParquetFile(path).schema_arrow
        kinds = {**columns, **{name: kind for name, kind in (optional or {}).items() if name in schema.names}}
        problem = next(filter(None, (_type_problem(schema, name, kind) for name, kind in kinds.items())), None)
        if problem is None:
            table = pq.read_table(path, columns=list(kinds) if only else None)
            limits = within or {}
            problems = (_cell_problem(table[name], name, kind, limits.get(name)) for name, kind in kinds.items())
            problem = next(filter(None, problems), None)
        if problem is None:
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)  # which may make a column the index
            return frame
    raise error(f"{path}: {problem}. {remedy}")


def table_path(name: str, given: Any, file: str | os.PathLike[str], columns: Collection[str] | None = None) -> str:
    """The path of a table: a path as given; a data frame is written to `file`, unless the file is equal already.

    Args:
        name: Name of the table, for messages.
        given: A data frame (`minionerec.core.cells.is_frame`), or a path as of `minionerec.core.paths.input_path`.
        file: The parquet file for a data frame.
        columns: The columns of a data frame that will be read; all if None.

    Raises:
        ConfigError: If `given` is neither a data frame nor a path.
        DataError: If a column of a data frame that will be read cannot be written (`arrow_table`).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_frame(given):
        return input_path(name, given, "a data frame, or the path of a csv, tsv, jsonl or parquet file")
    buffer = pa.BufferOutputStream()
    pq.write_table(arrow_table(name, given, columns), buffer)
    path, content = Path(file), buffer.getvalue().to_pybytes()
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as fresh:
            fresh.write_bytes(content)
    return str(path)


@contextmanager
def readable(
    path: str | os.PathLike[str], *, error: type[MinioneRecError] = ArtefactError, remedy: str
) -> Iterator[None]:
    """Report errors of arrow and of the file system in one line.

    Args:
        path: The file that is read in the block.
        error: Class of the exception that is raised.
        remedy: Last sentence of its message.

    Raises:
        error: If the file cannot be read.
    """
    import pyarrow as pa

    failures = (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, NotImplementedError)
    try:
        yield
    except (*failures, MemoryError, pa.ArrowException) as raised:  # sizes in a damaged file may be any
        reason = fault(raised) if isinstance(raised, OSError) and raised.errno else str(raised)
        reason = "no such file" if isinstance(raised, FileNotFoundError) else reason
        raise error(f"{path}: cannot be read as parquet ({one_line(reason, 300).rstrip('.')}). {remedy}") from None


def _type_problem(schema: "pa.Schema", name: str, kind: str) -> str | None:
    import pyarrow.types as types

    indices = schema.get_all_field_indices(name)
    if len(indices) != 1:
        return f"has {len(indices)} columns {name!r}; expected one of {KINDS[kind]}"
    column_type = schema.field(indices[0]).type
    whole = types.is_integer(column_type)
    fits = {
        "text": types.is_string(column_type) or types.is_large_string(column_type),
        "whole": whole,
        "number": whole or types.is_floating(column_type),
        "lists": (types.is_list(column_type) or types.is_large_list(column_type))
        and types.is_integer(column_type.value_type),
    }
    return None if fits[kind] else f"column {name!r} holds {str(column_type)[:60]}; expected {KINDS[kind]}"


def _cell_problem(column: "pa.ChunkedArray", name: str, kind: str, limits: tuple[int, int] | None) -> str | None:
    """The problem of missing values (a number may be missing), or of whole numbers beyond limits; else None.

    Raises:
        ArrowException: If a text is not UTF-8.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "text":
        column.validate(full=True)
    if kind != "number" and column.null_count:
        return f"column {name!r} has gaps, but every row needs a value"
    if limits is None:
        return None
    values = pa.chunked_array([chunk.flatten() for chunk in column.chunks]) if kind == "lists" else column
    if values.null_count:
        return f"column {name!r} has gaps, but every entry needs a number"
    low, high = pc.min_max(values).as_py().values()
    if low is None or (limits[0] <= low and high <= limits[1]):
        return None
    return f"column {name!r} holds {low if low < limits[0] else high}; expected {limits[0]} to {limits[1]}"
