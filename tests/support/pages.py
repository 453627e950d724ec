"""HTML pages as tests look at them, and figures that are built but not drawn."""

import re
from html.parser import HTMLParser

import pytest

from minionerec.reports import plots

VOID = {"meta", "br", "link", "img", "input", "hr"}


draw = plots.svg


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Figures are empty in the pages of a module's tests, as drawing takes half of a report's time; see `drawn`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "svg", lambda figure, name: f'<svg id="{name}"></svg>')
        yield


@pytest.fixture
def drawn(monkeypatch):
    """A test's figures are drawn."""
    monkeypatch.setattr(plots, "svg", draw)


class Page(HTMLParser):
    """Checks nesting, and collects links, ids and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.text, self.tags = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href", "srcset", "data")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


HEADS = {"h1": "# ", "h2": "## ", "h3": "### ", "li": "* ", "p": "", "tr": "| ", "div": "", "summary": "", "pre": ""}


class _Lines(HTMLParser):
    """The text of a page line by line: headings as `## `, table rows as `| a | b |`, list entries as `* `."""

    def __init__(self, text):
        super().__init__()
        self.lines = []
        self.feed(re.sub(r"<nav.*</nav>", "", text[text.index("<main>") :], flags=re.S))

    def handle_starttag(self, tag, attrs):
        if tag in HEADS:
            self.lines.append(HEADS[tag])
        elif tag == "span" and ("class", "note") in attrs:
            self.lines[-1] += " "

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.lines[-1] += " | "

    def handle_data(self, data):
        if self.lines and data.strip():
            self.lines[-1] += data.strip("\n")


def page_text(path):
    """The text of a page's file; tests look for lines and table rows in it."""
    return "\n".join(line.rstrip() for line in _Lines(path.read_text(encoding="utf-8")).lines)
