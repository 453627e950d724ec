"""S-DPO's loss and negatives against the formula in plain code, and its trainer against TRL's DPO."""

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounding import assert_near
from transformers import TrainerCallback, TrainingArguments
from trl import DPOConfig, DPOTrainer

from minionerec.contrib.generative_baselines.dpo import (
    SidDpoTrainer,
    draw_negatives,
    ratio_figures,
    softmax_preference_loss,
    without_targets,
)
from minionerec.core.errors import ConfigError, MinioneRecError
from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.training.memory import TokenLimit

# The loss

numbers = st.floats(-30, 30, width=32)
groups = st.integers(1, 7).flatmap(lambda n: st.lists(numbers, min_size=1 + n, max_size=1 + n))


@given(ratios=groups, beta=st.floats(0.01, 5))
@settings(max_examples=40)
def test_the_loss_is_the_written_out_formula(ratios, beta):
    given = torch.tensor([ratios], dtype=torch.float64, requires_grad=True)
    loss = softmax_preference_loss(given, beta)
    rises = [math.exp(beta * (other - ratios[0])) for other in ratios[1:]]
    assert loss.item() == pytest.approx(math.log1p(sum(rises)), rel=1e-9, abs=1e-12)
    # Each negative is weighed by its share of the softmax.
    (gradient,) = torch.autograd.grad(loss.sum(), given)
    shares = np.array([1.0, *rises]) / (1 + sum(rises))
    wanted = beta * shares
    wanted[0] = -beta * (1 - shares[0])
    assert np.allclose(gradient[0].numpy(), wanted, rtol=1e-7, atol=1e-12)
    again = given[:, [0, *range(len(ratios) - 1, 0, -1)]]
    assert softmax_preference_loss(again, beta).item() == pytest.approx(loss.item())
    assert softmax_preference_loss(given + torch.eye(len(ratios))[0], beta).item() < loss.item()


def test_one_negative_is_dpo_and_equal_models_give_log_1_plus_n():
    ratios = torch.randn(50, 2, dtype=torch.float64) * 5
    wanted = -torch.nn.functional.logsigmoid(0.3 * (ratios[:, 0] - ratios[:, 1]))
    assert torch.allclose(softmax_preference_loss(ratios, 0.3), wanted)
    for n in (1, 3, 7, 15):
        assert softmax_preference_loss(torch.zeros(1, 1 + n), 2.0).item() == pytest.approx(math.log(1 + n))


def test_extreme_ratios_stay_finite():
    ratios = torch.tensor([[0.0, 1e4, -1e4], [1e4, 0.0, 0.0]], requires_grad=True)
    loss = softmax_preference_loss(ratios, 1.0)
    assert loss.tolist() == pytest.approx([1e4, 0.0])
    loss.sum().backward()
    assert torch.isfinite(ratios.grad).all()


def test_what_is_logged_of_a_prompt():
    found = ratio_figures(torch.tensor([[2.0, 1.0, -1.0], [0.0, 0.0, -3.0]]))
    assert found["accuracy"].tolist() == [1.0, 0.0]
    assert found["margin"].tolist() == [1.0, 0.0]
    assert found["log_ratio/target"].tolist() == [2.0, 0.0]
    assert found["log_ratio/negatives"].tolist() == [[1.0, -1.0], [0.0, -3.0]]
    assert found["kl"].tolist() == pytest.approx([math.exp(-2) + 1, 0.0])


# Negatives


@given(sids=st.integers(2, 9), count=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_negatives_are_distinct_and_never_the_target(sids, count, seed):
    count = min(count, sids - 1)
    targets = np.random.default_rng(seed).integers(sids, size=20)
    found = draw_negatives(targets, sids, count, (seed, 0))
    assert found.shape == (20, count)
    for target, row in zip(targets, found, strict=True):
        assert len({target, *row.tolist()}) == 1 + count
        assert row.min() >= 0 and row.max() < sids
    assert np.array_equal(draw_negatives(targets[:7], sids, count, (seed, 0)), found[:7])


def test_negatives_follow_seed_and_epoch():
    targets = np.zeros(50, dtype=np.int64)
    first = draw_negatives(targets, 100, 3, (5, 0))
    assert np.array_equal(draw_negatives(targets, 100, 3, (5, 0)), first)
    for seed, epoch in ((5, 1), (6, 0)):
        assert not np.array_equal(draw_negatives(targets, 100, 3, (seed, epoch)), first)


def test_negatives_are_equally_frequent():
    found = draw_negatives(np.zeros(40_000, dtype=np.int64), 4, 2, (0,))
    for slot in range(2):
        assert np.bincount(found[:, slot]) / len(found) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.015)


