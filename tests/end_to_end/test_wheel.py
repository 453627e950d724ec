"""The built wheel in an environment and a folder of their own: no checkout, and everything is there.

The environment has the running one's libraries, but not its `minionerec`, so nothing is downloaded.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.end_to_end, pytest.mark.timeout(1800)]

SHORT = {
    "sft": {"epochs": 2, "evals_per_epoch": 1, "eval_examples": 100},
    "grpo": {"max_steps": 4, "eval_examples": 100},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder of the commands of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist", ROOT]
    subprocess.run(list(map(str, build)), check=True, capture_output=True, cwd=folder)
    (wheel,) = (folder / "dist").glob("minionerec-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    # A path in a .pth file is searched like any other, but .pth files there (an editable minionerec's) are not read.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env"), "platbase": str(folder / "env")}))
    libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries))
    install = [*pip, "--python", python, "install", "--no-index", "--no-deps", "--ignore-installed", wheel]
    subprocess.run(list(map(str, install)), check=True, capture_output=True, cwd=folder)
    return folder / "env" / "bin"


def run(installed, folder, *words):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MINIONEREC_DATA")}
    return subprocess.run(
        [installed / words[0], *map(str, words[1:])],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env=environment | {"PATH": os.pathsep.join([str(installed), os.environ["PATH"]])},
    )


@pytest.fixture
def empty(tmp_path):
    assert ROOT not in tmp_path.parents
    return tmp_path


def test_the_package_is_the_wheels_and_what_it_needs_is_there(installed, empty):
    done = run(installed, empty, "python", "-c", "import minionerec; print(minionerec.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(installed.parent), done.stderr
    check = [sys.executable, "-m", "pip", "--python", str(installed / "python"), "check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=empty)
    assert not [line for line in done.stdout.splitlines() if line.startswith("minionerec")], done.stdout


def test_recipes_are_listed_and_copied(installed, empty):
    done = run(installed, empty, "minionerec", "recipes")
    assert done.returncode == 0, done.stderr
    files = (path.relative_to(ROOT / "configs") for path in ROOT.glob("configs/*/[!_]*.yaml"))
    shipped = sorted(str(file.parent if file.stem == "language" else file.with_suffix("")) for file in files)
    assert [line.split()[0] for line in done.stdout.splitlines()] == shipped
    done = run(installed, empty, "minionerec", "recipes", "copy", "industrial/catalogue", "./here.yaml")
    assert done.returncode == 0, done.stderr
    copied = yaml.safe_load((empty / "here.yaml").read_text())
    assert "base" not in copied and list(copied["steps"])[:3] == ["data", "sids", "catalogue"]


def test_the_shipped_demo_runs_by_its_name_and_a_copy_of_it_through_to_the_report(installed, empty):
    """The whole of it, as it is: `test_accuracy_by_level_alone_makes_the_whole_demo_which_stays_under_its_ceiling`."""
    done = run(installed, empty, "minionerec", "run", "demo", "--until", "sids")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(installed, empty, "minionerec", "recipes", "copy", "demo", "mine.yaml")
    assert done.returncode == 0, done.stderr
    file = empty / "mine.yaml"
    content = yaml.safe_load(file.read_text())
    for name, settings in SHORT.items():
        content["steps"][name] |= settings
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    done = run(installed, empty, "minionerec", "run", "mine.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("corpus", "sids", "catalogue", "eval_catalogue", "sft", "eval_sft", "grpo", "eval_grpo", "report"):
        assert (empty / "runs" / "demo" / name / "manifest.json").is_file(), name
    items = pd.read_parquet(empty / "runs/demo/corpus/items.parquet")
    assert items["title"].tolist() == pd.read_csv(ROOT / "data/demo/items.csv")["title"].tolist()
    assert "NDCG@10" in done.stdout
    assert "ceiling" in (empty / "runs/demo/report/report.html").read_text()  # read from what is shipped
    again = run(installed, empty, "minionerec", "run", "mine.yaml")
    assert again.stdout.count(": up to date") == 9
    assert not [path for path in empty.iterdir() if path.name not in ("mine.yaml", "runs")]  # nothing else was written
