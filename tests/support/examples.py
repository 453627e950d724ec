"""Examples and windows of corpora, and corpora of several blocks however small they are."""

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from minionerec.core.artefacts import write_artefact
from minionerec.data import corpus as corpus_module
from minionerec.data import order
from minionerec.data.chains import concatenated
from minionerec.data.corpus import Corpus, write_corpus
from minionerec.data.shards import read_shard
from minionerec.data.source import Source
from minionerec.data.windows import FlatWindows, recency_weights
from minionerec.models.prompts.wording import NEXT_SID
from minionerec.training.catalogue.windows import held_out_windows, read_windows, write_windows
from minionerec.training.examples import training_set
from minionerec.training.rows import COLUMNS, SftExamples, WindowTexts, window_columns


@contextmanager
def several_files(most=60):
    """Write corpora in files of about so many interactions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.shards.SHARD", most)
        yield


def in_blocks(path):
    """The corpus of an artefact, written again in several files, of which each is a block."""
    corpus, again = Corpus.load(path), Path(f"{path}_in_blocks")
    if not again.exists():
        given = corpus.n_items, corpus.context_values
        chains = concatenated([part for file in corpus.files for part in read_shard(file, *given)])
        most, counts = max(1, len(chains.items) // 4), corpus.all_counts()
        with several_files(most), write_artefact(again, "corpus", config={}, counts=counts) as folder:
            write_corpus(folder, corpus.items, chains)
    found = Corpus.load(again, block=1)
    assert found.n_blocks > 1
    return found


def keep_in_blocks(monkeypatch):
    """Let each file of a corpus be a block, of several, and none of them be read whole; few examples be shuffled."""
    monkeypatch.setattr(order, "MOST_SHUFFLED", 0)
    monkeypatch.setattr(order, "SHUFFLED", 16)
    load, read = Corpus.load.__func__, Corpus.train.fget

    def several(cls, path):
        found = load(cls, path, block=1)
        assert found.n_blocks > 1, f"{path} has a single file"
        return found

    def guarded(corpus):
        assert not corpus.groups, "a large corpus was read whole"
        return read(corpus)

    monkeypatch.setattr(Corpus, "load", classmethod(several))
    monkeypatch.setattr(Corpus, "train", Corpus.train.getter(guarded))


def from_blocks(run, config):
    """Run a stage, in a process of its own, with each file of a corpus a block."""
    corpus_module.BLOCK = 1
    order.MOST_SHUFFLED, order.SHUFFLED = 0, 16
    return run(config)


def source_of(*users, n_items=0):
    """Users u0, u1, ... with lists of items from 1, oldest first."""
    n_items = n_items or max((item for items in users for item in items), default=0)
    table = pd.DataFrame({"item_id": [str(i + 1) for i in range(n_items)], "title": "", "description": ""})
    numbers = np.repeat(np.arange(len(users), dtype=np.int32), [len(items) for items in users])
    index = np.array([item - 1 for items in users for item in items], dtype=np.int32)
    ids = pa.array([f"u{number}" for number in range(len(users))], pa.string())
    return Source(table, numbers, index, None, ids, "made")


@dataclass(frozen=True)
class Window:
    """A window as a test reads it, of those that `FlatWindows` holds."""

    items: np.ndarray
    first_target: int
    rows: np.ndarray


def each_window(windows):
    """Windows one by one."""
    bounds = zip(windows.begins.tolist(), windows.ends.tolist(), windows.firsts.tolist(), strict=True)
    return [Window(windows.items[begin:end], first, windows.rows[begin:end]) for begin, end, first in bounds]


def joined_windows(windows):
    """Windows one by one as `FlatWindows`."""
    sizes = np.array([len(window.items) for window in windows], dtype=np.int64)
    items = np.concatenate([np.zeros(0, np.int32), *(window.items for window in windows)])
    rows = np.concatenate([np.zeros(0, np.int64), *(window.rows for window in windows)])
    firsts = np.array([window.first_target for window in windows], dtype=np.int64)
    return FlatWindows(items, rows, np.cumsum(sizes) - sizes, np.cumsum(sizes), firsts)


def user_windows(corpus, split="train"):
    """The windows of a split one by one."""
    return [window for part in corpus.windows(split) for window in each_window(part)]


def sid_windows(corpus, table, recency, features=()):
    """Training windows and validation examples over SID numbers, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        write_windows(corpus, table, recency, Path(folder), features)
        windows = {name: np.array(values) for name, values in read_windows(Path(folder)).items()}
    return windows, held_out_windows(corpus.valid, table.sid_numbers, corpus.max_history, features)


def training_examples(bundle, builder, config, corpus=None, folder=None):
    """The training examples of a corpus, that of a builder if None: a data set, and what it is of."""
    names = ("max_prompt_length", "all_positions", "variants", "max_tokens", "recency")
    settings = {"teacher": bool(config.teacher), **{name: getattr(config, name) for name in names}}
    corpus = corpus or builder.corpus
    maker = SftExamples(bundle.tokenizer, builder, corpus, config.tasks, config.seed, **settings)
    with tempfile.TemporaryDirectory() as path:
        found = training_set(maker, Path(folder or path))
        return found.rows, found


def tokenised_windows(bundle, builder, windows=None, recency=0.0, task=NEXT_SID):
    """Windows of a corpus, or some windows, as examples with all that a teacher is asked: name to lists."""
    windows = user_windows(builder.corpus) if windows is None else windows
    weigh = recency_weights(builder.corpus.split, len(builder.corpus.train), recency)
    texts = WindowTexts.of(bundle.tokenizer, builder, task)
    columns, counted = window_columns(texts, joined_windows(windows), weigh, True, task == NEXT_SID)
    return listed(columns, counted)


def tokenised_rows(bundle, builder, max_prompt_length, recency=0.0, **settings):
    """The examples of the task next_sid, one an interaction, with all that a teacher is asked: name to lists."""
    settings = {"max_prompt_length": max_prompt_length, "recency": recency, "teacher": True, **settings}
    maker = SftExamples(bundle.tokenizer, builder, builder.corpus, {NEXT_SID: 1.0}, **{"seed": 42, **settings})
    _, make = maker.opened(NEXT_SID)
    return listed(*make(np.arange(len(builder.corpus.train))))


def listed(columns, counted):
    """Columns as lists, one for each name of `COLUMNS`."""
    parts = {name: np.split(values, np.cumsum(lengths)[:-1]) for name, (values, lengths) in columns.items()}
    found = {name: [part.tolist() for part in each] for name, each in parts.items()}
    none = [[] for _ in range(counted["rows"])]
    return {name: list(found.get(name, none)) for name in COLUMNS}
