"""The stage dpo: what it makes better, resume, several processes, and what is refused."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.devices import catalogue, shop_of
from support.kill import random_points, stage_in_child
from support.processes import stage_in_processes
from support.training import (
    TRAINED,
    Killed,
    builder_of,
    check_same_run,
    dpo_config,
    in_parts,
    kill_after,
    log_of,
    make_inputs,
    mixed_sids,
    same_weights,
    sft_config,
)
from trl.trainer.utils import add_fused_lm_head

from minionerec.contrib.generative_baselines import dpo
from minionerec.contrib.generative_baselines.dpo import SidDpoTrainer, completion_sums, run_dpo
from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding.shards import decode_in_shards
from minionerec.pipeline.sft import run_sft
from minionerec.training.grpo.prompts import grpo_examples


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A corpus whose SIDs have two or three codes, and a checkpoint that has learned a little of it."""
    folder = tmp_path_factory.mktemp("trained")
    make_inputs(folder, users=32)
    run_sft(sft_config(folder, **{**TRAINED, "sids": mixed_sids(folder), "epochs": 4, "evals_per_epoch": 0.25}))
    return folder


@pytest.fixture(scope="module")
def sharpened(trained):
    """A whole run, and the negatives that it saw: epoch, row, SID numbers."""
    seen = set()
    completions = SidDpoTrainer.completions

    def spy(self, positions, negatives):
        epoch = self.state.global_step // self.steps_per_epoch
        seen.update((epoch, position, tuple(row)) for position, row in zip(positions, negatives.tolist(), strict=True))
        return completions(self, positions, negatives)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SidDpoTrainer, "completions", spy)
        run_dpo(dpo_config(trained))
    return trained, seen


def test_a_run_is_never_below_its_start_and_sees_every_row_with_negatives_of_its_own(sharpened):
    folder, seen = sharpened
    log, counts = log_of(folder / "dpo"), read_manifest(folder / "dpo", "checkpoint")["counts"]
    steps = [row for row in log if "loss" in row]
    assert log[0]["step"] == 0 and counts["best"]["eval_ndcg@10"] >= log[0]["eval_ndcg@10"]
    assert counts["rows"] == {"next_sid": 24} and counts["steps"] == len(steps) == 6
    assert run_dpo(dpo_config(folder)).up_to_date
    # Each of 24 rows once an epoch, with other negatives in the second.
    assert len(seen) == 48 and {(epoch, path) for epoch, path, _ in seen} == {(e, p) for e in (0, 1) for p in range(24)}
    assert len({(path, row) for _, path, row in seen}) > 40


def test_hard_negatives_are_the_best_of_the_start_but_the_target(trained, tmp_path):
    config = dpo_config(trained, output=str(tmp_path / "hard"), negatives_from="beam", negatives=23)
    run_dpo(config)
    steps = [row for row in log_of(tmp_path / "hard") if "loss" in row]
    assert steps[0]["loss"] == pytest.approx(math.log(24), abs=1e-4)
    assert steps[0]["accuracy"] == steps[0]["margin"] == 0
    assert steps[-1]["loss"] < steps[0]["loss"] and steps[-1]["kl"] > 0
    assert steps[-1]["log_ratio/target"] > steps[-1]["log_ratio/negatives"]
    bundle, builder, _ = builder_of(trained)
    about = config.tasks, config.prompts_per_step, config.seed, bundle.max_prompt_length
    rows = grpo_examples(builder, bundle.tokenizer, *about, tmp_path / "rows").rows
    prompts, kept = [row["prompt"] for row in rows], tmp_path / "hard.finished" / dpo.NEGATIVES
    found, _ = decode_in_shards(kept, prompts, 24, None, None, torch.device("cpu"))  # nothing is searched again
    negatives = dpo.without_targets(found, np.array([row["target"] for row in rows]))
    tokens = dict(zip(bundle.table.sid_numbers.tolist(), bundle.table.token_tuples, strict=True))
    every = [bundle.tokenizer.convert_tokens_to_ids(list(tokens[number])) for number in range(len(tokens))]
    add_fused_lm_head(bundle.model)
    with torch.no_grad():
        totals = completion_sums(bundle.model, bundle.model, prompts, [every] * len(rows))
    for row, order, found in zip(rows, totals.argsort(1, descending=True).tolist(), negatives.tolist(), strict=True):
        assert [sid for sid in order if sid != row["target"]] == found


