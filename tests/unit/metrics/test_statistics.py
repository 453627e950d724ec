"""Bootstrap by cluster: closed forms of cluster sampling, the level of the paired test, and one example a cluster."""

import numpy as np
import pytest
from support.measuring import evaluate_predictions, paired_bootstrap

from minionerec.core.errors import DataError
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import ranking_metrics, sid_ranks
from minionerec.metrics.statistics import bootstrap_interval, bootstrap_means, count_clusters, paired_differences


def test_clusters_match_a_plain_loop_over_their_examples():
    rng = np.random.default_rng(3)
    values, users = rng.random((9, 2)), np.array(list("cabcabbdd"))
    means = bootstrap_means(values, seed=5, resamples=11, clusters=users)
    names = ["c", "a", "b", "d"]  # by their first example
    drawn = np.random.default_rng(5).integers(0, 4, size=(11, 4))
    expected = [np.concatenate([values[users == names[position]] for position in row]).mean(0) for row in drawn]
    np.testing.assert_allclose(means, expected, rtol=1e-12)
    np.testing.assert_allclose(bootstrap_means(values[:, 1], 5, 11, users), means[:, 1], rtol=1e-12)


def test_little_memory_and_another_run_change_nothing(monkeypatch):
    values, users = np.random.default_rng(1).random(50), np.arange(50) // 3
    whole = bootstrap_means(values, resamples=100, clusters=users)
    monkeypatch.setattr("minionerec.metrics.statistics._DRAWS_AT_ONCE", 60)
    np.testing.assert_array_equal(bootstrap_means(values, resamples=100, clusters=users), whole)


def test_one_example_a_cluster_is_the_bootstrap_of_examples_to_the_byte():
    rng = np.random.default_rng(2)
    values, users = rng.random((200, 3)), rng.permutation(200).astype(str)
    assert bootstrap_means(values, 7, 300, users).tobytes() == bootstrap_means(values, 7, 300).tobytes()
    first, second = values[:, 0], values[:, 1]
    assert paired_bootstrap(first, second, 7, 300, clusters=users) == paired_bootstrap(first, second, 7, 300)
    # The draws of earlier versions: rows drawn with replacement by numpy's default generator.
    drawn = np.random.default_rng(7).integers(0, 200, size=(300, 200))
    np.testing.assert_allclose(bootstrap_means(first, 7, 300, users), first[drawn].mean(1), rtol=1e-12)


def clustered(rng, sizes):
    """Values that a user's examples share in part, and the user of each: float (R,), int (R,)."""
    users = np.repeat(np.arange(len(sizes)), sizes)
    return rng.normal(size=len(sizes))[users] + 0.5 * rng.normal(size=len(users)), users


def test_equal_clusters_have_the_variance_of_their_means():
    values, users = clustered(np.random.default_rng(0), np.full(80, 5))
    own = values.reshape(80, 5).mean(1)
    known = own.var() / 80  # of the mean of 80 clusters drawn with replacement from these 80
    found = bootstrap_means(values, resamples=20_000, clusters=users).var()
    assert found == pytest.approx(known, rel=0.04)
    assert bootstrap_means(values, resamples=20_000).var() < 0.35 * known


def test_unequal_clusters_have_the_variance_of_the_ratio_estimator():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 400)
    values, users = clustered(rng, sizes)
    residuals = np.bincount(users, values) - values.mean() * sizes
    known = np.square(residuals).mean() / (400 * sizes.mean() ** 2)  # Cochran, chapter 9A
    found = bootstrap_means(values, resamples=20_000, clusters=users)
    assert found.var() == pytest.approx(known, rel=0.04)
    low, high = bootstrap_interval(values, resamples=20_000, clusters=users)
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(known), rel=0.04)


def test_the_paired_test_keeps_its_level_on_clustered_data_without_a_difference():
    rejected = {"users": 0, "examples": 0}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        gaps, users = clustered(rng, rng.integers(1, 9, 60))
        for name, clusters in (("users", users), ("examples", None)):
            rejected[name] += paired_bootstrap(gaps, np.zeros_like(gaps), seed, 199, clusters=clusters).p < 0.05
    assert 0.02 < rejected["users"] / 300 < 0.10
    assert rejected["examples"] / 300 > 0.25


def test_several_metrics_see_the_same_clusters():
    values, users = clustered(np.random.default_rng(0), np.arange(1, 21))
    found = paired_differences({"x": values, "y": -values}, {"x": 0 * values, "y": 0 * values}, clusters=users)
    assert found["x"].low == pytest.approx(-found["y"].high)
    assert found["x"] == pytest.approx(paired_bootstrap(values, 0 * values, clusters=users))


def test_metrics_of_lists_are_drawn_by_user():
    rng = np.random.default_rng(0)
    users, targets = [f"u{row // 4}" for row in range(120)], rng.integers(0, 5, 120).astype(np.int32)
    sids = [f"<a_{item}>" for item in range(5)]
    lists = [list(range(5))] * 120
    rows = Predictions(users, targets, [sids[t] for t in targets], lists, [sids] * 120, [[0.0] * 5] * 120)
    found = evaluate_predictions(rows, [1, 5], seed=3, resamples=200)
    low, high = bootstrap_interval(ranking_metrics(sid_ranks(rows), [5])["NDCG@5"], 3, 200, clusters=users)
    assert (found.sid["NDCG@5"].low, found.sid["NDCG@5"].high) == pytest.approx((low, high))
    assert found.item["NDCG@5"] == found.sid["NDCG@5"]


def test_clusters_are_counted_and_one_each():
    assert (count_clusters(["a", "b", "a"], 3), count_clusters(None, 3)) == (2, 3)
    with pytest.raises(DataError, match="2 clusters for 3 examples; expected one each"):
        bootstrap_means(np.zeros(3), clusters=["a", "b"])
