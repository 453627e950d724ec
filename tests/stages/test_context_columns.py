"""A column of a generated city's interactions as a request feature, from tables to requests over HTTP."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from starlette.testclient import TestClient
from support.evaluation import config as eval_config
from support.serving import fake_service
from support.training import catalogue_config, sequential_config, sft_config

from minionerec.contrib.city.config import MakeCityConfig
from minionerec.contrib.city.make import run_make_city
from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.pipeline.cli.init import recipe_text, shape_of
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.config.recommend import ExportConfig, RecommendConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.export import run_export
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.recommend import run_recommend
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import RequestError
from minionerec.serve.server import create_app
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.gains import target_ndcg
from minionerec.training.catalogue.windows import held_out_windows, older_sids

DEVICES = {"phone", "computer", "tablet"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A city, its corpus, random SIDs, and a catalogue model that is given the device."""
    folder = tmp_path_factory.mktemp("devices")
    run_make_city(MakeCityConfig(output=str(folder / "city"), items=200, users=80, days=100, seed=2, columns=True))
    tables = {name: str(folder / "city" / f"{name}.parquet") for name in ("items", "interactions")}
    run_prepare(PrepareConfig(**tables, output=str(folder / "corpus"), targets=["purchase"]))
    ids = Corpus.load(folder / "corpus").items["item_id"].tolist()
    with write_artefact(folder / "sids", "sids", config={}, inputs={}) as path:
        SidTable(np.stack(np.unravel_index(np.arange(len(ids)), (16, 16)), axis=1), ids).save_index(path / "index.json")
    run_catalogue(catalogue_config(folder, context=["device"], output=str(folder / "model")))
    return folder


def test_devices_are_kept_and_given_to_the_model(made):
    assert set(Corpus.load(made / "corpus").context_values["device"]) == DEVICES
    recommender = Recommender.load(made / "model", corpus=made / "corpus")
    (feature,) = recommender.features
    assert feature.name == "device" and set(feature.values) == DEVICES
    history = recommender.items.ids[:3]
    without, phone, computer, strange = (
        recommender.recommend(history, k=5, context=context)
        for context in (None, {"device": "phone"}, {"device": "computer"}, {"device": "watch"})
    )
    assert without.context == strange.context == {"device": "unknown"} and phone.context == {"device": "phone"}
    scores = [[item.score for item in answer.items] for answer in (without, phone, computer, strange)]
    assert scores[0] == scores[3] and scores[0] != scores[1] != scores[2]
    for context, field in (({"colour": "red"}, "context.colour"), ({"device": True}, "context.device")):
        with pytest.raises(RequestError, match=field):
            recommender.recommend(history, context=context)


def test_the_manifest_says_what_device_and_events_are_worth(made):
    bundle, corpus = load_bundle(made / "model"), Corpus.load(made / "corpus")
    gains = read_manifest(made / "model")["counts"]["inputs"]
    assert gains["examples"] == len(corpus.valid) and set(gains["without"]) == {"device", "event"}
    heldout = held_out_windows(
        corpus.valid, bundle.table.sid_numbers, corpus.max_history, bundle.wording.context, events=True
    )
    heldout["older"] = older_sids(corpus.valid, bundle.table.sid_numbers, corpus.max_history)
    for name, hidden in (("device", "contexts"), ("event", "events")):
        unknown = {**heldout, hidden: np.zeros_like(heldout[hidden])}
        with torch.inference_mode():
            assert gains["without"][name] == pytest.approx(target_ndcg(bundle.model, unknown).mean(), abs=1e-3)
            assert gains["NDCG@10"] == pytest.approx(target_ndcg(bundle.model, heldout).mean(), abs=1e-3)


