"""The preference models against dumb oracles, the early stop, the measures, and the tables of the report."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from contrib.preference.comparisons import build
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression
from support.rounding import assert_near
from torch import nn

from minionerec.contrib.preference import models
from minionerec.contrib.preference.config import COMPAT, PreferenceConfig
from minionerec.contrib.preference.data import TEST, TRAIN, VALID, Comparisons, fold_of_rows
from minionerec.contrib.preference.measures import correct, cross_entropy, pair_interval, summary
from minionerec.contrib.preference.models import (
    WIDTHS,
    Lookup,
    MlpModel,
    PairNetwork,
    agreeing_user,
    fit_bradley_terry,
    majority,
    principal_components,
    train_mlp,
)
from minionerec.contrib.preference.synthetic import make_population, sibling_probability
from minionerec.contrib.preference.train import few_shot, fit_model
from minionerec.core.errors import ConfigError


def every_row(model, data, user=None, swap=False):
    """What a model says of all rows."""
    rows, user = np.arange(len(data)), data.user if user is None else user
    return model.predict_swapped(data, rows, user) if swap else model.predict(data, rows, user)


def answers(y, target):
    """Rows of one user's answers without items."""
    columns = dict.fromkeys(("comparison", "a", "b", "user"), np.zeros(len(y), dtype=int)) | {"pair": np.arange(len(y))}
    targets = ("t0", "t1", "t2")
    return Comparisons(
        np.zeros((1, 1)), ["i"], ["u0"], targets, [], target=target, y=y, time=None, counts={}, **columns
    )


@pytest.mark.parametrize("users", [6, 11])
def test_parameter_count_is_the_published_one(users):
    network, siamese = PairNetwork(512, users, 3), PairNetwork(512, users, 3, siamese=True)
    assert sum(p.numel() for p in network.parameters()) == 352_995 + 32 * users
    assert siamese.encode(torch.zeros(4, 512), torch.arange(4), torch.zeros(4).long()).shape == (4, 32)


def test_network_equals_the_published_one_written_plainly():
    """Two encoder calls over rows and swapped copies, vectors concatenated: same loss, same gradients."""
    torch.manual_seed(0)
    items, users, rows = torch.randn(30, 12), 4, 50
    network = PairNetwork(12, users, 3, dropout=0.0)
    a, b, user, y = (torch.randint(0, high, (rows,)) for high in (30, 30, users, 2))
    ours, swapped = network.pair_logits(items, a, b, user)
    bce = nn.functional.binary_cross_entropy_with_logits
    loss = (bce(ours[:, 1], y.float()) + bce(swapped[:, 1], 1 - y.float())) / 2
    loss.backward()

    blocks: list[nn.Module] = []
    for layer, (i, o) in zip([network.first, *network.layers], pairwise((12 + 32, *WIDTHS)), strict=True):
        linear_layer = nn.Linear(i, o)
        linear_layer.load_state_dict(layer.state_dict())
        blocks += [linear_layer, nn.BatchNorm1d(o), nn.LeakyReLU(0.01)]
    encoder, vectors = nn.Sequential(*blocks), network.user_vectors.detach().clone().requires_grad_()
    first, second, recommender = torch.cat([a, b]), torch.cat([b, a]), vectors[torch.cat([user, user])]
    codes = [encoder(torch.cat([items[side], recommender], 1)) for side in (first, second)]
    head = nn.functional.linear(torch.cat(codes, 1), network.heads.weight.detach(), network.heads.bias.detach())
    plain = nn.functional.binary_cross_entropy(torch.sigmoid(head[:, 1]), torch.cat([y, 1 - y]).float())
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    assert_near(network.user_vectors.grad, vectors.grad, floor=0)
    assert_near(network.first.weight.grad, blocks[0].weight.grad, floor=0)
    assert_near(network.norms[2].running_mean, blocks[7].running_mean, floor=0)


