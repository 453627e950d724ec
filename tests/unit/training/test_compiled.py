"""Compiled blocks: the same losses and gradients for any batch, and never where they do not pay."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.decoding import random_trie, tiny_model
from support.rounding import assert_near
from torch._dynamo.utils import counters
from transformers import PreTrainedModel

from minionerec.models.decoding.decoder import decode_prompts
from minionerec.training import trainer as trainer_module
from minionerec.training.packing import TreeCollator, picked_logits
from minionerec.training.sft import add_dropout
from minionerec.training.trainer import RankingEvaluation, compile_blocks


@pytest.fixture(autouse=True)
def compiler():
    torch._dynamo.reset()
    counters.clear()


def batch(count, length=6):
    rng = torch.Generator().manual_seed(count)
    rows = torch.randint(5, 30, (count, length), generator=rng).tolist()
    return TreeCollator(16)(
        [{"input_ids": row, "labels": [-100] * 2 + row[2:], "weights": [1.0] * length} for row in rows]
    )


def loss_and_gradients(model, inputs):
    model.zero_grad()
    logits = picked_logits(model, model, inputs)
    loss = torch.nn.functional.cross_entropy(logits, inputs["labels"][0])
    loss.backward()
    return loss.item(), [parameter.grad.clone() for parameter in model.parameters()]


def stub(**changes):
    """What `compile_blocks` of a trainer asks of it, on a GPU with enough steps."""
    found = SimpleNamespace(model=tiny_model(), args=SimpleNamespace(device=torch.device("cuda")), compiled=False)
    vars(found).update(changes)
    return found


def with_dropout(model):
    """Whose seeds are drawn by the processor on a CPU, which breaks the graph there."""
    add_dropout(model, 0.5)


@pytest.mark.parametrize(
    "change",
    [
        None,
        pytest.param(PreTrainedModel.activation_checkpointing_enable, marks=pytest.mark.slow),
        pytest.param(with_dropout, marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_are_the_same_and_neither_sizes_nor_searches_compile_more(change):
    plain, compiled = tiny_model().train(), tiny_model().train()
    names = list(compiled.state_dict())
    assert compile_blocks(compiled, "aot_eager") == 2
    for model in (plain, compiled) if change else ():
        change(model)
    for number, count in enumerate((4, 9, 2, 40)):
        inputs, found = batch(count), []
        for model in (plain, compiled):
            torch.manual_seed(count)
            found.append(loss_and_gradients(model, inputs))
        (loss, gradients), (other, others) = found
        assert other == pytest.approx(loss, rel=1e-6)
        largest = max(gradient.abs().max() for gradient in gradients)
        for ours, theirs in zip(others, gradients, strict=True):
            assert_near(ours, theirs, floor=float(largest))
        if not number:
            graphs = counters["stats"]["unique_graphs"]
    most = graphs * (1 if change is not with_dropout else 2) + 1  # a batch of one row is a size of its own
    assert graphs <= counters["stats"]["unique_graphs"] <= most
    assert bool(counters["graph_break"]) == (change is with_dropout)
    assert list(compiled.state_dict()) == names

    graphs = counters["stats"]["unique_graphs"]
    lists = []
    for model in (plain, compiled):
        with RankingEvaluation.as_written(stub(model=model, compiled=model is compiled)), torch.no_grad():
            trie = random_trie(np.random.default_rng(0))[0]
            lists.append(decode_prompts(model.eval(), [[1, 2, 3], [4, 5]], trie, 5)[0])
    assert (lists[0] == lists[1]).all()
    assert counters["stats"]["unique_graphs"] == graphs


def test_blocks_are_compiled_for_long_runs_on_a_gpu_alone(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(trainer_module, "_can_compile", lambda device: True)
    done = []
    monkeypatch.setattr(trainer_module, "compile_blocks", lambda model: done.append(model) or 2)

    def compiled(steps, **changes):
        one = stub(**changes)
        RankingEvaluation.compile_blocks(one, steps)
        return one.compiled

    assert compiled(200, ref_model=tiny_model()) and len(done) == 2
    assert "compiled for this GPU" in caplog.text
    assert not compiled(199)
    assert not compiled(200, args=SimpleNamespace(device=torch.device("cpu")))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not compiled(200)
    monkeypatch.undo()
    for error, reason in ((RuntimeError("no C compiler\nmore"), "no C compiler"), (KeyError(), "KeyError")):
        monkeypatch.setattr(torch, "compile", Mock(side_effect=error))
        assert not compiled(200, args=SimpleNamespace(device=torch.device("cuda")))
        assert f"torch.compile fails here: {reason}" in caplog.messages[-1]
