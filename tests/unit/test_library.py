"""Parts of the library are used alone: without settings, and without loading the rest of the package."""

import re
import subprocess

import pytest
from support.paths import ROOT
from support.preloaded import python

LOADED = """
import sys
import {module}
files = {{module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "minionerec"}}
print(sum(len(open(file, encoding="utf-8").readlines()) for file in files if file))
"""


def run(script, folder):
    """What a script prints, run in a process and folder of its own."""
    done = subprocess.run([python(), "-u", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("module", "most"),
    [
        ("minionerec.metrics.ranking", 500),
        ("minionerec.models.decoding.beam", 2500),
        ("minionerec.training.grpo.trainer", 6000),
    ],
)
def test_an_import_loads_few_lines(module, most, tmp_path):
    assert int(run(LOADED.format(module=module), tmp_path)) <= most


PAGE = ROOT / "docs" / "reference" / "library.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def lines_of(script, folder):
    """What a script of the page prints; it loads no settings and writes nothing."""
    printed = run(script + "\nimport sys\nprint('minionerec.pipeline' in sys.modules)", folder)
    *lines, loads_pipeline = printed.splitlines()
    assert loads_pipeline == "False" and not list(folder.iterdir())
    return lines


def test_search_and_metrics_need_no_settings(tmp_path):
    metrics = lines_of(SCRIPTS[0], tmp_path)
    assert [line.split(":")[0] for line in metrics] == ["HR@10", "HR@20", "NDCG@10", "NDCG@20", "MRR@20"]
    for line in metrics:
        mean, low, high = map(float, re.fullmatch(r"\S+: ([\d.]+) \[([\d.]+), ([\d.]+)\]", line).groups())
        assert 0 <= low <= mean <= high < 0.5


def test_a_step_of_grpo_needs_no_settings_and_learns(tmp_path):
    first, last = (float(line.split()[2]) for line in lines_of(SCRIPTS[1], tmp_path))
    assert first < 0.3 and last > first + 0.2
