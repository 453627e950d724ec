"""Corpora of a few items, for tests of stages that look at items alone."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.published import item_records, write_layout
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME, RowTimes


def make_corpus(titles: list[str], descriptions: list[str] | None = None, item_ids: list[str] | None = None) -> Corpus:
    """A corpus with these items and one row per split."""
    ids = item_ids or [f"i{position}" for position in range(len(titles))]
    items = pd.DataFrame({"item_id": ids, "title": titles, "description": descriptions or [""] * len(titles)})
    rows = SplitExamples.of(["u"], [np.array([0], dtype=np.int32)], np.array([0], np.int32))
    return Corpus(items=items, train=rows, valid=rows, test=rows, split="none", max_history=10)


def save_corpus(path: Path, titles: list[str], **columns: list[str]) -> Path:
    make_corpus(titles, **columns).save(path, config={}, inputs={})
    return path


def write_published(root: Path, category: str, corpus: Corpus) -> None:
    """Write a corpus of users u0, u1, ... in the published layout; item i has the SID <a_i><b_0><c_0>."""
    numbers = {user: int(user[1:]) for rows in corpus.splits().values() for user in rows.users}
    sids = [f"<a_{item}><b_0><c_0>" for item in range(corpus.n_items)]
    write_layout(root, category, corpus, numbers, item_records(corpus.items), sids)


def shop_titles(n: int) -> list[str]:
    """Titles with families of words: colour x thing x size."""
    colours, things = ["red", "blue", "green", "white"], ["lamp", "table", "chair", "shelf", "clock"]
    return [f"{colours[i % 4]} {things[i % 5]} size {i % 7} model {i}" for i in range(n)]


def bought_together(unsold: int = 0, more: int = 0, seed: int = 0) -> Corpus:
    """A corpus of 18 items in three groups, number i in group i % 3, whose users stay in one group.

    Args:
        unsold: Items without any interaction after them, with the texts of the first ones.
        more: Users beside the first 40.
        seed: Seed of the interactions.
    """
    rng, triples = np.random.default_rng(seed), []
    for user in range(40 + more):
        chosen = (rng.permutation(6)[: rng.integers(3, 6)] * 3 + user % 3).astype(np.int32)
        triples += [(f"u{user}", chosen[:position], chosen[position]) for position in range(1, len(chosen))]
    train = rows_of(triples)
    titles = shop_titles(18)
    corpus = make_corpus([*titles, *titles[:unsold]])
    held_out = train.take(np.arange(4))
    return replace(corpus, train=train, valid=held_out, test=held_out)


def rows_of(triples, times: RowTimes | None = None) -> SplitExamples:
    """Examples from (user, history, target)."""
    return SplitExamples.of(*([each[column] for each in triples] for column in range(3)), times)


def triples_of(rows: SplitExamples) -> list[tuple]:
    """Examples as (user, history, target), the history a list."""
    return [(user, history.tolist(), target) for user, history, target in rows]


def corpus_of(train, valid, test, n_items: int = 6, max_history: int = 10, split: str = "by hand") -> Corpus:
    """A corpus of items i0, i1, ... from the (user, history, target) of each split, or its examples."""
    splits = [each if isinstance(each, SplitExamples) else rows_of(each) for each in (train, valid, test)]
    titles = [f"thing {n}" for n in range(n_items)]
    return Corpus(make_corpus(titles).items, *splits, split=split, max_history=max_history)


def random_corpus(item_ids, max_history: int, ties="keep", gaps=0.0, unknown=0.0) -> Corpus:
    """Users of 2 to 29 items in the order of their times, split by time.

    Args:
        item_ids: The items.
        max_history: Longest history.
        ties: As of `prepare-data`: "keep", or "together".
        gaps: Share of examples that are missing.
        unknown: Share of interactions whose time nobody knows.
    """
    rng = np.random.default_rng(0)
    rows = []
    for user in range(20):
        size = int(rng.integers(2, 30))
        items, times = rng.integers(len(item_ids), size=size), np.sort(rng.integers(15, size=size)) * 20 + user
        reported = np.where(rng.random(size) < unknown, NO_TIME, times)
        for position in range(1, size):
            end = int(np.searchsorted(times, times[position])) if ties == "together" else position
            if end and rng.random() >= gaps:
                example = f"u{user}", items[max(0, end - max_history) : end], items[position]
                rows.append((times[position], example, (reported[position], reported[end - 1])))
    rows.sort(key=lambda row: row[0])
    splits = []
    for low, high in pairwise([0, int(0.8 * len(rows)), int(0.9 * len(rows)), len(rows)]):
        _, examples, times = zip(*rows[low:high], strict=True)
        splits.append(rows_of(examples, RowTimes(*np.array(times).T.copy())))
    counts = {"ties": ties, **{f"{name}_rows": len(part) for name, part in zip(SPLITS, splits, strict=True)}}
    items = make_corpus(item_ids, item_ids=item_ids).items
    return Corpus(items, *splits, split="global time 8:1:1", max_history=max_history, counts=counts)


def leave_last_out(sequences, n_items: int, max_history: int = 10) -> Corpus:
    """A corpus of users' sequences of one length: the last item of each is of test, the one before of validation."""

    def at(*positions):
        return [
            (f"u{user}", list(items[max(0, position - max_history) : position]), items[position])
            for user, items in enumerate(sequences)
            for position in positions
        ]

    last = len(sequences[0]) - 1
    return corpus_of(at(*range(1, last - 1)), at(last - 1), at(last), n_items, max_history)
