"""Filters and bonuses in the trie: lists are those of the whole ranking, filtered; lists have k items."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoding import lists, random_trie, tiny_model
from support.rounding import assert_best

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide, largest_below, reached
from minionerec.models.decoding.trie import Trie

PROMPTS = [[1, 2, 3], [4], [1, 2, 3], [60, 61]]
MODEL = tiny_model()


def scores_of_all(trie, prompts):
    """Log-probability of every SID for every prompt, by exact search for all of them: (B, S)."""
    result = exact_search(MODEL, prompts, trie, trie.n_sids)
    found = torch.full((len(prompts), trie.n_sids), torch.nan)
    return found.scatter(1, result.sids, result.scores)


def guided(scores, allowed, bonus):
    """Scores with their bonus, minus infinity for what is left out: float64 (B, S)."""
    return (scores.double() + bonus).masked_fill(~allowed, -torch.inf)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.02, 0.3, 0.9]), strength=st.sampled_from([0.0, 1.0, 8.0]))
def test_exact_search_gives_the_filtered_ranking_of_the_whole_catalogue(seed, share, strength):
    rng = np.random.default_rng(seed)
    trie, _ = random_trie(rng, levels=int(rng.integers(1, 4)))
    k = int(rng.integers(1, 12))
    allowed = torch.from_numpy(rng.random((len(PROMPTS), trie.n_sids)) < share)
    bonus = torch.from_numpy(strength * rng.standard_normal(trie.n_sids)).float()
    wanted = guided(scores_of_all(trie, PROMPTS), allowed, bonus)
    guide = Guide.of(trie, allowed, bonus)
    for found in (
        exact_search(MODEL, PROMPTS, trie, k, at_once=1 + seed % 5, guide=guide),
        beam_search(MODEL, PROMPTS, trie, 200, guide=guide),
    ):
        for listed, scores in zip(lists(found), wanted, strict=True):
            assert_best(listed[:k], scores, k)
    narrow = beam_search(MODEL, PROMPTS, trie, k, guide=guide)
    for row, listed in enumerate(lists(narrow)):
        assert len(listed) == min(k, int(allowed[row].sum()))
        assert all(allowed[row, sid] for sid, _ in listed)


def test_sids_that_begin_other_sids_have_a_bonus_and_a_filter_of_their_own():
    codes = np.array([[0, -1], [0, 1], [0, 2], [1, 0]])
    trie = Trie.build(codes, np.array([[5, 6, 7], [8, 9, 10]]))
    bonus = torch.tensor([0.0, 30.0, 0.0, 0.0])  # of <0, 1>, behind the prefix that is an SID itself
    plain = scores_of_all(trie, [[1, 2]])
    for allowed in ([True, False, True, True], [False, True, True, False], [True] * 4):
        mask = torch.tensor([allowed])
        guide = Guide.of(trie, mask, bonus)
        wanted = guided(plain, mask, bonus)[0]
        for found in (
            beam_search(MODEL, [[1, 2]], trie, 4, guide=guide),
            exact_search(MODEL, [[1, 2]], trie, 4, guide=guide),
        ):
            assert_best(lists(found)[0], wanted, 4)


def test_many_prompts_with_a_filter_each_in_one_batch():
    rng = np.random.default_rng(0)
    trie, _ = random_trie(rng, n=140)
    prompts = [[1 + position % 7, 2 + position % 11] for position in range(200)]
    allowed = torch.from_numpy(rng.random((200, trie.n_sids)) < 0.1)
    found = lists(beam_search(MODEL, prompts, trie, 200, guide=Guide.of(trie, allowed)))
    for row in range(0, 200, 19):
        alone = beam_search(MODEL, [prompts[row]], trie, 200, guide=Guide.of(trie, allowed[row : row + 1]))
        assert [sid for sid, _ in found[row]] == [sid for sid, _ in lists(alone)[0]]
        assert {sid for sid, _ in found[row]} == set(allowed[row].nonzero()[:, 0].tolist())


@pytest.mark.parametrize("search", [beam_search, exact_search])
@pytest.mark.parametrize("codes", [[[0, 0], [0, 1], [1, 1]], [[0, -1], [0, 1], [1, 0]]])
@pytest.mark.parametrize("others", [[], [1, 2]])
def test_where_a_filter_leaves_nothing_the_list_has_no_item(search, codes, others):
    trie = Trie.build(np.array(codes), np.array([[5, 6], [8, 9]]))
    allowed = torch.zeros(2, 3, dtype=torch.bool)
    allowed[1, others] = True
    found = search(MODEL, [[1, 2], [3]], trie, 4, guide=Guide.of(trie, allowed))
    assert [{sid for sid, _ in listed} for listed in lists(found)] == [set(), set(others)]


def test_nodes_are_reached_where_something_allowed_lies_below_them():
    rng = np.random.default_rng(1)
    trie, codes = random_trie(rng, levels=3, size=4)
    allowed = torch.from_numpy(rng.random((6, trie.n_sids)) < 0.15)
    value = torch.from_numpy(rng.standard_normal(trie.n_sids)).float()
    nodes, largest = reached(trie, allowed), largest_below(trie, value)
    prefixes = {(): 0}
    for depth in range(3):  # nodes are numbered level by level, prefixes in order
        for prefix in sorted({tuple(row[: depth + 1]) for row in codes.tolist()}):
            prefixes[prefix] = len(prefixes)
    for prefix, node in prefixes.items():
        below = [sid for sid, row in enumerate(codes.tolist()) if tuple(row[: len(prefix)]) == prefix]
        assert nodes[:, node].tolist() == allowed[:, below].any(1).tolist()
        assert largest[node] == value[below].max()


def test_what_does_not_fit_the_trie_is_reported():
    trie, _ = random_trie(np.random.default_rng(2), n=20)
    with pytest.raises(ConfigError, match=rf"allowed covers 3 SIDs, but the trie has {trie.n_sids}"):
        Guide.of(trie, torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="a bonus is not a finite number"):
        Guide.of(trie, None, torch.full((trie.n_sids,), torch.inf))
