"""A search over settings: what it tries, that it goes on, that it sees validation rows alone, what its winner is."""

import sys

import pytest
import yaml
from support.paths import ROOT
from support.studies import BROKEN, TINY, study, write_study

from minionerec.cli import runner
from minionerec.cli.plan import Plan
from minionerec.cli.recipes import read_recipe
from minionerec.cli.search import check_search, with_winner
from minionerec.core.errors import ConfigError, MinioneRecError

SEARCH = {
    "case": "labels",
    "step": "model",
    "measure": "valid",
    "metric": "MRR@20",
    "trials": 3,
    "seeds": [1, 2],
    "over": {"learning_rate": {"low": 0.01, "high": 0.09}, "epochs": {"among": [1, 2]}},
}


def trials(printed):
    return [line for line in printed.splitlines() if line.startswith("trial ")]


def test_the_winner_is_a_file_and_a_case_of_its_own(played, tmp_path, monkeypatch, capsys):
    path = write_study(tmp_path, search=SEARCH)
    assert study(monkeypatch, path, "--only", "best") == 0
    printed = capsys.readouterr().out
    found = trials(printed)
    assert [line.partition(":")[0] for line in found] == [f"trial {number}" for number in range(3)]
    values = {float(line.split()[4].rstrip(";")): line for line in reversed(found)}  # of equals the first
    rates = [float(line.split("learning_rate ")[1].split(",")[0]) for line in found]
    assert all(0.01 <= rate <= 0.09 for rate in rates) and len(set(rates)) == 3
    best = tmp_path / "runs" / "search" / "best.yaml"
    number = values[max(values)].split()[1].rstrip(":")
    assert best.read_text().startswith(f"# Trial {number} of 3: validation MRR@20 {max(values):.4f}"[:-4])
    settings = yaml.safe_load(best.read_text())
    assert f"{settings['learning_rate']:.4g}" == values[max(values)].split("learning_rate ")[1].split(",")[0]
    assert "output" not in settings and settings["epochs"] in (1, 2)
    # Trials made lists of validation rows alone; the winner was then run with every seed, on test rows too.
    assert not [name for name in played.names if "trial" in name and name.startswith("test")]
    assert not list((tmp_path / "runs/shop/search").glob("trial-*/test"))
    assert "| best | - | 2 | " in printed
    case = with_winner(Plan(read_recipe(str(path)))).recipe.cases["best"]
    assert case.base == "labels" and [step.name for step in case.steps] == ["model", "valid", "test"]
    before = list(played.names)
    assert study(monkeypatch, path) == 0
    assert [name for name in played.names[len(before) :] if "trial" in name] == []
    more = write_study(tmp_path, search={**SEARCH, "trials": 4})
    capsys.readouterr()
    assert study(monkeypatch, more, "--only", "best") == 0
    assert [line[:8] for line in trials(capsys.readouterr().out)] == ["trial 3:"]
    best.write_text("learning_rate: 0.05\n")
    with pytest.raises(ConfigError, match=r"best\.yaml: its second line no longer holds the best settings"):
        with_winner(Plan(read_recipe(str(path))))


def test_a_search_that_was_killed_resumes_with_the_same_trials(played, tmp_path, monkeypatch, capsys):
    """Cut off within its second trial, it ends as one that was not."""
    (tmp_path / "whole").mkdir()
    assert study(monkeypatch, write_study(tmp_path / "whole", search=SEARCH), "--only", "best") == 0
    wanted = trials(capsys.readouterr().out)
    (tmp_path / "cut").mkdir()
    path = write_study(tmp_path / "cut", search=SEARCH)

    class Killed(BaseException):
        pass

    def die(words, threads, log):
        if "trial-1" in words[-1] and "valid" in words[-1]:
            raise Killed
        return played(words, threads, log)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(runner, "started_words", die)
        study(patch, path, "--only", "best")
    first = trials(capsys.readouterr().out)
    assert study(monkeypatch, path, "--only", "best") == 0
    assert first + trials(capsys.readouterr().out) == wanted


