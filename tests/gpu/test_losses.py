"""Losses and gradients on a GPU are those of the CPU; both in float32, to a ten-thousandth of the gradient's length."""

import copy

import numpy as np
import pytest
import torch
from support.decoding import tiny_model
from support.devices import CPU, TIGER, catalogue, gradients, moved, near, shop_of
from trl.trainer.utils import add_fused_lm_head

from minionerec.contrib.generative_baselines.config import TigerTrainConfig
from minionerec.contrib.generative_baselines.tiger import build_tiger
from minionerec.contrib.generative_baselines.train_tiger import adafactor, collate, row_losses
from minionerec.data.names import UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.models.decoding.trie import Trie
from minionerec.models.sequential.registry import MODELS, build_model
from minionerec.training.catalogue.objectives import Sampler
from minionerec.training.catalogue.row_adamw import RowAdamW
from minionerec.training.distillation import soft_targets, soften
from minionerec.training.grpo.loss import completion_scores, make_groups, policy_loss
from minionerec.training.packing import TreeCollator, picked_logits, shared_prefix_scores

SIZE = 64


@pytest.fixture(scope="module")
def shop():
    return shop_of()


def examples(rng, count=12):
    """Supervised rows that share their beginnings."""
    words = rng.integers(5, SIZE, 12).tolist()
    rows = []
    for _ in range(count):
        prompt, answer = words[: rng.integers(8, 13)] + rng.integers(5, SIZE, 3).tolist(), rng.integers(5, SIZE, 3)
        ids = [*prompt, *answer.tolist()]
        weights = rng.random(len(ids)).tolist()
        rows.append({"input_ids": ids, "labels": [*[-100] * len(prompt), *answer.tolist()], "weights": weights})
    return rows


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_supervised_rows(device, attention):
    batch = TreeCollator(64)(examples(np.random.default_rng(0)))

    def on(folder):
        model, there = tiny_model(attention=attention).to(folder), moved(batch, folder)

        def loss():
            logits = picked_logits(model, model, there).float()
            return torch.nn.functional.cross_entropy(logits, there["labels"][0], reduction="none") @ there["weights"]

        return gradients(model, loss)

    assert near(on(CPU), on(device))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_completions_that_share_a_prompt(device, attention):
    rng = np.random.default_rng(1)
    prompts = [rng.integers(5, SIZE, count).tolist() for count in (3, 17, 40)]
    completions = [[rng.integers(5, 9, rng.integers(1, 5)).tolist() for _ in range(5)] for _ in prompts]
    count = sum(len(ids) for many in completions for ids in many)
    weights, entropies = torch.randn(count, generator=torch.Generator().manual_seed(2)), []

    def on(folder):
        model = tiny_model(attention=attention)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model.to(folder)

        def loss():
            logps, entropy, _ = shared_prefix_scores(model, model, prompts, completions, 60)
            entropies.append(entropy.detach().cpu())
            return logps @ weights.to(logps.device)

        return gradients(model, loss)

    assert near(on(CPU), on(device)) and torch.allclose(*entropies, atol=1e-4)


@pytest.mark.parametrize("kind", ["grpo", "dapo", "gspo"])
def test_a_slice_of_grpo(device, kind):
    rng = np.random.default_rng(3)
    rows = [{"prompt": rng.integers(5, SIZE, count).tolist()} for count in (4, 9)]
    completions = [[rng.integers(5, SIZE, 3).tolist() for _ in range(4)] for _ in rows]
    advantages = np.array([[1.0, -0.5, 0.75, -0.25], [0.0, 0.0, 0.0, 0.0]], dtype=np.float32)
    about = {"advantages": advantages, "scored": np.array([True, False]), "tokens": 24}

    def on(folder):
        model, groups = tiny_model(), make_groups(rows, completions, **about, device=folder)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model.to(folder)
        logps = lambda: completion_scores(model, model, groups).logps  # noqa: E731
        return gradients(model, lambda: policy_loss(logps(), groups, kind=kind)[0])

    assert near(on(CPU), on(device))


