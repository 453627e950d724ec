"""The project as a whole: imports, what it declares, what its wheel holds, launch files, and loose scripts."""

import ast
import functools
import itertools
import json
import re
import sys
import tomllib
import zipfile
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from support.modules import defined
from support.modules import imports as imports_in
from support.paths import ROOT
from support.scripts import study

from minionerec import __version__
from minionerec.pipeline.stages import STAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGE = ROOT / "minionerec"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LOOSE = sorted(
    [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("studies/*.py"), *ROOT.glob("scripts/*.py"), *ROOT.glob("*.py")]
)

# From the lowest up: each package may import those before it, and no other. There are no exceptions. A line is a layer.
LAYERS = [
    ["core"],
    ["data", "sid", "metrics"],
    ["models"],
    ["training"],
    ["recommend"],
    ["reports"],
    ["pipeline"],
]
ORDER = [package for layer in LAYERS for package in layer]
# Folders of optional parts. A part may import every layer and no other part; nothing else imports a part.
PARTS = ["contrib", "serve"]
STAGES_WITH_TORCH = [
    f"pipeline/{name}.py"
    for name in ("evaluate", "export", "grpo", "sft", "train_catalogue", "train_sequential", "training_run")
]
OF_LIBRARIES = {"CatalogueConfig", "GRPOConfig"}  # a configuration of transformers, arguments of TRL
CONFINED = {
    "jinja2": ["reports/page.py"],
    "trl": ["training", "pipeline/sft.py", "pipeline/grpo.py", "contrib/generative_baselines"],
    "accelerate": ["training", "core/processes.py", "core/device.py"],
    "deepspeed": [],
    "faiss": ["sid"],
    "duckdb": ["data/engines/duck.py"],
    "pyspark": ["contrib/spark"],
    "py4j": ["contrib/spark"],
    "matplotlib": ["reports/plots.py"],
    "starlette": ["serve"],
    "uvicorn": ["serve"],
    "prometheus_client": ["serve"],
    "torch": [
        "core/processes.py", "core/device.py", "sid", "models", "training", "recommend", *STAGES_WITH_TORCH,
        "pipeline/cli/launch.py", "pipeline/cli/doctor.py", "contrib/generative_baselines", "contrib/preference",
        "contrib/sequential_zoo", "serve",
    ],
}  # fmt: skip


def normal(name):
    """A distribution's name in the one form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements):
    return {normal(re.match(r"[A-Za-z0-9._-]+", word)[0]) for word in requirements}


def imported(source):
    """(module, whether it is imported when the file is, line) of every import in a file, wherever it stands."""
    for node, early in imports_in(source):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"relative import in line {node.lineno}"
            found = [node.module]
            if node.module in ("minionerec", *(f"minionerec.{folder}" for folder in PARTS)):
                found = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in found:
            yield name, early, node.lineno


@functools.cache
def distributions():
    """Top-level module → names of the installed distributions that bring it."""
    return metadata.packages_distributions()


def imports_of(paths, local):
    """Imports of others' modules: (file, module, whether it is early, distributions)."""
    owners = distributions()
    return [
        (path, module, early, {normal(owner) for owner in owners.get(module, [module])})
        for path in paths
        for name, early, _ in imported(path.read_text(encoding="utf-8"))
        for module in [name.split(".")[0]]
        if module not in sys.stdlib_module_names and (module in owners or module not in local)
        if module not in ("minionerec", "tests")
    ]


@pytest.fixture(scope="module")
def imports():
    """Those of the package."""
    return imports_of(SOURCES, ())


def test_every_import_is_declared(imports):
    needed, extra = names(PROJECT["dependencies"]), names(itertools.chain(*PROJECT["optional-dependencies"].values()))
    # What an extra brings is imported only where it is used, so that the package works without it.
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, module, early, given in imports
        if not given & (needed if early else needed | extra)
    ]
    assert wrong == []


def test_what_tests_and_scripts_import_is_declared():
    files = [*LOOSE, *(ROOT / "tests").rglob("*.py")]
    local = {file.stem for file in files} | {folder.name for folder in (ROOT / "tests").iterdir()}
    every = names(itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, module, _, given in imports_of(files, local)
        if not given & every
    ]
    assert wrong == []


def test_every_declared_package_is_used(imports):
    used = {owner for *_, given in imports for owner in given}
    # DeepSpeed is started by accelerate, as a launch file asks; tqdm may be what other libraries show progress with.
    assert names(PROJECT["dependencies"]) - used <= {"deepspeed"}


