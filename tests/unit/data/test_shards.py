"""A corpus on disk: sequences in shards, read whole or a part at a time."""

import hashlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.baskets import EVENLY, source_of
from support.builder import build
from support.examples import in_blocks
from support.small_corpus import corpus_of, triples_of
from support.small_corpus import rows_of as as_rows

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import DataError
from minionerec.data import shards
from minionerec.data.chains import NO_INDEX, Chains, chain_examples, concatenated
from minionerec.data.corpus import Corpus, write_corpus
from minionerec.data.names import SPLITS
from minionerec.data.rows import SplitExamples, joined
from minionerec.data.shards import ShardWriter, read_shard, shard_files, shard_of, write_shards
from minionerec.data.times import NO_TIME, RowTimes

N = 6
history = st.lists(st.integers(0, N - 1), max_size=4)
made_row = st.tuples(st.sampled_from(["ann", "Ännchen", "bob", "", "b'o\"b\n"]), history, st.integers(0, N - 1))
made_rows = st.tuples(*(st.lists(made_row, max_size=8) for _ in SPLITS))


def reported(rows):
    times = [()] * len(rows) if rows.times is None else zip(rows.times.time, rows.times.previous, strict=True)
    return [(*triple, *time) for triple, time in zip(triples_of(rows), times, strict=True)]


def small_shards(monkeypatch, interactions, group=2):
    monkeypatch.setattr(shards, "SHARD", interactions)
    monkeypatch.setattr(shards, "GROUP", group)


@settings(max_examples=30)
@given(made_rows, st.booleans())
def test_any_rows_come_back_as_they_were(tmp_path_factory, splits, timed):
    rng = np.random.default_rng(0)
    tables = []
    for triples in splits:
        timestamps = rng.integers(0, 3, (2, len(triples)))
        timestamps[1, [not past for _, past, _ in triples]] = NO_TIME
        tables.append(as_rows(triples, RowTimes(*timestamps) if timed else None))
    corpus = corpus_of(*tables, max_history=4)
    folder = tmp_path_factory.mktemp("corpus") / "corpus"
    corpus.save(folder, config={}, inputs={})
    loaded = Corpus.load(folder)
    assert [reported(rows) for rows in loaded.splits().values()] == [reported(rows) for rows in tables]


@pytest.mark.parametrize("ties", ["keep", "together", "shuffle"])
@pytest.mark.parametrize("split", ["global_time", "leave_last_out"])
def test_a_built_corpus_is_the_same_from_disk_from_rows_and_in_parts(tmp_path, monkeypatch, ties, split):
    small_shards(monkeypatch, 20)
    built = build(source_of(EVENLY), split=split, max_history=4, ties=ties)
    with write_artefact(tmp_path / "one", "corpus", config={}, counts=built.counts) as folder:
        write_corpus(folder, built.items, built.chains)
    corpus = built.corpus()
    corpus.save(tmp_path / "two", config={}, inputs={})
    files = [shard_files(tmp_path / name) for name in ("one", "two")]
    assert len(files[0]) > 2
    if ties != "together":  # rows know no time of a first step's items but the newest's
        assert [one.read_bytes() for one in files[0]] == [one.read_bytes() for one in files[1]]
    loaded, stored = Corpus.load(tmp_path / "one"), in_blocks(tmp_path / "one")
    assert loaded.popularity().tolist() == stored.popularity().tolist() == corpus.popularity().tolist()
    for name in SPLITS:
        wanted = reported(corpus.rows(name))
        assert reported(loaded.rows(name)) == wanted and stored.sizes[name] == len(wanted)
        parts = [(numbers.tolist(), reported(rows)) for numbers, rows in stored.batches(name)]
        assert len(parts) > 1
        numbered = {n: row for numbers, rows in parts for n, row in zip(numbers, rows, strict=True)}
        assert numbered == dict(enumerate(wanted))
        some = np.random.default_rng(1).permutation(len(wanted))[:5]
        assert reported(stored.chosen(name, some)) == [wanted[number] for number in some]


def test_a_users_interactions_are_stored_once():
    corpus = build(source_of(EVENLY), split="leave_last_out", max_history=4).corpus()
    (chains,) = corpus.chains()
    assert len(chains) == len(set(chains.users)) and len(chains.items) == len(EVENLY)
    assert (chains.rows == NO_INDEX).sum() == len(chains)  # a user's first interaction is nobody's target


