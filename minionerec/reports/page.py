"""A document as the two files that a stage writes."""

from collections.abc import Sequence
from pathlib import Path

from minionerec.reports.document import Section
from minionerec.reports.html import render_html
from minionerec.reports.markdown import render_markdown


def write_page(place: Path, name: str, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write a document into a folder as `NAME.html` and `NAME.md`.

    Args:
        place: The folder; it exists.
        name: Name of the files.
        title: Heading.
        lead: What stands below it.
        sections: The document's parts.
    """
    (place / f"{name}.html").write_text(render_html(title, lead, sections), encoding="utf-8")
    (place / f"{name}.md").write_text(render_markdown(title, lead, sections), encoding="utf-8")