def test_lists_leave_out_the_target_or_the_last():
    lists = np.array([[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]])
    assert without_targets(lists, np.array([1, 3, 0])).tolist() == [[0, 2, 3], [4, 5, 6], [6, 7, 8]]


# The trainer

SIDS = [[300, 304], [300, 305, 307], [301, 304], [302, 306, 308]]
TOKENIZER = train_tokenizer(["a b c"], 300)
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "inner_size": 24}
PROMPTS = {1: [5, 9, 7], 0: [8], 3: [5, 6], 2: [4, 4, 4, 4]}
ROWS = [{"prompt": prompt, "target": target, "tail": [1], "history": None} for target, prompt in PROMPTS.items()]


def model_of(seed):
    model = scratch_model(TOKENIZER, seed, **SHAPE)
    model.resize_token_embeddings(310)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def trainer_of(folder, negatives, beta, reference):
    args = TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True, per_device_train_batch_size=4)
    about = {"negatives": lambda epoch: negatives[epoch], "beta": beta, "sid_tokens": SIDS, "steps_per_epoch": 10}
    return SidDpoTrainer(model_of(0), args, ROWS, TOKENIZER, reference=reference, **about)


def gradient_of(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def total(model, prompt, completion):
    """The sum over a completion's tokens, one completion at a time."""
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).sum()


