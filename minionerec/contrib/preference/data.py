"""Comparisons and item features: read, checked and counted; folds that do not leak, and the audit that shows it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from minionerec.contrib.preference.config import ANSWERS
from minionerec.core.cells import frame_of, plain_text, texts_of
from minionerec.core.errors import DataError, shown, truncate
from minionerec.core.log import get_logger
from minionerec.data.source import BadRows
from minionerec.data.sources.table_files import row_location
from minionerec.data.sources.tables import column_of, read_table
from minionerec.data.sources.text import INSIDE
from minionerec.data.sources.times import read_times
from minionerec.sid.embed.stored import check_vectors

logger = get_logger(__name__)

KEYS = ("comparison_id", "user_id", "item_a", "item_b")
TIME = "timestamp"
MAX_INVALID_SHARE = 0.05
TRAIN, VALID, TEST, DISCARDED = 0, 1, 2, -1
LEAK_WARNING = (
    "LEAK: rows are split one by one, so most test examples have the same user's other answers on the same pair in "
    "train. Metrics do not measure generalisation. Use the split 'pair'."
)


@dataclass(frozen=True)
class Comparisons:
    """Answers, one row per comparison and target, all rows of the first target first.

    Attributes:
        features: float32 (N, D), row i = item i.
        items: Item ids, N of them.
        users: User ids in order of first appearance, U of them.
        targets: Names of the questions, T of them.
        ids: Comparison ids.
        comparison: int64 (R,), index into `ids`.
        user: int64 (R,).
        a: int64 (R,), the first item.
        b: int64 (R,), the second item.
        target: int64 (R,).
        y: float64 (R,), 1 if the first item was chosen, 0 if the second; ties and blanks have no row.
        pair: int64 (R,), number of the unordered pair of items.
        time: float64 (R,) or None.
        counts: Numbers of comparisons and answers that were read and left out, see `read_comparisons`.
    """

    features: np.ndarray
    items: Sequence[str]
    users: Sequence[str]
    targets: Sequence[str]
    ids: Sequence[str]
    comparison: np.ndarray
    user: np.ndarray
    a: np.ndarray
    b: np.ndarray
    target: np.ndarray
    y: np.ndarray
    pair: np.ndarray
    time: np.ndarray | None
    counts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> "Comparisons":
        """Select rows, with all users, items and targets."""
        names = ("comparison", "user", "a", "b", "target", "y", "pair")
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **columns, time=None if self.time is None else self.time[rows])


def read_features(path: str | Path) -> tuple[list[str], np.ndarray]:
    """Item ids and their vectors, float32 (N, D).

    Raises:
        DataError: If the file is missing or a pickle, ids repeat, or vectors differ in length or are not finite.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".parquet"):
        raise DataError(f"{path}: features must be .npz or .parquet (pickles are not read). Convert the file.")
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give --features an npz or parquet file.")
    try:
        items, vectors = _npz(path) if path.suffix == ".npz" else _parquet(path)
        if not vectors or len(items) != len(vectors) or len(set(items)) < len(items):
            raise DataError(f"{path}: {len(vectors)} vectors for {len(set(items))} distinct items; expected one each.")
        for item, vector in zip(items, vectors, strict=True):
            if not plain_text(item):
                raise DataError(f"{path}: the item id {shown(item)} holds a lone surrogate. Fix it.")
            if np.size(vector) != np.size(vectors[0]):
                raise DataError(
                    f"{path}: item {shown(item)} has {np.size(vector)} numbers, item {shown(items[0])} has "
                    f"{np.size(vectors[0])}. Fix it."
                )
            if not np.isfinite(vector).all():
                raise DataError(f"{path}: item {shown(item)} has NaN or infinity among its features. Remove or fix it.")
        return items, check_vectors(np.stack(vectors), len(items), str(path))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # headers and nested values can fail in many ways
        raise DataError(
            f"{path}: expected item_id and features (npz, no objects) or item_id and vector (parquet): "
            f"{truncate(str(error), 200)}."
        ) from None


