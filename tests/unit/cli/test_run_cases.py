"""Runs of cases: in order, several at a time, past failures, never twice; kills, signals and second runners."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from filelock import FileLock
from support.paths import ROOT
from support.preloaded import python
from support.studies import BROKEN, ROWS, TINY, study, write_study

from minionerec.cli import runner
from minionerec.cli.runner import last_words
from minionerec.core.errors import ConfigError
from minionerec.metrics.ranking import ranking_metrics


def table(path):
    found = json.loads((path.parent / "runs" / "shop" / "compare" / "test" / "metrics.json").read_text())
    return found["splits"]["test"]["recommenders"]


def test_a_study_ends_in_a_table_and_is_then_up_to_date(played, tmp_path, monkeypatch, capsys):
    path = write_study(tmp_path)
    assert study(monkeypatch, path) == 0
    assert played.names[1:4] == ["shop/prepared/sids", "labels/model/seed-1", "valid/seed-1/predictions"]
    assert len(played.names) == 2 + 2 * 8 + 1
    assert played.names.index("labels/model/seed-1") < played.names.index("sharpened/grpo/seed-1")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("[1/18] shop/prepared/corpus: done in 0.")
    assert "| a slower rate | - | 2 | " in "\n".join(printed) and "minus labels" in "\n".join(printed)
    found = table(path)
    assert list(found) == ["labels", "a slower rate", "sharpened"]
    for name, start in (("labels", 2), ("a slower rate", 4), ("sharpened", 3)):
        ranks = [[start + 4 * (row % (5 + seed) == 0) for row in range(ROWS)] for seed in (1, 2)]
        means = [ranking_metrics(np.array(line), [3])["HR@3"].mean() for line in ranks]
        assert found[name]["metrics"]["item"]["HR@3"]["mean"] == pytest.approx(sum(means) / 2)
        assert found[name]["seeds"] == 2
    assert (
        found["a slower rate"]["metrics"]["item"]["HR@3"]["mean"]
        == 0
        < found["labels"]["metrics"]["item"]["HR@3"]["mean"]
    )
    before = list(played.names)
    assert study(monkeypatch, path) == 0
    assert played.names == before
    printed = capsys.readouterr().out
    assert printed.count(": up to date") == 19 and "| a slower rate |" in printed


def test_a_case_that_is_given_the_session_context_says_so_in_the_table(played, tmp_path, monkeypatch, capsys):
    text = TINY.replace("{{model: {{learning_rate: 0.03}}}}", "{{model: {{wording: session_context}}}}")
    path = write_study(tmp_path, text.replace("a slower rate", "catalogue model"))
    assert study(monkeypatch, path) == 0
    found, name = table(path), "catalogue model (given session context)"
    assert list(found) == ["labels", name, "sharpened"]
    assert [line["given"] for line in found.values()] == [[], ["session context"], []]
    assert f"| {name} | - | 2 | " in capsys.readouterr().out


def test_settings_of_a_step_are_a_file_of_their_own_with_its_log_beside_it(played, tmp_path, monkeypatch):
    path = write_study(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert study(monkeypatch, path, "--only", "slower", "--seeds", "2") == 0
    file = tmp_path / "runs/shop/slower/model/seed-2.yaml"
    assert file.read_text().startswith("# shop/slower/model, seed 2\n")
    assert yaml.safe_load(file.read_text()) == {
        "corpus": f"{tmp_path}/runs/corpus",
        "sids": f"{tmp_path}/runs/shop/prepared/sids",
        "learning_rate": 0.03,
        "seed": 2,
        "output": f"{tmp_path}/runs/shop/slower/model/seed-2",
    }
    assert f"$ minionerec sft --config {file}\n" in file.with_suffix(".log").read_text()
    assert not (tmp_path / "runs/shop/sharpened").exists()
    assert table(path)["a slower rate"]["seeds"] == 1


def test_what_failed_is_named_and_the_others_go_on(played, tmp_path, monkeypatch, capsys, caplog):
    cases = yaml.safe_load(TINY.format(runs=tmp_path / "runs"))["cases"]
    cases["bad"] = {"base": "labels", "steps": {"model": {"learning_rate": BROKEN}}}
    cases["after"] = {
        "steps": {
            "grpo": {"checkpoint": "{bad.model}", "corpus": "{data.corpus}"},
            "test": {"stage": "eval-beam", "checkpoint": "{grpo}", "corpus": "{data.corpus}"},
        }
    }
    path = write_study(tmp_path, cases=cases)
    assert study(monkeypatch, path) == 2
    assert list(table(path)) == ["labels", "a slower rate", "sharpened"]
    assert "shop/bad/model, seed 1: failed with status 2 after" in capsys.readouterr().out
    message = [record.getMessage() for record in caplog.records]
    assert message[-4] == "10 of 29 steps have no result; fix what failed and run again to resume:"
    assert message[-3].startswith("  shop/bad/model, seed 1: failed with status 2: error: learning_rate is too bad. (")
    assert message[-3].endswith("runs/shop/bad/model/seed-1.log)")
    assert message[-1].startswith(
        "  left out, since they need what failed: shop/bad/valid, seed 1; shop/bad/test, seed 1; "
    )
    assert "shop/after/grpo, seed 2" in message[-1]
    before = len(played.names)
    cases["bad"]["steps"]["model"]["learning_rate"] = 0.04
    assert study(monkeypatch, write_study(tmp_path, cases=cases)) == 0
    assert len(played.names) == before + 10 + 1  # what had failed, and the table
    assert list(table(path)) == ["labels", "a slower rate", "sharpened", "bad", "after"]


def test_a_dry_run_says_what_and_why_and_does_nothing(played, tmp_path, monkeypatch, capsys):
    path = write_study(tmp_path)
    assert study(monkeypatch, path, "--dry-run") == 0
    assert not (tmp_path / "runs").exists() and played.names == []
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "shop/prepared/corpus         would run: no output yet"
    assert lines[1] == "shop/prepared/sids           would run, after shop/prepared/corpus"
    assert lines[-1] == "0 of 18 steps are up to date. Then: compare test."
    assert study(monkeypatch, path) == 0
    capsys.readouterr()
    study(monkeypatch, write_study(tmp_path, seeds=[1, 2, 3]), "--list")
    assert capsys.readouterr().out.splitlines()[-1] == "18 of 26 steps are up to date. Then: compare test."
    text = path.read_text().replace("learning_rate: 0.03", "learning_rate: 0.05")
    path.write_text(text)
    study(monkeypatch, path, "--list", "--only", "slower", "--seeds", "1")
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "shop/slower/model, seed 1  would run: learning_rate was 0.03, is 0.05",
        "shop/slower/valid, seed 1  would run, after shop/slower/model, seed 1",
    ]


def test_what_lies_there_of_another_study_is_not_in_the_table(played, tmp_path, monkeypatch, capsys):
    path = write_study(tmp_path)
    assert study(monkeypatch, path) == 0
    capsys.readouterr()
    assert study(monkeypatch, write_study(tmp_path, seeds=[1])) == 0
    printed = capsys.readouterr().out
    assert "shop, test: labels is left out of the table: " in printed
    assert "labels/test/seed-2 is of other settings or inputs, or of a seed that the recipe does not name." in printed
    write_study(tmp_path)
    path.write_text(path.read_text().replace("learning_rate: 0.03", "learning_rate: 0.05"))
    study(monkeypatch, path, "--only", "slower", "--seeds", "1")
    assert "shop, test: a slower rate is left out of the table" in capsys.readouterr().out  # its seed 2 is the old one
    assert list(table(path)) == ["labels", "sharpened"]


def test_trainings_that_write_predictions_have_all_seeds_in_the_table(played, tmp_path, monkeypatch, capsys):
    """The stage itself is run, for its predictions lie beside its model."""
    rng = np.random.default_rng(0)
    users = [(rng.integers(15) + np.arange(7)) % 15 + 1 for _ in range(30)]
    lines = [f"{user} {' '.join(map(str, items))}" for user, items in enumerate(users, 1)]
    (tmp_path / "circle.txt").write_text("\n".join(lines) + "\n")
    shape = {"hidden_size": 8, "inner_size": 8, "num_layers": 1}
    message = {"corpus": str(tmp_path / "circle.txt"), "protocol": "a", "epochs": 1, "hyper": shape, "list_length": 10}
    changes = {
        "seeds": [3, 4],
        "data": {"shop": {}},
        "steps": {"rows": {"stage": "train-sequential", **message, "model": "{case}"}},
        "cases": {"sasrec": None, "causal": {"label": "ours"}},
        "compare": {"test": {"of": "rows", "metrics": ["HR@5"], "resamples": 20}},
    }
    path = write_study(tmp_path, **changes)
    assert study(monkeypatch, path, "--seeds", "3") == 0
    assert [table(path)[name]["seeds"] for name in ("sasrec", "ours")] == [1, 1]
    assert study(monkeypatch, path) == 0
    assert [table(path)[name]["seeds"] for name in ("sasrec", "ours")] == [2, 2]
    capsys.readouterr()
    before = len(played.names)
    assert study(monkeypatch, path) == 0 and len(played.names) == before
    changes["cases"]["sasrec"] = {"steps": {"rows": {"learning_rate": 0.01}}}
    assert study(monkeypatch, write_study(tmp_path, **changes), "--only", "causal") == 0
    assert "shop, rows: sasrec is left out of the table" in capsys.readouterr().out
    assert list(table(path)) == ["ours"]


def test_a_second_runner_is_refused_in_one_line(played, tmp_path, monkeypatch):
    path = write_study(tmp_path)
    (tmp_path / "runs").mkdir()
    with (
        FileLock(tmp_path / "runs" / ".run.lock"),
        pytest.raises(ConfigError, match=r"runs: another run of this recipe is running. Wait for it\."),
    ):
        study(monkeypatch, path)
    assert played.names == []
    assert study(monkeypatch, path) == 0


SLEEPER = """
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1] + "." + str(os.getpid()), "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_child_and_the_next_call_resumes(number, played, tmp_path, monkeypatch, capsys):
    """The children sleep, as many as may run at a time; nothing of them is left, nor is the lock."""
    mark = tmp_path / "at work"
    path = write_study(tmp_path, jobs=2)
    assert study(monkeypatch, path, "--only", "labels", "--seeds", "1") == 0
    script = tmp_path / "alone.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from contextlib import contextmanager
