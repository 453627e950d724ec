"""Sequential recommenders that are conditioned on request features: trained, killed, read, queried, refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.evaluation import config as eval_config
from support.gaps import GAP, LATER, LATER_ON, SAME, make_gap_corpus
from support.small_shop import sign
from support.training import N_ITEMS, interrupted_in_epoch, sequential_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.sequential.rank import rank_rows
from minionerec.models.sequential.registry import load_sequential
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request

SMALL = {"hidden_size": 32, "inner_size": 32, "num_layers": 1, "hidden_dropout": 0.0, "attention_dropout": 0.0}
POINTING = {"hidden_size": 32, "inner_size": 32, "num_layers": 1, "dropout": 0.0, "pointer": True, "reach": 4}
MODELS = {
    "sasrec": {},
    "causal": {"model": "causal", "hyper": POINTING},
    "a position a row": {
        "model": "gru4rec",
        "hyper": {"hidden_size": 32},
        "all_positions": False,
        "batch_size": 32,
        "epochs": 5,
    },
}


def config_of(folder, output, corpus="corpus", **changes):
    settings = {"hyper": SMALL, "epochs": 8, "batch_size": 16, "learning_rate": 2e-2, "list_length": 10}
    settings |= {"context": ["gap"], "all_positions": True}
    return sequential_config(folder / corpus, output, **{**settings, **changes})


def ndcg(result):
    return result.metrics["test"]["item"]["NDCG@10"][0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus in which the context decides what comes next, and SASRec of it, told."""
    folder = tmp_path_factory.mktemp("contexts")
    make_gap_corpus(folder / "corpus")
    run_sequential(config_of(folder, folder / "conditioned"))
    return folder


def model_of(output):
    return output / "model"


@pytest.mark.parametrize("name", MODELS)
def test_the_two_slices_are_distinguished(made, tmp_path, name):
    """Told, the model knows which of two items comes; one that was never told knows no more than both."""
    found = {
        conditioned: run_sequential(
            config_of(made, tmp_path / str(conditioned), context=["gap"] * conditioned, **MODELS[name])
        )
        for conditioned in (0, 1)
    }
    assert ndcg(found[True]) > 0.95
    assert 0.6 < ndcg(found[False]) < 0.9  # half of the rows first and half of them second would be 0.82
    model, rows = load_sequential(model_of(tmp_path / "1")), Corpus.load(made / "corpus").test
    histories, newest = (
        torch.from_numpy(part).long() for part in (rows.padded(model.max_len, model.padding), rows.newest)
    )
    followers = {SAME: (newest + 1) % N_ITEMS, LATER: torch.full_like(newest, LATER_ON)}
    with torch.no_grad():
        for context, follower in followers.items():
            best = model.scores(histories, None, torch.full((len(newest), 1), context))[:, 1:].argmax(1)
            assert (best == follower).float().mean() > 0.85
    unconditioned = rank_rows(model, rows, "keep", torch.device("cpu"))["item"]
    assert 0.6 < ranking_metrics(unconditioned, (10,))["NDCG@10"].mean() < 0.9


def test_killed_it_resumes_to_the_same_bytes(made, tmp_path, monkeypatch):
    config = config_of(made, tmp_path / "cut")
    interrupted_in_epoch(monkeypatch, config, 6)
    torch.manual_seed(99)
    run_sequential(config)
    for name in ("model/model.safetensors", "model/history.json", "predictions/ranks.parquet"):
        one, other = (folder / name for folder in (tmp_path / "cut", made / "conditioned"))
        assert one.read_bytes() == other.read_bytes(), name


