"""Imports go down only, and some libraries are confined to the package that is about them."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "minionerec"

# Each package may import those of the lines below its own, and those named for it here.
LAYERS = [
    ["cli"],
    ["serving"],
    ["evaluation", "training"],
    ["sequential", "generative", "preference", "rewards", "decoding", "prompts", "backbone"],
    ["metrics", "sid", "embed", "data"],
    ["core"],
]
SAME_LAYER = {
    ("backbone", "prompts"),  # a checkpoint holds its wording
    ("backbone", "generative"),  # a checkpoint's class is found by its name
    ("generative", "backbone"),
    ("generative", "decoding"),  # the trie, and what searches ask of a model
    ("generative", "sequential"),  # layers over items
    ("sid", "data"),  # SIDs are built for a corpus
    ("sid", "embed"),  # from the vectors of its items
    ("embed", "data"),
    ("metrics", "sid"),  # levels are those of SIDs
    ("sequential", "backbone"),  # dropout is the same for every model
    ("sequential", "prompts"),  # a corpus has the same windows for every model
}
CONFINED = {
    "trl": ["training", "core/config.py"],
    "accelerate": ["training"],
    "deepspeed": ["training"],
    "faiss": ["sid"],
    "matplotlib": ["evaluation/plots.py"],
    "torch": ["backbone", "decoding", "embed", "sid", "training", "evaluation", "sequential", "generative",
              "preference", "serving", "cli/pipeline.py"],
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(source):
    """(top-level name, second name or None, line) of every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            found = [node.module]
            if node.module == "minionerec":
                found = [f"minionerec.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            parts = name.split(".")
            yield parts[0], parts[1] if len(parts) > 1 else None, node.lineno


def violations(place, source):
    """What a file at `place` (relative to the package) imports that it must not."""
    own = place.split("/")[0]
    wrong = []
    for top, second, line in imports(source):
        if top == "minionerec" and second in LEVEL and second != own and own in LEVEL:
            down = LEVEL[second] > LEVEL[own]
            if not down and (own, second) not in SAME_LAYER:
                wrong.append(f"{place}:{line} imports minionerec.{second}, which is not below it")
        if top in CONFINED and not any(place == home or place.startswith(f"{home}/") for home in CONFINED[top]):
            wrong.append(f"{place}:{line} imports {top}, which belongs in {', '.join(CONFINED[top])}")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_and_libraries_stay_home(path):
    assert violations(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")) == []


def test_every_package_has_a_layer():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(LEVEL), f"packages without a layer: {sorted(packages - set(LEVEL))}"
    assert {"core", "cli", "training"} <= packages


@pytest.mark.parametrize(
    ("place", "source", "message"),
    [
        ("core/new.py", "from minionerec.sid.table import SidTable", "minionerec.sid"),
        ("core/new.py", "def late():\n    import torch", "torch"),
        ("decoding/new.py", "from minionerec import training", "minionerec.training"),
        ("metrics/new.py", "import matplotlib.pyplot as plt", "matplotlib"),
        ("evaluation/report.py", "from trl import SFTTrainer", "trl"),
        ("prompts/new.py", "from minionerec.decoding.trie import Trie", "minionerec.decoding"),
    ],
)
def test_a_violation_is_found(place, source, message):
    assert len(violations(place, source)) == 1
    assert message in violations(place, source)[0]