@pytest.fixture(scope="module")
def data():
    world = build(pairs=80, users=4, seed=5)
    taste = np.random.default_rng(1).normal(size=(4, 4))
    gap = world.features[world.a] - world.features[world.b]
    drawn = np.random.default_rng(2).random(len(world)) < ndtr((gap * taste[world.user]).sum(1))
    world.y[:] = drawn
    return world, fold_of_rows(world, "pair", 0)


def test_early_stop_keeps_the_best_weights_and_small_gains_do_not_count(data, monkeypatch):
    losses = [0.7, 0.6, *(0.6 - 0.0005 * n for n in (1, 2)), *[0.5995] * 30]
    for patience, ended in ((10, (1, 11)), (2, (1, 3))):
        left = iter(losses)
        monkeypatch.setattr(models, "cross_entropy", lambda y, p, left=left: np.full(len(y), next(left)))
        model = train_mlp(*data, siamese=False, seed=42, max_epochs=40, patience=patience)
        assert (model.best_epoch, model.last_epoch) == ended
    until_best = train_mlp(*data, siamese=False, seed=42, max_epochs=2).last
    np.testing.assert_array_equal(every_row(model, data[0]), every_row(until_best, data[0]))
    assert np.abs(every_row(model, data[0]) - every_row(model.last, data[0])).max() > 1e-3
    monkeypatch.setattr(models, "cross_entropy", lambda y, p: np.full(len(y), np.nan))
    with pytest.raises(ConfigError, match=r"validation loss is nan after epoch 0"):
        train_mlp(*data, siamese=False, seed=42, max_epochs=2)


@pytest.mark.parametrize(("scale", "activation"), [("none", "relu"), ("standardize", "gelu"), ("l2", "silu")])
def test_network_options_train(data, scale, activation):
    model = train_mlp(*data, siamese=True, seed=42, activation=activation, scale=scale, max_epochs=2)
    assert len(model.history["val_loss"]) == 2
    norms = model.table(data[0].features).norm(dim=1)
    assert (scale == "l2") == bool(torch.allclose(norms, torch.ones_like(norms), atol=1e-5))


def test_compat_trains_the_published_network_as_published(data):
    config = PreferenceConfig(compat=COMPAT, scale="l2", max_epochs=2)
    model, ours = (fit_model(config, name, *data) for name in ("mlp_concat", "mlp_siamese"))
    published = {"scale": "none", "embedding_std": 1.0, "full_batch": True, "monitor": "macro_target"}
    assert {name: model.settings[name] for name in published} == published
    assert (ours.settings["scale"], ours.settings["full_batch"], ours.settings["monitor"]) == ("l2", False, "pooled")
    np.testing.assert_array_equal(model.table(data[0].features), data[0].features)
    rows = np.flatnonzero(data[1] == VALID)
    losses = cross_entropy(data[0].y[rows], model.last.predict(data[0], rows, data[0].user[rows]))
    groups = [losses[data[0].target[rows] == target].mean() for target in range(3)]
    assert model.history["val_loss"][-1] == pytest.approx(np.mean(groups))


def test_score_models_are_antisymmetric(data):
    world, folds = data
    network = {"siamese": True, "seed": 0, "max_epochs": 20, "batch_size": 32}
    found = [train_mlp(world, folds, position_bias=False, **network)]
    kinds = ("bt_global", "bt_user", "bt_hier", "bt_lowrank")
    found += [fit_bradley_terry(world, folds, kind, position_bias=False) for kind in kinds]
    for model in found:
        assert np.abs(every_row(model, world) + every_row(model, world, swap=True) - 1).max() < 1e-6
        assert np.ptp(every_row(model, world)) > 0.05
        assert model.utilities(world.features).shape == (5, 3, 80)
    biased = fit_bradley_terry(world, folds, "bt_hier")
    assert np.abs(every_row(biased, world) + every_row(biased, world, swap=True) - 1).max() > 1e-3
    assert biased.parameters == 4 * 3 * 4 + 4 and len(biased.chosen["tried"]) == 12


