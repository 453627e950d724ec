"""SFT that dies and is started again: at any step, between any two writes, with torn checkpoints, with more epochs."""

from functools import partial

import pytest
from kill import random_points, stage_in_child
from test_training import make_inputs, same_weights, sft_config

from minionerec.training.sft import run_sft


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing cut off, with its number of steps and writes."""
    folder = tmp_path_factory.mktemp("whole")
    make_inputs(folder)
    return folder, stage_in_child(run_sft, folder, sft_config(folder))


def dies_and_goes_on(whole, tmp_path, count, seed):
    folder, totals = whole
    assert totals["step"] == 10
    for place, point in enumerate(random_points(totals, count, seed)):
        mine = tmp_path / str(place)
        config = sft_config(folder, output=str(mine / "sft"))
        run = partial(stage_in_child, run_sft, mine, config)
        run(point)
        assert not (mine / "sft").exists() or point.kind == "write"
        run()
        assert same_weights(mine / "sft", folder / "sft"), point


def test_killed_anywhere_it_ends_as_if_nothing_had_happened(whole, tmp_path):
    dies_and_goes_on(whole, tmp_path, 2, seed=1)


@pytest.mark.slow
def test_killed_at_twenty_places(whole, tmp_path):
    dies_and_goes_on(whole, tmp_path, 20, seed=2)
