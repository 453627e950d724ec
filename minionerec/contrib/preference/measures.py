"""Metrics of predicted preferences: accuracy, cross-entropy, calibration, swaps, users, and the known ceiling."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.contrib.preference.data import TRAIN, Comparisons
from minionerec.contrib.preference.synthetic import TRUTH, UTILITY, probability, sibling_probability
from minionerec.metrics.statistics import paired_differences

CLIP = 1e-7
BINS = 15
LEAST_ROWS = 10
"""Minimum number of test examples of a user who is listed by name."""


def cross_entropy(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row, in nats; probabilities are clipped to [1e-7, 1 - 1e-7]."""
    p = np.clip(p, CLIP, 1 - CLIP)
    loss: np.ndarray = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    return loss


def correct(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """1.0 where p > 0.5 agrees with y; an undecided 0.5 counts for the second item, as in the published report."""
    right: np.ndarray = (p > 0.5) == (y == 1)
    return right.astype(np.float64)


def pair_interval(values: np.ndarray, pair: np.ndarray, seed: int = 0, resamples: int = 1000) -> dict[str, float]:
    """Mean of rows with a 95 % interval from whole pairs drawn with replacement, and a p-value of its sign.

    Rows of one pair depend on each other (the same items, shared noise), so single rows as units would make intervals
    too narrow.

    Args:
        values: float (R,).
        pair: int (R,), the pair of each row.
        seed: Seed of the draws.
        resamples: Number of resamples.

    Returns:
        mean, low, high, and p (two-sided, for a mean of 0).
    """
    by_pair = np.argsort(pair, kind="stable")  # draws do not depend on the order of rows
    sample = {"mean": values[by_pair]}, {"mean": np.zeros(len(values))}
    of_zero = paired_differences(*sample, seed, resamples, pair[by_pair])["mean"]
    return {"mean": float(values.mean()), "low": of_zero.low, "high": of_zero.high, "p": of_zero.p}


def summary(
    answers: Comparisons, p: np.ndarray, swapped: np.ndarray | None = None, seed: int = 0, resamples: int = 1000
) -> dict[str, Any]:
    """Compute all metrics over rows.

    Args:
        answers: The rows, R of them.
        p: float (R,), predicted probability of the first item.
        swapped: float (R,), probability of the second item when the items are swapped.
        seed: Seed of the bootstrap.
        resamples: Its resamples.

    Returns:
        n, accuracy and ce (pooled: mean over rows), accuracy_macro and ce_macro (unweighted mean over targets),
        intervals of the pooled ones over pairs, brier, auc (None if all answers are alike), calibration (15 bins of
        equal mass: predicted, observed, n), ece (their mean distance, weighted by rows), swap_gap (mean
        |P(a,b) + P(b,a) - 1|) and contradictory (share of rows decided differently under swap).
    """
    from sklearn.metrics import roc_auc_score

    y, target = answers.y, answers.target
    hit, ce = correct(y, p), cross_entropy(y, p)
    parts = np.array_split(np.argsort(p, kind="stable"), min(BINS, len(p)))
    bins = [{"predicted": float(p[i].mean()), "observed": float(y[i].mean()), "n": len(i)} for i in parts]
    present = np.unique(target)
    return {
        "n": len(y),
        "accuracy": float(hit.mean()),
        "accuracy_interval": pair_interval(hit, answers.pair, seed, resamples),
        "accuracy_macro": float(np.mean([hit[target == t].mean() for t in present])),
        "ce": float(ce.mean()),
        "ce_interval": pair_interval(ce, answers.pair, seed, resamples),
        "ce_macro": float(np.mean([ce[target == t].mean() for t in present])),
        "brier": float(np.square(p - y).mean()),
        "auc": float(roc_auc_score(y, p)) if 0 < y.mean() < 1 else None,
        "ece": float(sum(abs(row["predicted"] - row["observed"]) * row["n"] for row in bins) / len(y)),
        "calibration": bins,
        "swap_gap": None if swapped is None else float(np.abs(p + swapped - 1).mean()),
        "contradictory": None if swapped is None else float(((p > 0.5) == (swapped > 0.5)).mean()),
    }


def by_target(answers: Comparisons, p: np.ndarray) -> dict[str, Any]:
    """Compute what the published results.json has per target: accuracy, ce_loss, n_samples and user_accuracies."""
    hit, ce, table = correct(answers.y, p), cross_entropy(answers.y, p), {}
    for number, name in enumerate(answers.targets):
        of_target = answers.target == number
        if of_target.any():
            of_user = {
                answers.users[u]: hit[of_target & (answers.user == u)] for u in np.unique(answers.user[of_target])
            }
            table[name] = {
                "accuracy": float(hit[of_target].mean()),
                "ce_loss": float(ce[of_target].mean()),
                "n_samples": int(of_target.sum()),
                "user_accuracies": {u: {"accuracy": float(h.mean()), "n": len(h)} for u, h in of_user.items()},
            }
    return table


def agreement(data: Comparisons) -> tuple[np.ndarray, np.ndarray]:
    """Compute how often two users choose the same item for the same pair and target, and how many both answered.

    Returns:
        float64 (U, U), NaN where two have nothing in common, and int64 (U, U).
    """
    key = data.pair * len(data.targets) + data.target
    answers = np.zeros((len(data.users), int(key.max()) + 1 if len(key) else 1))
    answers[data.user, key] = np.where((data.a < data.b) == (data.y == 1), 1, -1)  # whether the lower-numbered item
    n = np.abs(answers) @ np.abs(answers).T
    with np.errstate(invalid="ignore"):
        return np.where(n > 0, (answers @ answers.T / n + 1) / 2, np.nan), n.astype(np.int64)


def against_truth(
    folder: Path, data: Comparisons, folds: np.ndarray, rows: np.ndarray, p: np.ndarray, utilities: np.ndarray | None
) -> dict[str, Any]:
    """Metrics of predictions for synthetic raters against their true probabilities.

    Args:
        folder: Directory of the truth, see `write_population`.
        data: All rows.
        folds: int8 (R,).
        rows: int64 (r,), the rows predicted.
        p: float (r,), predicted probability of the first item.
        utilities: float (U + 1, T, N), the model's utilities of items; None where it has none.

    Returns:
        The ceiling: `expected` (mean of max(p, 1 - p)) and `realised` (accuracy of the true p on the drawn answers)
        Bayes accuracy and `ce`; `sibling_*`: the same given the user's answers in train on the same pair.
        The model: `recovery` (accuracy - 1/2) / (realised - 1/2), None where there is nothing to recover; `regret`
        (CE - Bayes CE), `p_error` mean |p_hat - p|, `spearman` (mean over users with ten rows and targets of the rank
        correlation of true and estimated utility) and `users` (each one's accuracy, ceiling and p_error).
    """
    truth = pd.read_parquet(folder / TRUTH)
    halo, lapse = float(truth["halo"].iloc[0]), float(truth["lapse"].iloc[0])
    index = {name: number for number, name in enumerate(data.ids)}
    column = {name: number for number, name in enumerate(data.targets)}
    margin = np.zeros((len(index), len(column)))  # (C, T)
    margin[truth["comparison_id"].map(index), truth["target"].map(column)] = truth["margin"]
    y, known = np.full(margin.shape, np.nan), np.zeros(margin.shape, dtype=bool)
    y[data.comparison, data.target] = data.y
    known[data.comparison, data.target] = folds == TRAIN
    at = (data.comparison[rows], data.target[rows])
    true, sibling = probability(margin, lapse)[at], sibling_probability(margin, y, known, halo, lapse)[at]
    answers, user = data.y[rows], data.user[rows]
    scores: dict[str, Any] = {}
    for prefix, best in (("", true), ("sibling_", sibling)):
        scores[f"{prefix}expected"] = float(np.maximum(best, 1 - best).mean())
        scores[f"{prefix}realised"] = float(correct(answers, best).mean())
        scores[f"{prefix}ce"] = float(cross_entropy(answers, best).mean())
    hit, reached, error = correct(answers, p), correct(answers, true), np.abs(p - true)
    hopeless = scores["expected"] < 0.51 or scores["realised"] == 0.5
    users, cells = [], []
    for number in np.unique(user):
        of_user = user == number
        row = {"user": data.users[number], "n": int(of_user.sum()), "accuracy": float(hit[of_user].mean())}
        row |= {
            "expected": float(np.maximum(true, 1 - true)[of_user].mean()),
            "realised": float(reached[of_user].mean()),
        }
        users.append({**row, "p_error": float(error[of_user].mean())})
        if row["n"] >= LEAST_ROWS:
            cells += [(number, target) for target in range(len(column))]
    return scores | {
        "recovery": None if hopeless else float((hit.mean() - 0.5) / (scores["realised"] - 0.5)),
        "regret": float(cross_entropy(answers, p).mean()) - scores["ce"],
        "p_error": float(error.mean()),
        "spearman": None if utilities is None else _rank_correlation(folder, data, utilities, cells),
        "users": users,
    }


def _rank_correlation(
    folder: Path, data: Comparisons, utilities: np.ndarray, cells: list[tuple[int, int]]
) -> float | None:
    """Spearman's rank correlation of true and estimated utility, over users and targets; None where there are none."""
    from scipy.stats import spearmanr

    with np.load(folder / UTILITY) as arrays:
        true = arrays["utility"]
    number = [int(name.rsplit("-", 1)[1]) for name in data.users]
    correlations = [spearmanr(utilities[u, t], true[number[u], t])[0] for u, t in cells if np.ptp(utilities[u, t]) > 0]
    return float(np.mean(correlations)) if correlations else None
