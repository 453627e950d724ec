"""Models for a catalogue that has grown: known SIDs keep what they had, new ones begin where their neighbours are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.catalogue import random_catalogue
from support.decoding import token_ids
from support.rounding import assert_near, rounding

from minionerec.core.errors import ConfigError
from minionerec.data.transitions import count_transitions
from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.models.backbone.catalogue import CatalogueConfig, build_catalogue
from minionerec.models.backbone.catalogue.extend import extended_catalogue, grown_rows, indices_among
from minionerec.models.backbone.vocabulary import add_code_tokens, code_token_ids, extend_code_rows
from minionerec.sid.table import SidTable

KNOWN = np.array([[0, 0, 0], [0, 0, 3], [0, 2, 2], [1, 0, 1], [1, 2, 0], [3, 1, 1]])
NEW = np.array([[0, 0, 1], [0, 1, 4], [2, 0, 0], [3, 1, 0], [4, 4, 4]])
ALL = np.concatenate([NEW[:2], KNOWN[::-1], NEW[2:]])  # not in their order
TOKENS = token_ids(3, 5)
WIDTH = 64  # terms of a sum in these models, at most
HISTORIES = torch.tensor([[1, 4, 2], [6, 0, 0], [3, 3, 5], [0, 0, 0]])  # numbers of KNOWN from 1
FOLLOWED = torch.tensor([[4, 2, 6], [1, 0, 0], [3, 5, 2], [0, 0, 0]])


def number_of(codes):
    """Number of each of KNOWN among the distinct SIDs of codes."""
    return indices_among(np.unique(codes, axis=0), KNOWN)


def counted(codes):
    number = np.concatenate([[0], number_of(codes) + 1])
    size = len(np.unique(codes, axis=0))
    return count_transitions([(number[HISTORIES.numpy()], number[FOLLOWED.numpy()])], size, 3, 0.6, 0.3)


def texts(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 5)).astype(np.float32)


def trained(towers=2, **changes):
    shape = {"vocab_size": 40, "max_history": 4, "reach": 3, "reverse": 0.3, "towers": towers}
    return random_catalogue(KNOWN, TOKENS, counted(KNOWN), **shape, **changes)


def extended(model):
    return extended_catalogue(model, ALL, TOKENS, 45, texts(len(ALL), 1), counted(ALL))


def reported(model, codes):
    """Log-probabilities of KNOWN after histories, float (4, 6)."""
    number = torch.from_numpy(np.concatenate([[0], number_of(codes) + 1]))
    with torch.no_grad():
        return model.leaf_log_probs(number[HISTORIES])[:, number[1:] - 1]


@pytest.mark.parametrize("off", [{}, {"learned_vectors": False}, {"code_vectors": False}, {"pointer": False}])
def test_known_sids_keep_their_ratios(off):
    """A tower's log-probabilities of them all fall by the same number; each tower of several has its own."""
    model = trained(towers=1, **off)
    grown = extended(model)
    before = reported(model, KNOWN)
    difference = reported(grown, ALL) - before
    assert (difference < -1e-3).all()  # new SIDs took some probability
    assert (difference - difference[:, :1]).abs().max() <= rounding(before, WIDTH)
    assert grown.config.vocab_size == 45 and grown.config.num_sids == len(ALL) and model.config.num_sids == len(KNOWN)
    kept = number_of(ALL)
    assert torch.equal(grown.text[kept], model.text)
    others = np.setdiff1d(np.arange(len(ALL)), kept)
    assert torch.equal(grown.text[others], torch.from_numpy(texts(len(ALL), 1))[others])


def test_each_of_several_towers_keeps_its_scores():
    model = trained(towers=2)
    grown, kept = extended(model), number_of(ALL)
    number, row, slot = torch.from_numpy(np.concatenate([[0], kept + 1])), torch.arange(3), torch.tensor([2, 0, 2])
    with torch.no_grad():
        before = model.tower_scores(HISTORIES[:3], model.positions(HISTORIES[:3], row, slot))
        now = number[HISTORIES[:3]]
        after = grown.tower_scores(now, grown.positions(now, row, slot))
    assert len(before) == len(after) == 2
    for old, new in zip(before, after, strict=True):
        assert_near(new[:, kept], old, WIDTH)
    for old, new in zip(model.each_tower(), grown.each_tower(), strict=True):
        assert torch.equal(new.bias[kept], old.bias) and torch.equal(new.items.weight[kept], old.items.weight)
        weights = new.state_dict()
        for name, value in old.state_dict().items():
            assert name in ("bias", "items.weight") or name.startswith("codes.") or torch.equal(weights[name], value)


