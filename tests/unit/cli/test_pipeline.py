"""`minionerec run`: the steps in order, what it says of them, and where it stops."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from minionerec.cli import pipeline
from minionerec.cli.pipeline import run_pipeline
from minionerec.cli.recipes import FILE, Step, read_recipe
from minionerec.core.errors import ConfigError


def run(*words, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "minionerec.cli", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.fixture
def started(monkeypatch):
    """Names of the steps that are started; the report prints a table, "sids" is up to date."""
    names = []

    def run_words(words, threads, stdout=None):
        names.append(Path(words[words.index("--config") + 1]).stem)
        return subprocess.CompletedProcess(words, 0, "a table\n" if stdout == subprocess.PIPE else None)

    monkeypatch.setattr(pipeline, "run_words", run_words)
    monkeypatch.setattr(Step, "is_current", lambda self: self.name == "sids")
    return names


def test_every_step_is_named_shown_and_timed(started, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    run_pipeline("demo")
    names = [step.name for step in read_recipe("demo")]
    assert started == [name for name in names if name != "sids"]
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("[")] == [
        f"[{number}/{len(names)}] {name}" for number, name in enumerate(names, 1)
    ]
    assert "$ minionerec prepare-data --config configs/demo/language/data.yaml" in printed
    assert "runs/demo/sids is up to date." in printed
    times = printed[printed.index("Wall time") :].splitlines()
    assert [line.split()[0] for line in times[1:]] == [*names, "all"]
    assert next(line for line in times if line.split()[0] == "sids").endswith("up to date")


def test_the_reports_table_is_shown_again_at_the_end_unless_it_stands_there(started, capsys):
    run_pipeline("demo")
    assert capsys.readouterr().out.count("a table") == 1  # the report comes last
    run_pipeline("industrial")
    printed = capsys.readouterr().out
    assert printed.count("a table") == 1  # other steps follow it


def test_a_part_is_run(started, capsys):
    run_pipeline("demo", "sft", "eval_sft")
    assert started == ["sft", "eval_sft"]
    with pytest.raises(ConfigError, match="--from nowhere"):
        run_pipeline("demo", "nowhere")


def test_a_run_stops_at_the_first_failing_stage(tmp_path):
    (tmp_path / FILE).write_text("stages:\n  - calc-level: broken.yaml\n  - report: never.yaml\n")
    (tmp_path / "broken.yaml").write_text(f"path: {tmp_path}/missing.json\n")
    (tmp_path / "never.yaml").write_text("corpus: nowhere\noutput: there\npredictions: {A: nowhere}\n")
    done = run("run", tmp_path)
    assert done.returncode == 2
    assert "[1/2] broken" in done.stdout
    assert "[2/2]" not in done.stdout
    assert "Stage broken failed with status 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nowhere"], "nowhere: no recipe there; expected a folder with a pipeline.yaml, or the name of a "),
        (["run", "demo", "--from", "nowhere"], "--from nowhere: demo has no such step. Its steps: data, "),
        (["run", "demo", "--from", "grpo", "--until", "sft"], "--from grpo comes after --until sft"),
        (["run", "demo", "--no_such_flag"], "unrecognized arguments: --no_such_flag. See --help."),
        (["recipes", "copy", "demo"], "the following arguments are required: folder. See --help."),
        (["recipes", "copy", "nowhere", "here"], "nowhere: no recipe there"),
        (
            ["no-such-command"],
            "unknown command 'no-such-command'; known: run, study, recipes, doctor, put, serve, pre",
        ),
    ],
)
def test_what_is_not_there_is_one_line_and_status_2(words, message, tmp_path):
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
