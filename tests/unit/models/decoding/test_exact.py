"""Exact search against enumeration."""

import numpy as np
import pytest
import torch
from support.decoding import VOCABULARY, lists, sid_scores, tiny_model, token_ids
from support.devices import same_lists
from support.rounding import assert_best, rounding

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.trie import Trie


def random_codes(rng, n, size=7, ragged=False):
    codes = rng.integers(0, size, (n, 3))
    if ragged:
        codes[rng.random(n) < 0.3, 2] = -1
        codes[rng.random(n) < 0.1, 1:] = -1
    return codes


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_exact_search_equals_enumeration(seed, ragged):
    rng = np.random.default_rng(seed)
    model, table = tiny_model(seed=seed), token_ids(3, 7)
    trie = Trie.build(random_codes(rng, int(rng.integers(1, 120)), ragged=ragged), table)
    prompts = [rng.integers(0, VOCABULARY, length).tolist() for length in (1, 9, 4)]
    wanted = [sid_scores(model, prompt, trie).numpy() for prompt in prompts]
    for k, at_once in ((1, 1), (5, 3), (200, 64)):
        result = exact_search(model, prompts, trie, k, at_once=at_once)
        for listed, scores in zip(lists(result), wanted, strict=True):
            assert_best(listed, scores, k)


def test_few_prefixes_are_opened_and_none_beyond_what_the_bounds_ask():
    rng = np.random.default_rng(7)
    model, codes = tiny_model(seed=1, initializer_range=1.0), random_codes(rng, 300)
    trie = Trie.build(codes, token_ids(3, 7))
    prefixes = Trie.build(np.concatenate([np.where(np.arange(3) < d, codes, -1) for d in (1, 2)]), token_ids(3, 7))
    prompts = [rng.integers(0, VOCABULARY, 5).tolist() for _ in range(6)]
    one = exact_search(model, prompts, trie, 3, at_once=1)
    many = exact_search(model, prompts, trie, 3, at_once=50)
    assert same_lists((one.sids, one.scores), (many.sids, many.scores))
    assert (one.opened <= many.opened).all() and (many.opened <= prefixes.n_sids + 1).all()
    for prompt, opened, scores in zip(prompts, one.opened.tolist(), one.scores, strict=True):
        # Opened one at a time, best first: the root, and exactly the prefixes that score above the last of the list; a
        # prefix that only rounding tells from it may be opened or not.
        above = sid_scores(model, prompt, prefixes) - float(scores[-1])
        least, most = (1 + int((above > bound).sum()) for bound in (rounding(scores), -rounding(scores)))
        assert least <= opened <= most
        assert opened <= prefixes.n_sids


def test_renormalised_lists_equal_a_beam_as_wide_as_the_catalogue():
    rng = np.random.default_rng(3)
    model = tiny_model(seed=2)
    trie = Trie.build(random_codes(rng, 80), token_ids(3, 7))
    prompts = [rng.integers(0, VOCABULARY, length).tolist() for length in (2, 6)]
    wide = beam_search(model, prompts, trie, 200, "renormalised")
    exact = exact_search(model, prompts, trie, 20, "renormalised", at_once=4)
    assert same_lists((exact.sids, exact.scores), (wide.sids[:, :20], wide.scores[:, :20]))


def test_bad_settings_are_named():
    model, trie = tiny_model(), Trie.build(np.array([[0, 1], [2, 2]]), token_ids(2, 7))
    with pytest.raises(ConfigError, match="k is 0 and at_once 32; both must be at least 1"):
        exact_search(model, [[1]], trie, 0)
    with pytest.raises(ConfigError, match="unknown scores 'fancy'"):
        exact_search(model, [[1]], trie, 1, "fancy")
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = float("nan")
    with pytest.raises(DataError, match="scores for prompt 1 of the batch are not numbers"):
        exact_search(model, [[1], [9]], trie, 1)
