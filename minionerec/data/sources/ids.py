"""Ids of rows, as text, and messages about rows without one."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.core.cells import EXACT, texts_of
from minionerec.core.errors import shown
from minionerec.data.source import BadRows
from minionerec.data.sources.table_files import PARQUET, kind_of


def row_location(path: Path, row: int) -> str:
    """Position, for messages, of a row by its index from 0: the line of a text file, the row of a parquet file."""
    return f"{path}, {'row' if kind_of(path) == PARQUET else 'line'} {row + 1}"


def rows_with_ids(table: pd.DataFrame, path: Path, ids: tuple[str, ...], bad: BadRows) -> pd.DataFrame:
    """The rows of a table that have an id in each of some columns.

    Args:
        table: The table, from `read_table`.
        path: Its file, for messages.
        ids: Columns of ids; returned as texts.
        bad: Counts the other rows.

    Returns:
        The rows with the index that they had.

    Raises:
        DataError: If there are other rows, as far as `bad` does not allow them.
    """
    for name in ids:
        table = _drop_without_id(table, name, path, bad)
    return table


def _drop_without_id(table: pd.DataFrame, name: str, path: Path, bad: BadRows) -> pd.DataFrame:
    """The rows that have an id in a column, the ids as text, whole numbers as their digits."""
    column = table[name]
    missing = column.isna().to_numpy()
    inexact = _inexact(column)
    ids, no_texts = texts_of(column.where(~inexact) if inexact.any() else column, lists=False)
    wrong: np.ndarray = no_texts | inexact | broken_ids(ids)
    rows = table.index
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        where, n = row_location(path, int(rows[row])), int(wrong.sum())
        bad.add(
            "malformed_id",
            f"{where}, column {name!r}: {shown(table[name].iloc[row])} is no id; expected a text of one line or a "
            f"whole number ({n} such rows). Correct or drop the row.",
            n,
        )
    empty = np.flatnonzero((ids == "").to_numpy(dtype=bool) & ~wrong)
    if len(empty):
        where, what = row_location(path, int(rows[empty[0]])), "missing" if missing[empty[0]] else "empty"
        bad.add("missing_id", f"{where}, column {name!r}: the id is {what}. Fill it in or drop the row.", len(empty))
    kept: pd.DataFrame = table.assign(**{name: ids})[(ids != "").to_numpy(dtype=bool) & ~wrong]
    return kept


def _inexact(column: pd.Series) -> np.ndarray:
    """Which cells are floats that do not distinguish whole numbers, or infinite: bool (rows,)."""
    if column.dtype == object:
        floats = [isinstance(cell, float | np.floating) and abs(float(cell)) >= EXACT for cell in column]
        return np.array(floats, dtype=bool)
    if not pd.api.types.is_float_dtype(column.dtype):
        return np.zeros(len(column), dtype=bool)
    return np.asarray(np.abs(column.to_numpy(dtype=np.float64, na_value=np.nan)) >= EXACT, dtype=bool)


def broken_ids(ids: pd.Series) -> np.ndarray:
    """Which ids hold the end of a line or a NUL: bool (rows,)."""
    texts = pa.array(ids, pa.string(), from_pandas=True)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    found = np.zeros(len(ids), dtype=bool)
    for sign in "\n\r\0":
        found |= pc.fill_null(pc.match_substring(texts, sign), False).to_numpy(zero_copy_only=False)
    return found
