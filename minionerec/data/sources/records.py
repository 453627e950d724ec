"""Positions of the records of a text table, and which of them span lines: a stray quote must not lose rows silently."""

import csv
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


@dataclass(frozen=True)
class Records:
    """The records of a text table, R of them, the header included, blank lines left out.

    Attributes:
        begins: int64 (R,), byte at which each begins.
        ends: int64 (R,), byte after it.
        lines: int64 (R,), line at which each begins, from 1, as an editor counts.
        spans: int64 (R,), lines that it covers.
    """

    begins: np.ndarray
    ends: np.ndarray
    lines: np.ndarray
    spans: np.ndarray

    def __len__(self) -> int:
        """Number of records, R."""
        return len(self.begins)


def quoted(content: bytes, separator: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions where quoted cells open and close: int64 (Q,) each; a quote inside quotes is written twice.

    The last one closes at the end of the content where its quote is never closed. Where every quote is at the
    border of a cell, cells are found by counting; else one after another, as csv readers do.
    """
    buffer = np.frombuffer(content, np.uint8)
    positions = np.flatnonzero(buffer == _QUOTE)
    if not len(positions):
        return positions, positions
    borders = np.zeros(256, dtype=bool)  # the bytes allowed before an opening quote and after a closing one
    borders[[ord(separator), _NEWLINE, _RETURN, _QUOTE]] = True
    first = len(BOM) if content.startswith(BOM) else 0
    before, after = borders[buffer[positions - 1]], borders[buffer[np.minimum(positions + 1, len(buffer) - 1)]]
    before[positions == first] = True
    after[positions == len(buffer) - 1] = True
    if before[0::2].all() and after[1::2].all():
        closes = positions[1::2] if len(positions) % 2 == 0 else np.append(positions[1::2], len(buffer))
        return positions[0::2], closes
    sign = re.escape(separator.encode())
    cell = re.compile(rb'(?:\A(?:\xef\xbb\xbf)?|(?<=[\r\n])|(?<=%s))("[^"]*(?:""[^"]*)*)("?)' % sign)
    spans = [(match.start(1), match.end(1) if match[2] else len(buffer)) for match in cell.finditer(content)]
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def with_doubled_quotes(content: bytes, separator: str) -> bytes:
    r"""A table whose quoted cells write a quote as \", as Spark does, with "" in its place; any other as it is.

    It is one where quotes stand inside or after cells where none may be, and none does if \" is a quote inside a
    quoted cell. Then \\ is a backslash there. Every line stays one.
    """
    if b'\\"' not in content:
        return content
    sign = re.escape(separator.encode())
    positions = np.flatnonzero(np.frombuffer(content, np.uint8) == _QUOTE)
    opens, closes = quoted(content, separator)
    following = (content[close + 1 : close + 2] for close in closes.tolist())
    last = np.searchsorted(opens, positions, "right") - 1
    outside = (last < 0) | (positions > closes[last]) if len(opens) else np.ones(len(positions), dtype=bool)
    if not outside.any() and all(byte in (b"", b"\n", b"\r", b'"', separator.encode()) for byte in following):
        return content
    start = rb"(?:(?<=[\r\n])|(?<=%s)|\A(?:\xef\xbb\xbf)?)" % sign
    cell = re.compile(rb'(%s")((?:[^"\\]++|\\.|"")*+)("(?=%s|[\r\n]|\Z)|\\?\Z)' % (start, sign), re.DOTALL)
    if b'"' in cell.sub(b"", content):
        return content
    return cell.sub(lambda match: match[1] + _ESCAPE.sub(_unescaped, match[2]) + match[3], content)


_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return {b'"': b'""', b"\\": b"\\"}.get(escape[1], escape[0])


def line_ends(content: bytes) -> np.ndarray:
    """Ends of lines: int64, ascending; a carriage return alone ends one, too."""
    buffer = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(buffer == _NEWLINE)
    if b"\r" in content:
        returns = np.flatnonzero(buffer == _RETURN)
        last = np.minimum(returns + 1, len(buffer) - 1)
        ends = np.union1d(ends, returns[buffer[last] != _NEWLINE])  # alone it ends a line too
    return ends


def _inside(positions: np.ndarray, opens: np.ndarray, closes: np.ndarray) -> np.ndarray:
    """Which positions are in a quoted cell: bool, one per position."""
    if not len(opens):
        return np.zeros(len(positions), dtype=bool)
    last = np.searchsorted(opens, positions) - 1
    inside: np.ndarray = (last >= 0) & (positions < closes[last])
    return inside


def record_ends(ends: np.ndarray, content: bytes, separator: str, *, quotes: bool = True) -> np.ndarray:
    """The ends of lines that end a record, too: int64, ascending.

    Args:
        ends: The ends of lines, as of `line_ends`.
        content: The file.
        separator: Separator of cells.
        quotes: Whether quoted cells may span lines.
    """
    return ends[~_inside(ends, *quoted(content, separator))] if quotes else ends


def find_records(content: bytes, separator: str, *, quotes: bool = True) -> Records:
    """All records of a text table.

    Args:
        content: The file.
        separator: Separator of cells.
        quotes: Whether quoted cells may span lines.
    """
    ends = line_ends(content)
    closing = record_ends(ends, content, separator, quotes=quotes)
    begins = np.concatenate([[len(BOM) if content.startswith(BOM) else 0], closing + 1])
    closing = np.append(closing, len(content))
    buffer = np.frombuffer(content + b"\n", np.uint8)
    filled = (begins < closing) & (buffer[begins] != _RETURN)
    blank = filled & ((buffer[begins] == ord(" ")) | (buffer[begins] == ord("\t")))
    for position in np.flatnonzero(blank):
        filled[position] = bool(
            content[begins[position] : closing[position]].strip(" \t\r".replace(separator, "").encode())
        )
    begins, closing = begins[filled], closing[filled]
    lines = np.searchsorted(ends, begins) + 1
    return Records(begins, closing, lines, np.searchsorted(ends, closing) - lines + 2)


def unclosed_quote(content: bytes, separator: str) -> int | None:
    """The line of a quote that is never closed; None where there is none."""
    opens, closes = quoted(content, separator)
    if not len(opens) or closes[-1] < len(content):
        return None
    last = len(opens) - 1
    while last and opens[last] == closes[last - 1] + 1:  # a quote inside quotes, written twice
        last -= 1
    return content.count(b"\n", 0, int(opens[last])) + 1


def spans_lines(content: bytes, separator: str) -> bool:
    """Whether any quoted cell spans lines, or is never closed."""
    return b'"' in content and bool(_inside(line_ends(content), *quoted(content, separator)).any())


def split_cells(text: str, separator: str, *, quotes: bool = True) -> Iterator[list[str]]:
    """The cells of each record of a text, blank lines left out, cells of any length.

    Args:
        text: One record or a whole table.
        separator: Between cells.
        quotes: Whether cells may be quoted.
    """
    csv.field_size_limit(sys.maxsize)
    lines = io.StringIO(text, newline="")
    for cells in csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE):
        if len(cells) > 1 or (cells and (cells[0].strip() or not cells[0])):
            yield cells
