"""Sampling without replacement against exact probabilities of draws from a small catalogue."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from support.decoding import VOCABULARY, lists, tiny_model, token_ids

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.trie import Trie


def tiny(seed=0):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return tiny_model(seed=seed, **shape, intermediate_size=16, initializer_range=0.3)


def draw(model, prompt, trie, k, times, seed):
    generator = torch.Generator().manual_seed(seed)
    return sample_search(model, [prompt] * times, trie, k, generator)


UNEVEN = np.array([[0, 1, 2], [0, 1, 3], [0, 2, -1], [1, -1, -1], [2, 0, 0], [2, 3, 1]])


def test_draws_have_the_frequencies_of_sampling_without_replacement():
    model, trie, prompt = tiny(), Trie.build(UNEVEN, token_ids(3, 4)), [3, 1, 4]
    result = draw(model, prompt, trie, 3, 6000, seed=1)
    whole = draw(model, prompt, trie, 10, 1, seed=2)
    p = np.zeros(6)
    p[whole.sids[0, :6].numpy()] = whole.scores[0, :6].exp().numpy()
    assert p.sum() == pytest.approx(1, abs=1e-5)
    p /= p.sum()
    listed = dict(lists(beam_search(model, [prompt], trie, 10, "renormalised"))[0])
    assert {sid: np.log(p[sid]) for sid in range(6)} == pytest.approx(listed, rel=1e-4, abs=1e-4)
    orders = list(permutations(range(6), 3))
    expected = [p[a] * p[b] / (1 - p[a]) * p[c] / (1 - p[a] - p[b]) for a, b, c in orders]
    position = {order: number for number, order in enumerate(orders)}
    counts = np.bincount([position[tuple(row)] for row in result.sids.tolist()], minlength=len(orders))
    assert chisquare(counts, np.array(expected) * 6000).pvalue > 1e-3
    included = np.bincount(result.sids.flatten().numpy(), minlength=6) / 6000
    wanted = [sum(e for order, e in zip(orders, expected, strict=True) if sid in order) for sid in range(6)]
    assert included == pytest.approx(np.array(wanted), abs=4 * 0.5 / np.sqrt(6000))


def test_a_seed_repeats_and_another_does_not():
    model = tiny(1)
    trie = Trie.build(np.random.default_rng(0).integers(0, 6, (100, 3)), token_ids(3, 6))
    first, again, other = (draw(model, [1, 2], trie, 8, 4, seed) for seed in (5, 5, 6))
    assert torch.equal(first.sids, again.sids) and torch.equal(first.scores, again.scores)
    assert not torch.equal(first.sids, other.sids)
    assert not torch.equal(first.sids[0], first.sids[1])  # equal prompts draw independently


def test_samples_are_valid_and_distinct():
    model = tiny(2)
    rng = np.random.default_rng(1)
    for n, k in ((1, 4), (7, 7), (60, 16), (300, 50)):
        trie = Trie.build(rng.integers(0, 7, (n, 3)), token_ids(3, 7))
        prompts = [rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).tolist() for _ in range(5)]
        result = sample_search(model, prompts, trie, k, generator=torch.Generator().manual_seed(n))
        size = min(k, trie.n_sids)
        for sids, scores in zip(result.sids, result.scores, strict=True):
            found = sids[sids >= 0].tolist()
            assert len(found) == len(set(found)) == size and max(found) < trie.n_sids
            assert scores[:size].isfinite().all() and torch.isinf(scores[size:]).all()


def test_what_cannot_be_sampled_is_refused():
    model, trie = tiny(), Trie.build(np.array([[0, 1], [0, -1]]), token_ids(2, 4))
    with pytest.raises(ConfigError, match="some SIDs begin other SIDs"):
        sample_search(model, [[1]], trie, 2)
    assert sorted(sample_search(model, [[1]], trie.with_tail([60]), 5).sids[0, :2].tolist()) == [0, 1]
    whole = Trie.build(np.array([[0, 1]]), token_ids(2, 4))
    with pytest.raises(ConfigError, match=r"k is 0; it must be at least 1"):
        sample_search(model, [[1]], whole, 0)
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = float("nan")
    with pytest.raises(DataError, match="scores for prompt 1 of the batch are not numbers"):
        sample_search(model, [[1], [9]], whole, 1)
