"""A document as Markdown."""

import re
from collections.abc import Sequence

from minionerec.reports.document import (
    Block,
    Bullets,
    Cell,
    Details,
    ExampleBlock,
    Figure,
    Paragraph,
    Section,
    Table,
    Tiles,
    as_cell,
    visible,
)


def escape_markdown(text: str) -> str:
    """Plain text as Markdown that shows it literally, on one line."""
    text = re.sub(r"([\\`*|#~]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _block(block: Block) -> str:
    say = escape_markdown
    if isinstance(block, Paragraph):
        return say(block.text)
    if isinstance(block, Bullets):  # another sign than that of tiles: two lists in a row stay two
        return "\n".join(f"* {say(sentence)}" for sentence in block.sentences)
    if isinstance(block, Tiles):
        return "\n".join(f"- **{say(label)}**: {say(value)} {say(note)}".rstrip() for label, value, note in block.tiles)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        return f"(Plot in the HTML report: {say(block.caption)})"
    if isinstance(block, Details):
        indented = "\n".join(f"    {line}" for line in block.text.splitlines())
        return f"{say(block.summary)}:\n\n{indented}"
    return _example(block)


def _table(block: Table) -> str:
    say = escape_markdown
    cells = [[as_cell(value) for value in row] for row in block.rows]
    lines = [" | ".join(_cell(cell) for cell in row) for row in cells]
    rule = " | ".join(":--" if column < block.text_columns else "--:" for column in range(len(block.headers)))
    head = " | ".join(say(header) for header in block.headers)
    table = "\n".join(f"| {line} |" for line in [head, rule, *lines])
    return f"{say(block.caption)}\n\n{table}" if block.caption else table


def _cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"{f'**{text}**' if cell.strong else text} {escape_markdown(cell.note)}".rstrip()


def _example(block: ExampleBlock) -> str:
    say = escape_markdown
    lines = [f"**{say(block.title)}**", "", "History, oldest first:", ""]
    lines += [f"{place}. {say(title)}" for place, title in enumerate(block.history, start=1)] or ["(empty)"]
    lines += ["", f"Bought next: **{say(block.target)}**"]
    for name, titles in block.lists:
        lines += ["", f"{say(name)}:", ""]
        marked = ((place, say(title), hit) for place, (title, hit) in enumerate(titles, start=1))
        lines += [f"{place}. {f'**{title}** ✓' if hit else title}" for place, title, hit in marked] or ["(empty list)"]
    return "\n".join(lines)


def render_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The document as Markdown."""
    parts = [f"# {escape_markdown(title)}", escape_markdown(lead)]
    for section in sections:
        parts += [f"## {escape_markdown(section.title)}", *(_block(block) for block in section.blocks)]
    return visible("\n\n".join(parts) + "\n")
