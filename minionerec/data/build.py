"""From a source to a corpus: filter, order, make rows, split, check, count, and write in bounded memory."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.checks import check_global_time
from minionerec.data.corpus import SPLITS, Corpus, write_corpus
from minionerec.data.filters import k_core, number_by_appearance
from minionerec.data.source import Source
from minionerec.data.splits import SPLIT_NAMES, Rows, build_rows, global_time_split, leave_last_out_split, row_table

BATCH = 1 << 20
"""Rows written at a time; parquet's own default for a row group."""


@dataclass(frozen=True)
class BuiltCorpus:
    """A corpus whose rows still lie in a few flat arrays, so that ten million of them fit.

    Attributes:
        items: Columns `item_id`, `title`, `description`; row i is item index i.
        rows: All rows of all splits, in time order; places and items as in `Rows`.
        users: int32 (R,), user number of each row.
        labels: int8 (R,), 0 train, 1 valid, 2 test.
        user_ids: U strings; user number u is `user_ids[u]`. Numbers rise with first appearance in the source.
        split: Name of the split for result tables.
        max_history: Most items that a history holds.
        counts: Numbers for the manifest.
    """

    items: pd.DataFrame
    rows: Rows
    users: np.ndarray
    labels: np.ndarray
    user_ids: pa.Array
    split: str
    max_history: int
    counts: Mapping[str, Any]

    def batches(self, split: str) -> Iterator[pa.Table]:
        """The rows of one split as tables of `user`, `history` and `target`, at most `BATCH` rows each."""
        chosen = np.flatnonzero(self.labels == SPLITS.index(split))
        for start in range(0, len(chosen), BATCH):
            part = chosen[start : start + BATCH]
            rows = self.rows.take(part)
            values, borders = rows.flat_histories()
            yield pa.table(
                {
                    "user": self.user_ids.take(pa.array(self.users[part])),
                    "history": pa.ListArray.from_arrays(pa.array(borders, pa.int32()), pa.array(values)),
                    "target": pa.array(rows.by_user[rows.ends]),
                }
            )

    def corpus(self) -> Corpus:
        """The same as the tables that every later stage reads."""
        tables = {}
        for split in SPLITS:
            parts = [part.to_pandas() for part in self.batches(split)]
            empty = row_table([], [], np.empty(0, dtype=np.int32))
            tables[split] = pd.concat(parts, ignore_index=True) if parts else empty
        return Corpus(self.items, **tables, split=self.split, max_history=self.max_history, counts=self.counts)

    def save(self, path: str | os.PathLike[str], *, config: Any, inputs: Mapping[str, str | os.PathLike[str]]) -> None:
        """Write the corpus as an artefact of kind "corpus"."""
        tables = {split: self.batches(split) for split in SPLITS}
        counts = {**self.counts, "items": len(self.items), "split": self.split, "max_history": self.max_history}
        write_corpus(path, self.items, tables, config=config, inputs=inputs, counts=counts)


