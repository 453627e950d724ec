"""The three floors, against counting by hand."""

import numpy as np
import pandas as pd
import pytest

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.rows import SplitRows
from minionerec.data.sequences import Sequences
from minionerec.rankers import floors
from minionerec.rankers.allowed import Allowed
from minionerec.rankers.floors import FOLLOWED, LAST_ITEM, POPULARITY, make_floors
from minionerec.rankers.lists import Rows, rank_rows
from minionerec.rankers.protocol import Ranker
from minionerec.sid.table import SidTable


def rows(*pairs):
    return SplitRows.of(
        [f"u{n}" for n in range(len(pairs))],
        [history for history, _ in pairs],
        [target for _, target in pairs],
    )


def lists_of(floor, corpus, table, frame, k, without=None):
    asked = Rows(frame.users.tolist(), frame.histories.tolist(), frame.targets, corpus.n_items)
    allowed = None if without is None else Allowed.leaving_out(without, corpus.n_items)
    return rank_rows(make_floors(corpus, table)[floor], asked, k, table=table, allowed=allowed)


@pytest.fixture
def corpus():
    items = pd.DataFrame({"item_id": list("vwxyz"), "title": list("VWXYZ"), "description": [""] * 5})
    train = rows(([], 3), ([3], 3), ([], 1), ([], 4))  # popularity: 3 twice, 1 and 4 once, 0 and 2 never
    return Corpus(items, train, rows(([], 0)), rows(([2, 0, 2], 2), ([], 4)), "test split", 10)


@pytest.fixture
def table():
    return SidTable(np.array([[0, 0], [0, 1], [0, 2], [0, 3], [0, 1]]), list("vwxyz"))  # items 1 and 4 share theirs


def test_popularity_breaks_ties_by_index_and_fills_k_distinct_sids(corpus, table):
    found = lists_of(POPULARITY, corpus, table, corpus.test, 3)
    assert found.items == [[3, 1, 4, 0]] * 2
    assert found.sids[0] == ["<a_0><b_3>", "<a_0><b_1>", "<a_0><b_1>", "<a_0><b_0>"]
    assert found.target_sids == ["<a_0><b_2>", "<a_0><b_1>"] and found.targets.tolist() == [2, 4]
    assert found.users == ["u0", "u1"]
    assert all(a > b for a, b in zip(found.scores[0], found.scores[0][1:], strict=False))


def test_last_item_then_earlier_history_then_popularity(corpus, table):
    found = lists_of(LAST_ITEM, corpus, table, corpus.test, 4)
    assert found.items == [[2, 0, 3, 1, 4], [3, 1, 4, 0, 2]]
    assert lists_of(LAST_ITEM, corpus, table, corpus.test, 1).items == [[2], [3]]


def test_what_followed_against_plain_loops():
    rng = np.random.default_rng(0)
    items = pd.DataFrame({"item_id": [str(n) for n in range(12)], "title": ["t"] * 12, "description": [""] * 12})
    train, sequences = [], [rng.integers(0, 12, length).tolist() for length in (2, 3, 5, 4, 5, 2)]
    for user, sequence in enumerate(sequences):
        train += [(f"u{user}", sequence[:place], sequence[place]) for place in range(1, len(sequence))]
    frame = SplitRows.of(*zip(*train, strict=True))
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
    found = lists_of(FOLLOWED, corpus, table, test, 6)
    for history, sids in zip(test.histories, found.sids, strict=True):
        scores = np.zeros(11)
        for back, item in enumerate(history[::-1].tolist()):
            scores += 0.6**back * counts[number[item]] / np.sqrt(counts[number[item]].sum() + 1)
        order = sorted(range(11), key=lambda sid: (-round(scores[sid], 6), -popular[sid], sid))[:6]
        names = {int(number[item]): table.sids[item] for item in range(12)}
        assert list(dict.fromkeys(sids)) == [names[sid] for sid in order]
    assert any(len(row) > 6 for row in found.items)  # an SID of two items


def test_more_candidates_than_the_catalogue_has_is_an_error(corpus, table):
    for name, floor in make_floors(corpus, table).items():
        assert isinstance(floor, Ranker)
        with pytest.raises(ConfigError, match=r"k is 5; expected 1 to 4, the number of distinct SIDs"):
            lists_of(name, corpus, table, corpus.test, 5)
        with pytest.raises(ConfigError, match=r"k is 6; expected 1 to 5, the number of items"):
            lists_of(name, corpus, None, corpus.test, 6)


