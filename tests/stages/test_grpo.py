"""GRPO: a step against plain code, groups, resume, several processes, and what is refused."""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.kill import Point, stage_in_child
from support.launched import by_zero_2
from support.processes import stage_in_processes
from support.small_shop import sign
from support.training import (
    GROUP,
    N_ITEMS,
    TRAINED,
    WAITS,
    Killed,
    builder_of,
    catalogue_config,
    check_same_run,
    grpo_config,
    in_parts,
    kill_after,
    log_of,
    make_inputs,
    mixed_sids,
    operators_of_a_step,
    same_weights,
    sequential_config,
    sft_config,
)

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.records import read_run_record
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding import beam, decoder
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.decoding.trie import Trie
from minionerec.models.sequential.registry import load_sequential
from minionerec.pipeline import grpo as stage
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.config.training import GrpoConfig
from minionerec.pipeline.embed_items import run_embed
from minionerec.pipeline.grpo import model_scorer, run_grpo
from minionerec.pipeline.settings import parse_settings
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.recommend.rankers.load import checkpoint_assistant, load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.sid.table import split_sid
from minionerec.training.grpo import loss as loss_module
from minionerec.training.grpo.prompts import grpo_examples
from minionerec.training.grpo.trainer import REFERENCE_FILE, SidGrpoTrainer
from minionerec.training.rows import validation_set
from minionerec.training.trainer import LogLines


