"""Windows that are read block by block: those of a corpus of one block, in another order, and counted alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.examples import in_blocks, sid_windows
from support.small_corpus import random_corpus

from minionerec.core.errors import DataError
from minionerec.data.rows import SplitExamples
from minionerec.data.transitions import count_transitions
from minionerec.sid.table import SidTable
from minionerec.training.catalogue import windows as module
from minionerec.training.catalogue.windows import (
    collate,
    read_windows,
    target_counts,
    window_transitions,
    write_windows,
)

N = 30
TABLE = SidTable(np.array([[index // 6, index % 5] for index in range(N)]), [f"i{index}" for index in range(N)])


def sorted_rows(windows):
    """Windows as text, in an order that does not depend on theirs."""
    columns = zip(*(windows[name].tolist() for name in ("histories", "labels")), strict=True)
    weights = np.where(windows["labels"] > 0, windows["weights"], 0)
    return sorted(
        (history, label, row.round(4).tolist()) for (history, label), row in zip(columns, weights, strict=True)
    )


@pytest.mark.parametrize(("max_history", "gaps"), [(10, 0.0), (5, 0.0), (1, 0.0), (6, 0.2), (50, 0.1)])
def test_windows_of_several_blocks_are_those_of_one(tmp_path, max_history, gaps):
    corpus = random_corpus(TABLE.item_ids, max_history, gaps=gaps)
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    wanted, held_out = sid_windows(corpus, TABLE, 2.0)
    found, again = sid_windows(in_blocks(tmp_path / "corpus"), TABLE, 2.0)
    assert sorted_rows(found) == sorted_rows(wanted)
    for name, values in held_out.items():
        assert np.array_equal(again[name], values) and again[name].dtype == values.dtype


def test_counts_by_parts_are_the_counts(tmp_path, monkeypatch):
    corpus = random_corpus(TABLE.item_ids, 10)
    windows, _ = sid_windows(corpus, TABLE, 0.0)
    size = TABLE.n_unique
    how = (size, 4, 0.6, 0.3)
    wanted = count_transitions([(windows["histories"], np.maximum(windows["labels"], 0))], *how)
    targets = np.bincount(windows["labels"][windows["labels"] > 0] - 1, minlength=size)
    for part, exact in ((1 << 20, True), (7, False)):
        monkeypatch.setattr(module, "_PART", part)
        found = window_transitions(windows, *how)
        for name in ("indptr", "indices"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name))
        assert found.dtype == np.float32
        assert np.array_equal(found.data, wanted.data) if exact else np.allclose(found.data, wanted.data)
        assert np.array_equal(target_counts(windows, size), targets)


def test_batches_are_as_wide_as_their_longest_window(tmp_path):
    write_windows(random_corpus(TABLE.item_ids, 10), TABLE, 1.0, tmp_path / "windows")
    windows = read_windows(tmp_path / "windows")
    assert isinstance(windows["labels"], np.memmap)
    positions = [3, 0, 8]
    found = collate([{name: values[position] for name, values in windows.items()} for position in positions])
    width = int((windows["histories"][positions] > 0).sum(1).max())
    for name, values in windows.items():
        assert found[name].dtype == (torch.float32 if name == "weights" else torch.int64)
        assert found[name].numpy().tolist() == values[positions][:, :width].tolist()


def test_a_corpus_of_rows_without_history_has_no_window(tmp_path):
    corpus = random_corpus(TABLE.item_ids, 10)
    empty = [np.zeros(0, np.int32)] * len(corpus.train)
    corpus = replace(corpus, train=SplitExamples.of(corpus.train.users, empty, corpus.train.targets))
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    with pytest.raises(DataError, match="no training example has a history, so there is nothing to train on"):
        write_windows(in_blocks(tmp_path / "corpus"), TABLE, 0.0, tmp_path / "windows")
