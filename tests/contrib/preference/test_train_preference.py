"""The preference stages as a user runs them, and their acceptance on synthetic raters with a known ceiling."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.pages import page_text

from minionerec.contrib.preference import train
from minionerec.contrib.preference.config import BASELINES, COMPAT, PreferenceConfig, PreferenceReportConfig
from minionerec.contrib.preference.data import TEST, fold_of_rows, read_comparisons
from minionerec.contrib.preference.measures import against_truth, correct, cross_entropy
from minionerec.contrib.preference.models import load_model
from minionerec.contrib.preference.report import difference, findings, run_preference_report, spread
from minionerec.contrib.preference.synthetic import TARGETS, make_population, probability, write_population
from minionerec.contrib.preference.train import PREDICTIONS, RESULTS, run_preference
from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.pipeline.cli.plan import Key, Plan
from minionerec.pipeline.cli.recipes import read_recipe
from minionerec.reports.cells import MINUS
from minionerec.reports.page import Cell

SMALL = {"items": 200, "width": 24, "max_epochs": 4, "resamples": 50, "seed": 1, "compat": COMPAT, "shots": [0, 5]}
MODELS = ["bt_hier", "bt_lowrank", "mlp_siamese", "mlp_concat"]


def results_of(output, model):
    return json.loads((Path(output) / model / RESULTS).read_text())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Three runs that differ in their split, and the page of all."""
    folder = tmp_path_factory.mktemp("preference")
    splits = ("pair", "row", "user")
    configs = {s: PreferenceConfig(output=str(folder / s), split=s, models=MODELS, **SMALL) for s in splits}
    for config in configs.values():
        assert not run_preference(config).up_to_date
    runs = {split: config.output for split, config in configs.items()}
    report = run_preference_report(PreferenceReportConfig(output=str(folder / "report"), runs=runs))
    return configs, report


def test_results_hold_the_published_keys_and_the_audit(small):
    for split, config in small[0].items():
        for model in (*BASELINES, *MODELS):
            results = results_of(config.output, model)
            assert {"best_epoch", "validation", "test", "history"} <= set(results)
            assert set(results["test"]["smart"]) == {"accuracy", "ce_loss", "n_samples", "user_accuracies"}
            audit, overall = results["split"]["audit"], results["overall"]
            if split == "pair":
                assert audit["same_user_pair"] == audit["same_pair_other_user"] == 0
                assert results["split"]["warning"] is None
            if split == "row":
                assert audit["same_user_pair"] == pytest.approx(0.96, abs=0.04)
                assert "LEAK" in results["split"]["warning"]
                assert overall["truth"]["sibling_ce"] < overall["truth"]["ce"] and overall["truth"]["p_error"] > 0
            if split == "user":
                assert results["unseen_user_rows"] == overall["n"]
                shots = {"majority": [], "agreeing_user": [], "bt_user": ["0"]} | {key: ["0"] for key in MODELS[2:]}
                assert list(results["shots"]) == shots.get(model, ["0", "5"])
            else:
                assert results["shots"] is None
            assert (results["last"] is not None) == model.startswith("mlp")
            if model == "mlp_concat":
                assert results["parameters"] == 352_995 + 32 * 11 - (512 - 24) * 384 and overall["swap_gap"] > 0
                assert set(results["against"]) == set(BASELINES)


def test_the_page(small):
    configs, report = small
    text = page_text(report.output / "report.html")
    for words in ("Bayes, features only", "LEAK", "mlp_concat, last epoch", "row minus pair", "Above the ceiling"):
        assert words in text
    assert "| mlp_siamese | Smart |" in text and "| bt_hier minus majority |" in text and "rater's judgement" in text
    runs = {split: config.output for split, config in configs.items()}
    assert run_preference_report(PreferenceReportConfig(output=str(report.output), runs=runs)).up_to_date
    assert report.lines == [f"report: {report.output / 'report.html'}"]


def test_verdicts_follow_the_intervals():
    def against(low, high):
        gap = {"mean": (low + high) / 2, "low": low, "high": high, "p": 0.25}
        return {"accuracy": gap, "ce": gap}

    gaps = {"majority": against(0.01, 0.03), "bt_user": against(-0.03, -0.01), "bt_global": against(-0.01, 0.02)}
    rows = findings({"m": {"against": gaps}}).rows
    verdicts = {"majority": "ahead", "bt_user": "behind", "bt_global": "open"}
    assert [row[:2] for row in rows] == [[f"m minus {model}", verdict] for model, verdict in verdicts.items()]
    assert (rows[0][2].text, rows[0][2].note) == ("+0.0200", "[+0.0100, +0.0300], p = 0.250")


