"""Tries of titles, and deep tries whose forced tokens are run at once."""

import numpy as np
import pytest
import torch
from support.decoding import tiny_model
from support.devices import same_lists

from minionerec.models.decoding import branches as opening
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.branches import CausalBranches, ForcedBranches
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.titles import Titles
from minionerec.models.decoding.trie import Trie

END = 1


def random_titles(rng, n=30, longest=14, words=6):
    """Titles that share beginnings, some of which begin others, and some of which are equal."""
    tokens, made = [], []
    for number in range(n):
        begin = made[rng.integers(number)][: int(rng.integers(1, longest))] if number and rng.random() < 0.7 else []
        made.append([*begin, *(rng.integers(10, 10 + words, rng.integers(1, longest - len(begin) + 1)).tolist())])
        tokens.append([*made[-1], END])
    return tokens, [" ".join(map(str, title)) for title in made]


@pytest.mark.parametrize("seed", range(5))
def test_distinct_titles_are_the_leaves(seed):
    """D6: a bijection; a title that begins another one is reached, equal ones share a leaf."""
    tokens, names = random_titles(np.random.default_rng(seed))
    tokens += [[*tokens[0][:1], END], tokens[3]]
    names += [names[0].split()[0], names[3]]
    titles = Titles.build(tokens, names)
    assert titles.n_unique == titles.trie.n_sids == len({tuple(ids) for ids in tokens}) == len(set(titles.sids))
    assert not titles.trie.mixed_ends
    assert titles.sid_numbers[-1] == titles.sid_numbers[3] and titles.sids[-1] == names[3]
    for ids, name, leaf in zip(tokens, names, titles.sid_numbers, strict=True):
        node = torch.zeros(1, dtype=torch.long)
        for token in ids:
            node = titles.trie.find(node, torch.tensor([token]))
        assert int(titles.trie.sid[node]) == leaf and titles.sids[titles.sid_numbers.tolist().index(leaf)] == name


def test_items_without_a_title_have_a_leaf_and_a_name():
    titles = Titles.build([[5, END], [END], [7, END]], ["cup", "", " "])
    assert titles.sids == ["cup", "(no title: '')", "(no title: ' ')"]
    assert len(titles.fingerprint) == 64
    assert titles.fingerprint != Titles.build([[5, END], [END], [7, END]], ["cup", "pot", " "]).fingerprint


class Counted:
    """A model whose decoder counts the tokens that are run behind prompts."""

    def __init__(self, monkeypatch):
        self.tokens = self.passes = 0
        run = CausalBranches.run

        def counted(branches, tokens, parents, depth, sees=None):
            self.passes += 1
            self.tokens += tokens.numel()
            return run(branches, tokens, parents, depth, sees)

        monkeypatch.setattr(CausalBranches, "run", counted)


def both_ways(monkeypatch, search):
    """What a search finds level by level, and with forced tokens at once; and what each has run."""
    found = []
    for deep in (10**9, 0):
        with monkeypatch.context() as patch:
            patch.setattr(opening, "_DEEP", deep)
            counted = Counted(patch)
            found.append((search(), counted))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("normaliser", ["full", "renormalised"])
def test_forced_tokens_at_once_change_nothing(seed, normaliser, monkeypatch):
    """D8, by beam search and by exact search, with prompts of several lengths."""
    rng = np.random.default_rng(seed)
    titles = Titles.build(*random_titles(rng))
    model = tiny_model(["qwen2", "llama"][seed % 2], seed=seed, attention=["sdpa", "eager"][seed % 2])
    prompts = [rng.integers(10, 20, size).tolist() for size in (3, 1, 6)]
    for search in (
        lambda: beam_search(model, prompts, titles.trie, 7, normaliser),
        lambda: beam_search(model, prompts, titles.trie, 50, normaliser),
        lambda: exact_search(model, prompts, titles.trie, 5, normaliser, at_once=4),
    ):
        (plain, before), (forced, after) = both_ways(monkeypatch, search)
        assert same_lists((plain.sids, plain.scores), (forced.sids, forced.scores))
        assert after.passes <= before.passes
        if normaliser == "renormalised":
            assert after.tokens < 0.7 * before.tokens


def test_what_is_forgotten_is_not_seen():
    """After `compact` the tokens that stay score as before, and the cache is as wide as what stays."""
    model = tiny_model().double()  # the two caches sum in another order
    prompts = [[5, 6, 7], [8]]
    whole, less = (CausalBranches(model, prompts, 4) for _ in range(2))
    tokens = torch.tensor([[10, 11, 12], [13, 14, 15]])
    none = torch.full((2, 3), -1)
    with torch.no_grad():
        for branches in (whole, less):
            branches.run(tokens, none, 0)
        numbers = less.compact(torch.tensor([[False, True, True], [True, False, False]]))
        assert numbers.tolist() == [[-1, 0, 1], [0, -1, -1]] and less.count == 2
        assert less.cache.get_seq_length() == 5
        parents = torch.tensor([[2, 1], [0, 0]])
        one = whole.run(tokens[:, :2], parents, 1)
        two = less.run(tokens[:, :2], numbers.gather(1, parents), 1)
        assert torch.allclose(one, two, rtol=0, atol=1e-12)
        last = torch.tensor([[1, 0], [1, 1]])
        one, two = whole.run(tokens[:, :2], last + 3, 2), less.run(tokens[:, :2], last + 2, 2)
        assert torch.allclose(one, two, rtol=0, atol=1e-12)


def test_forced_tokens_leave_nothing_in_the_cache():
    titles = Titles.build([[10, *range(20, 40), END], [11, *range(20, 40), END]], ["one", "two"])
    model = tiny_model()
    branches = ForcedBranches(CausalBranches(model, [[5, 6]], titles.trie.levels), titles.trie)
    with torch.no_grad():
        state = branches.run(torch.tensor([[10, 11]]), torch.tensor([[-1, -1]]), 0)
        branches.scores(state, torch.tensor([[[20], [20]]]), torch.ones(1, 2, 1, dtype=torch.bool))
    assert branches.inner.count == 0 and branches.inner.cache.get_seq_length() == 2


def test_nodes_know_what_is_forced():
    trie = Trie.build(np.array([[0, 0, 0, 1], [0, 1, 2, -1], [1, 0, -1, -1]]), np.arange(16).reshape(4, 4))
    assert trie.single.tolist() == [False, False, True, True, True, True, True, True, True]
    assert trie.below.tolist() == [4, 3, 1, 2, 1, 0, 1, 0, 0]