def _npz(path: Path) -> tuple[list[str], list[np.ndarray]]:
    with np.load(path, allow_pickle=False) as arrays:
        ids = np.ascontiguousarray(arrays["item_id"].astype(str).ravel())
        # numpy does not check code points, and a text with invalid ones breaks its readers.
        if ids.size and int(ids.view(np.uint32).max()) > sys.maxunicode:
            raise ValueError("item_id holds invalid code points")
        return ids.tolist(), list(arrays["features"])


def _parquet(path: Path) -> tuple[list[str], list[np.ndarray]]:
    table = frame_of(pq.ParquetFile(path).read(columns=["item_id", "vector"]))
    if sorted(table.columns) != ["item_id", "vector"]:
        raise ValueError(f"it has {', '.join(table.columns) or 'neither'} of the two columns")
    return texts_of(table["item_id"], lists=False)[0].tolist(), [
        np.asarray(row, dtype=np.float64) for row in table["vector"]
    ]


def read_comparisons(
    comparisons: str | Path, features: str | Path, targets: Sequence[str], label_map: Mapping[str, str]
) -> Comparisons:
    """Read and check comparisons and features.

    Nothing is repaired silently. `counts` holds: comparisons read; those dropped for a missing user or item id, an
    item without features, or an item compared with itself; answers read, of which blank, tie, invalid (a value of no
    known meaning), repeated (the same user, pair and target again; the first one stays) and contradictory (repeated
    the other way); `self_consistency`, the share of repeats that agree (None without repeats); rows kept; users whose
    kept answers are all alike (`one_class_users`); and `lines_inside_cells` where quoted cells span lines.

    Args:
        comparisons: csv, parquet or jsonl, see `PreferenceConfig`.
        features: npz or parquet, see `read_features`.
        targets: Columns with the answers.
        label_map: Raw code to "a", "b", "tie" or ""; empty if the file holds a, b and tie itself.

    Raises:
        DataError: If a file is missing or malformed, an answer is a number and `label_map` is empty, more than one in
            twenty answers is invalid, more than half of the comparisons lack features, or no row is left.
    """
    items, matrix = read_features(features)
    path, index = Path(comparisons), {item: number for number, item in enumerate(items)}
    table, counts = _read_answers(path, targets)
    a, b = (table[name].map(index).fillna(-1).to_numpy(np.int64) for name in ("item_a", "item_b"))
    named = ((table["user_id"] != "") & (table["item_a"] != "") & (table["item_b"] != "")).to_numpy(bool)
    known, other = (a >= 0) & (b >= 0), (table["item_a"] != table["item_b"]).to_numpy(bool)
    counts |= {"without_user_or_item": int((~named).sum()), "without_features": int((named & ~known).sum())}
    counts["self_pairs"] = int((named & known & ~other).sum())
    if counts["without_features"] > len(table) / 2:
        bad = int(np.flatnonzero(named & ~known)[0])
        lost = table["item_a" if a[bad] < 0 else "item_b"].iloc[bad]
        raise DataError(
            f"{path}: {counts['without_features']} of {len(table)} comparisons name items without features in "
            f"{features}, first {lost!r} in row {bad + 1}. Give the features of these items."
        )
    keep = np.flatnonzero(named & known & other)
    users = list(dict.fromkeys(table["user_id"].iloc[keep]))
    user = table["user_id"].map({name: number for number, name in enumerate(users)}).fillna(-1).to_numpy(np.int64)
    answers = _choices(table.iloc[keep].set_axis(keep), targets, label_map, path, counts)
    row = answers["row"].to_numpy()
    pair = np.minimum(a, b) * len(items) + np.maximum(a, b)
    answers = answers.assign(user=user[row], pair=pair[row], chosen=np.where(answers["first"], a[row], b[row]))
    keys = ["user", "pair", "target"]
    again = answers.duplicated(keys).to_numpy()
    against = again & (answers["chosen"] != answers.groupby(keys)["chosen"].transform("first")).to_numpy()
    counts |= {"repeated": int(again.sum()), "contradictory": int(against.sum())}
    counts["self_consistency"] = None if not again.any() else 1 - counts["contradictory"] / counts["repeated"]
    answers = answers[~again]
    counts["rows"] = len(answers)
    if not len(answers):
        words = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counts.items())
        raise DataError(f"{path}: no usable answer is left ({words}). Check targets, label_map and features.")
    row, y = answers["row"].to_numpy(), answers["first"].to_numpy().astype(np.float64)
    counts["one_class_users"] = int(pd.Series(y).groupby(user[row]).mean().isin([0.0, 1.0]).sum())
    time = None
    if TIME in table:
        time = read_times(table[TIME], lambda at: f"{path}, row {at + 1}", BadRows())[0].astype(np.float64)[row]
    return Comparisons(
        features=matrix,
        items=items,
        users=users,
        targets=list(targets),
        ids=table["comparison_id"].tolist(),
        comparison=row,
        user=user[row],
        a=a[row],
        b=b[row],
        target=answers["target"].to_numpy(np.int64),
        y=y,
        pair=np.unique(pair[row], return_inverse=True)[1],
        time=time,
        counts=counts,
    )


