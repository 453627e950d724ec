"""A page of sections: texts, tables and figures, rendered by `page.html.j2` as one HTML file that loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Cell:
    """A table cell with a note (an interval, a p-value) in smaller print; bold if `strong`."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first `text_columns` columns hold text, the others numbers, right-aligned."""

    kind: ClassVar[str] = "table"
    headers: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    text_columns: int = 1

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows with every entry as a cell."""
        return [[as_cell(value) for value in row] for row in self.rows]


@dataclass(frozen=True)
class Figure:
    """An inline SVG element."""

    kind: ClassVar[str] = "figure"
    svg: str
    caption: str


@dataclass(frozen=True)
class Details:
    """Preformatted text in a collapsible block with a summary."""

    kind: ClassVar[str] = "details"
    summary: str
    text: str


Block = str | list[str] | Table | Figure | Details
"""A part of a section; a text is a paragraph, and a list of sentences is bulleted."""


@dataclass(frozen=True)
class Section:
    """A titled part of the page."""

    title: str
    blocks: Sequence[Block]


def as_cell(value: str | Cell) -> Cell:
    """A table entry as a cell."""
    return value if isinstance(value, Cell) else Cell(value)


def render_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    r"""Render a page as HTML; all text is escaped, and control characters are written as escape sequences.

    Args:
        title: Heading.
        lead: Text below the heading.
        sections: The parts of the page.

    Example:
        >>> r"a\x1b[31m &lt;b&gt;" in render_page("a\x1b[31m <b>", "", [])
        True
    """
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("minionerec.reports", "."), autoescape=True)
    html = environment.get_template("page.html.j2").render(title=title, lead=lead, sections=sections)
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), html)
