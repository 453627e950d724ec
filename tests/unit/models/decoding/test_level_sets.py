"""A trie against sets of codes that each position allows, which is what LC-Rec releases as its constraint."""

from itertools import product

import numpy as np
from support.decoding import lists, tiny_model, token_ids
from support.rounding import assert_near

from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.trie import Trie

SIZE = 4
PROMPT = [7, 3, 40, 21]


def searched(codes, beams):
    """SIDs by their codes, the best first, with scores, of one prompt."""
    distinct = np.unique(codes, axis=0)
    found = lists(beam_search(tiny_model(seed=5), [PROMPT], Trie.build(codes, token_ids(2, SIZE)), beams))[0]
    return [(tuple(distinct[sid].tolist()), score) for sid, score in found]


def test_codes_allowed_by_their_path_make_sids_of_no_item_and_the_trie_makes_none():
    every = np.array(list(product(range(SIZE), repeat=2)))
    by_level = searched(every, len(every))
    best = by_level[0][0]
    codes = every[[tuple(sid) != best and sum(sid) % 2 == 0 for sid in every.tolist()]]
    table = {tuple(sid) for sid in codes.tolist()}
    assert {code for sid in table for code in sid} == set(range(SIZE))  # each level's codes are those of the grid
    assert best not in table
    by_trie = searched(codes, len(every))
    assert {sid for sid, _ in by_trie} == table
    left = [(sid, score) for sid, score in by_level if sid in table]
    assert [sid for sid, _ in by_trie] == [sid for sid, _ in left]
    assert_near([score for _, score in by_trie], [score for _, score in left])
    kept = [sid for sid, _ in searched(every, 3) if sid in table]
    assert len(kept) < len(searched(codes, 3)) == 3  # and they push real items out of the beam
