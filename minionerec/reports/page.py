"""Writing a document as HTML and Markdown."""

from collections.abc import Sequence
from pathlib import Path

from minionerec.reports.document import Section
from minionerec.reports.html import render_html
from minionerec.reports.markdown import render_markdown


def write_page(folder: Path, name: str, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write a document into a folder as `NAME.html` and `NAME.md`.

    Args:
        folder: The existing folder.
        name: Name of the files.
        title: Heading.
        lead: Text below the heading.
        sections: The document's parts.
    """
    (folder / f"{name}.html").write_text(render_html(title, lead, sections), encoding="utf-8")
    (folder / f"{name}.md").write_text(render_markdown(title, lead, sections), encoding="utf-8")
