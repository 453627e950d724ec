"""Ids of rows, as text, and messages about rows without one."""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.core.errors import shown
from minionerec.data.files import plain_text
from minionerec.data.source import BadRows
from minionerec.data.sources.tangles import drop_swallowing
from minionerec.data.sources.text import TextFile


def row_location(table: pd.DataFrame, path: Path, row: int) -> str:
    """Position of row `row` (from 0) for messages: the line of a text file as an editor counts, else the row from 1."""
    file: TextFile | None = table.attrs.get("file")
    line = None if file is None else file.line(row)
    return f"{path}, row {row + 1}" if line is None else f"{path}, line {line}"


def rows_with_ids(
    table: pd.DataFrame,
    path: Path,
    ids: tuple[str, ...],
    bad: BadRows,
    *,
    time: str | None = None,
    known: Mapping[str, Collection[str]] | None = None,
) -> tuple[pd.DataFrame, int]:
    """The rows of a table that swallow no others and have an id in each of some columns.

    Args:
        table: The table, from `read_table`.
        path: Its file, for messages.
        ids: Columns of ids; returned as texts.
        bad: Counts the other rows.
        time: As in `drop_swallowing`.
        known: As in `drop_swallowing`.

    Returns:
        The rows with the index that they had; how many lines lie inside their cells.

    Raises:
        DataError: If there are such rows, as far as `bad` does not allow them.
    """
    table, lines = drop_swallowing(table, path, ids, time, bad, known=known)
    for name in ids:
        table = _drop_without_id(table, name, path, bad)
    return table, lines


def _drop_without_id(table: pd.DataFrame, name: str, path: Path, bad: BadRows) -> pd.DataFrame:
    """The rows that have an id in a column, the ids as text, whole numbers as their digits."""
    column = table[name]
    missing = column.isna().to_numpy()
    wrong = np.zeros(len(column), dtype=bool)
    if pd.api.types.is_float_dtype(column.dtype):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = ~missing & ~(np.abs(numbers) < 2.0**53)  # others are no whole numbers that a float can distinguish
        column = column.where(~wrong)
        if (column[column.notna()] == column[column.notna()].round()).all():
            column = column.astype("Int64")
        else:  # the same text of a number, whatever the other numbers
            texts = [int(number) if number == number // 1 else number for number in column.astype(object)]
            column = pd.Series(texts, column.index, object)
    elif column.dtype == object:
        wrong = ~missing & ~column.map(_is_id).to_numpy(dtype=bool)
        column = column.where(~wrong)
    if column.dtype == "str":
        ids = column.fillna("")
    else:
        ids = column.astype(object).where(column.notna(), "").astype("str")
    wrong |= broken_ids(ids)
    rows = table.index
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        where, n = row_location(table, path, int(rows[row])), int(wrong.sum())
        bad.add(
            "malformed_id",
            f"{where}, column {name!r}: {shown(table[name].iloc[row])} is no id; expected a text of one line or a "
            f"whole number ({n} such rows). Mend or drop the row.",
            n,
        )
    empty = np.flatnonzero((ids == "").to_numpy(dtype=bool) & ~wrong)
    if len(empty):
        where, what = row_location(table, path, int(rows[empty[0]])), "missing" if missing[empty[0]] else "empty"
        bad.add("missing_id", f"{where}, column {name!r}: the id is {what}. Fill it in or drop the row.", len(empty))
    return table.assign(**{name: ids})[(ids != "").to_numpy(dtype=bool) & ~wrong]


def _is_id(value: object) -> bool:
    """Whether a value of a column of objects can be an id."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, bytes):
        try:
            value.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True
    return np.isscalar(value) or hasattr(value, "as_tuple") or hasattr(value, "hex")


def broken_ids(ids: pd.Series) -> np.ndarray:
    """Which ids hold the end of a line or a NUL: bool (rows,)."""
    texts = pa.array(ids, pa.string(), from_pandas=True)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    found = np.zeros(len(ids), dtype=bool)
    for sign in "\n\r\0":
        found |= pc.fill_null(pc.match_substring(texts, sign), False).to_numpy(zero_copy_only=False)
    return found
