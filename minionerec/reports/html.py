"""A document as one HTML page that loads nothing, and written in both forms."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from minionerec.reports.document import (
    Block,
    Details,
    ExampleBlock,
    Figure,
    Section,
    Table,
    Tiles,
    as_cell,
    visible,
)
from minionerec.reports.markdown import render_markdown

# How pages look: one style sheet, for light and dark screens and for paper.

CSS = """
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
ul { max-width: 46rem; margin: .75rem 0; padding-left: 1.2rem; } ul li { margin: .2rem 0; }
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
.scroll { overflow-x: auto; margin: .25rem 0 1.25rem; background:
  linear-gradient(to right, var(--page) 50%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--page) 50%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) left / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; line-height: 1.4; min-width: 20rem; }
th, td { padding: .38rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: baseline; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; }
tbody th { font-weight: 500; }
tbody tr:hover { background: var(--panel); }
th.text, td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
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
@page { size: landscape; margin: 1cm; }
@media print { nav { display: none; } main { max-width: none; padding: 0; } .scroll { overflow: visible; }
  table { font-size: .5rem; width: 100%; table-layout: auto; } th, td { padding: .1rem .2rem; white-space: normal; }
  td .note { font-size: .42rem; } th.text, td.text { min-width: 0; } tr { break-inside: avoid; } }
"""


def _ordered(items: Sequence[str], empty: str) -> str:
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>" if items else f"<p class='note'>{empty}</p>"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, list):
        return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in block)}</ul>"
    if isinstance(block, Tiles):
        tiles = (
            f'<div class="tile"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
            f'<div class="note">{escape(note)}</div></div>'
            for label, value, note in block.tiles
        )
        return f'<div class="tiles">{"".join(tiles)}</div>'
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        caption = escape(block.caption)
        return f'<figure role="img" aria-label="{caption}"><figcaption>{caption}</figcaption>{block.svg}</figure>'
    if isinstance(block, Details):
        return f"<details><summary>{escape(block.summary)}</summary><pre>{escape(block.text)}</pre></details>"
    return _example(block)


def _example(block: ExampleBlock) -> str:
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


def _table(block: Table) -> str:
    def shape(column: int) -> str:
        return ' class="text"' if column < block.text_columns else ""

    head = "".join(f'<th scope="col"{shape(i)}>{escape(header)}</th>' for i, header in enumerate(block.headers))
    body = []
    for row in block.rows:
        line = []
        for column, value in enumerate(row):
            cell = as_cell(value)
            note = f'<span class="note">{escape(cell.note)}</span>' if cell.note else ""
            tag, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
            text = f"<strong>{escape(cell.text)}</strong>" if cell.strong else escape(cell.text)
            line.append(f"<{tag}{scope}{shape(column)}>{text}{note}</{tag}>")
        body.append(f"<tr>{''.join(line)}</tr>")
    caption = f'<div class="caption">{escape(block.caption)}</div>' if block.caption else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{chr(10).join(body)}\n</tbody></table>"
    return f'{caption}<div class="scroll" tabindex="0">{table}</div>'


def render_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The document as one HTML page that loads nothing."""
    contents = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections, start=1))
    parts = [
        f'<section id="s{i}"><h2>{escape(section.title)}</h2>\n'
        + "\n".join(_block(block) for block in section.blocks)
        + "</section>"
        for i, section in enumerate(sections, start=1)
    ]
    return visible(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>\n'
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n' + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


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
