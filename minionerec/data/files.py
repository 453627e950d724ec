"""Reading of a user's files: whole, with one-line errors that name the line in the file."""

import csv
import gzip
import io
import json
import os
import stat
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, cast

from minionerec.core.errors import DataError, shown

PACKED = ".gz"
"""Ending of files that are unpacked as they are read."""
_GZIP = b"\x1f\x8b"
_KINDS = {
    _GZIP: ("packed by gzip", "Unpack it"),
    b"BZh": ("packed by bzip2", "Unpack it"),
    b"\xfd7zXZ": ("packed by xz", "Unpack it"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "Unpack it"),
    b"PK\x03\x04": ("a zip file or a workbook (.xlsx)", "Unpack it, or save the sheet as CSV (UTF-8)"),
    b"\xd0\xcf\x11\xe0": ("a workbook (.xls)", "Save the sheet as CSV (UTF-8)"),
    b"PAR1": ("a parquet file", "Name it .parquet"),
    b"SQLite format 3": ("a database", "Export the table as CSV (UTF-8)"),
}
"""How files begin that are no text → their kind, and what to do."""


def check_file(path: str | os.PathLike[str], remedy: str) -> None:
    """Check that a path leads to a file.

    Raises:
        DataError: If the path does not exist or is not a file.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return
        what = "is a directory, expected a file" if stat.S_ISDIR(mode) else "is no ordinary file"
    except (FileNotFoundError, NotADirectoryError):
        what = "no such file"
    except (OSError, ValueError) as error:  # no leave to look, a loop of links, a NUL in the name
        what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    raise DataError(f"{path}: {what}. {remedy}")


@contextmanager
def open_bytes(path: str | os.PathLike[str], packed: bool = False) -> Iterator[BufferedReader]:
    """A file to read bytes from; errors meanwhile are reported in one line.

    Args:
        path: The file; gzip is unpacked where its name ends in .gz.
        packed: Whether gzip is unpacked whatever its name.

    Raises:
        DataError: If it cannot be read or unpacked.
    """
    packed = packed or os.fspath(path).lower().endswith(PACKED)
    try:
        with open(path, "rb") as file:
            if packed and file.peek(2)[:2] == _GZIP:
                with gzip.open(file) as text:
                    yield io.BufferedReader(cast(io.RawIOBase, text))
            else:
                yield file
    except EOFError:
        raise DataError(
            f"{path}: the gzip data end too soon, so the file is truncated. Write or download it again."
        ) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip data ({error}). Write or download it again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Mend its permissions.") from None


def not_utf8(path: str | os.PathLike[str], content: bytes, before: int = 0) -> str:
    """The message for content that is not UTF-8: the line of the first wrong byte, and the byte.

    Args:
        path: Its file.
        content: The file's content, or a part of it.
        before: Lines of the file before the part.
    """
    for start, (kind, remedy) in _KINDS.items():
        if not before and content.startswith(start):
            return f"{path}: is {kind}, despite its name, not text. {remedy}."
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1 + before
        return f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 text. Save the file as UTF-8."
    return f"{path}: not UTF-8 text. Save the file as UTF-8."


def read_text(path: str | os.PathLike[str], remedy: str = "Mend its path.") -> str:
    """The text of a UTF-8 file.

    Raises:
        DataError: If it is missing or cannot be read; the message names the line of a byte that is not UTF-8.
    """
    check_file(path, remedy)
    with open_bytes(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(not_utf8(path, content)) from None


LONGEST_CELL = 1 << 26
"""Most characters of a cell, so that a quote that is never closed does not fill the memory."""


def csv_records(lines: Iterable[str], separator: str = ",") -> Iterator[tuple[int, int, list[str] | str]]:
    """The records of CSV text (RFC 4180); blank lines are left out.

    Args:
        lines: Its lines with their ends; a carriage return alone ends one, too.
        separator: The character between cells.

    Yields:
        Lines before the record, lines up to its end (a quoted cell may span lines), and its cells; or the reason why it
        is none: a quote that is never closed, or text after the quote that ends a cell.
    """
    csv.field_size_limit(LONGEST_CELL)
    reader, end = csv.reader(lines, delimiter=separator, strict=True), 0
    while True:
        begin = end
        try:
            record: list[str] | str | None = next(reader, None)
        except csv.Error as error:  # the next record begins at the line after
            record = _CSV_ERRORS.get(str(error)[:14], str(error))
        end = reader.line_num
        if record is None:
            return
        if isinstance(record, str) or len(record) > 1 or (record and (record[0].strip(" \t") or not record[0])):
            yield begin, end, record


_CSV_ERRORS = {
    "unexpected end": 'a quote (") is opened and never closed',
    "field larger t": f'a cell of more than {LONGEST_CELL:,} characters, perhaps of a quote (") that is never closed',
}


def parse_object(line: bytes, names: Collection[str] | None = None) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        line: The text, UTF-8.
        names: Keys that must not be there twice; none may be if None. Objects inside it are not checked.

    Raises:
        ValueError: If it is no JSON object, is nested too deep, holds a number of thousands of digits, or has a key
            twice.
    """
    pairs: list[tuple[str, Any]] = []

    def read_object(read: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal pairs  # the outermost object is the last to be read
        pairs = read
        return dict(read)

    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=read_object)
    except RecursionError:
        raise ValueError("lists or objects nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, expected an object")
    if len(value) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = [name for name, count in counts.items() if count > 1 and (names is None or name in names)]
        if twice:
            raise ValueError(f"the key {shown(min(twice))} is given twice")
    return value
