"""The parts of a document that becomes Markdown, or one self-contained HTML page, with the same content.

All text is plain: both forms escape it (`minionerec.reports.markdown`, `minionerec.reports.html`). Every report and
comparison is written through these parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def visible(document: str) -> str:
    r"""A document with control characters, such as terminal escapes, written as escape sequences.

    Example:
        >>> visible("a\x1b[31m")
        'a\\x1b[31m'
    """
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), document)


@dataclass(frozen=True)
class Cell:
    """A table cell with a note (an interval, a p-value) in smaller print; `strong` ones are bold."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Tiles:
    """A few headline numbers: (label, value, note)."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Table:
    """A table; the first `text_columns` columns hold text, the others numbers, right-aligned."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    text_columns: int = 1


@dataclass(frozen=True)
class Figure:
    """An inline SVG element, shown in HTML only."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Details:
    """Preformatted text in a collapsible block with a summary."""

    summary: str
    text: str


@dataclass(frozen=True)
class ExampleBlock:
    """One user's recommendations: history oldest first, and ranked lists of (title, is the target)."""

    title: str
    history: Sequence[str]
    target: str
    lists: Sequence[tuple[str, Sequence[tuple[str, bool]]]]


Block = str | list[str] | Tiles | Table | Figure | Details | ExampleBlock
"""A part of a section; running text is a paragraph, and a list of sentences is bulleted."""


@dataclass(frozen=True)
class Section:
    """A titled part of the document."""

    title: str
    blocks: Sequence[Block]


def as_cell(value: str | Cell) -> Cell:
    """A table entry as a cell."""
    return value if isinstance(value, Cell) else Cell(value)


def turned(table: Table) -> Table:
    """A table with its rows as columns; the first column holds text, as before."""
    lines = [list(table.headers), *(list(row) for row in table.rows)]
    columns = [list(column) for column in zip(*lines, strict=True)]
    headers = [as_cell(value).text for value in columns[0]]
    return Table(headers, columns[1:], table.caption)
