"""Packed batches: the loss, logits and gradients of the examples one by one, and nothing computed twice."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from support.decoding import tiny_model
from support.rounding import assert_near
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from minionerec.training import packing
from minionerec.training.packing import TreeCollator, good_row_length, picked_logits, picked_losses
from minionerec.training.sft import show_bias

VOCABULARY = 12


def model_of(attention="sdpa", vocabulary=VOCABULARY):
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
    return tiny_model(attention=attention, vocab_size=vocabulary, **shape).train().double()


def example(prompt, completion):
    return row([*prompt, *completion], [-100] * len(prompt) + list(completion))


def row(ids, labels):
    return {"input_ids": ids, "labels": labels, "weights": [1.0] * len(ids)}


def one_by_one(model, examples):
    """Labelled tokens with the logits that predict them, each example in a pass of its own."""
    logits, labels = [], []
    for row in examples:
        wanted = torch.tensor(row["labels"][1:])
        predicted = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        logits.append(predicted[wanted >= 0])
        labels.append(wanted[wanted >= 0])
    return torch.cat(logits), torch.cat(labels)


TASK = [1] * 9  # words that examples of one task share
EXAMPLES = [
    example([*TASK, 2, 3], [4, 5]),
    example([*TASK, 2, 3, 6], [7]),
    example([*TASK, 8], [9, 10, 11]),
    example([*TASK, 2, 3], [4, 5]),  # an example may occur twice
    example([2], [3]),
    row([5, 6, 7, 8, 9], [-100, 6, -100, 8, -100]),  # losses in the middle
]
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)
MODEL = model_of()


def assert_equal_to_one_by_one(model, examples, row_tokens):
    batch = TreeCollator(row_tokens)(examples)
    results = []
    for logits, labels in ((picked_logits(model, model, batch), batch["labels"][0]), one_by_one(model, examples)):
        model.zero_grad()
        losses = cross_entropy(logits, labels, reduction="none")
        losses.sum().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((losses.detach().sort().values, gradients))
    for ours, theirs in zip(*results, strict=True):
        assert_near(ours, theirs)  # norms compute in float32
    return batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row_tokens", [1, 20, 1000])
def test_packed_examples_do_not_see_each_other(attention, row_tokens):
    assert_equal_to_one_by_one(model_of(attention), EXAMPLES, row_tokens)


@settings(max_examples=40)
@given(st.lists(st.builds(example, tokens, tokens), min_size=1, max_size=8), st.integers(1, 60))
def test_any_examples_pack_exactly(examples, row_tokens):
    assert_equal_to_one_by_one(MODEL, examples, row_tokens)


def test_what_examples_share_is_computed_once():
    batch = TreeCollator(1000)(EXAMPLES[:4])
    # The task's nine tokens once, then 2 3 6 4 and 8 9 10; the last token of each example predicts nothing.
    assert batch["input_ids"].shape == (1, 9 + 4 + 3)
    assert batch["position_ids"].max() == 11
    assert batch["positions"].numel() == batch["labels"].numel() == 2 + 1 + 3 + 2


def test_unlike_examples_fill_rows_of_about_the_length_asked_for():
    torch.manual_seed(0)
    examples = [example([n % 11], torch.randint(11, (int(n),)).tolist()) for n in torch.randint(3, 30, (64,))]
    batch = TreeCollator(60)(examples)
    used = sum(len(row["input_ids"]) - 1 for row in examples)
    assert 40 <= batch["input_ids"].shape[1] <= 70
    assert used >= 0.9 * batch["input_ids"].numel()


def test_rows_are_as_long_as_whole_examples_fill():
    torch.manual_seed(0)
    examples = [example([n % 11], torch.randint(11, (33,)).tolist()) for n in range(64)]  # 33 are computed of each
    assert TreeCollator(64)(examples)["input_ids"].shape == (32, 66)


def test_tasks_longer_than_a_row_are_cut_where_it_is_full():
    torch.manual_seed(0)
    examples = [example(list(range(20)), torch.randint(11, (int(n),)).tolist()) for n in torch.randint(3, 30, (200,))]
    batch = TreeCollator(200)(examples)
    rows, width = batch["input_ids"].shape
    needed = 20 + sum(len(row["input_ids"]) - 21 for row in examples)  # the task once, and all that is after it
    assert 200 <= width <= 250
    assert rows * width < 1.05 * needed


def test_the_row_length_follows_the_width():
    assert good_row_length(MODEL) == 64
    assert good_row_length(Qwen2ForCausalLM(Qwen2Config(hidden_size=512, num_hidden_layers=1, vocab_size=9))) == 192


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that a tensor had which an operator computed."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() >= tensor.nbytes:
                self.elements = max(self.elements, tensor.numel())
        return found


def tied(model):
    return model


def untied(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    return model


def with_updates(model):
    """Low-rank updates, and rows of tokens that are trained in full, as `--lora_rank` trains them."""
    names = {"embed_tokens": [5, 69_999], "lm_head": [5, 69_999]}
    wrapped = get_peft_model(model, LoraConfig(target_modules="all-linear", trainable_token_indices=names))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad and "lora_A" not in name:
                parameter += torch.randn_like(parameter)
    show_bias(wrapped.get_base_model())
    return wrapped.get_base_model()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("changed", [tied, untied, with_updates])
def test_a_head_in_tiles_gives_the_same_losses_and_gradients_and_never_holds_all_logits(monkeypatch, dtype, changed):
    """Losses of labels and logits of other tokens at them, as a teacher's targets take them."""
    vocabulary, count = 70_000, 40
    model = model_of(vocabulary=vocabulary).to(dtype)
    add_fused_lm_head(model)
    model = changed(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = TreeCollator(64)([example([n, n + 1], range(n, n + 8)) for n in range(5)])
    assert batch["labels"].numel() == count
    positions, tokens = torch.tensor([3, 0, 17]), torch.tensor([[5, 69_999], [5, 5], [0, 1]])
    found = []
    for at_once in (vocabulary * count, vocabulary * count - 1):
        monkeypatch.setitem(packing.LOGITS_AT_ONCE, "cpu", at_once)
        model.zero_grad()
        with LargestTensor() as largest:
            losses, logits_of = picked_losses(model, model, batch)
            (losses.sum() + logits_of(positions, tokens).square().sum()).backward()
        gradients = [parameter.grad.clone() for parameter in trained]
        found.append((losses.detach(), logits_of(positions, tokens).detach(), gradients, largest.elements))
    (losses, logits, gradients, whole), (tiled, other, others, most) = found
    assert_near(losses, tiled)
    assert_near(logits, other)
    for ours, theirs in zip(others, gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
    assert whole == vocabulary * count and most < whole / 2
