"""The two floors, against counting by hand."""

import numpy as np
import pandas as pd
import pytest

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.evaluation.floors import last_item_predictions, popularity_predictions
from minionerec.sid.table import SidTable


def rows(*pairs):
    return pd.DataFrame(
        {
            "user": [f"u{n}" for n in range(len(pairs))],
            "history": [np.array(history, dtype=np.int32) for history, _ in pairs],
            "target": np.array([target for _, target in pairs], dtype=np.int32),
        }
    )


@pytest.fixture
def corpus():
    items = pd.DataFrame({"item_id": list("vwxyz"), "title": list("VWXYZ"), "description": [""] * 5})
    train = rows(([], 3), ([3], 3), ([], 1), ([], 4))  # popularity: 3 twice, 1 and 4 once, 0 and 2 never
    return Corpus(items, train, rows(([], 0)), rows(([2, 0, 2], 2), ([], 4)), "test split", 10)


@pytest.fixture
def table():
    return SidTable(np.array([[0, 0], [0, 1], [0, 2], [0, 3], [0, 1]]), list("vwxyz"))  # items 1 and 4 share theirs


def test_popularity_breaks_ties_by_index_and_fills_k_distinct_sids(corpus, table):
    found = popularity_predictions(corpus, table, corpus.test, 3)
    assert found.items == [[3, 1, 4, 0]] * 2
    assert found.sids[0] == ["<a_0><b_3>", "<a_0><b_1>", "<a_0><b_1>", "<a_0><b_0>"]
    assert found.target_sids == ["<a_0><b_2>", "<a_0><b_1>"] and found.targets.tolist() == [2, 4]
    assert found.users == ["u0", "u1"]
    assert all(a > b for a, b in zip(found.scores[0], found.scores[0][1:], strict=False))


def test_last_item_then_earlier_history_then_popularity(corpus, table):
    found = last_item_predictions(corpus, table, corpus.test, 4)
    assert found.items == [[2, 0, 3, 1, 4], [3, 1, 4, 0, 2]]
    assert last_item_predictions(corpus, table, corpus.test, 1).items == [[2], [3]]


def test_more_candidates_than_the_catalogue_has_is_an_error(corpus, table):
    for floor in (popularity_predictions, last_item_predictions):
        with pytest.raises(ConfigError, match=r"k is 5; expected 1 to 4"):
            floor(corpus, table, corpus.test, 5)
