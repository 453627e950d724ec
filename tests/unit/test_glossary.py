"""Retired words appear in no name, setting, message, docstring or page; docs/reference/glossary.md has those in use."""

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from minionerec.pipeline.settings import fields
from minionerec.pipeline.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
CODE = [path for folder in ("minionerec", "benchmarks", "studies") for path in sorted((ROOT / folder).rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [
    path
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("minionerec/**/README.md")),
    ]
    if path.name != "glossary.md"
]
CONFIGS = sorted((ROOT / "minionerec" / "configs").rglob("*.yaml")) or sorted((ROOT / "configs").rglob("*.yaml"))

NAMES = {
    "anew": "again",
    "goods": "items",
    "lined": "ordered",
    "moment": "context, or time",
    "moments": "context, or times",
    "nobody": "NO_INDEX",
    "place": "path, index, position, rank or device",
    "places": "paths, indices, positions, ranks or devices",
    "said": "message, reported, or the name of the value",
    "speaking": "the name of what it does",
    "speaks": "generates",
    "spoken": "generated",
    "stamp": "timestamp",
    "taught": "distilled",
    "teaches": "distills",
    "told": "conditioned, or reported",
    "untold": "unconditioned",
    "visits": "interactions",
    "walked": "sequences",
}
"""Parts of names of Python code that are retired → what is used."""

IN_CODE = {
    "asked": "requested, queried, or the name of the value",
    "behind": "after, last, or the name of the value",
    "cut": "truncated",
    "cuts": "borders",
}
"""Parts of names that are retired in the package, benchmarks and studies."""

ROWS = ("audit", "chain", "distinct", "eval", "grpo", "loss", "prompt", "shuffle", "split", "training", "valid")
"""Words before `rows` in names that are about the examples of a split."""

WHOLE = {
    "Behind": "items by SID",
    "Kinds": "slices",
    "list_width": "list_length",
    "row_kinds": "example_slices",
    **{f"{word}_rows": f"{word}_examples" for word in ROWS},
    **{f"{word.title()}Rows": f"{word.title()}Examples" for word in ROWS},
    "Beside": "results",
    "Given": "model inputs",
    "Made": "results",
    "Said": "findings",
    "Shown": "results",
    "Standing": "ranks",
    "came": "the table's subject",
    "came_later": "since",
    "decides": "affects_result",
    "grows": "resumable",
    "reads": "input_kind",
    "floors": "baselines or layers",
    "material": "evaluation set",
    "who": "user, or recommender",
}
"""Whole names that are retired → what is used."""

ALLOWED = {
    "Stamp_": "a column of a table that a test reads",
    "stamp": "a setting of a made-up stage of tests",
    "PLACE": "a column of a table that a test reads",
    "training_rows": "rows of a matrix of vectors that codebooks are fitted on",
}
"""Names that have a retired word for another reason, of tests and of the published tables."""

PHRASES = {
    r"what followed": "item transitions",
    r"same as last item": "most recent items",
    r"\buntold\b": "unconditioned",
    r"\btold (?:nothing|moments?|the session context)\b": "conditioned, unconditioned",
    r"\btell_moments\b": "context",
    r"\btaught\b|\bteaches\b": "distilled from, distills",
    r"\bkinds of rows\b": "slices",
    r"\b(?:training|validation|test|train|valid) rows\b": "examples",
    r"\bgone on with\b|\bgoes on\b": "resumed, continues",
    r"\bcut off\b": "interrupted, truncated",
    r"\blaid aside\b": "kept",
    r"\b(?:made|fetched|counted|trained|copied) anew\b|\banew\b": "rebuilt, again",
    r"\bthrown away\b": "deleted",
    r"\b(?:model|teacher|student|ranker|recommender)s? (?:says?|speaks?|(?:is|are|was|were) (?:asked|told))\b": (
        "generates, ranks, is queried, is conditioned on"
    ),
    r"\b(?:prompts?|texts?|titles?|completions?) (?:is|are|was|were) cut\b": "truncated",
    r"\bbeam k\b": "num_beams",
    r"\bcame_later\b|\bNOBODY\b": "since, NO_INDEX",
    r"\b(?:beam|list) widths?\b|\bwidth of (?:the )?(?:beams?|lists?)\b": "cutoff, num_beams",
    r"\bfloors\b": "baselines, layers",
}
"""Retired phrases of messages, docstrings, comments and pages → what is used."""


@cache
def words_of(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def retired(name: str, words: Mapping[str, str] = NAMES) -> str | None:
    """The word that is used in place of the retired one in a name; None for a name without one."""
    if name in ALLOWED:
        return None
    return WHOLE.get(name) or next((words[word] for word in words_of(name) if word in words), None)


def names_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of what a module defines or assigns: classes, functions, arguments, variables, attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def phrases_of(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of the retired phrases of a text; those that a line break divides are found too."""
    for phrase, used in PHRASES.items():
        for found in re.finditer(phrase.replace(" ", r"\s+(?:#\s*)?"), text):
            yield text.count("\n", 0, found.start()) + 1, f"{found[0]!r}; say {used}"


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and content of the strings and comments of a module; joined strings are separate ones here."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield token.start[0], token.string


@pytest.mark.parametrize(("paths", "words"), [(CODE, NAMES | IN_CODE), (TESTS, NAMES)], ids=["code", "tests"])
def test_names_have_no_retired_word(paths, words):
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    names = {path: {path.stem, *re.findall(r"[^\W\d]\w*", source)} for path, source in sources.items()}
    suspects = {name for name in set().union(*names.values()) if retired(name, words)}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}; say {retired(name, words)}"
        for path, source in sources.items()
        if not suspects.isdisjoint(names[path])  # to parse all files takes seconds
        for line, name in [(1, path.stem), *names_of(source)]
        if name in suspects
    ]
    assert not found, "\n".join(sorted(set(found)))


def test_settings_have_no_retired_word():
    names = {each.name for spec in STAGES.values() for each in fields(spec.config_class())}
    assert len(names) > 100
    assert not [name for name in names if retired(name, NAMES | IN_CODE)]


def test_messages_and_docstrings_have_no_retired_phrase():
    found = [
        f"{path.relative_to(ROOT)}:{line + more - 1}: {what}"
        for path in CODE
        if any(phrases_of(path.read_text(encoding="utf-8")))  # most files have none, in code either
        for line, text in texts_of(path)
        for more, what in phrases_of(text)
        if "tell_moments" not in what or path.name != "settings.py"  # which refuses it
    ]
    assert not found, "\n".join(found)


def test_pages_and_recipes_have_no_retired_phrase():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in [*PAGES, *CONFIGS]
        for line, what in phrases_of(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_retired_words_are_found():
    source = "class Said:\n    def real_place(self, told): self.behind, visits = told, 1\nfor place in []: pass\n"
    assert [name for _, name in names_of(source) if retired(name)] == ["Said", "real_place", "place", "told", "visits"]
    assert retired("SplitRows") == "SplitExamples" and retired("cut_texts", IN_CODE) == "truncated"
    assert [line for line, _ in phrases_of("rows\nwhat\nfollowed,\nit is\ncut off")] == [2, 5]
    assert not list(phrases_of("The teacher is queried, in place, behind a proxy; test examples take place."))