def one_step(folder: Path, output: Path, **changes) -> GrpoConfig:
    """A config of one step; the gradient is neither clipped nor averaged over anything else."""
    return grpo_config(folder, **{"output": str(output), "max_steps": 1, "max_grad_norm": 1e9, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A corpus whose SIDs have two or three codes, a checkpoint, two earlier ones, and vectors."""
    folder = tmp_path_factory.mktemp("trained")
    make_inputs(folder, users=100)
    settings = {**TRAINED, "sids": mixed_sids(folder)}
    run_sft(sft_config(folder, **{**settings, "epochs": 0.1, "output": str(folder / "raw")}))
    run_sft(sft_config(folder, **{**settings, "epochs": 4, "output": str(folder / "early")}))
    run_sft(sft_config(folder, **{**settings, "epochs": 10}))
    run_embed(EmbedConfig(corpus=str(folder / "corpus"), output=str(folder / "vectors"), dimensions=8))
    return folder


@pytest.fixture(scope="module")
def with_teacher(tmp_path_factory):
    """A corpus whose SIDs are of one length, a catalogue model, and a checkpoint that hardly knows anything."""
    folder = tmp_path_factory.mktemp("teacher")
    make_inputs(folder, users=100)
    run_catalogue(catalogue_config(folder))
    run_sft(sft_config(folder, epochs=0.2))
    return folder


LIKELIHOOD = {"loss_terms": {"policy": 1.0, "likelihood": 0.5}}
OF_TEACHER = {**LIKELIHOOD, "teacher": "catalogue"}


def folder_of(request, terms):
    """The folder that has what terms read, and the settings that name it."""
    if terms is not OF_TEACHER:
        return request.getfixturevalue("trained"), terms
    folder = request.getfixturevalue("with_teacher")
    return folder, {**terms, "teacher": str(folder / "catalogue")}


@dataclass
class Seen:
    """What a run went through."""

    rows: list[dict[str, Any]] = field(default_factory=list)  # one a prompt
    completions: list[list[int]] = field(default_factory=list)  # G a prompt
    advantages: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    slices: list[list[list[int]]] = field(default_factory=list)  # prompts of each slice
    sizes: list[list[int]] = field(default_factory=list)  # completions of each of them
    scored: list[int] = field(default_factory=list)  # prompts of each pass
    branches: int = 0  # completions of all passes
    gradient: torch.Tensor | None = None


@pytest.fixture
def watch(monkeypatch):
    """Runs GRPO and tells what went on, and the gradient of the last step."""

    def run(config: GrpoConfig, stage: Callable[..., None] = lambda run, config: run(config)) -> Seen:
        seen = Seen()
        with monkeypatch.context() as patch:
            make, loss_of, score = SidGrpoTrainer.make_step, SidGrpoTrainer.slice_loss, loss_module.shared_prefix_scores

            def spy_make(self, rows):
                slices = make(self, rows)
                seen.rows += [row for part in rows for row in part]
                for groups in slices:
                    seen.completions += [ids for group in groups.completions for ids in group]
                    seen.advantages += groups.advantages.tolist()
                return slices

            def spy_loss(self, model, groups, slices):
                loss = loss_of(self, model, groups, slices)
                seen.losses.append(loss.item())
                seen.slices.append(list(groups.prompts))
                seen.sizes.append([len(group) for group in groups.completions])
                return loss

            def spy_score(model, backbone, prompts, completions):
                seen.scored.append(len(prompts))
                seen.branches += sum(len(group) for group in completions)
                return score(model, backbone, prompts, completions)

            def keep_gradient(self, args, state, control, model, **other):
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
                seen.gradient = torch.cat([gradient.flatten() for gradient in gradients]).cpu()

            patch.setattr(SidGrpoTrainer, "make_step", spy_make)
            patch.setattr(SidGrpoTrainer, "slice_loss", spy_loss)
            patch.setattr(loss_module, "shared_prefix_scores", spy_score)
            patch.setattr(LogLines, "on_pre_optimizer_step", keep_gradient, raising=False)
            stage(run_grpo, config)
        return seen

    return run


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((one - other).norm() <= tolerance * other.norm() + 1e-9)


# One step, written out


def plain_reward(name: str, text: str, target: str, rank: int, hit: bool, vectors: dict[str, np.ndarray]) -> float:
    discounts = [1 / np.log2(position + 2) for position in range(GROUP)]
    if name == "rule":
        return float(text == target)
    if name == "ndcg":
        return -discounts[rank] / sum(discounts) if hit and text != target else 0.0
    if name == "position":
        pairs = list(zip(split_sid(text), split_sid(target), strict=False))
        return float(next((position for position, (one, other) in enumerate(pairs) if one != other), len(pairs)))
    return float(vectors[text] @ vectors[target] / np.linalg.norm(vectors[text]) / np.linalg.norm(vectors[target]))


def token_logps(model, prompt, completion):
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)


def plain_mean(kind, slices):
    """The mean of losses: of each slice a list with the losses of each completion's tokens."""
    rows = [row for each in slices for row in each]
    if kind == "dapo":
        return torch.cat(rows).mean()
    if kind == "bnpo":
        return torch.stack([torch.cat(each).mean() for each in slices]).mean()
    return torch.stack([row.mean() for row in rows]).mean()


def check_step(output, seen, bundle, terms, kind="grpo", beta=0.0, reference=None, soft=None):
    """Loss and gradient of a step of two slices are those of its completions and targets one by one.

    `soft` gives the losses of a target's codes for a row with a history, in place of those of its labels.
    """
    model, tokens, size = bundle.model.eval(), sid_tokens_of(bundle), len(seen.completions) // len(seen.rows)
    policy, likelihoods = [], []
    for position, row in enumerate(seen.rows):
        target = tokens[row["target"]]
        losses = -token_logps(model, row["prompt"], target + row["tail"])
        if soft is not None and row["history"] is not None:
            losses = torch.cat([soft(model, row, target), losses[len(target) :]])
        likelihoods.append(losses.mean())
        for number in range(size * position, size * (position + 1)):
            logps = token_logps(model, row["prompt"], seen.completions[number])
            ratio = (logps - logps.detach()).exp()
            if kind == "gspo":
                ratio = (logps - logps.detach()).mean().exp().expand(len(logps))
            policy.append(-ratio * seen.advantages[number])
            if beta:
                with torch.no_grad():
                    other = token_logps(reference, row["prompt"], seen.completions[number])
                policy[-1] = policy[-1] + beta * ((other - logps).exp() - (other - logps) - 1)
    half = len(policy) // 2
    values = {
        "policy": plain_mean(kind, [policy[:half], policy[half:]]),
        "likelihood": torch.stack(likelihoods).mean(),
    }
    loss = sum(weight * values[name] for name, weight in terms.items())
    assert sum(seen.losses) == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    loss.backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert close(seen.gradient, plain, 1e-4)
    if "likelihood" in terms:
        row = next(row for row in log_of(output) if "reward" in row)
        assert row["loss/likelihood"] == pytest.approx(values["likelihood"].item(), rel=1e-4, abs=1e-5)


CASES = [
    ("grpo", {"ranking": 1.0}),
    ("bnpo", {"ranking_only": 1.0}),
    ("bnpo", {"semantic": 1.0, "rule": 2.0}),
    ("dapo", {"ranking": 1.0}),
    ("gspo", {"semantic": 1.0}),
    ("gspo", {"rule": 1.0, "ndcg": 0.3, "position": 0.1}),
]


@pytest.mark.parametrize(("kind", "rewards"), CASES)
def test_a_step_equals_the_written_out_formula(trained, tmp_path, watch, kind, rewards):
    """Rewards, advantages (ddof 1, 1e-4), k3 KL against another model, loss and gradient in plain code."""
    beta = 0.1
    seen = watch(
        one_step(
            trained,
            tmp_path / "one",
            loss=kind,
            rewards=rewards,
            beta=beta,
            reference=str(trained / "early"),
            keep_zero_variance=True,
            reward_vectors=str(trained / "vectors") if "semantic" in rewards else "",
        )
    )
    bundle = load_bundle(trained / "sft")
    model, early = bundle.model.eval(), load_bundle(trained / "early").model.eval()
    vectors = dict(zip(bundle.table.sids, np.load(trained / "vectors" / "vectors.npy"), strict=True))
    presets = {"ranking": {"rule": 1.0, "ndcg": 1.0}, "ranking_only": {"ndcg": 1.0}}
    weights: dict[str, float] = {}
    for name, weight in rewards.items():
        weights |= presets.get(name, {name: weight})
    names = dict(zip(bundle.table.sid_numbers.tolist(), bundle.table.sids, strict=True))
    advantages = []
    assert len(seen.rows) == 8
    for position, row in enumerate(seen.rows):
        prompt, target = row["prompt"], names[row["target"]]
        mine = seen.completions[position * GROUP : (position + 1) * GROUP]
        sids = [ids[: len(ids) - len(row["tail"])] for ids in mine]
        texts = [bundle.tokenizer.decode(ids, skip_special_tokens=True) for ids in mine]
        hit = target in texts
        totals = np.zeros(GROUP)
        for name, weight in weights.items():
            totals += [weight * plain_reward(name, text, target, rank, hit, vectors) for rank, text in enumerate(texts)]
        group = (totals - totals.mean()) / (totals.std(ddof=1) + 1e-4)
        advantages += group.tolist()
        with torch.no_grad():
            scores = [float(token_logps(model, prompt, ids).sum()) for ids in sids]
            if position == 0:  # the top rollout is the most probable SID
                every = [float(token_logps(model, prompt, ids).sum()) for ids in sid_tokens_of(bundle)]
                assert scores[0] == max(every) and len({tuple(ids) for ids in sids}) == GROUP
        assert scores == sorted(scores, reverse=True)
    assert len({len(ids) for ids in seen.completions}) > 1
    assert seen.advantages == pytest.approx(advantages, abs=1e-3)
    assert any(advantages)
    check_step(tmp_path / "one", seen, bundle, {"policy": 1.0}, kind, beta, early)


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("dapo", {"policy": 0.2, "likelihood": 1.0}),
        ("bnpo", {"policy": 0.5, "likelihood": 0.3}),
        ("gspo", {"policy": 2.0, "likelihood": 0.1}),
        ("grpo", {"likelihood": 2.0}),
    ],
)
def test_the_likelihood_beside_the_policy_equals_the_written_out_formula(trained, tmp_path, watch, kind, terms):
    """The mean over each target's tokens, then over prompts; with and without the policy's loss."""
    beta = 0.1 if "policy" in terms else 0.0
    changes = {"beta": beta, "reference": str(trained / "sft") if beta else ""}
    changes |= {"generations": 2, "tasks": {"next_sid": 0.25, "title_to_sid": 1.0}, "checkpoint": str(trained / "raw")}
    seen = watch(one_step(trained, tmp_path / "one", loss=kind, loss_terms=terms, keep_zero_variance=True, **changes))
    other = load_bundle(trained / "sft").model.eval()
    check_step(tmp_path / "one", seen, load_bundle(trained / "raw"), terms, kind, beta, other)