def test_principal_components_are_standardised_and_the_leading_ones(data):
    world, folds = data
    rows = np.flatnonzero(folds == TRAIN)
    mean, projection = principal_components(world, rows, 2)
    seen = np.unique([world.a[rows], world.b[rows]])
    z = (world.features[seen] - mean) @ projection
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(2), atol=1e-4)
    _, size, axes = np.linalg.svd(world.features[seen] - mean, full_matrices=False)
    np.testing.assert_allclose(np.abs(axes[:2] @ projection * size[:2] / np.sqrt(len(seen))), np.eye(2), atol=1e-3)
    flat = type(world)(**{**vars(world), "features": np.repeat(world.features[:, :1], 3, axis=1)})
    assert principal_components(flat, rows, 3)[1].shape == (3, 1)  # there is but one direction


def test_blocks_add_up_to_logistic_regression(data, monkeypatch):
    """Of w0 + b under penalties c and 2c the sum is under 2c/3: scikit-learn's logistic regression is the oracle."""
    world, folds = data
    world = world.take(np.flatnonzero((world.target == 0) & (world.user == 0)))
    one = type(world)(**{**vars(world), "users": ["u0"], "targets": ["t0"]})
    folds = fold_of_rows(one, "pair", 0)
    monkeypatch.setattr(models, "PENALTIES", (6.0,))
    model = fit_bradley_terry(one, folds, "bt_global", position_bias=False)
    train = folds == TRAIN
    z = (one.features - model.mean) @ model.projection
    oracle = LogisticRegression(C=1 / 4.0, fit_intercept=False, tol=1e-8)
    oracle.fit((z[one.a] - z[one.b])[train], one.y[train])
    np.testing.assert_allclose(model.weights[0, 0], oracle.coef_[0], atol=2e-3)
    alone = fit_bradley_terry(one, folds, "bt_user", position_bias=False)
    assert not alone.weights[-1].any() and alone.weights[0].any()  # without a crowd the unseen user is undecided


@pytest.mark.parametrize("kind", ["bt_hier", "bt_lowrank"])
def test_adapting_helps_a_new_user_and_frozen_parts_stay(data, kind):
    world, _ = data
    folds = fold_of_rows(world, "user", 1)
    test = np.flatnonzero(folds == TEST)
    model = fit_bradley_terry(world, folds, kind)
    shots = few_shot(model, world, test, [0, 5, 40], 0)
    assert shots["0"]["n"] == shots["40"]["n"] and shots["40"]["ce"] < shots["0"]["ce"]
    adapted = model.adapt(world, test[:30])
    np.testing.assert_array_equal(adapted.weights[:-1], model.weights[:-1])
    change = (adapted.weights[-1] - model.weights[-1])[0]
    outside = change - model.basis @ np.linalg.lstsq(model.basis, change, rcond=None)[0]
    assert np.abs(outside).max() < 1e-6 < np.abs(change).max()


def test_models_that_do_not_adapt_are_measured_without_answers_of_new_users(data):
    world, _ = data
    folds = fold_of_rows(world, "user", 1)
    test = np.flatnonzero(folds == TEST)
    network = MlpModel(PairNetwork(4, 4, 3), np.zeros(4, np.float32), np.ones(4, np.float32), False)
    for model in (network, fit_bradley_terry(world, folds, "bt_user")):
        assert list(few_shot(model, world, test, [0, 5], 0)) == ["0"] and model.adapt(world, test[:3]) is None
    assert few_shot(Lookup(majority(world, folds)), world, test, [0, 5], 0) == {}  # it knows nobody new at all


def test_baselines_against_hand_counts():
    world = build(pairs=4, users=3, targets=1)
    world.y[:] = [1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]  # users 0, 1, 2 on pairs 0..3
    folds = np.zeros(12, dtype=np.int8)
    folds[[3, 2]] = TEST  # user 0 on pairs 3 and 2
    assert majority(world, folds)[3] == pytest.approx((2 + 1) / (2 + 2))
    # On pairs 0 and 1 user 1 says what user 0 says, user 2 the opposite: both tell as much, and user 1 comes first.
    p = agreeing_user(world, folds)
    assert p[3] == pytest.approx(1 - 0.75) and p[2] == pytest.approx(1 - 0.75)
    folds[[6, 7, 10, 11]] = TEST  # nobody else answered in train
    np.testing.assert_allclose(agreeing_user(world, folds)[[2, 3]], majority(world, folds)[[2, 3]])


