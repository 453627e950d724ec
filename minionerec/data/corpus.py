"""The corpus: the one form in which every later stage sees items and interactions."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import open_artefact, write_artefact
from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.parquet import read_parquet
from minionerec.core.remote import fetched
from minionerec.data.chains import Chains, chain_rows, concatenated
from minionerec.data.names import SPLITS
from minionerec.data.rows import SplitRows, joined
from minionerec.data.shards import FOLDER, REMEDY, has_times, read_shard, shard_files, write_shards
from minionerec.data.times import RowTimes

ITEM_COLUMNS = ("item_id", "title", "description")


@dataclass(frozen=True)
class Corpus:
    """Items and the rows of three splits; row i of `items` is item index i everywhere.

    Attributes:
        items: Columns `item_id` (str, unique), `title` (str), `description` (str, "" where there is none).
        train: Rows in the order of the source, with times in all three splits or in none.
        valid: Like `train`.
        test: Like `train`.
        split: Name of the split for result tables, e.g. "global time 8:1:1".
        max_history: Most items that a history holds.
    """

    items: pd.DataFrame
    train: SplitRows
    valid: SplitRows
    test: SplitRows
    split: str
    max_history: int
    counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return len(self.items)

    def splits(self) -> dict[str, SplitRows]:
        """Split to its rows, which may be none (`rows` refuses that)."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def rows(self, split: str) -> SplitRows:
        """The rows of one split.

        Raises:
            DataError: If the split is unknown or holds no row.
        """
        rows = self.splits().get(split, SplitRows.none())
        check_split(split, len(rows))
        return rows

    def every_row(self, split: str) -> SplitRows:
        """`rows`, by the name that a corpus on disk has for it."""
        return self.rows(split)

    @property
    def together(self) -> bool:
        """Whether items of one moment are one step, so that several rows of a user may share their history."""
        return self.counts.get("ties") == "together"

    @property
    def has_times(self) -> bool:
        """Whether the rows of all splits have times."""
        return all(rows.times is not None for rows in self.splits().values())

    def times_of(self, split: str) -> RowTimes | None:
        """The times of the rows of one split; None where they are unknown.

        Raises:
            DataError: If the split is unknown or holds no row.
        """
        rows = self.rows(split)
        return rows.times if self.has_times else None

    def popularity(self) -> np.ndarray:
        """How often each item is the target of a training row: int64 (N,)."""
        return np.bincount(self.train.targets, minlength=self.n_items)

    def with_every_row(self) -> "Corpus":
        """The same corpus with the rows of all splits, train, valid, test, as its training rows.

        For a model that goes into service. Each user's rows keep their order where the split goes by time.
        """
        return replace(self, train=joined([rows for rows in self.splits().values() if len(rows)]))

    def all_counts(self) -> dict[str, Any]:
        """The counts with `items`, `split` and `max_history`, as the manifest keeps them and `load` reads them."""
        return {**self.counts, "items": self.n_items, "split": self.split, "max_history": self.max_history}

    def chains(self) -> Chains:
        """The same rows as users' sequences, in the order of each user's first row.

        Raises:
            DataError: If a history is longer than `max_history`.
        """
        return chain_rows(self.splits(), self.max_history, self.together)

    def write(self, place: Path) -> None:
        """Write the files of a corpus into a directory."""
        write_corpus(place, self.items, self.chains())

    def save(self, path: str | os.PathLike[str], *, config: Any, inputs: Mapping[str, str | os.PathLike[str]]) -> None:
        """Write the corpus as an artefact of kind "corpus"."""
        with write_artefact(path, "corpus", config=config, inputs=inputs, counts=self.all_counts()) as place:
            self.write(place)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Corpus":
        """Read a corpus artefact.

        Raises:
            ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or
                cannot be read.
        """
        place = fetched(path)
        counts, items = open_corpus(place)
        limit, together = counts["max_history"], counts.get("ties") == "together"
        parts = [part for file in sequence_files(place) for part in read_shard(file, len(items))]
        chains = concatenated(parts)
        rows = {split: ordered_rows(place, chains, split, limit, together) for split in SPLITS}
        return cls(items, **rows, split=counts["split"], max_history=limit, counts=counts)


def check_split(split: str, rows: int) -> None:
    """Check that there is a split of that name, and that it has rows.

    Raises:
        DataError: If not.
    """
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}.")
    if not rows:
        raise DataError(f"split {split!r} holds no row. Check the split's proportions and the source's {split} file.")


def open_corpus(path: str | os.PathLike[str]) -> tuple[dict[str, Any], pd.DataFrame]:
    """Check a corpus artefact and read its items: the manifest's counts, and the item table of `Corpus`.

    Raises:
        ArtefactError: See `Corpus.load`.
    """
    counts = open_artefact(path, "corpus", strangers=(".parquet",))["counts"]
    if not isinstance(counts.get("split"), str) or type(counts.get("max_history")) is not int:
        raise ArtefactError(f"{path}: its manifest does not count as a corpus's does. {REMEDY}")
    items = read_parquet(Path(path) / "items.parquet", dict.fromkeys(ITEM_COLUMNS, "text"), remedy=REMEDY)
    return counts, items


def write_corpus(place: Path, items: pd.DataFrame, chains: Chains) -> None:
    """Write the files of a corpus: the item table of `Corpus`, and sequences, which may come in any order."""
    write_items(place, items)
    write_shards(place, chains)


def write_items(place: Path, items: pd.DataFrame) -> None:
    """Write the item table of a corpus."""
    items.to_parquet(place / "items.parquet", index=False)


def sequence_files(place: Path) -> list[Path]:
    """The files of sequences of a corpus.

    Raises:
        ArtefactError: If there is none, or some have times and some have none.
    """
    files = shard_files(place)
    if not files:
        raise ArtefactError(f"{place}: holds no sequences; it may be of an earlier version. {REMEDY}")
    if len({has_times(file) for file in files}) > 1:
        raise ArtefactError(f"{place}: some files of its sequences have times, and some have none. {REMEDY}")
    return files


def ordered_rows(place: Path, chains: Chains, split: str, max_history: int, together: bool) -> SplitRows:
    """The rows of one split in their own order.

    Raises:
        ArtefactError: If a row is missing, or there twice.
    """
    numbers, rows = chains.split_rows(split, max_history, together)
    order = np.full(len(rows), -1, dtype=np.int64)
    inside = numbers < len(rows)
    order[numbers[inside]] = np.flatnonzero(inside)
    if (order < 0).any():
        missing = int(np.flatnonzero(order < 0)[0])
        names = " to ".join(dict.fromkeys(file.name for file in (shard_files(place)[0], shard_files(place)[-1])))
        raise ArtefactError(f"{place}: {split} row {missing} is in none of its files, {FOLDER}/{names}. {REMEDY}")
    return rows.take(order)
