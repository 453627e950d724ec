"""A catalogue model that is conditioned on the session context: prompts, states, popularity and scores."""

import numpy as np
import pytest
import torch
from support.decoding import stock_generate, token_ids
from transformers import AutoModelForCausalLM

from minionerec.data.session import LATER, SAME, UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.models.backbone.catalogue import CatalogueConfig, blocks, build_catalogue
from minionerec.models.backbone.catalogue.model import prompt_contexts, read_tokens
from minionerec.models.backbone.catalogue.sampled import Sample
from minionerec.models.backbone.catalogue.tower import SidBlock
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.rows import ColumnSubset
from minionerec.models.nn.session import LearnedPopularity, SessionStates

RNG = np.random.default_rng(0)
CODES = np.unique(RNG.integers(0, (3, 3, 5), size=(24, 3)), axis=0)
N = len(CODES)
TOKENS = token_ids(3, 5)  # vocabulary ids from 5 on
VOCABULARY = int(TOKENS.max()) + 1
MARKS = {UNKNOWN: [], SAME: [2], LATER: [3]}
WORD = 1
SEEN = RNG.integers(1, N + 1, size=(6, 5))
FOLLOWED = np.concatenate([SEEN[:, 1:], RNG.integers(1, N + 1, size=(6, 1))], axis=1)
SEEN[3, 2:], FOLLOWED[3, 2:] = 0, 0
HISTORIES, LABELS = torch.from_numpy(SEEN), torch.from_numpy(np.where(FOLLOWED > 0, FOLLOWED, -100))
SESSION_CONTEXTS = torch.from_numpy(np.where(FOLLOWED > 0, RNG.integers(0, 3, FOLLOWED.shape), 0))


def built(conditioned=True, states=True, popular=True, towers=2):
    """A small model whose weights are all drawn at random, the same with session context and without."""
    torch.manual_seed(0)
    config = CatalogueConfig(
        vocab_size=VOCABULARY,
        max_history=6,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=24,
        towers=towers,
        reach=4,
        reverse=0.3,
        session_tokens=[2, 3] if conditioned else [],
    )
    text = np.random.default_rng(1).normal(size=(N, 5)).astype(np.float32)
    model = build_catalogue(config, CODES, TOKENS, text, count_transitions([(SEEN, FOLLOWED)], N, 4, 0.6, 0.3))
    with torch.no_grad():
        plain = [(name, each) for name, each in model.named_parameters() if ".session_states." not in name]
        for _, parameter in plain:
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        for name, parameter in model.named_parameters():
            if ".session_states." in name and states:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
    if conditioned and popular:
        model.popularity.set(torch.randn(3, N), torch.tensor([0.3, 0.8, 1.5]))
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return built()


def generated(sid):
    return [int(TOKENS[level, code]) for level, code in enumerate(CODES[sid - 1])]


def prompt(history, context=UNKNOWN):
    return [WORD, *(token for sid in history for token in generated(sid)), *MARKS[context]]


def trie():
    return Trie.build(CODES, TOKENS)


def test_what_texts_tell_at_each_token():
    """Rows by hand: the mark's word stands until an SID is whole, or another mark comes."""
    same, later = MARKS[SAME][0], MARKS[LATER][0]
    one, two, part = generated(1), generated(2), generated(5)[:2]
    rows = {
        "a mark before any SID, which is the newest one's": ([same, *one], [1, 1, 1, 0]),
        "a mark behind one": ([*one, later], [0, 0, 0, 2]),
        "a mark before the last SID says nothing of the next": ([*one, same, *two], [0, 0, 0, 1, 1, 1, 0]),
        "the newer of two marks": ([*one, same, later], [0, 0, 0, 1, 2]),
        "words are passed over": ([*one, same, WORD, WORD], [0, 0, 0, 1, 1, 1]),
        "a mark, and then codes that are no SID yet": ([*one, later, *part], [0, 0, 0, 2, 2, 2]),
        "no mark": ([WORD, *one], [0, 0, 0, 0]),
    }
    width = max(len(ids) for ids, _ in rows.values()) + 2
    for left in (True, False):
        for what, (ids, wanted) in rows.items():
            gap = [same] * (width - len(ids))  # what stands in padding is not read
            padded = torch.tensor([[*gap, *ids] if left else [*ids, *gap]])
            real, none = [1] * len(ids), [0] * len(gap)
            mask = torch.tensor([[*none, *real] if left else [*real, *none]]).bool()
            sids, _ = read_tokens(trie(), padded, mask)
            found = prompt_contexts(padded, mask, sids, [same, later])[0]
            assert found[mask[0]].tolist() == wanted, what
            if not left:
                assert (found[len(ids) :] == wanted[-1]).all(), what  # padding on the right tells nothing new
            assert not prompt_contexts(padded, mask, sids, []).any()


def test_questions_are_histories_and_session_contexts(model):
    rows = [prompt([1, 2], SAME), prompt([3], LATER), prompt([4, 5]), [*prompt([1], SAME), *generated(2)], MARKS[LATER]]
    histories, conditioned = model.questions_of(rows)
    assert histories.tolist() == [[1, 2], [3, 0], [4, 5], [1, 2], [0, 0]]
    assert conditioned.tolist() == [SAME, LATER, UNKNOWN, UNKNOWN, LATER]
    assert built(conditioned=False).questions_of(rows)[1].tolist() == [UNKNOWN] * 5


def test_a_state_is_scaled_and_shifted_by_its_session_context():
    states = SessionStates(4)
    x, contexts = torch.randn(5, 4), torch.tensor([0, 1, 2, 2, 1])
    assert torch.equal(states(x, contexts), x)
    with torch.no_grad():
        for each in states.parameters():
            each.copy_(torch.randn_like(each))
    found = states(x, contexts)
    for row, context in enumerate(contexts.tolist()):
        assert torch.allclose(found[row], x[row] * (1 + states.scale[context]) + states.shift[context])


def test_popularity_is_added_by_session_context_and_column():
    popularity = LearnedPopularity(4)
    scores, contexts = torch.randn(3, 4), torch.tensor([2, 0, 1])
    assert popularity(scores, contexts) is scores
    logs, weights = torch.randn(3, 4), torch.tensor([0.5, 0.0, 2.0])
    popularity.set(logs, weights)
    wanted = scores + torch.stack([2.0 * logs[2], 0.5 * logs[0], torch.zeros(4)])
    assert torch.allclose(popularity(scores, contexts), wanted)
    columns = torch.tensor([0, 3])
    assert torch.allclose(popularity(scores[:, columns], contexts, columns), wanted[:, columns])


def test_without_weights_of_its_own_it_is_the_plain_model():
    plain, fresh = built(conditioned=False), built(states=False, popular=False)
    wanted = plain.leaf_log_probs(HISTORIES)
    for context in (UNKNOWN, SAME, LATER):
        assert torch.equal(fresh.leaf_log_probs(HISTORIES, torch.full((6,), context)), wanted)
    assert torch.equal(plain.leaf_log_probs(HISTORIES, torch.full((6,), SAME)), wanted)  # it does not listen
    for part in ({"popular": False}, {"states": False}):
        conditioned = built(**part)
        each = [conditioned.leaf_log_probs(HISTORIES, torch.full((6,), context)) for context in (UNKNOWN, SAME, LATER)]
        pairs = zip(each, each[1:] + each[:1], strict=True)
        assert not any(torch.allclose(one, other, atol=1e-2) for one, other in pairs)
        assert torch.equal(conditioned.leaf_log_probs(HISTORIES), each[UNKNOWN])


def test_each_position_gets_its_own_session_context(model):
    found = model(histories=HISTORIES, labels=LABELS, contexts=SESSION_CONTEXTS, distribution=True).log_probs
    positions = (LABELS > 0).nonzero().tolist()
    for (row, slot), log_probs in zip(positions, found, strict=True):
        alone = model.leaf_log_probs(HISTORIES[row : row + 1, : slot + 1], SESSION_CONTEXTS[row, slot][None])
        assert torch.allclose(log_probs, alone[0], atol=1e-5)
    wanted = LABELS[LABELS > 0] - 1
    assert set(SESSION_CONTEXTS[LABELS > 0].tolist()) == {UNKNOWN, SAME, LATER}
    one = built(towers=1)
    own = -one(histories=HISTORIES, labels=LABELS, contexts=SESSION_CONTEXTS, distribution=True).log_probs.gather(
        1, wanted[:, None]
    )
    assert one(histories=HISTORIES, labels=LABELS, contexts=SESSION_CONTEXTS).loss.item() == pytest.approx(
        own.mean().item()
    )
    newest = model(histories=HISTORIES, contexts=SESSION_CONTEXTS).log_probs
    slots = (HISTORIES > 0).sum(1) - 1
    assert torch.equal(newest, model.leaf_log_probs(HISTORIES, SESSION_CONTEXTS[torch.arange(6), slots]))
    assert torch.equal(model(histories=HISTORIES).log_probs, model.leaf_log_probs(HISTORIES))


def test_training_mode_follows_its_settings(model):
    """Session contexts are hidden by the trainer; the model itself draws nothing."""
    try:
        asked = {"histories": HISTORIES, "labels": LABELS, "contexts": SESSION_CONTEXTS, "distribution": True}
        wanted = model(**asked).log_probs
        assert torch.equal(model.train()(**asked).log_probs, wanted)
    finally:
        model.eval()


@pytest.mark.parametrize("leave_out", [False, True])
def test_scores_of_some_sids_are_those_columns(model, leave_out):
    row, slot = (LABELS > 0).nonzero(as_tuple=True)
    conditioned, counted = SESSION_CONTEXTS[row, slot], LABELS if leave_out else None
    dense = model._scores(HISTORIES, model._positions(HISTORIES, row, slot, counted, conditioned))
    if not leave_out:
        for one, other in zip(model.tower_scores(HISTORIES, row, slot, conditioned), dense, strict=True):
            assert torch.equal(one, other)
    for numbers in ([0, 1, 5, N - 1], list(range(N)), [7]):
        columns = ColumnSubset(torch.tensor(numbers))
        part = SidBlock.of(HISTORIES, columns, model.positions_at(HISTORIES, row, slot, columns, counted, conditioned))
        for whole, tower in zip(dense, model.each_tower(), strict=True):
            found = model.with_popularity(
                tower.scores_at(part, *model.given()), part.positions.known_contexts, columns.numbers
            )
            assert torch.allclose(found, whole[:, columns.numbers], atol=1e-5)
    sample = Sample(ColumnSubset(torch.arange(N)), torch.zeros(len(LABELS), N))
    losses = [
        model(
            histories=HISTORIES, labels=LABELS, contexts=SESSION_CONTEXTS, leave_out=leave_out, sample=each
        ).loss.item()
        for each in (None, sample)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(model(histories=HISTORIES, labels=LABELS, leave_out=leave_out).loss.item())


ASKED = [[1, 2, 3], [9], [], [5, 5, 2, 8], [N, 1], [1, 2, 3], [1, 2, 3]]
REPORTED = [SAME, LATER, SAME, UNKNOWN, LATER, LATER, UNKNOWN]
PROMPTS = [prompt(history, context) for history, context in zip(ASKED, REPORTED, strict=True)]


def ranked(model):
    histories = torch.tensor([[*row, *[0] * (6 - len(row))] for row in ASKED])
    return model.leaf_log_probs(histories, torch.tensor(REPORTED)).sort(1, descending=True)


def test_searches_give_the_models_own_ranking(model):
    wanted = ranked(model)
    for search in (beam_search, exact_search):
        found = search(model, PROMPTS, trie(), N)
        assert torch.equal(found.sids, wanted.indices)
        assert torch.allclose(found.scores, wanted.values, atol=1e-5)
    assert torch.allclose(
        model.sid_log_probs(PROMPTS, trie()).sort(1, descending=True).values, wanted.values, atol=1e-6
    )
    one, other = wanted.indices[0].tolist(), wanted.indices[5].tolist()
    assert one != other  # the same history, told otherwise


@pytest.mark.parametrize("frozen", [False, True])
def test_block_by_block_it_is_the_same(model, monkeypatch, frozen):
    wanted, guide = ranked(model), Guide.of(trie(), bonus=torch.linspace(-1, 1, N))
    searches = [(search, k, how) for search in (beam_search, exact_search) for k in (3, N) for how in (None, guide)]
    dense = [search(model, PROMPTS, trie(), k, guide=how) for search, k, how in searches]
    with torch.no_grad():
        loss = model(histories=HISTORIES, labels=LABELS, contexts=SESSION_CONTEXTS).loss.item()
        unconditioned = model(histories=HISTORIES, labels=LABELS).loss.item()
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", 6)
    monkeypatch.setattr(type(model), "leaf_log_probs", None)
    assert model.by_blocks
    if frozen:
        model.freeze()
    try:
        for (search, k, how), before in zip(searches, dense, strict=True):
            found = search(model, PROMPTS, trie(), k, guide=how)
            assert torch.equal(found.sids, before.sids)
            assert torch.allclose(found.scores, before.scores, atol=1e-5)
            if how is None and (k == N or search is exact_search):
                assert torch.equal(found.sids, wanted.indices[:, :k])
        with torch.no_grad():
            assert model(histories=HISTORIES, labels=LABELS, contexts=SESSION_CONTEXTS).loss.item() == pytest.approx(
                loss
            )
            assert model(histories=HISTORIES, labels=LABELS).loss.item() == pytest.approx(unconditioned)
    finally:
        model.train().eval()
    assert loss != pytest.approx(unconditioned)


@pytest.mark.parametrize("row", [0, 5, 6])
def test_stock_generate_reads_the_mark(model, row):
    ids = PROMPTS[row]
    output = stock_generate(model, [ids], N, 3)
    number = {tuple(generated(sid)): sid - 1 for sid in range(1, N + 1)}
    wanted = ranked(model)
    assert [number[tuple(reported)] for reported in output.sequences[:, len(ids) :].tolist()] == wanted.indices[
        row
    ].tolist()
    assert torch.allclose(output.sequences_scores, wanted.values[row], atol=1e-4)


def test_logits_after_a_mark_are_those_of_its_session_context(model):
    """In one batch with others, at each code of an SID, and told nothing more behind it."""
    sid = 7
    rows = [[*ids, *generated(sid)] for ids in PROMPTS]
    width = max(map(len, rows))
    padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in rows])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in rows])
    logits = model(input_ids=padded, attention_mask=mask).logits
    path = model.trie.paths[sid - 1].tolist()
    histories = [[*row, *[0] * (6 - len(row))] for row in ASKED]
    nodes = model.node_log_probs(model.leaf_log_probs(torch.tensor(histories), torch.tensor(REPORTED)))
    for row, history in enumerate(ASKED):
        for depth in range(3):
            children, present = model.trie.children(torch.tensor([path[depth]]))
            below = children[0][present[0]]
            found = logits[row, width - 4 + depth, model.trie.tokens(below)]
            assert torch.allclose(found, nodes[row, below] - nodes[row, path[depth]], atol=1e-5)
        behind = model.leaf_log_probs(torch.tensor([[*history, sid]]))
        first = model.trie.tokens(torch.arange(1, model.trie.level_start[2]))
        masses = model.node_log_probs(behind)[0, 1 : model.trie.level_start[2]]
        assert torch.allclose(logits[row, -1, first], masses, atol=1e-5)


def test_it_comes_back_from_disk(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is type(model) and again.config.session_tokens == [2, 3]
    assert again.popularity.weights.tolist() == pytest.approx([0.3, 0.8, 1.5])
    assert set(again.state_dict()) == set(model.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.flaw(CODES) is None
    asked = torch.tensor([SAME, LATER, UNKNOWN, SAME, SAME, LATER])
    assert torch.equal(again.leaf_log_probs(HISTORIES, asked), model.leaf_log_probs(HISTORIES, asked))
    assert not [name for name in built(conditioned=False).state_dict() if "contexts" in name or "popularity" in name]
