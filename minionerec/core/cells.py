"""Cells of tables and data frames as texts and numbers: the same for every file format and every kind of frame."""

import math
import re
from collections.abc import Collection
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any
from uuid import UUID

from minionerec.core.errors import DataError, one_line, shown
from minionerec.core.log import get_logger

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

logger = get_logger(__name__)

EXACT = 2**53
"""Whole numbers below are distinguished by float64."""
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]+)?(?<=[0-9])([eE][+-][0-9]{2,3})?")
_INDEX = re.compile(r"__index_level_\d+__")
_DEPTH = 20
_PLAIN = ("string", "integer", "floating", "mixed-integer-float", "boolean", "bytes", "decimal", "empty")
"""Kinds of columns of objects of which arrow keeps each cell, as `pandas.api.types.infer_dtype` names them."""
_REFUSED = (ValueError, TypeError, OverflowError, NotImplementedError, AttributeError)
"""Exceptions that arrow raises besides its own, of values that it does not take."""


def plain_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: half of a surrogate pair, which JSON may name, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, NaT or pandas' NA."""
    import pandas as pd

    return cell is None or (not isinstance(cell, str) and pd.api.types.is_scalar(cell) and bool(pd.isna(cell)))


def text_of(cell: Any, depth: int = _DEPTH) -> str:
    """A cell as text: "" where it is missing, whole numbers as their digits, the parts of a list joined by spaces.

    Args:
        cell: A text, UTF-8 bytes, a number, a truth value, a date, a time, a UUID, or a list, tuple, set or array of
            these.
        depth: Levels of lists that are followed.

    Raises:
        ValueError: If the value has another type, or is a text that UTF-8 cannot write.

    Example:
        >>> text_of(2.0), text_of(["A text.", None, "More."]), text_of(None)
        ('2', 'A text. More.', '')
    """
    if isinstance(cell, str):
        cell.encode("utf-8")
        return str(cell)
    if is_missing(cell):
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8")
    if hasattr(cell, "dtype") and not getattr(cell, "ndim", 1):
        cell = cell if cell.dtype.kind == "f" else cell.item() if cell.dtype.kind in "biuc" else str(cell)
    if isinstance(cell, Integral) and not isinstance(cell, bool):
        return str(int(cell))
    if isinstance(cell, Decimal) and cell.is_finite():
        return format(cell.to_integral_value() if cell == cell.to_integral_value() else cell, "f")
    if isinstance(cell, Real) and not isinstance(cell, bool) and math.isfinite(cell):
        return str(math.floor(cell)) if cell == math.floor(cell) and abs(float(cell)) < EXACT else str(cell)
    if isinstance(cell, str | bool | Real | Decimal | date | time | timedelta | UUID | PathLike):
        return str(cell)
    if type(cell).__name__ in ("Period", "Interval"):
        return str(cell)
    if (depth and isinstance(cell, list | tuple | set | frozenset)) or (depth and getattr(cell, "ndim", 0)):
        parts = (text_of(part, depth - 1).strip() for part in cell)
        return " ".join(part for part in (sorted(parts) if isinstance(cell, set | frozenset) else parts) if part)
    raise ValueError(f"a {type(cell).__name__} is no text")


def texts_of(column: "pd.Series", *, lists: bool = True) -> "tuple[pd.Series, np.ndarray]":
    """The cells of a column as texts, see `text_of`.

    Args:
        column: N cells.
        lists: Whether a list is a text.

    Returns:
        The texts, dtype str, with the column's index, "" for what is missing or no text; bool (N,), which cells are
        no texts.
    """
    import numpy as np
    import pandas as pd

    none = np.zeros(len(column), dtype=bool)
    if column.dtype == "str":
        return column.fillna(""), none
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if pd.api.types.is_float_dtype(column.dtype):
        known = column.dropna()
        if bool(((known == known.round()) & (known.abs() < EXACT)).all()):
            column = column.astype("Int64")
    if pd.api.types.is_integer_dtype(column.dtype):
        return column.astype(object).where(column.notna(), "").astype("str"), none
    texts, wrong = [], none
    for row, cell in enumerate(column.astype(object)):
        try:
            texts.append(text_of(cell, _DEPTH if lists else 0))
        except ValueError:
            texts.append("")
            wrong[row] = True
    return pd.Series(texts, index=column.index, dtype="str", name=column.name), wrong


def number_of(cell: Any) -> int | float | None:
    """A cell as a finite number; None for other cells, and for texts that are not how their number is written.

    Texts such as "09", "1e1" or "+5" are codes: as numbers they would be the same as others.

    Example:
        >>> number_of("9.50"), number_of(2**53 + 1), number_of("09"), number_of("1e1"), number_of("1e-05")
        (9.5, 9007199254740993, None, None, 1e-05)
    """
    if isinstance(cell, str):
        cell = cell.strip()
        if len(cell) > 400 or not _DECIMAL.fullmatch(cell):
            return None
        cell = int(cell) if cell.lstrip("-").isdigit() else float(cell)
    elif hasattr(cell, "dtype") and not getattr(cell, "ndim", 1):
        cell = cell.item()
    if isinstance(cell, bool):
        return None
    if isinstance(cell, Integral):
        return int(cell)
    if isinstance(cell, Decimal) and cell.is_finite() and cell == cell.to_integral_value():
        return int(cell)
    if not isinstance(cell, Real | Decimal) or not math.isfinite(cell):
        return None
    return float(cell)


# Arrow tables as data frames, and data frames as arrow tables.