def test_a_file_of_histories_and_the_server_take_the_device(made, tmp_path):
    recommender = Recommender.load(made / "model", corpus=made / "corpus")
    history = recommender.items.ids[:3]
    pd.DataFrame({"history": [history] * 2, "context": [{"device": "tablet"}, {"device": None}]}).to_parquet(
        tmp_path / "histories.parquet"
    )
    paths = {"checkpoint": str(made / "model"), "corpus": str(made / "corpus")}
    files = {"histories": str(tmp_path / "histories.parquet"), "output": str(tmp_path / "lists")}
    result = run_recommend(RecommendConfig(**paths, **files, k=3))
    lists = pd.read_parquet(next(result.output.glob("*.parquet")))
    assert [dict(context) for context in lists["context"]] == [{"device": "tablet"}, {"device": "unknown"}]
    service = fake_service(tmp_path)
    service.shelf._load = lambda sources: recommender
    service.shelf.bring(service.reloader.sources)
    with TestClient(create_app(service)) as client:
        (shown,) = client.get("/v1/model").json()["context"]
        assert shown["name"] == "device" and set(shown["values"]) == DEVICES and not shown["from_times"]
        for context, given in (({"device": "phone"}, "phone"), ({"device": "watch"}, "unknown"), ({}, "unknown")):
            answer = client.post("/v1/recommend", json={"history": history, "context": context})
            assert answer.status_code == 200 and answer.json()["context"] == {"device": given}
        assert client.post("/v1/recommend", json={"history": history, "context": {"colour": "red"}}).status_code == 422


@pytest.mark.parametrize("all_positions", [True, False])
def test_a_sequential_model_reads_the_device(made, tmp_path, all_positions):
    shape = {"hidden_size": 16, "inner_size": 16, "num_layers": 1}
    settings = {"hyper": shape, "epochs": 1, "context": ["device", "gap"], "all_positions": all_positions}
    run_sequential(sequential_config(made / "corpus", tmp_path / "model", **settings))
    recommender = Recommender.load(tmp_path / "model" / "model", corpus=made / "corpus")
    assert [feature.name for feature in recommender.features] == ["device", "gap"]
    answer = recommender.recommend(recommender.items.ids[:2], k=2, context={"device": "phone", "gap": 60})
    assert answer.context == {"device": "phone", "gap": "up to 30 minutes"}


def test_init_writes_what_it_keeps(made):
    tables = {name: str(made / "city" / f"{name}.parquet") for name in ("items", "interactions")}
    for settings, kept in (({}, ["device"]), ({"context_columns": []}, [])):
        config = PrepareConfig(**tables, output="unused", targets=["purchase"], **settings)
        shape = shape_of(config)
        text = recipe_text(config, shape, "mine", 40)
        recipe = yaml.safe_load(text)["steps"]
        assert [feature for feature in recipe["catalogue"]["context"] if feature != "gap"] == kept
        assert ("; columns of the interactions that the item does not determine" in text) == bool(kept)
        assert recipe["corpus"].get("context_columns") == (None if kept else [])


def test_a_language_model_has_tokens_of_devices_and_an_export_names_them(made, tmp_path):
    settings = {"context": ["device"], "teacher": str(made / "model"), "all_positions": False, "epochs": 0.2}
    run_sft(sft_config(made, output=str(tmp_path / "language"), **settings))
    bundle = load_bundle(tmp_path / "language")
    (feature,) = bundle.wording.context
    tokens = [f"<context_device_{code}>" for code in (1, 2, 3)]
    assert bundle.wording.context_tokens == [tokens] and set(feature.values) == DEVICES
    paths = {"checkpoint": str(tmp_path / "language"), "corpus": str(made / "corpus")}
    output = run_export(ExportConfig(**paths, output=str(tmp_path / "export"))).output
    asked = json.loads((output / "prompts.json").read_text())
    assert asked["context"] == {"device": dict(zip(feature.values, tokens, strict=True))}
    given = [example["context"] for example in asked["examples"]]
    assert {} in given and {"device": feature.values[0]} in given
    result = run_eval(eval_config(made, checkpoint=str(tmp_path / "language"), output=str(tmp_path / "eval"), ks=[1]))
    assert read_manifest(result.output)["counts"]["rows_with_context"] > 0