def test_differences_over_seeds():
    def runs(values):
        return [{"seed": seed, "overall": {"ce": value}} for seed, value in values.items()]

    # Two seeds: half the spread times Student's t with one degree of freedom, 12.706; the third has no partner.
    cell = difference(runs({1: 0.5, 2: 0.72}), runs({2: 0.7, 1: 0.5, 9: 0.1}), "ce")
    assert (cell.text, cell.note) == ("+0.0100", f"[{MINUS}0.1171, +0.1371], p = 0.500")
    assert difference(runs({1: 0.5}), runs({1: 0.25}), "ce") == Cell("+0.2500", "one seed")
    assert difference(runs({1: 0.5}), runs({1: 0.25}), "truth.ce") == Cell("-")
    assert (spread([]), spread([None, 0.5]), spread([0.4, 0.6])) == ("-", "0.5000", "0.5000 ± 0.1414")


@pytest.mark.parametrize("model", ["bt_hier", "mlp_siamese", "mlp_concat"])
def test_a_stored_model_predicts_as_before(small, model):
    run = Path(small[0]["pair"].output)
    before = torch.get_rng_state()
    loaded, users, targets = load_model(run, model)
    assert torch.equal(torch.get_rng_state(), before)  # a training in another thread may draw from it
    data = read_comparisons(run / "data" / "comparisons.parquet", run / "data" / "features.npz", targets, {})
    table = pd.read_csv(run / model / PREDICTIONS)
    rows = table["row"].to_numpy()
    np.testing.assert_allclose(loaded.predict(data, rows, data.user[rows]), table["p"], atol=1e-5)
    crowd = loaded.predict(data, rows, np.full(len(rows), -1))
    assert list(users) == list(data.users) and np.abs(crowd - table["p"]).max() > 1e-3
    with pytest.raises(ArtefactError, match="has no model 'majority' to load"):
        load_model(run, "majority")


