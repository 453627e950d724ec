"""Text tables: every cell as the text it is, and every line in a row or reported as lost."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.cells import plain_text
from minionerec.core.errors import DataError, one_line, shown, truncate
from minionerec.data.files import check_file, not_utf8, open_bytes, parse_json, read_bytes
from minionerec.data.source import BadRows
from minionerec.data.sources.records import (
    Records,
    find_records,
    line_ends,
    record_ends,
    spans_lines,
    split_cells,
    unclosed_quote,
    with_doubled_quotes,
)

PART = 1 << 24
"""Bytes of a part of a text table, about."""
_TOO_MANY = re.compile(r"Expected \d+ fields in line \d+, saw \d+")
_STAND_INS = b"\t\x1f\x1e\x1d\x1c\x01\x02\x03"
"""Single characters that may stand for a longer separator."""


@dataclass
class TextFile:
    """The file of a text table, for messages and checks.

    Attributes:
        path: The file.
        separator: Between cells.
        header: Names of its columns.
        has_header: Whether its first record names them.
        quotes: Whether cells may be quoted.
        encoding: Of its text.
        tangled: Whether a quoted cell spans lines.
        dropped: Records that are not in the table, by number from 0 after the header.
        before: Lines of the file before the content, where that is a part of it.
    """

    path: Path
    separator: str
    header: list[str]
    has_header: bool
    quotes: bool
    encoding: str
    tangled: bool = False
    dropped: frozenset[int] = frozenset()
    before: int = 0

    def __deepcopy__(self, memo: Any) -> "TextFile":
        """Itself: pandas copies a table's attributes in every operation."""
        return self

    @cached_property
    def content(self) -> bytes:
        """The content, read once more where a message needs it."""
        return read_bytes(self.path)

    @cached_property
    def records(self) -> Records:
        """Its records, those of the table alone."""
        found = find_records(self.content, self.separator, quotes=self.quotes)
        kept = np.setdiff1d(np.arange(len(found)), np.array(sorted(self.dropped), dtype=np.int64) + self.has_header)
        kept = kept[self.has_header :]
        return Records(found.begins[kept], found.ends[kept], found.lines[kept], found.spans[kept])

    def line(self, row: int) -> int | None:
        """The line, as an editor counts, at which row `row` of the table (from 0) begins."""
        return int(self.records.lines[row]) + self.before if 0 <= row < len(self.records) else None

    def text(self, row: int) -> str:
        """A row as it is written."""
        begin, end = self.records.begins[row], self.records.ends[row]
        return self.content[begin:end].decode(self.encoding, errors="replace")


def read_text_table(
    path: Path,
    separator: str,
    header: Sequence[str] | None = None,
    *,
    quoted: bool = True,
    bad: BadRows | None = None,
    more_columns: bool = True,
) -> pd.DataFrame:
    """A text table, every cell as the text it is; its `attrs["file"]` is its `TextFile`.

    Args:
        path: The file, UTF-8 (or Latin-1 where it has no header, as older MovieLens files are).
        separator: What stands between cells.
        header: Names of the first columns where the file has no header.
        quoted: Whether double quotes around a cell are not part of it.
        bad: Counts rows with more cells than the header; one is an error if None.
        more_columns: Whether a file without a header may have further columns, which are left out.

    Raises:
        DataError: If the file is missing or cannot be read, a quote is never closed, or a row has too many cells and
            `bad` does not allow it.
    """
    content = read_bytes(path, "Give the path of a table.")
    return _read(path, separator, content, header, quoted=quoted, bad=bad, more_columns=more_columns)


def read_text_parts(path: Path, separator: str, bad: BadRows | None = None, size: int = PART) -> Iterator[pd.DataFrame]:
    """The parts of a text table with a header, one after another, each as `read_text_table` gives the whole.

    A quoted cell is never split, so a quote that swallows much of a file makes a part of it all.

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
            raw = head + rest + read
            content = with_doubled_quotes(raw, separator)
            end = _part_end(content, separator) if len(read) == size else None
            if end is None:
                rest += read
                continue
            yield _read(path, separator, content[:end], before=before, bad=bad)
            body, rest = content[len(head) : end], content[end:]
            lines = len(line_ends(body))
            if raw is not content:  # what is left is escaped as it was
                rest = raw[int(line_ends(raw)[len(line_ends(content[:end])) - 1]) + 1 :]
            if not head:
                first = find_records(content[:end], separator)
                head, before = content[first.begins[0] : first.ends[0]].rstrip(b"\r\n") + b"\n", -1
            before += lines
    if rest.strip() or not head:
        yield _read(path, separator, head + rest, before=before, bad=bad)


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
                if line.strip() and (record := _object(line.removeprefix(b"\xef\xbb\xbf"), path, number + 1, bad)):
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
        record, twice = parse_json(line.decode("utf-8"))
        if not isinstance(record, dict):
            raise ValueError(f"a JSON {type(record).__name__}, expected an object")
        if twice:
            raise ValueError(f"the key {shown(min(twice))} is given twice")
        if b"\\u" in line and not plain_text(json.dumps(record, ensure_ascii=False)):
            raise ValueError("a lone surrogate")
    except ValueError as error:  # of JSON and of text coding too
        bad.add("malformed", f"{path}, line {number}: {truncate(str(error), 200)}. Mend or drop the line.")
        return None
    return record


def _part_end(content: bytes, separator: str) -> int | None:
    """End of a part: after a whole record, before one that is no longer than the header."""
    records = find_records(content, separator)
    if len(records) < 4:
        return None

    def cells(record: int) -> int:
        text = content[records.begins[record] : records.ends[record]].decode("utf-8", errors="replace")
        return len(next(split_cells(text, separator), []))

    most = cells(0)
    for last in range(len(records) - 2, 1, -1):  # the last one may continue in the unread part
        if cells(last) <= most:
            return int(records.begins[last])
    return None


def _read(
    path: Path,
    separator: str,
    content: bytes,
    header: Sequence[str] | None = None,
    *,
    quoted: bool = True,
    bad: BadRows | None = None,
    more_columns: bool = True,
    before: int | None = None,
) -> pd.DataFrame:
    """The table of a content; that of a part follows so many lines of the file, less those of the header before it."""
    try:
        content.decode("utf-8")
        encoding = "utf-8-sig"
    except UnicodeDecodeError:
        if header is None:
            raise DataError(not_utf8(path, content, before or 0)) from None
        encoding = "latin-1"
    if len(separator) > 1:  # one character parses many times faster
        content, separator = _shortened(path, content, separator)
    raw = content
    content = with_doubled_quotes(content, separator) if quoted else content
    tangled = quoted and spans_lines(content, separator)
    if tangled and (line := unclosed_quote(content, separator)) is not None:
        raise _never_closed(path, line + (before or 0))
    names = _header(path, content, separator, encoding, quotes=quoted) if header is None else list(header)
    file = TextFile(path, separator, names, header is None, quoted, encoding, tangled, before=before or 0)
    if before is not None or content is not raw:
        file.content = content
    return _table(file, content, header, bad, more_columns)


def _table(
    file: TextFile, content: bytes, header: Sequence[str] | None, bad: BadRows | None, more_columns: bool
) -> pd.DataFrame:
    path, separator, encoding, quoted = file.path, file.separator, file.encoding, file.quotes
    options: dict[str, Any] = {
        "sep": separator,
        "dtype": str,
        "keep_default_na": False,
        "encoding": encoding,
        "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        "header": "infer" if header is None else None,
        "names": None if header is None else list(header),
        "usecols": range(len(header)) if header is not None and more_columns else None,
    }
    if header is not None and not more_columns:
        content = _without_long(file, content, bad or BadRows())
    content = _ended_by_newlines(file, content)
    table = _parsed(file, content, options, bad or BadRows())
    if not isinstance(table.index, pd.RangeIndex):
        raise DataError(f"{path}: the rows have more cells than the header. Check the header and the separators.")
    table.attrs["file"] = file
    return table


def _ended_by_newlines(file: TextFile, content: bytes) -> bytes:
    """The content with a newline in place of each carriage return that ends a record by itself.

    pandas takes the separator that follows a blank line ended by such a return for a part of it. Returns inside quoted
    cells stay, and no byte moves.
    """
    if not re.search(rb"\r(?!\n)", content):
        return content
    ends = record_ends(line_ends(content), content, file.separator, quotes=file.quotes)
    buffer = np.frombuffer(content, np.uint8).copy()
    buffer[ends] = ord("\n")
    return buffer.tobytes()


def _shortened(path: Path, content: bytes, separator: str) -> tuple[bytes, str]:
    """The content with another separator of one character that it does not hold, and that character."""
    for sign in _STAND_INS:
        if sign not in content:
            return content.replace(separator.encode(), bytes([sign])), chr(sign)
    raise DataError(f"{path}: holds control characters of every kind, so it is no text. Take the unpacked file.")


def _header(path: Path, content: bytes, separator: str, encoding: str, *, quotes: bool) -> list[str]:
    """The names of the columns, as the first record has them."""
    end = min((position for position in (content.find(b"\n", 1 << 16),) if position >= 0), default=len(content))
    try:
        names = next(split_cells(content[:end].decode(encoding, errors="replace"), separator, quotes=quotes), [])
    except csv.Error as error:
        raise DataError(f"{path}, line 1: not a header ({error}). Check its separators and quotes.") from None
    broken = next((name for name in names if "\n" in name or "\r" in name), None)
    if broken is not None:
        raise DataError(
            f'{path}, line 1: column {shown(broken, 40)} spans lines, so a quote (") in the header swallows rows. '
            "Double the quote, or write the name on one line."
        )
    return names


def _never_closed(path: Path, line: int | None) -> DataError:
    return DataError(f'{path}, line {line}: a quote (") is opened and never closed. Close it, or double it.')


def _parsed(file: TextFile, content: bytes, options: dict[str, Any], bad: BadRows) -> pd.DataFrame:
    try:
        table: pd.DataFrame = pd.read_csv(io.BytesIO(content), **options)
        return table
    except (OSError, ValueError) as error:  # pandas' parsing errors are ValueErrors
        reason = one_line(error)
        if "No columns to parse" in reason:
            raise DataError(f"{file.path}: is empty. Expected a header and a row a line.") from None
        if "EOF inside string" in reason:
            raise _never_closed(file.path, unclosed_quote(content, file.separator)) from None
        if "on_bad_lines" in options or not _TOO_MANY.search(reason):
            raise DataError(f"{file.path}: cannot be read ({reason}). Check its separators and quotes.") from None
    _drop_long(file, content, bad)
    return _parsed(file, content, {**options, "on_bad_lines": "skip"}, bad)


def _without_long(file: TextFile, content: bytes, bad: BadRows) -> bytes:
    """The content of a file without a header and without quotes, less its lines with more cells than names."""
    sign, most = file.separator.encode(), len(file.header) - 1
    if all(line.count(sign) <= most for line in content.split(b"\n")):
        return content
    records = find_records(content, file.separator, quotes=False)  # a carriage return alone ends a line, too
    lines = [content[begin:end] for begin, end in zip(records.begins, records.ends, strict=True)]
    kept = [line for line in lines if line.count(sign) <= most]
    if len(kept) < len(lines):
        _drop_long(file, content, bad)
    return b"\n".join(kept)


def _drop_long(file: TextFile, content: bytes, bad: BadRows) -> None:
    """Count the rows with more cells than the header, which pandas will leave out."""
    text = content.decode(file.encoding, errors="replace")
    sizes = [len(cells) for cells in split_cells(text, file.separator, quotes=file.quotes)][file.has_header :]
    allowed = max(len(file.header), sizes[0] if file.has_header and sizes else 0)
    long = [row for row, size in enumerate(sizes) if size > allowed]
    if not long:
        raise DataError(f"{file.path}: its rows differ in their number of cells. Check its separators and quotes.")
    line = file.line(long[0])
    n = int(file.records.spans[long].sum()) if len(file.records) == len(sizes) else len(long)
    bad.add(
        "malformed",
        f"{file.path}, line {line}: {sizes[long[0]]} cells, expected {len(file.header)} ({n} such lines). Check "
        "its separators and quotes.",
        n,
    )
    file.dropped = frozenset(long)
    del file.records  # of all of them