@pytest.mark.parametrize("terms", [{"policy": 0.5, "likelihood": 0.7}, {"likelihood": 1.0}])
def test_the_likelihood_of_a_teachers_codes_equals_the_written_out_formula(with_teacher, tmp_path, watch, terms):
    """At every code of a target with a history before it, from the probabilities of all SIDs; labels elsewhere."""
    changes = {"rewards": {"rule": 1.0}, "beta": 0.0, "generations": 2}
    changes["tasks"] = {"next_sid": 0.1, "title_to_sid": 1.0}
    path = str(with_teacher / "catalogue")
    seen = watch(one_step(with_teacher, tmp_path / "one", loss_terms=terms, teacher=path, **changes))
    bundle, teacher = load_bundle(with_teacher / "sft"), load_bundle(path).model.eval()
    tokens, numbers = sid_tokens_of(bundle), bundle.table.sid_numbers

    def from_teacher(model, row, sid):
        """Cross-entropies to the teacher's codes."""
        with torch.no_grad():
            history = torch.tensor([(numbers[row["history"]] + 1).tolist()])
            leaves = teacher.leaf_log_probs(history).exp()[0].double()
        found = []
        for depth in range(len(sid)):
            below = [number for number, ids in enumerate(tokens) if ids[:depth] == sid[:depth]]
            codes = sorted({tokens[number][depth] for number in below})
            q = torch.stack([sum(leaves[n] for n in below if tokens[n][depth] == code) for code in codes])
            logits = model(torch.tensor([row["prompt"] + sid[:depth]])).logits[0, -1]
            found.append(-((q / q.sum()).float() * logits.log_softmax(-1)[codes]).sum())
        return torch.stack(found)

    assert len({row["history"] is None for row in seen.rows}) == 2
    check_step(tmp_path / "one", seen, bundle, terms, soft=from_teacher)


# Groups without signal


@pytest.mark.parametrize(
    ("kind", "terms"), [("grpo", {}), ("bnpo", {}), ("dapo", {}), ("gspo", {}), ("grpo", LIKELIHOOD)]
)
def test_skipped_groups_leave_the_gradient_alone(trained, tmp_path, watch, kind, terms):
    """They have no pass over their completions, but their likelihood where it is asked for."""
    changes = {"loss": kind, "beta": 0.0, "generations": 2, **terms}
    without = watch(one_step(trained, tmp_path / "without", **changes))
    whole = watch(one_step(trained, tmp_path / "whole", **changes, keep_zero_variance=True))
    signal = [any(whole.advantages[start : start + 2]) for start in range(0, 16, 2)]
    assert whole.scored == [4, 4]
    with_signal = [count for count in (sum(signal[:4]), sum(signal[4:])) if count]
    assert with_signal != [4, 4] and without.scored == (whole.scored if terms else with_signal)
    assert without.branches < whole.branches
    assert close(without.gradient, whole.gradient)
    assert float(whole.gradient.norm()) > 0


def test_skipped_groups_lose_their_kl_term_alone(trained, tmp_path, watch):
    changes = {"reference": str(trained / "early"), "beta": 0.2, "generations": 2}
    without = watch(one_step(trained, tmp_path / "without", **changes))
    whole = watch(one_step(trained, tmp_path / "whole", **changes, keep_zero_variance=True))
    assert not close(without.gradient, whole.gradient, 1e-3)
    reference, *policy = without.scored
    assert reference == sum(policy) < 8  # the reference is not asked about them either
    assert whole.scored == [8, 4, 4]


def test_a_batch_without_any_signal(trained, tmp_path, watch, monkeypatch):
    monkeypatch.setattr(
        stage, "make_reward", lambda name, table, source: lambda rollouts: np.full(rollouts.sids.shape, 0.1)
    )
    seen = watch(one_step(trained, tmp_path / "none"))
    assert seen.advantages == [0.0] * 8 * GROUP
    assert seen.losses == [0.0, 0.0]
    assert float(seen.gradient.norm()) == 0
    log = log_of(tmp_path / "none")
    row = next(row for row in log if "zero_variance" in row)
    assert row["zero_variance"] == 1.0 and row["kl"] is None


