"""`minionerec run`: the steps in order, what it says of them, and what a failure leaves out."""

import subprocess
from pathlib import Path

import pytest
import yaml
from support.commands import command
from support.paths import ROOT
from support.preloaded import python

from minionerec import __version__
from minionerec.pipeline.cli import runner
from minionerec.pipeline.cli.plan import Job, plan_of
from minionerec.pipeline.cli.run import run_arguments, run_recipe


class Ended:
    """A process that has ended."""

    def __init__(self, status):
        self.status = status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def poll(self):
        """Its exit status."""
        return self.status


def recipe(monkeypatch, *words):
    """`minionerec run` in this process; its exit status."""
    try:
        run_recipe("minionerec run", list(words))
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.fixture
def started(monkeypatch):
    """Names of the steps that are started; the report prints a table, "sids" is up to date."""
    names = []

    def started_words(words, threads, log):
        names.append(words[words.index("--config") + 1].partition("#")[2])
        if names[-1] == "report":
            log.write(b"a table\n")
            log.flush()
        else:
            assert log is None  # it prints to the terminal itself
        return Ended(0)

    monkeypatch.setattr(runner, "started_words", started_words)
    monkeypatch.setattr(Job, "is_current", lambda self: self.key.step == "sids")
    return names


def test_every_step_is_named_shown_and_timed(started, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert recipe(monkeypatch, "demo", "--jobs", "1") == 0
    names = [key.step for key in plan_of("demo")]
    assert started == [name for name in names if name != "sids"]
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("[")]
    assert [line.partition(":")[0] for line in lines] == [
        f"[{number}/{len(names)}] {name}" for number, name in enumerate(names, 1)
    ]
    assert lines[1] == "[2/10] sids: up to date"
    assert "$ minionerec prepare-data --config demo/language#data" in printed
    times = printed[printed.index("Wall time") :].splitlines()
    assert [line.split()[0] for line in times[1:]] == [*names, "all"]
    assert next(line for line in times if line.split()[0] == "sids").endswith("up to date")


def test_the_reports_table_is_shown_again_at_the_end_unless_it_stands_there(started, capsys, monkeypatch):
    assert recipe(monkeypatch, "demo", "--jobs", "1") == 0
    assert capsys.readouterr().out.count("a table") == 1  # the report comes last
    assert recipe(monkeypatch, "industrial", "--jobs", "1") == 0
    printed = capsys.readouterr().out
    assert printed.count("a table") == 2 and printed.endswith("\na table\n")  # other steps follow it


def test_a_part_is_run(started, capsys, monkeypatch):
    assert recipe(monkeypatch, "demo", "--jobs", "1", "--from", "sft", "--until", "eval_sft") == 0
    assert started == ["sft", "eval_sft"]
    started.clear()
    assert recipe(monkeypatch, "demo", "--jobs", "1", "--only", "eval_catalogue") == 0
    assert started == ["data", "catalogue", "eval_catalogue"]  # with what it needs


def test_without_a_name_the_usage_is_printed(started, capsys, monkeypatch):
    assert recipe(monkeypatch) == 0
    assert capsys.readouterr().out.startswith("usage: minionerec run ") and started == []


