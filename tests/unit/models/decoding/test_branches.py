"""The shared prefix: head in slices, prompts of all lengths, forced tails, and what it refuses."""

import numpy as np
import pytest
import torch
from support.decoding import VOCABULARY, tiny_model, token_ids

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding import branches
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.branches import OpensBranches, candidate_scores, evaluating, prefill, prefill_groups
from minionerec.models.decoding.leaves import LeafModel
from minionerec.models.decoding.trie import Trie


def prompts_of(rng, lengths):
    return [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]


@pytest.mark.parametrize("normaliser", ["full", "renormalised"])
@pytest.mark.parametrize("biased", [False, True])
def test_head_in_slices_equals_the_whole_head(monkeypatch, normaliser, biased):
    model = tiny_model()
    if biased:
        model.lm_head = torch.nn.Linear(32, VOCABULARY)
    rng = np.random.default_rng(0)
    hidden = torch.randn(700, 32)
    tokens = torch.from_numpy(rng.integers(0, VOCABULARY, (700, 9)))
    present = torch.from_numpy(rng.random((700, 9)) < 0.7)
    present[:, 0] = True
    monkeypatch.setattr(branches, "LOGITS_AT_ONCE", {"cpu": 1000})
    with torch.no_grad():
        got = candidate_scores(model, hidden, tokens, present, normaliser)
        logits = model.lm_head(hidden).double()
    wanted = logits.gather(1, tokens)
    over = logits if normaliser == "full" else wanted.masked_fill(~present, -torch.inf)
    wanted = (wanted - over.logsumexp(1, keepdim=True)).masked_fill(~present, -torch.inf)
    assert torch.equal(torch.isinf(got), ~present)
    assert torch.allclose(got[present].double(), wanted[present], atol=1e-4)


class WrappedHead(torch.nn.Module):
    """A head that is no plain linear layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        return self.inner(hidden)


def test_a_head_that_is_no_linear_layer_is_called(monkeypatch):
    model = tiny_model()
    rng = np.random.default_rng(1)
    trie = Trie.build(rng.integers(0, 8, (40, 3)), token_ids(3, 8))
    wanted = beam_search(model, [[1, 2], [3]], trie, 10)
    model.lm_head = WrappedHead(model.lm_head)
    monkeypatch.setattr(branches, "LOGITS_AT_ONCE", {"cpu": 100})
    got = beam_search(model, [[1, 2], [3]], trie, 10)
    assert torch.equal(got.sids, wanted.sids)


@pytest.mark.parametrize("full_pass", [0, 60])
def test_prefill_groups_hold_every_prompt_and_little_padding(full_pass):
    rng = np.random.default_rng(2)
    for _ in range(100):
        lengths = rng.integers(1, 200, int(rng.integers(1, 30))).tolist()
        groups = prefill_groups(lengths, full_pass)
        assert sorted(folder for group in groups for folder in group) == list(range(len(lengths)))
        for group in groups:
            real, padded = sum(lengths[i] for i in group), max(lengths[i] for i in group) * len(group)
            assert padded <= max(1.1 * real, full_pass)


def test_prefill_in_several_passes_gives_the_same_state(monkeypatch):
    model = tiny_model()
    prompts = prompts_of(np.random.default_rng(3), [3, 40, 1, 17, 40, 39, 16])
    with torch.no_grad():
        monkeypatch.setattr(branches, "_FULL_PASS", {"cpu": 10_000})
        cache, mask, hidden = prefill(model, prompts)
        monkeypatch.setattr(branches, "_FULL_PASS", {"cpu": 0})
        cache_of_several, mask_of_several, hidden_of_several = prefill(model, prompts)
    assert torch.equal(mask, mask_of_several)
    assert mask.sum(-1).tolist() == [len(prompt) for prompt in prompts]
    assert torch.allclose(hidden, hidden_of_several, atol=1e-4)
    for a, b in zip(cache.layers, cache_of_several.layers, strict=True):
        seen = mask[:, None, :, None]
        assert torch.allclose(a.keys * seen, b.keys * seen, atol=1e-4)
        assert torch.allclose(a.values * seen, b.values * seen, atol=1e-4)


def test_equal_prompts_are_run_once():
    model = tiny_model()
    trie = Trie.build(np.random.default_rng(4).integers(0, 8, (40, 3)), token_ids(3, 8))
    seen = []
    hook = model.get_decoder().embed_tokens.register_forward_pre_hook(lambda _, args: seen.append(args[0].numel()))
    result = beam_search(model, [[1, 2], [3, 4, 5], [1, 2], [1, 2]], trie, 5)
    hook.remove()
    assert sum(seen) == 2 * 3 + 2 * (5 + 5)  # prompts padded to 3, two levels of five beams; never the last code
    alone = beam_search(model, [[1, 2]], trie, 5)
    for row in (0, 2, 3):
        assert torch.equal(result.sids[row], alone.sids[0])


def test_no_prompts_give_no_lists():
    result = beam_search(tiny_model(), [], Trie.build(np.array([[0]]), token_ids(1, 2)), 3)
    assert result.sids.shape == result.scores.shape == (0, 3)


def test_foreign_prompts_tries_and_models_are_refused():
    model = tiny_model()
    trie = Trie.build(np.array([[0, 1], [2, 2]]), token_ids(2, 3))
    with pytest.raises(DataError, match="prompt 1 of the batch is empty"):
        beam_search(model, [[1], []], trie, 2)
    with pytest.raises(DataError, match="prompt 2 of the batch holds token 64, but the model has 64 tokens"):
        beam_search(model, [[1], [2], [3, 64]], trie, 2)
    with pytest.raises(ConfigError, match="the trie has token 70, but the model has 64 tokens"):
        beam_search(model, [[1]], Trie.build(np.array([[0, 1]]), token_ids(2, 3) + 60), 2)
    capped = tiny_model("llama")
    capped.config.logit_scale = 2.0
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM: is a llama model, scaled logits \(logit_scale 2.0\)"):
        beam_search(capped, [[1]], trie, 2)


def test_not_a_number_names_the_row_of_the_first_prompt_that_has_it():
    model = tiny_model()
    trie = Trie.build(np.array([[0, 1], [2, 2]]), token_ids(2, 3))
    with torch.no_grad():
        model.get_input_embeddings().weight[50] = float("nan")
    with pytest.raises(DataError, match="scores for prompt 3 of the batch are not numbers"):
        beam_search(model, [[1], [2], [1], [50, 1], [50, 1]], trie, 2)


def test_a_model_must_open_branches_to_be_one_that_does():
    class Forgetful(OpensBranches):
        device = torch.device("cpu")
        vocab_size = 5

    with pytest.raises(TypeError, match=r"abstract method '?branches"):
        Forgetful()


def test_models_are_held_in_evaluation_mode_and_left_as_they_were():
    model = tiny_model().train()
    model.model.layers[0].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training
    with evaluating(LeafModel(torch.zeros(1, 2), VOCABULARY)):  # which is no module
        pass
