"""The stage: artefacts of each seed, their life, models read back, predictions that agree with ranks, bad input."""

import json
import shutil

import numpy as np
import pytest
import torch
from support.commands import command
from support.paths import ROOT
from support.training import interrupted_in_epoch, sequential_config

from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.records import read_run_record
from minionerec.data.protocols import read_examples
from minionerec.data.transitions import count_transitions
from minionerec.data.windows import padded_windows
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked, runs_at
from minionerec.metrics.ranking import item_ranks, sid_ranks
from minionerec.models.sequential.rank import rank_rows
from minionerec.models.sequential.registry import build_model, check_hyper, load_sequential
from minionerec.pipeline import train_sequential as stage
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.cli.plan import plan_of
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.config.sequential import SequentialConfig
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.settings import parse_settings
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.training.sequential import train


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Sixty users who go round a circle of fifteen items."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data") / "circle.txt"
    lines = []
    for user in range(60):
        items = (rng.integers(15) + np.arange(rng.integers(5, 12))) % 15 + 1
        lines.append(f"{user + 1} " + " ".join(map(str, items)))
    folder.write_text("\n".join(lines) + "\n")
    titles = {str(item): {"title": f"thing {'red' if item % 2 else 'blue'} number {item}"} for item in range(1, 16)}
    (folder.parent / "titles.json").write_text(json.dumps(titles))
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The first months of the demo shop as a corpus, with SIDs."""
    folder = tmp_path_factory.mktemp("demo")
    run_prepare(PrepareConfig(source="demo", end="2024-05", output=str(folder / "corpus")))
    run_build_sids(
        SidConfig(corpus=str(folder / "corpus"), output=str(folder / "sids"), collisions="keep", codebook_sizes=[8, 4])
    )
    return folder


def config_of(file, output, **changes):
    return sequential_config(file, output, **{"protocol": "a", "max_len": 8, "epochs": 2, **changes})


def never(*_):
    raise AssertionError("was trained or read again")


def die(*_):
    raise KeyboardInterrupt


def test_model_metrics_and_predictions_of_two_seeds(file, tmp_path):
    found = {}
    for seed in (42, 43):
        folder = tmp_path / "out" / f"seed-{seed}"
        result = run_sequential(config_of(file, folder, seed=seed, list_length=15))
        assert not result.up_to_date
        verify_files(folder / "model")
        verify_files(folder / "predictions")
        assert read_manifest(folder / "model", "sequential_model")["seed"] == seed
        assert read_manifest(folder / "predictions", "predictions")["seed"] == seed
        assert not list(folder.glob("*.partial"))
        assert runs_at(folder) == [folder / "predictions"]
        test = Ranked.load(folder / "predictions", "test")
        assert len(test) == 60
        predictions = Predictions.load(folder / "predictions")
        assert item_ranks(predictions).tolist() == [r if r <= 15 else 0 for r in test.ranks["item"]]
        assert predictions.users == list(test.users)
        assert Ranked.load(folder / "predictions", "valid").targets.tolist() != test.targets.tolist()
        assert json.loads((folder / "predictions" / "metrics.json").read_text()) == result.metrics
        found[seed] = result.metrics["test"]["item"]
        mean, low, high = found[seed]["HR@10"]
        assert mean == pytest.approx((test.ranks["item"] <= 10).mean()) and low <= mean <= high
        assert f"HR@10 {mean:.4f} [{low:.4f}, {high:.4f}]" in result.lines[1]
        assert result.lines[-1] == f"model and predictions: {folder}"
    assert runs_at(tmp_path / "out") == [tmp_path / "out" / f"seed-{seed}" / "predictions" for seed in (42, 43)]
    assert found[42] != found[43]


def test_what_stands_is_kept_and_one_can_tell_without_starting(file, tmp_path, monkeypatch):
    config = config_of(file, tmp_path / "out")
    assert not config.up_to_date()
    first = run_sequential(config)
    assert config.up_to_date()
    monkeypatch.setattr(stage, "read_examples", never)
    again = run_sequential(config)
    assert (again.up_to_date, again.metrics) == (True, first.metrics)
    monkeypatch.undo()
    assert not config_of(file, tmp_path / "out", seed=43).up_to_date()
    # What the settings leave to the protocol is the same as its own value; the device has no say.
    assert config_of(file, tmp_path / "out", seed=42, seen="mask", batch_size=256).up_to_date()
    # Lists of another length need no training.
    monkeypatch.setattr(stage, "fit", never)
    assert run_sequential(config_of(file, tmp_path / "out", list_length=7)).up_to_date
    assert max(map(len, Predictions.load(tmp_path / "out" / "predictions").items)) == 7


def test_seed_zero_can_be_chosen(file, tmp_path):
    run_sequential(config_of(file, tmp_path / "out", seed=0, epochs=1))
    assert read_manifest(tmp_path / "out" / "model")["seed"] == 0


def test_edited_input_model_and_predictions_are_noticed(demo, tmp_path, caplog):
    shutil.copytree(demo / "corpus", tmp_path / "corpus")
    config = config_of(tmp_path / "corpus", tmp_path / "out", protocol="rows", epochs=1)
    run_sequential(config)
    folder = tmp_path / "out"
    weights = (folder / "model" / "model.safetensors").read_bytes()
    (folder / "predictions" / "ranks.parquet").unlink()
    assert not config.up_to_date()
    assert run_sequential(config).up_to_date
    assert "ranks.parquet was changed since it was written" in caplog.text
    assert Ranked.load(folder / "predictions", "valid").list_length is None
    (folder / "model" / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert not run_sequential(config).up_to_date
    assert (folder / "model" / "model.safetensors").read_bytes() == weights
    assert config.up_to_date()
    with (tmp_path / "corpus" / "items.parquet").open("ab") as items:
        items.write(b" ")
    with pytest.raises(ArtefactError, match=r"corpus/items\.parquet: differs from manifest\.json"):
        run_sequential(config)


def test_other_interactions_are_trained_on_again(file, tmp_path):
    data = tmp_path / "data.txt"
    shutil.copy(file, data)
    run_sequential(config_of(data, tmp_path / "out", epochs=1))
    data.write_text(file.read_text() + "61 1 2 3 4\n")
    assert not run_sequential(config_of(data, tmp_path / "out", epochs=1)).up_to_date
    # The same interactions somewhere else are the same.
    moved = data.rename(tmp_path / "moved.txt")
    assert config_of(moved, tmp_path / "out", epochs=1).up_to_date()


def test_seen_items_are_recommended_only_where_the_protocol_lets_them(file, tmp_path):
    for seen, some in ((None, False), ("keep", True)):
        run_sequential(config_of(file, tmp_path / f"out{seen}", seen=seen, list_length=15))
        predictions = Predictions.load(tmp_path / f"out{seen}" / "predictions")
        lines = [[int(word) - 1 for word in line.split()[1:-1]] for line in file.read_text().splitlines()]
        met = [set(items) & set(seen_items) for items, seen_items in zip(predictions.items, lines, strict=True)]
        assert any(met) is some
        assert all(-1 not in items for items in predictions.items)


def test_zero_compatibility_lets_padding_compete(file, tmp_path):
    config = config_of(file, tmp_path / "out", seen="zero", list_length=15)
    run_sequential(config)
    predictions = Predictions.load(tmp_path / "out" / "predictions")
    assert all(len(items) == 15 for items in predictions.items)
    assert any(-1 in items for items in predictions.items)


def test_an_interrupted_run_resumes_to_the_same_bytes(file, tmp_path, monkeypatch):
    run_sequential(config_of(file, tmp_path / "whole", epochs=3))
    cut = config_of(file, tmp_path / "cut", epochs=3)
    interrupted_in_epoch(monkeypatch, cut, 2)
    with pytest.raises(ConfigError, match=r"unfinished run that differs in epochs \(then 3, now 4\)\. Resume it"):
        run_sequential(config_of(file, tmp_path / "cut", epochs=4))
    with pytest.raises(
        ConfigError, match=r"cut/model\.partial: was written by a launch on cpu, and cannot be .* on meta"
    ):
        monkeypatch.setattr(stage, "torch_device", lambda _name: torch.device("meta"))
        run_sequential(config_of(file, tmp_path / "cut", epochs=3))
    monkeypatch.undo()
    # It goes on after its first epoch: two are left.
    original, made = train.train_epoch, []
    monkeypatch.setattr(train, "train_epoch", lambda *args: made.append(args[-1]) or original(*args))
    assert not run_sequential(cut).up_to_date
    assert made == [1, 2]
    for name in (
        "model/model.safetensors",
        "model/history.json",
        "predictions/ranks.parquet",
        "predictions/metrics.json",
        "predictions/predictions.parquet",
    ):
        one, other = (tmp_path / run / name for run in ("whole", "cut"))
        assert one.read_bytes() == other.read_bytes(), name
    record = read_run_record(tmp_path / "cut" / "model")
    assert (record.parts, record.resumed_from) == (2, 1)
    assert set(record.seconds) == {"all", "load", "train", "validate", "write"} and record.batch.accumulation == 1


@pytest.mark.parametrize("late", ["rank_splits", "list_predictions", "measure"])
def test_a_run_killed_between_its_artefacts_is_finished_without_training(file, tmp_path, monkeypatch, late):
    config = config_of(file, tmp_path / "out")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stage, late, die)
        run_sequential(config)
    assert not config.up_to_date()
    monkeypatch.setattr(stage, "fit", never)
    assert run_sequential(config).up_to_date
    assert config.up_to_date()
    assert len(Predictions.load(tmp_path / "out" / "predictions")) == 60


def test_rows_of_a_corpus_at_both_levels_with_text(demo, tmp_path):
    hyper = {"hidden_size": 16, "inner_size": 16, "num_heads": 2, "pointer": True, "reach": 3}
    settings = {"sids": str(demo / "sids"), "vectors": "tfidf", "vector_width": 8, "all_positions": True, "epochs": 2}
    config = sequential_config(demo / "corpus", tmp_path / "out", model="causal", hyper=hyper, **settings)
    result = run_sequential(config)
    assert [line.split()[:2] for line in result.lines[:-1]] == [
        ["valid", "item"],
        ["valid", "sid"],
        ["test", "item"],
        ["test", "sid"],
    ]
    folder = tmp_path / "out"
    test = Ranked.load(folder / "predictions", "test").ranks
    predictions = Predictions.load(folder / "predictions")
    assert item_ranks(predictions).tolist() == [rank if rank <= 50 else 0 for rank in test["item"]]
    shown, listed = sid_ranks(predictions), item_ranks(predictions) > 0
    assert (shown[listed] == test["sid"][listed]).all()
    assert (test["sid"] <= test["item"]).all() and (test["sid"] < test["item"]).any()
    model = load_sequential(folder / "model")
    protocol = config.resolved_protocol()
    split = read_examples(config.corpus, protocol)
    again = rank_rows(model, split.test, protocol.seen, torch.device("cpu"))
    assert again["item"].tolist() == test["item"].tolist()
    assert model.given_vectors[1:].abs().sum() > 0
    (whole,) = split.windows("train")
    histories, targets, _ = padded_windows(whole, protocol.max_len, protocol.padding)
    assert model.pairs.counts.sum() == pytest.approx(
        count_transitions([(histories, targets)], model.num_items, 3, 0.6, 0.3).data.sum()
    )
    assert read_manifest(folder / "model")["counts"]["recipe"] == "all positions"
    inputs = read_manifest(folder / "predictions")["inputs"]
    assert set(inputs) == {"corpus", "sids", "model"}


def test_titles_of_a_file_become_text_vectors(file, tmp_path):
    config = config_of(
        file,
        tmp_path / "out",
        model="causal",
        items=str(file.parent / "titles.json"),
        vectors="tfidf",
        vector_width=4,
        hyper={"hidden_size": 16, "inner_size": 16},
        epochs=1,
    )
    run_sequential(config)
    text = load_sequential(tmp_path / "out" / "model").given_vectors
    assert text.shape == (16, 4)
    assert not text[0].any() and text[1:].norm(dim=1).numpy() == pytest.approx(
        np.full(15, 2), rel=1e-4, abs=1e-5
    )  # √width


def test_ready_vectors_are_an_input(file, tmp_path):
    vectors = tmp_path / "vectors.npy"
    changes = {"model": "causal", "vectors": str(vectors), "hyper": {"hidden_size": 16, "inner_size": 16}, "epochs": 1}
    config = config_of(file, tmp_path / "out", **changes)
    with pytest.raises(DataError, match=r"vectors\.npy: no such file"):
        run_sequential(config)
    np.save(vectors, np.eye(15, 4, dtype=np.float32))
    run_sequential(config)
    assert load_sequential(tmp_path / "out" / "model").given_vectors.shape == (16, 4)
    np.save(vectors, np.eye(15, 4, 1, dtype=np.float32))
    assert not config.up_to_date()


def test_users_of_caser_and_the_item_range_of_protocol_b(file, tmp_path):
    run_sequential(config_of(file, tmp_path / "out", model="caser", protocol="b", hyper={"hidden_size": 8}, epochs=1))
    model = load_sequential(tmp_path / "out" / "model")
    assert model.users.num_embeddings == 61
    predictions = Predictions.load(tmp_path / "out" / "predictions")
    assert {item for row in predictions.items for item in row} == set(range(15))


def test_hyper_parameters_have_the_type_of_their_default():
    words = parse_settings(
        SequentialConfig,
        ["--corpus", "x", "--output", "y", "--hyper", "pointer=true", "reach=2"],
    ).hyper
    assert words == {"pointer": True, "reach": 2}
    assert check_hyper("causal", words) == words
    found = check_hyper("causal", {"dropout": "1e-1", "hidden_size": 64.0, "positions": "none", "attention_dropout": 0})
    assert found == {"dropout": 0.1, "hidden_size": 64, "positions": "none", "attention_dropout": 0.0}
    assert [type(value) for value in found.values()] == [float, int, str, float]
    with pytest.raises(
        ConfigError, match=r"hyper: model sasrec has no hyper-parameter 'padding'; known: hidden_size, "
    ):
        check_hyper("sasrec", {"padding": "left"})
    with pytest.raises(ConfigError, match=r"hyper: hidden_size is 'wide'; expected a whole number, such as 64\."):
        check_hyper("sasrec", {"hidden_size": "wide"})
    with pytest.raises(ConfigError, match=r"hyper: pointer is 1; expected true or false, such as False\."):
        check_hyper("causal", {"pointer": 1})


def test_what_the_settings_refuse(file, tmp_path):
    def of(**changes):
        return config_of(file, tmp_path / "out", **changes)

    for changes, message in [
        ({"sids": "x"}, "protocol is 'a', whose items have no SIDs"),
        ({"protocol": "rows", "items": "x"}, "a corpus has its own titles"),
    ]:
        with pytest.raises(ConfigError, match=message):
            of(**changes)
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        run_sequential(config_of(tmp_path / "none.txt", tmp_path / "out"))
    with pytest.raises(ArtefactError, match=r"none: no such directory; expected .* \(corpus\)"):
        run_sequential(config_of(tmp_path / "none", tmp_path / "out", protocol="rows"))
    assert not (tmp_path / "out" / "model").exists()


def test_what_a_model_does_not_read_is_refused():
    model = build_model("sasrec", num_items=5)
    with pytest.raises(ConfigError, match="SASRec reads no counts of pairs"):
        model.set_transitions(None)


def test_patience_reaches_the_protocol(file, tmp_path):
    config = config_of(file, tmp_path / "out", stop_after=1, epochs=60)
    run_sequential(config)
    history = json.loads((tmp_path / "out" / "model" / "history.json").read_text())
    values = [row["NDCG@10"] for row in history]
    assert 1 < len(values) < 60
    assert values[-1] <= values[-2] and all(np.diff(values[:-1]) > 0)


def test_a_user_on_the_command_line(file, tmp_path):
    def run(model):
        words = ["--model", model, "--corpus", str(file), "--protocol", "a", "--epochs", "1"]
        words += ["--hyper", "hidden_size=16", "--output", str(tmp_path / "out")]
        return command(ROOT, "train-sequential", *words)

    done = run("sasrec")
    assert done.status == 0, done.err
    assert "test  item HR@5" in done.out
    assert done.out.endswith(f"model and predictions: {tmp_path / 'out'}\n")
    assert run("sasrek").reported.startswith("error: unknown model 'sasrek'; known models: ")


@pytest.mark.parametrize("name", ["beauty/sequential", "industrial/sequential", "lastfm/sequential"])
def test_every_shipped_model_is_built(name):
    jobs = [job for job in plan_of(name).values() if job.spec.name == "train-sequential"]
    assert len(jobs) > 5
    for job in jobs:
        config = job.settings
        hyper = check_hyper(config.model, config.hyper)
        protocol = config.resolved_protocol()
        given = {"num_users": 9} if config.model == "caser" else {}
        model = build_model(
            config.model, num_items=20, max_len=protocol.max_len, padding=protocol.padding, **hyper, **given
        )
        assert model.causal or not config.all_positions
        assert config.output == f"runs/sequential/{name.split('/')[0]}_{job.key.step}/seed-{job.key.seed}"