def test_gradient_checkpointing_and_a_poisoned_generation_config_change_nothing(trained, tmp_path, watch, monkeypatch):
    plain = watch(one_step(trained, tmp_path / "plain"))
    spared = watch(one_step(trained, tmp_path / "spared", gradient_checkpointing=True))
    assert close(spared.gradient, plain.gradient)
    assert spared.completions == plain.completions
    load = stage.load_language_model

    def poisoned(*args, **kwargs):
        bundle = load(*args, **kwargs)
        bundle.model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=5.0, temperature=0.1)
        return bundle

    monkeypatch.setattr(stage, "load_language_model", poisoned)
    dirty = watch(one_step(trained, tmp_path / "dirty"))
    assert dirty.completions == plain.completions
    assert torch.equal(dirty.gradient, plain.gradient)


@pytest.mark.parametrize(
    ("kind", "terms"),
    [("grpo", {}), ("bnpo", LIKELIHOOD), ("dapo", {}), ("gspo", {}), ("grpo", OF_TEACHER)],
    ids=["grpo", "bnpo-likelihood", "dapo", "gspo", "grpo-teacher"],
)
def test_parts_that_fit_the_memory_change_nothing(request, tmp_path, watch, monkeypatch, limits, kind, terms):
    """Neither where they are small from the beginning, nor where memory ends after some of a step's parts.

    It also ends in the search for rollouts, and under the reference.
    """
    trained, terms = folder_of(request, terms)
    changes = {"loss": kind, "beta": 0.2, "prompts_per_device": 8, **terms}
    changes["keep_zero_variance"] = terms.keys() >= OF_TEACHER.keys()  # few of its groups have a signal: one part
    if (trained / "early").exists():
        changes["reference"] = str(trained / "early")
    whole = watch(one_step(trained, tmp_path / "whole", **changes))
    changes["prompts_per_device"] = 0
    small = watch(one_step(trained, tmp_path / "small", **changes), partial(in_parts, tokens=64))
    score, ended, reference, searched = SidGrpoTrainer.score, [], [], []

    def short_search(model, prompts, *about):
        searched.append(len(prompts))
        if len(prompts) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return beam_search(model, prompts, *about)

    def short_of_memory(self, model, groups):
        if not torch.is_grad_enabled() and not reference:
            reference.append(self.limit.tokens)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        if torch.is_grad_enabled() and len(self.figures._tokens["kl"]) == 1 and len(ended) < 2:
            ended.append(self.limit.tokens)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return score(self, model, groups)

    monkeypatch.setattr(SidGrpoTrainer, "score", short_of_memory)
    monkeypatch.setattr(decoder, "beam_search", short_search)
    lowered = watch(one_step(trained, tmp_path / "lowered", **changes), partial(in_parts, tokens=256))
    assert ended[1] < ended[0] < reference[0] == 256 and max(searched) > 4
    assert len(whole.slices) == 1 < len(small.slices)
    for seen, name in ((small, "small"), (lowered, "lowered")):
        assert seen.completions == whole.completions and seen.rows == whole.rows
        assert close(seen.gradient, whole.gradient)
        ours, theirs = (next(row for row in log_of(tmp_path / n) if "kl" in row) for n in (name, "whole"))
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("terms", "most"), [({}, 16), (OF_TEACHER, 38)], ids=["policy", "teacher"])
def test_a_step_waits_as_often_whatever_its_size(request, tmp_path, monkeypatch, terms, most):
    trained, terms = folder_of(request, terms)
    monkeypatch.setitem(beam._FIXED_WIDTH, "cpu", True)  # as a GPU searches
    changes = {"max_steps": 3, "evals_per_epoch": 0.1, "keep_zero_variance": True, **terms}
    found = []
    for size in (8, 32):
        changes |= {"output": str(tmp_path / str(size)), "prompts_per_step": size, "prompts_per_device": size}
        found.append(operators_of_a_step(run_grpo, grpo_config(trained, **changes)))
    small, large = found
    waits = sum(small[name] for name in WAITS)
    assert 0 < waits <= most and waits == sum(large[name] for name in WAITS)
    assert large.total() < 1.3 * small.total()  # for four times as many prompts


# Groups, rollouts and what is logged


def test_groups_stay_whole_and_no_prompt_is_dropped(trained, tmp_path, watch):
    config = grpo_config(trained, output=str(tmp_path / "all"), evals_per_epoch=1, keep_zero_variance=True)
    seen = watch(config)
    # 99 prompts fill 13 steps of 8, each in two slices of 4 groups; twice, in another order.
    assert len(seen.slices) == 2 * 26
    assert seen.slices[:26] != seen.slices[26:]
    assert all(len(prompts) == 4 for prompts in seen.slices)
    assert all(sizes == [GROUP] * 4 for sizes in seen.sizes)
    asked = Counter(tuple(prompt) for prompts in seen.slices for prompt in prompts)
    assert sum(asked.values()) == 2 * 13 * 8
    prompts = grpo_examples_of(trained, config)
    assert prompts.counts == {"next_sid": 75, "title_to_sid": 24}
    assert (len(prompts.rows), len(prompts.again), prompts.total("truncated")) == (104, 5, 0)
    assert asked == Counter([tuple(row["prompt"]) for row in prompts.rows] * 2)
    assert prompts.rows[0]["history"] is not None and prompts.rows[80]["history"] is None


