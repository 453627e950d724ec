"""The pages of the preference stage, from results made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from minionerec.core.places import shipped_root
from minionerec.preference.config import PreferenceConfig
from minionerec.preference.results import RunResults, SplitRecord
from minionerec.reports import preference_study
from minionerec.reports.preference_measured import LAST, Measured, gap, says, spread
from minionerec.reports.preference_run import run_findings
from minionerec.reports.preference_study import config_file, leak_findings, study_page

AUDIT = {"same_user_pair": 0.5, "same_pair_other_user": 0.25, "both_items_seen": 1.0, "discarded": 0}


def measured(seed=1, accuracy=0.7, ce=0.6, **changes):
    plain = dict.fromkeys(Measured.__dataclass_fields__, None)
    plain |= {"seed": seed, "n": 100, "accuracy": accuracy, "ce": ce, "ece": 0.02, "audit": AUDIT}
    return Measured(**{**plain, **changes})


def results(**changes):
    names = {name: {} for name in RunResults.__dataclass_fields__}
    plain = {
        "model": "bt_hier",
        "seed": 1,
        "split": SplitRecord("pair", "00", {"train": 8, "valid": 1, "test": 1}, AUDIT, None),
        "users": ["u0"],
        "targets": ["smart", "brave"],
        "test": {"smart": {"accuracy": 0.9, "n_samples": 100}, "brave": {"accuracy": 0.5, "n_samples": 100}},
    }
    return RunResults(**{**names, **plain, **changes})


def floor(low, high):
    return {"accuracy": {"mean": (low + high) / 2, "low": low, "high": high, "p": 0.1}}


def test_findings_say_no_more_than_the_intervals():
    against = {"majority": floor(0.01, 0.03), "bt_user": floor(-0.03, -0.01), "bt_global": floor(-0.01, 0.02)}
    texts = run_findings(results(), against)
    assert texts[0] == "bt_hier is right more often than majority: +2.0 points (+1.0 to +3.0 points, over pairs)."
    assert texts[1] == "bt_hier is right less often than bt_user: -2.0 points (-3.0 to -1.0 points, over pairs)."
    assert texts[2] == "Whether bt_hier beats bt_global is open: +0.5 points (-1.0 to +2.0 points, over pairs)."
    assert texts[3] == "Targets differ by at most 40.0 points, more than twice the standard error of that gap."
    assert texts[4].startswith("One seed ranks no models") and len(texts) == 5
    near = {"smart": {"accuracy": 0.52, "n_samples": 100}, "brave": {"accuracy": 0.5, "n_samples": 100}}
    assert "2.0 points, within twice the standard error" in run_findings(results(test=near), {})[0]
    leaky = replace(results(), split=replace(results().split, warning="LEAK: do not"))
    assert run_findings(leaky, {})[0] == "LEAK: do not"
    assert len(run_findings(results(test={"smart": near["smart"]}), {})) == 1


def test_gaps_are_paired_by_seed():
    first = [measured(seed, accuracy) for seed, accuracy in ((1, 0.5), (2, 0.7), (3, 0.9))]
    second = [measured(seed, accuracy) for seed, accuracy in ((2, 0.6), (1, 0.5), (9, 0.1))]
    np.testing.assert_allclose(gap(first, second, lambda run: run.accuracy), [0.0, 0.1])
    assert len(gap(first, second, lambda run: run.p_error)) == 0  # nobody knows it
    assert says(np.array([0.25])) == "25.0 (one seed)"
    # Two seeds: half the spread times Student's t with one degree of freedom, 12.706.
    assert says(np.array([0.0, 0.02])) == "1.0 (95% interval -11.7 to 13.7)"
    show = "{:.2f}".format
    assert (spread([], show), spread([None, 0.5], show), spread([0.4, 0.6], show)) == ("n/a", "0.50", "0.50 ± 0.14")


def test_the_leak_in_words_with_a_ceiling_and_without():
    def runs(accuracy, p_error, realised=0.75):
        return [measured(seed, accuracy, p_error=p_error, realised=realised) for seed in (1, 2)]

    row, pair = {LAST: runs(0.72, 0.2)}, {LAST: runs(0.68, 0.1)}
    texts = leak_findings(row, pair)
    assert "leaves 50.0% of the test answers" in texts[0] and "25.0% with another person's" in texts[0]
    assert "accuracy is higher by 4.0 (95% interval 4.0 to 4.0) points under the row split, and" in texts[1]
    assert "changes by 0.100 (95% interval 0.100 to 0.100)." in texts[1]
    assert "In plain words" in texts[2] and "3.0 points below the best" in texts[2]
    assert "0.2 points above" in leak_findings({LAST: runs(0.752, 0.2)}, pair)[2]
    assert leak_findings({LAST: runs(0.66, 0.2)}, pair)[2].startswith("Not on every seed")
    # One's own data have no ceiling: what is not known is not said.
    own = leak_findings({"bt_hier": [measured(accuracy=0.7)]}, {"bt_hier": [measured(accuracy=0.6)]})
    assert own[1] == "bt_hier: accuracy is higher by 10.0 (one seed) points under the row split."
    assert len(own) == 2
    users = [{"n": 12, "accuracy": 0.9, "realised": 0.8}, {"n": 9, "accuracy": 0.9, "realised": 0.8}]
    with_users = {"mlp_concat": [measured(users=users), measured(2, users=[{**users[0], "accuracy": 0.7}])]}
    assert "in 1 of 2 cases under the row split, and in 1 of 2 cases" in leak_findings(with_users, with_users)[-1]


@pytest.mark.parametrize("model", ["bt_hier", "bt_lowrank"])
def test_a_study_shows_users_where_a_main_model_ran(monkeypatch, tmp_path, model):
    users = [{"user": "u0", "n": 12, "accuracy": 0.9, "realised": 0.8, "expected": 0.75}]
    table = {("halo", "pair"): {model: [measured(realised=0.8, bayes_ce=0.5, users=users)]}}
    monkeypatch.setattr(preference_study, "measured_runs", lambda *_: table)
    config = PreferenceConfig(output=str(tmp_path), models=[model])
    title, lead, sections = study_page(config, [])
    assert title == "Personal preference: a study with a known ceiling" and "one seed, which ranks no models" in lead
    (section,) = (section for section in sections if section.title == "Split by pair")
    tables = [block for block in section.blocks if hasattr(block, "rows")]
    assert [row[0] for row in tables[0].rows] == [model, "Bayes, features only", "Bayes, knowing siblings in train"]
    assert len(tables[0].rows[0]) == len(tables[0].rows[1]) == len(tables[0].headers)
    assert len(tables) == (2 if model == "bt_hier" else 1)
    if model == "bt_hier":
        assert tables[1].rows == [["u0", "12", "90.0", "80.0", "75.0"]]


def test_where_a_study_comes_from(tmp_path, monkeypatch):
    file = config_file(PreferenceConfig(document="docs/results/preference.md"))
    settings = yaml.safe_load((shipped_root() / file).read_text())
    assert settings["document"] == "docs/results/preference.md" and len(settings["seeds"]) == 5
    assert config_file(PreferenceConfig(document="nowhere.md")) == config_file(PreferenceConfig()) == "FILE"
    _, _, sections = study_page_of_nothing(tmp_path, monkeypatch)
    rows = dict(sections[0].blocks[0].rows)
    assert rows["Command"] == "minionerec train-preference --config FILE"
    assert rows["Data"] == "synthetic, 4602 items and pairs, 512 features" and rows["Seeds"] == "42"
    # An installed package has no commit.
    monkeypatch.setattr(preference_study, "source_commit", lambda: None)
    _, _, sections = study_page_of_nothing(tmp_path, monkeypatch)
    assert dict(sections[0].blocks[0].rows)["Commit"] == "unknown"


def study_page_of_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(preference_study, "measured_runs", lambda *_: {})
    return study_page(PreferenceConfig(output=str(tmp_path)), [])
