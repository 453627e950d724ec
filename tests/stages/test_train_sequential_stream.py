"""Sequential recommenders from several blocks: the examples of one, and a run that dies goes on to the same weights."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.examples import from_blocks, several_files
from support.kill import Point, stage_in_child
from support.training import sequential_config

from minionerec.core.artefacts import read_manifest
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS
from minionerec.metrics.predictions import Predictions
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.training.sequential.inputs import make_inputs
from minionerec.training.sequential.train import TrainingExamples

BLOCK = 500
"""Interactions of a file, which is a block."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The first months of the demo shop in several files."""
    folder = tmp_path_factory.mktemp("demo")
    with several_files(BLOCK):
        run_prepare(PrepareConfig(source="demo", end="2024-05", output=str(folder / "corpus")))
    return folder / "corpus"


def config_of(demo, output, **changes):
    settings = {"max_len": 8, "epochs": 2, "stop_after": 5}
    return sequential_config(demo, output, **{**settings, **changes})


@pytest.mark.parametrize(("max_len", "padding"), [(10, "right"), (4, "left")])
@pytest.mark.parametrize("all_positions", [False, True])
def test_examples_of_several_blocks_are_those_of_one(demo, tmp_path, max_len, padding, all_positions):
    found = []
    for block, folder in ((0, None), (BLOCK, tmp_path), (BLOCK, tmp_path)):  # the last takes what was written
        corpus = Corpus.load(demo, block)
        assert (corpus.n_blocks > 1) == (block > 0)
        examples = TrainingExamples.of(corpus, max_len, padding, all_positions=all_positions, folder=folder)
        histories, targets, *_ = examples.batch(np.arange(len(examples)), torch.device("cpu"))
        found.append(sorted(zip(histories.tolist(), targets.tolist(), strict=True)))
    assert found[0] == found[1] == found[2]
    assert isinstance(examples.batch(np.array([7, 3]), torch.device("cpu"))[0], torch.Tensor)


@pytest.mark.parametrize("kind", ["step", pytest.param("write", marks=pytest.mark.slow)])
def test_killed_it_resumes_to_the_same_weights(demo, tmp_path, kind):
    config, mine = partial(config_of, demo), tmp_path / "cut"
    stage = partial(from_blocks, run_sequential)
    totals = stage_in_child(stage, tmp_path / "whole", config(tmp_path / "whole" / "out"))
    run = partial(stage_in_child, stage, mine, config(mine / "out"))
    run(Point(kind, totals["step"] - 2 if kind == "step" else 9))
    run()
    one, two = (
        load_file(Path(folder) / "out" / "model" / "model.safetensors") for folder in (mine, tmp_path / "whole")
    )
    assert all((one[name] == two[name]).all() for name in two)
    assert len(Predictions.load(tmp_path / "whole" / "out" / "predictions")) == Corpus.load(demo).sizes["test"]
    counts = read_manifest(tmp_path / "whole" / "out" / "model")["counts"]
    assert counts["train"] == Corpus.load(demo).sizes["train"]


def test_users_of_several_blocks_are_those_of_one(demo, tmp_path):
    one, several = (make_inputs("caser", {}, Corpus.load(demo, block), PROTOCOLS["rows"]) for block in (0, BLOCK))
    assert several.corpus.n_blocks > 1
    assert several.counts == one.counts and several.data.num_users == one.data.num_users == len(one.users) + 1
    assert set(several.users) == set(one.users) and sorted(several.users.values()) == list(range(len(one.users)))
    users = {number: user for user, number in several.users.items()}
    rows = [rows for _, rows in several.corpus.batches("train")]
    assert [users[number] for number in several.training_users().tolist()] == [u for part in rows for u in part.users]
