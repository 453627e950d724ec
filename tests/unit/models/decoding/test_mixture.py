"""Two models in one search: the score of a complete SID is linear in both, whatever is searched how."""

import numpy as np
import pytest
import torch
from support.decoding import (
    FAMILIES,
    VOCABULARY,
    AllowedTokens,
    lists,
    random_trie,
    stock_generate,
    tiny_model,
    token_ids,
)
from support.devices import same_lists
from support.rounding import assert_best, assert_near

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import LeafModel, Mixture, rerank
from minionerec.models.decoding.trie import Trie

PROMPTS = [[1, 2, 3], [4], [4]]


def leaf_model(trie, rows=3, wide=12.0, seed=0):
    drawn = torch.rand(rows, trie.n_sids, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return LeafModel((wide * drawn).log_softmax(-1).float(), VOCABULARY)


def by_sid(result, n):
    """Scores by SID number, NaN where an SID is not listed."""
    found = torch.full((len(result.sids), n), torch.nan)
    for row, listed in enumerate(lists(result)):
        for sid, score in listed:
            found[row, sid] = score
    return found


@pytest.mark.parametrize("normaliser", ["full", "renormalised"])
@pytest.mark.parametrize("levels", [2, 4])
def test_the_score_of_an_sid_is_linear_in_both_models(normaliser, levels):
    """D1, by the identity: an exhaustive beam and exact search give share * first + (1 - share) * second."""
    trie, _ = random_trie(np.random.default_rng(levels), levels=levels, n=60)
    model, second = tiny_model(seed=1), leaf_model(trie)
    alone = by_sid(beam_search(model, PROMPTS, trie, trie.n_sids, normaliser), trie.n_sids)
    for share in (0.9, 0.5, 0.2):
        mixture = Mixture(model, second, share)
        wanted = share * alone + (1 - share) * second.leaf_log_probs
        found = beam_search(mixture, PROMPTS, trie, 10 * trie.n_sids, normaliser)
        assert_near(by_sid(found, trie.n_sids), wanted)
        exact = exact_search(mixture, PROMPTS, trie, 7, normaliser, at_once=3)
        for listed, scores in zip(lists(exact), wanted, strict=True):
            assert_best(listed, scores, 7)


def test_the_whole_of_one_model_is_that_model_bit_for_bit(monkeypatch):
    """D2: the other one is never asked, which may hold anything, and rows stay apart."""
    trie, _ = random_trie(np.random.default_rng(5), n=60)
    model, second = tiny_model(seed=2), leaf_model(trie, wide=300.0)
    plain = beam_search(model, PROMPTS, trie, 9)
    broken = LeafModel(torch.full_like(second.leaf_log_probs, -torch.inf), VOCABULARY)
    first = beam_search(Mixture(model, broken, 1.0), PROMPTS, trie, 9)
    assert torch.equal(first.sids, plain.sids) and torch.equal(first.scores, plain.scores)
    monkeypatch.setattr(type(model), "get_decoder", lambda self: pytest.fail("it was run"))
    for search in (beam_search, exact_search):
        other = search(Mixture(model, second, 0.0), PROMPTS, trie, trie.n_sids)
        assert torch.equal(other.sids, second.leaf_log_probs.argsort(1, descending=True))
    with pytest.raises(ConfigError, match=r"share is 1.5; it must be from 0 to 1"):
        Mixture(model, second, 1.5)


def test_two_language_models_are_mixed_too():
    trie, _ = random_trie(np.random.default_rng(6), n=40)
    first, second = tiny_model("qwen2", seed=1), tiny_model("llama", seed=2).to(torch.bfloat16)
    one, two = (by_sid(beam_search(model, PROMPTS, trie, trie.n_sids), trie.n_sids) for model in (first, second))
    mixed = by_sid(beam_search(Mixture(first, second, 0.3), PROMPTS, trie, 400), trie.n_sids)
    assert_near(mixed, 0.3 * one + 0.7 * two)
    assert not Mixture(first, second, 0.3).row_bound and Mixture(first, leaf_model(trie), 0.3).row_bound


def test_two_known_distributions_need_no_search():
    trie, _ = random_trie(np.random.default_rng(7), n=40)
    one, two = leaf_model(trie, seed=1), leaf_model(trie, seed=2)
    found = exact_search(Mixture(one, two, 0.25), PROMPTS, trie, 5)
    for listed, scores in zip(lists(found), 0.25 * one.leaf_log_probs + 0.75 * two.leaf_log_probs, strict=True):
        assert_best(listed, scores, 5)
    assert found.opened.tolist() == [1, 1, 1]


@pytest.mark.parametrize("wide", [200.0, 1000.0])
def test_extreme_assistants_give_finite_scores(wide):
    """D5."""
    trie, _ = random_trie(np.random.default_rng(8), n=60)
    found = beam_search(Mixture(tiny_model(), leaf_model(trie, wide=wide), 0.5), PROMPTS, trie, trie.n_sids)
    assert (found.sids >= 0).all() and torch.isfinite(found.scores).all()


def test_filters_and_bonuses_hold_in_a_mixture():
    """Nothing that is left out is listed, what is left is listed whole, and a bonus counts once."""
    rng = np.random.default_rng(9)
    trie, _ = random_trie(rng, n=60)
    allowed = torch.from_numpy(rng.random((3, trie.n_sids)) < 0.3)
    bonus = torch.from_numpy(rng.random(trie.n_sids) * 4).float()
    mixture = Mixture(tiny_model(seed=3), leaf_model(trie), 0.6)
    everything = by_sid(beam_search(mixture, PROMPTS, trie, 500), trie.n_sids) + bonus
    for search in (beam_search, exact_search):
        found = search(mixture, PROMPTS, trie, trie.n_sids, guide=Guide.of(trie, allowed, bonus))
        scores = by_sid(found, trie.n_sids)
        assert torch.equal(scores.isnan(), ~allowed)
        assert_near(scores[allowed], everything[allowed])


def test_the_rest_of_a_completion_costs_the_first_model_alone():
    """Forced steps behind an SID: the second model's are 0."""
    trie, _ = random_trie(np.random.default_rng(10), n=30)
    model, second, longer = tiny_model(seed=4), leaf_model(trie), trie.with_tail([2, 3])
    alone = by_sid(beam_search(model, PROMPTS, longer, 400), trie.n_sids)
    mixed = by_sid(beam_search(Mixture(model, second, 0.5), PROMPTS, longer, 400), trie.n_sids)
    assert_near(mixed, 0.5 * alone + 0.5 * second.leaf_log_probs)


def test_reranking_gives_the_mixtures_scores_to_what_was_found():
    trie, _ = random_trie(np.random.default_rng(11), n=60)
    model, second = tiny_model(seed=5), leaf_model(trie)
    plain = beam_search(model, PROMPTS, trie, 12)
    steps = by_sid(beam_search(Mixture(model, second, 0.7), PROMPTS, trie, 500), trie.n_sids)
    again = rerank(plain, second.leaf_log_probs, 0.7)
    for row, listed in enumerate(lists(again)):
        assert sorted(sid for sid, _ in listed) == sorted(plain.sids[row].tolist())
        scores = [score for _, score in listed]
        assert scores == sorted(scores, reverse=True)
        assert_near(scores, [float(steps[row, sid]) for sid, _ in listed])
    few = beam_search(model, PROMPTS, trie, 500)
    assert torch.equal(rerank(few, second.leaf_log_probs, 0.7).sids < 0, few.sids < 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_search_is_the_same_in_any_batch(family):
    trie, _ = random_trie(np.random.default_rng(12), n=60)
    model, second = tiny_model(family, seed=6), leaf_model(trie)
    together = beam_search(Mixture(model, second, 0.5), PROMPTS, trie, 8)
    for row, prompt in enumerate(PROMPTS):
        own = LeafModel(second.leaf_log_probs[row : row + 1], VOCABULARY)
        alone = beam_search(Mixture(model, own, 0.5), [prompt], trie, 8)
        part = slice(row, row + 1)
        assert same_lists((alone.sids, alone.scores), (together.sids[part], together.scores[part]))


def mixed_lengths():
    codes = np.array([[0, 1, -1, -1], [0, 2, 1, 1], [1, 0, 0, 0], [1, 1, -1, -1], [2, 2, 2, 2], [2, 2, 1, -1]])
    return Trie.build(codes, token_ids(4, 3))


def test_a_length_penalty_divides_by_the_number_of_tokens():
    """D7: none leaves everything as it is, and steps that are certain raise a long SID's score only by their number."""
    trie, model = mixed_lengths(), tiny_model(seed=7)
    lengths = trie.depth[trie.node_of_sid]
    plain = beam_search(model, PROMPTS, trie, 6)
    none = beam_search(model, PROMPTS, trie, 6, length_penalty=0.0)
    assert torch.equal(plain.sids, none.sids) and torch.equal(plain.scores, none.scores)
    for penalty in (0.5, 1.0):
        found = beam_search(model, PROMPTS, trie, 6, length_penalty=penalty)
        wanted = by_sid(plain, 6) / lengths**penalty
        for listed, scores in zip(lists(found), wanted, strict=True):
            assert_best(listed, scores)


END = 3


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_length_penalty_is_that_of_stock_search(penalty):
    """D7, against `generate` with `early_stopping="never"`, the end token counted."""
    trie = mixed_lengths().with_tail([END])
    codes = trie.codes()
    generated = [[int(trie.code_tokens[level, code]) for level, code in enumerate(row) if code >= 0] for row in codes]
    for seed in range(3):
        model, beams = tiny_model(seed=seed), 4
        found = lists(beam_search(model, [[7, 8]], trie, beams, length_penalty=penalty))[0]
        ended = {"length_penalty": penalty, "early_stopping": "never", "eos_token_id": END}
        output = stock_generate(model, [[7, 8]], beams, trie.levels, AllowedTokens(generated, 2), **ended)
        texts = [row[: row.index(END) + 1] for row in output.sequences[:, 2:].tolist()]
        assert [generated[sid] for sid, _ in found] == texts
        assert_near([score for _, score in found], output.sequences_scores)
