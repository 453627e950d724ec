"""One fitted model on the test rows: predictions, and every measure of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import package_versions
from minionerec.preference.config import PreferenceConfig
from minionerec.preference.data import Comparisons
from minionerec.preference.fit import is_network, mlp_settings
from minionerec.preference.jobs import Job
from minionerec.preference.measures import (
    agreement,
    by_target,
    correct,
    cross_entropy,
    short_ids,
    summary,
    user_table,
)
from minionerec.preference.model import PreferenceModel
from minionerec.preference.results import RunResults, SplitRecord
from minionerec.preference.splits import LEAK_WARNING, TEST, TRAIN, VALID, audit_split, fold_hash
from minionerec.preference.truth import score_against_truth


def score_run(
    config: PreferenceConfig, job: Job, data: Comparisons, folds: np.ndarray, fitted: PreferenceModel
) -> tuple[RunResults, pd.DataFrame]:
    """Measure a fitted model.

    Args:
        config: The stage's settings.
        job: The run.
        data: All rows.
        folds: int8 (R,).
        fitted: The model.

    Returns:
        The results, and one row per test row: row, comparison_id, user_id, pair, target, y, p, and where the model
        gives them `p_swapped` and `p_last`.

    Raises:
        DataError: If the split `pair` leaks.
    """
    known = np.isin(np.arange(len(data.users)), data.user[folds == TRAIN])
    user = np.where(known[data.user], data.user, -1)
    valid, test = np.flatnonzero(folds == VALID), np.flatnonzero(folds == TEST)
    table = _predictions(job, data, test, user[test], fitted)
    p, y, target = table["p"].to_numpy(), data.y[test], data.target[test]
    swapped = table["p_swapped"].to_numpy() if "p_swapped" in table else None
    said = fitted.about()

    def overall(guess: np.ndarray, other: np.ndarray | None) -> dict[str, Any]:
        return summary(y, guess, target, data.pair[test], other, job.seed, config.resamples)

    results = RunResults(
        model=job.model,
        seed=job.seed,
        settings=mlp_settings(config, job.model) if is_network(job.model) else {},
        split=_split_record(job, data, folds),
        counts=data.counts,
        users=list(data.users),
        targets=list(data.targets),
        unseen_user_rows=int((user[test] < 0).sum()),
        best_epoch=said.best_epoch,
        last_epoch=said.last_epoch,
        parameters=said.parameters,
        chosen=said.chosen,
        validation=_by_target(data, valid, fitted.probabilities(data, valid, user[valid])),
        test=_by_target(data, test, p),
        overall=overall(p, swapped),
        user_table=_user_table(data, test, p, config.min_user_rows),
        agreement=_agreement(data),
        history=said.history,
        versions=package_versions(),
        last=overall(table["p_last"].to_numpy(), None) if "p_last" in table else None,
        shots=few_shot(fitted, data, test, config.shots, job.seed) if job.unit == "user" else None,
        truth=score_against_truth(Path(job.data), data, folds, table, fitted) if job.data else None,
    )
    return results, table


def _predictions(
    job: Job, data: Comparisons, test: np.ndarray, user: np.ndarray, fitted: PreferenceModel
) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "row": test,
            "comparison_id": [data.ids[c] for c in data.comparison[test]],
            "user_id": [data.users[u] for u in data.user[test]],
            "pair": data.pair[test],
            "target": [data.targets[t] for t in data.target[test]],
            "y": data.y[test].astype(int),
            "p": fitted.probabilities(data, test, user),
        }
    )
    swapped = fitted.swapped(data, test, user)
    if swapped is not None:
        table["p_swapped"] = swapped
    last = fitted.at_last_epoch() if job.model == "mlp_concat" else None
    if last is not None:
        table["p_last"] = last.probabilities(data, test, user)
    return table


def _split_record(job: Job, data: Comparisons, folds: np.ndarray) -> SplitRecord:
    return SplitRecord(
        unit=job.unit,
        sha256=fold_hash(folds),
        rows={name: int((folds == fold).sum()) for name, fold in (("train", TRAIN), ("valid", VALID), ("test", TEST))},
        audit=audit_split(data, folds, job.unit),
        warning=LEAK_WARNING if job.unit == "row" else None,
    )


def _by_target(data: Comparisons, rows: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    y = data.y[rows]
    hit, ce = correct(y, p), cross_entropy(y, p)
    return by_target(hit, ce, data.target[rows], data.user[rows], data.targets, data.users)


def _user_table(data: Comparisons, rows: np.ndarray, p: np.ndarray, min_rows: int) -> dict[str, Any]:
    first = np.unique(data.comparison, return_index=True)[1]
    total = np.bincount(data.user[first], minlength=len(data.users))
    hit = correct(data.y[rows], p)
    return user_table(hit, data.target[rows], data.user[rows], total, data.targets, data.users, min_rows)


def _agreement(data: Comparisons) -> dict[str, Any]:
    """Who chooses alike how often, over all rows."""
    low = np.where(data.a < data.b, data.y, 1 - data.y)
    share, n = agreement(low, data.pair * len(data.targets) + data.target, data.user, len(data.users))
    return {
        "user": short_ids(data.users),
        "n": n.tolist(),
        "share": [[None if np.isnan(value) else float(value) for value in row] for row in share],
    }


def few_shot(
    fitted: PreferenceModel, data: Comparisons, test: np.ndarray, shots: list[int], seed: int
) -> dict[str, Any]:
    """Accuracy and CE on held-out users after k of their comparisons, all k measured on the same rows.

    Each user's comparisons are shuffled; the first max(shots) serve to adapt, the rest to measure. Users without a rest
    are left out. A model that does not adapt stands at k = 0; a floor, which knows no unseen user, nowhere.

    Args:
        fitted: The model.
        data: All rows.
        test: int64 (r,), rows of the held-out users.
        shots: Each k.
        seed: Seed of the shuffling.

    Returns:
        k, as text, to accuracy, ce and n (rows).
    """
    if not fitted.serves_unseen:
        return {}
    rng = np.random.default_rng([seed, 13])
    out = {}
    users = np.unique(data.user[test])
    order = {u: rng.permutation(np.unique(data.comparison[test][data.user[test] == u])) for u in users}
    for k in shots if fitted.adapts else [0]:
        ys, ps = [], []
        for comparisons in order.values():
            rest = test[np.isin(data.comparison[test], comparisons[max(shots) :])]
            if len(rest):
                given = test[np.isin(data.comparison[test], comparisons[:k])]
                model = fitted.adapt(data, given) if k else fitted
                ys.append(data.y[rest])
                ps.append(model.probabilities(data, rest, np.full(len(rest), -1)))
        if ys:
            y, p = np.concatenate(ys), np.concatenate(ps)
            accuracy, ce = float(correct(y, p).mean()), float(cross_entropy(y, p).mean())
            out[str(k)] = {"accuracy": accuracy, "ce": ce, "n": len(y)}
    return out
