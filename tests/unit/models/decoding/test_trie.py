"""The trie's packing, forced tails and messages, against sorted tuples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoding import token_ids

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.trie import Trie

ragged = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=60)


def rectangle(sids, levels=5):
    codes = np.full((len(sids), levels), -1)
    for row, sid in enumerate(sids):
        codes[row, : len(sid)] = sid
    return codes


def listed(trie):
    """Every SID of a trie as (tokens on its path) → number, by walking."""
    found, stack = {}, [(0, ())]
    while stack:
        node, path = stack.pop()
        if trie.sid[node] >= 0:
            found[path] = int(trie.sid[node])
        children, present = trie.children(torch.tensor([node]))
        stack += [(child, (*path, int(trie.token[child]))) for child in children[0][present[0]].tolist()]
    return found


@settings(max_examples=80)
@given(ragged)
def test_codes_and_numbers_are_the_sorted_distinct_examples(sids):
    codes = rectangle(sids)
    trie = Trie.build(codes, token_ids(5, 6))
    unique = np.unique(codes, axis=0)
    assert np.array_equal(trie.codes(), unique[:, : trie.levels])
    table = token_ids(5, 6)
    rows = (tuple(int(table[level, code]) for level, code in enumerate(row) if code >= 0) for row in unique)
    assert listed(trie) == {row: number for number, row in enumerate(rows)}
    assert (unique[:, trie.levels :] == -1).all()
    assert trie.n_sids == len(unique)
    begins = (len(longer) > len(sid) and longer[: len(sid)] == sid for sid in sids for longer in sids)
    assert trie.mixed_ends == any(begins)


def test_codes_too_wide_for_one_word_are_sorted_all_the_same():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (300, 8)) * 2**14  # 8 x 15 bits
    trie = Trie.build(codes, token_ids(8, 2**15 + 1))
    assert np.array_equal(trie.codes(), np.unique(codes, axis=0))


@settings(max_examples=60)
@given(ragged, st.lists(st.integers(100, 120), max_size=3))
def test_a_tail_follows_every_sid_and_keeps_its_number(sids, tail):
    trie = Trie.build(rectangle(sids), token_ids(5, 6))
    longer = trie.with_tail(tail)
    assert listed(longer) == {(*path, *tail): number for path, number in listed(trie).items()}
    assert not tail or not longer.mixed_ends


def test_tokens_by_depth_and_by_node_agree():
    trie = Trie.build(rectangle([[0, 1, 2], [0, 1, 3], [2], [4, 4, 4, 4]]), token_ids(5, 6))
    nodes = torch.arange(len(trie.code))
    assert torch.equal(trie.tokens(nodes), trie.token)
    for depth in range(1, trie.levels + 1):
        here = nodes[trie.depth == depth]
        assert torch.equal(trie.tokens(here, depth), trie.token[here])


def test_children_of_no_node_and_of_a_leaf():
    trie = Trie.build(np.array([[0, 1], [0, 2]]), token_ids(2, 3))
    children, present = trie.children(torch.tensor([[-1, 0], [1, 2]]))
    assert present.tolist() == [[[False, False], [True, False]], [[True, True], [False, False]]]
    assert trie.token[children[1, 0]].tolist() == [9, 10]


def test_it_is_copied_to_a_device_once():
    trie = Trie.build(np.array([[0, 1], [2, 0]]), np.array([[5, 6, 7], [8, 9, 10]]))
    moved = trie.to("meta")
    assert moved.code.device.type == "meta" and trie.to(torch.device("meta")) is moved and trie.to("cpu") is trie


def test_bad_tables_are_named():
    with pytest.raises(DataError, match=r"shape \(0, 3\); it needs at least one SID"):
        Trie.build(np.zeros((0, 3), dtype=int), token_ids(3, 2))
    with pytest.raises(DataError, match="code 1 of level 2 has no token"):
        Trie.build(np.array([[0, 1]]), np.array([[5, 6], [7, -1]]))
    with pytest.raises(DataError, match=r"row 1 of the codes is \[0, -1, 2\]: a level is missing"):
        Trie.build(np.array([[0, 1, 2], [0, -1, 2]]), token_ids(3, 3))
    with pytest.raises(DataError, match=r"row 2 of the codes is \[-1, -1\]: a level is missing"):
        Trie.build(np.array([[0, 1], [1, -1], [-1, -1]]), token_ids(2, 3))
    with pytest.raises(DataError, match="code 3 of level 2 has no token"):
        Trie.build(np.array([[0, 3]]), token_ids(2, 3))
    with pytest.raises(DataError, match="code 0 of level 2 has no token"):
        Trie.build(np.array([[0, 0]]), token_ids(1, 3))
    with pytest.raises(ConfigError, match=r"has token 10, but the model has 10 tokens \(0 to 9\)"):
        Trie.build(np.array([[0, 0]]), token_ids(2, 3)).check_vocabulary(10)
