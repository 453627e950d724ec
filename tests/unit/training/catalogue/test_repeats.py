"""How often items of a history are chosen again: counted in training, used where held-out rows gain."""

import numpy as np
import pytest
import torch
from support.decoding import token_ids

from minionerec.models.backbone.catalogue import CatalogueConfig, blocks, build_catalogue
from minionerec.models.backbone.catalogue.extend import extended_catalogue
from minionerec.training.catalogue.repeats import SHIFTS, fit_repeats, repeat_logs, set_repeats

CODES = np.array([[place // 3, place % 3] for place in range(6)])


def windows_of(rows, weights=None):
    """Windows of histories, with the items behind each position."""
    width = max(len(history) for history, _ in rows)
    histories, labels = (
        np.array([[*row[part], *[fill] * (width - len(row[part]))] for row in rows])
        for part, fill in ((0, 0), (1, -100))
    )
    found = np.ones(labels.shape, dtype=np.float32)
    if weights is not None:
        found *= np.array(weights, dtype=np.float32)[:, None]
    return {"histories": histories, "labels": labels, "weights": found}


def model_of(**changes):
    """A model that finds every SID as likely, whatever it is asked, but for those of the history, which it dislikes."""
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "max_history": 4, "repeats": True}
    model = build_catalogue(CatalogueConfig(vocab_size=20, **{**shape, **changes}), CODES, token_ids(2, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        next(model.each_tower()).history.pointer.bias[:] = -3.0
    return model


def test_shares_by_hand():
    """By the definition, in other words: for each label, each distinct item before it was there once."""
    rows = [([1, 2, 1], [2, 1, 3]), ([2, 2], [2, 4]), ([5], [5]), ([3, 4, 6, 3], [4, 6, 3, 1])]
    weights = [1.0, 2.0, 0.5, 1.0]
    logs, prior = repeat_logs(windows_of(rows, weights), 6)
    there, chosen = np.zeros(6), np.zeros(6)
    for (history, labels), weight in zip(rows, weights, strict=True):
        for slot, label in enumerate(labels):
            for item in set(history[: slot + 1]):
                there[item - 1] += weight
                chosen[item - 1] += weight * (item == label)
    share = (chosen.sum() + 1) / (there.sum() + 6)
    assert logs.dtype == np.float32 and prior == pytest.approx(np.log(share))
    assert np.allclose(np.exp(logs), (chosen + 20 * share) / (there + 20), rtol=1e-5)


def test_no_repeat_at_all_is_not_impossible():
    logs, prior = repeat_logs(windows_of([([1], [2]), ([3], [4])]), 6)
    assert np.isfinite(logs).all() and np.isfinite(prior)


# The SID 1 is chosen again by half of those who had it, 2 never.
TRAINED = windows_of([([1], [1])] * 100 + [([1], [3])] * 100 + [([2], [4])] * 200)


def test_what_was_counted_stands_in_place_of_the_models_own():
    model = model_of()
    own = model.leaf_log_probs(torch.tensor([[1, 2], [5, 0]]))
    set_repeats(model, TRAINED, None)
    assert torch.equal(model.leaf_log_probs(torch.tensor([[1, 2], [5, 0]])), own)
    set_repeats(model, TRAINED, 0.5)
    found = model.leaf_log_probs(torch.tensor([[1, 2], [5, 0]]))
    logs, _ = repeat_logs(TRAINED, 6)
    expected = own.clone()
    expected[0, 0], expected[0, 1], expected[1, 4] = torch.from_numpy(logs[[0, 1, 4]] + 0.5)
    assert torch.allclose(found, expected.log_softmax(-1), atol=1e-6)
    assert torch.allclose(found.exp().sum(1), torch.ones(2), atol=1e-6)
    # A position inside a history sees nothing of later items.
    masses = [model.masses(torch.tensor([row]), torch.tensor([0]), torch.tensor([0])) for row in ([5, 1], [5, 2])]
    assert torch.allclose(*masses)


def test_it_is_used_where_held_out_rows_gain():
    model = model_of()
    assert fit_repeats(model, TRAINED, windows_of([([1], [1])] * 5)) == SHIFTS[0]
    assert int(model.leaf_log_probs(torch.tensor([[1]])).argmax()) == 0
    other = model_of()
    set_repeats(other, TRAINED, SHIFTS[0])  # as a refit does
    asked = torch.tensor([[1], [2]])
    assert torch.equal(other.leaf_log_probs(asked), model.leaf_log_probs(asked))
    # Nobody takes it again: the model's own stay.
    for training in (True, False):
        torch.nn.Module.train(model, training)
        assert fit_repeats(model, TRAINED, windows_of([([1], [3])] * 5)) is None and model.training == training
    assert torch.equal(model.leaf_log_probs(asked), model_of().leaf_log_probs(asked))


def test_held_out_rows_choose_and_are_not_counted():
    model = model_of()
    fit_repeats(model, TRAINED, windows_of([([2], [2])] * 50))
    assert np.array_equal(model.repeats.logs.numpy(), repeat_logs(TRAINED, 6)[0])


def test_new_sids_have_the_share_of_all():
    model = model_of()
    set_repeats(model, TRAINED, 0.0)
    codes = np.concatenate([CODES, [[0, 3]]])
    grown = extended_catalogue(model, codes, token_ids(2, 4), 20, None, None)
    numbers = [int(np.flatnonzero((np.unique(codes, axis=0) == code).all(1))[0]) for code in codes]
    assert torch.equal(grown.repeats.logs[numbers[:6]], model.repeats.logs)
    assert grown.repeats.logs[numbers[6]] == model.repeats.prior
    assert grown.repeats.shift == 0


def test_very_many_sids_and_models_without_it_stay_as_they_are(monkeypatch):
    assert fit_repeats(model_of(repeats=False), TRAINED, TRAINED) is None
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", 5)
    model = model_of()
    assert fit_repeats(model, TRAINED, windows_of([([1], [1])] * 5)) is None
    assert torch.isneginf(model.repeats.shift)