def frame_of(table: "pa.Table | pa.RecordBatch", needed: Collection[str] | None = None) -> "pd.DataFrame":
    """An arrow table as a data frame that loses nothing: whole numbers stay whole beside missing ones.

    Args:
        table: The table. An index that pandas wrote is a column; one without a name is left out.
        needed: The columns that must be readable, all if None; others that cannot be read are left out.

    Returns:
        The columns, rows from 0; its `attrs["columns"]` are the names of all.

    Raises:
        DataError: If a needed column cannot be read; the message names it.
    """
    import pandas as pd
    import pyarrow as pa

    names = [name for name in table.schema.names if not _INDEX.fullmatch(name)]
    series_list = []
    for position, name in enumerate(table.schema.names):
        if _INDEX.fullmatch(name):
            continue
        column = table.column(position)
        kind = column.type
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        try:
            nullable = pa.types.is_integer(column.type) and column.null_count
            mapper = {column.type: _nullable(column.type)}.get if nullable else None
            cells = pa.table({"cells": column}).to_pandas(ignore_metadata=True, types_mapper=mapper)["cells"]
        except (*_REFUSED, pa.ArrowException) as error:
            if needed is not None and name not in needed:
                logger.warning("Column %s (%s) cannot be read and is left out.", shown(name), str(kind)[:60])
                continue
            raise DataError(f"column {name!r} ({str(kind)[:60]}) cannot be read: {one_line(error, 200)}.") from None
        series_list.append(cells.rename(name))
    frame = pd.DataFrame(
        dict(enumerate(series_list)), index=pd.RangeIndex(len(table) if not series_list else len(series_list[0]))
    )
    frame.columns = pd.Index([cells.name for cells in series_list], dtype=object)
    frame.attrs["columns"] = names
    return frame


def _nullable(kind: "pa.DataType") -> Any:
    """Pandas' type of whole numbers that may be missing."""
    import pandas as pd

    return pd.api.types.pandas_dtype(str(kind).replace("i", "I", 1).replace("uI", "UI", 1))


def is_frame(given: Any) -> bool:
    """Whether a value is a data frame of any library with arrow's interface: pandas, polars, DuckDB, pyarrow."""
    return hasattr(given, "__arrow_c_stream__")


def arrow_table(name: str, frame: Any, columns: Collection[str] | None = None) -> "pa.Table":
    """A data frame as an arrow table that parquet can hold.

    A column of mixed cells becomes texts. A column that is not needed is left out if it cannot be written or its name
    occurs twice.

    Args:
        name: Name of the frame, for messages.
        frame: See `is_frame`. A named index of pandas becomes a column, as pandas writes it.
        columns: The columns that will be read; all if None.

    Raises:
        DataError: If a wanted column occurs twice, or a cell of it is no text; the message names column and row.
    """
    import pandas as pd
    import pyarrow as pa

    if isinstance(frame, pd.DataFrame):
        levels = [level for level in frame.index.names if level is not None and level not in frame.columns]
        if levels and len(set(levels)) == len(levels):
            frame = frame.reset_index(level=levels)
        names = [str(column) for column in frame.columns]
        cells_by_column = [frame.iloc[:, position] for position in range(frame.shape[1])]
    else:
        try:
            table = pa.table(frame)
        except (*_REFUSED, pa.ArrowException) as error:
            raise DataError(f"{name}: the data frame cannot be read ({one_line(error, 200)}).") from None
        names, cells_by_column = table.schema.names, table.columns
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    for column, cells in zip(names, cells_by_column, strict=True):
        try:
            if names.count(column) > 1:
                raise DataError(f"{name}: column {column!r} occurs twice. Name each column once.")
            if not plain_text(column):
                raise DataError(f"{name}: column {column!r} has a name that is not UTF-8.")
            arrays[column] = _array(name, column, cells)
        except DataError:
            if columns is None or column in columns:
                raise
    return pa.table(arrays)


def _array(name: str, column: str, cells: "pd.Series | pa.ChunkedArray") -> Any:
    """A column as an arrow array that parquet holds: as it is where that keeps each cell, else the texts of its cells.

    Of objects arrow takes the type of the first: beside a date, 7 becomes 1970-01-08, and a time of day or a time zone
    is lost; beside a number, True becomes 1, and a UUID its number.
    """
    import pandas as pd
    import pyarrow as pa

    if isinstance(cells, pa.ChunkedArray):
        if _is_held(cells.type):
            return cells
        cells = pd.Series(cells.to_pylist(), dtype=object)
    is_plain = cells.dtype != object or pd.api.types.infer_dtype(cells, skipna=True) in _PLAIN
    if is_plain or all(isinstance(cell, list) for cell in cells.dropna()):
        try:
            array = pa.array(cells, from_pandas=True)
            if _is_held(array.type):
                return array
        except (*_REFUSED, pa.ArrowException):
            pass
    cells = cells.astype(object).reset_index(drop=True)
    texts, wrong = texts_of(cells)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{name}, column {column!r}, row {row + 1}: {shown(cells[row])} is no text, number or date "
            f"({int(wrong.sum())} such rows). Mend the cells, or leave the column out."
        )
    return pa.array(texts.astype(object).where(cells.notna(), None), pa.string(), from_pandas=True)


def _is_held(kind: "pa.DataType") -> bool:
    """Whether parquet holds a type as it is."""
    import pyarrow as pa

    types = pa.types
    odd = types.is_union(kind) or types.is_interval(kind) or types.is_run_end_encoded(kind) or "_view" in str(kind)
    return not (odd or isinstance(kind, pa.BaseExtensionType))