def _read_answers(path: Path, targets: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table of comparisons, `KEYS` and targets as texts, rows from 0; and the first counts.

    Raises:
        DataError: If the file is missing or cannot be read, a column is missing or repeated, or a line is not an object
            or no row.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give --comparisons a csv, parquet or jsonl file.")
    if path.suffix not in (".csv", ".parquet", ".jsonl"):
        raise DataError(f"{path}: expected .csv, .parquet or .jsonl. Convert the file.")
    table = read_table(path)
    for name in (*KEYS, *targets, *([TIME] if TIME in table.columns else [])):
        column_of(table, path, name, "targets" if name in targets else None)
    texts = {}
    for name in dict.fromkeys((*KEYS, *targets)):
        cells, wrong = texts_of(table[name], lists=False)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"{row_location(path, int(table.index[row]))}, column {name!r}: "
                f"{shown(table[name].iloc[row])} is no text in UTF-8 and no number. Write it as a text."
            )
        texts[name] = cells.str.strip()
    lines = table.attrs.get(INSIDE, 0)
    table = table.assign(**texts).reset_index(drop=True)
    return table, {"comparisons": len(table)} | ({"lines_inside_cells": lines} if lines else {})


def _choices(
    table: pd.DataFrame, targets: Sequence[str], label_map: Mapping[str, str], path: Path, counts: dict[str, Any]
) -> pd.DataFrame:
    """The answers that choose an item: row (in the file), target (its number) and first (whether the first is chosen).

    Raises:
        DataError: If a code has no meaning, or more than one in twenty answers is invalid.
    """
    parts = []
    known = {value: value for value in ANSWERS} | dict(label_map)
    counts |= dict.fromkeys(("answers", "blank", "ties", "invalid"), 0)
    for number, name in enumerate(targets):
        raw = table[name]
        coded = raw[raw.str.fullmatch(r"[+-]?\d+(\.\d*)?")]
        if not label_map and len(coded):
            raise DataError(
                f"{path}, row {coded.index[0] + 1}: {name} is {coded.iloc[0]!r}, a code without a meaning. Set "
                "label_map, for instance 1=a 2=b, by the description of your data."
            )
        meaning = raw.map(known).fillna("?")
        counts["answers"] += len(raw)
        for key, value in (("blank", ""), ("ties", "tie"), ("invalid", "?")):
            counts[key] += int((meaning == value).sum())
        chosen = meaning[meaning.isin(["a", "b"])]
        columns = {"row": chosen.index.to_numpy(), "target": number, "first": chosen.to_numpy() == "a"}
        parts.append(pd.DataFrame(columns))
    if counts["invalid"] > MAX_INVALID_SHARE * counts["answers"]:
        raise DataError(
            f"{path}: {counts['invalid']} of {counts['answers']} answers are none of a, b, tie, blank or label_map's "
            f"codes ({', '.join(label_map) or 'none'}). Complete label_map."
        )
    return pd.concat(parts, ignore_index=True)


