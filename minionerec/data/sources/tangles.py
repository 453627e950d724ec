"""Rows whose quotes swallow other rows: found before anything is dropped in silence."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.core.errors import shown
from minionerec.data.source import BadRows
from minionerec.data.sources.records import split_cells
from minionerec.data.sources.text import TextFile

_TIME = re.compile(r"\s*([-+]?\d+(\.\d*)?([eE][-+]?\d+)?|\d{4}-\d\d.*)\s*")


def drop_swallowing(
    table: pd.DataFrame, path: Path, ids: tuple[str, ...], time: str | None, bad: BadRows
) -> tuple[pd.DataFrame, int]:
    """Leave out the rows whose quoted cells hold other rows; each counts as the lines that it covers.

    Args:
        table: A table of `read_text_table`, whole; any other is given back as it is.
        path: Its file, for messages.
        ids: Columns of ids: a quoted cell of one that spans lines has swallowed what follows.
        time: Column of times; where it is given, a line inside a cell that would be a row by itself has been swallowed.
        bad: Counts the lines.

    Returns:
        The rows that stay; how many lines lie inside their cells.
    """
    file: TextFile | None = table.attrs.get("file")
    if file is None or not file.tangled or len(file.records) != len(table):
        return table, 0
    spanning = np.flatnonzero(file.records.spans > 1)
    lost = [(int(row), why) for row in spanning if (why := _swallows(file, int(row), ids, time))]
    if lost:
        row, why = lost[0]
        first, span = file.line(row), int(file.records.spans[row])
        n = int(file.records.spans[[row for row, _ in lost]].sum())
        bad.add(
            "malformed",
            f'{path}, line {first}: {why}, so a quote (") that is opened there swallows lines to {first + span - 1} '  # type: ignore[operator]
            f"({n} such lines). Double the quote, or drop the line.",
            n,
        )
    gone = {row for row, _ in lost}
    inside = sum(int(file.records.spans[row]) - 1 for row in spanning.tolist() if row not in gone)
    return table.drop(index=table.index[sorted(gone)]), inside


def _swallows(file: TextFile, row: int, ids: tuple[str, ...], time: str | None) -> str:
    """Why a row that spans lines must have swallowed some; "" where it need not have."""
    text = file.text(row)
    cells = next(split_cells(text, file.separator), [])
    for name in (*ids, *([time] if time else [])):
        cell = "".join(cells[place : place + 1]) if (place := _place(file, name)) is not None else ""
        if "\n" in cell or "\r" in cell:
            return f"column {name!r} is {shown(cell, 40)}"
    if time is None or time not in file.header:
        return ""
    for line in text.splitlines()[1:]:
        inner = next(split_cells(line, file.separator), [])
        whole = len(inner) == len(file.header) and _TIME.fullmatch(inner[file.header.index(time)])
        if whole and all(inner[file.header.index(name)].strip() for name in ids if name in file.header):
            return f"the row holds {shown(line, 40)}, which is a row itself"
    return ""


def _place(file: TextFile, name: str) -> int | None:
    return file.header.index(name) if name in file.header else None
