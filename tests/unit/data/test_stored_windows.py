"""Windows of a corpus of several blocks are those of one block, in another order."""

import numpy as np
import pandas as pd
import pytest
from support.examples import in_blocks, user_windows

from minionerec.core.errors import ArtefactError
from minionerec.data import windows as module
from minionerec.data.columns import ColumnWriter, are_finished, open_columns
from minionerec.data.corpus import Corpus
from minionerec.data.order import block_order
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME, RowTimes
from minionerec.data.windows import mapped_windows, padded_windows

HISTORY = 6


def made(folder, seed, ties="before", users=30):
    """A corpus of users with 2 to 30 items of 500, split by time; with `ties` together several share a timestamp."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        size = int(rng.integers(2, 31))
        items = rng.integers(500, size=size)
        times = np.sort(rng.integers(40, size=size) if ties == "together" else rng.permutation(10_000)[:size])
        for position in range(size):
            end = int(np.searchsorted(times, times[position])) if ties == "together" else position
            if end or (position and rng.random() < 0.3):
                newest = times[end - 1] if end else NO_TIME
                rows.append((times[position], f"u{user}", items[max(0, end - HISTORY) : end], items[position], newest))
    rows.sort(key=lambda row: row[0])
    cuts = {"train": (0, 0.7), "valid": (0.7, 0.85), "test": (0.85, 1.0)}
    splits = {}
    for name, (low, high) in cuts.items():
        part = rows[int(low * len(rows)) : int(high * len(rows))]
        times = RowTimes(np.array([row[0] for row in part]), np.array([row[4] for row in part]))
        splits[name] = SplitExamples.of([r[1] for r in part], [r[2] for r in part], [r[3] for r in part], times)
    names = [f"i{item}" for item in range(500)]
    items = pd.DataFrame({"item_id": names, "title": names, "description": ""})
    counts = {"ties": ties, **{f"{name}_rows": len(part) for name, part in splits.items()}}
    corpus = Corpus(items, **splits, split="global time 7:1.5:1.5", max_history=HISTORY, counts=counts)
    corpus.save(folder / "corpus", config={}, inputs={})
    return Corpus.load(folder / "corpus"), in_blocks(folder / "corpus")


def in_order(*arrays):
    return sorted(zip(*(map(tuple, array.tolist()) for array in arrays), strict=True))


@pytest.mark.parametrize("ties", ["before", "together"])
@pytest.mark.parametrize(("max_len", "padding"), [(HISTORY, "right"), (4, "left"), (9, "right")])
def test_windows_of_several_blocks_are_those_of_one(tmp_path, ties, max_len, padding):
    for seed in range(3):
        corpus, stored = made(tmp_path / str(seed), seed, ties)
        (whole,) = corpus.windows("train")
        expected = padded_windows(whole, max_len, padding)
        found = mapped_windows(stored.windows("train"), tmp_path / str(seed) / "windows", max_len, padding)
        assert in_order(*found) == in_order(*expected)
        _, targets, rows = found
        assert (targets[targets > 0] == corpus.train.targets[rows[targets > 0]] + 1).all()
        assert sorted(rows[rows >= 0].tolist()) == sorted(set(rows[rows >= 0].tolist()))
        assert ((rows >= 0) == (targets > 0)).all()


@pytest.mark.parametrize("ties", ["before", "together"])
def test_windows_of_joined_splits_are_those_of_one_block(tmp_path, ties):
    corpus, stored = made(tmp_path, 7, ties)
    every, ours = (data.training_on(["valid", "test"]) for data in (corpus, stored))
    assert every.sizes == ours.sizes == {**corpus.sizes, "train": sum(corpus.sizes.values())}

    def plain(windows):
        return sorted((w.items.tolist(), w.rows.tolist(), w.first_target) for w in windows)

    assert plain(user_windows(ours)) == plain(user_windows(every))
    targets = np.full(len(every.train), -1)
    for numbers, rows in ours.batches("train"):
        targets[numbers] = rows.targets
    assert targets.tolist() == every.train.targets.tolist()
    assert ours.train.targets.tolist() == every.train.targets.tolist()


def test_a_killed_writer_resumes(tmp_path, monkeypatch):
    """Whatever it had written behind its last commit."""
    _, stored = made(tmp_path, 3)

    def write(folder):
        return mapped_windows(stored.windows("train"), folder, HISTORY, "right")

    whole = write(tmp_path / "whole")
    make, calls = padded_windows, []

    def dies(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return make(*given)

    monkeypatch.setattr(module, "padded_windows", dies)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "cut")
    with (tmp_path / "cut" / "targets.bin").open("ab") as file:
        file.write(b"half of a value")
    assert not are_finished(tmp_path / "cut")
    again = write(tmp_path / "cut")
    for found, wanted in zip(again, whole, strict=True):
        assert np.array_equal(found, wanted)
    assert len(calls) > 5


def test_columns_say_what_is_wrong_with_them(tmp_path):
    with pytest.raises(ArtefactError, match="not finished"):
        open_columns(tmp_path)
    with ColumnWriter(tmp_path, {"a": "int32"}) as writer:
        writer.append("a", np.arange(5))
        writer.commit({"n": 5})
        writer.append("a", np.arange(2))
    with ColumnWriter(tmp_path, {"a": "int32"}) as writer:
        assert (writer.state, writer.size("a")) == ({"n": 5}, 5)
        writer.finish()
    assert open_columns(tmp_path)[0]["a"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ArtefactError, match="holds other columns than b"), ColumnWriter(tmp_path, {"b": "int32"}):
        pass
    (tmp_path / "a.bin").write_bytes(b"12345678")
    with pytest.raises(ArtefactError, match=r"has 8 bytes, 20 were written\. Delete the folder"):
        open_columns(tmp_path)


@pytest.mark.parametrize(("count", "buffer", "processes"), [(1000, 64, 1), (1000, 64, 3), (7, 64, 2), (1, 1, 2)])
def test_processes_share_an_epoch(count, buffer, processes):
    def parts(epoch):
        blocks = [block_order(count, buffer, 1, epoch, process, processes) for process in range(processes)]
        return [np.concatenate([np.zeros(0, np.int64), *each]) for each in blocks]

    first = parts(0)
    assert sorted(np.concatenate(first).tolist()) == list(range(count))
    assert max(map(len, first)) - min(map(len, first)) <= 1
    assert [part.tolist() for part in first] == [part.tolist() for part in parts(0)]
    if count > 7:
        assert first[0].tolist() != parts(1)[0].tolist()
        near = max(len(np.unique(chunk // (buffer // 16))) for chunk in block_order(count, buffer, 1, 0, 0, processes))
        assert near <= 18  # blocks of a buffer, of which the first and the last may be cut


def test_a_sample_is_seeded_and_in_order(tmp_path):
    corpus, stored = made(tmp_path, 5)
    one, two, other = (stored.sample("valid", 9, seed) for seed in (1, 1, 2))
    assert one.targets.tolist() == two.targets.tolist() != other.targets.tolist()
    assert len(one) == 9
    for data in (stored, corpus):
        assert data.sample("valid", 9, 1).targets.tolist() == one.targets.tolist()
        assert data.sample("valid", -1, 0).targets.tolist() == corpus.valid.targets.tolist()
        assert data.sample("valid", 10**6, 0).users.tolist() == corpus.valid.users.tolist()