def test_request_features_and_popularity_go_along():
    """Known SIDs keep their ratios at every context; a new one is as popular as its neighbours."""
    model = trained(towers=1, context_tokens=[[1, 2]])
    torch.manual_seed(1)
    model.popularity.set(torch.randn(3, len(KNOWN)), torch.tensor([0.5, 1.5, 0.8]))
    grown, kept = extended(model), number_of(ALL)
    assert torch.equal(grown.popularity.logs[:, kept], model.popularity.logs)
    assert torch.equal(grown.popularity.weights, model.popularity.weights)
    old, new = (next(each.each_tower()).context_states.state_dict() for each in (model, grown))
    assert old["scale"].any() and all(torch.equal(new[name], value) for name, value in old.items())
    number = {tuple(code): position for position, code in enumerate(np.unique(ALL, axis=0).tolist())}
    for sid, rows in {(0, 0, 1): [0, 1], (3, 1, 0): [5], (4, 4, 4): range(6)}.items():
        wanted = model.popularity.logs[:, list(rows)].mean(1)
        torch.testing.assert_close(grown.popularity.logs[:, number[sid]], wanted)
    now, falls = torch.from_numpy(np.concatenate([[0], kept + 1])), []
    for context in range(3):
        conditioned = torch.full((len(HISTORIES), 1), context)
        with torch.no_grad():
            after = grown.leaf_log_probs(now[HISTORIES], conditioned)[:, kept]
            difference = after - model.leaf_log_probs(HISTORIES, conditioned)
        assert (difference < -1e-3).all()
        assert (difference - difference[:, :1]).abs().max() <= rounding(after, WIDTH)
        falls.append(difference[:, 0])
    assert not torch.allclose(falls[0], falls[1], atol=1e-3)
    assert extended(trained()).popularity is None


def test_new_sids_begin_at_the_mean_of_those_that_share_the_longest_prefix():
    model = trained()
    grown = extended(model)
    old, new = next(model.each_tower()), next(grown.each_tower())
    number = {tuple(code): position for position, code in enumerate(np.unique(ALL, axis=0).tolist())}
    # SID → rows of KNOWN that share its longest prefix.
    for sid, rows in {(0, 0, 1): [0, 1], (0, 1, 4): [0, 1, 2], (3, 1, 0): [5], (4, 4, 4): range(6)}.items():
        torch.testing.assert_close(new.bias[number[sid]], old.bias[list(rows)].mean())
        torch.testing.assert_close(new.items.weight[number[sid]], old.items.weight[list(rows)].mean(0))
    # Vectors of first codes (0, 1, 3 are known), of prefixes of two, and of last codes (0 to 3 are known).
    torch.testing.assert_close(new.codes[0].weight[2], old.codes[0].weight.mean(0))
    torch.testing.assert_close(new.codes[1].weight[1], old.codes[1].weight[:2].mean(0))  # (0, 1) beside (0, 0), (0, 2)
    torch.testing.assert_close(new.codes[2].weight[4], old.codes[2].weight.mean(0))


def test_a_number_that_no_known_sid_ends_in_is_new():
    """The table of last codes has a row for every number; one that was never used holds noise."""
    model = trained()
    codes = np.concatenate([ALL, [[0, 0, 2]]])[np.lexsort(np.arange(12)[None])]
    values = torch.arange(6.0)
    assert grown_rows(values, KNOWN, np.array([[0, 0, 2], [1, 0, 1]])).tolist() == [0.5, 3.0]
    old = next(model.each_tower()).codes[2].weight
    without = KNOWN[KNOWN[:, 2] != 2]
    torch.manual_seed(0)
    small = build_catalogue(CatalogueConfig(vocab_size=40, hidden_size=16, intermediate_size=8), without, TOKENS)
    table = next(extended_catalogue(small, codes, TOKENS, 40, None, None).each_tower()).codes[2].weight
    trained_rows = next(small.each_tower()).codes[2].weight
    torch.testing.assert_close(table[2], trained_rows[[0, 1, 3]].mean(0))
    assert len(old) == len(trained_rows) == 4 and torch.equal(table[3], trained_rows[3])


