"""Sequential recommenders from rows on disk: the same rows, and a run that dies goes on to the same weights."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.examples import from_files, in_files, keep_in_files
from support.kill import Point, stage_in_child
from support.training import sequential_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.training.sequential.train import TrainingExamples


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo shop, its sequences in several row groups."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.shards.GROUP", 100)
        run_prepare(PrepareConfig(source="demo", output=str(folder / "corpus")))
    return folder / "corpus"


def config_of(demo, output, **changes):
    settings = {"max_len": 8, "epochs": 2, "stop_after": 5}
    return sequential_config(demo, output, **{**settings, **changes})


@pytest.fixture
def large(monkeypatch):
    """Every corpus is too large for memory."""
    keep_in_files(monkeypatch)


@pytest.mark.parametrize(("max_len", "padding"), [(10, "right"), (4, "left")])
@pytest.mark.parametrize("all_positions", [False, True])
def test_examples_in_files_are_those_in_memory(demo, tmp_path, max_len, padding, all_positions):
    found = []
    for corpus in (Corpus.load(demo), in_files(demo), in_files(demo)):  # the last takes what was written
        examples = TrainingExamples.of(corpus, max_len, padding, all_positions=all_positions, folder=tmp_path)
        histories, targets, *_ = examples.batch(np.arange(len(examples)), torch.device("cpu"), False)
        found.append(sorted(zip(histories.tolist(), targets.tolist(), strict=True)))
    assert found[0] == found[1] == found[2]
    assert isinstance(examples.batch(np.array([7, 3]), torch.device("cpu"), False)[0], torch.Tensor)


@pytest.mark.parametrize("all_positions", [False, True])
def test_it_learns_as_from_memory(demo, tmp_path, monkeypatch, all_positions):
    reported = {"all_positions": all_positions, "epochs": 10, "learning_rate": 0.005}
    memory = run_sequential(config_of(demo, tmp_path / "memory", **reported))
    keep_in_files(monkeypatch)
    disk = run_sequential(config_of(demo, tmp_path / "disk", **reported))
    ours, theirs = (done.metrics["test"]["item"]["NDCG@10"][0] for done in (disk, memory))
    assert min(ours, theirs) > 0.02  # popularity has .0127
    assert not (tmp_path / "disk" / "model.partial").exists()
    assert [read_manifest(done.output / "model")["counts"]["epochs"] for done in (disk, memory)] == [10, 10]


@pytest.mark.parametrize("kind", ["step", pytest.param("write", marks=pytest.mark.slow)])
def test_killed_it_resumes_to_the_same_weights(demo, tmp_path, kind):
    config, mine = partial(config_of, demo), tmp_path / "cut"
    totals = stage_in_child(partial(from_files, run_sequential), tmp_path / "whole", config(tmp_path / "whole" / "out"))
    run = partial(stage_in_child, partial(from_files, run_sequential), mine, config(mine / "out"))
    run(Point(kind, totals["step"] - 2 if kind == "step" else 9))
    run()
    one, two = (
        load_file(Path(folder) / "out" / "model" / "model.safetensors") for folder in (mine, tmp_path / "whole")
    )
    assert all((one[name] == two[name]).all() for name in two)
    assert len(Predictions.load(tmp_path / "whole" / "out" / "predictions")) == Corpus.load(demo).sizes["test"]
    counts = read_manifest(tmp_path / "whole" / "out" / "model")["counts"]
    assert counts["train"] == Corpus.load(demo).sizes["train"]


def test_what_a_large_corpus_does_not_allow(demo, tmp_path, large):
    with pytest.raises(ConfigError, match="model caser has a vector for each user"):
        run_sequential(config_of(demo, tmp_path / "out", model="caser", hyper={}))
