"""SFT in two processes on CPUs: DDP and ZeRO-2 make the steps that one process makes."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from support.launched import by_zero_2
from support.paths import ROOT
from support.processes import stage_in_processes
from support.training import in_parts, log_of, make_inputs, nearly_same_weights, sft_config

from minionerec.core.errors import ConfigError
from minionerec.core.records import Batch, read_run_record
from minionerec.training.sft import run_sft


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process makes of 40 rows, in steps of 8, in micro-batches of 2."""
    folder = tmp_path_factory.mktemp("one")
    make_inputs(folder)
    config = sft_config(folder, device_batch_size=2, dropout=0.0, select_by="loss")
    run_sft(config)
    return config


def assert_same_weights(config, one):
    """Up to rounding, which several steps of Adam enlarge."""
    assert nearly_same_weights(config.output, one.output, one.learning_rate)


def assert_same_run(config, one):
    logs = []
    for folder in (config.output, one.output):
        rows = log_of(folder)
        logs.append([row[name] for row in rows for name in ("loss", "grad_norm", "eval_loss") if name in row])
    assert len(logs[0]) == 6
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)
    assert_same_weights(config, one)


def with_zero_2(config):
    """The stage as a process of `accelerate launch`, whose file says so; the slow test below launches it itself."""
    reported = yaml.safe_load((ROOT / "ds_configs/zero2_cpu.yaml").read_text())
    os.environ.update(
        ACCELERATE_USE_CPU=str(reported["use_cpu"]).lower(),
        ACCELERATE_USE_DEEPSPEED=str(reported["distributed_type"] == "DEEPSPEED").lower(),
        ACCELERATE_DEEPSPEED_CONFIG_FILE=str(ROOT / reported["deepspeed_config"]["deepspeed_config_file"]),
    )
    run_sft(config)


def test_parts_that_fit_the_memory_equal_micro_batches(one, tmp_path, limits, caplog):
    config = replace(one, output=str(tmp_path / "sft"), device_batch_size=0)
    with caplog.at_level("INFO", "minionerec"):
        in_parts(run_sft, config)
    assert "A step is 8 rows = 8 a device, in parts that fit its memory, x 1 device(s) x 1" in caplog.text
    assert "for micro-batches of 24 tokens" in caplog.text
    assert_same_run(config, one)
    assert read_run_record(tmp_path / "sft").batch == Batch(8, 1, 8, tokens=24)


@pytest.mark.parametrize(
    ("run", "size"),
    [(run_sft, 2), (with_zero_2, 2), (partial(in_parts, run_sft), 0), (partial(in_parts, with_zero_2), 0)],
    ids=["DDP", "ZeRO-2", "DDP in parts", "ZeRO-2 in parts"],
)
def test_two_processes_equal_one(one, tmp_path, run, size):
    config = replace(one, output=str(tmp_path / "sft"), device_batch_size=size)
    stage_in_processes(run, config, 2)
    sharded = (tmp_path / "sft.finished" / "checkpoint-10" / "global_step10").is_dir()
    assert sharded == (with_zero_2 in (run, *getattr(run, "args", ())))  # DeepSpeed was at work
    assert_same_run(config, one)
    records = [read_run_record(Path(folder.output)) for folder in (one, config)]
    batch = Batch(2, 2, 8) if size else Batch(4, 1, 8, tokens=24)
    assert [(record.processes, record.batch) for record in records] == [(1, Batch(2, 4, 8)), (2, batch)]
    assert all(record.seconds[name] > 0 for record in records for name in ("train", "validate", "write"))


@pytest.mark.parametrize("launches", [(1, 2), (2, 1), pytest.param((2, 4), marks=pytest.mark.slow)], ids=str)
def test_another_number_of_processes_goes_on_with_the_same_steps(one, tmp_path, launches):
    """Where steps draw no random numbers; the second launch begins in the middle of an epoch."""
    whole = replace(one, schedule="constant", output=str(tmp_path / "whole"))
    run_sft(whole)
    for processes, epochs in zip(launches, (1.4, 2), strict=True):
        config = replace(whole, output=str(tmp_path / "sft"), epochs=epochs)
        stage_in_processes(run_sft, config, processes)
    record = read_run_record(tmp_path / "sft")
    assert (record.parts, record.resumed_from, record.processes) == (2, 7, launches[1])
    assert_same_weights(config, whole)


PLAIN = "a launch without ZeRO or FSDP on cpu"


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (run_sft, with_zero_2, f"{PLAIN}, and cannot be continued by a launch with ZeRO-2 on cpu"),
        (with_zero_2, run_sft, "2 processes with ZeRO-2 on cpu, and cannot be continued by 1 process without ZeRO"),
    ],
    ids=["to ZeRO-2", "from ZeRO-2"],
)
def test_what_another_sharding_has_saved_is_refused(one, tmp_path, monkeypatch, first, then, words):
    config = replace(one, output=str(tmp_path / "sft"), epochs=1)
    stage_in_processes(first, config, 2)
    kept = sorted(path.name for path in (tmp_path / "sft.finished").iterdir())
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(ConfigError, match=f"sft.finished: was written by {words}"):
        then(replace(config, epochs=2))
    assert sorted(path.name for path in (tmp_path / "sft.finished").iterdir()) == kept


@pytest.mark.slow
def test_zero_2_resumes_from_a_torn_checkpoint(one, tmp_path):
    constant = replace(one, schedule="constant", epochs=3)
    whole, config = (replace(constant, output=str(tmp_path / name)) for name in ("whole", "sft"))
    run_sft(whole)
    by_zero_2("scripts/sft.py", replace(config, epochs=2))
    (state,) = (tmp_path / "sft.finished" / "checkpoint-10" / "global_step10").glob("*rank_1*optim_states.pt")
    state.write_bytes(state.read_bytes()[:100])
    reported = by_zero_2("scripts/sft.py", config)
    assert f"checkpoint-10 is incomplete ({state.name} is damaged)" in reported
    assert "A step is 8 rows = 2 a device x 2 device(s) x 2" in reported
    assert_same_weights(config, whole)
