"""The search by stock `generate` of the benchmarks; `test_property` has its lists against our own."""

import numpy as np
import pytest
import torch
from support.decoding import VOCABULARY, random_trie, tiny_model, token_ids
from support.scripts import benchmark

from minionerec.core.errors import DataError
from minionerec.models.decoding.trie import Trie

stock_search, TrieLogitsProcessor = benchmark("stock").stock_search, benchmark("stock").TrieLogitsProcessor

END = VOCABULARY - 1


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
