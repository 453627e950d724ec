"""Pages: every block is shown, text is escaped, and nothing is loaded."""

import re

from support.pages import Page

from minionerec.reports.page import Cell, Details, Figure, Section, Table, render_page

NASTY = '<script>alert("x")</script> & |'
BLOCKS = [
    f"text {NASTY}",
    [f"sentence {NASTY}", "another"],
    Table(["name", f"head {NASTY}"], [["row", Cell("0.1", f"[0, 1] {NASTY}", True)], ["row", "plain"]], "caption"),
    Figure('<svg><path d="M0"/></svg>', f"figure {NASTY}"),
    Details(f"summary {NASTY}", f"pre {NASTY}\nsecond"),
]


def test_every_block_is_shown_and_escaped():
    html = render_page("title", "lead", [Section(f"section {NASTY}", BLOCKS), Section("second", [])])
    page = Page(html)
    words = " ".join(page.text)
    assert "script" not in page.tags and page.tags.count("svg") == 1 and page.tags.count("ul") == 1
    for start in ("section", "text", "sentence", "head", "figure", "summary", "pre"):
        assert f"{start} {NASTY}" in words
    assert "<strong>0.1</strong>" in html
    assert page.tags.count("section") == 2 and page.links == ["#s1", "#s2"]
    assert {f"#{name}" for name in page.ids} == set(page.links)
    assert "http" not in html and "prefers-color-scheme: dark" in html
    assert html == render_page("title", "lead", [Section(f"section {NASTY}", BLOCKS), Section("second", [])])


def test_text_columns_are_marked():
    html = render_page("T", "lead", [Section("S", [Table(["a", "b", "c"], [["1", "2", "3"]], text_columns=2)])])
    assert html.count('class="text"') == 4


def test_control_characters_are_shown_as_escape_sequences():
    title = "Tea \x1b[31m\x07\u202eink\r\x9b2J"
    blocks = [Details("d", title), Table([title], [[title]])]
    page = render_page(title, title, [Section(title, blocks)])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    assert "x1b[31m" in page and "u202eink" in page
