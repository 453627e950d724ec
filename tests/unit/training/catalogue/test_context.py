"""Request features of windows, in memory and by shards, and the popularity that is weighed by them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.decoding import token_ids
from support.examples import in_blocks, sid_windows
from support.gaps import GAP, LATER, SAME, gap_codes
from support.small_corpus import random_corpus

from minionerec.data.contexts import RequestFeature
from minionerec.data.names import UNKNOWN
from minionerec.models.backbone.catalogue import CatalogueConfig, blocks, build_catalogue
from minionerec.models.nn.context import HIDDEN_SHARE, UNSOLD, hidden
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.popularity import (
    WEIGHTS,
    fit_popularity,
    popularity_logs,
    set_popularity,
)
from minionerec.training.catalogue.windows import collate

N = 30
TABLE = SidTable(np.array([[index // 6, index % 5] for index in range(N)]), [f"i{index}" for index in range(N)])
SIZE = TABLE.n_unique


KINDS = pytest.mark.parametrize(
    ("max_history", "settings"),
    [
        (30, {}),
        (10, {}),
        (3, {}),
        (1, {}),
        (6, {"gaps": 0.3}),
        (10, {"ties": "together"}),
        (4, {"ties": "together", "gaps": 0.2}),
        (5, {"unknown": 0.3}),
    ],
)


def conditioned(windows):
    """What is asked at each label: history, target and context, in an order of their own."""
    parts = zip(*(windows[name] for name in ("histories", "labels", "contexts")), strict=True)
    return sorted(
        (items[: position + 1].tolist(), int(labels[position]), int(contexts[position, 0]))
        for items, labels, contexts in parts
        for position in np.flatnonzero(labels > 0)
    )


@KINDS
def test_each_label_has_the_request_feature_of_its_row(max_history, settings):
    corpus = random_corpus(TABLE.item_ids, max_history, **settings)
    windows, valid = sid_windows(corpus, TABLE, 1.0, features=[GAP])
    number = TABLE.sid_numbers + 1
    for part, split in ((windows, "train"), (valid, "valid")):
        rows = corpus.rows(split)
        contexts = gap_codes(rows).tolist()
        wanted = sorted(
            (number[history].tolist(), int(number[target]), context)
            for (_, history, target), context in zip(rows, contexts, strict=True)
        )
        found = conditioned(part)
        if split == "train" and max_history < 30:  # a window may begin later than a history does
            found, wanted = (sorted((seen[-1], *asked) for seen, *asked in each) for each in (found, wanted))
        assert found == wanted
        assert part["contexts"].dtype == np.int16 and part["contexts"].shape == (*part["labels"].shape, 1)
        assert (part["contexts"][part["labels"] < 0] == UNKNOWN).all()
    kinds = {LATER} if settings.get("ties") == "together" else {SAME, LATER}
    assert {context for *_, context in conditioned(windows)} == kinds | ({UNKNOWN} if "unknown" in settings else set())


@KINDS
def test_a_corpus_of_several_blocks_has_the_same_request_features(tmp_path, max_history, settings):
    corpus = random_corpus(TABLE.item_ids, max_history, **settings)
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    wanted, valid = sid_windows(corpus, TABLE, 2.0, features=[GAP])
    found, again = sid_windows(in_blocks(tmp_path / "corpus"), TABLE, 2.0, features=[GAP])
    assert conditioned(found) == conditioned(wanted)
    assert found["contexts"].dtype == np.int16 and (found["contexts"][found["labels"] < 0] == UNKNOWN).all()
    assert set(again) == set(valid)
    for name, values in valid.items():
        assert np.array_equal(again[name], values) and again[name].dtype == values.dtype


def test_nothing_else_is_changed_by_request_features(tmp_path):
    corpus = random_corpus(TABLE.item_ids, 6, gaps=0.2)
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    pairs = list(zip(*(sid_windows(corpus, TABLE, 2.0, features) for features in ((), [GAP])), strict=True))
    stored = in_blocks(tmp_path / "corpus")
    pairs += zip(*(sid_windows(stored, TABLE, 2.0, features) for features in ((), [GAP])), strict=True)
    for without, with_them in pairs:
        assert set(with_them) - set(without) == {"contexts"} and "contexts" not in without
        for name, values in without.items():
            assert np.array_equal(values, with_them[name]) and values.dtype == with_them[name].dtype


@pytest.mark.parametrize("stored", [False, True])
def test_a_corpus_without_times_knows_no_request_feature(tmp_path, stored):
    corpus = random_corpus(TABLE.item_ids, 6)
    splits = {name: replace(rows, times=None) for name, rows in corpus.splits().items()}
    corpus = replace(corpus, **splits)
    if stored:
        corpus.save(tmp_path / "corpus", config={}, inputs={})
        corpus = in_blocks(tmp_path / "corpus")
    for part in sid_windows(corpus, TABLE, 0.0, features=[GAP]):
        assert not part["contexts"].any()


def test_batches_keep_request_features():
    windows, _ = sid_windows(random_corpus(TABLE.item_ids, 6), TABLE, 0.0, features=[GAP])
    batch = collate([{name: values[position] for name, values in windows.items()} for position in (0, 2)])
    assert batch["contexts"].dtype == torch.int64 and batch["contexts"].shape == (*batch["labels"].shape, 1)
    assert (batch["contexts"] == torch.from_numpy(windows["contexts"][[0, 2]])[:, : batch["labels"].shape[1]]).all()


def test_some_request_features_are_hidden_and_nothing_else():
    torch.manual_seed(0)
    labels = torch.randint(-3, 9, (400, 20))
    contexts = torch.where(labels[..., None] > 0, torch.randint(1, 3, (*labels.shape, 2)), 0)
    found = hidden(contexts, labels)
    asked = (labels > 0)[..., None].expand_as(contexts)
    gone = (found != contexts) & asked
    assert (found[gone] == UNKNOWN).all() and torch.equal(found[~gone], contexts[~gone])
    assert gone.sum().item() / asked.sum().item() == pytest.approx(HIDDEN_SHARE, abs=0.02)
    assert not torch.equal(hidden(contexts, labels), found)
    assert not torch.equal(gone[..., 0], gone[..., 1])  # each feature by itself


def windows_of(labels, contexts, weights=None):
    labels, contexts = np.array(labels), np.array(contexts, dtype=np.int16)[..., None]
    histories = np.where(labels > 0, 1, 0)
    weights = np.ones(labels.shape, dtype=np.float32) if weights is None else np.array(weights, dtype=np.float32)
    return {"histories": histories, "labels": labels, "contexts": contexts, "weights": weights}


def test_popularity_by_hand():
    windows = windows_of(
        [[1, 2, -100], [1, 1, 3], [2, -100, -100]],
        [[SAME, LATER, UNKNOWN], [SAME, LATER, UNKNOWN], [SAME, SAME, SAME]],
        [[1, 2, 9], [0.5, 1, 3], [1, 9, 9]],
    )
    found = np.exp(popularity_logs(windows, [3], 4))
    assert found.dtype == np.float32
    counts = np.array([[2.5, 3, 3, 0], [1.5, 1, 0, 0], [1, 2, 0, 0]])
    assert np.allclose(found, counts + UNSOLD, rtol=1e-5)


def model_of(towers=1, **changes):
    """A model that finds every one of six SIDs as likely, whatever it is asked."""
    codes = np.array([[position // 3, position % 3] for position in range(6)])
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "pointer": False, "towers": towers}
    config = CatalogueConfig(vocab_size=20, max_history=4, **{"context_tokens": [[1, 2]], **shape, **changes})
    model = build_catalogue(config, codes, token_ids(2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def rows_of(*asked):
    """Held-out rows of one item, their target and context."""
    return windows_of([[target] for target, _ in asked], [[context] for _, context in asked])


def fit(model, windows, heldout):
    """The fitted weights of the gap."""
    return fit_popularity(model, windows, heldout, [GAP])["gap"]


# The SID 1 is popular at once, 2 later; each SID was a target.
TRAINED = windows_of(
    [[1, 1, 1, 1, 1, 2, 3, 4, 5, 6], [2, 2, 2, 2, 1, 3, 4, 5, 6, 2]],
    [[SAME] * 10, [LATER] * 10],
)


def test_the_weight_is_that_which_ranks_held_out_targets_best(caplog):
    """Where targets are what was popular it counts, where they are what was not it does not, by context."""
    model = model_of()
    with torch.no_grad():
        next(model.each_tower()).bias[:] = torch.tensor([0.0, 0.0, 1.05, 1.05, 1.05, 1.05])
    logs = popularity_logs(TRAINED, [3], 6)
    heldout = rows_of(*[(1, SAME)] * 5, *[(3, LATER)] * 5)
    with caplog.at_level("INFO", "minionerec"):
        found = fit(model, TRAINED, heldout)
        assert f"{found['same']} (gap same), 0.0 (gap later)." in caplog.messages[-1]
    # At once: the smallest weight with which SID 1 stands before the others.
    needed = 1.05 / (logs[SAME, 0] - logs[SAME, 2])
    assert found["same"] == min(weight for weight in WEIGHTS if weight > needed) > 0
    assert found["later"] == 0  # where SID 2 is popular, and nobody takes it
    assert model.popularity.weights.tolist() == pytest.approx([found[name] for name in GAP.names])
    assert torch.equal(model.popularity.logs, torch.from_numpy(logs))
    # Untold, it takes more of the popularity of all contexts, of which SID 1 has less.
    found = fit(model, TRAINED, rows_of(*[(1, SAME)] * 5))
    needed = 1.05 / (logs[UNKNOWN, 0] - logs[UNKNOWN, 2])
    assert found["unknown"] == min(weight for weight in WEIGHTS if weight > needed) > found["same"] > 0
    # The other way about.
    turned = fit(model, TRAINED, rows_of(*[(3, SAME)] * 5, *[(2, LATER)] * 5))
    assert turned["same"] == 0 and turned["later"] > 0


@pytest.mark.parametrize("towers", [1, 2])
def test_a_weight_of_one_is_found_where_one_is_best(towers):
    """A popular SID must pass one that the model likes better, and a very popular one must stay behind another."""
    model = model_of(towers)
    windows = windows_of([[1] * 4 + [2] * 1 + [3] * 16 + [4] + [5, 6]], [[SAME] * 24])
    logs = popularity_logs(windows, [3], 6)[SAME]
    with torch.no_grad():
        for tower in model.each_tower():
            # 1 passes 2 with a weight above 0.9; from 1.1 on 3 passes 1.
            tower.bias[:] = torch.tensor([0.0, 0.9 * (logs[0] - logs[1]), 1.1 * (logs[0] - logs[2]), -9.0, -9.0, -9.0])
    for training in (True, False):
        torch.nn.Module.train(model, training)
        found = fit(model, windows, rows_of(*[(1, SAME)] * 3))
        assert found["same"] == found["unknown"] == 1.0 and found["later"] == 0.0  # no row asks for later
        assert model.training == training
        assert fit(model, windows, rows_of(*[(1, SAME)] * 3)) == found


def test_every_weight_can_be_reported_and_given_to_another_model():
    """What a manifest says of a fit is what it found: `fitted_weights` reads it there."""
    for weight in WEIGHTS:
        model = model_of()
        set_popularity(model, TRAINED, [GAP], {"gap": {"same": weight}})
        assert model.popularity.weights.tolist() == pytest.approx([0, weight, 0])
        assert round(float(model.popularity.weights[SAME]), 2) == weight
    windows = windows_of([[1] * 4 + [2]], [[LATER] * 5])
    logs = popularity_logs(windows, [3], 6)[LATER]
    model = model_of()
    with torch.no_grad():
        next(model.each_tower()).bias[1] = 1.1 * float(logs[0] - logs[1])
    found = fit(model, windows, rows_of((1, LATER)))
    assert found["later"] == 1.25
    other = model_of()
    set_popularity(other, windows, [GAP], {"gap": found})
    assert torch.equal(other.popularity.weights, model.popularity.weights)
    assert torch.equal(other.popularity.logs, model.popularity.logs)


def test_very_many_sids_have_no_popularity(monkeypatch):
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", 5)
    model = model_of()
    assert fit_popularity(model, TRAINED, rows_of((1, SAME)), [GAP]) == {}
    set_popularity(model, TRAINED, [GAP], {"gap": {"same": 1.0}})
    assert not model.popularity.weights.any() and not model.popularity.logs.any()
    plain = SimpleNamespace(popularity=None, by_blocks=False)
    assert fit_popularity(plain, TRAINED, rows_of((1, SAME)), [GAP]) == {}


def test_each_feature_is_weighed_with_those_before_it():
    """A second feature adds what the first does not tell; where the first tells all, it has no weight."""
    second = RequestFeature("weekday", tuple("abcdefg"))
    both = {**TRAINED, "contexts": np.concatenate([TRAINED["contexts"]] * 2, axis=2)}
    heldout = rows_of(*[(1, SAME)] * 5)
    heldout["contexts"] = np.concatenate([heldout["contexts"]] * 2, axis=2)
    model = model_of(context_tokens=[[1, 2], list(range(3, 10))])
    with torch.no_grad():
        next(model.each_tower()).bias[:] = torch.tensor([0.0, 0.0, 1.05, 1.05, 1.05, 1.05])
    logs = popularity_logs(both, [3, 8], 6)
    assert np.array_equal(logs[:3], popularity_logs(TRAINED, [3], 6)) and np.array_equal(logs[3:6], logs[:3])
    found = fit_popularity(model, both, heldout, [GAP, second])
    assert found["gap"]["same"] > 0 and not any(found["weekday"].values())
    hidden_gap = {**heldout, "contexts": heldout["contexts"] * np.array([0, 1], dtype=np.int16)}
    found = fit_popularity(model, both, hidden_gap, [GAP, second])
    assert found["gap"]["unknown"] > 0 and found["weekday"]["unknown"] == 0
