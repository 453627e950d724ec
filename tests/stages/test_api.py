"""The Python interface: data frames in, the artefacts and figures of the stages out."""

import inspect
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.paths import ROOT

import minionerec
from minionerec.core.artefacts import fingerprint, read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.pipeline import prepare_data as prepare
from minionerec.pipeline.stages import STAGES

SMALL = {"hidden_size": 16, "layers": 1, "epochs": 1, "batch_size": 32, "device_batch_size": 32, "eval_examples": 20}


def frames():
    """A shop whose ids are numbers: customers go on to the next item, mostly."""
    rng = np.random.default_rng(0)
    items = pd.DataFrame({"item_id": range(100, 130), "title": [f"{n % 5} thing {n}" for n in range(30)]})
    rows = []
    for user in range(60):
        item = int(rng.integers(30))
        for day in range(6):
            rows.append((user, 100 + item, 86_400 * (10_000 + 7 * user + day)))
            item = (item + 1) % 30 if rng.random() < 0.8 else int(rng.integers(30))
    return items, pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    items, interactions = frames()
    corpus = minionerec.prepare_data(items=items, interactions=interactions, output=folder / "corpus")
    sids = minionerec.build_sids(corpus, output=folder / "sids", codebook_sizes=(4, 4, 4), dimensions=8)
    model = minionerec.train_catalogue(corpus, sids, output=folder / "catalogue", **SMALL)
    return folder, corpus, sids, model


def test_data_frames_become_measured_recommendations(shop):
    folder, corpus, sids, model = shop
    assert len(sids.table) == 30
    found = minionerec.evaluate(model, corpus, output=folder / "test", beams=20, ks=[1, 10], resamples=20)
    assert set(found.metrics["recommender"]) > {"popularity"}
    model_name = found.metrics["recommender"].iloc[0]
    assert model_name not in ("popularity", "transition counts")
    ours = found.metrics.query("recommender == @model_name and metric == 'NDCG@10' and reading == 'item'")
    assert len(ours) == 1 and (ours["low"] <= ours["mean"]).all() and (ours["mean"] <= ours["high"]).all()
    gains = np.where(found.examples["item_rank"].between(1, 10), 1 / np.log2(found.examples["item_rank"] + 1), 0.0)
    assert gains.mean() == pytest.approx(float(ours["mean"].iloc[0]), abs=1e-9)
    recommender = minionerec.Recommender.load(model.output)
    assert len(recommender.recommend([100, 101], k=5).items) == 5


def test_what_is_up_to_date_is_left_and_settings_are_those_of_the_stage(shop):
    folder, corpus, sids, _ = shop
    items, interactions = frames()
    again = minionerec.prepare_data(items=items, interactions=interactions, output=folder / "corpus")
    assert again.up_to_date and not corpus.up_to_date
    assert minionerec.train_catalogue(corpus, sids, output=folder / "catalogue", **SMALL).up_to_date
    reported = read_manifest(folder / "catalogue", "checkpoint")
    assert reported["stage"] == "train-catalogue"
    assert reported["config"]["hidden_size"] == 16
    interactions.loc[0, "item_id"] = 129
    assert not minionerec.prepare_data(items=items, interactions=interactions, output=folder / "corpus2").up_to_date


def test_a_call_that_is_refused_replaces_no_row_of_the_one_that_is_at_work(shop, tmp_path, monkeypatch):
    _, corpus, *_ = shop
    items, interactions = frames()
    others = interactions.assign(item_id=interactions["item_id"].to_numpy()[::-1])
    begun, go_on = threading.Event(), threading.Event()
    read = prepare.read_source

    def waiting(*given):
        begun.set()
        assert go_on.wait(60)
        return read(*given)

    monkeypatch.setattr(prepare, "read_source", waiting)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(minionerec.prepare_data, items=items, interactions=interactions, output=tmp_path / "corpus")
        assert begun.wait(60)
        with pytest.raises(ConfigError, match="corpus: another run is writing it"):
            minionerec.prepare_data(items=items, interactions=others, output=tmp_path / "corpus")
        go_on.set()
        assert fingerprint(first.result().output) == fingerprint(corpus.output)
    assert minionerec.prepare_data(items=items, interactions=interactions, output=tmp_path / "corpus").up_to_date


