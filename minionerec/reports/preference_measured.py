"""What the runs of a preference study came to, and how they differ over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minionerec.preference.config import PreferenceConfig
from minionerec.preference.jobs import Job
from minionerec.preference.results import RunResults
from minionerec.reports.preference_words import NONE

LAST = "mlp_concat, last epoch"


@dataclass(frozen=True)
class Measured:
    """What one run came to, as far as runs are set side by side; None where nothing is known.

    Attributes:
        seed: Its seed.
        n: Test answers.
        accuracy: Share of them that is right.
        ce: Cross-entropy in nats.
        ece: Expected calibration error.
        contradictory: Share of test rows decided otherwise when shown swapped.
        audit: What train tells about test.
        realised: Bayes accuracy on these answers.
        bayes_ce: Bayes cross-entropy.
        sibling_realised: The same as `realised` for who knows siblings in train.
        sibling_ce: The same as `bayes_ce`.
        recovery: (accuracy - 1/2) / (realised - 1/2); None where there is nothing to recover.
        regret: Cross-entropy minus Bayes cross-entropy.
        p_error: Mean distance to the true probability.
        spearman: Rank correlation of true and estimated utility.
        users: Each user's accuracy and ceiling.
    """

    seed: int
    n: int
    accuracy: float
    ce: float
    ece: float
    contradictory: float | None
    audit: dict[str, float]
    realised: float | None
    bayes_ce: float | None
    sibling_realised: float | None
    sibling_ce: float | None
    recovery: float | None
    regret: float | None
    p_error: float | None
    spearman: float | None
    users: list[dict[str, Any]] | None


Models = dict[str, list[Measured]]  # model to one entry per seed
Value = Callable[[Measured], float | None]


def measured_runs(config: PreferenceConfig, jobs: Sequence[Job]) -> dict[tuple[str, str], Models]:
    """(world, unit) to what its runs came to; the last epoch of `mlp_concat` stands as a model of its own."""
    table: dict[tuple[str, str], Models] = {}
    for job in jobs:
        results = RunResults.load(job.place(config.output))
        models = table.setdefault((job.world, job.unit), {})
        run = _measured(results)
        models.setdefault(job.model, []).append(run)
        if results.last is not None:
            models.setdefault(LAST, []).append(_at_last_epoch(run, results))
    return table


def _measured(results: RunResults) -> Measured:
    overall, truth = results.overall, results.truth or {}
    hopeless = bool(truth) and truth["expected"] < 0.51
    return Measured(
        seed=results.seed,
        n=overall["n"],
        accuracy=overall["accuracy"],
        ce=overall["ce"],
        ece=overall["ece"],
        contradictory=overall["contradictory"],
        audit=dict(results.split.audit),
        bayes_ce=truth.get("ce"),
        recovery=None if hopeless else truth.get("recovery"),
        realised=truth.get("realised"),
        sibling_realised=truth.get("sibling_realised"),
        sibling_ce=truth.get("sibling_ce"),
        regret=truth.get("regret"),
        p_error=truth.get("p_error"),
        spearman=truth.get("spearman"),
        users=truth.get("users"),
    )


def _at_last_epoch(run: Measured, results: RunResults) -> Measured:
    last = results.last or {}
    late = replace(
        run, accuracy=last["accuracy"], ce=last["ce"], ece=last["ece"], contradictory=None, users=None, spearman=None
    )
    truth = results.truth
    if not truth:
        return late
    recovery = None if run.recovery is None else (late.accuracy - 0.5) / (truth["realised"] - 0.5)
    return replace(late, regret=late.ce - truth["ce"], p_error=truth["last"]["p_error"], recovery=recovery)


def spread(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    """Mean and, in words, the standard deviation over seeds."""
    real = [value for value in values if value is not None]
    if not real:
        return NONE
    if len(real) == 1:
        return show(real[0])
    return f"{show(float(np.mean(real)))} ± {show(float(np.std(real, ddof=1)))}"


def points(value: float) -> str:
    """A share in points of a hundred."""
    return f"{100 * value:.1f}"


def gap(first: list[Measured], second: list[Measured], value: Value) -> np.ndarray:
    """Per-seed difference of two models or splits, for the seeds in which both are known, float64 (S,)."""
    other = {run.seed: value(run) for run in second}
    both = [(value(run), other[run.seed]) for run in first if run.seed in other]
    return np.array([mine - theirs for mine, theirs in both if mine is not None and theirs is not None], dtype=float)


def says(gap: np.ndarray, show: Callable[[float], str] = points) -> str:
    """The mean of a difference over seeds, with its interval by Student's t."""
    if len(gap) < 2:
        return f"{show(float(gap.mean()))} (one seed)"
    from scipy.stats import t

    half = t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap))
    return (
        f"{show(float(gap.mean()))} (95% interval {show(float(gap.mean() - half))} to {show(float(gap.mean() + half))})"
    )