def windows(size, seed=4):
    """Histories and labels of a catalogue of that size, int64 (8, 6), padded on the right."""
    rng = np.random.default_rng(seed)
    items, lengths = torch.from_numpy(rng.integers(1, size + 1, (8, 7))), torch.from_numpy(rng.integers(1, 7, 8))
    there = torch.arange(6) < lengths[:, None]
    histories, labels = items[:, :6].masked_fill(~there, 0), items[:, 1:].masked_fill(~there, -100)
    weights = torch.from_numpy(rng.random((8, 6)).astype(np.float32))
    return {"histories": histories, "labels": labels, "weights": weights}


@pytest.mark.parametrize("way", ["exact", "sampled", "distribution"])
def test_a_catalogue_model(shop, device, way):
    table = shop[0]
    batch = windows(table.n_unique)
    counts = np.bincount(batch["labels"][batch["labels"] > 0].numpy() - 1, minlength=table.n_unique)

    def on(folder):
        model, there = catalogue(shop).to(folder), moved(batch, folder)
        reported = {"leave_out": True}
        if way == "sampled":
            torch.manual_seed(5)
            reported["sample"] = Sampler(counts, 9).draw(there["labels"])
        if way == "distribution":
            return gradients(model, lambda: model(**there, distribution=True, **reported).logits.square().mean())
        return gradients(model, lambda: model(**there, **reported).loss)

    assert near(on(CPU), on(device))


def test_rows_that_wait_for_their_step(shop, device):
    """Weights after some steps of the sampled loss and the optimiser that leaves other rows alone."""
    table = shop[0]
    ended = []
    for folder in (CPU, device):
        model = catalogue(shop).to(folder)
        optimizer = RowAdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1)
        counts = np.ones(table.n_unique, dtype=np.int64)
        sampler = Sampler(counts, 3)
        torch.manual_seed(6)
        for step in range(6):
            there = moved(windows(table.n_unique, 10 + step), folder)
            there = {name: value[:2] for name, value in there.items()}
            sample = sampler.draw(there["labels"])
            columns, histories = sample[0].numbers, there["histories"]
            rows = torch.cat([columns, histories[histories > 0] - 1]).unique()
            optimizer.refresh(model.row_tables(rows, columns))
            optimizer.zero_grad()
            model(**there, leave_out=True, sample=sample).loss.backward()
            optimizer.step()
            if step == 2:  # written and read, as at a checkpoint
                state = copy.deepcopy(optimizer.state_dict())
                optimizer.load_state_dict(state)
        optimizer.settle()
        ended.append(torch.cat([weight.detach().cpu().flatten() for weight in model.parameters()]))
    assert torch.allclose(*ended, atol=1e-4)


def test_tiger(shop, device):
    _, tokenizer, _, prompts = shop
    rng = np.random.default_rng(7)
    rows = [
        {"input_ids": [*prompt, 1], "labels": rng.choice(prompt, 3).tolist(), "weights": float(weight)}
        for prompt, weight in zip(prompts, rng.random(len(prompts)), strict=True)
    ]

    def on(folder):
        model, there = build_tiger(tokenizer, 9, dropout_rate=0.0, **TIGER).to(folder), moved(collate(rows), folder)
        return gradients(model, lambda: row_losses(model, there["input_ids"], there["labels"]) @ there["weights"])

    assert near(on(CPU), on(device))


def test_steps_of_adafactor_over_a_tiger(shop, device):
    """Six steps with the gradients of one device: on the other they move the weights as far."""
    tokenizer = shop[1]
    drawn, ended = torch.Generator().manual_seed(10), []
    start = build_tiger(tokenizer, 9, dropout_rate=0.0, **TIGER)
    steps = [[torch.randn(each.shape, generator=drawn) for each in start.parameters()] for _ in range(6)]
    for folder in (CPU, device):
        model = build_tiger(tokenizer, 9, dropout_rate=0.0, **TIGER).to(folder)
        optimizer = adafactor(TigerTrainConfig(corpus="c", sids="s", output="unused"), model)
        for step, gradients_of_step in enumerate(steps):
            for weight, gradient in zip(model.parameters(), gradients_of_step, strict=True):
                weight.grad = gradient.to(folder)
            optimizer.step()
            if step == 2:  # written and read, as at a checkpoint
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        ended.append(torch.cat([weight.detach().cpu().flatten() for weight in model.parameters()]))
    before = torch.cat([weight.detach().flatten() for weight in start.parameters()])
    assert torch.allclose(*ended, atol=1e-5) and not torch.allclose(ended[0], before, atol=1e-2)


