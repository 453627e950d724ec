"""The study of lists: what they are worth, re-ranked, and compared at equal HR@10."""

import numpy as np
import pytest
from support.scripts import study

from minionerec.metrics.predictions import Predictions


@pytest.fixture(scope="module")
def lists():
    return study("list_rewards")


def shop_of(lists, **changes):
    """Four items of value 1, 4, 1 and 2 (of mean 2), labels 0, 0, 1, 2, the last one rare."""
    values = np.array([1.0, 4.0, 1.0, 2.0]) / 2
    known = {"targets": np.array([1, 3]), "users": ["a", "b"], "values": values, "labels": np.array([0, 0, 1, 2])}
    return lists.Shop(**known, rare=np.array([False, False, False, True]), **changes)


def test_metrics_of_lists(lists):
    some = np.array([[0, 1, 2], [2, 0, -1]])
    found = shop_of(lists).metrics(some)
    assert [found[name].tolist() for name in found] == [[1, 0], [2, 0], [2, 2], [0, 0]]
    exact = shop_of(lists, probabilities=np.array([[0.5, 0.25, 0.25, 0.0], [0.125, 0.0, 0.5, 0.25]])).metrics(some)
    assert exact["HR@10"].tolist() == [1.0, 0.625]
    assert exact["value@10"].tolist() == [0.25 + 0.5 + 0.125, 0.25 + 0.0625]
    assert shop_of(lists).metrics(np.array([[3, 0], [0, -1]]))["rare@10"].tolist() == [0.5, 0]


def test_lists_re_ranked(lists):
    scores = [[-1.0, -1.5, -2.0, -2.5], [-1.0, -3.0]]
    predictions = Predictions(["a", "b"], np.array([1, 3]), ["", ""], [[0, 1, 2, 3], [2, 2]], [[""] * 4] * 2, scores)
    found = lists.Candidates.of(predictions)
    assert found.items.tolist() == [[0, 1, 2, 3], [2, -1, -1, -1]] and found.scores[1, 0] == -1
    labels = shop_of(lists).labels
    assert found.by_label(labels, 0.4)[0, :4].tolist() == [0, 1, 2, 3]
    assert found.by_label(labels, 0.6)[0, :4].tolist() == [0, 2, 1, 3]
    assert found.by_label(labels, 9)[0, :4].tolist() == [0, 2, 3, 1]
    assert found.by_label(labels, 9)[1].tolist() == [2] + [-1] * 9
    assert found.sampled(0)[0].tolist() == [0, 1, 2, 3]
    drawn = [found.sampled(1, seed)[0, 0] for seed in range(2000)]
    weights = np.exp(scores[0])
    assert np.bincount(drawn, minlength=4) / 2000 == pytest.approx(weights / weights.sum(), abs=0.04)


def test_each_seed_is_compared_with_its_own_start(lists):
    points = {0.5: 1.0, 0.25: 3.0}
    first = [{"HR@10": np.array([hit, hit]), "value@10": np.array([value, value])} for hit, value in points.items()]
    second = [{"HR@10": point["HR@10"], "value@10": 2 * point["value@10"]} for point in first]
    runs = [
        {"HR@10": np.array([0.25, 0.5]), "value@10": np.array([5.0, 7.0])},
        {"HR@10": np.array([0.75, 0.75]), "value@10": np.array([6.0, 8.0])},
    ]
    its, plain, beyond = lists.by_seed(runs, [first, second], "value@10")
    assert its.tolist() == [[5, 7], [6, 8]] and plain.tolist() == [[2, 2], [2, 2]] and beyond == 1
    assert lists.spread([0.25]) == "0.2500" and lists.spread([0.25, 0.75]) == "0.5000 ± 0.3536"
