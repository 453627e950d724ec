"""Search by stock `generate` against our own, token for token and score for score."""

import numpy as np
import pytest
import torch
from support.decoding import FAMILIES, VOCABULARY, random_trie, tiny_model, token_ids
from support.devices import same_lists
from support.scripts import benchmark

from minionerec.core.errors import DataError
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.trie import Trie

stock_search, TrieLogitsProcessor = benchmark("stock").stock_search, benchmark("stock").TrieLogitsProcessor

END = VOCABULARY - 1


def same(stock, ours):
    assert same_lists((stock.sids, stock.scores), (ours.sids, ours.scores))
    assert torch.isinf(stock.scores[ours.sids < 0]).all()


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("beams", [1, 4, 30])
def test_prompts_of_different_length_give_our_lists(family, beams):
    rng = np.random.default_rng(beams)
    model = tiny_model(family, seed=beams)
    trie, codes = random_trie(rng, n=60)
    prompts = [rng.integers(0, VOCABULARY, length).tolist() for length in (3, 9, 1, 6)]
    stock, ours = stock_search(model, prompts, trie, beams), beam_search(model, prompts, trie, beams)
    assert min(beams, len(codes)) == int((stock.sids >= 0).sum(1).min())
    same(stock, ours)


def test_more_beams_than_sids_give_short_lists():
    model = tiny_model()
    trie = Trie.build(np.array([[0, 1], [2, 2], [2, 3]]), token_ids(2, 4))
    stock = stock_search(model, [[1, 2], [3]], trie, 8)
    assert stock.sids.shape == (2, 8)
    assert [sorted(row[:3]) for row in stock.sids.tolist()] == [[0, 1, 2]] * 2
    assert (stock.sids[:, 3:] == -1).all()
    ours = beam_search(model, [[1, 2], [3]], trie, 8)
    assert stock.sids[:, :3].tolist() == ours.sids[:, :3].tolist()


@pytest.mark.parametrize("beams", [1, 2, 12])
@pytest.mark.parametrize("tail", [[END], [60, END]])
def test_sids_of_several_lengths_end_in_a_token(beams, tail):
    rng = np.random.default_rng(7)
    model = tiny_model(seed=3)
    codes = rng.integers(0, 5, (40, 3))
    codes[rng.random(40) < 0.5, 2] = -1  # some SIDs begin others
    trie = Trie.build(codes, token_ids(3, 5))
    prompts = [rng.integers(0, 50, length).tolist() for length in (4, 7)]
    stock = stock_search(model, prompts, trie, beams, tail)
    ours = beam_search(model, prompts, trie.with_tail(tail), beams)
    assert len({tuple(row) for row in stock.sids.tolist()}) == 2
    same(stock, ours)


def test_settings_of_the_models_own_file_have_no_say():
    model = tiny_model()
    trie, _ = random_trie(np.random.default_rng(5), n=50)
    wanted = stock_search(model, [[1, 2, 3]], trie, 6)
    poison = {"do_sample": True, "top_k": 1, "temperature": 0.1, "repetition_penalty": 5.0, "num_beams": 2}
    for name, value in {**poison, "no_repeat_ngram_size": 1, "length_penalty": 3.0}.items():
        setattr(model.generation_config, name, value)
    found = stock_search(model, [[1, 2, 3]], trie, 6)
    assert torch.equal(found.sids, wanted.sids) and torch.equal(found.scores, wanted.scores)


def test_positions_are_found_by_position_alone():
    trie = Trie.build(np.array([[0, 1], [0, 2], [3, 0]]), token_ids(2, 4))
    processor = TrieLogitsProcessor(trie, 2, [END])
    rows = torch.tensor([[5, 10, 5, 10, END], [5, 10, 5, 11, END], [5, 10, 8, 10, END], [5, 10, 5, 10, 5]])
    assert processor.nodes_of(rows[:, :2]).tolist() == [0, 0, 0, 0]
    assert processor.nodes_of(rows[:, :3]).tolist() == [1, 1, 2, 1]
    assert (processor.nodes_of(rows[:, :4]) > 0).tolist() == [True, True, False, True]
    ended = processor.nodes_of(rows)
    assert (processor.trie.sid[ended.clamp(min=0)] >= 0).tolist() == [True, True, False, False]
    scores = torch.zeros(4, VOCABULARY)
    for length in (3, 2, 3):  # neither order nor repetition of the calls matters
        masked = processor(rows[:, :length][:2], scores[:2])
        allowed = [row.isfinite().nonzero().flatten().tolist() for row in masked]
        assert allowed == ([[10, 11], [10, 11]] if length == 3 else [[5, 8], [5, 8]])


def test_an_empty_allowed_set_raises_with_its_row():
    trie = Trie.build(np.array([[0, 1], [0, 2], [3, 0]]), token_ids(2, 4))
    scores = torch.zeros(2, VOCABULARY)
    alone = TrieLogitsProcessor(trie, 1)
    with pytest.raises(DataError, match=r"row 1 of the batch: no token may follow \[40\] after a prompt of 1 tokens"):
        alone(torch.tensor([[9, 5], [9, 40]]), scores)
    with pytest.raises(DataError, match=r"row 0 of the batch: no token may follow \[5, 10\]"):
        alone(torch.tensor([[9, 5, 10], [9, 5, 11]]), scores)
    beams = TrieLogitsProcessor(trie, 1, num_beams=2)
    masked = beams(torch.tensor([[9, 5], [9, 40]]), scores)
    assert masked[0].isfinite().nonzero().flatten().tolist() == [10, 11] and not masked[1].isfinite().any()
    with pytest.raises(DataError, match=r"row 0 of the batch: no token may follow \[41\]"):
        beams(torch.tensor([[9, 41], [9, 40]]), scores)