def build_corpus(source: Source, *, split: str = "global_time", max_history: int = 10, core: int = 0) -> BuiltCorpus:
    """Filter a source's interactions, order them by time, make rows and split them.

    Interactions are sorted by time and ties keep the order of the file; where there are no times, the order of the file
    is the order. Every interaction but a user's first becomes a row. Repeated interactions are kept.

    Args:
        source: Items and interactions.
        split: "global_time" (the newest tenth of all rows is test, the tenth before valid) or "leave_last_out" (each
            user's last row is test, the one before valid).
        max_history: Most items that a history holds.
        core: Fewest interactions of every user and every item (iterative k-core); items outside go. At 0 all stay.

    Returns:
        The corpus. Its counts are the source's; `train_rows`, `valid_rows`, `test_rows`, `rows`; `users` with a row;
        `items`; `items_without_title`; `items_without_description`; `items_without_interactions`; `interactions`;
        for valid and test `{split}_cold_targets`, rows whose target is in no training row, as target or in a history,
        and `{split}_new_users`, rows whose user has no training row; `full_histories`, rows with `max_history` items;
        `truncated_histories`; `users_without_rows` (fewer than two interactions).

    Raises:
        ConfigError: If the split is unknown or needs times that the source lacks, or a number is out of range.
        DataError: If the filters leave nothing, a split is empty, or the split leaks.
    """
    if split not in SPLIT_NAMES:
        raise ConfigError(f"unknown split {split!r}; known splits: {', '.join(SPLIT_NAMES)}.")
    if split == "global_time" and source.times is None:
        raise ConfigError(f"split is 'global_time', but {source.where} holds no times. Set split to 'leave_last_out'.")
    items, users, item_index, times = source.items, source.users, source.item_index, source.times
    counts: dict[str, Any] = {**source.counts}

    if core > 1:
        kept = k_core(users, item_index, core)
        if not len(kept):
            raise DataError(
                f"{source.where}: the {core}-core of {len(users)} interactions is empty: no set of users and items "
                f"has {core} interactions each. Lower core."
            )
        counts["interactions_outside_core"] = len(users) - len(kept)
        users, item_index = users[kept], item_index[kept]
        times = None if times is None else times[kept]
        stay, item_index = np.unique(item_index, return_inverse=True)
        items = items.iloc[stay].reset_index(drop=True)
    users, old_users = number_by_appearance(users)
    user_ids = source.user_ids.take(pa.array(old_users))
    if isinstance(user_ids, pa.ChunkedArray):
        user_ids = user_ids.combine_chunks()

    order = np.arange(len(users)) if times is None else np.argsort(times, kind="stable")
    users, item_index = users[order], item_index[order]
    rows = build_rows(users, item_index, max_history)
    row_users = users[rows.targets]
    labels = global_time_split(len(row_users)) if split == "global_time" else leave_last_out_split(row_users)
    sizes = np.bincount(labels, minlength=len(SPLITS)).tolist()
    if 0 in sizes:
        shown = ", ".join(f"{name} {size}" for name, size in zip(SPLITS, sizes, strict=True))
        raise DataError(
            f"{source.where}: split {SPLITS[sizes.index(0)]!r} holds no row ({shown}). "
            "Give more interactions or another split."
        )
    if times is not None and split == "global_time":
        row_times = times[order][rows.targets]
        check_global_time({name: row_times[labels == label] for label, name in enumerate(SPLITS)})
    counts |= dict(zip((f"{name}_rows" for name in SPLITS), sizes, strict=True))
    counts |= _counts(items, item_index, rows, row_users, labels, max_history)
    counts["users_without_rows"] = len(user_ids) - counts["users"]
    return BuiltCorpus(items, rows, row_users, labels, user_ids, SPLIT_NAMES[split], max_history, counts)


def _counts(
    items: pd.DataFrame, item_index: np.ndarray, rows: Rows, users: np.ndarray, labels: np.ndarray, max_history: int
) -> dict[str, int]:
    n_users = int(users.max(initial=-1)) + 1
    targets = rows.by_user[rows.ends]
    train = labels == 0
    # Places that a training history covers: one more at each begin, one less at each end, summed up.
    covers = np.bincount(rows.begins[train], minlength=len(item_index) + 1)
    covers -= np.bincount(rows.ends[train], minlength=len(item_index) + 1)
    known = np.zeros(len(items), dtype=bool)
    known[rows.by_user[np.cumsum(covers)[:-1] > 0]] = True
    known[targets[train]] = True
    known_user = np.zeros(n_users, dtype=bool)
    known_user[users[train]] = True
    counts = {
        "rows": len(labels),
        "users": int((np.bincount(users) > 0).sum()),
        "items": len(items),
        "items_without_title": int((items["title"] == "").sum()),
        "items_without_description": int((items["description"] == "").sum()),
        "items_without_interactions": int((np.bincount(item_index, minlength=len(items)) == 0).sum()),
        "interactions": len(item_index),
        "full_histories": int((rows.ends - rows.begins >= max_history).sum()),
        "truncated_histories": rows.truncated,
    }
    for label, name in enumerate(SPLITS[1:], start=1):
        chosen = labels == label
        counts[f"{name}_cold_targets"] = int((~known[targets[chosen]]).sum())
        counts[f"{name}_new_users"] = int((~known_user[users[chosen]]).sum())
    return counts
