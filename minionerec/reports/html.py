"""A document as one HTML page that loads nothing."""

from collections.abc import Sequence
from html import escape

from minionerec.reports.document import (
    Block,
    Bullets,
    Details,
    Example,
    Figure,
    Paragraph,
    Section,
    Table,
    Tiles,
    as_cell,
)
from minionerec.reports.style import CSS


def _ordered(items: Sequence[str], empty: str) -> str:
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>" if items else f"<p class='note'>{empty}</p>"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in block.sentences)}</ul>"
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


def _example(block: Example) -> str:
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
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>\n'
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n' + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )
