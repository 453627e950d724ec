"""The stage: artefacts of each seed, resuming, models read back, predictions that agree with ranks, bad input."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.config import ROOT, parse_config
from minionerec.core.errors import ConfigError, DataError
from minionerec.data.prepare import PrepareConfig, run_prepare
from minionerec.data.transitions import count_transitions
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import item_ranks, sid_ranks
from minionerec.sequential import run, train
from minionerec.sequential.config import SequentialConfig
from minionerec.sequential.models import MODELS, build_model
from minionerec.sequential.rank import rank_rows
from minionerec.sequential.run import load_model, parse_hyper, pick_device, read_data, resolve_protocol, run_sequential
from minionerec.sid.build import SidConfig, run_build_sids

TINY = ["hidden_size=16", "inner_size=16", "num_layers=1"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Sixty users who go round a circle of fifteen items."""
    rng = np.random.default_rng(0)
    place = tmp_path_factory.mktemp("data") / "circle.txt"
    lines = []
    for user in range(60):
        items = (rng.integers(15) + np.arange(rng.integers(5, 12))) % 15 + 1
        lines.append(f"{user + 1} " + " ".join(map(str, items)))
    place.write_text("\n".join(lines) + "\n")
    titles = {str(item): {"title": f"thing {'red' if item % 2 else 'blue'} number {item}"} for item in range(1, 16)}
    (place.parent / "titles.json").write_text(json.dumps(titles))
    return place


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo shop as a corpus, with SIDs."""
    place = tmp_path_factory.mktemp("demo")
    run_prepare(PrepareConfig(output=str(place / "corpus")))
    run_build_sids(
        SidConfig(corpus=str(place / "corpus"), output=str(place / "sids"), collisions="keep", codebook_sizes=[8, 4])
    )
    return place


def config_of(file, output, **changes):
    plain = {"model": "sasrec", "data": str(file), "protocol": "a", "output": str(output), "hyper": TINY,
             "max_len": 8, "epochs": 2, "resamples": 50}  # fmt: skip
    return SequentialConfig(**{**plain, **changes})


def test_seeds_metrics_and_predictions(file, tmp_path):
    output = tmp_path / "out"
    result = run_sequential(config_of(file, output, seeds=2, list_length=15))
    assert result.trained == 2
    assert json.loads((output / "summary.json").read_text()) == result.summary
    found = {}
    for seed in (42, 43):
        folder = output / f"seed-{seed}"
        verify_files(folder / "model")
        assert read_manifest(folder / "model", "sequential_model")["seed"] == seed
        assert not (folder / "partial").exists()
        ranks = pd.read_parquet(folder / "model" / "ranks.parquet")
        test = ranks[ranks["split"] == "test"]
        assert len(test) == 60
        predictions = Predictions.load(folder / "predictions")
        assert item_ranks(predictions).tolist() == [r if r <= 15 else 0 for r in test["item_rank"]]
        assert predictions.users == test["user"].tolist()
        found[seed] = result.summary["seeds"][str(seed)]["test"]["item"]
        assert found[seed]["HR@10"] == pytest.approx((test["item_rank"] <= 10).mean())
    both = [found[seed]["NDCG@10"] for seed in (42, 43)]
    mean, sd = result.summary["mean_sd"]["test"]["item"]["NDCG@10"]
    assert (mean, sd) == (pytest.approx(np.mean(both)), pytest.approx(np.std(both, ddof=1)))
    assert found[42] != found[43]
    # A third seed is added; the others stand.
    assert run_sequential(config_of(file, output, seeds=3, list_length=15)).trained == 1


def test_seen_items_are_recommended_only_where_the_protocol_lets_them(file, tmp_path):
    for seen, some in (("", False), ("keep", True)):
        run_sequential(config_of(file, tmp_path / f"out{seen}", seen=seen, list_length=15))
        predictions = Predictions.load(tmp_path / f"out{seen}" / "seed-42" / "predictions")
        lines = [[int(word) - 1 for word in line.split()[1:-1]] for line in file.read_text().splitlines()]
        met = [set(items) & set(seen_items) for items, seen_items in zip(predictions.items, lines, strict=True)]
        assert any(met) is some
        assert all(-1 not in items for items in predictions.items)


def test_zero_compatibility_lets_padding_compete(file, tmp_path):
    config = config_of(file, tmp_path / "out", seen="zero", list_length=15)
    run_sequential(config)
    predictions = Predictions.load(tmp_path / "out" / "seed-42" / "predictions")
    assert all(len(items) == 15 for items in predictions.items)
    assert any(-1 in items for items in predictions.items)


def test_a_cut_off_run_goes_on_to_the_same_bytes(file, tmp_path, monkeypatch):
    run_sequential(config_of(file, tmp_path / "whole", epochs=3, seeds=2))
    calls = []

    def die(*args):
        calls.append(args)
        if len(calls) == 5:  # the second epoch of the second seed
            raise KeyboardInterrupt
        return original(*args)

    original = train.train_epoch
    monkeypatch.setattr(train, "train_epoch", die)
    with pytest.raises(KeyboardInterrupt):
        run_sequential(config_of(file, tmp_path / "cut", epochs=3, seeds=2))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"unfinished run that differs in epochs\. Go on"):
        run_sequential(config_of(file, tmp_path / "cut", epochs=4, seeds=2, seed=43))
    assert run_sequential(config_of(file, tmp_path / "cut", epochs=3, seeds=2)).trained == 1
    for name in (
        "model/model.safetensors",
        "model/ranks.parquet",
        "model/history.json",
        "predictions/predictions.parquet",
    ):
        one, other = (tmp_path / run / "seed-43" / name for run in ("whole", "cut"))
        assert one.read_bytes() == other.read_bytes(), name


def test_a_run_killed_between_its_two_artefacts_is_finished(file, tmp_path, monkeypatch):
    config = config_of(file, tmp_path / "out")
    monkeypatch.setattr(run, "list_predictions", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_sequential(config)
    monkeypatch.undo()
    run_sequential(config)
    assert len(Predictions.load(tmp_path / "out" / "seed-42" / "predictions")) == 60


def test_rows_of_a_corpus_at_both_levels_with_text(demo, tmp_path):
    config = SequentialConfig(
        model="causal", data=str(demo / "corpus"), protocol="rows", sids=str(demo / "sids"), vectors="tfidf",
        vector_width=8, all_positions=True, epochs=2, output=str(tmp_path / "out"), resamples=50,
        hyper=["hidden_size=16", "inner_size=16", "num_heads=2", "pointer=true", "reach=3"],
    )  # fmt: skip
    run_sequential(config)
    folder = tmp_path / "out" / "seed-42"
    ranks = pd.read_parquet(folder / "model" / "ranks.parquet")
    test = ranks[ranks["split"] == "test"]
    predictions = Predictions.load(folder / "predictions")
    assert item_ranks(predictions).tolist() == [rank if rank <= 50 else 0 for rank in test["item_rank"]]
    shown, listed = sid_ranks(predictions), item_ranks(predictions) > 0
    assert (shown[listed] == test["sid_rank"].to_numpy()[listed]).all()
    assert (test["sid_rank"] <= test["item_rank"]).all() and (test["sid_rank"] < test["item_rank"]).any()
    model = load_model(folder / "model")
    protocol = resolve_protocol(config)
    again = rank_rows(model, read_data(config, protocol).test, protocol.seen, pick_device("cpu"))
    assert again["item"].tolist() == test["item_rank"].tolist()
    assert model.text[1:].abs().sum() > 0
    windows = read_data(config, protocol).windows
    assert model.pairs.counts.sum() == pytest.approx(
        count_transitions(windows.histories, windows.targets, model.num_items, 3, 0.6, 0.3).counts.sum()
    )
    assert read_manifest(folder / "model")["counts"]["recipe"] == "all positions"


def test_titles_of_a_file_become_text_vectors(file, tmp_path):
    config = config_of(file, tmp_path / "out", model="causal", items=str(file.parent / "titles.json"), vectors="tfidf",
                       vector_width=4, hyper=["hidden_size=16", "inner_size=16"], epochs=1)  # fmt: skip
    run_sequential(config)
    text = load_model(tmp_path / "out" / "seed-42" / "model").text
    assert text.shape == (16, 4)
    assert not text[0].any() and text[1:].norm(dim=1).numpy() == pytest.approx(np.full(15, 2), abs=1e-5)  # √width


def test_users_of_caser_and_the_item_range_of_protocol_b(file, tmp_path):
    run_sequential(config_of(file, tmp_path / "out", model="caser", protocol="b", hyper=["hidden_size=8"], epochs=1))
    model = load_model(tmp_path / "out" / "seed-2026" / "model")
    assert model.users.num_embeddings == 61
    predictions = Predictions.load(tmp_path / "out" / "seed-2026" / "predictions")
    assert {item for row in predictions.items for item in row} == set(range(15))


def test_hyper_parameters_have_the_type_of_their_default():
    assert parse_hyper("trm4rec", ["full_backprop=true", "num_blocks=2"]) == {"full_backprop": True, "num_blocks": 2}
    with pytest.raises(ConfigError, match=r"hyper: model sasrec has no hyper-parameter 'depth'; known: hidden_size, "):
        parse_hyper("sasrec", ["depth=2"])
    with pytest.raises(ConfigError, match=r"'hidden_size=wide'; expected hidden_size=VALUE with a value like 64"):
        parse_hyper("sasrec", ["hidden_size=wide"])
    with pytest.raises(ConfigError, match="unknown model 'x'"):
        parse_hyper("x", [])


def test_what_the_settings_refuse(file, tmp_path):
    def of(**changes):
        return config_of(file, tmp_path / "out", **changes)

    for changes, message in [
        ({"data": ""}, "data is empty"),
        ({"protocol": "c"}, "unknown protocol 'c'; known: a, b, rows"),
        ({"seen": "hide"}, "unknown seen 'hide'; known: mask, zero, keep"),
        ({"seeds": 0}, "seeds is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"sids": "x"}, "protocol is 'a', whose items have no SIDs"),
        ({"protocol": "rows", "items": "x"}, "a corpus has its own titles"),
        ({"protocol": "b", "monitor": "NDCG@20"}, "protocol b measures at 1, 5 and 10"),
    ]:
        with pytest.raises(ConfigError, match=message):
            of(**changes)
    with pytest.raises(ConfigError, match="model sasrec reads no text"):
        run_sequential(of(vectors="tfidf"))
    with pytest.raises(DataError, match="no such file"):
        run_sequential(config_of(tmp_path / "none.txt", tmp_path / "out"))
    with pytest.raises(ConfigError, match="device 'abacus' cannot be used"):
        run_sequential(of(device="abacus"))


def test_monitor_and_patience_reach_the_protocol(file, tmp_path):
    config = config_of(file, tmp_path / "out", monitor="NDCG@20", stop_after=1, epochs=60)
    run_sequential(config)
    history = json.loads((tmp_path / "out" / "seed-42" / "model" / "history.json").read_text())
    values = [row["NDCG@20"] for row in history]
    assert 1 < len(values) < 60
    assert values[-1] <= values[-2] and all(np.diff(values[:-1]) > 0)


def test_a_user_on_the_command_line(file, tmp_path):
    words = [
        "--model",
        "sasrec",
        "--data",
        str(file),
        "--protocol",
        "a",
        "--epochs",
        "1",
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train_sequential.py"), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "test  item HR@5" in done.stdout
    words[1] = "sasrek"
    wrong = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train_sequential.py"), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "error: unknown model 'sasrek'; known models: " in wrong.stderr


@pytest.mark.parametrize("model", ["wearec", "gru4rec"])
def test_the_benchmark_times_the_same_work_both_ways(file, model, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["x", "--model", model, "--data", str(file), "--steps", "1", "--repeats", "1", "--json"]
    )
    runpy.run_path(str(ROOT / "benchmarks" / "sequential_epoch.py"), run_name="__main__")
    figures = json.loads(capsys.readouterr().out)
    assert figures["ours"]["epoch_s"] > 0 and figures["rows"] == 60
    if model == "wearec":
        assert figures["ratio"] > 0 and figures["ranking_ratio"] > 0
        assert figures["field"]["loss"] == pytest.approx(figures["ours"]["loss"], rel=0.02)
    else:
        assert "field" not in figures and "ratio" not in figures


CONFIGS = sorted((ROOT / "configs" / "sequential").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_builds_its_model(path):
    config = parse_config(SequentialConfig, "", args=["--config", str(path)])
    hyper = parse_hyper(config.model, config.hyper)
    protocol = resolve_protocol(config)
    given = {"num_users": 9} if config.model == "caser" else {}
    model = build_model(
        config.model, num_items=20, max_len=protocol.max_len, padding=protocol.padding, **hyper, **given
    )
    assert model.causal or not config.all_positions
    assert Path(config.output).name == path.stem
    assert yaml.safe_load(path.read_text())["model"] in MODELS
