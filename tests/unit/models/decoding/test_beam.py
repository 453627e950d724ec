"""Beam search against enumeration; `test_property` has it against stock `generate`."""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.decoding import VOCABULARY, lists, random_trie, sid_scores, tiny_model, token_ids
from support.devices import same_lists
from support.rounding import assert_best, assert_near
from support.training import WAITS

from minionerec.core import device
from minionerec.core.errors import ConfigError
from minionerec.models.decoding import beam, decoder
from minionerec.models.decoding.beam import beam_search, sample_search
from minionerec.models.decoding.decoder import decode_batches, decode_prompts, target_ranks
from minionerec.models.decoding.trie import Trie


@pytest.mark.parametrize(
    "codes",
    [
        [[0, 1, 2, -1], [0, 1, 3, 0], [0, 1, 3, 1], [2, 2, -1, -1], [3, 0, 0, -1], [2, 3, 1, 1]],
        [[0, 1, 2, -1], [0, 1, -1, -1], [3, 0, 0, -1], [2, -1, -1, -1]],  # some begin others
    ],
)
@pytest.mark.parametrize("tail", [[], [60, 61]])
def test_wide_beams_rank_the_whole_catalogue_of_uneven_sids(codes, tail):
    model = tiny_model(seed=1)
    trie = Trie.build(np.array(codes), token_ids(4, 4)).with_tail(tail)
    prompts = [[1, 2, 3], [7]]
    for prompt, listed in zip(prompts, lists(beam_search(model, prompts, trie, 50)), strict=True):
        assert_best(listed, sid_scores(model, prompt, trie))


def test_renormalised_scores_sum_over_children_only():
    model = tiny_model(seed=2)
    rng = np.random.default_rng(0)
    trie, unique = random_trie(rng, levels=2, n=20)
    ids = token_ids(2, 8)
    listed = lists(beam_search(model, [[4, 5]], trie, 64, "renormalised"))[0]

    exact = deepcopy(model).double()

    def step(tokens, siblings):
        with torch.no_grad():
            logits = exact(torch.tensor([[4, 5, *tokens[:-1]]])).logits[0, -1]
        return float(logits[tokens[-1]] - logits[siblings].logsumexp(-1))

    assert len(listed) == len(unique)
    assert np.exp([score for _, score in listed]).sum() == pytest.approx(1, abs=1e-4)
    firsts = sorted({int(ids[0, row[0]]) for row in unique})
    for sid, score in listed:
        row = unique[sid]
        seconds = [int(ids[1, other[1]]) for other in unique if other[0] == row[0]]
        tokens = [int(ids[0, row[0]]), int(ids[1, row[1]])]
        assert_near(score, step(tokens[:1], firsts) + step(tokens, seconds))


def test_batching_changes_nothing_and_modes_are_restored():
    model = tiny_model(seed=4)
    rng = np.random.default_rng(2)
    trie, _ = random_trie(rng, n=60)
    prompts = [rng.integers(0, VOCABULARY, int(rng.integers(1, 20))).tolist() for _ in range(13)]
    one, one_scores = decode_prompts(model, prompts, trie, 10, batch_size=1)
    model.train()
    many, many_scores = decode_prompts(model, prompts, trie, 10, batch_size=5)
    assert model.training
    assert same_lists((one, one_scores), (many, many_scores))


@pytest.mark.parametrize("most", [1, 3, 4])
def test_where_memory_ends_fewer_prompts_are_searched_at_a_time(monkeypatch, caplog, most):
    model = tiny_model(seed=4)
    rng = np.random.default_rng(2)
    trie, _ = random_trie(rng, n=7)  # whose lists are shorter than there are beams
    prompts = [[number, *rng.integers(0, VOCABULARY, int(rng.integers(1, 20))).tolist()] for number in range(13)]
    wanted, scores = decode_prompts(model, prompts, trie, 10, batch_size=5)
    tried = []

    def short_of_memory(model, prompts, *about):
        tried.append(len(prompts))
        if len(prompts) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return beam_search(model, prompts, *about)

    monkeypatch.setattr(decoder, "beam_search", short_of_memory)
    found, others = decode_prompts(model, prompts, trie, 10, batch_size=5)
    assert same_lists((found, others), (wanted, scores))
    ended = [size for size in tried if size > most]
    assert tried[: len(ended)] == ended  # once it is low enough it stays so
    assert sum(tried) - sum(ended) == 13
    assert f"Out of memory: continuing with batches of {tried[-1 if most == 1 else -3]} prompts" in caplog.text


