"""What lists are worth where purchases differ in value: the value that they find, and lists re-ranked by it."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from minionerec.core.cells import number_of
from minionerec.core.errors import DataError, shown
from minionerec.metrics.predictions import Predictions

CUTOFF = 10
VALUE_WEIGHTS = (0, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5)
"""Weights of log(value) beside a log-probability, by which lists are re-ranked."""
HR, VALUE = f"HR@{CUTOFF}", f"value@{CUTOFF}"
Metrics = Mapping[str, np.ndarray]
"""Name → float64 (R,), of each list."""


def item_values(column: pd.Series) -> np.ndarray:
    """Read what each item is worth from a column of the items: float64 (N,).

    Args:
        column: N cells, by item id.

    Raises:
        DataError: If a cell is no number from 0, or all are 0.
    """
    numbers = np.array([number_of(cell) for cell in column], dtype=np.float64)
    bad = np.logical_not(np.isfinite(numbers) & (numbers >= 0))
    where = f"column {column.name!r} of the corpus's items"
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{where} has {shown(column.iloc[row])} for item {column.index[row]} ({int(bad.sum())} such items); a "
            "value is a number from 0 for each item."
        )
    if not numbers.any():
        raise DataError(f"{where} is 0 for every item, so nothing has a value. Name another column.")
    return numbers


def distinct_lists(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Lists as arrays, each item once.

    Returns:
        Items, int64 (R, K), the best first and -1 after the end of a shorter list; and their scores, float64 (R, K),
        minus infinity there.
    """
    longest = max(map(len, predictions.items))
    items = np.full((len(predictions), longest), -1, dtype=np.int64)
    scores = np.full(items.shape, -np.inf)
    for row, (listed, listed_scores) in enumerate(zip(predictions.items, predictions.scores, strict=True)):
        score_of: dict[int, float] = {}
        for item, score in zip(listed, listed_scores, strict=True):
            if item >= 0:
                score_of.setdefault(int(item), float(score))
        items[row, : len(score_of)], scores[row, : len(score_of)] = list(score_of), list(score_of.values())
    return items, scores


def best_items(items: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The first `CUTOFF` items by some scores, (R, K) as of `distinct_lists`: int64 (R, 10); ties in their order."""
    order = np.argsort(-np.where(items >= 0, scores, -np.inf), axis=1, kind="stable")
    return np.take_along_axis(items, order, 1)[:, :CUTOFF]


def by_value(items: np.ndarray, scores: np.ndarray, values: np.ndarray, weight: float) -> np.ndarray:
    """The first ten by log-probability + weight x log(value): int64 (R, 10).

    Args:
        items: int64 (R, K), as of `distinct_lists`.
        scores: float64 (R, K), log-probabilities.
        values: float64 (N,), from 0.
        weight: Weight.
    """
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    return best_items(items, scores + weight * logs[items])


def value_metrics(lists: np.ndarray, targets: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """Hits in the first ten, and the value of the purchases that they find: float64 (R,) each.

    Args:
        lists: int64 (R, 10), -1 after the end.
        targets: int64 (R,).
        values: float64 (N,), of mean 1.
    """
    hits = (lists == targets[:, None]).any(1).astype(float)
    return {HR: hits, VALUE: hits * values[targets]}


def at_equal_hr(hit: float, curve: Sequence[Metrics], metric: str) -> tuple[np.ndarray, bool]:
    """The most of a metric that mixing two lists of a curve gives at one HR@10.

    Args:
        hit: The HR@10.
        curve: Metrics of each weight.
        metric: Which of them.

    Returns:
        float64 (R,), mixed example by example; and whether the HR@10 lies on the curve. If not, the end next to it.
    """
    hits = np.array([point[HR].mean() for point in curve])
    means = np.array([point[metric].mean() for point in curve])
    lowest, highest = np.argsort(hits)[[0, -1]]
    if not hits[lowest] <= hit <= hits[highest]:
        return np.asarray(curve[lowest if hit < hits[lowest] else highest][metric]), False
    mixtures = []
    for below in np.flatnonzero(hits <= hit).tolist():
        for above in np.flatnonzero(hits >= hit).tolist():
            share = (hit - hits[below]) / (hits[above] - hits[below]) if hits[above] > hits[below] else 0.0
            mixtures.append(((1 - share) * means[below] + share * means[above], share, below, above))
    _, share, below, above = max(mixtures, key=lambda mixture: mixture[0])
    return (1 - share) * curve[below][metric] + share * curve[above][metric], True