def test_a_teacher(shop, device):
    """Soft targets of a teacher that lies on the CPU at first, and the loss that they make."""
    table, _, ids, _ = shop
    rng = np.random.default_rng(8)
    histories = torch.from_numpy(rng.integers(1, table.n_unique + 1, (3, 4)))
    targets = rng.integers(0, table.n_unique, 3)
    labels = torch.from_numpy(ids[np.arange(3), table.distinct_codes[targets]]).flatten()
    batch = {"labels": labels[None], "histories": histories, "rows": torch.arange(3), "slots": torch.tensor([3, 1, 0])}
    batch |= {"contexts": torch.full((3,), UNKNOWN), "levels": torch.arange(3).repeat(3)}
    logits = torch.randn(9, int(ids.max()) + 1, generator=torch.Generator().manual_seed(9))

    def on(folder):
        there, own = moved(batch, folder), logits.to(folder)
        soft = soft_targets(catalogue(shop), Trie.build(table.codes, ids), there)
        losses = torch.nn.functional.cross_entropy(own, there["labels"][0], reduction="none")
        softened = soften(losses, lambda at, ids: own[at].gather(1, ids), there["labels"][0], soft, 0.7)
        return soft.probabilities.cpu(), softened.cpu()

    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(on(CPU), on(device), strict=True))


@pytest.mark.parametrize("name", sorted(name for name, kind in MODELS.items() if not kind.reads_digits))
def test_sequential_models(device, name, monkeypatch):
    """Scores after histories, and a finite loss of training with a gradient that is finite too."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which convolutions and GRUs round by otherwise
    rng = np.random.default_rng(10)
    histories = torch.from_numpy(rng.integers(1, 31, (12, 8)))
    histories[:, :3] = 0
    targets, users = torch.from_numpy(rng.integers(1, 31, 12)), torch.arange(12)
    hyper = {"num_users": 12} if name == "caser" else {}
    scores = []
    for folder in (CPU, device):
        torch.manual_seed(11)
        model = build_model(name, num_items=30, max_len=8, **hyper)
        there = histories if model.padding == "left" else histories.flip(1)
        model.to(folder).eval()
        with torch.no_grad():
            scores.append(model.scores(there.to(folder), users.to(folder)).cpu())
    assert torch.allclose(*scores, atol=1e-4)
    model.train()
    value, gradient = gradients(model, lambda: model.loss(there.to(folder), targets.to(folder), users.to(folder)))
    assert np.isfinite(value) and gradient.isfinite().all() and gradient.norm() > 0


def test_a_sequential_model_with_counts(device):
    """A step at all positions, each of which leaves out what its own answer added to the counts."""
    rng = np.random.default_rng(12)
    items = rng.integers(1, 31, (20, 9)).astype(np.int32)
    histories, targets = items[:, :-1], items[:, 1:]
    counted = count_transitions([(histories, targets)], 30, 3, 0.5, 0.2)

    def on(folder):
        torch.manual_seed(13)
        hyper = {"reach": 3, "num_transitions": counted.nnz, "dropout": 0.0, "decay": 0.5, "reverse": 0.2}
        model = build_model("causal", num_items=30, max_len=8, **hyper)
        model.set_transitions(counted)
        model.to(folder).train()
        rows, wanted = (torch.from_numpy(part).to(folder, torch.int64) for part in (histories, targets))
        return gradients(model, lambda: model.sequence_loss(rows, wanted))

    assert near(on(CPU), on(device))