def test_a_failed_trial_is_reported_and_named(played, tmp_path, monkeypatch, capsys, caplog):
    over = {"learning_rate": {"among": [BROKEN]}}
    with pytest.raises(MinioneRecError, match="no trial has a value; fix what failed"):
        study(monkeypatch, write_study(tmp_path, search={**SEARCH, "trials": 2, "over": over}))
    assert "trial 1: no value; learning_rate 0.66" in capsys.readouterr().out


def test_trials_of_another_search_are_not_mixed(played, tmp_path, monkeypatch):
    assert study(monkeypatch, write_study(tmp_path, search={**SEARCH, "trials": 1, "seeds": [1]})) == 0
    wider = {
        **SEARCH,
        "seeds": [1],
        "trials": 2,
        "over": {**SEARCH["over"], "learning_rate": {"low": 0.01, "high": 0.2}},
    }
    assert study(monkeypatch, write_study(tmp_path, search=wider)) == 0  # a wider range is the same search
    cases = yaml.safe_load(TINY.format(runs=tmp_path / "runs"))["cases"]
    cases["labels"]["steps"]["model"]["weight_decay"] = 0.5
    with pytest.raises(ConfigError, match="search: holds trials of another search, or of a recipe with other settings"):
        study(monkeypatch, write_study(tmp_path, search=wider, cases=cases))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": "blunt"}, r"search: case is 'blunt'; known: labels, slower, sharpened"),
        ({"step": "models"}, r"search: step is 'models'; the steps of labels: model, valid, test"),
        ({"measure": "test"}, r"search: measure is 'test', which measures test examples; settings are chosen on valid"),
        ({"measure": "model"}, r"search: measure is 'model', a step without predictions"),
        (
            {"step": "valid", "measure": "model", "over": {"beams": {"among": [60]}}},
            r"model', which reads nothing of 'valid'",
        ),
        ({"metric": "loss"}, r"search: metric is 'loss'; expected HR@K, NDCG@K or MRR@K"),
        ({"trials": 0}, r"search: trials is 0; it must be at least 1"),
        ({"seeds": [5]}, r"search: seeds names 5; labels has \[1, 2\]"),
        ({"data": "mall"}, r"search: data is 'mall'; known: shop"),
        ({"name": "slower"}, r"search: name is 'slower', which is taken"),
        ({"over": {}}, r"search: over is empty"),
        ({"over": {"epoch": {"among": [1]}}}, r"search.over: unknown key 'epoch'"),
        ({"over": {"epochs": {"low": 0, "high": 2}}}, r"search.over: epochs is 0.0; it must be above 0"),
        ({"over": {"epochs": {"low": 2}}}, r"search.over.epochs: expected both low and high"),
        ({"over": {"epochs": {"low": 2, "high": 1}}}, r"search.over.epochs: low is 2 and high 1; low must be less"),
        ({"over": {"epochs": {"low": 0, "high": 1, "log": True}}}, r"low must be less, and above 0 with log"),
        ({"over": {"epochs": {"low": "a", "high": 1}}}, r"search.over.epochs.low is 'a'; expected a number"),
        ({"over": {"epochs": {"lowest": 1}}}, r"expected {low, high, log, whole} or {among: \[...\]}"),
        (
            {"over": {"epochs": {"among": [1], "low": 1}}},
            r"among is \[1\]; expected a list of values, and nothing else",
        ),
        ({"over": {"epochs": {"among": [[1]]}}}, r"expected texts, numbers, true or false"),
    ],
)
def test_a_mistake_is_reported_before_anything_runs(changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message):
        check_search(Plan(read_recipe(str(write_study(tmp_path, search={**SEARCH, **changes})))))


def test_whole_numbers_and_logarithms_are_drawn_as_such(played, tmp_path, monkeypatch, capsys):
    over = {"layers": {"low": 1, "high": 3, "whole": True}, "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}
    path = write_study(tmp_path, search={**SEARCH, "over": over, "trials": 3, "seeds": [1]})
    assert study(monkeypatch, path, "--only", "best") == 0
    found = trials(capsys.readouterr().out)
    assert {line.split("layers ")[1].split(",")[0] for line in found} <= {"1", "2", "3"}
    assert sum("learning_rate 0.0" in line for line in found) == 3


def test_without_optuna_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs optuna, which is not installed: pip install 'minionerec\[search\]'"):
        check_search(Plan(read_recipe(str(write_study(tmp_path, search=SEARCH)))))
