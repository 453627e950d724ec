"""A small document that becomes Markdown, or one self-contained HTML page, with the same content.

All text is plain: both forms escape it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Cell:
    """A table cell with a note (an interval, a p-value) in smaller print."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Tiles:
    """A few headline numbers: (label, value, note)."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Table:
    """A table; the first `text_columns` columns hold text, the others numbers, which stand to the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    text_columns: int = 1


@dataclass(frozen=True)
class Figure:
    """An inline SVG element, shown in HTML alone."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Details:
    """Preformatted text behind a summary."""

    summary: str
    text: str


@dataclass(frozen=True)
class Example:
    """One user's recommendations: history oldest first, and ranked lists of (title, is the target)."""

    title: str
    history: Sequence[str]
    target: str
    lists: Sequence[tuple[str, Sequence[tuple[str, bool]]]]


Block = Paragraph | Tiles | Table | Figure | Details | Example


@dataclass(frozen=True)
class Section:
    """A titled part of the document."""

    title: str
    blocks: Sequence[Block]


def _cell(value: str | Cell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def escape_markdown(text: str) -> str:
    """Plain text as Markdown that shows it literally, on one line."""
    text = re.sub(r"([\\`*|#~]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown_block(block: Block) -> str:
    say = escape_markdown
    if isinstance(block, Paragraph):
        return say(block.text)
    if isinstance(block, Tiles):
        return "\n".join(f"- **{say(label)}**: {say(value)} {say(note)}".rstrip() for label, value, note in block.tiles)
    if isinstance(block, Table):
        cells = [[_cell(value) for value in row] for row in block.rows]
        lines = [" | ".join(f"{say(cell.text)} {say(cell.note)}".rstrip() for cell in row) for row in cells]
        rule = " | ".join(":--" if column < block.text_columns else "--:" for column in range(len(block.headers)))
        head = " | ".join(say(header) for header in block.headers)
        table = "\n".join(f"| {line} |" for line in [head, rule, *lines])
        return f"{say(block.caption)}\n\n{table}" if block.caption else table
    if isinstance(block, Figure):
        return f"(Plot in the HTML report: {say(block.caption)})"
    if isinstance(block, Details):
        indented = "\n".join(f"    {line}" for line in block.text.splitlines())
        return f"{say(block.summary)}:\n\n{indented}"
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
        parts += [f"## {escape_markdown(section.title)}", *(_markdown_block(block) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


_CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --page: #ffffff; --panel: #f5f7f9; --line: #d8dee4;
  --link: #1f6cb0; --hit: #1a7f47; --hit-page: #e3f5ea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa5b1; --page: #14181d; --panel: #1d232a;
  --line: #343c46; --link: #79b8f0; --hit: #6fd39b; --hit-page: #17352a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .75rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
p { max-width: 46rem; margin: .75rem 0; }
.lead, .caption, figcaption, .note, .label { color: var(--soft); }
.caption, figcaption { font-size: .9rem; margin: 1.5rem 0 .4rem; max-width: 46rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
nav ol { margin: 1.5rem 0 0; padding: .9rem 1rem .9rem 2.4rem; background: var(--panel); border-radius: .6rem;
  columns: 16rem; column-gap: 2rem; }
nav li { break-inside: avoid; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tile { background: var(--panel); border-radius: .6rem; padding: .8rem 1rem; }
.tile .label { font-size: .85rem; } .tile .value { font-size: 1.55rem; font-weight: 600; line-height: 1.3; }
.tile .value, td, th { font-variant-numeric: tabular-nums; }
.note { font-size: .8rem; }
.scroll { overflow-x: auto; margin: .25rem 0 1.25rem; }
table { border-collapse: collapse; font-size: .9rem; line-height: 1.4; min-width: 20rem; }
th, td { padding: .38rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: baseline; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; }
tbody th { font-weight: 500; }
tbody tr:hover { background: var(--panel); }
th.text, td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
td .note { display: block; }
figure { margin: 1.25rem 0; }
svg { display: block; width: 100%; max-width: 46rem; height: auto; color: var(--ink); }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
details { margin: .5rem 0; border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { overflow-x: auto; font: .8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.example { background: var(--panel); border-radius: .6rem; padding: 1rem 1.1rem; margin: 1rem 0; font-size: .9rem; }
.example ol { margin: .2rem 0 .8rem; padding-left: 1.6rem; }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); gap: .25rem 1.5rem; }
.hit { color: var(--hit); background: var(--hit-page); border-radius: .25rem; padding: 0 .3rem; font-weight: 600; }
@media print { nav { display: none; } main { max-width: none; } }
"""


def _ordered(items: Sequence[str], empty: str) -> str:
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>" if items else f"<p class='note'>{empty}</p>"


def _html_block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Tiles):
        tiles = (
            f'<div class="tile"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
            f'<div class="note">{escape(note)}</div></div>'
            for label, value, note in block.tiles
        )
        return f'<div class="tiles">{"".join(tiles)}</div>'
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Figure):
        caption = escape(block.caption)
        return f'<figure role="img" aria-label="{caption}"><figcaption>{caption}</figcaption>{block.svg}</figure>'
    if isinstance(block, Details):
        return f"<details><summary>{escape(block.summary)}</summary><pre>{escape(block.text)}</pre></details>"
    lists = []
    for name, titles in block.lists:
        lines = [f'<span class="hit">{escape(title)} ✓</span>' if hit else escape(title) for title, hit in titles]
        lists.append(f"<div><h3>{escape(name)}</h3>{_ordered(lines, 'empty list')}</div>")
    history = _ordered([escape(title) for title in block.history], "empty")
    return (
        f'<div class="example"><h3>{escape(block.title)}</h3><div class="label">History, oldest first</div>{history}'
        f'<p><span class="label">Bought next:</span> <span class="hit">{escape(block.target)}</span></p>'
        f'<div class="lists">{"".join(lists)}</div></div>'
    )


def _html_table(block: Table) -> str:
    def shape(column: int) -> str:
        return ' class="text"' if column < block.text_columns else ""

    head = "".join(f'<th scope="col"{shape(i)}>{escape(header)}</th>' for i, header in enumerate(block.headers))
    body = []
    for row in block.rows:
        line = []
        for column, value in enumerate(row):
            cell = _cell(value)
            note = f'<span class="note">{escape(cell.note)}</span>' if cell.note else ""
            tag, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
            line.append(f"<{tag}{scope}{shape(column)}>{escape(cell.text)}{note}</{tag}>")
        body.append(f"<tr>{''.join(line)}</tr>")
    caption = f'<div class="caption">{escape(block.caption)}</div>' if block.caption else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{chr(10).join(body)}\n</tbody></table>"
    return f'{caption}<div class="scroll" tabindex="0">{table}</div>'


def render_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The document as one HTML page that loads nothing."""
    contents = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections, start=1))
    parts = [
        f'<section id="s{i}"><h2>{escape(section.title)}</h2>\n'
        + "\n".join(_html_block(block) for block in section.blocks)
        + "</section>"
        for i, section in enumerate(sections, start=1)
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>\n'
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n' + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )
