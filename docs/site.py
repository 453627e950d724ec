"""The site of the documentation (`make docs`): pages of other folders, the reference, and the order of pages.

MkDocs reads `docs` alone. This hook adds the pages that lie beside it (README, CONTRIBUTING, ...), with links between
them and the others mended, and makes the reference from the code: the public modules by mkdocstrings, the settings of
every stage from the one description that `--help` prints too.
"""

import posixpath
import re
from dataclasses import fields
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from minionerec.pipeline.settings import default_text, description
from minionerec.pipeline.stages import STAGES

ROOT = Path(__file__).resolve().parent.parent

OUTSIDE = {
    "README.md": "project.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "data/README.md": "data.md",
    "data/demo/README.md": "demo-shop.md",
} | {
    path.relative_to(ROOT).as_posix(): f"parts/{path.parent.name}.md"
    for path in sorted(ROOT.glob("minionerec/contrib/*/README.md"))
}
"""Pages of the repository that lie outside of `docs`, and what they are called on the site."""

MODULES = {
    "Python interface": ["minionerec.api"],
    "Recommending": [
        "minionerec.recommend.recommender",
        "minionerec.recommend.requests",
        "minionerec.recommend.rankers.protocol",
    ],
    "Data and semantic IDs": ["minionerec.data.corpus", "minionerec.sid.table"],
    "Search": [
        "minionerec.models.decoding.beam",
        "minionerec.models.decoding.trie",
        "minionerec.models.decoding.branches",
    ],
    "Training": ["minionerec.training.rewards"],
    "Measuring": ["minionerec.metrics.ranking", "minionerec.metrics.statistics", "minionerec.metrics.predictions"],
    "Stages and settings": ["minionerec.pipeline.settings", "minionerec.pipeline.stage"],
}
"""The public modules, by page of the reference."""

_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    for title, modules in MODULES.items():
        text = "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)])
        files.append(File.generated(config, _page_of(title), content=text + "\n"))
    for name in STAGES:
        files.append(File.generated(config, f"reference/settings/{name}.md", content=settings_page(name)))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The order of the pages: tutorial, guides, optional parts, reference, results, decisions."""
    modules = [_page_of(title) for title in MODULES]
    config.nav = [
        {"Start": ["README.md", "project.md"]},
        {"Tutorial": _pages("tutorial", "first-model", "own-data")},
        {"How to": _pages("how-to", "recipes", "studies", "columns", "semantic-ids", "rewards", "final-model")},
        {"Optional parts": [name for name in OUTSIDE.values() if name.startswith("parts/")]},
        {
            "Reference": [
                *_pages("reference", "stages", "evaluation", "artefacts", "library", "catalogue-model"),
                "data.md",
                "demo-shop.md",
                {"Python": modules},
                {"Settings": [f"reference/settings/{name}.md" for name in STAGES]},
            ]
        },
        {"Results": _pages("results", "README")},
        {"Decisions": _pages("decisions")},
        {"Project": ["contributing.md", "security.md", "changelog.md"]},
    ]
    return config


def _pages(folder: str, *first: str) -> list[str]:
    """The pages of a folder of `docs`: those named, where they exist, then the others by name."""
    names = {path.stem for path in (ROOT / "docs" / folder).glob("*.md")}
    return [f"{folder}/{name}.md" for name in [*(n for n in first if n in names), *sorted(names - set(first))]]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where pages lie on the site."""
    source = {name: path for path, name in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda link: _mended(link, source, page.file.src_uri), markdown)


def _mended(link: re.Match[str], source: str, page: str) -> str:
    """One link of a page, from where the page lies in the repository to where the target lies on the site."""
    label, target, anchor = link.groups()
    if re.match(r"[a-z]+:", target):
        return link.group()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if (ROOT / path / "README.md").is_file():
        path += "/README.md"
    name = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if name is None or not posixpath.splitext(name)[1]:
        return label  # a file of the repository that is no page, or a folder without an index
    if source == "CHANGELOG.md":  # which names pages and headings of earlier versions
        if not (ROOT / path).exists():
            return label
        anchor = None
    return f"[{label}]({posixpath.relpath(name, posixpath.dirname(page) or '.')}{anchor or ''})"


def _page_of(title: str) -> str:
    return f"reference/{title.lower().replace(' ', '-')}.md"


def settings_page(name: str) -> str:
    """The settings of a stage as Markdown: name, type, default, what each does and what it may be."""
    spec = STAGES[name]
    lines = [f"# {name}", "", spec.summary, "", "| setting | type | default | |", "|---|---|---|---|"]
    for each in fields(spec.config_class()):  # type: ignore[arg-type]
        described = description(each)
        default = default_text(each)
        kind = each.type if isinstance(each.type, str) else getattr(each.type, "__name__", str(each.type))
        choices = (
            "" if not described.known else "; one of " + ", ".join(f"`{word}`" for word in described.known if word)
        )
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{each.name}` | {_cell(kind)} | {_cell(shown)} | {_cell(described.help + choices)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
