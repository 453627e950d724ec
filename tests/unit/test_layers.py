"""Imports go down only, and some libraries are confined to the package that is about them."""

import ast
import re

import pytest
from support.modules import imports
from support.paths import ROOT

PACKAGE = ROOT / "minionerec"

# From the lowest up: each package may import those before it, and no other. There are no exceptions. A line is a layer.
LAYERS = [
    ["core"],
    ["data", "sid", "metrics"],
    ["models"],
    ["training", "preference"],
    ["recommend"],
    ["reports", "cli"],
]
ORDER = [package for layer in LAYERS for package in layer]
CONFINED = {
    "trl": ["training"],
    "accelerate": ["training", "core/processes.py", "core/device.py"],
    "deepspeed": ["training"],
    "faiss": ["sid"],
    "duckdb": ["data/engines/duck.py"],
    "pyspark": ["data/engines/spark.py"],
    "py4j": ["data/engines/spark.py"],
    "matplotlib": ["reports/plots.py"],
    "starlette": ["recommend/serve"],
    "uvicorn": ["recommend/serve"],
    "prometheus_client": ["recommend/serve"],
    "torch": [
        "core/processes.py", "core/device.py", "sid", "models", "training", "preference", "recommend", "cli/launch.py",
        "cli/doctor.py",
    ],
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(source):
    """(top-level name, second name or None, line) of every import in a file, wherever it stands."""
    for node, _ in imports(source):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"relative import in line {node.lineno}"
            found = [node.module]
            if node.module == "minionerec":
                found = [f"minionerec.{alias.name}" for alias in node.names]
        for name in found:
            parts = name.split(".")
            yield parts[0], parts[1] if len(parts) > 1 else None, node.lineno


def violations(folder, source):
    """What a file at `folder` (relative to the package) imports that it must not."""
    own = folder.split("/")[0]
    wrong = []
    for top, second, line in imported(source):
        if (
            top == "minionerec"
            and own in ORDER
            and second in ORDER
            and second != own
            and ORDER.index(second) > ORDER.index(own)
        ):
            wrong.append(f"{folder}:{line} imports minionerec.{second}, which is not below it")
        if top in CONFINED and not any(folder == home or folder.startswith(f"{home}/") for home in CONFINED[top]):
            wrong.append(f"{folder}:{line} imports {top}, which belongs in {', '.join(CONFINED[top])}")
    return wrong


def test_imports_go_down_and_libraries_stay_home():
    found = [violations(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")) for path in FILES]
    assert [line for lines in found for line in lines] == []


def test_every_package_has_its_layer():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(ORDER)


@pytest.mark.parametrize(
    ("folder", "source", "message"),
    [
        ("core/new.py", "from minionerec.sid.table import SidTable", "minionerec.sid"),
        ("core/new.py", "def late():\n    import torch", "torch"),
        ("models/decoding/new.py", "from minionerec import training", "minionerec.training"),
        ("metrics/new.py", "import matplotlib.pyplot as plt", "matplotlib"),
        ("recommend/evaluation/new.py", "from trl import SFTTrainer", "trl"),
        ("sid/new.py", "from minionerec.models.decoding.trie import Trie", "minionerec.models"),
        ("models/sequential/new.py", "from minionerec.training.run import StepPlan", "minionerec.training"),
    ],
)
def test_a_violation_is_found(folder, source, message):
    assert len(violations(folder, source)) == 1
    assert message in violations(folder, source)[0]


def test_no_two_classes_have_one_name():
    found = {}
    for path in FILES:
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(found) > 200 and not {name: paths for name, paths in found.items() if len(paths) > 1}
