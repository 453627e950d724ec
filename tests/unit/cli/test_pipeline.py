"""`minionerec run`: the steps in order, what it says of them, and where it stops."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from minionerec.cli import pipeline, runner
from minionerec.cli.pipeline import run_pipeline
from minionerec.cli.recipes import FILE, Step, read_recipe, steps_before
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
    run_pipeline("industrial", jobs=1)
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


class Slow:
    """A step that ends when it is asked the third time, with the words that every process of a step is given."""

    at_work: dict[str, int]

    def __init__(self, name, log, most):
        self.name, self.log, self.most, self.asked = name, log, most, 0

    def __enter__(self):
        self.at_work[self.name] = len(self.at_work) + 1
        self.most.append(len(self.at_work))
        self.log.write(f"said by {self.name}\n".encode())
        return self

    def __exit__(self, *_):
        self.at_work.pop(self.name)

    def poll(self):
        self.asked += 1
        return 0 if self.asked == 3 else None


@pytest.mark.parametrize("jobs", [2, 3])
def test_several_steps_at_a_time_each_after_what_it_reads(jobs, tmp_path, monkeypatch, capsys):
    """On the recipe that has two branches, at work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    most, begun = [], []
    monkeypatch.setattr(Slow, "at_work", {}, raising=False)

    def started_words(words, threads, log):
        name = Path(words[words.index("--config") + 1]).stem
        begun.append((name, set(Slow.at_work)))
        return Slow(name, log, most)

    monkeypatch.setattr(runner, "started_words", started_words)
    monkeypatch.setattr(runner, "_PAUSE", 0)
    monkeypatch.setattr(Step, "is_current", lambda self: self.name == "data")
    run_pipeline("industrial", jobs=jobs)
    steps = read_recipe("industrial")
    names = [name for name, _ in begun]
    assert sorted(names) == sorted(step.name for step in steps if step.name != "data")
    assert max(most) == jobs
    for place, step in enumerate(steps[1:], 1):
        before = {other.name for other in steps_before(steps[:place], step.settings)} - {"data"}
        assert before <= set(names[: names.index(step.name)]) - dict(begun)[step.name]
    assert ("sids_tfidf", {"sids_published"}) in begun  # not after the branch that stands before it
    printed = capsys.readouterr().out
    assert "[1/16] data: up to date\n" in printed
    assert f"configs/industrial/language/sft.yaml  > {Path('runs/industrial/sft.log')}\n" in printed
    assert printed.index("sft: done in") < printed.index("said by sft\n") < printed.index("Wall time")
    assert printed.count("said by report\n") == 2 and printed.endswith("\nsaid by report\n")  # shown again
    assert Path("runs/industrial/sft.log").read_text().endswith("\nsaid by sft\n")
    times = printed[printed.index("Wall time") :].splitlines()[1:18]
    assert [line.split()[0] for line in times] == [*(step.name for step in steps), "all"]


def test_of_several_steps_those_go_on_that_do_not_need_what_failed(tmp_path):
    """Real processes; the steps print, so that they have no output to lie beside."""
    recipe = "jobs: 2\nstages:\n  - build-sids: broken.yaml\n  - calc-level: never.yaml\n  - calc-level: good.yaml\n"
    (tmp_path / FILE).write_text(recipe)
    (tmp_path / "broken.yaml").write_text("corpus: nowhere\noutput: there\n")
    (tmp_path / "never.yaml").write_text("predictions: there\n")
    lists = '[{"output": "<a_1><b_1><c_1>", "predict": ["<a_1><b_1><c_1>"]}]'
    (tmp_path / "lists.json").write_text(lists)
    (tmp_path / "good.yaml").write_text(f"path: {tmp_path}/lists.json\nks: [1]\n")
    done = run("run", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert len(said) == 3
    assert said[0].startswith("broken: failed with status 2: error: nowhere: no such directory")
    assert "there.log)" in said[0]
    assert said[1] == "left out, for they need what failed: never"
    assert "good: done in" in done.stdout and "broken: failed with status 2 after" in done.stdout
    assert "never" not in done.stdout
    again = run("run", tmp_path, "--jobs", "1", cwd=tmp_path)
    assert again.returncode == 2 and "[1/3] broken" in again.stdout and "[2/3]" not in again.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "demo", "--jobs", "0"], "--jobs 0: expected a whole number of steps at a time"),
        (["run", "industrial/qwen-0.5b", "--jobs", "2"], "industrial/qwen-0.5b: jobs is 2, but each launch by"),
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
