"""Packed batches: the loss, logits and gradients of the examples one by one, and nothing computed twice."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

from minionerec.training.packing import TreeCollator, good_row_length, picked_logits

VOCABULARY = 12


def model_of(attention="sdpa"):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        attn_implementation=attention,
        use_sliding_window=False,
        initializer_range=0.4,
    )
    return Qwen2ForCausalLM(config).double()


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
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # norms compute in float32
    return batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row_tokens", [1, 20, 1000])
def test_packed_examples_do_not_see_each_other(attention, row_tokens):
    assert_equal_to_one_by_one(model_of(attention), EXAMPLES, row_tokens)


@settings(max_examples=40, deadline=None)
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


def test_the_row_length_follows_the_width():
    assert good_row_length(MODEL) == 64
    assert good_row_length(Qwen2ForCausalLM(Qwen2Config(hidden_size=512, num_hidden_layers=1, vocab_size=9))) == 192
