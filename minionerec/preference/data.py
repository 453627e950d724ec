"""The data contract: comparisons and item features, read, checked and counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.errors import DataError
from minionerec.preference.config import ANSWERS
from minionerec.preference.files import answer_times, read_answers, read_features, require_files

TOO_MANY = 0.05


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
        y: float64 (R,), 1 if the first item was chosen, 0 if the second; ties and blanks are no rows.
        pair: int64 (R,), number of the unordered pair of items.
        time: float64 (R,) or None.
        counts: What was read and what was left out, see `read_comparisons`.
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
        """These rows alone, with all users, items and targets."""
        names = ("comparison", "user", "a", "b", "target", "y", "pair")
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **columns, time=None if self.time is None else self.time[rows])


def read_comparisons(
    comparisons: str | Path, features: str | Path, targets: Sequence[str], label_map: Mapping[str, str]
) -> Comparisons:
    """Read and check comparisons and features.

    Nothing is repaired silently. `counts` holds: comparisons read; those dropped for a missing user or item id, an
    item without features, or an item compared with itself; answers read, of which blank, tie, invalid (a value of no
    known meaning), repeated (the same user, pair and target again; the first one stays) and contradictory (repeated
    the other way); `self_consistency`, the share of repeats that agree (None without repeats); rows kept; and users
    whose kept answers are all alike (`one_class_users`).

    Args:
        comparisons: csv, parquet or jsonl, see `PreferenceConfig`.
        features: npz or parquet, see `read_features`.
        targets: Columns with the answers.
        label_map: Raw code to "a", "b", "tie" or ""; empty if the file says a, b and tie itself.

    Raises:
        DataError: If a file is missing or malformed, an answer is a number and `label_map` is empty, more than one in
            twenty answers is invalid, more than half of the comparisons lack features, or no row is left.
    """
    require_files(comparisons, features)
    path = Path(comparisons)
    items, matrix = read_features(features)
    table, inside = read_answers(path, targets, frozenset(items))
    time = answer_times(table, path)
    index = {item: place for place, item in enumerate(items)}
    a, b = (table[name].map(index).fillna(-1).to_numpy(np.int64) for name in ("item_a", "item_b"))
    keep, counts = _usable(table, a, b, path, features)
    users = list(dict.fromkeys(table["user_id"].iloc[keep]))
    user = table["user_id"].map({name: place for place, name in enumerate(users)}).fillna(-1).to_numpy(np.int64)
    low, high = np.minimum(a, b), np.maximum(a, b)
    choices = _choices(table.iloc[keep].set_axis(keep), targets, label_map, path, counts)
    row = choices["row"].to_numpy()
    winner = np.where(choices["first"].to_numpy(), a[row], b[row])
    answers = choices.assign(user=user[row], low=low[row], high=high[row], chosen=winner)
    rows = _without_repeats(answers, counts)
    if not len(rows):
        raise DataError(f"{path}: no usable answer is left of {counts}. Check targets, label_map and features.")
    place = rows["row"].to_numpy()
    y = (rows["chosen"].to_numpy() == a[place]).astype(np.float64)
    mean = pd.Series(y).groupby(rows["user"].to_numpy()).mean()
    counts["one_class_users"] = int(mean.isin([0.0, 1.0]).sum())
    _, pair = np.unique(low[place] * len(items) + high[place], return_inverse=True)
    return Comparisons(
        features=matrix,
        items=items,
        users=users,
        targets=list(targets),
        ids=table["comparison_id"].tolist(),
        comparison=place,
        user=user[place],
        a=a[place],
        b=b[place],
        target=rows["target"].to_numpy(np.int64),
        y=y,
        pair=pair,
        time=None if time is None else time[place],
        counts=counts | inside,
    )


def _usable(
    table: pd.DataFrame, a: np.ndarray, b: np.ndarray, path: Path, features: str | Path
) -> tuple[np.ndarray, dict[str, Any]]:
    """Rows of the table that compare two known items, int64 (r,), and the counts of the others.

    Raises:
        DataError: If more than half lack features.
    """
    counts: dict[str, Any] = {"comparisons": len(table)}
    named = ((table["user_id"] != "") & (table["item_a"] != "") & (table["item_b"] != "")).to_numpy(bool)
    known = (a >= 0) & (b >= 0)
    other = (table["item_a"] != table["item_b"]).to_numpy(bool)
    counts["without_user_or_item"] = int((~named).sum())
    counts["without_features"] = int((named & ~known).sum())
    counts["self_pairs"] = int((named & known & ~other).sum())
    if counts["without_features"] > len(table) / 2:
        bad = int(np.flatnonzero(named & ~known)[0])
        lost = table["item_a" if a[bad] < 0 else "item_b"].iloc[bad]
        raise DataError(
            f"{path}: {counts['without_features']} of {len(table)} comparisons name items without features in "
            f"{features}, first {lost!r} in row {bad + 1}. Give the features of these items."
        )
    return np.flatnonzero(named & known & other), counts


def _choices(
    table: pd.DataFrame, targets: Sequence[str], label_map: Mapping[str, str], path: Path, counts: dict[str, Any]
) -> pd.DataFrame:
    """The answers that choose an item, all rows of the first target first; the others are added to `counts`.

    Args:
        table: The usable comparisons, by their row in the file.
        targets: Columns with the answers.
        label_map: What raw codes mean.
        path: The file, for messages.
        counts: What was left out before.

    Returns:
        row (in the file), target (its number) and first (whether the first item is chosen).

    Raises:
        DataError: If a code has no meaning, or more than one in twenty answers is invalid.
    """
    parts = []
    known = {value: value for value in ANSWERS} | dict(label_map)
    counts |= dict.fromkeys(("answers", "blank", "ties", "invalid", "repeated", "contradictory"), 0)
    for number, name in enumerate(targets):
        raw = table[name]
        coded = raw[raw.str.fullmatch(r"[+-]?\d+(\.\d*)?")]
        if not label_map and len(coded):
            raise DataError(
                f"{path}, row {coded.index[0] + 1}: {name} is {coded.iloc[0]!r}, a code without a meaning. Set "
                "label_map, for instance 1=a 2=b, as your data's description says which item a code stands for."
            )
        meaning = raw.map(known).fillna("?")
        counts["answers"] += len(raw)
        for key, value in (("blank", ""), ("ties", "tie"), ("invalid", "?")):
            counts[key] += int((meaning == value).sum())
        chosen = meaning[meaning.isin(["a", "b"])]
        parts.append(
            pd.DataFrame({"row": chosen.index.to_numpy(), "target": number, "first": chosen.to_numpy() == "a"})
        )
    if counts["invalid"] > TOO_MANY * counts["answers"]:
        raise DataError(
            f"{path}: {counts['invalid']} of {counts['answers']} answers are none of a, b, tie, blank or label_map's "
            f"codes ({', '.join(label_map) or 'none'}). Complete label_map."
        )
    return pd.concat(parts, ignore_index=True)


def _without_repeats(answers: pd.DataFrame, counts: dict[str, Any]) -> pd.DataFrame:
    """The first answer of each user, pair and target; the later ones are added to `counts`."""
    keys = ["user", "low", "high", "target"]
    again = answers.duplicated(keys).to_numpy()
    against = again & (answers["chosen"] != answers.groupby(keys)["chosen"].transform("first")).to_numpy()
    counts["repeated"], counts["contradictory"] = int(again.sum()), int(against.sum())
    counts["self_consistency"] = None if not again.any() else 1 - counts["contradictory"] / counts["repeated"]
    rows = answers[~again]
    counts["rows"] = len(rows)
    return rows
