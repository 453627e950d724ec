"""Text tables in parts of whole records, for those that no memory holds."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.data.files import check_file, open_bytes
from minionerec.data.source import BadRows
from minionerec.data.sources.records import find_records, line_ends, split_cells
from minionerec.data.sources.text import text_part

PART = 1 << 24
"""Bytes of a part, about."""


def read_text_parts(path: Path, separator: str, bad: BadRows | None = None, size: int = PART) -> Iterator[pd.DataFrame]:
    """The parts of a text table with a header, one after another, each as `read_text_table` gives the whole.

    A quoted cell is never cut, so a quote that swallows much of a file makes a part of it all.

    Args:
        path: The file, UTF-8.
        separator: What stands between cells.
        bad: As in `read_text_table`.
        size: Bytes of a part, about.

    Raises:
        DataError: As `read_text_table`.
    """
    check_file(path, "Give the path of a table.")
    head, rest, before = b"", b"", 0
    with open_bytes(path) as file:
        while read := file.read(size):
            content = head + rest + read
            cut = _cut(content, separator)
            if cut is None:
                rest += read
                continue
            yield text_part(path, separator, content[:cut], before, bad)
            body, rest = content[len(head) : cut], content[cut:]
            lines = len(line_ends(body))
            if not head:
                first = find_records(content[:cut], separator)
                head, before = content[first.begins[0] : first.ends[0]].rstrip(b"\r\n") + b"\n", -1
            before += lines
    if rest.strip() or not head:
        yield text_part(path, separator, head + rest, before, bad)


def _cut(content: bytes, separator: str) -> int | None:
    """Where a part may end: behind a record that is whole, before one that is no longer than the header."""
    records = find_records(content, separator)
    if len(records) < 4:
        return None
    most = _cells(content, records.begins[0], records.ends[0], separator)
    for last in range(len(records) - 2, 1, -1):  # the last one may go on in what is not read yet
        if _cells(content, records.begins[last], records.ends[last], separator) <= most:
            return int(records.begins[last])
    return None


def _cells(content: bytes, begin: np.int64, end: np.int64, separator: str) -> int:
    text = content[begin:end].decode("utf-8", errors="replace")
    return len(next(split_cells(text, separator), []))
