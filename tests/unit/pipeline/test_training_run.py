"""How examples become optimiser steps, and locks of killed builds: told from those at which somebody is at work."""

import logging
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from safetensors.torch import load_file, save_file
from support.architectures import small_config, small_model
from support.training import make_inputs, sft_config
from transformers import TrainerControl, TrainerState, TrainingArguments

from minionerec.core import processes
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.pipeline.config.training import CatalogueTrainConfig, GrpoConfig, SftConfig
from minionerec.pipeline.training_run import TrainingRun, batch_of, training_stage
from minionerec.training.examples import choose_examples
from minionerec.training.sampling import DealtBatches, shuffled_examples
from minionerec.training.trainer import LogLines, load_weights


def test_weights_of_tasks():
    assert len(choose_examples(10, 0.3, 0)) == 3
    assert np.bincount(choose_examples(10, 2.5, 0)).min() == 2
    assert np.array_equal(choose_examples(50, 0.5, 1), choose_examples(50, 0.5, 1))


@pytest.mark.parametrize(
    ("count", "processes", "size"), [(24, 1, 5), (40, 2, 4), (35, 2, 4), (33, 2, 4), (3, 2, 4), (25, 3, 2), (1, 3, 2)]
)
def test_every_example_is_dealt_once_and_every_process_has_as_many_batches(count, processes, size):
    order = shuffled_examples(count, seed=0)
    batches = DealtBatches(order, size, processes)
    shares = [list(BatchSamplerShard(batches, processes, process)) for process in range(processes)]
    assert {len(share) for share in shares} == {len(BatchSamplerShard(batches, processes, 0))}
    assert [row for batches in zip(*shares, strict=True) for batch in batches for row in batch] == list(order)
    assert sorted(order) == list(range(count))


def test_the_plan_is_for_all_processes_of_the_launch_and_is_reported(monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "4")
    config = sft_config(Path(), evals_per_epoch=3, epochs=1.5, batch_size=64, device_batch_size=8)
    with caplog.at_level("INFO", "minionerec"):
        plan = TrainingRun(config, work=None).plan_steps(1000, "rows")
    assert (plan.accumulation, plan.steps_per_epoch, plan.eval_steps) == (2, 16, 6)
    assert "A step is 64 rows = 8 a device x 4 device(s) x 2; 16 steps an epoch, 1.5 epochs" in caplog.text


NEEDED = {"corpus": "c", "output": "o", "sids": "s", "checkpoint": "m"}


@pytest.mark.parametrize("kind", [SftConfig, GrpoConfig, CatalogueTrainConfig])
@pytest.mark.parametrize("at_a_time", [0, 4])
def test_batches_of_every_trainer_divide_by_the_processes(monkeypatch, kind, at_a_time):
    total, share = kind.batch
    needed = {of.name: NEEDED[of.name] for of in fields(kind) if of.name in NEEDED}
    config = kind(**needed, **{total: 16, share: at_a_time})
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert batch_of(config) == ((4, 2) if at_a_time else (8, 1))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=rf"^{total} and {share}: 16 is no multiple of {at_a_time or 1} x 3 device"):
        batch_of(config)


def test_every_process_refuses_a_batch_that_does_not_divide_before_anything_is_written(tmp_path, monkeypatch):
    make_inputs(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(ConfigError, match="batch_size and device_batch_size: 8 is no multiple of 8 x 3 device"):
            training_stage(lambda *_: pytest.fail("it began"))(sft_config(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "sids"]


DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true"}


@pytest.mark.parametrize(
    ("environment", "mixed_bf16", "words"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, False, "requests mixed precision 'bf16', but mixed_bf16 is false"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, False, "requests mixed precision 'fp16', but mixed_bf16 is false"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, True, "requests mixed precision 'fp16', but mixed_bf16 is true"),
        ({**DEEPSPEED, "without": "deepspeed"}, False, "DeepSpeed, which is not installed. Install it: pip install"),
        (DEEPSPEED, True, "bfloat16 on GPUs alone. Give --mixed_bf16 false --dtype float32"),
    ],
)
def test_a_launch_that_does_not_fit_the_settings_is_refused(tmp_path, monkeypatch, environment, mixed_bf16, words):
    make_inputs(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "find_spec", lambda name: None if name == environment.get("without") else name)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=re.escape(words)):
        training_stage(lambda *_: pytest.fail("it began"))(sft_config(tmp_path, mixed_bf16=mixed_bf16))
    assert not (tmp_path / "sft.partial").exists()


def test_steps_are_logged_with_the_time_left_where_no_bar_shows_it(caplog):
    caplog.set_level(logging.INFO, logger="minionerec")
    lines, state = LogLines(every=0), TrainerState(max_steps=10)
    for quiet in (True, False):
        arguments = TrainingArguments(disable_tqdm=quiet)
        state.global_step = 2
        lines.on_train_begin(arguments, state, TrainerControl())
        state.global_step = 4
        lines.on_step_end(arguments, state, TrainerControl())
    assert [record.getMessage() for record in caplog.records] == ["step 4/10  00:00 elapsed, 00:00 left"]


def test_weights_are_read_by_the_names_that_their_files_have(tmp_path):
    saved, model = (small_model(small_config("gpt_neox"), seed) for seed in (1, 2))
    saved.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() != saved.state_dict().keys()
    load_weights(model, str(tmp_path))
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in model.state_dict().items())
    for name, words in (("embed_out.weight", "missing"), ("more.weight", "belong to no part")):
        spoilt = dict(written)
        spoilt.pop(name, None) if name in written else spoilt.update({name: torch.zeros(2)})
        save_file(spoilt, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ArtefactError, match=f"1 tensors .*{words}.* Delete the folder"):
            load_weights(model, str(tmp_path))
