"""Examples and windows of corpora, and corpora that stay in their files however small they are."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from minionerec.data import corpus as corpus_module
from minionerec.data.corpus import Corpus
from minionerec.data.source import Source
from minionerec.training.catalogue.windows import held_out_windows, read_windows, write_windows


def in_files(path):
    """A corpus artefact whose examples stay in its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.corpus.ROWS_IN_MEMORY", -1)
        return Corpus.load(path)


def keep_in_files(monkeypatch, most=5):
    """Let corpora of more training examples be too large for memory, and none of them be read whole."""
    read = corpus_module._Examples.__get__

    def guarded(self, corpus, owner=None):
        assert self.split != "train" or not corpus.in_files, "a large corpus was read whole"
        return read(self, corpus, owner)

    monkeypatch.setattr(corpus_module, "ROWS_IN_MEMORY", most)
    monkeypatch.setattr(corpus_module._Examples, "__get__", guarded)


def source_of(*users, n_items=0):
    """Users u0, u1, ... with lists of items from 1, oldest first."""
    n_items = n_items or max((item for items in users for item in items), default=0)
    return Source(
        items=pd.DataFrame({"item_id": [str(i + 1) for i in range(n_items)], "title": "", "description": ""}),
        users=np.repeat(np.arange(len(users), dtype=np.int32), [len(items) for items in users]),
        item_index=np.array([item - 1 for items in users for item in items], dtype=np.int32),
        times=None,
        user_ids=pa.array([f"u{number}" for number in range(len(users))], pa.string()),
        where="made",
    )


def user_windows(corpus, split="train"):
    """The windows of a split one by one."""
    return [window for part in corpus.windows(split) for window in part.each(corpus.together)]


def sid_windows(corpus, table, recency, moments=False):
    """Training windows and validation examples over SID numbers, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        write_windows(corpus, table, recency, Path(folder), moments)
        windows = {name: np.array(values) for name, values in read_windows(Path(folder)).items()}
    return windows, held_out_windows(corpus.valid, table, corpus.max_history, moments)