import subprocess
from minionerec.cli import runner
from minionerec.cli.main import main

@contextmanager
def asleep(words, threads, log):
    yield subprocess.Popen([{sys.executable!r}, "-c", {SLEEPER!r}, {str(mark)!r}], start_new_session=True)

runner.started_words = asleep
sys.argv = ["minionerec", "run", {str(path)!r}]
main()
"""
    )
    runner = subprocess.Popen([python(), str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("at work.*"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    runner.send_signal(number)
    _, message = runner.communicate(timeout=60)
    assert runner.returncode == 128 + number
    assert message.splitlines()[-1].endswith("run the same command again to resume")
    groups = [int(file.suffix[1:]) for file in tmp_path.glob("at work.*")]
    assert len(groups) == 2
    for group in groups:
        assert not alive(group)
    before = len(played.names)
    assert study(monkeypatch, path) == 0
    assert len(played.names) == before + 18 - 5 + 1
    assert len(table(path)) == 3


def alive(group):
    """Whether a process of a group still runs; one that has ended and waits to be collected does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def test_the_last_words_of_a_step_are_its_error_or_its_last_line(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("$ a\nerror: of an earlier run\n$ b\nerror: this one\nTraceback of a launcher\n")
    assert last_words(log) == "error: this one"
    log.write_text("$ a\nerror: of an earlier run\n$ b\nKilled\n\n")
    assert last_words(log) == "Killed"
    log.write_text("$ a\n")
    assert last_words(log) == "no output"


def test_threads_reach_every_step(played, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = set()
    monkeypatch.setattr(runner, "started_words", lambda words, threads, log: seen.add(threads) or played(words, 0, log))
    assert study(monkeypatch, write_study(tmp_path), "--threads", "3", "--only", "labels", "--seeds", "1") == 0
    assert seen == {3}


@pytest.mark.slow
def test_a_run_of_real_stages(tmp_path, monkeypatch):
    """Two data steps, a training by accelerate, lists and a table, each in a process of its own; then nothing to do."""
    small = {"hidden_size": 8, "inner_size": 8, "layers": 1, "heads": 1, "vector_width": 8, "epochs": 0.2}
    inputs = {"corpus": "{data.corpus}", "sids": "{data.sids}"}
    model = {"stage": "train-catalogue", "config": "demo#catalogue", **inputs, **small}
    model |= {"evals_per_epoch": 1, "eval_examples": 20}
    lists = {"stage": "eval-beam", "checkpoint": "{model}", **inputs, "beams": 10, "ks": [1, 10], "resamples": 2}
    sids = {"stage": "build-sids", "config": "demo#sids", "corpus": "{corpus}", "output": "{runs}/sids"}
    text = yaml.safe_load(TINY.format(runs=tmp_path / "runs"))
    path = write_study(
        tmp_path,
        seeds=[4],
        jobs=2,
        threads=1,
        launch="ds_configs/cpu.yaml",
        data={"shop": {"corpus": text["data"]["shop"]["corpus"], "sids": sids}},
        cases={"small": {"steps": {"model": model, "test": lists}}},
        compare={"test": {"metrics": ["HR@10"], "level": "sid", "resamples": 10}},
        log={"of": "test", "corpus": "{data.corpus}", "sids": "{data.sids}", "title": "Of a study", "resamples": 10},
    )
    words = [python(), "-m", "minionerec", "run", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert table(path)["small"]["metrics"]["sid"]["HR@10"]["mean"] > 0.01
    log = (tmp_path / "runs" / "log" / "experiment_log.md").read_text()
    assert "# Of a study" in log and "shop" in log and "small" in log
    assert "accelerate launch" in (tmp_path / "runs/shop/small/model/seed-4.log").read_text()
    again = subprocess.run([*words, "--list"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert again.stdout.splitlines()[-1] == "4 of 4 steps are up to date. Then: compare test, the experiment log."