def grpo_examples_of(folder, config, max_prompt_length=512):
    bundle, builder, _ = builder_of(folder)
    with tempfile.TemporaryDirectory() as path:
        about = config.tasks, config.prompts_per_step, config.seed, max_prompt_length
        return grpo_examples(builder, bundle.tokenizer, *about, Path(path))


def test_prompts_that_are_too_long_lose_their_first_tokens_and_are_counted(trained):
    config = grpo_config(trained)
    whole, cut = grpo_examples_of(trained, config), grpo_examples_of(trained, config, 5)
    assert [row["prompt"] for row in cut.rows] == [row["prompt"][-5:] for row in whole.rows]
    assert (
        cut.total("truncated")
        == sum(len(row["prompt"]) > 5 for row in list(whole.rows)[: sum(whole.counts.values())])
        > 0
    )


def test_sampled_rollouts(trained, tmp_path, watch):
    seen = watch(one_step(trained, tmp_path / "one", rollouts="sampling", generations=6, tasks={"next_sid": 1.0}))
    again = watch(one_step(trained, tmp_path / "two", rollouts="sampling", generations=6, tasks={"next_sid": 1.0}))
    beams = watch(one_step(trained, tmp_path / "three", generations=6, tasks={"next_sid": 1.0}))
    assert seen.completions == again.completions != beams.completions
    groups = [seen.completions[start : start + 6] for start in range(0, 48, 6)]
    assert all(len({tuple(ids) for ids in group}) == 6 for group in groups)


def test_what_is_logged(trained, tmp_path):
    run_grpo(
        one_step(trained, tmp_path / "one", reference=str(trained / "early"), rewards={"ranking": 1.0, "position": 1.0})
    )
    log = log_of(tmp_path / "one")
    row = next(row for row in log if "hit@g" in row)
    for name in ("rule", "ndcg", "position"):
        assert np.isfinite(row[f"rewards/{name}/mean"])
    assert 0 <= row["hit@g"] <= 1 and 0 < row["beam_mass"] <= 1 and 0 <= row["zero_variance"] < 1
    assert GROUP <= row["distinct_items"] <= N_ITEMS
    assert 0 < row["kl"] < row["kl_p99"]
    assert 0 < row["entropy"] < np.log(400)
    assert row["clip_ratio/region_mean"] == 0


def test_the_collaborative_reward_asks_a_sequential_model(trained, tmp_path, watch):
    hyper = {"hidden_size": 8, "num_layers": 1, "num_heads": 1}
    run_sequential(sequential_config(trained / "corpus", tmp_path / "sasrec", hyper=hyper, list_length=5))
    path = tmp_path / "sasrec" / "model"
    changes = {"rewards": {"collaborative": 1.0}, "reward_model": str(path), "keep_zero_variance": True}
    seen = watch(one_step(trained, tmp_path / "one", **changes))
    model, bundle = load_sequential(path), load_bundle(trained / "sft")
    for start, row in zip(range(0, 8 * GROUP, GROUP), seen.rows, strict=True):
        if row["history"] is None:  # a title has no history: nothing to learn from
            assert seen.advantages[start : start + GROUP] == [0.0] * GROUP
            continue
        items = [
            bundle.table.items_of(bundle.tokenizer.decode(ids, skip_special_tokens=True))[0]
            for ids in seen.completions[start : start + GROUP]
        ]
        history = torch.tensor([[0] * (model.max_len - len(row["history"])) + [item + 1 for item in row["history"]]])
        history = history if model.padding == "left" else history.roll(len(row["history"]), 1)
        with torch.no_grad():
            rewards = model.logits(model.user_vectors(history))[0, [item + 1 for item in items]].double().numpy()
        wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        assert seen.advantages[start : start + GROUP] == pytest.approx(wanted.tolist(), abs=1e-2)
    with pytest.raises(ConfigError, match="'collaborative' reads the history, which none of the tasks"):
        run_grpo(one_step(trained, tmp_path / "bad", tasks={"title_to_sid": 1.0}, **changes))
    make_inputs(tmp_path / "other", users=10)
    other = tmp_path / "other" / "corpus"
    with pytest.raises(ArtefactError, match=r"was not trained on .*/other/corpus"):
        model_scorer(path, Corpus.load(other), other, bundle.table)


@pytest.mark.parametrize("asked", ["sft", "catalogue"])
def test_expected_hits_are_the_probabilities_of_a_checkpoint(with_teacher, tmp_path, watch, asked):
    folder = with_teacher
    changes = {"rewards": {"expected_hits": 1.0}, "reward_model": str(folder / asked), "tasks": {"next_sid": 1.0}}
    seen = watch(one_step(folder, tmp_path / "one", **changes))
    ranker = load_ranker(folder / asked, Corpus.load(folder / "corpus"))
    items_of = ranker.table.items_of
    decode = load_bundle(folder / "sft").tokenizer.decode
    for start, row in zip(range(0, len(seen.advantages), GROUP), seen.rows, strict=True):
        items = [items_of(decode(ids, skip_special_tokens=True))[0] for ids in seen.completions[start : start + GROUP]]
        log_probs = checkpoint_assistant(ranker, "it").log_probs(Queries([np.array(row["history"])]))[0]
        rewards = log_probs.exp().double().numpy()[ranker.table.sid_numbers[items]]
        wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        assert seen.advantages[start : start + GROUP] == pytest.approx(wanted.tolist(), abs=1e-2)


OWN = """
import numpy as np


def novelty(rollouts):
    # The less probable, the better; only where there is a user.
    known = np.array([history is not None for history in rollouts.histories])
    return np.where(known[:, None], -rollouts.scores, np.nan)
"""


