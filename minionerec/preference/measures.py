"""How good probabilities of choices are: accuracy, cross-entropy, calibration, swaps, intervals over pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minionerec.metrics.statistics import bootstrap_means

CLIP = 1e-7
BINS = 15


def cross_entropy(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row, in nats; probabilities are clipped to [1e-7, 1 - 1e-7]."""
    p = np.clip(p, CLIP, 1 - CLIP)
    loss: np.ndarray = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    return loss


def correct(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """1.0 where p > 0.5 says what y says; an undecided 0.5 stands for the second item, as in the published report."""
    right: np.ndarray = (p > 0.5) == (y == 1)
    return right.astype(np.float64)


def calibration_bins(y: np.ndarray, p: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """Mean prediction, observed share and number of rows of up to `bins` bins of equal mass, by rising prediction."""
    parts = np.array_split(np.argsort(p, kind="stable"), min(bins, len(p)))
    return [{"predicted": float(p[i].mean()), "observed": float(y[i].mean()), "n": len(i)} for i in parts]


def calibration_error(bins: Sequence[Mapping[str, float]]) -> float:
    """Expected calibration error: mean distance of predicted and observed share, weighted by rows."""
    total = sum(row["n"] for row in bins)
    return float(sum(abs(row["predicted"] - row["observed"]) * row["n"] for row in bins) / total)


def pair_interval(values: np.ndarray, pair: np.ndarray, seed: int = 0, resamples: int = 1000) -> dict[str, float]:
    """Mean of rows with a 95 % interval from whole pairs drawn with replacement, and a p-value of its sign.

    Rows of one pair hang together (the same items, shared noise), so rows drawn one by one would make intervals too
    narrow.

    Args:
        values: float (R,).
        pair: int (R,), the pair of each row.
        seed: Seed of the draws.
        resamples: Number of resamples.

    Returns:
        mean, low, high, and p (two-sided, for a mean of 0).
    """
    _, place = np.unique(pair, return_inverse=True)
    sums = np.stack([np.bincount(place, values), np.bincount(place)], axis=1)
    means = bootstrap_means(sums, seed, resamples)
    ratio = means[:, 0] / means[:, 1]
    low, high = np.quantile(ratio, [0.025, 0.975])
    tail = min((ratio <= 0).sum(), (ratio >= 0).sum())
    p = min(1.0, 2 * (tail + 1) / (resamples + 1))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high), "p": float(p)}


def summary(
    y: np.ndarray,
    p: np.ndarray,
    target: np.ndarray,
    pair: np.ndarray,
    swapped: np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 1000,
) -> dict[str, Any]:
    """All measures over rows.

    Args:
        y: float (R,), 1 if the first item was chosen.
        p: float (R,), predicted probability of that.
        target: int (R,).
        pair: int (R,).
        swapped: float (R,), probability of the second item when it is shown first.
        seed: Seed of the bootstrap.
        resamples: Its resamples.

    Returns:
        n, accuracy and ce (pooled: mean over rows), accuracy_macro and ce_macro (unweighted mean over targets),
        intervals of the pooled ones over pairs, brier, auc (None if all answers are alike), ece, calibration (bins),
        swap_gap (mean |P(a,b) + P(b,a) - 1|) and contradictory (share of rows decided differently under swap).
    """
    from sklearn.metrics import roc_auc_score

    hit, ce = correct(y, p), cross_entropy(y, p)
    bins = calibration_bins(y, p)
    present = np.unique(target)
    return {
        "n": len(y),
        "accuracy": float(hit.mean()),
        "accuracy_interval": pair_interval(hit, pair, seed, resamples),
        "accuracy_macro": float(np.mean([hit[target == t].mean() for t in present])),
        "ce": float(ce.mean()),
        "ce_interval": pair_interval(ce, pair, seed, resamples),
        "ce_macro": float(np.mean([ce[target == t].mean() for t in present])),
        "brier": float(np.square(p - y).mean()),
        "auc": float(roc_auc_score(y, p)) if 0 < y.mean() < 1 else None,
        "ece": calibration_error(bins),
        "calibration": bins,
        "swap_gap": None if swapped is None else float(np.abs(p + swapped - 1).mean()),
        "contradictory": None if swapped is None else float(((p > 0.5) == (swapped > 0.5)).mean()),
    }