@pytest.mark.parametrize("path", LOOSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_scripts_import_is_there(path):
    for node, _ in imports_in(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "minionerec":
            found = defined(node.module)
            assert found is not None, f"{path.name}:{node.lineno}: no {node.module}"
            assert {alias.name for alias in node.names} <= found, f"{path.name}:{node.lineno}: {node.module}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "minionerec":
                    assert defined(alias.name) is not None, f"{path.name}:{node.lineno}: no {alias.name}"


def part_of(words):
    """The optional part in which a file or module of the package lies, as a dotted name; None where in none."""
    return ".".join(words[: 1 if words[0] == "serve" else 2]) if words[:1] and words[0] in PARTS else None


def violations(folder, source):
    """What a file at `folder` (relative to the package) imports that it must not."""
    own, own_part = folder.split("/")[0], part_of(folder.split("/"))
    wrong = []
    for name, _, line in imported(source):
        top, second = (*name.split("."), None)[:2]
        part = part_of(name.split(".")[1:]) if top == "minionerec" else None
        if part not in (None, own_part):
            wrong.append(f"{folder}:{line} imports minionerec.{part}, which is an optional part")
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
    found = [violations(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")) for path in SOURCES]
    assert [line for lines in found for line in lines] == []


def test_the_library_takes_no_settings():
    taken = []
    for path in SOURCES:
        if path.relative_to(PACKAGE).parts[0] in {"pipeline", *PARTS}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
                named = set(re.findall(r"\w*(?:Config|Settings)\b", ast.unparse(node.annotation)))
                taken += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in named - OF_LIBRARIES]
    assert taken == []


def test_every_package_has_its_layer():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == {*ORDER, *PARTS}


@pytest.mark.parametrize(
    ("folder", "source", "message"),
    [
        ("core/new.py", "from minionerec.sid.table import SidTable", "minionerec.sid"),
        ("core/new.py", "def late():\n    import torch", "torch"),
        ("models/decoding/new.py", "from minionerec import training", "minionerec.training"),
        ("metrics/new.py", "import matplotlib.pyplot as plt", "matplotlib"),
        ("recommend/evaluation/new.py", "from trl import SFTTrainer", "trl"),
        ("sid/new.py", "from minionerec.models.decoding.trie import Trie", "minionerec.models"),
        ("models/sequential/new.py", "from minionerec.training.packing import TreeCollator", "minionerec.training"),
        ("training/new.py", "from minionerec.pipeline.training_run import StepPlan", "minionerec.pipeline"),
        ("data/new.py", "from minionerec.contrib.city.law import likeliest", "minionerec.contrib.city"),
        ("pipeline/cli/new.py", "from minionerec.contrib import city", "minionerec.contrib.city"),
        ("contrib/other/new.py", "import minionerec.contrib.city.law", "minionerec.contrib.city"),
        ("pipeline/cli/new.py", "from minionerec.serve.config import ServeConfig", "minionerec.serve"),
    ],
)
def test_a_violation_is_found(folder, source, message):
    assert len(violations(folder, source)) == 1
    assert message in violations(folder, source)[0]


def test_no_two_classes_have_one_name():
    found = {}
    for path in SOURCES:
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(found) > 200 and not {name: paths for name, paths in found.items() if len(paths) > 1}


def files(*patterns):
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names of the files of the wheel, and its metadata."""
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        held = archive.namelist()
        info = next(name for name in held if name.endswith("METADATA"))
        entries = next(name for name in held if name.endswith("entry_points.txt"))
        return set(held), archive.read(info).decode(), archive.read(entries).decode()


def test_the_wheel_is_the_whole_product(wheel):
    held, _, _ = wheel
    shipped = files("configs/**/*", "ds_configs/*", "data/demo/*")
    package = {name for name in files("minionerec/**/*") if not name.startswith("minionerec/shipped/")}
    assert len(shipped) > 60 and len(package) > 100
    assert {f"minionerec/shipped/{name}" for name in shipped} <= held
    assert package <= held
    assert {name for name in package if name.endswith((".yaml", "py.typed"))}  # wordings, published figures, types
    inner = {name for name in held if ".dist-info/" not in name}
    assert inner == package | {f"minionerec/shipped/{name}" for name in shipped}  # and nothing else


def test_the_wheel_brings_the_command_and_says_what_it_needs(wheel):
    _, info, entries = wheel
    assert "minionerec = minionerec.pipeline.cli.main:main" in entries
    parts = [line for group in PROJECT["entry-points"].values() for line in group.items()]
    assert len(parts) > 4 and all(f"{name} = {target}" in entries.splitlines() for name, target in parts)
    declared = names(re.findall(r"^Requires-Dist: (.*)$", info, re.MULTILINE))
    assert declared == names(PROJECT["dependencies"]) | names(
        itertools.chain(*PROJECT["optional-dependencies"].values())
    )
    extras = re.findall(r"^Provides-Extra: (.*)$", info, re.MULTILINE)
    assert set(extras) == {
        "dev",
        "http",
        "plots",
        "tensorboard",
        "peft",
        "search",
        "docs",
        "spark",
        "serve",
        "wordllama",
        "gpu",
    }


def test_what_the_project_names_is_there():
    for name in (PROJECT["readme"], *PROJECT["license-files"], "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"):
        assert (ROOT / name).is_file(), name


def test_the_version_is_one_everywhere():
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == __version__
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] == "Unreleased" and re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", sections[1])


def pins(*files):
    """Package to version in the requirements files."""
    lines = [line for name in files for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()]
    pinned = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)(?: .*)?", line) for line in lines if "==" in line]
    assert all(pinned)
    return [normal(match[1]) for match in pinned]


def test_requirements_pin_every_package_once():
    pinned = pins("quickstart", "develop", "unhashed")
    assert len(pinned) == len(set(pinned))
    wanted = names(itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
    assert wanted <= set(pinned)


@pytest.mark.parametrize(
    "name", ["cpu.yaml", "single_gpu.yaml", "zero2_4gpu.yaml", "zero2_2x4gpu.yaml", "zero2_cpu.yaml"]
)
def test_accelerate_takes_the_launch_files(name):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(ROOT / "ds_configs" / name))
    assert config.num_processes == {"zero2_4gpu.yaml": 4, "zero2_2x4gpu.yaml": 8, "zero2_cpu.yaml": 2}.get(name, 1)
    assert config.use_cpu == (name == "cpu.yaml")
    for file in [value for key, value in config.deepspeed_config.items() if key.endswith("_file")]:
        assert (ROOT / file).is_file()
        assert config.mixed_precision is None  # with a DeepSpeed file, accelerate refuses settings that are its own


@pytest.mark.parametrize("name", ["zero2.json", "zero2_offload.json", "zero2_cpu.json"])
def test_deepspeed_knows_every_setting(name):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    config = json.loads((ROOT / "ds_configs" / name).read_text())
    zero = config["zero_optimization"]
    assert set(zero) <= set(DeepSpeedZeroConfig.model_fields)
    parsed = DeepSpeedZeroConfig(**zero)
    assert parsed.stage == 2
    assert parsed.contiguous_gradients
    assert (parsed.offload_optimizer is not None) == ("offload" in name)
    if name == "zero2.json":  # the published run's
        assert parsed.overlap_comm and parsed.reduce_scatter and parsed.allgather_partitions
        assert parsed.reduce_bucket_size == parsed.allgather_bucket_size == 5e8
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    assert all(config[key] == "auto" for key in batch)


def test_make_and_continuous_integration_run_the_same_tests():
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec make test")
    makefile = (ROOT / "Makefile").read_text()
    reported = set(
        re.findall(r"make ([\w-]+)", "\n".join(line for line in makefile.splitlines() if line.startswith("#")))
    )
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert reported <= targets
    assert {
        "quickstart",
        "test",
        "test-fast",
        "slow",
        "industrial",
        "industrial-best",
        "lint",
        "format",
        "clean",
    } <= reported


def test_launch_files_say_how_they_are_used():
    for path in sorted((ROOT / "ds_configs").glob("*.yaml")):
        first = path.read_text().splitlines()[0]
        assert f"--config_file ds_configs/{path.name} scripts/sft.py" in first
        assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_quickstart_installs_what_it_needs_and_no_more():
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"^FIRST_EXTRAS := (.*)$", makefile, re.MULTILINE)[1].split(",")
    asked = [*PROJECT["dependencies"], *itertools.chain(*(PROJECT["optional-dependencies"][extra] for extra in extras))]
    waiting, needed = [Requirement(line) for line in [*asked, "hatchling", "editables"]], set()
    while waiting:
        requirement = waiting.pop()
        name, wanted = normal(requirement.name), frozenset(requirement.extras)
        if (name, wanted) in needed:
            continue
        needed.add((name, wanted))
        for line in metadata.requires(name) or []:
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                waiting.append(inner)
    every = set(pins("quickstart", "develop", "unhashed"))
    assert set(pins("quickstart")) == every & {name for name, _ in needed} - {"torch"}


def test_results_of_every_stage_are_compared():
    assert {stage for stage, _ in study("unchanged").RUNS.values()} == set(STAGES)