@pytest.mark.parametrize(("free", "sizes"), [(2**40, [40]), (2**21, [16, 16, 8]), (0, [1] * 40)])
def test_by_default_as_many_prompts_are_searched_as_memory_holds_with_the_same_lists(monkeypatch, free, sizes):
    model, asked, rng = tiny_model(seed=4), [], np.random.default_rng(2)
    trie, _ = random_trie(rng, n=60)
    prompts = [[number, *rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).tolist()] for number in range(40)]
    wanted, scores = decode_prompts(model, prompts, trie, 10, batch_size=7)

    def counted(model, prompts, *about):
        asked.append(len(prompts))
        return beam_search(model, prompts, *about)

    monkeypatch.setattr(decoder, "beam_search", counted)
    monkeypatch.setattr(device, "free_memory", lambda device: free)
    found, others = decode_prompts(model, prompts, trie, 10)
    assert asked == sizes
    assert same_lists((found, others), (wanted, scores))


def test_a_search_that_fails_otherwise_or_with_one_prompt_is_an_error():
    def failing(error):
        def decode(positions):
            raise error

        return decode

    for error in (torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("no kernel"), ValueError("no")):
        with pytest.raises(type(error), match=str(error)):
            decode_batches(failing(error), [[1], [2]], 3, 2)


UNEVEN = [[0, 1, 2], [0, 1, 3], [0, 2, -1], [3, -1, -1], [4, 5, 0]]


@pytest.mark.parametrize(
    ("search", "codes", "most"),
    [
        (beam_search, None, 1),  # for scores that are no numbers
        (beam_search, UNEVEN, 4),  # and at each level for whether any of them goes on
        (sample_search, None, 4),  # and at each level for distinct candidates
    ],
    ids=["beams", "uneven", "samples"],
)
def test_a_search_waits_as_seldom_as_documented_with_the_same_lists(monkeypatch, search, codes, most):
    """With as many children of each prefix as any of its depth has, as on a GPU."""
    model, rng = tiny_model(seed=4), np.random.default_rng(2)
    trie = random_trie(rng, n=60)[0] if codes is None else Trie.build(np.array(codes), token_ids(3, 6)).with_tail([60])
    draw = {} if search is beam_search else {"generator": torch.Generator().manual_seed(0)}
    wanted = search(model, [[1, 2, 3], [4]], trie, 5, **draw)
    assert trie.even == (codes is None) and trie.widths == [int(trie.children(nodes)[0].shape[-1]) for nodes in (
        torch.arange(begin, end) for begin, end in pairwise(trie.level_start)
    )]  # fmt: skip
    monkeypatch.setitem(beam._FIXED_WIDTH, "cpu", True)
    if draw:
        draw["generator"].manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = search(model, [[1, 2, 3], [4]], trie, 5, **draw)
    assert sum(event.name in WAITS for event in profile.events()) <= most
    if search is beam_search and codes is None:  # nothing is ranked among complete SIDs before the last level
        assert (
            sum(event.name == "aten::sort" for event in profile.events()) == trie.levels + 1
        )  # and prompts, by length
        assert sum(event.name.startswith("aten::") for event in profile.events()) < 2550  # 2,473
    assert torch.equal(found.sids, wanted.sids)


def test_target_ranks():
    sids = np.array([[4, 2, -1], [1, 0, 3], [-1, -1, -1]])
    assert target_ranks(sids, np.array([2, 9, 0])).tolist() == [2, 0, 0]


def test_bad_settings_are_named():
    model = tiny_model()
    trie, _ = random_trie(np.random.default_rng(0))
    with pytest.raises(ConfigError, match="num_beams is 0"):
        beam_search(model, [[1]], trie, 0)
    with pytest.raises(ConfigError, match="unknown scores 'fancy'; known: full, renormalised"):
        beam_search(model, [[1]], trie, 2, "fancy")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="'flash_attention_2' takes no 4-D mask"):
        beam_search(model, [[1]], trie, 2)
