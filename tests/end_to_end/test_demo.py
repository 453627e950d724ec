"""Every stage as a user runs it: on a part of the demo shop, with a model small enough for a few seconds a stage."""

import json
import subprocess

import numpy as np
import pandas as pd
import pytest
import yaml
from support.paths import ROOT
from support.preloaded import python

from minionerec.data.corpus import Corpus

LAUNCH = [python, "-m", "accelerate.commands.launch", "--no_python"]  # for a process that is forked
COMMAND = [python, "-m", "minionerec"]
pytestmark = pytest.mark.end_to_end

TRAINING = {"corpus": "runs/corpus", "eval_examples": 40, "eval_beams": 10, "seed": 1}
CONFIGS = {
    "data": {"source": "tables", "items": "items.csv", "interactions": "interactions.csv", "output": "runs/corpus"},
    "sids": {
        "corpus": "runs/corpus",
        "output": "runs/sids",
        "encoder": "tfidf",
        "dimensions": 16,
        "codebook_sizes": [16, 16, 16],
    },
    "sft": {
        **TRAINING,
        "sids": "runs/sids",
        "output": "runs/sft",
        "hidden_size": 32,
        "layers": 2,
        "heads": 2,
        "kv_heads": 2,
        "inner_size": 64,
        "text_vocabulary": 300,
        "dropout": 0.1,
        "tasks": {"next_sid": 1, "title_to_sid": 0.2, "sid_to_title": 0.2},
        "all_positions": True,
        "epochs": 2,
        "evals_per_epoch": 2,
        "learning_rate": 3e-3,
        "batch_size": 16,
        "device_batch_size": 16,
    },
    "grpo": {
        **TRAINING,
        "checkpoint": "runs/sft",
        "output": "runs/grpo",
        "tasks": {"next_sid": 0.05},
        "generations": 4,
        "prompts_per_step": 8,
        "prompts_per_device": 8,
        "max_steps": 4,
        "learning_rate": 1e-4,
    },
    "eval": {
        "checkpoint": "runs/grpo",
        "corpus": "runs/corpus",
        "sids": "runs/sids",
        "output": "runs/eval",
        "resamples": 100,
    },
    "report": {
        "corpus": "runs/corpus",
        "sids": "runs/sids",
        "predictions": {"GRPO": "runs/eval"},
        "output": "runs/report",
        "resamples": 100,
    },
}
STAGES = {
    "data": [*COMMAND, "prepare-data", "--config", "data.yaml"],
    "sids": [*COMMAND, "build-sids", "--config", "sids.yaml"],
    "sft": [*LAUNCH, python, ROOT / "scripts/sft.py", "--config", "sft.yaml"],
    "grpo": [python, ROOT / "scripts/grpo.py", "--config", "grpo.yaml"],
    "eval": [python, ROOT / "scripts/eval_beam.py", "--config", "eval.yaml", "--beams", "50"],
    "report": [*COMMAND, "report", "--config", "report.yaml"],
}


def run(words, cwd, timeout=300):
    words = [str(word()) if callable(word) else str(word) for word in words]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False, timeout=timeout)


def left_in(folder):
    """Names in a folder, but for the empty lock files that stay between runs."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock" or path.stat().st_size)


def assert_refused(done, message):
    """One clear line on standard error, status 2, no traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder with a tenth of the demo's customers, configurations, and the output of all stages."""
    folder = tmp_path_factory.mktemp("shop")
    interactions = pd.read_csv(ROOT / "data/demo/interactions.csv")
    users = sorted(interactions["user_id"].unique())[::10]
    interactions[interactions["user_id"].isin(users)].to_csv(folder / "interactions.csv", index=False)
    (folder / "items.csv").write_bytes((ROOT / "data/demo/items.csv").read_bytes())
    for name, settings in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    for name, words in STAGES.items():
        done = run(words, folder)
        assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"
        (folder / f"{name}.out").write_text(done.stdout)
    return folder


