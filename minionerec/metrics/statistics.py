"""Sampling error of metrics of examples: bootstrap intervals, alone and paired, by example or by cluster (user).

Examples of one user are not independent, so where users have several, whole users are drawn with all of their examples
(the cluster bootstrap: Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). The mean of a
sample is the sum over its examples by their number, which differs from sample to sample where users have different
numbers of examples: the ratio estimator of cluster sampling (Cochran, Sampling Techniques, 1977, chapter 9A).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from minionerec.core.errors import DataError

_DRAWS_AT_ONCE = 2_000_000
_ENDS = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # of a 95 % interval

Name = TypeVar("Name", bound=Hashable)

Clusters = Sequence[Any] | np.ndarray | None
"""The cluster of each of R examples, such as its user: hashable values, (R,). None: each example by itself."""


@dataclass(frozen=True)
class Estimate:
    """A mean over examples with its 95 % bootstrap interval, of users drawn with all of their examples or of examples.

    Attributes:
        mean: Mean of the per-example values.
        low: Lower end of the interval.
        high: Upper end.
        sd: Sample standard deviation of the means of several seeds; None of one.
    """

    mean: float
    low: float
    high: float
    sd: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object; numbers are not rounded."""
        return {"mean": self.mean, "sd": self.sd, "interval": [self.low, self.high]}


class PairedDifference(NamedTuple):
    """How far two systems differ on the same examples.

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

    @property
    def verdict(self) -> int:
        """1 where the first is ahead, -1 where it is behind, 0 where the interval contains 0."""
        return int(self.low > 0) - int(self.high < 0)

    def opposite(self) -> "PairedDifference":
        """The second system minus the first."""
        return PairedDifference(0.0 - self.difference, 0.0 - self.high, 0.0 - self.low, self.p)


def bootstrap_means(values: np.ndarray, seed: int = 0, resamples: int = 2000, clusters: Clusters = None) -> np.ndarray:
    """Means of examples drawn with replacement, or of clusters drawn with all of their examples.

    The draws depend on the seed and the number of clusters alone, so columns given together, or in separate calls with
    the same clusters, see the same resamples. Clusters are numbered by their first example, so that clusters of one
    example each give the same bytes as none. Memory stays near 2 million draws, whatever the number of examples.

    Args:
        values: float (R, M) or (R,): a row an example, a column a metric.
        seed: Seed of the draws.
        resamples: Number of resamples, S.
        clusters: The cluster of each example, U distinct ones.

    Returns:
        float64 (S, M), or (S,) where `values` has one dimension.

    Raises:
        DataError: If there is no example, or not one cluster for each.

    Example:
        >>> bootstrap_means(np.array([0.0, 1.0, 1.0, 1.0]), resamples=3, clusters=["a", "b", "b", "b"]).tolist()
        [1.0, 0.75, 0.0]
    """
    table = np.asarray(values, dtype=np.float64)
    if len(table) == 0:
        raise DataError("a bootstrap needs at least one example, got 0. Evaluate a split that holds examples.")
    columns = table.reshape(len(table), -1).T  # (M, R)
    sizes = np.ones(len(table))
    if clusters is not None:
        columns, sizes = _cluster_sums(columns, clusters)  # (M, U), (U,)
    columns, count = np.ascontiguousarray(columns), len(sizes)
    rng = np.random.default_rng(seed)
    at_once = max(1, _DRAWS_AT_ONCE // count)
    means = np.empty((resamples, len(columns)))
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = rng.integers(0, count, size=(size, count)) + np.arange(size)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)  # (S', U)
        examples = np.einsum("su,u->s", times, sizes)  # whole numbers, R where all clusters are of one size
        # einsum, not a matrix product: its order of summation does not hang on the number of threads.
        means[start : start + size] = np.einsum("su,mu->sm", times, columns) / examples[:, None]
    return means.reshape((resamples, *table.shape[1:]))


def count_clusters(clusters: Clusters, examples: int) -> int:
    """The number of units that a bootstrap draws: of distinct clusters, or without any of examples."""
    return examples if clusters is None else len(pd.unique(np.asarray(clusters)))


def _cluster_sums(columns: np.ndarray, clusters: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of columns (M, R) over each cluster, (M, U), and the number of its examples, (U,), as floats."""
    examples = columns.shape[1]
    if len(clusters) != examples:
        raise DataError(
            f"{len(clusters)} clusters for {examples} examples; expected one each. Give the user of every example."
        )
    numbers, _ = pd.factorize(np.asarray(clusters))
    count = int(numbers.max()) + 1
    sums = np.stack([np.bincount(numbers, column, count) for column in columns])
    return sums, np.bincount(numbers, minlength=count).astype(np.float64)