@settings(max_examples=60)
@given(st.data())
def test_grown_rows_are_those_of_a_plain_search(data):
    levels = data.draw(st.integers(1, 3))
    code = st.tuples(*[st.integers(0, 3)] * levels)
    known = np.array(data.draw(st.lists(code, min_size=1, max_size=8, unique=True)))
    wanted = np.array(data.draw(st.lists(code, min_size=1, max_size=8, unique=True)))
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(len(known), 2)))
    found = grown_rows(values, known, wanted)
    for row, sid in zip(found, wanted.tolist(), strict=True):
        shared = [next((d for d in range(levels) if sid[d] != other[d]), levels) for other in known.tolist()]
        nearest = [position for position, depth in enumerate(shared) if depth == max(shared)]
        torch.testing.assert_close(row, values[nearest].mean(0))


def test_sids_of_another_length_are_refused():
    codes = np.concatenate([np.c_[KNOWN, -np.ones(6, int)], [[0, 0, 0, 1]]])
    with pytest.raises(ConfigError, match="has SIDs of 3 codes, but one of the new table has 4"):
        extended_catalogue(trained(), codes, token_ids(4, 5), 40, texts(7), None)


def language_model(tied):
    table = SidTable(KNOWN, [f"i{position}" for position in range(6)])
    tokenizer = train_tokenizer(["red lamp", "blue chair"], 300)
    add_code_tokens(tokenizer, table)
    shape = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "inner_size": 48, "max_positions": 64}
    return table, tokenizer, scratch_model(tokenizer, 0, tied=tied, **shape).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_gets_rows_for_new_codes_alone(tied):
    before, tokenizer, model = language_model(tied)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    ids = tokenizer("<a_0><b_0><c_3><a_3>")["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits
    table = SidTable(np.concatenate([KNOWN, NEW]), [*before.item_ids, *"vwxyz"])
    size = len(tokenizer)
    assert extend_code_rows(model, tokenizer, before, table) == 4  # <a_2>, <a_4>, <b_4>, <c_4>
    assert len(tokenizer) == size + 4 == model.config.vocab_size
    assert tokenizer("<a_0><b_0><c_3><a_3>")["input_ids"] == ids
    for name, value in model.state_dict().items():
        assert torch.equal(value[: len(weights[name])], weights[name])
    with torch.no_grad():
        now = model(torch.tensor([ids])).logits
    assert_near(now[..., :size], logits)
    known, codes = code_token_ids(tokenizer, before), code_token_ids(tokenizer, table)
    for level, code in ((0, 2), (0, 4), (1, 4), (2, 4)):
        mine = known[level][known[level] >= 0]
        for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            torch.testing.assert_close(matrix[codes[level, code]], matrix[mine].mean(0))
        assert_near(now[..., codes[level, code]], logits[..., mine].mean(-1))
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied


def test_a_level_that_the_model_never_met_begins_at_all_codes():
    before, tokenizer, model = language_model(True)
    codes = np.concatenate([np.c_[KNOWN, -np.ones(6, int)], [[0, 0, 0, 0]]])
    table = SidTable(codes, [*before.item_ids, "z"])
    assert extend_code_rows(model, tokenizer, before, table) == 1
    rows = model.get_input_embeddings().weight
    known = tokenizer.convert_tokens_to_ids(before.tokens)
    torch.testing.assert_close(rows[tokenizer.convert_tokens_to_ids("<d_0>")], rows[known].mean(0))


def test_no_new_code_changes_nothing():
    before, tokenizer, model = language_model(True)
    weights = model.get_input_embeddings().weight.clone()
    table = SidTable(np.concatenate([KNOWN, [[0, 2, 0]]]), [*before.item_ids, "z"])
    assert extend_code_rows(model, tokenizer, before, table) == 0
    assert torch.equal(model.get_input_embeddings().weight, weights)
