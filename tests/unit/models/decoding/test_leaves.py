"""Distributions over leaves as branches: sums that stay finite, and steps that telescope."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoding import VOCABULARY, lists, random_trie, token_ids
from support.rounding import assert_best, assert_near

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.leaves import LeafBranches, LeafModel, node_log_probs, sum_to_leaves
from minionerec.models.decoding.trie import Trie


def spread(trie, rows, wide, seed=0):
    """Distributions whose log-probabilities lie `wide` nats apart."""
    drawn = torch.rand(rows, trie.n_sids, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (wide * drawn).log_softmax(-1)


def steps(trie, masses):
    """Log-probability of the step to every node from the one above it, as a search asks for it."""
    branches = LeafBranches(trie, masses)
    found = torch.zeros_like(masses)
    hidden, slots = branches.hidden.unsqueeze(1), torch.full((len(masses), 1), -1)
    for depth in range(trie.levels):
        nodes = hidden[..., 0]
        children, present = trie.children(nodes)
        scores = branches.scores(hidden, trie.tokens(children).clamp(min=0), present)
        below, exist, scores = (part.flatten(1) for part in (children, present, scores))
        for row in range(len(masses)):
            found[row, below[row, exist[row]]] = scores[row, exist[row]]
        begin, end = trie.level_start[depth + 1], trie.level_start[depth + 2]
        every = torch.arange(begin, end).expand(len(masses), -1)
        parents = trie.parent[every]
        slots = parents - trie.level_start[1] if depth else torch.full_like(every, -1)
        hidden = branches.run(trie.tokens(every), slots, depth)
        assert torch.equal(hidden[..., 0], every)
    return found


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 60.0, 200.0, 2000.0]), st.integers(0, 1))
def test_steps_are_the_ratios_of_summed_probabilities_on_random_tries(seed, wide, tail):
    """D3 and D4: by brute force in double precision, at any spread, with forced steps behind the SID or without."""
    rng = np.random.default_rng(seed)
    trie, _ = random_trie(rng, levels=int(rng.integers(1, 5)), size=4)
    if tail:
        trie = trie.with_tail([1, 2])
    leaves = spread(trie, 2, wide, seed)
    masses = node_log_probs(trie, leaves.float())
    below = torch.zeros(len(trie.code), trie.n_sids, dtype=torch.bool)
    for number, path in enumerate(trie.paths):
        below[path[path >= 0], number] = True
    wanted = torch.where(below, leaves[:, None], -torch.inf).logsumexp(-1)
    assert torch.isfinite(masses).all()
    assert torch.allclose(masses.double(), wanted, atol=1e-5 * max(1.0, wide))
    found = steps(trie, masses)
    assert torch.allclose(found.double(), wanted - wanted[:, trie.parent], atol=2e-5 * max(1.0, wide))
    assert (found <= 1e-6 * max(1.0, wide)).all()
    forced = trie.first_child.diff()[trie.parent] == 1
    assert torch.allclose(found[:, forced], torch.zeros(()), atol=1e-6 * max(1.0, wide))
    ends = torch.stack([found[:, path[path >= 0]].sum(1) for path in trie.paths], 1)
    assert torch.allclose(ends.double().exp().sum(1), torch.ones(2, dtype=torch.float64), atol=1e-4 * max(1.0, wide))


def test_sums_in_single_precision_are_what_they_always_were():
    """The catalogue model's results hang on the order of additions: leaf by leaf, level by level."""
    rng = np.random.default_rng(0)
    trie, codes = random_trie(rng, n=300)
    leaves = spread(trie, 3, 40.0).float()
    highest = leaves.amax(1, keepdim=True)
    mass = torch.zeros(3, len(trie.code))
    nodes = torch.zeros(len(codes), dtype=torch.long)
    for depth in range(4):
        mass = mass.index_add(1, nodes, (leaves - highest).exp())
        if depth < 3:
            nodes = trie.find(nodes, trie.code_tokens[depth][torch.from_numpy(codes[:, depth])])
    assert torch.equal(node_log_probs(trie, leaves), mass.log() + highest)


def test_what_is_impossible_stays_impossible():
    trie = Trie.build(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), token_ids(2, 2))
    found = lists(beam_search(LeafModel(torch.tensor([[0.0, -torch.inf] + [-torch.inf] * 2]), 20), [[1]], trie, 4))
    assert found == [[(0, 0.0)]]


def test_probabilities_of_items_of_one_leaf_are_summed():
    rng = np.random.default_rng(1)
    leaf_of_item = np.concatenate([np.arange(5), rng.integers(0, 5, 12)])
    items = (200 * torch.from_numpy(rng.random((3, 17)))).log_softmax(-1)
    found = sum_to_leaves(items.float(), torch.from_numpy(leaf_of_item), 5)
    for leaf in range(5):
        wanted = items[:, torch.from_numpy(leaf_of_item == leaf)].logsumexp(1)
        assert_near(found[:, leaf], wanted)


def test_a_distribution_is_sampled():
    trie, _ = random_trie(np.random.default_rng(1), n=30)
    leaves = spread(trie, 3, 3.0).float()
    drawn = sample_search(LeafModel(leaves[:1], VOCABULARY), [[3]], trie, trie.n_sids, generator=torch.Generator())
    assert sorted(drawn.sids[0].tolist()) == list(range(trie.n_sids))
    assert float(drawn.scores.exp().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("search", [beam_search, exact_search])
def test_searches_find_the_order_of_the_distribution_and_keep_rows_apart(search):
    """Equal prompts are different rows."""
    trie, _ = random_trie(np.random.default_rng(2), n=50)
    leaves = spread(trie, 3, 150.0).float()
    found = search(LeafModel(leaves, VOCABULARY), [[1], [1], [2]], trie, trie.n_sids)
    for listed, scores in zip(lists(found), leaves, strict=True):
        assert_best(listed, scores)


def test_what_does_not_fit_is_reported():
    trie, _ = random_trie(np.random.default_rng(3), n=9)
    with pytest.raises(ConfigError, match=f"the distribution is over 4 SIDs, but the trie has {trie.n_sids}"):
        beam_search(LeafModel(torch.zeros(1, 4), VOCABULARY), [[1]], trie, 2)
    with pytest.raises(DataError, match="2 prompts, but 1 distributions are given"):
        beam_search(LeafModel(torch.zeros(1, trie.n_sids), VOCABULARY), [[1], [1]], trie, 2)
    foreign = Trie.build(np.array([[0, 1]]), np.array([[5, 6], [7, VOCABULARY]]))
    with pytest.raises(ConfigError, match=f"has token {VOCABULARY}, but the model has {VOCABULARY} tokens"):
        beam_search(LeafModel(torch.zeros(1, 1), VOCABULARY), [[1]], foreign, 1)
    with pytest.raises(DataError, match="prompt 0 of the batch is empty"):
        exact_search(LeafModel(torch.zeros(1, trie.n_sids), VOCABULARY), [[]], trie, 1)
    mixed = Trie.build(np.array([[0, -1], [0, 1]]), token_ids(2, 2))
    with pytest.raises(ConfigError, match="some SIDs begin other SIDs"):
        beam_search(LeafModel(torch.zeros(1, 2), VOCABULARY), [[1]], mixed, 2)
