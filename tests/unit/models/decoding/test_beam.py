"""The trie against a set of tuples, beam search against stock `generate` and against enumeration."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoding import FAMILIES, VOCABULARY, lists, random_trie, tiny_model, token_ids
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.decoder import decode_prompts, target_ranks
from minionerec.models.decoding.trie import Trie


def paths(trie, node=0, prefix=()):
    found = {prefix: int(trie.sid[node])} if trie.sid[node] >= 0 else {}
    children, present = trie.children(torch.tensor([node]))
    for child in children[0][present[0]].tolist():
        found |= paths(trie, child, (*prefix, int(trie.code[child])))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=40))
def test_trie_holds_exactly_the_sids(sids):
    codes = np.full((len(sids), 4), -1)
    for row, sid in enumerate(sids):
        codes[row, : len(sid)] = sid
    trie = Trie.build(codes, token_ids(4, 5))
    found = paths(trie)
    assert set(found) == {tuple(sid) for sid in sids}
    unique = [tuple(code for code in row if code >= 0) for row in np.unique(codes, axis=0).tolist()]
    assert {number: path for path, number in found.items()} == dict(enumerate(unique))
    inner = trie.depth[1:].long()
    assert torch.equal(trie.token[1:], (inner - 1) * 5 + trie.code[1:].long() + 5)


def test_children_of_no_node_and_of_a_leaf():
    trie = Trie.build(np.array([[0, 1], [0, 2]]), token_ids(2, 3))
    children, present = trie.children(torch.tensor([[-1, 0], [1, 2]]))
    assert present.tolist() == [[[False, False], [True, False]], [[True, True], [False, False]]]
    assert trie.token[children[1, 0]].tolist() == [9, 10]


def test_trie_refuses_emptiness_and_codes_without_token():
    with pytest.raises(DataError, match=r"shape \(0, 3\); it needs at least one SID"):
        Trie.build(np.zeros((0, 3), dtype=int), token_ids(3, 2))
    with pytest.raises(DataError, match="code 1 of level 2 has no token"):
        Trie.build(np.array([[0, 1]]), np.array([[5, 6], [7, -1]]))


class Allow(LogitsProcessor):
    """The constraint as the field writes it: a dictionary of prefixes, by position."""

    def __init__(self, unique, ids, start):
        self.start, self.allowed = start, {}
        for row in unique.tolist():
            tokens = [int(ids[level, code]) for level, code in enumerate(row)]
            for depth, token in enumerate(tokens):
                self.allowed.setdefault(tuple(tokens[:depth]), set()).add(token)

    def __call__(self, input_ids, scores):
        masked = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(input_ids.tolist()):
            allowed = list(self.allowed.get(tuple(ids[self.start :]), ()))
            masked[row, allowed] = scores[row, allowed]
        return masked


def stock(model, prompt, unique, beams):
    levels = unique.shape[1]
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        generation_config=GenerationConfig(
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=levels,
            do_sample=False,
            length_penalty=0.0,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        ),
        logits_processor=LogitsProcessorList([Allow(unique, token_ids(levels, 8), len(prompt))]),
    )
    lists = zip(output.sequences[:, len(prompt) :].tolist(), output.sequences_scores.tolist(), strict=True)
    return [(tuple(tokens), score) for tokens, score in lists if score > -1e8]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_beam_search_equals_stock(family, tied, attention):
    rng = np.random.default_rng(3)
    model = tiny_model(family, tied, attention)
    for _ in range(4):
        trie, unique = random_trie(rng)
        ids = token_ids(3, 8)
        prompts = [rng.integers(0, VOCABULARY, int(rng.integers(1, 12))).tolist() for _ in range(3)]
        beams = int(rng.integers(2, 24))
        for prompt, listed in zip(prompts, lists(beam_search(model, prompts, trie, beams)), strict=True):
            wanted = stock(model, prompt, unique, beams)
            got = [tuple(int(ids[level, code]) for level, code in enumerate(unique[sid])) for sid, _ in listed]
            assert got == [tokens for tokens, _ in wanted]
            assert [score for _, score in listed] == pytest.approx([score for _, score in wanted], abs=1e-4)


def sequence_score(model, prompt, tokens, siblings=None):
    """Log-probability of tokens behind a prompt, one forward pass; over `siblings[depth]` alone where given."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].double()
    total = 0.0
    for depth, token in enumerate(tokens):
        row = logits[len(prompt) - 1 + depth]
        over = row if siblings is None else row[siblings[depth]]
        total += float(row[token] - over.logsumexp(-1))
    return total


