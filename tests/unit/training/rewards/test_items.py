"""Rewards that read item vectors and a sequential model."""

import numpy as np
import pytest
from support.rollouts import rollouts_of

from minionerec.core.errors import DataError
from minionerec.sid.table import SidTable
from minionerec.training.rewards import make_collaborative, make_semantic

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
