"""SFT in several processes on CPUs: DDP and ZeRO-2 make the steps that one process makes."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from support.paths import ROOT
from support.processes import stage_in_processes
from support.training import (
    Killed,
    in_parts,
    kill_after,
    log_of,
    make_inputs,
    mixed_sids,
    nearly_same_weights,
    sft_config,
)

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.records import Batch, read_run_record
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.sft import run_sft
from minionerec.training.rows import tokenise_examples


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process makes of 43 rows, in steps of 12 and a last one of 7, in micro-batches of 2.

    SIDs differ in length, so that examples count differently in every mean over tokens.
    """
    folder = tmp_path_factory.mktemp("one")
    make_inputs(folder, users=43)
    changes = {"batch_size": 12, "device_batch_size": 2, "evals_per_epoch": 2, "eval_examples": 2}
    config = sft_config(folder, sids=mixed_sids(folder), dropout=0.0, select_by="loss", **changes)
    run_sft(config)
    return config


def assert_same_weights(config, one):
    """Up to rounding, which several steps of Adam enlarge."""
    assert nearly_same_weights(config.output, one.output, one.learning_rate)


def assert_same_run(config, one):
    logs = []
    for folder in (config.output, one.output):
        rows = log_of(folder)
        names = ("loss", "grad_norm", "eval_loss", "eval_ndcg@10")
        logs.append([row[name] for row in rows for name in names if name in row])
    assert len(logs[0]) == 16
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


def interrupted(config):
    """The stage, stopped in the middle of the second epoch and resumed."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 6)
        run_sft(config)
    run_sft(config)


def test_validation_is_the_mean_over_all_tokens(one):
    """Of one example after another, by forward passes of the model itself."""
    bundle, corpus = load_bundle(one.output), Corpus.load(one.corpus)
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    rows, _ = tokenise_examples(bundle.tokenizer, builder.build("next_sid", "valid"), one.max_prompt_length)
    losses = []
    for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True):
        with torch.no_grad():
            log_probs = bundle.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        losses += [-log_probs[at - 1, label].item() for at, label in enumerate(labels) if label >= 0]
    assert len({sum(label >= 0 for label in labels) for labels in rows["labels"]}) > 1
    best = read_manifest(one.output)["counts"]["best"]["eval_loss"]
    assert best == pytest.approx(np.mean(losses), rel=1e-6)


def test_parts_that_fit_the_memory_equal_micro_batches(one, tmp_path, limits, caplog):
    config = replace(one, output=str(tmp_path / "sft"), device_batch_size=0)
    with caplog.at_level("INFO", "minionerec"):
        in_parts(run_sft, config)
    assert "A step is 12 rows = 12 a device, in parts that fit its memory, x 1 device(s) x 1" in caplog.text
    assert "At most 24 tokens are computed at a time." in caplog.text
    assert_same_run(config, one)
    assert read_run_record(tmp_path / "sft").batch == Batch(12, 1, 12, tokens=24)


@pytest.mark.parametrize(
    ("run", "size", "world"),
    [
        pytest.param(interrupted, 1, 2, id="DDP"),
        pytest.param(run_sft, 4, 3, id="DDP of three"),  # of the last step one process has nothing
        pytest.param(with_zero_2, 1, 2, id="ZeRO-2"),
        pytest.param(partial(in_parts, run_sft), 0, 2, id="DDP in parts"),
        pytest.param(partial(in_parts, with_zero_2), 0, 2, id="ZeRO-2 in parts"),  # six rows and one in the last step
    ],
)
def test_several_processes_equal_one(one, tmp_path, run, size, world):
    config = replace(one, output=str(tmp_path / "sft"), device_batch_size=size)
    stage_in_processes(run, config, world)
    sharded = (tmp_path / "sft.finished" / "checkpoint-8" / "global_step8").is_dir()
    assert sharded == (with_zero_2 in (run, *getattr(run, "args", ())))  # DeepSpeed was at work
    assert_same_run(config, one)
    records = [read_run_record(Path(folder.output)) for folder in (one, config)]
    batch = Batch(size, 12 // size // world, 12) if size else Batch(6, 1, 12, tokens=24)
    assert [(record.processes, record.batch) for record in records] == [(1, Batch(2, 6, 12)), (world, batch)]
    assert all(record.seconds[name] > 0 for record in records for name in ("train", "validate", "write"))


@pytest.mark.parametrize("launches", [(1, 2), (2, 1), pytest.param((2, 3), marks=pytest.mark.slow)], ids=str)
def test_another_number_of_processes_goes_on_with_the_same_steps(one, tmp_path, launches):
    """Where steps draw no random numbers; the second launch begins in the middle of an epoch."""
    whole = replace(one, schedule="constant", output=str(tmp_path / "whole"))
    run_sft(whole)
    for processes, epochs in zip(launches, (1.4, 2), strict=True):
        config = replace(whole, output=str(tmp_path / "sft"), epochs=epochs)
        stage_in_processes(run_sft, config, processes)
    record = read_run_record(tmp_path / "sft")
    assert (record.parts, record.resumed_from, record.processes) == (2, 6, launches[1])
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
