"""Rewards that read item vectors, a sequential model, and the items' own values, purchases and labels."""

import numpy as np
import pytest
from support.rollouts import rollouts_of

from minionerec.core.errors import DataError
from minionerec.sid.table import SidTable
from minionerec.training.rewards import (
    make_collaborative,
    make_diversity,
    make_expected,
    make_rare,
    make_semantic,
    make_value,
)

# Items 2 and 3 share an SID.
TABLE = SidTable(np.array([[1, 1], [1, 2], [2, 1], [2, 1]]), ["w", "x", "y", "z"])
FIRST, SECOND, SHARED = "<a_1><b_1>", "<a_1><b_2>", "<a_2><b_1>"


def test_semantic_is_the_cosine_of_vectors():
    vectors = np.array([[3.0, 0.0], [1.0, 1.0], [0.0, 5.0], [2.0, 0.0]])
    group = [FIRST, SECOND, SHARED]
    found = make_semantic(TABLE, vectors)(rollouts_of(TABLE, [group, group], [FIRST, SECOND]))
    # The shared SID stands between its two items, whatever their lengths: along (1, 1).
    half = 0.5**0.5
    assert found == pytest.approx(np.array([[1, half, half], [half, 1, 1]]))
    vectors[0] = 0
    assert make_semantic(TABLE, vectors)(rollouts_of(TABLE, [group], [FIRST])).tolist() == [[0, 0, 0]]


def test_collaborative_is_the_models_score():
    asked = []

    def scorer(histories):
        asked.extend(histories)
        return np.array([[10 * len(history) + item for item in range(4)] for history in histories])

    group = [SECOND, SHARED]
    histories = [[7, 8], [7], None, [7, 8]]
    rollouts = rollouts_of(TABLE, [group, [FIRST, SHARED], group, [FIRST, SECOND]], [FIRST] * 4, histories)
    found = make_collaborative(TABLE, scorer)(rollouts)
    # The shared SID has the better score of items 2 and 3; a row without a history has no reward.
    assert found[[0, 1, 3]].tolist() == [[21, 23], [10, 13], [20, 21]]
    assert np.isnan(found[2]).all()
    assert asked == [(7, 8), (7,)]
    wrong = make_collaborative(TABLE, lambda rows: np.zeros((len(rows), 3)))
    with pytest.raises(DataError, match=r"scores \(2, 3\); expected 2 histories x 4 items"):
        wrong(rollouts)
    none = rollouts_of(TABLE, [group], [FIRST])
    assert np.isnan(make_collaborative(TABLE, scorer)(none)).all()


def test_an_expected_worth_is_the_models_probability_times_the_value():
    scores = np.log([[0.1, 0.2, 0.3, 0.15], [0.4, 0.1, 0.2, 0.05]])

    def scorer(histories):
        return np.stack([scores[len(history) - 1] for history in histories])

    rollouts = rollouts_of(TABLE, [[FIRST, SHARED], [SECOND, FIRST], [FIRST, SHARED]], [FIRST] * 3, [[5], [5, 6], None])
    # Items 2 and 3 share an SID, which has the better of their scores: probabilities are shares of .6 and of .7.
    hits = make_expected(TABLE, scorer)(rollouts)
    assert hits[:2] == pytest.approx(np.array([[0.1 / 0.6, 0.3 / 0.6], [0.1 / 0.7, 0.4 / 0.7]]))
    assert np.isnan(hits[2]).all()
    # Values have a mean of 5, those of the shared SID one of 6.
    values = make_expected(TABLE, scorer, np.array([2.0, 6.0, 4.0, 8.0]))(rollouts)
    assert values[:2] == pytest.approx(hits[:2] * np.array([[0.4, 1.2], [1.2, 0.4]]))


def test_value_is_what_the_hit_is_worth():
    group = [FIRST, SHARED, SECOND]
    rollouts = rollouts_of(TABLE, [group, group, [FIRST, SECOND, SECOND]], [FIRST, SHARED, SHARED])
    # The mean item is worth 5; the shared SID has the mean of 3 and 9.
    found = make_value(TABLE, np.array([8.0, 0.0, 3.0, 9.0]))(rollouts)
    assert found.tolist() == [[1.6, 0, 0], [0, 1.2, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("purchases", "rare"),
    [
        ([80, 15, 3, 2], [0, 1, 1]),  # items with more than 15 have four fifths of all
        ([79, 16, 3, 2], [0, 0, 1]),  # the two on the shared SID count together
        ([80, 10, 4, 6], [0, 1, 1]),  # equal counts are alike
        ([50, 50, 0, 0], [0, 0, 1]),  # never bought in training: new
        ([5, 5, 5, 0], [0, 0, 0]),  # nothing is rarer than anything else
    ],
)
def test_rare_is_the_last_fifth_of_purchases(purchases, rare):
    found = make_rare(TABLE, np.array(purchases))(rollouts_of(TABLE, [[FIRST, SECOND, SHARED]], [FIRST]))
    assert found.tolist() == [rare]


def test_diversity_counts_each_label_once():
    group = [SHARED, FIRST, SECOND]
    rollouts = rollouts_of(TABLE, [group, group[::-1]], [FIRST, FIRST])
    assert make_diversity(TABLE)(rollouts).tolist() == [[1, 1, 0], [1, 0, 1]]  # by the first code
    # Of the shared SID the first item's label counts; items without a label have the same one.
    assert make_diversity(TABLE, ["Ash", "Elm", "Ash", "Oak"])(rollouts).tolist() == [[1, 0, 1], [1, 1, 0]]
    assert make_diversity(TABLE, [None, "", "Ash", "Oak"])(rollouts).tolist() == [[1, 1, 0], [1, 0, 1]]
