"""Protocols A, B and rows: their samples against loops, the published counts, stopping, and what they refuse."""

from dataclasses import replace

import pytest
from support.examples import source_of
from support.small_corpus import corpus_of

from minionerec.core.errors import ArtefactError, DataError
from minionerec.data.protocols import PROTOCOLS, read_examples
from minionerec.data.sources.user_items import read_user_items
from minionerec.data.windows import padded_windows


def rows(examples, max_len=3):
    """User, newest items as models read them, without padding, and target, items from 1."""
    columns = examples.user_numbers, examples.padded(max_len, "right"), examples.targets
    return [(int(user), row[row > 0].tolist(), int(target) + 1) for user, row, target in zip(*columns, strict=True)]


def window_targets(corpus):
    windows = [padded_windows(part, corpus.max_history, "right") for part in corpus.windows("train")]
    return sorted(target for _, targets, _ in windows for target in targets[targets > 0].tolist())


LONG, SHORT = [1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 1]


def test_protocol_a_makes_prefixes_of_the_newest_training_items():
    split = replace(PROTOCOLS["a"], max_len=3).split(source_of(LONG, SHORT))
    # The newest three of the first five: 1 and 2 serve nothing.
    assert rows(split.train) == [(0, [], 3), (0, [3], 4), (0, [3, 4], 5), (1, [], 8), (1, [8], 9)]
    assert rows(split.valid) == [(0, [3, 4, 5], 6), (1, [8, 9], 10)]
    assert rows(split.test) == [(0, [4, 5, 6], 7), (1, [8, 9, 10], 1)]
    assert split.split == "last two out"
    assert split.train.padded(3, "left")[2].tolist() == [0, 3, 4]
    # What may not be recommended is all that came before, also what the model does not read.
    assert split.test.histories[0].tolist() == [0, 1, 2, 3, 4, 5]
    # Training at all positions is another recipe, over all training items.
    assert window_targets(split) == [2, 3, 4, 5, 9]


def test_protocol_b_slides_over_all_positions(monkeypatch):
    monkeypatch.setattr("minionerec.data.protocols._core", lambda source: source)
    split = replace(PROTOCOLS["b"], max_len=3).split(source_of(LONG, SHORT))
    assert rows(split.train) == [(0, [1], 2), (0, [1, 2], 3), (0, [1, 2, 3], 4), (0, [2, 3, 4], 5), (1, [8], 9)]
    assert rows(split.valid) == [(0, [3, 4, 5], 6), (1, [8, 9], 10)]
    assert rows(split.test) == [(0, [4, 5, 6], 7), (1, [8, 9, 10], 1)]
    assert split.train.padded(3, "right")[1].tolist() == [1, 2, 0]


def test_protocol_b_strikes_out_users_and_items_below_five(caplog):
    kept = [[5, 6, 7, 8, 9] for _ in range(5)]
    split = PROTOCOLS["b"].split(source_of([1, 2, 3, 4, 5], *kept))
    assert (split.n_items, split.split) == (5, "5-core, last two out")
    assert split.items["item_id"].tolist() == ["5", "6", "7", "8", "9"]
    assert split.train.user_ids.tolist() == ["u1", "u2", "u3", "u4", "u5"]
    assert rows(split.test, 50)[0] == (0, [1, 2, 3, 4], 5)
    assert [split.counts[f"{name}_below_core"] for name in ("users", "items", "interactions")] == [1, 4, 5]
    assert "1 users, 4 items and 5 interactions are left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "protocol", "train"), [("LastFM", "a", 25_726), ("Beauty", "a", 150_258), ("Beauty", "b", 131_413)]
)
def test_published_counts(data_root, name, protocol, train):
    split = PROTOCOLS[protocol].split(read_user_items(data_root / "sequential" / f"{name}.txt"))
    users, items = {"LastFM": (1_090, 3_646), "Beauty": (22_363, 12_101)}[name]
    assert (len(split.train), len(split.valid), len(split.test), split.n_items) == (train, users, users, items)
    empty = int((split.train.lengths == 0).sum())
    assert empty == (users if protocol == "a" else 0)


def test_short_users_are_counted_and_left_out(caplog):
    split = PROTOCOLS["a"].split(source_of([1, 2], LONG, [3]))
    assert (split.counts["short_users"], split.train.user_ids.tolist()) == (2, ["u1"])
    assert "2 of 3 users have fewer than 3 items and are left out (the first is 'u0')" in caplog.text


def test_what_protocols_refuse():
    with pytest.raises(DataError, match=r"user 'u1' has no item"):
        PROTOCOLS["a"].split(source_of(LONG, []))
    with pytest.raises(DataError, match=r"none of 2 users has the 3 items .* longest has 2"):
        PROTOCOLS["a"].split(source_of([1, 2], [3]))
    with pytest.raises(DataError, match=r"no user and item with 5 interactions each is left of 7"):
        PROTOCOLS["b"].split(source_of(LONG))
    with pytest.raises(DataError, match=r"output of `minionerec prepare-data`"):
        PROTOCOLS["rows"].split(source_of(LONG))


def test_a_protocol_takes_a_file_of_sequences_with_its_titles(tmp_path):
    (tmp_path / "data.txt").write_text("x 3 1 2\ny 1 2 3\n")
    (tmp_path / "titles.json").write_text('{"3": "Drill", "2": "Saw", "1": "Plane"}')
    split = read_examples(str(tmp_path / "data.txt"), PROTOCOLS["a"], str(tmp_path / "titles.json"))
    assert split.items[["item_id", "title"]].to_numpy().tolist() == [["3", "Drill"], ["2", "Saw"], ["1", "Plane"]]
    assert split.test.targets.tolist() == [1, 0]
    assert split.counts["split"] == split.split == "last two out"
    untitled = read_examples(str(tmp_path / "data.txt"), PROTOCOLS["a"])
    assert untitled.items["title"].tolist() == ["", "", ""]


def test_a_protocol_takes_a_corpus_and_refuses_what_is_no_corpus(tmp_path):
    test = [("new", [2], 4), ("x", [2, 3], 0)]
    corpus = corpus_of([("x", [0], 1), ("y", [3], 4)], [("y", [3, 4], 0)], test, 5, 2)
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    (tmp_path / "data.txt").write_text("x 3 1 2\n")
    split = read_examples(str(tmp_path / "corpus"), PROTOCOLS["rows"])
    assert (split.split, split.n_items) == ("by hand", 5)
    with pytest.raises(DataError, match=r"'user item item ...' file"):
        read_examples(str(tmp_path / "corpus"), PROTOCOLS["a"])
    with pytest.raises(ArtefactError, match=r"data.txt: no such directory; expected .* \(corpus\)"):
        read_examples(str(tmp_path / "data.txt"), PROTOCOLS["rows"])