def test_every_stage_writes_what_it_says(shop):
    outputs = ("corpus", "sids", "sft", "grpo", "eval", "report")
    for name in outputs:
        assert (shop / "runs" / name / "manifest.json").is_file()
    kept = ("sft.finished", "grpo.finished")  # from which more epochs could go on
    records = [f"{name}.record.json" for name in outputs]
    assert left_in(shop / "runs") == sorted((*outputs, *kept, *records))  # nothing half-written
    predictions = pd.read_parquet(shop / "runs/eval/predictions.parquet")
    test_rows = len(Corpus.load(shop / "runs/corpus").test)
    assert len(predictions) == 50 * test_rows
    published = json.loads((shop / "runs/eval/predictions.json").read_text())
    assert len(published) == test_rows
    assert {len(set(row["predict"])) for row in published} == {50}
    assert "NDCG@10" in (shop / "eval.out").read_text()
    assert "popularity" in (shop / "eval.out").read_text()
    printed = (shop / "report.out").read_text()
    assert "NDCG@10" in printed
    assert "Report: runs/report/report.html" in printed
    assert (shop / "runs/report/report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_calc_level_agrees_on_both_forms_of_the_predictions(shop):
    answers = [
        run([python, ROOT / "calc_level.py", "--json", *words], shop)
        for words in (["--predictions", "runs/eval"], ["--predictions", "runs/eval/predictions.json"])
    ]
    assert [done.returncode for done in answers] == [0, 0]
    first, second = (json.loads(done.stdout) for done in answers)
    assert first == second
    assert set(first) == {"independent", "cumulative", "dropoff", "rows"}
    assert set(first["independent"]) == {"1", "3", "5", "10", "20", "50"}
    metrics = json.loads((shop / "runs/eval/metrics.json").read_text())
    assert first["rows"] == len(Corpus.load(shop / "runs/corpus").test)
    assert first["cumulative"]["50"][-1] == pytest.approx(first["independent"]["50"][-1])
    assert "beam search" in metrics["recommenders"]


def test_a_script_refuses_in_one_line_and_leaves_nothing(shop):
    evaluate = ["--config", "eval.yaml", "--output", "runs_bad/eval"]
    words = [python, ROOT / "scripts/eval_beam.py", *evaluate, "--beams", "20"]
    assert_refused(run(words, shop), "ks 1 3 5 10 20 50 with 20 beams")
    assert not (shop / "runs_bad").exists()


def test_a_json_with_too_few_predictions_is_refused(shop, tmp_path):
    rows = json.loads((shop / "runs/eval/predictions.json").read_text())
    rows[3]["predict"] = rows[3]["predict"][:7]
    short = tmp_path / "short.json"
    short.write_text(json.dumps(rows))
    done = run([python, ROOT / "calc_level.py", "--predictions", short, "--ks", "1", "10"], shop)
    assert_refused(done, str(short))
    assert "7" in done.stderr
    assert done.stdout == ""


def test_the_launcher_adds_no_traceback_when_it_is_quiet(shop):
    done = run(
        [*LAUNCH, "--quiet", python, ROOT / "scripts/sft.py", "--config", "sft.yaml", "--batch_size", "17"], shop
    )
    assert done.returncode == 1  # the launcher's own status
    assert "error: batch_size and device_batch_size: 17 is no multiple of 16 x 1 device(s)" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_config_the_demo_is_taken_and_what_it_needs_is_made(tmp_path):
    words = ["--epochs", "0.05", "--eval_examples", "20", "--layers", "1", "--hidden_size", "32", "--teacher", ""]
    done = run([python, ROOT / "scripts/sft.py", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "using the demo configuration, demo#sft" in done.stderr
    assert "First data: minionerec prepare-data --config demo/language#data" in done.stderr
    assert "First sids: minionerec build-sids --config demo/language#sids" in done.stderr
    assert done.stdout.splitlines() == ["checkpoint: runs/demo/sft"]
    made = ["corpus", "sft", "sids"]
    assert left_in(tmp_path / "runs/demo") == sorted([*made, *(f"{name}.record.json" for name in made), "sft.finished"])


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_accuracy_by_level_alone_makes_the_whole_demo_which_stays_under_its_ceiling(tmp_path):
    done = run([python, ROOT / "calc_level.py"], tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "using the demo configuration, demo#levels" in done.stderr
    corpus = Corpus.load(tmp_path / "runs/demo/corpus")
    rows = len(corpus.test)
    assert f"{rows:,} examples; 0 of {50 * rows:,} predictions are no semantic ID" in done.stdout
    ceiling = json.loads((ROOT / "data/demo/ceiling.json").read_text())
    measured = json.loads((tmp_path / "runs/demo/eval_grpo/metrics.json").read_text())["recommenders"]
    highest = ceiling["ceiling"]["ndcg@10"] + 3 * ceiling["sigma"]["ndcg@10"]
    ((model, found),) = measured.items()  # without baselines
    hits = corpus.test.targets[:, None] == np.argsort(-corpus.popularity(), kind="stable")[:10]
    popular = (hits / np.log2(np.arange(2, 12))).sum(1).mean()
    assert model.startswith("beam search") and 3 * popular < found["item"]["NDCG@10"][0] < highest
    for words in ([ROOT / "scripts/eval_beam.py", "--beams", "50"], [ROOT / "calc_level.py", "--json"]):
        done = run([python, *words], tmp_path)
        assert done.returncode == 0, done.stderr
        assert "First" not in done.stderr  # all that it needs stands
    assert json.loads(done.stdout)["rows"] == rows