def test_a_dry_run_says_what_each_step_would_do(started, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert recipe(monkeypatch, "demo", "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1) == ["data", "would run: no output yet"] and started == []
    assert lines[-1] == "0 of 10 steps are up to date."


@pytest.mark.parametrize("jobs", [1, 2])
def test_of_several_steps_those_go_on_that_do_not_need_what_failed(jobs, tmp_path):
    """Real processes; the last two print, so that they have no output to lie beside."""
    lists = '[{"output": "<a_1><b_1><c_1>", "predict": ["<a_1><b_1><c_1>"]}]'
    (tmp_path / "lists.json").write_text(lists)
    steps = {
        "broken": {"stage": "build-sids", "corpus": "nowhere", "output": "there"},
        "never": {"stage": "calc-level", "predictions": "{broken}"},
        "good": {"stage": "calc-level", "predictions": "lists.json", "ks": [1]},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"jobs": jobs, "steps": steps}, sort_keys=False))
    words = [python(), "-m", "minionerec", "run", "mine.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    message = done.stderr.splitlines()
    if jobs == 1:
        assert message.pop(0).startswith("error: nowhere: no such directory")  # printed as it went
        assert message[-3] == "broken: failed with status 2: its output is above"
    else:
        assert len(message) == 3
        assert message[0].startswith("broken: failed with status 2: error: nowhere: no such directory")
        assert message[0].endswith("(there.log)")
    assert message[-2:] == ["left out, since they need what failed: never", "Fix it and run again to resume."]
    assert "good: done in" in done.stdout and "broken: failed with status 2 after" in done.stdout
    assert "never" not in done.stdout


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
        name = words[words.index("--config") + 1].partition("#")[2]
        begun.append((name, set(Slow.at_work)))
        return Slow(name, log, most)

    monkeypatch.setattr(runner, "started_words", started_words)
    monkeypatch.setattr(runner, "_PAUSE", 0)
    monkeypatch.setattr(Job, "is_current", lambda self: self.key.step == "data")
    assert recipe(monkeypatch, "industrial", "--jobs", str(jobs)) == 0
    plan = plan_of("industrial")
    names = [name for name, _ in begun]
    assert sorted(names) == sorted(key.step for key in plan if key.step != "data")
    assert max(most) == jobs
    for key, job in list(plan.items())[1:]:
        before = {need.step for need in job.needs} - {"data"}
        assert before <= set(names[: names.index(key.step)]) - dict(begun)[key.step]
    assert ("sids_tfidf", {"sids_published"}) in begun  # not after the branch that stands before it
    printed = capsys.readouterr().out
    assert "[1/15] data: up to date\n" in printed
    assert f"industrial/language#sft  > {Path('runs/industrial/sft.log')}\n" in printed
    assert printed.index("sft: done in") < printed.index("said by sft\n") < printed.index("Wall time")
    assert printed.count("said by report\n") == 2 and printed.endswith("\nsaid by report\n")  # shown again
    assert Path("runs/industrial/sft.log").read_text().endswith("\nsaid by sft\n")
    times = printed[printed.index("Wall time") :].splitlines()[1:17]
    assert [line.split()[0] for line in times] == [*(key.step for key in plan), "all"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "demo", "--jobs", "0"], "jobs is 0; it must be at least 1."),
        (["run", "demo", "--only", "nowhere"], "--only nowhere: demo/language has no such step. Its steps: data, sids"),
        (["run", "demo", "--seeds", "x"], "--seeds x: expected different whole numbers, such as 42,43,44."),
        (["run", "demo", "--set", "x"], "--set x: expected STEP.SETTING=VALUE, such as sft.epochs=2."),
        (["run", "industrial/qwen-0.5b", "--jobs", "2"], "industrial/qwen-0.5b: jobs is 2, but each launch by"),
        (["run", "demo", "--no_such_flag"], "unrecognized arguments: --no_such_flag. See --help."),
        (["recipes", "copy", "demo"], "the following arguments are required: file. See --help."),
        (["recipes", "copy", "nowhere", "here"], "nowhere: no such recipe"),
        (
            ["no-such-command"],
            "unknown command 'no-such-command'; known: init, run, recipes, doctor, serve, ",
        ),
    ],
)
def test_what_is_not_there_is_one_line_and_status_2(words, message, tmp_path):
    done = command(tmp_path, *words)
    assert done.reported.startswith(f"error: {message}")
    assert done.err == f"{done.reported}\n" and done.out == ""


def test_the_version_and_the_command_that_was_meant(tmp_path):
    assert command(tmp_path, "--version") == (0, f"minionerec {__version__}\n", "")
    assert command(tmp_path, "train-catalog").reported.endswith(". Did you mean train-catalogue?")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("bacth_size: 3\n")
    assert command(tmp_path, "sft", "--config", "wrong.yaml").reported.endswith(". Did you mean batch_size?")


def test_an_option_that_is_given_twice_holds_all_its_values():
    words = ["demo", "--set", "sft.epochs=2", "grpo.epochs=1", "--set", "sft.seed=1", "--only", "sft", "--only", "grpo"]
    options = run_arguments("minionerec run").parse_args(words)
    assert options.changes == ["sft.epochs=2", "grpo.epochs=1", "sft.seed=1"] and options.only == ["sft", "grpo"]