def test_mistakes_are_named(shop, tmp_path):
    _, corpus, sids, _ = shop
    with pytest.raises(ConfigError, match=r"train-catalogue\(\): unknown key 'hiden_size'.*hidden_size"):
        minionerec.train_catalogue(corpus, sids, output=tmp_path / "x", hiden_size=8)
    with pytest.raises(ConfigError, match="epochs is -1"):
        minionerec.sft(corpus, sids, output=tmp_path / "x", epochs=-1)
    items, interactions = frames()
    with pytest.raises(DataError, match="timestamp"):
        minionerec.prepare_data(items=items, interactions=interactions.drop(columns="timestamp"), output=tmp_path / "y")


class Foreign:
    """A data frame of another library: arrow's interface and nothing else."""

    def __init__(self, frame):
        self.table = pa.Table.from_pandas(frame, preserve_index=False)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "made",
    [
        Foreign,
        lambda frame: Foreign(frame).table,
        lambda frame: duckdb.from_arrow(Foreign(frame).table),
        lambda frame: frame.set_index(frame.columns[0]),
        lambda frame: frame.astype({frame.columns[0]: object}).assign(unread=[1j] * len(frame)),
        lambda frame: (
            frame.assign(unread=pd.Series([row if row % 2 else f"a{row}" for row in range(len(frame))], dtype=object))
            if "title" not in frame
            else frame
        ),
        lambda frame: pd.concat([frame.assign(unread=1), pd.DataFrame({"unread": [1] * len(frame)})], axis=1),
        lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
        lambda frame: frame.astype("category"),
    ],
)
def test_every_kind_of_data_frame_gives_the_same_corpus(shop, tmp_path, made):
    _, corpus, _, _ = shop
    items, interactions = map(made, frames())
    found = minionerec.prepare_data(items=items, interactions=interactions, output=tmp_path / "corpus")
    names = [path.relative_to(corpus.output) for path in corpus.output.rglob("*.parquet")]
    assert names and all((found.output / name).read_bytes() == (corpus.output / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": ["a", {"b": 1}] * 15}, "items, column 'title', row 2"),
        ({"item_id": [["a"]] * 30}, "row 1, column 'item_id'.* is no id"),
        ({"item_id": ["a", "\ud800"] * 15}, "items, column 'item_id', row 2"),
    ],
)
def test_a_column_that_is_read_and_holds_no_texts_is_named(tmp_path, change, message):
    items, interactions = frames()
    items = items.assign(**{name: pd.Series(cells, dtype=object) for name, cells in change.items()})
    with pytest.raises(DataError, match=message):
        minionerec.prepare_data(items=items, interactions=interactions, output=tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        ("prepare_data", "prepare-data"),
        ("build_sids", "build-sids"),
        ("train_catalogue", "train-catalogue"),
        ("sft", "sft"),
        ("grpo", "grpo"),
        ("evaluate", "eval-beam"),
    ],
)
def test_signature_and_help_name_every_setting(function, stage):
    names = {each.name for each in fields(STAGES[stage].config_class())}
    signature = inspect.signature(getattr(minionerec, function))
    assert names <= set(signature.parameters)
    assert all(f"{name}: " in getattr(minionerec, function).__doc__ for name in names)


def test_importing_the_package_alone_is_light():
    code = "import sys, minionerec; print(sorted({'torch', 'pandas', 'numpy', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_notebooks_run(tmp_path, monkeypatch, capsys):
    """Both, one after the other in one folder, as their texts say."""
    monkeypatch.chdir(tmp_path)
    for name in ("own_data", "reading_results"):
        names: dict = {}
        for cell in json.loads((ROOT / "docs/notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), names)
    assert re.search(r"[+-]\.?\d\.\d{4} \[", capsys.readouterr().out)
