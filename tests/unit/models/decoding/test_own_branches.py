"""Models that open branches of their own: a mixture of two is searched like any language model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.decoding import VOCABULARY, lists, random_trie, sid_scores, tiny_model

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.branches import CausalBranches, OpensBranches, evaluating
from minionerec.models.decoding.decoder import decode_prompts
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.trie import Trie


class MixtureBranches:
    """The branches of two models side by side; probabilities of next tokens are averaged."""

    def __init__(self, parts):
        self.parts = parts
        self.widths = [part.hidden.shape[-1] for part in parts]
        self.hidden = torch.cat([part.hidden for part in parts], -1)

    @property
    def count(self):
        return self.parts[0].count

    def run(self, tokens, parents, depth):
        return torch.cat([part.run(tokens, parents, depth) for part in self.parts], -1)

    def scores(self, hidden, tokens, present, normaliser="full", temperature=1.0):
        states = hidden.split(self.widths, -1)
        found = [
            part.scores(state, tokens, present, normaliser, temperature)
            for part, state in zip(self.parts, states, strict=True)
        ]
        return torch.stack(found).logsumexp(0) - np.log(len(found))


class Mixture(OpensBranches):
    def __init__(self, *models):
        self.models = models

    @property
    def device(self):
        return torch.device("cpu")

    @property
    def vocab_size(self):
        return VOCABULARY

    def branches(self, prompts, trie):
        return MixtureBranches([CausalBranches(model, prompts, trie.levels) for model in self.models])


@pytest.fixture
def mixture():
    return Mixture(tiny_model("qwen2", seed=1), tiny_model("llama", seed=2))


def averaged(mixture):
    """The next tokens' averaged log-probabilities, as the logits of one model."""
    return lambda rows: SimpleNamespace(
        logits=torch.stack([model(rows).logits.double().softmax(-1) for model in mixture.models]).mean(0).log()
    )


def test_searches_of_a_mixture_find_what_enumeration_finds(mixture):
    trie, _ = random_trie(np.random.default_rng(0), n=40)
    prompts = [[1, 2, 3], [4], [5, 6]]
    beam = lists(beam_search(mixture, prompts, trie, 64))
    exact = exact_search(mixture, prompts, trie, 7, at_once=3)
    for row, prompt in enumerate(prompts):
        wanted = sid_scores(averaged(mixture), prompt, trie)
        assert dict(beam[row]) == pytest.approx(dict(enumerate(wanted.tolist())), abs=1e-4)
        best = wanted.argsort(descending=True)[:7].tolist()
        assert exact.sids[row].tolist() == best == [number for number, _ in beam[row][:7]]


def test_a_mixture_is_sampled_and_decoded_in_batches(mixture):
    trie, codes = random_trie(np.random.default_rng(1), n=30)
    drawn = sample_search(mixture, [[3, 4]], trie, len(codes), generator=torch.Generator().manual_seed(0))
    assert sorted(drawn.sids[0].tolist()) == list(range(len(codes)))
    assert float(drawn.log_probs.exp().sum()) == pytest.approx(1, abs=1e-5)
    sids, scores = decode_prompts(mixture, [[1], [2, 3], [4]], trie, 5, batch_size=2)
    for row, prompt in enumerate([[1], [2, 3], [4]]):
        alone = beam_search(mixture, [prompt], trie, 5)
        assert sids[row].tolist() == alone.sids[0].tolist()
        assert scores[row] == pytest.approx(alone.scores[0].numpy(), abs=1e-5)


def test_what_a_mixture_cannot_do_is_reported(mixture):
    trie = Trie.build(np.array([[0, 1]]), np.array([[5, 6], [7, VOCABULARY]]))
    with pytest.raises(ConfigError, match=f"has token {VOCABULARY}, but the model has {VOCABULARY} tokens"):
        beam_search(mixture, [[1]], trie, 1)
    trie, _ = random_trie(np.random.default_rng(0), n=4)
    with pytest.raises(DataError, match="prompt 0 of the batch is empty"):
        exact_search(mixture, [[]], trie, 1)


def test_a_model_must_open_branches_to_be_one_that_does():
    class Forgetful(OpensBranches):
        device = torch.device("cpu")
        vocab_size = 5

    with pytest.raises(TypeError, match=r"abstract method '?branches"):
        Forgetful()


def test_models_are_held_in_evaluation_mode_and_left_as_they_were(mixture):
    model = tiny_model().train()
    model.model.layers[0].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training
    with evaluating(mixture):
        pass
