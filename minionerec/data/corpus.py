"""The corpus: the one form in which every later stage sees items and interactions."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.artefacts import open_artefact, write_artefact
from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.parquet import read_parquet
from minionerec.data.times import TIME_COLUMNS, RowTimes

SPLITS = ("train", "valid", "test")
ITEM_COLUMNS = ("item_id", "title", "description")
ROW_COLUMNS = ("user", "history", "target")
_REMEDY = "Run the stage that makes the corpus again (minionerec prepare-data)."


@dataclass(frozen=True)
class Corpus:
    """Items and the rows of three splits; row i of `items` is item index i everywhere.

    Attributes:
        items: Columns `item_id` (str, unique), `title` (str), `description` (str, "" where there is none).
        train: Columns `user` (str), `history` (int32 array of item indices, oldest first, may be empty), `target`
            (int32 item index). Rows are in the order of the source. Where times are known, all three splits have two
            more columns, int64, seconds since 1970: `time` of the target, `previous_time` of the newest item of the
            history; `minionerec.data.times.NO_TIME` where there is none.
        valid: Like `train`.
        test: Like `train`.
        split: Name of the split for result tables, e.g. "global time 8:1:1".
        max_history: Most items that a history holds.
    """

    items: pd.DataFrame
    train: pd.DataFrame
    valid: pd.DataFrame
    test: pd.DataFrame
    split: str
    max_history: int
    counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return len(self.items)

    def splits(self) -> dict[str, pd.DataFrame]:
        """Split to its rows, which may be none (`rows` refuses that)."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def rows(self, split: str) -> pd.DataFrame:
        """The rows of one split.

        Raises:
            DataError: If the split is unknown or holds no row.
        """
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}.")
        rows = self.splits()[split]
        if rows.empty:
            raise DataError(
                f"split {split!r} holds no row. Check the split's proportions and the source's {split} file."
            )
        return rows

    @property
    def together(self) -> bool:
        """Whether items of one moment are one step, so that several rows of a user may share their history."""
        return self.counts.get("ties") == "together"

    @property
    def has_times(self) -> bool:
        """Whether the rows of all splits have the columns of times."""
        return all(set(TIME_COLUMNS) <= set(rows) for rows in self.splits().values())

    def times_of(self, split: str) -> RowTimes | None:
        """The times of the rows of one split; None where they are unknown.

        Raises:
            DataError: If the split is unknown or holds no row.
        """
        rows = self.rows(split)
        if not self.has_times:
            return None
        return RowTimes(*(rows[name].to_numpy(np.int64) for name in TIME_COLUMNS))

    def popularity(self) -> np.ndarray:
        """How often each item is the target of a training row: int64 (N,)."""
        return np.bincount(self.train["target"].to_numpy(np.int64), minlength=self.n_items)

    def with_every_row(self) -> "Corpus":
        """The same corpus with the rows of all splits, train, valid, test, as its training rows.

        For a model that goes into service. Each user's rows keep their order where the split goes by time.
        """
        rows = [table for table in self.splits().values() if len(table)]
        return replace(self, train=pd.concat(rows, ignore_index=True))

    def all_counts(self) -> dict[str, Any]:
        """The counts with `items`, `split` and `max_history`, as the manifest keeps them and `load` reads them."""
        return {**self.counts, "items": self.n_items, "split": self.split, "max_history": self.max_history}

    def write(self, place: Path) -> None:
        """Write the four parquet files of a corpus into a directory."""
        tables = {split: [pa.Table.from_pandas(rows, preserve_index=False)] for split, rows in self.splits().items()}
        write_tables(place, self.items, tables, timed=self.has_times)

    def save(self, path: str | os.PathLike[str], *, config: Any, inputs: Mapping[str, str | os.PathLike[str]]) -> None:
        """Write the corpus as an artefact of kind "corpus": four parquet files and a manifest."""
        with write_artefact(path, "corpus", config=config, inputs=inputs, counts=self.all_counts()) as place:
            self.write(place)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Corpus":
        """Read a corpus artefact.

        Raises:
            ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or
                cannot be read.
        """
        counts = open_artefact(path, "corpus")["counts"]
        split, max_history = counts.get("split"), counts.get("max_history")
        if not isinstance(split, str) or type(max_history) is not int:
            raise ArtefactError(f"{path}: its manifest does not count as a corpus's does. {_REMEDY}")
        place = Path(path)
        items = read_parquet(place / "items.parquet", dict.fromkeys(ITEM_COLUMNS, "text"), remedy=_REMEDY)
        columns = {"user": "text", "history": "lists", "target": "whole"}
        times = dict.fromkeys(TIME_COLUMNS, "whole")
        span = dict.fromkeys(("history", "target"), (0, len(items) - 1))
        rows = {
            name: read_parquet(place / f"{name}.parquet", columns, optional=times, within=span, remedy=_REMEDY)
            for name in SPLITS
        }
        _check_times(place, rows)
        return cls(items, **rows, split=split, max_history=max_history, counts=counts)


def _check_times(place: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Check that either all tables of rows have both columns of times, as int64, or none has any.

    Raises:
        ArtefactError: Naming the first file that differs.
    """
    wanted = bool(set(TIME_COLUMNS) & {name for rows in tables.values() for name in rows})
    for split, rows in tables.items():
        for name in TIME_COLUMNS if wanted else ():
            found = str(rows[name].dtype) if name in rows else "missing"
            if found != "int64":
                raise ArtefactError(
                    f"{place / f'{split}.parquet'}: column {name!r} is {found}, expected int64 in all splits, or no "
                    f"times at all. {_REMEDY}"
                )


def _row_schema(timed: bool) -> pa.Schema:
    """The parquet schema of a split, with what pandas needs to give the same types back."""
    one = {"user": pd.Series(["u"], dtype="str"), "history": [np.zeros(1, np.int32)], "target": np.zeros(1, np.int32)}
    one |= {name: np.zeros(1, np.int64) for name in TIME_COLUMNS if timed}
    return pa.Schema.from_pandas(pd.DataFrame(one), preserve_index=False)


def write_tables(
    place: Path, items: pd.DataFrame, tables: Mapping[str, Iterable[pa.Table]], *, timed: bool = False
) -> None:
    """Write the four parquet files of a corpus.

    Args:
        place: The directory.
        items: The item table of `Corpus`.
        tables: Split → tables with the columns of `Corpus.train`, written one after another.
        timed: Whether they have the columns of times.
    """
    items.to_parquet(place / "items.parquet", index=False)
    schema = _row_schema(timed)
    for split in SPLITS:
        with pq.ParquetWriter(place / f"{split}.parquet", schema) as writer:
            for table in tables[split]:
                writer.write_table(table.cast(schema))
