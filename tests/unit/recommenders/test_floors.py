"""The three floors, against counting by hand."""

import numpy as np
import pandas as pd
import pytest

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.recommenders.floors import last_item_predictions, popularity_predictions, transition_predictions
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


def test_what_followed_against_plain_loops():
    rng = np.random.default_rng(0)
    items = pd.DataFrame({"item_id": [str(n) for n in range(12)], "title": ["t"] * 12, "description": [""] * 12})
    train, sequences = [], [rng.integers(0, 12, length).tolist() for length in (2, 3, 5, 4, 5, 2)]
    for user, sequence in enumerate(sequences):
        train += [(f"u{user}", sequence[:place], sequence[place]) for place in range(1, len(sequence))]
    frame = pd.DataFrame(train, columns=["user", "history", "target"]).astype({"target": np.int32})
    frame["history"] = [np.array(history, dtype=np.int32) for history in frame["history"]]
    test = rows(([3], 1), ([2, 7, 7], 0), ([], 5), ([11, 0, 4, 8], 2))
    corpus = Corpus(items, frame, test, test, "test split", 4)
    table = SidTable(np.array([[n // 3, n % 3] for n in range(11)] + [[0, 0]]), [str(n) for n in range(12)])
    number = table.sid_numbers
    counts = np.zeros((11, 11))
    for sequence in sequences:
        for later, item in enumerate(sequence):
            for earlier in range(later):
                weight = 0.6 ** (later - earlier - 1)
                counts[number[sequence[earlier]], number[item]] += weight
                counts[number[item], number[sequence[earlier]]] += 0.3 * weight
    popular = np.bincount(number, corpus.popularity(), 11)
    found = transition_predictions(corpus, table, test, 6)
    for history, sids in zip(test["history"], found.sids, strict=True):
        scores = np.zeros(11)
        for back, item in enumerate(history[::-1].tolist()):
            scores += 0.6**back * counts[number[item]] / np.sqrt(counts[number[item]].sum() + 1)
        order = sorted(range(11), key=lambda sid: (-round(scores[sid], 6), -popular[sid], sid))[:6]
        names = {int(number[item]): table.sids[item] for item in range(12)}
        assert list(dict.fromkeys(sids)) == [names[sid] for sid in order]
    assert any(len(row) > 6 for row in found.items)  # an SID of two items


def test_more_candidates_than_the_catalogue_has_is_an_error(corpus, table):
    for floor in (popularity_predictions, last_item_predictions, transition_predictions):
        with pytest.raises(ConfigError, match=r"k is 5; expected 1 to 4"):
            floor(corpus, table, corpus.test, 5)