def test_wide_beams_rank_the_whole_catalogue_of_uneven_sids():
    model = tiny_model(seed=1)
    codes = np.array([[0, 1, 2, -1], [0, 1, 3, 0], [0, 1, 3, 1], [2, 2, -1, -1], [3, 0, 0, -1], [2, 3, 1, 1]])
    ids = token_ids(4, 4)
    trie = Trie.build(codes, ids)
    unique = np.unique(codes, axis=0)
    prompts = [[1, 2, 3], [7]]
    result = beam_search(model, prompts, trie, 50)
    for prompt, listed in zip(prompts, lists(result), strict=True):
        wanted = {}
        for number, row in enumerate(unique):
            wanted[number] = sequence_score(
                model, prompt, [int(ids[level, c]) for level, c in enumerate(row) if c >= 0]
            )
        assert [sid for sid, _ in listed] == sorted(wanted, key=wanted.get, reverse=True)
        assert dict(listed) == pytest.approx(wanted, abs=1e-4)


def test_renormalised_scores_sum_over_children_only():
    model = tiny_model(seed=2)
    rng = np.random.default_rng(0)
    trie, unique = random_trie(rng, levels=2, n=20)
    ids = token_ids(2, 8)
    listed = lists(beam_search(model, [[4, 5]], trie, 64, "renormalised"))[0]
    assert len(listed) == len(unique)
    assert np.exp([score for _, score in listed]).sum() == pytest.approx(1, abs=1e-4)
    firsts = sorted({int(ids[0, row[0]]) for row in unique})
    for sid, score in listed:
        row = unique[sid]
        seconds = [int(ids[1, other[1]]) for other in unique if other[0] == row[0]]
        tokens = [int(ids[0, row[0]]), int(ids[1, row[1]])]
        assert score == pytest.approx(sequence_score(model, [4, 5], tokens, [firsts, seconds]), abs=1e-4)


def test_lists_are_valid_distinct_and_no_longer_than_the_catalogue():
    model = tiny_model(seed=3)
    rng = np.random.default_rng(1)
    for n in (1, 2, 7, 40):
        trie, unique = random_trie(rng, n=n)
        for beams in (1, 5, 60):
            for listed in lists(beam_search(model, [[1], [2, 3]], trie, beams)):
                numbers = [sid for sid, _ in listed]
                assert len(numbers) == len(set(numbers)) == min(beams, len(unique))
                assert all(0 <= sid < len(unique) for sid in numbers)


def test_batching_changes_nothing_and_modes_are_restored():
    model = tiny_model(seed=4)
    rng = np.random.default_rng(2)
    trie, _ = random_trie(rng, n=60)
    prompts = [rng.integers(0, VOCABULARY, int(rng.integers(1, 20))).tolist() for _ in range(13)]
    one, one_scores = decode_prompts(model, prompts, trie, 10, batch_size=1)
    model.train()
    many, many_scores = decode_prompts(model, prompts, trie, 10, batch_size=5)
    assert model.training
    assert np.array_equal(one, many)
    assert np.allclose(one_scores, many_scores, atol=1e-4)


def test_target_ranks():
    sids = np.array([[4, 2, -1], [1, 0, 3], [-1, -1, -1]])
    assert target_ranks(sids, np.array([2, 9, 0])).tolist() == [2, 0, 0]


def test_broken_weights_and_bad_settings_are_named():
    model = tiny_model()
    trie, _ = random_trie(np.random.default_rng(0))
    with pytest.raises(ConfigError, match="num_beams is 0"):
        beam_search(model, [[1]], trie, 0)
    with pytest.raises(ConfigError, match="unknown scores 'fancy'; known: full, renormalised"):
        beam_search(model, [[1]], trie, 2, "fancy")
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = float("nan")
    with pytest.raises(DataError, match="scores for prompt 1 of the batch are not numbers"):
        beam_search(model, [[1, 2], [9, 2]], trie, 2)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="'flash_attention_2' takes no 4-D mask"):
        beam_search(model, [[1]], trie, 2)


@pytest.mark.slow
def test_a_million_beams_are_valid_and_distinct():
    model = tiny_model(seed=5)
    rng = np.random.default_rng(5)
    trie, unique = random_trie(rng, n=400)
    prompts = [rng.integers(0, VOCABULARY, int(rng.integers(1, 30))).tolist() for _ in range(20_000)]
    sids, _ = decode_prompts(model, prompts, trie, 50, batch_size=200)
    assert ((sids >= 0) & (sids < len(unique))).all()
    assert (np.diff(np.sort(sids, axis=1), axis=1) > 0).all()