def test_without_sids_every_item_is_a_candidate(corpus):
    assert lists_of(POPULARITY, corpus, None, corpus.test, 2).items == [[3, 1]] * 2
    assert lists_of(LAST_ITEM, corpus, None, corpus.test, 4).items == [[2, 0, 3, 1], [3, 1, 4, 0]]
    found = lists_of(FOLLOWED, corpus, None, rows(([3], 0)), 3)
    assert found.items == [[3, 1, 4]]  # 3 followed itself
    assert found.sids == [["", "", ""]] and found.target_sids == [""]


def test_items_left_out_make_room_for_the_next_candidates(corpus, table):
    gone = [[3, 1], [2]]
    for name in (POPULARITY, LAST_ITEM, FOLLOWED):
        everything = lists_of(name, corpus, table, corpus.test, 4)
        found = lists_of(name, corpus, table, corpus.test, 2, gone)
        for row, items, left_out in zip(everything.items, found.items, gone, strict=True):
            wanted = [item for item in row if item not in left_out]
            kept = list(dict.fromkeys(table.sids[item] for item in wanted))[:2]
            assert items == [item for item in wanted if table.sids[item] in kept]


@pytest.mark.parametrize("protocol", ["a", "b"])
def test_a_split_of_a_protocol_gives_what_its_training_rows_say(protocol):
    rng = np.random.default_rng(1)
    lengths = rng.integers(8, 20, 30)
    flat = rng.integers(1, 9, lengths.sum()).astype(np.int32)
    names = pd.DataFrame({"item_id": [str(n) for n in range(8)], "title": ["t"] * 8, "description": [""] * 8})
    sequences = Sequences(flat, np.concatenate([[0], np.cumsum(lengths)]), [f"u{n}" for n in range(30)], names)
    split = PROTOCOLS[protocol].split(sequences)
    histories = split.histories("test")
    popular = np.argsort(-np.bincount(split.train.targets - 1, minlength=split.num_items), kind="stable").tolist()
    floors = make_floors(split)
    found = {name: rank_rows(floor, Rows.of(split, "test"), 8) for name, floor in floors.items()}
    assert found[POPULARITY].targets.tolist() == split.targets("test").tolist()
    assert found[POPULARITY].items == [popular] * 30
    for history, row in zip(histories, found[LAST_ITEM].items, strict=True):
        assert row == list(dict.fromkeys([*reversed(history.tolist()), *popular]))
    counts = np.zeros((8, 8))
    for before, after in zip(split.windows.histories, split.windows.targets, strict=True):
        for place in np.flatnonzero(after):
            for back in range(min(10, place + 1)):
                if before[place - back]:
                    pair = before[place - back] - 1, after[place] - 1
                    counts[pair] += 0.6**back
                    counts[pair[::-1]] += 0.3 * 0.6**back
    for history, row in zip(histories, found[FOLLOWED].items, strict=True):
        scores = np.zeros(8)
        for back, item in enumerate(history[::-1][:10].tolist()):
            scores += 0.6**back * counts[item] / np.sqrt(counts[item].sum() + 1)
        assert row == sorted(range(8), key=lambda item: (-round(scores[item], 5), popular.index(item)))


@pytest.mark.parametrize("part", [1, 3])
def test_pairs_of_many_windows_are_counted_for_those_who_ask(monkeypatch, part):
    rng = np.random.default_rng(1)
    items = pd.DataFrame({"item_id": [str(n) for n in range(20)], "title": "", "description": ""})
    chains = [rng.integers(0, 20, length).tolist() for length in (9, 6, 12, 7)]
    train = [
        (f"u{user}", chain[:end][-4:], chain[end]) for user, chain in enumerate(chains) for end in range(1, len(chain))
    ]
    test = rows(([3], 1), ([2, 7, 7], 0), ([], 5), ([11, 0, 4, 8], 2))
    corpus = Corpus(items, SplitRows.of(*zip(*train, strict=True)), test, test, "test split", 4)
    found = {}
    for size in (1 << 18, part):
        monkeypatch.setattr(floors, "_PART", size)
        ranker = make_floors(corpus)[FOLLOWED]
        assert (ranker.followed is None) == (size == part)
        found[size] = ranker.rank(corpus.test.histories.tolist(), 12)
    assert found[part] == found[1 << 18]