def test_an_interrupted_run_resumes_and_the_same_seed_gives_the_same_bytes(small, tmp_path, monkeypatch):
    whole, fitted, original = small[0]["pair"], [], train.fit_model

    def fit(config, model, *args):
        fitted.append(model)
        if model == "mlp_siamese" and fitted.count(model) == 1:
            raise KeyboardInterrupt
        return original(config, model, *args)

    monkeypatch.setattr(train, "fit_model", fit)
    config = PreferenceConfig(output=str(tmp_path / "out"), models=MODELS, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        run_preference(config)
    with pytest.raises(ConfigError, match=r"differs in seed \(then 1, now 2\)"):
        run_preference(PreferenceConfig(output=config.output, models=MODELS, **{**SMALL, "seed": 2}))
    run_preference(config)
    assert fitted == [*BASELINES, *MODELS[:3], *MODELS[2:]]
    assert run_preference(config).up_to_date
    verify_files(config.output)
    manifests = [read_manifest(of.output) for of in (whole, config)]
    assert manifests[0]["files"] == manifests[1]["files"] and manifests[0]["settings"] == manifests[1]["settings"]


def test_the_oracle_scores_its_ceiling_exactly(tmp_path):
    made = make_population("halo", 300, 16, 4, halo=0.5, nonlinear=0.2, lapse=0.1)
    write_population(tmp_path, *made)
    data = read_comparisons(tmp_path / "comparisons.parquet", tmp_path / "features.npz", TARGETS, {})
    truth = made[-1].set_index(["comparison_id", "target"])["margin"]
    names = zip([data.ids[c] for c in data.comparison], [data.targets[t] for t in data.target], strict=True)
    p = probability(truth.loc[list(names)].to_numpy(), 0.1)
    folds = fold_of_rows(data, "pair", 0)
    rows = np.flatnonzero(folds == TEST)
    scores = against_truth(tmp_path, data, folds, rows, p[rows], None)
    assert (scores["regret"], scores["p_error"], scores["recovery"]) == (0, 0, 1)
    assert scores["realised"] == correct(data.y, p)[rows].mean()
    assert scores["ce"] == cross_entropy(data.y, p)[rows].mean()
    assert scores["sibling_ce"] == pytest.approx(scores["ce"])  # the split by pair leaves no sibling in train
    assert cross_entropy(data.y, p).mean() == pytest.approx(-(p * np.log(p) + (1 - p) * np.log1p(-p)).mean(), abs=0.03)
    assert correct(data.y, p).mean() == pytest.approx(np.maximum(p, 1 - p).mean(), abs=0.03)


def test_own_files_by_time(tmp_path):
    """Codes, a label map, times, an unseen user; one's own data know no ceiling, and their content decides."""
    made = make_population("halo", 120, 12, 4)
    write_population(tmp_path, *made)
    table = made[2].copy()
    table["smart"] = table["smart"].map({"a": 2, "b": 1})
    table["timestamp"] = pd.date_range("2025-01-01", periods=len(table), freq="h").astype(str)
    table.loc[table.index >= len(table) - 5, "user_id"] = "newcomer"
    table.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    files = {"comparisons": str(tmp_path / "rows.jsonl"), "features": str(tmp_path / "features.npz")}
    own = {"targets": ["smart"], "label_map": {"1": "b", "2": "a"}, "split": "time", "resamples": 20}
    config = PreferenceConfig(output=str(tmp_path / "out"), **files, **own)
    run_preference(config)
    results = results_of(config.output, "bt_hier")
    assert results["unseen_user_rows"] == 5 and "truth" not in results["overall"]
    fitted, users, _ = load_model(config.output, "bt_hier")
    assert "newcomer" in users and not np.isnan(fitted.weights).any()
    report = run_preference_report(PreferenceReportConfig(output=str(tmp_path / "page"), runs={"own": config.output}))
    assert "Bayes, features only" not in page_text(report.output / "report.html")
    table.iloc[:-3].to_json(files["comparisons"], orient="records", lines=True)
    assert not config.up_to_date()


def test_runs_of_several_seeds_and_splits_are_compared_on_one_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("pair", "row"):
        for seed in (3, 4):
            output = f"out/{split}/seed-{seed}"
            run_preference(PreferenceConfig(items=60, width=8, resamples=20, split=split, seed=seed, output=output))
    runs = {split: f"out/{split}" for split in ("pair", "row")}
    report = run_preference_report(PreferenceReportConfig(output="page", runs=runs))
    text = page_text(report.output / "report.html")
    assert "over seeds 3, 4" in text and "| row minus pair | bt_hier |" in text


def test_a_recipe_with_seeds_compares_them():
    jobs = Plan(read_recipe("preference/demo"), (1, 2)).all()
    folder = Path("runs/demo/preference/run")
    assert [jobs[Key("train", seed)].output for seed in (1, 2)] == [folder / "seed-1", folder / "seed-2"]
    assert jobs[Key("report")].settings.runs == {"demo": str(folder)}


def over_seeds(folder, seeds=(1, 2, 3, 4, 5), **settings):
    found = {}
    for seed in seeds:
        config = PreferenceConfig(output=str(folder / str(seed)), seed=seed, resamples=50, **settings)
        run_preference(config)
        for model in (*BASELINES, *(name for name in config.models if name not in BASELINES)):
            results = results_of(config.output, model)
            found.setdefault(model, []).append(results["overall"] | {"last": results["last"]})
    return found


def accept(models, recovery, regret):
    """Five seeds: bt_hier comes near the ceiling, nobody passes it, personal beats global."""
    assert np.mean([run["truth"]["recovery"] for run in models["bt_hier"]]) >= recovery
    assert np.mean([run["truth"]["regret"] for run in models["bt_hier"]]) <= regret
    for runs in models.values():
        gap = np.array([run["accuracy"] - run["truth"]["realised"] for run in runs])
        assert gap.mean() <= 2 * gap.std(ddof=1) / np.sqrt(len(gap))
    pairs = zip(models["bt_hier"], models["bt_global"], strict=True)
    gain = np.array([mine["ce"] - crowd["ce"] for mine, crowd in pairs])
    assert gain.mean() + 2 * gain.std(ddof=1) / np.sqrt(len(gain)) < 0


def test_acceptance_at_a_quarter_of_the_size(tmp_path):
    accept(over_seeds(tmp_path, items=1150, width=64), 0.70, 0.10)


def test_controls(tmp_path):
    """Shuffled answers: a coin. One taste for all: nothing personal to gain."""
    seeds = (1, 2, 3)
    shuffled = over_seeds(tmp_path / "permuted", seeds, items=400, width=64, population="permuted")["bt_hier"]
    error = 0.5 / np.sqrt(sum(run["n"] for run in shuffled))  # answers are independent here
    assert abs(np.mean([run["accuracy"] for run in shuffled]) - 0.5) <= 2 * error
    assert np.mean([run["ce"] for run in shuffled]) == pytest.approx(np.log(2), abs=0.01)
    alike = over_seeds(tmp_path / "alike", seeds, items=400, width=64, population="one_taste")
    for key, gain in (("ce", -0.01), ("accuracy", 0.01)):
        mine, crowd = (np.mean([run[key] for run in alike[model]]) for model in ("bt_hier", "bt_global"))
        assert (mine - crowd) / gain < 1


@pytest.mark.slow
def test_acceptance_at_full_size(tmp_path):
    accept(over_seeds(tmp_path, models=["bt_hier", "bt_lowrank"]), 0.80, 0.06)


@pytest.mark.slow
def test_the_leak_shows_and_goes_with_the_halo(tmp_path):
    """mlp_concat as published: the row split flatters it where a pair's answers share noise, and less where not."""
    settings = {"seeds": (1, 2, 3), "items": 1150, "models": ["mlp_concat"], "compat": COMPAT}

    def late(key, **changes):
        folder = tmp_path / "-".join(changes.values())
        return np.mean([run["last"][key] for run in over_seeds(folder, **changes, **settings)["mlp_concat"]])

    leaks = [[late("accuracy", population=of, split=unit) for unit in ("row", "pair")] for of in ("halo", "no_halo")]
    halo, no_halo = (row - pair for row, pair in leaks)
    assert halo > 0.03 and halo > no_halo