def by_target(
    hit: np.ndarray, ce: np.ndarray, target: np.ndarray, user: np.ndarray, targets: Sequence[str], users: Sequence[str]
) -> dict[str, Any]:
    """Per target accuracy, ce_loss, n_samples and user_accuracies, in the published results.json's words."""
    table = {}
    for number, name in enumerate(targets):
        rows = target == number
        if rows.any():
            mine = {users[u]: rows & (user == u) for u in np.unique(user[rows])}
            table[name] = {
                "accuracy": float(hit[rows].mean()),
                "ce_loss": float(ce[rows].mean()),
                "n_samples": int(rows.sum()),
                "user_accuracies": {u: {"accuracy": float(hit[m].mean()), "n": int(m.sum())} for u, m in mine.items()},
            }
    return table


def user_table(
    hit: np.ndarray,
    target: np.ndarray,
    user: np.ndarray,
    total: np.ndarray,
    targets: Sequence[str],
    users: Sequence[str],
    min_rows: int = 10,
) -> dict[str, Any]:
    """Accuracy per user, each number under its own name.

    Args:
        hit: float (R,), 1 where the prediction is right.
        target: int (R,).
        user: int (R,), index into `users`.
        total: int (U,), comparisons of each user in all the data.
        targets: Names of targets.
        users: User ids.
        min_rows: Users with fewer test rows are counted, not shown.

    Returns:
        `users`, for each one shown: index, user (short id), total, n, right, macro (unweighted mean of the target
        accuracies: the published report's "Accuracy"), pooled (right / n), low and high (Wilson's 95 % interval of
        pooled, rows taken as independent) and targets (name to accuracy and n); and of the others `hidden_users` and
        `hidden_rows`.
    """
    from scipy.stats import binomtest

    shown, hidden_users, hidden_rows = [], 0, 0
    short = short_ids(users)
    for number in np.unique(user):
        mine = user == number
        n, right = int(mine.sum()), int(hit[mine].sum())
        if n < min_rows:
            hidden_users, hidden_rows = hidden_users + 1, hidden_rows + n
            continue
        cells = {name: hit[mine & (target == t)] for t, name in enumerate(targets)}
        accuracies = {name: {"accuracy": float(c.mean()), "n": len(c)} for name, c in cells.items() if len(c)}
        low, high = binomtest(right, n).proportion_ci(method="wilson")
        shown.append(
            {
                "index": int(number),
                "user": short[number],
                "total": int(total[number]),
                "n": n,
                "right": right,
                "macro": float(np.mean([cell["accuracy"] for cell in accuracies.values()])),
                "pooled": right / n,
                "low": float(low),
                "high": float(high),
                "targets": accuracies,
            }
        )
    return {"users": shown, "hidden_users": hidden_users, "hidden_rows": hidden_rows, "min_rows": min_rows}


def short_ids(ids: Sequence[str], length: int = 6) -> list[str]:
    """The last characters of each id: six, or as many more as tell all apart.

    Example:
        >>> short_ids(["1-alpha-99", "2-alpha-99"], 3)
        ['1-alpha-99', '2-alpha-99']
    """
    while len({name[-length:] for name in ids}) < len(set(ids)):
        length += 1
    return [name[-length:] for name in ids]


def agreement(y: np.ndarray, key: np.ndarray, user: np.ndarray, users: int) -> tuple[np.ndarray, np.ndarray]:
    """How often two users choose alike on the same key (a pair and target), and on how many keys.

    Args:
        y: float (R,), 1 for the item with the lower number (an order that does not hang on the display).
        key: int (R,).
        user: int (R,).
        users: Number of users, U.

    Returns:
        float64 (U, U), NaN where two have nothing in common, and int64 (U, U).
    """
    _, place = np.unique(key, return_inverse=True)
    said = np.zeros((users, int(place.max()) + 1 if len(place) else 1))
    said[user, place] = 2 * y - 1
    n = np.abs(said) @ np.abs(said).T
    with np.errstate(invalid="ignore"):
        return np.where(n > 0, (said @ said.T / n + 1) / 2, np.nan), n.astype(np.int64)
