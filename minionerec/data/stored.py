"""A corpus that stays on disk: read a part at a time, however large it is."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.remote import fetched
from minionerec.data.chains import Chains
from minionerec.data.corpus import Corpus, check_split, open_corpus, sequence_files
from minionerec.data.names import SPLITS
from minionerec.data.rows import SplitRows, joined
from minionerec.data.shards import REMEDY, has_times, read_shard
from minionerec.data.times import RowTimes

ROWS_IN_MEMORY = 1 << 22
"""Corpora of more training rows are read shard by shard where that is possible."""


@dataclass(frozen=True)
class StoredCorpus:
    """The same as `Corpus`, whose items are in memory and whose rows are not.

    Attributes:
        place: The artefact's directory.
        items: The item table of `Corpus`.
        counts: The manifest's counts.
        files: The files of sequences, in their order.
    """

    place: Path
    items: pd.DataFrame
    counts: Mapping[str, Any]
    files: Sequence[Path]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "StoredCorpus":
        """Open a corpus artefact.

        Raises:
            ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written.
        """
        place = fetched(path)
        counts, items = open_corpus(place)
        return cls(place, items, counts, sequence_files(place))

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return len(self.items)

    @property
    def split(self) -> str:
        """Name of the split for result tables."""
        return str(self.counts["split"])

    @property
    def max_history(self) -> int:
        """Most items that a history holds."""
        return int(self.counts["max_history"])

    @property
    def together(self) -> bool:
        """See `Corpus.together`."""
        return self.counts.get("ties") == "together"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Split → number of its rows; counted by reading once where the manifest does not say."""
        names = {split: f"{split}_rows" for split in SPLITS}
        if all(type(self.counts.get(name)) is int for name in names.values()):
            return {split: int(self.counts[name]) for split, name in names.items()}
        found = np.zeros(len(SPLITS) + 1, dtype=np.int64)
        for part in self.chains():
            found += np.bincount(part.splits + 1, minlength=len(found))
        return dict(zip(SPLITS, found[1:].tolist(), strict=True))

    def chains(self) -> Iterator[Chains]:
        """All sequences, a row group at a time.

        Raises:
            ArtefactError: If a file cannot be read.
        """
        for file in self.files:
            yield from read_shard(file, self.n_items)

    def batches(self, split: str) -> Iterator[tuple[np.ndarray, SplitRows]]:
        """The rows of one split as they lie: int64 numbers of rows, and the rows, of a row group at a time.

        Raises:
            DataError: If the split is unknown.
            ArtefactError: If a file cannot be read.
        """
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}.")
        for part in self.chains():
            numbers, rows = part.split_rows(split, self.max_history, self.together)
            if len(rows):
                yield numbers, rows

    def rows(self, split: str, numbers: np.ndarray) -> SplitRows:
        """Some rows of one split, in the order of `numbers`, int (R,), none twice.

        Raises:
            DataError: If the split is unknown, or has no such rows.
            ArtefactError: If a file cannot be read, or does not hold what the manifest counts.
        """
        order = np.argsort(numbers, kind="stable")
        wanted = np.asarray(numbers)[order]
        if not len(wanted) or wanted[0] < 0 or wanted[-1] >= self.sizes.get(split, 0):
            raise DataError(f"split {split!r} has rows 0 to {self.sizes.get(split, 0) - 1}; others were asked for.")
        parts, places = [], []
        for found, rows in self.batches(split):
            at = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
            chosen = np.flatnonzero(wanted[at] == found)
            if len(chosen):
                parts.append(rows.take(chosen).compact())
                places.append(order[at[chosen]])
        place = np.concatenate([np.zeros(0, np.int64), *places])
        if len(place) != len(wanted):
            raise ArtefactError(f"{self.place}: holds {len(place)} of {len(wanted)} {split} rows. {REMEDY}")
        return joined(parts).take(np.argsort(place, kind="stable"))

    @property
    def is_large(self) -> bool:
        """Whether it is better read shard by shard than held in memory."""
        return self.sizes["train"] > ROWS_IN_MEMORY

    def every_row(self, split: str) -> SplitRows:
        """All rows of one split, in their order, as `Corpus.rows`; they are kept, for they are asked for again.

        Raises:
            DataError: If the split is unknown or holds no row.
            ArtefactError: If a file cannot be read.
        """
        if split not in self._kept:
            check_split(split, self.sizes.get(split, 0))
            self._kept[split] = self.rows(split, np.arange(self.sizes[split]))
        return self._kept[split]

    @property
    def has_times(self) -> bool:
        """Whether the rows of all splits have times."""
        return has_times(self.files[0])

    def times_of(self, split: str) -> RowTimes | None:
        """The times of the rows of one split; None where they are unknown. Raises what `every_row` does."""
        return self.every_row(split).times if self.has_times else None

    def popularity(self) -> np.ndarray:
        """How often each item is the target of a training row: int64 (N,)."""
        return self._popularity.copy()

    @cached_property
    def _kept(self) -> dict[str, SplitRows]:
        """Splits that were asked for as a whole."""
        return {}

    @cached_property
    def _popularity(self) -> np.ndarray:
        counts = np.zeros(self.n_items, dtype=np.int64)
        for part in self.chains():
            counts += np.bincount(part.items[part.splits == SPLITS.index("train")], minlength=self.n_items)
        return counts

    def without_rows(self) -> Corpus:
        """Its items as a corpus that holds no row: for what reads nothing but items."""
        none = SplitRows.none()
        return Corpus(self.items, none, none, none, self.split, self.max_history, self.counts)

    def load(self) -> Corpus:
        """All of it in memory."""
        return Corpus.load(self.place)


def in_memory(corpus: Corpus | StoredCorpus) -> Corpus:
    """A corpus with all its rows in memory."""
    return corpus.load() if isinstance(corpus, StoredCorpus) else corpus


def read_corpus(path: str | os.PathLike[str]) -> Corpus | StoredCorpus:
    """A corpus artefact: in memory, or where it is large as it lies on disk.

    Raises:
        ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or cannot
            be read.
    """
    stored = StoredCorpus.open(path)
    return stored if stored.is_large else stored.load()
