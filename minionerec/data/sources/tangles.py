"""Rows whose quotes swallow other rows: found before any row is dropped silently."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.core.errors import shown
from minionerec.data.source import BadRows
from minionerec.data.sources.records import split_cells
from minionerec.data.sources.text import TextFile

_TIME = re.compile(r"\s*([-+]?\d+(\.\d*)?([eE][-+]?\d+)?|\d{4}-\d\d.*)\s*")


def drop_swallowing(
    table: pd.DataFrame,
    path: Path,
    ids: tuple[str, ...],
    time: str | None,
    bad: BadRows,
    *,
    known: Mapping[str, Collection[str]] | None = None,
) -> tuple[pd.DataFrame, int]:
    """Leave out the rows whose quoted cells hold other rows; each counts as the lines that it covers.

    Args:
        table: A table of `read_text_table`, whole; any other is given back as it is.
        path: Its file, for messages.
        ids: Columns of ids: a quoted cell of one that spans lines has swallowed what follows.
        time: Column of times; where it is given, a line inside a cell that would be a row by itself has been swallowed.
        bad: Counts the lines.
        known: Column → the ids that there are, where they are known: a line inside a cell that has all cells of a row,
            with such ids, has been swallowed, too.

    Returns:
        The rows that stay; how many lines lie inside their cells.
    """
    file: TextFile | None = table.attrs.get("file")
    if file is None or not file.tangled or len(file.records) != len(table):
        return table, 0
    spans = file.records.spans
    spanning = np.flatnonzero(spans > 1).tolist()
    reasons = {row: why for row in spanning if (why := _swallows(file, row, ids, time, known or {}))}
    if reasons:
        row, n = next(iter(reasons)), int(spans[list(reasons)].sum())
        line = file.line(row) or 0
        bad.add(
            "malformed",
            f'{path}, line {line}: {reasons[row]}, so a quote (") that is opened there swallows lines to '
            f"{line + int(spans[row]) - 1} ({n} such lines). Double the quote, or drop the line.",
            n,
        )
    inside = sum(int(spans[row]) - 1 for row in spanning if row not in reasons)
    return (table.drop(index=table.index[list(reasons)]) if reasons else table), inside


def _swallows(
    file: TextFile, row: int, ids: tuple[str, ...], time: str | None, known: Mapping[str, Collection[str]]
) -> str:
    """Why a row that spans lines must have swallowed some; "" where it may not have."""
    text = file.text(row)
    cells = next(split_cells(text, file.separator), [])
    for name in (*ids, *([time] if time else [])):
        cell = next((cell for column, cell in zip(file.header, cells, strict=False) if column == name), "")
        if "\n" in cell or "\r" in cell:
            return f"column {name!r} is {shown(cell, 40)}"
    for line in text.splitlines()[1:]:
        inner = next(split_cells(line, file.separator), [])
        if len(inner) == len(file.header):
            row_of = dict(zip(file.header, (cell.strip() for cell in inner), strict=True))
            timed = (
                time in row_of and bool(_TIME.fullmatch(row_of[time])) and all(row_of.get(name, "-") for name in ids)
            )
            listed = bool(known) and all(row_of.get(name) in values for name, values in known.items())
            if timed or listed:
                return f"the row holds {shown(line, 40)}, which is a row itself"
    return ""
