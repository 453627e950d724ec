"""Text tables: every cell as the text it is, and every line in a row or counted as bad."""

import io
import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from minionerec.core.cells import frame_of, plain_text
from minionerec.core.errors import DataError, truncate
from minionerec.data.files import check_file, csv_records, not_utf8, open_bytes, parse_object
from minionerec.data.source import BadRows

PART = 1 << 20
"""Bytes of a part of a text table, about."""
INSIDE = "lines_inside_cells"
"""Attribute of a part: lines that its quoted cells span, beside the first line of each row."""
_LINE = 64  # bytes of a line, about
_BOM = b"\xef\xbb\xbf"


def read_text_table(
    path: Path,
    separator: str,
    names: Sequence[str] | None = None,
    *,
    quoted: bool = True,
    bad: BadRows | None = None,
    more_columns: bool = True,
) -> pd.DataFrame:
    """Read a whole text table, see `read_text_parts`."""
    return next(read_text_parts(path, separator, bad, None, names=names, quoted=quoted, more_columns=more_columns))


def read_text_parts(
    path: Path,
    separator: str,
    bad: BadRows | None = None,
    size: int | None = PART,
    *,
    names: Sequence[str] | None = None,
    quoted: bool = True,
    more_columns: bool = True,
) -> Iterator[pd.DataFrame]:
    """Read a text table part by part, every cell as the text it is.

    The index of a row is its line, from 0; `attrs[INSIDE]` counts the further lines of rows whose quoted cells span
    lines.

    Args:
        path: The file, UTF-8 (or Latin-1 where it has no header, as older MovieLens files are).
        separator: Text between cells; a single character if cells may be quoted.
        bad: Counts lines with more or fewer cells than the header, and those that are not CSV; one is an error if None.
        size: Bytes of a part, about; one part if None.
        names: Names of the first columns, of a file without a header.
        quoted: Whether cells may be quoted, as RFC 4180 has it.
        more_columns: Whether a file without a header may have further columns, which are left out.

    Raises:
        DataError: If the file is missing, is empty or cannot be read, or `bad` does not allow a line.
    """
    check_file(path, "Give the path of a table.")
    blocks, bad = _blocks(path, size), bad or BadRows()
    first = b""
    for block in blocks:
        first += block
        text = io.StringIO(_decoded(path, first, 0, names is not None), newline="")
        before, line, record = next(_records(text, separator, quoted), (0, 0, []))
        if record:
            break
    else:
        raise DataError(f"{path}: is empty. Expected a header and a row a line.")
    if names is not None:
        width = max(len(record), len(names)) if more_columns else len(names)
        columns, line, blocks = list(names), 0, chain([first], blocks)
    elif isinstance(record, str) or line > before + 1:
        reason = record if isinstance(record, str) else f"column names that span lines to {line}"
        raise DataError(f"{path}, line {before + 1}: not a header ({reason}). Check its separators and quotes.")
    else:
        columns, width, blocks = record, len(record), chain([text.read().encode()], blocks)
    empty = True
    for block in blocks:
        part = _rectangle(block, separator, width, quoted)
        if part is None:
            blocks = chain([block], blocks)
            break
        if len(part):
            yield _frame(part.columns, columns, pd.RangeIndex(line, line + len(part)))
            line, empty = line + len(part), False
    latin, most = names is not None, None if size is None else -(-size // _LINE)
    for rows, lines, inside in _rows(path, blocks, separator, width, line, most, bad, quoted=quoted, latin=latin):
        if rows:
            yield _frame(list(zip(*rows, strict=True)), columns, pd.Index(lines, dtype=np.int64), inside)
            empty = False
    if empty:
        yield _frame([()] * width, columns, pd.RangeIndex(0))


def _blocks(path: Path, size: int | None) -> Iterator[bytes]:
    """The content of a file in blocks of whole lines, about `size` bytes each, without a byte order mark."""
    mark = _BOM
    with open_bytes(path) as file:
        while lines := file.readlines(-1 if size is None else size):
            yield b"".join(lines).removeprefix(mark)
            mark = b""


def _decoded(path: Path, block: bytes, before: int, latin: bool) -> str:
    """The text of a block, which follows so many lines."""
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError:
        if latin:
            return block.decode("latin-1")
        raise DataError(not_utf8(path, block, before)) from None


def _records(
    lines: io.StringIO | Iterator[str], separator: str, quoted: bool
) -> Iterator[tuple[int, int, list[str] | str]]:
    """The records of a table, see `csv_records`."""
    if quoted:
        return csv_records(lines, separator)
    blank = " \t\r\n".replace(separator, "")
    return (
        (number, number + 1, line.rstrip("\r\n").split(separator))
        for number, line in enumerate(lines)
        if line.strip(blank)
    )


def _rectangle(block: bytes, separator: str, width: int, quoted: bool) -> pa.Table | None:
    """The rows of a block, parsed by arrow where they cannot be mistaken; None where they could be.

    Each line is a row of so many cells, none is blank, no cell spans lines, and quotes stand where they may.
    """
    if len(separator) > 1 or width == 1 or block.count(b"\r") != block.count(b"\r\n"):
        return None
    if quoted and b'"' in block and not _well_quoted(block, separator):
        return None
    names = [str(column) for column in range(width)]
    try:
        table: pa.Table = pa_csv.read_csv(
            pa.py_buffer(block),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            parse_options=pa_csv.ParseOptions(delimiter=separator, quote_char='"' if quoted else False),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table if len(table) == block.count(b"\n") + (not block.endswith(b"\n")) else None


def _well_quoted(block: bytes, separator: str) -> bool:
    """Whether the quotes of a block, in turn, open a cell at its begin and close one at its end, or are doubled."""
    buffer = np.frombuffer(b"\n%b\n" % block, np.uint8)
    quotes = np.flatnonzero(buffer == ord('"'))
    borders = np.frombuffer(b'\r\n"' + separator.encode(), np.uint8)
    beside = np.concatenate([buffer[quotes[0::2] - 1], buffer[quotes[1::2] + 1]])
    return len(quotes) % 2 == 0 and bool(np.isin(beside, borders).all())


def _rows(
    path: Path,
    blocks: Iterator[bytes],
    separator: str,
    width: int,
    before: int,
    most: int | None,
    bad: BadRows,
    *,
    quoted: bool,
    latin: bool,
) -> Iterator[tuple[list[list[str]], list[int], int]]:
    """The rows of some blocks, which follow so many lines: cells, the line of each row, and lines inside of cells.

    Parts have at most `most` records, all if None.
    """

    def lines() -> Iterator[str]:
        count = before
        for block in blocks:
            block_lines = io.StringIO(_decoded(path, block, count, latin), newline="").readlines()
            count += len(block_lines)
            yield from block_lines

    records = _records(lines(), separator, quoted)
    while part := list(islice(records, most)):
        rows, numbers, inside = [], [], 0
        for begin, end, record in part:
            if len(record) == width and not isinstance(record, str):
                rows.append(record)
                numbers.append(before + begin)
                inside += end - begin - 1
            else:
                reason = record if isinstance(record, str) else f"{len(record)} cells, expected {width}"
                to = f" (to line {before + end})" if end > begin + 1 else ""
                remedy = 'Check its separators, and write a quote inside a quoted cell twice ("").'
                bad.add("malformed", f"{path}, line {before + begin + 1}{to}: {reason}. {remedy}", end - begin)
        yield rows, numbers, inside


def _frame(cells: Sequence[Any], names: Sequence[str], index: pd.Index, inside: int = 0) -> pd.DataFrame:
    """Columns of cells as a data frame; those without a name given are left out."""
    columns = {
        str(position): pa.array(column, pa.string()) if isinstance(column, tuple) else column
        for position, column in enumerate(cells[: len(names)])
    }
    frame = frame_of(pa.table(columns)).set_axis(index)
    frame.columns = pd.Index(list(names), dtype=object)
    frame.attrs = {INSIDE: inside}
    return frame


def read_json_parts(path: Path, size: int | None = PART, bad: BadRows | None = None) -> Iterator[pd.DataFrame]:
    """The parts of a table of JSON objects, one a line, cells as they are and None where a key is missing.

    The index of a row is its line, from 0.

    Args:
        path: The file, UTF-8.
        size: Bytes of a part, about; one part if None.
        bad: Counts lines that are no object, or give a key twice; one is an error if None.

    Raises:
        DataError: If the file is missing or cannot be read, has no object, or `bad` does not allow a line.
    """
    check_file(path, "Give the path of a table.")
    bad, number, empty = bad or BadRows(), 0, True
    with open_bytes(path) as file:
        while lines := file.readlines(-1 if size is None else size):
            records: dict[int, dict[str, Any]] = {}
            for line in lines:
                if line.strip():
                    record = _object(line.removeprefix(_BOM), path, number + 1, bad)
                    if record is not None:  # an object without keys is a row too
                        records[number] = record
                number += 1
            if records:
                empty = False
                names = dict.fromkeys(name for record in records.values() for name in record)
                columns = {name: [record.get(name) for record in records.values()] for name in names}
                yield pd.DataFrame(columns, index=list(records), dtype=object)
    if empty:
        raise DataError(f"{path}: holds no JSON object. Expected one a line.")


def _object(line: bytes, path: Path, number: int, bad: BadRows) -> dict[str, Any] | None:
    """The object of a line; None where it is counted as bad."""
    try:
        record = parse_object(line)
        if b"\\u" in line and not plain_text(json.dumps(record, ensure_ascii=False)):
            raise ValueError("a lone surrogate")
    except ValueError as error:  # of JSON and of text coding too
        bad.add("malformed", f"{path}, line {number}: {truncate(str(error), 200)}. Mend or drop the line.")
        return None
    return record