@pytest.fixture
def own_rewards(tmp_path, monkeypatch):
    """A user's module where they stand."""
    file = tmp_path / "my_rewards.py"
    file.write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield file
    sys.modules.pop("my_rewards", None)


def test_a_users_own_reward_is_trained_on(trained, tmp_path, watch, own_rewards):
    words = ["--output", "x", "--corpus", "c", "--checkpoint", "d", "--rewards", "rule", "my_rewards.novelty=0.5"]
    rewards = parse_settings(GrpoConfig, words).rewards
    assert rewards == {"rule": 1.0, "my_rewards.novelty": 0.5}
    config = one_step(trained, tmp_path / "one", rewards=rewards, keep_zero_variance=True)
    seen = watch(config)
    bundle = load_bundle(trained / "sft")
    numbers = {tuple(ids): number for number, ids in enumerate(sid_tokens_of(bundle))}
    for start, row in zip(range(0, 8 * GROUP, GROUP), seen.rows, strict=True):
        mine = [tuple(ids[: len(ids) - len(row["tail"])]) for ids in seen.completions[start : start + GROUP]]
        totals = np.array([float(numbers[ids] == row["target"]) for ids in mine])
        if row["history"] is not None:
            with torch.no_grad():
                totals -= [
                    0.5 * float(token_logps(bundle.model.eval(), row["prompt"], list(ids)).sum()) for ids in mine
                ]
        wanted = (totals - totals.mean()) / (totals.std(ddof=1) + 1e-4)
        assert seen.advantages[start : start + GROUP] == pytest.approx(wanted.tolist(), abs=1e-3)
    log = log_of(tmp_path / "one")
    assert np.isfinite(next(row for row in log if "reward" in row)["rewards/my_rewards.novelty/mean"])
    assert read_manifest(tmp_path / "one")["inputs"].keys() == {"corpus", "checkpoint", "reward my_rewards.novelty"}
    assert run_grpo(config).up_to_date
    own_rewards.write_text(OWN.replace("-rollouts", "-2 * rollouts"))  # another reward, so another result
    assert not run_grpo(config).up_to_date


@pytest.fixture
def priced(tmp_path, trained):
    """The corpus, whose items have a price and a brand, and columns that are neither."""
    folder = tmp_path / "priced"
    shutil.copytree(trained / "corpus", folder)
    items = pd.read_parquet(folder / "items.parquet")
    numbers = range(len(items))
    columns = {
        "price": [str(1 + number % 5) for number in numbers],
        "brand": ["ABC"[number % 3] for number in numbers],
        "margin": [str(number - 3) for number in numbers],
        "cost": pd.Series([None] * len(items), dtype="str"),
    }
    items.assign(**columns).to_parquet(folder / "items.parquet", index=False)
    sign(folder)
    return str(folder)


def test_what_a_list_is_worth_is_trained_on_and_selects(trained, tmp_path, watch, priced):
    """Value, rare items and brands in one reward, not scaled; the validation reward is the sum over the lists."""
    weights = {"value": 2.0, "rare": 0.5, "diversity": 0.25}
    columns = {"value": "price", "diversity": "brand"}
    inputs = {"corpus": priced, "rewards": weights, "reward_columns": columns}
    settings = {**inputs, "scale_rewards": "none", "select_by": "reward", "keep_zero_variance": True}
    seen = watch(one_step(trained, tmp_path / "one", **settings))
    bundle, builder, corpus = builder_of(trained)
    table, popularity = bundle.table, corpus.popularity()
    names = {tuple(ids): number for number, ids in enumerate(sid_tokens_of(bundle))}
    of = [[item for item, own in enumerate(table.sid_numbers) if own == number] for number in range(table.n_unique)]
    prices = np.array([1 + item % 5 for item in range(len(table))])
    bought = [sum(popularity[items]) for items in of]

    def plain(sids, target):
        found, brands = [], set()
        for number in sids:
            above = sum(count for count in bought if count > bought[number])
            fresh = of[number][0] % 3 not in brands
            brands.add(of[number][0] % 3)
            worth = prices[of[number]].mean() / prices.mean() * (number == target)
            found.append(2 * worth + 0.5 * (above >= 0.8 * sum(bought)) + 0.25 * fresh)
        return np.array(found)

    kinds = set()
    for start, row in zip(range(0, 8 * GROUP, GROUP), seen.rows, strict=True):
        mine = [names[tuple(ids[: len(ids) - len(row["tail"])])] for ids in seen.completions[start : start + GROUP]]
        wanted = plain(mine, row["target"])
        kinds |= set(wanted)
        assert seen.advantages[start : start + GROUP] == pytest.approx(
            (wanted - wanted.mean()).tolist(), rel=1e-4, abs=1e-5
        )
    assert len(kinds) > 4
    trie = Trie.build(table.codes, bundle.code_ids)
    validation = validation_set(bundle, builder, trie, count=20, beams=10, seed=42)
    lists, _ = decode_prompts(bundle.model, validation.prompts, trie, 10)
    totals = [plain(sids, target).sum() for sids, target in zip(lists.tolist(), validation.targets, strict=True)]
    assert log_of(tmp_path / "one")[0]["eval_reward@10"] == pytest.approx(np.mean(totals), rel=1e-4, abs=1e-4)
    assert "eval_reward@10" in read_manifest(tmp_path / "one")["counts"]["best"]


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (
            "height",
            ConfigError,
            "value is 'height', but the corpus has no such column of items; it has .*, price",
        ),
        ("brand", DataError, r"column 'brand' of .* has 'A' for item .* \(24 such items\); .* a number from 0"),
        ("margin", DataError, r"column 'margin' of .* has '-3' for item .* \(3 such items\)"),
        ("cost", DataError, r"column 'cost' of the corpus's items has nan for item"),
    ],
)
def test_values_that_are_none_are_named(trained, tmp_path, priced, column, error, message):
    inputs = {"corpus": priced, "rewards": {"value": 1.0}, "reward_columns": {"value": column}}
    with pytest.raises(error, match=message):
        run_grpo(one_step(trained, tmp_path / "bad", **inputs))
    assert not (tmp_path / "bad").exists()