def test_rows_that_do_not_continue_begin_a_sequence():
    train = as_rows([("u", [0], 1), ("u", [0, 1], 2), ("u", [5], 3), ("v", [], 1), ("v", [], 2)])
    splits = {"train": train, "valid": as_rows([("u", [5, 3], 4)]), "test": SplitExamples.none()}
    chains = chain_examples(splits, 4, False)
    parts = [chains.items[a:b].tolist() for a, b in zip(chains.offsets, chains.offsets[1:], strict=False)]
    assert parts == [[0, 1, 2], [5, 3, 4], [1], [2]] and chains.users.tolist() == ["u", "u", "v", "v"]
    assert chains.rows.tolist() == [-1, 0, 1, -1, 2, 0, 3, 4] and chains.splits.tolist() == [-1, 0, 0, -1, 0, 1, 0, 0]


def test_a_history_that_the_corpus_cannot_hold_is_refused(tmp_path):
    rows = as_rows([("u", [0, 1, 2], 1)])
    with pytest.raises(DataError, match="train example 0 has a history of 3 items; max_history is 2"):
        corpus_of(rows, rows, rows, max_history=2).save(tmp_path / "c", config={}, inputs={})
    assert not (tmp_path / "c").exists()


def test_a_user_lies_in_the_shard_of_its_id_in_order_of_bytes(tmp_path, monkeypatch):
    small_shards(monkeypatch, 40)
    users = [f"u{n}" for n in range(100)] + ["Ü", "z", "é"]
    count = len(users)
    flat = np.zeros(count, np.int32)
    chains = Chains(np.array(users, object), np.arange(count + 1), flat, None, flat, flat.astype(np.int8))
    write_shards(tmp_path, chains)
    held = [[user for part in read_shard(file, 1) for user in part.users] for file in shard_files(tmp_path)]
    assert len(held) == 3 and sorted(user for own in held for user in own) == sorted(users)
    for number, own in enumerate(held):
        assert own == sorted(own, key=str.encode)
        assert {int(hashlib.md5(user.encode()).hexdigest()[:8], 16) % 3 for user in own} == {number}
    assert pq.ParquetFile(shard_files(tmp_path)[0]).metadata.row_group(0).num_rows == 2


def test_the_bytes_do_not_depend_on_how_sequences_came(tmp_path, monkeypatch):
    small_shards(monkeypatch, 1 << 20, group=4)
    chains = build(source_of(EVENLY), split="leave_last_out").chains
    chains = chains.take(np.argsort(chains.users))
    for name, sizes in (("one", [len(chains)]), ("two", [1] * len(chains))):
        (tmp_path / name).mkdir()
        with ShardWriter(tmp_path / name, 0, timed=True) as writer:
            for end, size in zip(np.cumsum(sizes), sizes, strict=True):
                writer.write(chains.take(np.arange(end - size, end)))
    assert shard_files(tmp_path / "one")[0].read_bytes() == shard_files(tmp_path / "two")[0].read_bytes()


def test_rows_that_are_not_there(tmp_path):
    rows = as_rows([(f"u{user}", [0], 1) for user in range(9)])
    corpus_of(rows, rows, rows).save(tmp_path / "c", config={}, inputs={})
    stored = in_blocks(tmp_path / "c")
    assert stored.sizes == dict.fromkeys(SPLITS, 9)  # counted, for the manifest does not say
    for numbers in ([9], [-1], []):
        with pytest.raises(DataError, match="has examples 0 to 8"):
            stored.chosen("test", np.array(numbers, dtype=np.int64))
    with pytest.raises(DataError, match="unknown split 'tests'"):
        next(stored.batches("tests"))


def test_rows_as_arrays():
    rows = as_rows([("u", [0, 1], 2), ("v", [], 3), ("u", [4], 5)])
    assert rows.newest.tolist() == [1, -1, 4] and rows.lengths.tolist() == [2, 0, 1] and len(rows) == 3
    assert rows.histories[0].tolist() == [0, 1] and [h.tolist() for h in rows.histories[1:]] == [[], [4]]
    assert reported(rows.take(np.array([2, 0]))) == [("u", [4], 5), ("u", [0, 1], 2)]
    assert reported(rows.take(np.array([False, True, False]))) == [("v", [], 3)]
    assert reported(joined([rows.take(slice(2, 3)), rows])) == [("u", [4], 5), *reported(rows)]
    assert rows.take(slice(2, 3)).compact().items.tolist() == [4]
    with pytest.raises(DataError, match="got 1 users, 2 histories, 1 targets"):
        SplitExamples.of(["u"], [[], []], [1])


def test_nothing_to_put_together():
    assert len(concatenated([])) == 0 and shard_of([], 3).tolist() == []
