"""Documents: the same content in Markdown and HTML, escaped, whole, loading nothing."""

import re

import pytest
from support.pages import Page

from minionerec.reports.document import (
    Cell,
    Details,
    ExampleBlock,
    Figure,
    Section,
    Table,
    Tiles,
    turned,
)
from minionerec.reports.html import render_html, write_page
from minionerec.reports.markdown import escape_markdown, render_markdown

NASTY = '<script>alert("x")</script> & |'
LISTS = [("list", [(f"item {NASTY}", True), ("b", False)])]
BLOCKS = [
    f"text {NASTY}",
    Tiles([(f"label {NASTY}", "0.5", "note")]),
    [f"sentence {NASTY}", "another"],
    Table(["name", f"head {NASTY}"], [["row", Cell("0.1", f"[0, 1] {NASTY}")], ["row", "plain"]], f"caption {NASTY}"),
    Figure('<svg><path d="M0"/></svg>', f"figure {NASTY}"),
    Details(f"summary {NASTY}", f"pre {NASTY}\nsecond"),
    ExampleBlock(
        f"example {NASTY}", [f"old {NASTY}"], f"target {NASTY}", [("list", [(f"item {NASTY}", True), ("b", False)])]
    ),
    ExampleBlock("empty", [], "target", [("list", [])]),
]


def test_markdown_shows_text_literally():
    assert escape_markdown("a_b <b> *x*\n| [l](u)") == "a_b &lt;b&gt; \\*x\\* \\| [l\\](u)"
    sections = [Section("S", ["p & q", Table(["h"], [["<v>"]])])]
    assert (
        escape_markdown("p < 0.001, 1 > 0, a & b &amp; <i> >x") == "p < 0.001, 1 > 0, a & b &amp;amp; &lt;i&gt; &gt;x"
    )
    assert "| &lt;v&gt; |" in render_markdown("T", "lead", sections)
    assert "p &amp; q" in render_html("T", "lead", sections)


def test_a_strong_cell_stands_out_in_both_forms():
    table = Table(["h", "v"], [["row", Cell("0.1 <b>", "[0, 1]", strong=True)]])
    parts = "title", "lead", [Section("s", [table])]
    assert "| row | **0.1 &lt;b&gt;** [0, 1] |" in render_markdown(*parts)
    assert "<strong>0.1 &lt;b&gt;</strong>" in render_html(*parts)


def test_every_block_says_the_same_in_both_forms_and_escapes_it():
    parts = "title", "lead", [Section(f"section {NASTY}", BLOCKS), Section("second", [])]
    html, markdown = render_html(*parts), render_markdown(*parts)
    page = Page(html)
    assert "script" not in page.tags
    words = " ".join(page.text)
    for start in (
        "text",
        "label",
        "sentence",
        "head",
        "caption",
        "figure",
        "summary",
        "example",
        "old",
        "target",
        "item",
    ):
        assert f"{start} {NASTY}" in words
        assert f"{start} {escape_markdown(NASTY)}" in markdown
    assert f"pre {NASTY}" in words and f"    pre {NASTY}\n    second" in markdown  # indented: shown as it stands
    assert f"\n\n* sentence {escape_markdown(NASTY)}\n* another\n\n" in markdown and page.tags.count("ul") == 1
    assert "[0, 1]" in words and "✓" in words and "empty list" in words and "✓" in markdown and "(empty)" in markdown
    assert (
        page.tags.count("section") == 2
        and page.links == ["#s1", "#s2"]
        and set(page.links) == {f"#{name}" for name in page.ids}
    )
    assert "http" not in html and "prefers-color-scheme: dark" in html


def test_text_columns_stand_to_the_left():
    sections = [Section("S", [Table(["a", "b", "c"], [["1", "2", "3"]], text_columns=2)])]
    assert "| :-- | :-- | --: |" in render_markdown("T", "lead", sections)
    assert render_html("T", "lead", sections).count('class="text"') == 4


def test_a_page_is_two_files_of_the_same_bytes_every_time(tmp_path):
    for name in ("one", "two"):
        write_page(tmp_path, name, "title", "lead", [Section("S", BLOCKS)])
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert (tmp_path / "one.md").read_text(encoding="utf-8") == render_markdown("title", "lead", [Section("S", BLOCKS)])


def test_a_wide_table_is_turned():
    table = Table(["metric", "one", "two"], [["HR", Cell("0.1", "note"), "0.2"], ["MRR", "0.3", "0.4"]], "caption")
    assert turned(table) == Table(
        ["metric", "HR", "MRR"], [["one", Cell("0.1", "note"), "0.3"], ["two", "0.2", "0.4"]], "caption"
    )
    assert turned(turned(table)) == table


@pytest.mark.parametrize("render", [render_markdown, render_html])
def test_signs_that_terminals_and_readers_obey_are_shown(render):
    title = "Tea \x1b[31m\x07\u202eink\r\x9b2J"
    blocks = [
        Details("d", title),
        Table([title], [[title]]),
        ExampleBlock(title, [title], title, [(title, [(title, True)])]),
    ]
    page = render(title, title, [Section(title, blocks)])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    assert "x1b[31m" in page
    assert "u202eink" in page
