"""A catalogue model that is conditioned on request features: prompts, states, popularity and scores."""

import numpy as np
import pytest
import torch
from support.catalogue import random_catalogue
from support.decoding import token_ids
from support.gaps import LATER, SAME

from minionerec.data.names import UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.models.backbone.catalogue.model import prompt_contexts, read_tokens
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.context import ContextStates, LearnedPopularity

RNG = np.random.default_rng(0)
CODES = np.unique(RNG.integers(0, (3, 3, 5), size=(24, 3)), axis=0)
N = len(CODES)
TOKENS = token_ids(3, 5)  # vocabulary ids from 5 on
MARKS = {UNKNOWN: [], SAME: [2], LATER: [3]}
WORD = 1
SEEN = RNG.integers(1, N + 1, size=(6, 5))
FOLLOWED = np.concatenate([SEEN[:, 1:], RNG.integers(1, N + 1, size=(6, 1))], axis=1)
SEEN[3, 2:], FOLLOWED[3, 2:] = 0, 0
HISTORIES, LABELS = torch.from_numpy(SEEN), torch.from_numpy(np.where(FOLLOWED > 0, FOLLOWED, -100))
CODES_AFTER = torch.from_numpy(np.where(FOLLOWED > 0, RNG.integers(0, 3, FOLLOWED.shape), 0))[..., None]


def built(conditioned=True, states=True, popular=True, towers=2):
    """A model with the gap or, the same but for that, without."""
    counts = count_transitions([(SEEN, FOLLOWED)], N, 4, 0.6, 0.3)
    context_tokens = [[2, 3]] if conditioned else []
    model = random_catalogue(CODES, TOKENS, counts, towers=towers, reverse=0.3, context_tokens=context_tokens)
    for name, parameter in model.named_parameters():
        if ".context_states." in name and not states:
            torch.nn.init.zeros_(parameter)
    if conditioned and not popular:
        model.popularity.weights.zero_()
    return model


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
            found = prompt_contexts(padded, mask, sids, [[same, later]])[0, :, 0]
            assert found[mask[0]].tolist() == wanted, what
            if not left:
                assert (found[len(ids) :] == wanted[-1]).all(), what  # padding on the right tells nothing new
            assert prompt_contexts(padded, mask, sids, []).shape == (1, width, 0)
            turned = prompt_contexts(padded, mask, sids, [[later], [same, later]])[0]
            assert turned[:, 1][mask[0]].tolist() == wanted and turned[:, 0].max() <= 1


def test_questions_are_histories_and_codes(model):
    rows = [prompt([1, 2], SAME), prompt([3], LATER), prompt([4, 5]), [*prompt([1], SAME), *generated(2)], MARKS[LATER]]
    histories, conditioned, _ = model.read_prompts(rows)
    assert histories.tolist() == [[1, 2], [3, 0], [4, 5], [1, 2], [0, 0]]
    assert conditioned[:, 0].tolist() == [SAME, LATER, UNKNOWN, UNKNOWN, LATER]
    assert built(conditioned=False).read_prompts(rows)[1].shape == (5, 0)


def test_a_state_is_scaled_and_shifted_by_its_codes():
    states = ContextStates([3, 4], 4)
    x, contexts = torch.randn(5, 4), torch.tensor([[0, 1], [1, 0], [2, 3], [2, 0], [1, 2]])
    assert torch.equal(states(x, contexts), x)
    with torch.no_grad():
        for each in states.parameters():
            each.copy_(torch.randn_like(each))
    found = states(x, contexts)
    for row, (one, other) in enumerate(contexts.tolist()):
        scale, shift = (values[one] + values[3 + other] for values in (states.scale, states.shift))
        assert torch.allclose(found[row], x[row] * (1 + scale) + shift)
    assert torch.equal(states(x, torch.zeros(5, 1, dtype=torch.int64)), states(x, torch.zeros(5, 2, dtype=torch.int64)))


def test_popularity_is_added_by_code_and_column():
    popularity = LearnedPopularity([3], 4)
    scores, contexts = torch.randn(3, 4), torch.tensor([[2], [0], [1]])
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
        assert torch.equal(fresh.leaf_log_probs(HISTORIES, torch.full((6, 1), context)), wanted)
    assert torch.equal(plain.leaf_log_probs(HISTORIES, torch.full((6, 1), SAME)), wanted)  # it does not listen
    for part in ({"popular": False}, {"states": False}):
        conditioned = built(**part)
        each = [
            conditioned.leaf_log_probs(HISTORIES, torch.full((6, 1), context)) for context in (UNKNOWN, SAME, LATER)
        ]
        pairs = zip(each, each[1:] + each[:1], strict=True)
        assert not any(torch.allclose(one, other, atol=1e-2) for one, other in pairs)
        assert torch.equal(conditioned.leaf_log_probs(HISTORIES), each[UNKNOWN])


def test_each_position_gets_its_own_codes(model):
    found = model(histories=HISTORIES, labels=LABELS, contexts=CODES_AFTER, distribution=True).logits
    positions = (LABELS > 0).nonzero().tolist()
    for (row, slot), log_probs in zip(positions, found, strict=True):
        alone = model.leaf_log_probs(HISTORIES[row : row + 1, : slot + 1], CODES_AFTER[row, slot][None])
        assert torch.allclose(log_probs, alone[0], atol=1e-5)
    wanted = LABELS[LABELS > 0] - 1
    assert set(CODES_AFTER[LABELS > 0].flatten().tolist()) == {UNKNOWN, SAME, LATER}
    one = built(towers=1)
    own = -one(histories=HISTORIES, labels=LABELS, contexts=CODES_AFTER, distribution=True).logits.gather(
        1, wanted[:, None]
    )
    assert one(histories=HISTORIES, labels=LABELS, contexts=CODES_AFTER).loss.item() == pytest.approx(own.mean().item())
    assert one(histories=HISTORIES, labels=LABELS).loss.item() != pytest.approx(own.mean().item())
    newest = model(histories=HISTORIES, contexts=CODES_AFTER).logits
    slots = (HISTORIES > 0).sum(1) - 1
    assert torch.equal(newest, model.leaf_log_probs(HISTORIES, CODES_AFTER[torch.arange(6), slots]))
    assert torch.equal(model(histories=HISTORIES).logits, model.leaf_log_probs(HISTORIES))


def test_training_mode_follows_its_settings(model):
    """Codes are hidden by the trainer; the model itself draws nothing."""
    try:
        asked = {"histories": HISTORIES, "labels": LABELS, "contexts": CODES_AFTER, "distribution": True}
        wanted = model(**asked).logits
        assert torch.equal(model.train()(**asked).logits, wanted)
    finally:
        model.eval()