def sid_tokens_of(bundle):
    """Token ids of each SID number."""
    tokens = dict(zip(bundle.table.sid_numbers.tolist(), bundle.table.token_tuples, strict=True))
    return [bundle.tokenizer.convert_tokens_to_ids(list(tokens[number])) for number in range(len(tokens))]


# Whole runs


@pytest.fixture(scope="module")
def sharpened(trained):
    return trained, stage_in_child(run_grpo, trained, grpo_config(trained))


def test_grpo_is_never_below_its_start(sharpened):
    folder, _ = sharpened
    start = log_of(folder / "grpo")[0]
    counts = read_manifest(folder / "grpo", "checkpoint")["counts"]
    assert start["step"] == 0
    assert counts["best"]["eval_ndcg@10"] >= start["eval_ndcg@10"]
    assert counts["rows"] == {"next_sid": 75, "title_to_sid": 24}
    assert counts["steps"] == 26
    assert run_grpo(grpo_config(folder)).up_to_date


def test_grpo_that_diverges_says_what_to_change(trained, tmp_path):
    config = grpo_config(trained, output=str(tmp_path / "nan"), learning_rate=1e30, max_grad_norm=1e30)
    with pytest.raises(ConfigError, match=r"^training diverged by step \d+: .* Lower learning_rate \(it is 1e\+30\)"):
        run_grpo(config)
    assert not (tmp_path / "nan").exists()


def test_killed_it_ends_as_if_nothing_had_happened(sharpened, tmp_path):
    folder, totals = sharpened
    assert totals["step"] == 26
    config = grpo_config(folder, output=str(tmp_path / "grpo"))
    run = partial(stage_in_child, run_grpo, tmp_path, config)
    run(Point("step", 17))  # in the second epoch, behind a checkpoint inside it
    run()
    assert same_weights(tmp_path / "grpo", folder / "grpo")
    batch = read_run_record(tmp_path / "grpo").batch  # in prompts, not in completions
    assert (batch.per_device, batch.total) == (config.prompts_per_device, config.prompts_per_step)
    logs = [log_of(each / "grpo") for each in (tmp_path, folder)]
    assert [row.get("kl") for row in logs[0]] == pytest.approx([row.get("kl") for row in logs[1]])