def test_what_was_reported_is_known_from_the_files(made, tmp_path):
    settings = read_manifest(model_of(made / "conditioned"))["settings"]
    assert settings["context"] == ["gap"]
    conditioned = config_of(made, made / "conditioned")
    assert conditioned.up_to_date() and run_sequential(conditioned).up_to_date
    plain = config_of(made, tmp_path / "plain", context=[], epochs=1)
    run_sequential(plain)
    about = [
        json.loads((model_of(folder) / "model.json").read_text())
        for folder in (made / "conditioned", tmp_path / "plain")
    ]
    assert about[0]["context"] == [GAP.stored()] and "context" not in about[1]
    models = [load_sequential(model_of(folder)) for folder in (made / "conditioned", tmp_path / "plain")]
    assert models[0].context_states is not None and models[1].context_states is None
    assert models[0].context_states.shift.any(1).all()  # also of what is unknown, which is so only where it was hidden
    names = [
        set(load_file(model_of(folder) / "model.safetensors")) for folder in (made / "conditioned", tmp_path / "plain")
    ]
    assert names[0] - names[1] == {"context_states.scale", "context_states.shift"}
    for wrong, words in (
        ("yes", "context is 'yes', expected a list"),
        ([{}], "describes no request feature"),
        ([], "does not fit"),
    ):
        (model_of(made / "conditioned") / "model.json").write_text(json.dumps(about[0] | {"context": wrong}))
        sign(model_of(made / "conditioned"))
        with pytest.raises(ArtefactError, match=words):
            load_sequential(model_of(made / "conditioned"))
    (model_of(made / "conditioned") / "model.json").write_text(json.dumps(about[0], indent=1) + "\n")
    sign(model_of(made / "conditioned"))
    load_sequential(model_of(made / "conditioned"))


def test_a_request_gives_the_gap(made):
    recommender = Recommender.load(model_of(made / "conditioned"), corpus=made / "corpus")
    assert recommender.features == (GAP,)
    histories = [[f"i{item}" for item in history] for history in Corpus.load(made / "corpus").test.histories]
    found = {
        word: recommender.answer([Request(ids, 3, context={"gap": word}) for ids in histories]) for word in GAP.names
    }
    first = {word: [answer.items[0].item_id for answer in answers] for word, answers in found.items()}
    followers = [f"i{(int(ids[-1][1:]) + 1) % N_ITEMS}" for ids in histories]
    assert np.mean([one == other for one, other in zip(first["same"], followers, strict=True)]) > 0.85
    assert first["later"].count(f"i{LATER_ON}") / len(histories) > 0.85
    assert found["unknown"] == recommender.answer([Request(ids, 3) for ids in histories])
    for word in ("same", "later"):
        scores = [[answer.items[0].score for answer in found[name]] for name in (word, "unknown")]
        assert np.abs(np.subtract(*scores)).min() > 1e-3


def test_eval_beam_tells_it_too(made, tmp_path):
    """The lists of eval-beam are those that training wrote, told as there; told nothing, they are worse."""
    found = {}
    for tell in (True, False):
        settings = {"checkpoint": str(model_of(made / "conditioned")), "beams": 10, "ks": [1, 10]}
        config = eval_config(made, **settings, output=str(tmp_path / str(tell)), context=tell)
        metrics = run_eval(config).metrics["recommenders"]["sasrec"]["item"]
        found[tell] = metrics["NDCG@10"][0], read_manifest(config.output)["counts"].get("rows_with_context", 0)
    assert (found[True][1], found[False][1]) == (60, 0)
    written = Predictions.load(made / "conditioned" / "predictions")
    asked = Predictions.load(tmp_path / "True")
    assert asked.items == written.items
    assert asked.given == written.given == ("gap",)
    assert Ranked.load(made / "conditioned" / "predictions", "valid").given == ("gap",)
    assert Predictions.load(tmp_path / "False").given == ()
    assert found[True][0] > 0.95 > 0.9 > found[False][0]


def test_what_cannot_be_conditioned_is_refused(made, tmp_path):
    for protocol in ("a", "b"):
        with pytest.raises(ConfigError, match=f"context is gap, but protocol is '{protocol}', whose sequences have no"):
            config_of(made, tmp_path, protocol=protocol)
    with pytest.raises(ConfigError, match="BERT4Rec learns to fill in items"):
        run_sequential(config_of(made, tmp_path / "bert", model="bert4rec", hyper={}, all_positions=False))
