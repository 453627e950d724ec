"""Shared-prefix scoring against scoring every prompt with every completion on its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoding import tiny_model
from support.rounding import assert_near, rounding
from trl.trainer.utils import add_fused_lm_head

from minionerec.core.errors import DataError
from minionerec.training.packing import pack_groups, shared_prefix_scores, tree_mask

VOCABULARY = 40


def make_model(attention="sdpa", checkpointing=False):
    model = tiny_model(attention=attention, vocab_size=VOCABULARY)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


MODELS = {
    "sdpa": make_model(),
    "eager": make_model("eager"),
    "checkpointing": make_model(checkpointing=True),
}

tokens = st.integers(1, VOCABULARY - 1)
# Few different tokens, so that completions share what they begin with, or are equal, or begin others.
completions = st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=6)
groups = st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=9), completions), min_size=1, max_size=5).filter(
    lambda groups: any(ids for _, many in groups for ids in many)
)


def one_by_one(model, prompts, completions):
    logps, entropies = [], []
    for prompt, many in zip(prompts, completions, strict=True):
        for ids in filter(None, many):
            rows = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            logps.append(rows.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1))
            entropies.append(-(rows.exp() * rows).sum(-1))
    return torch.cat(logps), torch.cat(entropies)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=25)
@given(groups=groups, row_tokens=st.integers(1, 60), seed=st.integers(0, 9))
def test_values_and_gradients_are_those_of_copies(kind, groups, row_tokens, seed):
    model = MODELS[kind]
    prompts, many = [prompt for prompt, _ in groups], [completions for _, completions in groups]
    weights = torch.randn(
        sum(len(ids) for group in many for ids in group), generator=torch.Generator().manual_seed(seed)
    )
    found, gradients = [], []
    for score in (
        lambda: one_by_one(model, prompts, many),
        lambda: shared_prefix_scores(model, model, prompts, many, row_tokens)[:2],
    ):
        model.zero_grad()
        logps, entropies = score()
        (logps * weights).sum().backward()
        found.append((logps.detach(), entropies.detach()))
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert_near(ours, theirs)
    # TRL's head computes in float32, in which sums in another order differ more where terms cancel.
    assert (gradients[1] - gradients[0]).norm() <= rounding(1, 2048) * gradients[0].norm() + 1e-7


def test_what_is_common_is_there_once():
    # Sixteen SIDs below two first codes and four second ones, with an end token each.
    many = [[20 + k // 8, 10 + k // 4, 30 + k % 4, 1] for k in range(16)]
    packed = pack_groups([list(range(2, 9))], [many], 512)
    assert packed["input_ids"].shape == (1, 7 + 2 + 4 + 16)
    assert len(packed["positions"]) == 16 * 4
    assert len(packed["positions"].unique()) == 1 + 2 + 4 + 16


def test_groups_fill_rows():
    prompts = [[1] * length for length in (9, 2, 4, 3, 6)]
    packed = pack_groups(prompts, [[[5]]] * 5, 12)
    # 9 and 3; 6, 4 and 2.
    assert packed["input_ids"].shape == (2, 12)
    assert int((packed["input_ids"] == 1).sum()) == 24
    assert pack_groups(prompts, [[[5]]] * 5, 1)["input_ids"].shape == (3, 9)


def test_nothing_is_seen_across_groups():
    model = MODELS["sdpa"]
    visible = tree_mask(pack_groups([[1, 2], [3]], [[[4, 9], [5, 9]], [[6, 9]]], 9)["ends"], model)[0, 0].int()
    assert visible.tolist() == [
        [1, 0, 0, 0, 0, 0],  # 1
        [1, 1, 0, 0, 0, 0],  # 2
        [1, 1, 1, 0, 0, 0],  # 4
        [1, 1, 0, 1, 0, 0],  # 5
        [0, 0, 0, 0, 1, 0],  # 3
        [0, 0, 0, 0, 1, 1],  # 6
    ]


def test_the_head_is_computed_for_completion_tokens_alone(monkeypatch):
    seen = []
    apply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **out: (seen.append((len(a), b.shape[1])), apply(a, b, **out))[1])
    with torch.no_grad():
        shared_prefix_scores(MODELS["sdpa"], MODELS["sdpa"], [[1, 2, 3, 4, 5, 6]], [[[7, 8], [7, 9]]])
    assert [rows for rows, columns in seen if columns == VOCABULARY] == [4]


def test_no_prompt_is_refused():
    for prompts, many in (([], []), ([[1], []], [[[2]], [[3]]])):
        with pytest.raises(DataError, match=f"{len(prompts)} prompts, and each needs at least one token"):
            pack_groups(prompts, many, 9)


@pytest.mark.slow
def test_flex_attention_gives_the_same():
    """Its backward pass needs a GPU; what it may see is the same in both directions."""
    model = make_model("flex_attention")
    prompts, many = [[1, 2, 3], [4, 5], [9]], [[[1, 2], [1, 3]], [[2], [2, 2, 2]], [[3, 3]]]
    with torch.no_grad():
        found = shared_prefix_scores(model, model, prompts, many)[0]
        wanted, _ = one_by_one(MODELS["sdpa"], prompts, many)
    assert torch.allclose(found, wanted, atol=1e-5)
