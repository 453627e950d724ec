"""A document as Markdown, and parts of pages that a script writes."""

import re
from collections.abc import Sequence
from pathlib import Path

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import DataError
from minionerec.reports.document import (
    Block,
    Cell,
    Details,
    ExampleBlock,
    Figure,
    Section,
    Table,
    Tiles,
    as_cell,
    visible,
)


def escape_markdown(text: str) -> str:
    """Plain text as Markdown that shows it literally, on one line."""
    text = re.sub(r"([\\`*|#~]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))", r"\\\1", " ".join(text.split()))
    text = re.sub(r"&(?! )", "&amp;", text)  # not of "p < 0.001": pages are also printed
    return re.sub(r"(?<! )>|>(?! )", "&gt;", re.sub(r"<(?! )", "&lt;", text))


def _block(block: Block) -> str:
    md = escape_markdown
    if isinstance(block, str):
        return md(block)
    if isinstance(block, list):  # a different bullet from tiles, so that consecutive lists stay separate
        return "\n".join(f"* {md(sentence)}" for sentence in block)
    if isinstance(block, Tiles):
        return "\n".join(f"- **{md(label)}**: {md(value)} {md(note)}".rstrip() for label, value, note in block.tiles)
    if isinstance(block, Table):
        return table_markdown(block)
    if isinstance(block, Figure):
        return f"(Plot in the HTML report: {md(block.caption)})"
    if isinstance(block, Details):
        indented = "\n".join(f"    {line}" for line in block.text.splitlines())
        return f"{md(block.summary)}:\n\n{indented}"
    return _example(block)


def table_markdown(block: Table) -> str:
    """A table, below its caption if it has one."""
    md = escape_markdown
    cells = [[as_cell(value) for value in row] for row in block.rows]
    lines = [" | ".join(_cell(cell) for cell in row) for row in cells]
    rule = " | ".join(":--" if column < block.text_columns else "--:" for column in range(len(block.headers)))
    head = " | ".join(md(header) for header in block.headers)
    table = "\n".join(f"| {line} |" for line in [head, rule, *lines])
    return f"{md(block.caption)}\n\n{table}" if block.caption else table


def _cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"{f'**{text}**' if cell.strong else text} {escape_markdown(cell.note)}".rstrip()


def _example(block: ExampleBlock) -> str:
    md = escape_markdown
    lines = [f"**{md(block.title)}**", "", "History, oldest first:", ""]
    lines += [f"{number}. {md(title)}" for number, title in enumerate(block.history, start=1)] or ["(empty)"]
    lines += ["", f"Bought next: **{md(block.target)}**"]
    for name, titles in block.lists:
        lines += ["", f"{md(name)}:", ""]
        marked = ((number, md(title), hit) for number, (title, hit) in enumerate(titles, start=1))
        lines += [f"{number}. {f'**{title}** ✓' if hit else title}" for number, title, hit in marked] or [
            "(empty list)"
        ]
    return "\n".join(lines)


def render_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The document as Markdown."""
    parts = [f"# {escape_markdown(title)}", escape_markdown(lead)]
    for section in sections:
        parts += [f"## {escape_markdown(section.title)}", *(_block(block) for block in section.blocks)]
    return visible("\n\n".join(parts) + "\n")


def write_part(page: Path, script: str, text: str) -> None:
    """Replace the part of a page that a script writes, between its two marks; a missing page is made, with this part.

    Args:
        page: A Markdown file.
        script: Path of the script in the repository; the marks are the lines `<!-- written by SCRIPT -->` and
            `<!-- end of SCRIPT -->`.
        text: The new part, Markdown.

    Raises:
        DataError: If the page exists and does not have both marks, once each and in this order.
    """
    begin, end = f"<!-- written by {script} -->", f"<!-- end of {script} -->"
    content = page.read_text(encoding="utf-8") if page.is_file() else f"{begin}\n{end}\n"
    before, _, rest = content.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark or content.count(begin) + content.count(end) != 2:
        raise DataError(f"{page}: does not have the lines {begin!r} and {end!r} once each. Add them where they belong.")
    write_text_atomic(page, f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