def bootstrap_interval(
    values: np.ndarray, seed: int = 0, resamples: int = 2000, clusters: Clusters = None
) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval of the mean over examples.

    Args:
        values: float (R,) or (R, M), values of one metric or of several for each example.
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: As of `bootstrap_means`.

    Returns:
        Lower and upper end: each a scalar array, or float64 (M,).

    Raises:
        DataError: As of `bootstrap_means`.

    Example:
        >>> low, high = bootstrap_interval(np.array([0.0, 1.0] * 50))
        >>> bool(0.35 < low < 0.45 and 0.55 < high < 0.65)
        True
    """
    low, high = np.quantile(bootstrap_means(values, seed, resamples, clusters), _ENDS, axis=0)
    return low, high


def estimate(
    values: Mapping[Name, np.ndarray], seed: int = 0, resamples: int = 2000, clusters: Clusters = None
) -> dict[Name, Estimate]:
    """Mean and 95 % interval of every metric, all from the same resamples; see `bootstrap_means`.

    Of several seeds the value of an example is its mean over them, before examples are drawn: the interval is that of
    the mean of these trained models over other test users, and the spread over seeds is no part of it.

    Args:
        values: Metric to float (R,), or to float (S, R) of S seeds; not all need the same number of seeds.
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: As of `bootstrap_means`.
    """
    if not values:
        return {}
    table = np.stack([_over_seeds(found) for found in values.values()], axis=1)  # (R, M)
    low, high = bootstrap_interval(table, seed, resamples, clusters=clusters)
    means = table.mean(axis=0)
    sds = [float(v.mean(1).std(ddof=1)) if np.ndim(v) == 2 and len(v) > 1 else None for v in values.values()]
    return {key: Estimate(float(means[i]), float(low[i]), float(high[i]), sds[i]) for i, key in enumerate(values)}


def _over_seeds(values: np.ndarray) -> np.ndarray:
    """The mean over seeds of each example's values, float64 (R,), of values (S, R) or (R,)."""
    found = np.asarray(values, dtype=np.float64)
    return found.mean(0) if found.ndim == 2 else found


def paired_differences(
    first: Mapping[Name, np.ndarray],
    second: Mapping[Name, np.ndarray],
    seed: int = 0,
    resamples: int = 2000,
    clusters: Clusters = None,
) -> dict[Name, PairedDifference]:
    """Differences of two systems' means by metric, all on the same resamples; of several seeds their means are taken.

    Args:
        first: Metric to float (R,), or (S, R) of S seeds, of the first system.
        second: The same of the second, which may have another number of seeds; metrics of one alone are left out.
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: As of `bootstrap_means`.

    Returns:
        Of each metric the difference, its 95 % interval and its two-sided p-value.

    Raises:
        DataError: If the two are not over the same number of examples, or over none; or as of `bootstrap_means`.
    """
    names = [name for name in first if name in second]
    pairs = [(_over_seeds(first[name]), _over_seeds(second[name])) for name in names]
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            raise DataError(
                f"paired examples differ: {ours.shape} against {theirs.shape}. Evaluate both on the same split."
            )
    if not names:
        return {}
    gaps = np.stack([ours - theirs for ours, theirs in pairs], axis=1)
    means = bootstrap_means(gaps, seed, resamples, clusters)  # (S, M)
    low, high = np.quantile(means, _ENDS, axis=0)
    tails = np.minimum((means <= 0).sum(axis=0), (means >= 0).sum(axis=0))
    p = np.minimum(1.0, 2 * (tails + 1) / (resamples + 1))
    return {
        name: PairedDifference(float(gap), float(low[i]), float(high[i]), float(p[i]))
        for i, (name, gap) in enumerate(zip(names, gaps.mean(axis=0), strict=True))
    }
