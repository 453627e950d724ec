"""Predictions for synthetic raters against their true probabilities, which no trainer has seen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.preference.data import Comparisons
from minionerec.preference.measures import correct, cross_entropy
from minionerec.preference.model import PreferenceModel
from minionerec.preference.splits import TRAIN
from minionerec.preference.synthetic import TRUTH, UTILITY, probability, sibling_probability

_LEAST_ROWS = 10


@dataclass(frozen=True)
class _Ceiling:
    """What the truth says about the test rows.

    Attributes:
        y: float64 (r,), the answers drawn.
        p: float64 (r,), their true probability.
        sibling: float64 (r,), the same for who also knows the user's answers in train on the same pair.
    """

    y: np.ndarray
    p: np.ndarray
    sibling: np.ndarray

    def scores(self) -> dict[str, Any]:
        """The best that can be reached: expected, realised, ce, and the same with siblings."""
        return {
            "expected": float(np.maximum(self.p, 1 - self.p).mean()),
            "realised": float(correct(self.y, self.p).mean()),
            "ce": float(cross_entropy(self.y, self.p).mean()),
            "sibling_expected": float(np.maximum(self.sibling, 1 - self.sibling).mean()),
            "sibling_realised": float(correct(self.y, self.sibling).mean()),
            "sibling_ce": float(cross_entropy(self.y, self.sibling).mean()),
        }


def score_against_truth(
    world: Path, data: Comparisons, folds: np.ndarray, table: pd.DataFrame, fitted: PreferenceModel
) -> dict[str, Any]:
    """Hold predictions against the true probabilities.

    Args:
        world: Directory of the synthetic world.
        data: All rows.
        folds: int8 (R,).
        table: Test rows with `row`, `y` and `p`, and `p_last` for a network's last epoch.
        fitted: The model, for the utilities it gives items.

    Returns:
        The ceiling: `expected` (mean of max(p, 1 - p)) and `realised` (accuracy of p on the drawn answers) Bayes
        accuracy and `ce`; `sibling_*`: the same for who also knows the user's answers in train on the same pair.
        The model: `recovery` (accuracy - 1/2) / (realised - 1/2), `regret` (CE - Bayes CE), `p_error` mean
        |p_hat - p|, `last` (accuracy, ce and p_error of the last epoch), `spearman` (mean over users shown and targets
        of the rank correlation of true and estimated utility) and `users` (each one's accuracy and ceiling).
    """
    rows, guess = table["row"].to_numpy(), table["p"].to_numpy()
    ceiling = _ceiling(world, data, folds, rows)
    scores = ceiling.scores()
    realised, hit = scores["realised"], correct(ceiling.y, guess)
    scores |= {
        "recovery": float((hit.mean() - 0.5) / (realised - 0.5)) if realised != 0.5 else None,
        "regret": float(cross_entropy(ceiling.y, guess).mean()) - scores["ce"],
        "p_error": float(np.abs(guess - ceiling.p).mean()),
        "spearman": _rank_correlation(world, data, data.user[rows], fitted),
        "users": _users(ceiling, guess, data, data.user[rows]),
    }
    if "p_last" in table:
        last = table["p_last"].to_numpy()
        scores["last"] = {
            "accuracy": float(correct(ceiling.y, last).mean()),
            "ce": float(cross_entropy(ceiling.y, last).mean()),
            "p_error": float(np.abs(last - ceiling.p).mean()),
        }
    return scores


def _ceiling(world: Path, data: Comparisons, folds: np.ndarray, rows: np.ndarray) -> _Ceiling:
    truth = pd.read_parquet(world / TRUTH)
    halo, lapse = float(truth["halo"].iloc[0]), float(truth["lapse"].iloc[0])
    shape = (len(data.ids), len(data.targets))
    place = {name: number for number, name in enumerate(data.ids)}
    column = {name: number for number, name in enumerate(data.targets)}
    margin, y = np.zeros(shape), np.full(shape, np.nan)  # (C, T)
    margin[truth["comparison_id"].map(place), truth["target"].map(column)] = truth["margin"]
    known = np.zeros(shape, dtype=bool)
    y[data.comparison, data.target] = data.y
    known[data.comparison, data.target] = folds == TRAIN
    at = (data.comparison[rows], data.target[rows])
    sibling = sibling_probability(margin, y, known, halo, lapse)
    return _Ceiling(data.y[rows], probability(margin, lapse)[at], sibling[at])


def _users(ceiling: _Ceiling, guess: np.ndarray, data: Comparisons, user: np.ndarray) -> list[dict[str, Any]]:
    """Each user's accuracy, ceiling and error of P."""
    hit, reached = correct(ceiling.y, guess), correct(ceiling.y, ceiling.p)
    table = []
    for number in np.unique(user):
        mine = user == number
        table.append(
            {
                "user": data.users[number],
                "n": int(mine.sum()),
                "accuracy": float(hit[mine].mean()),
                "expected": float(np.maximum(ceiling.p, 1 - ceiling.p)[mine].mean()),
                "realised": float(reached[mine].mean()),
                "p_error": float(np.abs(guess - ceiling.p)[mine].mean()),
            }
        )
    return table


def _rank_correlation(world: Path, data: Comparisons, user: np.ndarray, fitted: PreferenceModel) -> float | None:
    """Spearman's of true and estimated utility, over users with ten rows and targets; None where there are none."""
    from scipy.stats import spearmanr

    utilities = fitted.utilities(data.features)
    if utilities is None:
        return None
    with np.load(world / UTILITY) as arrays:
        true = arrays["utility"]
    shown = [number for number in np.unique(user) if (user == number).sum() >= _LEAST_ROWS]
    cells = [(u, t) for u in shown for t in range(len(data.targets)) if np.ptp(utilities[u, t]) > 0]
    number = [int(name.rsplit("-", 1)[1]) for name in data.users]
    if not cells:
        return None
    return float(np.mean([spearmanr(utilities[u, t], true[number[u], t])[0] for u, t in cells]))
