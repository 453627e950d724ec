"""Sampling error of per-row metrics: bootstrap intervals, alone and paired."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from minionerec.core.errors import DataError

_DRAWS_AT_ONCE = 2_000_000


class PairedDifference(NamedTuple):
    """How far two systems differ on the same rows.

    Attributes:
        difference: Mean of the first minus mean of the second.
        low: Lower end of the interval of that difference.
        high: Upper end.
        p: Two-sided bootstrap p-value: twice the smaller share of resamples in which the difference is at most, or at
            least, zero; never above 1 and never below 2 / (resamples + 1).
    """

    difference: float
    low: float
    high: float
    p: float


def bootstrap_means(values: np.ndarray, seed: int = 0, resamples: int = 2000) -> np.ndarray:
    """Means of rows drawn with replacement.

    The draws depend on the seed and the number of rows alone, so columns given together, or in separate calls of equal
    length, see the same resamples. Memory stays near 2 million draws, whatever the number of rows.

    Args:
        values: float (R, M) or (R,): one row per evaluated row, one column per metric.
        seed: Seed of the draws.
        resamples: Number of resamples, S.

    Returns:
        float64 (S, M), or (S,) where `values` has one dimension.

    Raises:
        DataError: If there is no row.
    """
    table = np.asarray(values, dtype=np.float64)
    if len(table) == 0:
        raise DataError("a bootstrap needs at least one row, got 0. Evaluate a split that holds rows.")
    rows = len(table)
    columns = np.ascontiguousarray(table.reshape(rows, -1).T)  # (M, R)
    rng = np.random.default_rng(seed)
    at_once = max(1, _DRAWS_AT_ONCE // rows)
    means = np.empty((resamples, len(columns)))
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = rng.integers(0, rows, size=(size, rows)) + np.arange(size)[:, None] * rows
        times = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)  # (S', R)
        # einsum, not a matrix product: its order of summation does not hang on the number of threads.
        means[start : start + size] = np.einsum("sr,mr->sm", times.astype(np.float64), columns) / rows
    return means.reshape((resamples, *table.shape[1:]))


def bootstrap_interval(
    values: np.ndarray, seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over rows.

    Args:
        values: float (R,) or (R, M), per-row values of one metric or of several.
        seed: Seed of the draws.
        resamples: Number of resamples.
        level: Coverage of the interval, between 0 and 1.

    Returns:
        Lower and upper end: each a scalar array, or float64 (M,).

    Raises:
        DataError: If there is no row.

    Example:
        >>> low, high = bootstrap_interval(np.array([0.0, 1.0] * 50))
        >>> bool(0.35 < low < 0.45 and 0.55 < high < 0.65)
        True
    """
    means = bootstrap_means(values, seed, resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> PairedDifference:
    """Difference of two systems' means, with the rows resampled together.

    Args:
        first: float (R,), per-row values of one metric for the first system.
        second: float (R,), the same metric and rows for the second.
        seed: Seed of the draws.
        resamples: Number of resamples.
        level: Coverage of the interval.

    Returns:
        The difference, its interval and its two-sided p-value.

    Raises:
        DataError: If the two are not over the same number of rows, or over none.
    """
    return paired_differences({"": first}, {"": second}, seed, resamples, level)[""]


def paired_differences(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> dict[str, PairedDifference]:
    """`paired_bootstrap` for several metrics at once, from the same resamples.

    Args:
        first: Metric name to float (R,), for the first system.
        second: The same for the second; metrics that only one has are left out.
        seed: Seed of the draws.
        resamples: Number of resamples.
        level: Coverage of the intervals.

    Raises:
        DataError: If the two are not over the same number of rows, or over none.
    """
    names = [name for name in first if name in second]
    for name in names:
        ours, theirs = np.shape(first[name]), np.shape(second[name])
        if ours != theirs:
            raise DataError(f"paired rows differ: {ours} against {theirs}. Evaluate both on the same split.")
    if not names:
        return {}
    gaps = np.stack([np.asarray(first[n], np.float64) - np.asarray(second[n], np.float64) for n in names], axis=1)
    means = bootstrap_means(gaps, seed, resamples)  # (S, M)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    tails = np.minimum((means <= 0).sum(axis=0), (means >= 0).sum(axis=0))
    p = np.minimum(1.0, 2 * (tails + 1) / (resamples + 1))
    return {
        name: PairedDifference(float(gap), float(low[i]), float(high[i]), float(p[i]))
        for i, (name, gap) in enumerate(zip(names, gaps.mean(axis=0), strict=True))
    }
