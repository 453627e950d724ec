"""SFT that dies and is started again: at any step, between any two writes, with torn checkpoints, with more epochs."""

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
from support.kill import Point, stage_in_child
from support.training import log_of, make_inputs, same_weights, sft_config
from torch.optim.optimizer import register_optimizer_step_post_hook

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.records import read_run_record
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.training_run import newest_whole_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing cut off, with its number of steps and writes."""
    folder = tmp_path_factory.mktemp("whole")
    make_inputs(folder)
    return folder, stage_in_child(run_sft, folder, often(folder))


def often(folder, **changes):
    """Checkpoints after steps 3, 6, 9 and 10 of two epochs of 5: most of them inside an epoch."""
    return sft_config(folder, evals_per_epoch=2, **changes)


def test_killed_it_ends_as_if_nothing_had_happened(whole, tmp_path):
    folder, totals = whole
    assert totals["step"] == 10
    run = partial(stage_in_child, run_sft, tmp_path, often(folder, output=str(tmp_path / "sft")))
    run(Point("step", 8))
    assert not (tmp_path / "sft").exists()
    run()
    assert same_weights(tmp_path / "sft", folder / "sft") and log_of(tmp_path / "sft") == log_of(folder / "sft")
    record = read_run_record(tmp_path / "sft")
    assert record.parts == 2 and record.resumed_from == 6
    assert sum(record.seconds[name] for name in ("train", "validate", "write")) < record.seconds["all"]


def test_more_epochs_go_on_from_a_finished_run(tmp_path):
    make_inputs(tmp_path)
    # Of the first two validations the first is the better one, and the run goes on from the second all the same.
    constant = partial(sft_config, tmp_path, schedule="constant", learning_rate=0.2)
    long = run_sft(constant(output=str(tmp_path / "long"), epochs=3))
    assert run_sft(constant(epochs=2)).counts["best_step"] == 5
    assert (tmp_path / "sft.finished" / "checkpoint-10").is_dir()
    steps = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    result = run_sft(constant(epochs=3))
    hook.remove()
    assert len(steps) == 5
    assert result.counts["steps"] == long.counts["steps"] == 15
    extended, at_once = (read_manifest(tmp_path / name) for name in ("sft", "long"))
    assert extended["files"] == at_once["files"] and extended["counts"] == at_once["counts"]
    other = run_sft(constant(epochs=1, learning_rate=1e-3))  # another run, which begins at its beginning
    assert other.counts["steps"] == 5


@pytest.mark.parametrize("rate", [{"schedule": "cosine"}, {"schedule": "constant", "warmup": 0.1}], ids=str)
def test_a_run_that_was_extended_under_a_schedule_says_so(tmp_path, caplog, rate):
    make_inputs(tmp_path)
    run = partial(sft_config, tmp_path, **rate)
    long = run_sft(run(output=str(tmp_path / "long"), epochs=3))
    assert "extended" not in long.counts
    for epochs in (1, 2, 3):
        counts = run_sft(run(epochs=epochs)).counts
    assert counts["extended"] == [{"epochs": 1, "steps": 5}, {"epochs": 2, "steps": 10}]
    assert read_manifest(tmp_path / "sft")["counts"]["extended"] == counts["extended"]
    assert not same_weights(tmp_path / "sft", tmp_path / "long")
    assert "first 5 steps were made for 1 epochs: the result is not that of 3 epochs at once" in caplog.text


@pytest.fixture(scope="module")
def interrupted(whole, tmp_path_factory):
    """The work folder of a run that died after its second checkpoint, with both."""
    folder, _ = whole
    mine = tmp_path_factory.mktemp("cut")
    config = sft_config(folder, output=str(mine / "sft"), select_by="loss", epochs=4, device_batch_size=4)
    stage_in_child(run_sft, mine, config, Point("step", 11))
    assert {path.name for path in (mine / "sft.partial").glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-10"}
    return mine / "sft.partial"


OTHERS = [
    ({"WORLD_SIZE": "2"}, "2 processes without ZeRO or FSDP on cpu"),
    ({"ACCELERATE_USE_DEEPSPEED": "true"}, "1 process with ZeRO-2 on cpu"),
]


@pytest.mark.parametrize(("launch", "message"), OTHERS, ids=["processes", "ZeRO-2"])
@pytest.mark.parametrize("state", ["partial", "finished"])
def test_another_launch_is_refused_before_anything_starts(
    whole, interrupted, tmp_path, monkeypatch, launch, message, state
):
    """Its steps draw dropout, so they depend on the number of processes."""
    shutil.copytree(interrupted, tmp_path / f"sft.{state}")
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    config = sft_config(whole[0], output=str(tmp_path / "sft"), select_by="loss", epochs=4, device_batch_size=4)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"sft.{state}: was written by 1 process without .* by {message}"):
        run_sft(replace(config, epochs=5))
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    assert read_json(tmp_path / f"sft.{state}" / "launch.json") == {"processes": 1, "sharding": "", "device": "cpu"}


def half(content):
    return content[: len(content) // 2]


WEIGHTS, STATE = "model.safetensors", "trainer_state.json"
DAMAGES = [
    (WEIGHTS, None, "the weights are missing"),
    *((STATE, to, "trainer_state.json is missing or damaged") for to in (half, b"\xff{}", b"[]", b"{}", None)),
    ("optimizer.pt", None, "the optimiser's state is missing"),
    ("rng_state.pth", None, "rng_state.pth is missing"),
]
"""File of a checkpoint, its new content (none: it is deleted), and what is reported."""


def test_a_torn_checkpoint_is_left_out(interrupted, tmp_path, caplog):
    copy = tmp_path / "sft.partial"
    shutil.copytree(interrupted, copy)
    shutil.copytree(copy / "checkpoint-10", copy / "checkpoint-12")
    for name, to, words in DAMAGES:
        file = copy / "checkpoint-12" / name
        content = file.read_bytes()
        assert newest_whole_checkpoint(copy) == str(copy / "checkpoint-12")
        if to is None:
            file.unlink()
        else:
            file.write_bytes(to if isinstance(to, bytes) else to(content))
        caplog.clear()
        with caplog.at_level("INFO", "minionerec"):
            assert newest_whole_checkpoint(copy) == str(copy / "checkpoint-10"), (name, words)
        assert f"checkpoint-12 is incomplete ({words}) and is ignored" in caplog.text
        file.write_bytes(content)


def test_a_checkpoint_whose_best_is_gone_is_left_out(interrupted, tmp_path, caplog):
    copy = tmp_path / "sft.partial"
    shutil.copytree(interrupted, copy)
    state = json.loads((copy / "checkpoint-10" / "trainer_state.json").read_text())
    state["best_model_checkpoint"] = "/elsewhere/sft.partial/checkpoint-5"
    (copy / "checkpoint-10" / "trainer_state.json").write_text(json.dumps(state))
    assert newest_whole_checkpoint(copy) == str(copy / "checkpoint-10")
    shutil.rmtree(copy / "checkpoint-5")
    with caplog.at_level("INFO", "minionerec"):
        assert newest_whole_checkpoint(copy) is None
    assert "checkpoint-10 is incomplete (its best, checkpoint-5, is missing)" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 1e-12, "epochs": 8, "patience": 2},
        {"epochs": 1.5, "evals_per_epoch": 2},
        {"epochs": 1, "splits": ["train", "valid", "test"]},
    ],
)
def test_a_run_that_has_ended_makes_no_more_steps(tmp_path, changes):
    """Whether it stopped early, in mid-epoch or unmeasured, died as its result was written, and was moved then."""
    make_inputs(tmp_path)
    config = sft_config(tmp_path, output=str(tmp_path / "cut" / "sft"), **changes)
    totals = stage_in_child(run_sft, tmp_path / "cut", config)
    (tmp_path / "cut").rename(tmp_path / "whole")
    stage_in_child(run_sft, tmp_path / "cut", config, Point("write", totals["write"] - 20))
    assert (tmp_path / "cut" / "sft.partial").is_dir()
    moved = (tmp_path / "cut").rename(tmp_path / "moved")
    assert stage_in_child(run_sft, moved, replace(config, output=str(moved / "sft")))["step"] == 0
    assert same_weights(moved / "sft", tmp_path / "whole" / "sft")
    assert log_of(moved / "sft") == log_of(tmp_path / "whole" / "sft")