def test_the_trainers_loss_is_that_of_completions_one_by_one(tmp_path):
    """With a reference of its own, so that log-ratios are not 0; SIDs have two or three tokens."""
    negatives = np.array([[[0, 2, 3], [1, 2, 3], [0, 1, 2], [0, 1, 3]], [[2, 0, 3]] * 4])
    trainer = trainer_of(tmp_path, negatives, 0.7, model_of(1))
    trainer.state.global_step = 9  # the last step of the first epoch
    before = [parameter.clone() for parameter in trainer.reference.parameters()]
    loss = trainer.compute_loss(trainer.model, {"rows": torch.tensor([0, 1, 2, 3])})
    loss.backward()
    policy, reference = model_of(0), model_of(1)
    plain = []
    for row, others in zip(ROWS, negatives[0], strict=True):
        ratios = []
        for sid in (row["target"], *others):
            ids = SIDS[sid] + row["tail"]
            ratios.append(total(policy, row["prompt"], ids) - total(reference, row["prompt"], ids).detach())
        plain.append(torch.log(1 + sum(torch.exp(0.7 * (ratio - ratios[0])) for ratio in ratios[1:])))
    wanted = torch.stack(plain).mean()
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert_near(gradient_of(trainer.model), gradient_of(policy), floor=0)
    assert all(torch.equal(*pair) for pair in zip(before, trainer.reference.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in trainer.reference.parameters())
    trainer.state.global_step = 10  # the next epoch has other negatives: for row 1 item 0 in place of item 1
    again = trainer.compute_loss(trainer.model, {"rows": torch.tensor([1])}).item()
    assert again != pytest.approx(plain[1].item(), rel=1e-4)


def test_parts_of_a_step_add_up_also_where_memory_ends(tmp_path, monkeypatch):
    negatives = np.array([[[0, 2], [1, 2], [0, 1], [0, 1]]])
    trainer = trainer_of(tmp_path, negatives, 0.7, model_of(1))
    trainer._checked = trainer.accelerator.sync_gradients = True
    trainer.current_gradient_accumulation_steps = 1
    found, figures, ratios, ended = [], [], SidDpoTrainer.log_ratios, []

    def short_of_memory(self, model, positions):
        if len(positions) > 1 and 0 not in positions:  # in the second part
            ended.append(positions)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return ratios(self, model, positions)

    for limit in (None, TokenLimit(1000, False), TokenLimit(30, False)):
        trainer.limit = limit
        if limit is not None and limit.tokens == 30:
            monkeypatch.setattr(SidDpoTrainer, "log_ratios", short_of_memory)
        trainer.model.zero_grad()
        loss = trainer.training_step(trainer.model, {"rows": torch.tensor([0, 1, 2, 3])})
        found.append(torch.cat([loss.reshape(1), gradient_of(trainer.model)]))
        figures.append(trainer.figures.take())
    assert ended and trainer.limit.tokens < 30
    for values, noted in zip(found[1:], figures[1:], strict=True):
        assert_near(values, found[0], floor=0)
        assert noted == pytest.approx(figures[0], rel=1e-4)


@pytest.mark.parametrize(("several", "words"), [(True, "--prompts_per_device 1"), (False, "Lower negatives")])
def test_the_advice_is_that_of_this_stage(tmp_path, monkeypatch, several, words):
    trainer = trainer_of(tmp_path, np.array([[[0, 2], [1, 2], [0, 1], [0, 1]]]), 0.7, model_of(1))
    trainer.limit, trainer.is_deepspeed_enabled, trainer.tried = TokenLimit(1, True), several, True

    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(SidDpoTrainer, "log_ratios", out_of_memory)
    with pytest.raises(ConfigError, match=words):
        trainer.training_step(trainer.model, {"rows": torch.tensor([0, 1, 2, 3])})


class _GivenIds(DPOTrainer):
    """TRL's trainer on token ids as they are: it would tokenise texts, and put an end mark behind each."""

    def _prepare_dataset(self, dataset, *args, **kwargs):
        return dataset


def test_with_one_negative_a_step_is_trls(tmp_path):
    negatives = np.array([[[0], [3], [2], [1]]])
    pairs = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
    for row, (other,) in zip(ROWS, negatives[0].tolist(), strict=True):
        pairs["prompt_ids"].append(row["prompt"])
        pairs["chosen_ids"].append(SIDS[row["target"]] + row["tail"])
        pairs["rejected_ids"].append(SIDS[other] + row["tail"])
    found = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **other):
            found["gradient"] = gradient_of(model)

        def on_log(self, args, state, control, logs, **other):
            found.setdefault("loss", logs.get("loss"))

    reported = {"output_dir": str(tmp_path), "report_to": [], "use_cpu": True, "max_grad_norm": 1e9, "bf16": False}
    reported |= {"per_device_train_batch_size": 4, "max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    args, data = DPOConfig(**reported, beta=0.7, disable_tqdm=True), Dataset.from_dict(pairs)
    about = {"train_dataset": data, "processing_class": TOKENIZER, "callbacks": [Keep()]}
    _GivenIds(model=model_of(0), ref_model=model_of(1), args=args, **about).train()
    ours = trainer_of(tmp_path, negatives, 0.7, model_of(1))
    ours.state.global_step = 1
    loss = ours.compute_loss(ours.model, {"rows": torch.tensor([0, 1, 2, 3])})
    loss.backward()
    assert loss.item() == pytest.approx(found["loss"], rel=1e-5)
    assert_near(gradient_of(ours.model), found["gradient"], floor=0)


def test_a_first_loss_that_is_not_log_1_plus_n_is_refused(tmp_path):
    negatives = np.array([[[0, 2, 3]] * 4])
    same = trainer_of(tmp_path, negatives, 1.0, model_of(0))
    rows = {"rows": torch.tensor([0, 1])}
    assert same.compute_loss(same.model, rows).item() == pytest.approx(math.log(4), abs=1e-5)
    other = trainer_of(tmp_path, negatives, 1.0, model_of(1))
    with pytest.raises(MinioneRecError, match=r"the first loss is .*log\(1 \+ 3\) = 1.3863 within 0.001: the model"):
        other.compute_loss(other.model, rows)
    dropping = trainer_of(tmp_path, negatives, 1.0, model_of(0))
    for block in dropping.model.model.layers:
        block.self_attn.attention_dropout = 0.5
    dropping.model.train()
    with pytest.raises(MinioneRecError, match="computes otherwise in training than in evaluation"):
        dropping.compute_loss(dropping.model, rows)