def test_a_run_that_only_hurts_gives_back_the_start(trained, tmp_path):
    changes = {"learning_rate": 0.3, "max_grad_norm": 100.0, "epochs": 1, "evals_per_epoch": 1}
    result = run_dpo(dpo_config(trained, output=str(tmp_path / "worse"), **changes))
    assert result.counts["best_step"] == 0
    assert same_weights(tmp_path / "worse", trained / "sft")


def test_a_run_interrupted_ends_as_if_nothing_had_happened(sharpened, tmp_path, monkeypatch):
    folder, _ = sharpened
    config = dpo_config(folder, output=str(tmp_path / "cut"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        run_dpo(config)
    run_dpo(config)
    assert same_weights(tmp_path / "cut", folder / "dpo")
    for one, other in zip(log_of(tmp_path / "cut"), log_of(folder / "dpo"), strict=True):
        assert one.keys() == other.keys()
        assert one == pytest.approx(other)


@pytest.mark.slow
def test_killed_at_ten_points_with_negatives_that_are_searched(trained, tmp_path):
    whole = dpo_config(trained, output=str(tmp_path / "whole" / "dpo"), negatives_from="beam")
    totals = stage_in_child(run_dpo, tmp_path / "whole", whole)
    for position, point in enumerate(random_points(totals, 10, seed=1)):
        mine = tmp_path / str(position)
        config = dpo_config(trained, output=str(mine / "dpo"), negatives_from="beam")
        run = partial(stage_in_child, run_dpo, mine, config)
        run(point)
        run()
        assert same_weights(mine / "dpo", tmp_path / "whole" / "dpo"), point


@pytest.mark.parametrize(
    ("run", "size"), [(run_dpo, 2), (partial(in_parts, run_dpo, tokens=64), 0)], ids=["DDP", "DDP in parts"]
)
def test_two_processes_take_the_steps_of_one(trained, tmp_path, run, size):
    one = dpo_config(trained, output=str(tmp_path / "one"), prompts_per_device=8, epochs=1, negatives_from="beam")
    two = replace(one, output=str(tmp_path / "two"), prompts_per_device=size)
    run_dpo(one)
    stage_in_processes(run, two, 2)
    names = ("loss", "accuracy", "margin", "log_ratio/target", "log_ratio/negatives", "kl", "grad_norm", "eval_ndcg@10")
    check_same_run(one, two, names)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"negatives": 24}, "negatives is 24, but the catalogue has 24 distinct SIDs; ask for 23 at most"),
        ({"tasks": {"sid_to_title": 1.0}}, "'sid_to_title' answers with a title"),
        ({"eval_examples": 0}, "eval_examples is 0; S-DPO can hurt"),
    ],
)
def test_what_cannot_be_is_refused(trained, tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        run_dpo(dpo_config(trained, output=str(tmp_path / "bad"), **changes))
    assert not (tmp_path / "bad").exists()


def test_a_catalogue_model_is_refused(trained, tmp_path, monkeypatch):
    bundle = load_bundle(trained / "sft")
    other = replace(bundle, model=catalogue(shop_of()))
    monkeypatch.setattr("minionerec.models.backbone.bundle.load_bundle", lambda *_, **__: other)
    with pytest.raises(ConfigError, match=r"is a catalogue model.*minionerec train-catalogue --objective"):
        run_dpo(dpo_config(trained, output=str(tmp_path / "bad")))