def _tenths(count: int, order: np.ndarray, least: int = 0) -> np.ndarray:
    """Fold of each of `count` units: in this order the first 80 % train, then 10 % valid, then 10 % test."""
    tenth = max(least, count // 10)
    folds = np.empty(count, dtype=np.int8)
    folds[order] = np.repeat([TRAIN, VALID, TEST], [count - 2 * tenth, tenth, tenth])
    return folds


def fold_of_rows(data: Comparisons, unit: str, seed: int) -> np.ndarray:
    """Fold of each row.

    `row` shuffles single answers with NumPy's legacy generator, as the published report does, and leaks (a warning
    says so). `pair` keeps each unordered pair, with all users and targets, in one fold. `item` splits the items and
    discards pairs across folds. `user` holds out users. `time` splits comparisons by time, oldest first; equal times
    keep the file's order.

    Returns:
        int8 (R,): 0 train, 1 valid, 2 test, -1 discarded.

    Raises:
        DataError: If there are too few units, or no times for `time`, or a fold is empty.
    """
    rng = np.random.default_rng(seed)
    if unit == "row":
        logger.warning(LEAK_WARNING)
        order = np.arange(len(data))
        np.random.RandomState(seed).shuffle(order)
        folds = _tenths(len(data), order)
    elif unit == "pair":
        pairs = int(data.pair.max()) + 1
        folds = _tenths(pairs, rng.permutation(pairs), least=1)[data.pair]
    elif unit == "item":
        of_item = _tenths(len(data.items), rng.permutation(len(data.items)))
        folds = np.where(of_item[data.a] == of_item[data.b], of_item[data.a], DISCARDED).astype(np.int8)
    elif unit == "user":
        if len(data.users) < 3:
            raise DataError(f"the split 'user' needs at least 3 users, the data have {len(data.users)}. Use 'pair'.")
        folds = _tenths(len(data.users), rng.permutation(len(data.users)), least=1)[data.user]
    else:
        if data.time is None:
            raise DataError("the split 'time' needs a column timestamp in the comparisons. Add it or use 'pair'.")
        _, first, number = np.unique(data.comparison, return_index=True, return_inverse=True)
        folds = _tenths(len(first), np.argsort(data.time[first], kind="stable"))[number]
    for fold, name in ((TRAIN, "train"), (VALID, "valid"), (TEST, "test")):
        if not (folds == fold).any():
            raise DataError(f"the split {unit!r} leaves no row to {name} ({len(data)} rows). Give more data.")
    return folds


def audit_split(data: Comparisons, folds: np.ndarray, unit: str) -> dict[str, float | int]:
    """Leakage from train to test examples, beyond features and taste.

    Returns:
        Shares of test examples: `same_user_pair` (train holds the same user's answer to another target on this pair),
        `same_pair_other_user` (train holds another user's answer on this pair), `both_items_seen` (both items occur
        in train); and the number of rows `discarded`.

    Raises:
        DataError: If the split `pair` shows either of the first two.
    """
    train, test = folds == TRAIN, folds == TEST
    pair_and_user = data.pair * len(data.users) + data.user
    on_pair = np.bincount(data.pair[train], minlength=int(data.pair.max()) + 1)[data.pair]
    same_user_on_pair = np.bincount(pair_and_user[train], minlength=int(pair_and_user.max()) + 1)[pair_and_user]
    seen = np.isin(np.arange(len(data.items)), [data.a[train], data.b[train]])
    audit: dict[str, float | int] = {
        "same_user_pair": float((same_user_on_pair > 0)[test].mean()),
        "same_pair_other_user": float((on_pair > same_user_on_pair)[test].mean()),
        "both_items_seen": float((seen[data.a] & seen[data.b])[test].mean()),
        "discarded": int((folds == DISCARDED).sum()),
    }
    if unit == "pair" and (audit["same_user_pair"] or audit["same_pair_other_user"]):
        raise DataError(f"the split 'pair' leaks: {audit}. Fold assignment and pairs do not belong together.")
    return audit