def test_sibling_ceiling_against_drawing():
    """The quadrature against frequencies of two million simulated pairs of answers."""
    rng = np.random.default_rng(0)
    margin, halo, lapse = np.array([[0.3, -0.5]]), 0.6, 0.1
    shared = rng.normal(0, np.sqrt(halo), (2_000_000, 1))
    y = (margin + shared + rng.normal(0, np.sqrt(1 - halo), (2_000_000, 2)) > 0).astype(float)
    toss = rng.random(y.shape) < lapse
    y[toss] = rng.integers(0, 2, toss.sum())
    for answer in (0.0, 1.0):
        p = sibling_probability(margin, np.array([[np.nan, answer]]), np.array([[False, True]]), halo, lapse)[0, 0]
        assert p == pytest.approx(y[y[:, 1] == answer, 0].mean(), abs=2e-3)
    plain = sibling_probability(margin, np.array([[1.0, 1.0]]), np.ones((1, 2), bool), 0.0, 0.0)
    np.testing.assert_allclose(plain, ndtr(margin))


def test_population_has_the_shape_that_is_promised():
    features, utility, comparisons, truth = make_population("halo", 600, 64, 3)
    norm = np.linalg.norm(features, axis=1)
    unit = features / norm[:, None]
    cosine = (unit @ unit.T)[np.triu_indices(600, 1)].mean()
    assert 9 < norm.mean() < 11 and 0.7 < cosine < 0.9
    pairs = comparisons.drop_duplicates(["item_a", "item_b"])
    assert (np.bincount([int(n[5:]) for column in ("item_a", "item_b") for n in pairs[column]]) == 2).all()
    np.testing.assert_allclose(utility.std(axis=-1), 1)
    user = np.repeat(comparisons["user_id"].to_numpy(), 3)
    p = ndtr(truth["margin"].to_numpy())
    assert np.maximum(p, 1 - p)[user == "user-000002"].mean() == pytest.approx(0.85, abs=1e-6)
    assert make_population("one_taste", 60, 64, 3)[1][:, 0].std(axis=0).max() < 1e-9
    sizes = make_population("halo", 4602, 8, 3)[2]["user_id"].value_counts()
    assert len(sizes) == 11 and sizes.sum() == 16252
    assert sizes.tolist()[:6] == [4602, 4588, 3701, 2812, 299, 148]


def test_measures_by_hand():
    y, p = np.array([1.0, 0, 1, 0]), np.array([0.9, 0.5, 0.4, 0.6])
    assert correct(y, p).tolist() == [1, 1, 0, 0]
    result = summary(answers(y, np.array([0, 0, 0, 1])), p, 1 - p + 0.2, resamples=20)
    assert (result["accuracy"], result["accuracy_macro"]) == (0.5, pytest.approx((2 / 3 + 0) / 2))
    assert result["swap_gap"] == pytest.approx(0.2)
    assert result["brier"] == pytest.approx((0.01 + 0.25 + 0.36 + 0.36) / 4)
    assert summary(answers(np.ones(3), np.zeros(3, int)), p[:3], resamples=5)["auc"] is None
    coin = summary(answers(np.array([0, 1.0] * 50), np.zeros(100, int)), np.full(100, 0.7), resamples=5)
    assert len(coin["calibration"]) == 15 and sum(row["n"] for row in coin["calibration"]) == 100
    assert coin["ece"] == pytest.approx(0.2, abs=0.02)


def test_interval_is_over_pairs():
    """A hundred copies of ten pairs tell no more than ten rows do."""
    values = np.array([0.0, 1.0] * 5)
    few = pair_interval(values, np.arange(10), 0, 400)
    many = pair_interval(np.repeat(values, 100), np.repeat(np.arange(10), 100), 0, 400)
    assert (many["low"], many["high"]) == pytest.approx((few["low"], few["high"]))
    assert few["p"] < 0.05 and pair_interval(values - 0.5, np.arange(10), 0, 400)["p"] > 0.5