def test_a_run_resumes_with_its_own_reference_or_not_at_all(trained, tmp_path, monkeypatch):
    config = grpo_config(trained, output=str(tmp_path / "cut"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        run_grpo(config)
    (checkpoint,) = (tmp_path / "cut.partial").glob("checkpoint-*")
    kept, start = load_file(checkpoint / REFERENCE_FILE), load_file(trained / "sft" / "model.safetensors")
    assert any(not torch.equal(kept[name], start[name]) for name in start.keys() & kept.keys())
    (checkpoint / REFERENCE_FILE).unlink()
    with pytest.raises(ArtefactError, match=r"reference.safetensors.*is missing. Delete its folder"):
        run_grpo(config)


@pytest.mark.parametrize("terms", [{"rollouts": "sampling"}, OF_TEACHER], ids=["sampling", "teacher"])
def test_interrupted_in_an_epoch_it_goes_on_as_if_nothing_had_happened(request, tmp_path, monkeypatch, terms):
    """The same SIDs are drawn from there on."""
    folder, changes = folder_of(request, terms)
    whole, cut = (grpo_config(folder, output=str(tmp_path / name), **changes) for name in ("whole", "cut"))
    run_grpo(whole)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        run_grpo(cut)
    run_grpo(cut)
    logs = [log_of(tmp_path / name) for name in ("whole", "cut")]
    assert [row.get("reward") for row in logs[0]] == [row.get("reward") for row in logs[1]]
    assert same_weights(whole.output, cut.output)


def interrupted(config):
    """The stage, stopped in the middle of the second epoch and resumed."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        run_grpo(config)
    run_grpo(config)


def test_two_processes_that_resume_in_a_later_epoch_take_the_steps_of_one(trained, tmp_path):
    changes = {"tasks": {"title_to_sid": 1.0}, "learning_rate": 1e-3}  # three steps an epoch
    one, two = (
        grpo_config(trained, output=str(tmp_path / name), prompts_per_device=per_device, **changes)
        for name, per_device in (("one", 8), ("two", 2))
    )
    run_grpo(one)
    stage_in_processes(interrupted, two, 2)
    check_same_run(one, two, ("loss", "reward", "grad_norm", "eval_ndcg@10"))


BY_ZERO_2 = partial(by_zero_2, "scripts/grpo.py")
IN_TWO = partial(stage_in_processes, run_grpo, world=2)
IN_TWO_IN_PARTS = partial(stage_in_processes, partial(in_parts, run_grpo, tokens=64), world=2)


@pytest.mark.parametrize(
    ("launch", "size", "terms"),
    [
        pytest.param(IN_TWO, 2, OF_TEACHER, id="DDP-teacher"),
        pytest.param(IN_TWO_IN_PARTS, 0, LIKELIHOOD, id="DDP-parts-likelihood"),
        pytest.param(BY_ZERO_2, 2, {}, id="ZeRO-2", marks=pytest.mark.slow),  # SFT's is not: test_sft_processes.py
        pytest.param(BY_ZERO_2, 2, OF_TEACHER, id="ZeRO-2-teacher", marks=pytest.mark.slow),
    ],
)
def test_two_processes_take_the_steps_of_one(request, tmp_path, launch, size, terms):
    folder, terms = folder_of(request, terms)
    changes = {"tasks": {"next_sid": 1.0}, "max_steps": 3, "learning_rate": 1e-3, "evals_per_epoch": 20, **terms}
    changes |= {"rewards": {"ranking": 1.0, "position": 0.1}}
    changes |= {"reference": str(folder / "early") if (folder / "early").exists() else ""}
    one, two = (
        grpo_config(folder, output=str(tmp_path / name), prompts_per_device=per_device, **changes)
        for name, per_device in (("one", 8), ("two", size))
    )
    run_grpo(one)
    launch(two)
    names = (
        "loss",
        "kl",
        "kl_p99",
        "entropy",
        "reward",
        "grad_norm",
        "hit@g",
        "beam_mass",
        "distinct_items",
        "zero_variance",
        "rewards/rule/mean",
        "loss/likelihood",
        "eval_ndcg@10",
        "eval_hr@1",
    )
    check_same_run(one, two, names)
    assert sum("kl" in row for row in log_of(one.output)) == 3


def test_grpo_in_bfloat16_runs_and_warns(trained, tmp_path, caplog):
    with caplog.at_level("WARNING", "minionerec"):
        run_grpo(grpo_config(trained, output=str(tmp_path / "half"), dtype="bfloat16", max_steps=1))
    assert "are bfloat16 without a float32 copy: at learning rate 0.0001 most of a step rounds" in caplog.text


def test_more_epochs_go_on_from_a_finished_run(trained, tmp_path):
    changes = {"schedule": "constant", "tasks": {"title_to_sid": 1.0}}
    whole, config = (
        grpo_config(trained, output=str(tmp_path / name), epochs=2, **changes) for name in ("whole", "twice")
    )
    run_grpo(whole)
    run_grpo(replace(config, epochs=1))
    result = run_grpo(config)
    assert not result.up_to_date and result.counts["steps"] == 6
    logs = [log_of(tmp_path / name) for name in ("whole", "twice")]
    assert [row.get("kl") for row in logs[0]] == pytest.approx([row.get("kl") for row in logs[1]])
    assert same_weights(whole.output, config.output)


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generations": 25}, "generations is 25, but the catalogue has 24 distinct SIDs"),
        ({"beta": 0.0, "reference": "early"}, "measured against the reference 'early'"),
        ({"rewards": {"fame": 1.0}}, "unknown reward 'fame'"),
        ({"rewards": {"semantic": 1.0}}, "reward_vectors is ''; the reward semantic and the vectors"),
        ({"rewards": {"collaborative": 1.0}}, "reward_model is ''; the rewards collaborative, expected"),
        ({"reward_vectors": "vectors"}, "rewards are ranking and reward_vectors is 'vectors'"),
        ({"tasks": {"sid_to_title": 1.0}}, "'sid_to_title' answers with a title"),
        ({"eval_examples": 0}, "eval_examples is 0; GRPO can hurt"),
        ({"loss_terms": {"likelihood": 1.0}}, "beta is 0.001, but loss_terms are likelihood: the KL term is part of"),
        (
            {"teacher": "catalogue"},
            "teacher is 'catalogue', but loss_terms are policy: the term likelihood",
        ),
        ({"rewards": {"value": 1.0}}, "but reward_columns names no column of value; give one, e.g. value=price"),
        ({"rewards": {"expected_value": 1.0}, "reward_model": "sft"}, "no column of expected_value; give one"),
        ({"reward_model": "sft"}, "rewards are ranking and reward_model is 'sft'; the rewards collaborative, expected"),
        ({"reward_columns": {"value": "price"}}, "has a column of value, but rewards are ranking"),
    ],
)
def test_bad_grpo_settings(trained, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        run_grpo(grpo_config(trained, output=str(tmp_path / "bad"), **changes))
    assert not (tmp_path / "bad").exists()


def test_references_and_vectors_that_are_not_there_or_do_not_belong(trained, tmp_path):
    def refused(message, **changes):
        with pytest.raises(ArtefactError, match=message):
            run_grpo(grpo_config(trained, output=str(tmp_path / "bad"), **changes))
        assert not (tmp_path / "bad").exists() and not (tmp_path / "bad.partial").exists()

    nowhere = str(tmp_path / "nowhere")
    refused("nowhere", reference=nowhere)
    refused("nowhere", rewards={"semantic": 1.0}, reward_vectors=nowhere)
    refused("holds a 'corpus', expected a 'vectors'", rewards={"semantic": 1.0}, reward_vectors=str(trained / "corpus"))
    other = tmp_path / "other"
    make_inputs(other, users=10)
    run_sft(sft_config(other, epochs=0.5))
    refused("was trained on the SID table .* but the given table", reference=str(other / "sft"))
    shutil.copytree(trained / "mixed", tmp_path / "same" / "sids")
    shutil.copytree(trained / "corpus", tmp_path / "same" / "corpus")
    run_sft(sft_config(tmp_path / "same", epochs=0.1, hidden_size=16, all_positions=False))
    refused(r"has shape \(.*16\), that of .*32\)", reference=str(tmp_path / "same" / "sft"))
