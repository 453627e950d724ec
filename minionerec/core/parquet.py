"""Parquet files: reading, where columns are checked and errors are one line, and writing given data frames."""

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
        columns: Column → key of `KINDS`: the required columns, without missing values. Others are read, too, unless
            `only` is given.
        optional: The same of columns that may be missing.
        within: Column of whole numbers, or of lists of them → the least and the greatest number that it may hold, where
            it is there.
        only: Whether no other column is read.
        error: What is raised.
        remedy: What to do about it.

    Raises:
        error: If the file cannot be read or lacks a column, or a column has gaps or holds something else.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    frame = None
    with readable(path, error=error, remedy=remedy):
        held = pq.ParquetFile(path).schema_arrow
        wanted = {**columns, **{name: kind for name, kind in (optional or {}).items() if name in held.names}}
        wrong = next((flaw for name, kind in wanted.items() if (flaw := _flaw(held, name, kind))), None)
        if wrong is None and within:
            spans = {name: span for name, span in within.items() if name in wanted}
            table = pq.read_table(path, columns=list(spans))
            wrong = next((flaw for name, span in spans.items() if (flaw := _outside(table[name], name, span))), None)
        if wrong is None:
            frame = pd.read_parquet(path, columns=list(wanted) if only else None)
            wrong = next((flaw for name, kind in wanted.items() if (flaw := _holes(frame[name], name, kind))), None)
    if wrong is not None or frame is None:
        raise error(f"{path}: {wrong}. {remedy}")
    return frame


def table_path(name: str, given: Any, file: str | os.PathLike[str], columns: Collection[str] | None = None) -> str:
    """The path of a table: as given, or `file`, which a data frame is written to unless it holds the same already.

    Args:
        name: Name of the table, for messages.
        given: A data frame (`minionerec.core.cells.is_frame`), or a path as of `minionerec.core.paths.input_path`.
        file: The parquet file for a data frame.
        columns: The columns of a data frame that will be read; all if None.

    Raises:
        ConfigError: If it is neither a data frame nor a path.
        DataError: If a column of a data frame that will be read cannot be written (`arrow_table`).
    """
    if not is_frame(given):
        return input_path(name, given, "a data frame, or the path of a csv, tsv, jsonl or parquet file")
    path, content = Path(file), _parquet_bytes(name, given, columns)
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as fresh:
            fresh.write_bytes(content)
    return str(path)


def _parquet_bytes(name: str, frame: Any, columns: Collection[str] | None) -> bytes:
    """A data frame as a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(arrow_table(name, frame, columns), buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


@contextmanager
def readable(
    path: str | os.PathLike[str], *, error: type[MinioneRecError] = ArtefactError, remedy: str
) -> Iterator[None]:
    """Report errors of arrow and of the file system in one line.

    Args:
        path: The file that is read in the block.
        error: What is raised.
        remedy: What to do about it.

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


def _flaw(held: "pa.Schema", name: str, kind: str) -> str | None:
    import pyarrow.types as types

    found_at = held.get_all_field_indices(name)
    if len(found_at) != 1:
        return f"has {len(found_at)} columns {name!r}; expected one of {KINDS[kind]}"
    found = held.field(found_at[0]).type
    whole = types.is_integer(found)
    fits = {
        "text": types.is_string(found) or types.is_large_string(found),
        "whole": whole,
        "number": whole or types.is_floating(found),
        "lists": (types.is_list(found) or types.is_large_list(found)) and types.is_integer(found.value_type),
    }
    return None if fits[kind] else f"column {name!r} holds {str(found)[:60]}; expected {KINDS[kind]}"


def _outside(column: "pa.ChunkedArray", name: str, span: tuple[int, int]) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk.flatten() if hasattr(chunk, "flatten") else chunk for chunk in column.chunks]
    chunks = [chunk for chunk in chunks if len(chunk)]
    if not chunks:
        return None
    values = pa.chunked_array(chunks)
    if values.null_count:
        return f"column {name!r} has gaps, but every entry needs a number"
    low, high = pc.min_max(values).as_py().values()
    if low >= span[0] and high <= span[1]:
        return None
    return f"column {name!r} holds {low if low < span[0] else high}; expected {span[0]} to {span[1]}"


def _holes(column: Any, name: str, kind: str) -> str | None:
    """The problem with the values of a column: one is missing (a number may be NaN), or a text is not UTF-8."""
    import pandas as pd
    import pyarrow as pa

    if kind == "text" and isinstance(column.dtype, pd.StringDtype):
        pa.array(column.array).validate(full=True)
    if kind != "number" and bool(column.isna().any()):
        return f"column {name!r} has gaps, but every row needs a value"
    return None
