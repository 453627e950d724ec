"""Bootstrap intervals and paired differences of metrics, by example or by cluster (user).

Examples of one user are not independent, so users can be resampled with all of their examples (the cluster bootstrap:
Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). The mean of a resample is the sum over
its examples divided by their number, which varies with the drawn users: the ratio estimator of cluster sampling
(Cochran, Sampling Techniques, 1977, chapter 9A).
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
"""Cluster of each of R examples, such as its user: hashable values, (R,). None: every example is a cluster."""


@dataclass(frozen=True)
class Estimate:
    """Mean over examples with a 95 % bootstrap interval.

    Attributes:
        mean: Mean of the per-example values.
        low: Lower end of the interval.
        high: Upper end.
        sd: Sample standard deviation of the means of several seeds; None for one seed.
    """

    mean: float
    low: float
    high: float
    sd: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object; numbers are not rounded."""
        return {"mean": self.mean, "sd": self.sd, "interval": [self.low, self.high]}


class PairedDifference(NamedTuple):
    """Difference of two systems on the same examples.

    Attributes:
        difference: Mean of the first minus mean of the second.
        low: Lower end of the 95 % interval.
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
        """1 if the interval is above 0, -1 if it is below, 0 if it contains 0."""
        return int(self.low > 0) - int(self.high < 0)

    def opposite(self) -> "PairedDifference":
        """The second system minus the first."""
        return PairedDifference(0.0 - self.difference, 0.0 - self.high, 0.0 - self.low, self.p)


def bootstrap_means(values: np.ndarray, seed: int = 0, resamples: int = 2000, clusters: Clusters = None) -> np.ndarray:
    """Means of examples drawn with replacement, or of clusters drawn with all of their examples.

    The draws depend only on the seed and the number of clusters, so all columns, and calls with the same clusters, use
    the same resamples. Clusters are numbered by their first example, so clusters of one example each give the same
    bytes as none. Memory is bounded by about 2 million draws.

    Args:
        values: float (R, M) or (R,), one row per example and one column per metric.
        seed: Seed of the draws.
        resamples: Number of resamples, S.
        clusters: Cluster of each example, U distinct ones.

    Returns:
        float64 (S, M), or (S,) if `values` has one dimension.

    Raises:
        DataError: If there is no example, or the number of clusters differs from that of examples.

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
        draws = rng.integers(0, count, size=(size, count)) + np.arange(size)[:, None] * count
        times = np.bincount(draws.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)  # (S', U)
        examples = np.einsum("su,u->s", times, sizes)  # whole numbers, R where all clusters are of one size
        # einsum rather than a matrix product, since its order of summation does not depend on the number of threads.
        means[start : start + size] = np.einsum("su,mu->sm", times, columns) / examples[:, None]
    return means.reshape((resamples, *table.shape[1:]))


def count_clusters(clusters: Clusters, examples: int) -> int:
    """Number of units that a bootstrap draws: distinct clusters, or examples without clusters."""
    return examples if clusters is None else len(pd.unique(np.asarray(clusters)))


def _cluster_sums(columns: np.ndarray, clusters: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of columns (M, R) over each cluster, (M, U), and the number of examples of each, (U,), as floats."""
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
        clusters: As in `bootstrap_means`.

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

    With several seeds, the value of an example is its mean over them. The interval describes the sampling of test users
    for these trained models and does not include the spread over seeds.

    Args:
        values: Metric → float (R,), or float (S, R) for S seeds; the number of seeds may vary.
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: As in `bootstrap_means`.
    """
    if not values:
        return {}
    table = np.stack([_over_seeds(metric_values) for metric_values in values.values()], axis=1)  # (R, M)
    low, high = bootstrap_interval(table, seed, resamples, clusters=clusters)
    means = table.mean(axis=0)
    sds = [float(v.mean(1).std(ddof=1)) if np.ndim(v) == 2 and len(v) > 1 else None for v in values.values()]
    return {key: Estimate(float(means[i]), float(low[i]), float(high[i]), sds[i]) for i, key in enumerate(values)}


def _over_seeds(values: np.ndarray) -> np.ndarray:
    """Mean over seeds of each example's values: (S, R) or (R,) to float64 (R,)."""
    array = np.asarray(values, dtype=np.float64)
    return array.mean(0) if array.ndim == 2 else array


def paired_differences(
    first: Mapping[Name, np.ndarray],
    second: Mapping[Name, np.ndarray],
    seed: int = 0,
    resamples: int = 2000,
    clusters: Clusters = None,
) -> dict[Name, PairedDifference]:
    """Differences of two systems' means by metric, on the same resamples; seeds are averaged first.

    Args:
        first: Metric → float (R,), or float (S, R) for S seeds, of the first system.
        second: Metric → values of the second system; the number of seeds may differ. Metrics of only one system are
            left out.
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: As in `bootstrap_means`.

    Returns:
        Metric → difference, 95 % interval and two-sided p-value.

    Raises:
        DataError: If the numbers of examples differ, or as in `bootstrap_means`.
    """
    names = [name for name in first if name in second]
    pairs = [(_over_seeds(first[name]), _over_seeds(second[name])) for name in names]
    for first_values, second_values in pairs:
        if first_values.shape != second_values.shape:
            raise DataError(
                f"paired examples differ: {first_values.shape} against {second_values.shape}. Evaluate both on the "
                "same split."
            )
    if not names:
        return {}
    gaps = np.stack([first_values - second_values for first_values, second_values in pairs], axis=1)
    means = bootstrap_means(gaps, seed, resamples, clusters)  # (S, M)
    low, high = np.quantile(means, _ENDS, axis=0)
    tails = np.minimum((means <= 0).sum(axis=0), (means >= 0).sum(axis=0))
    p = np.minimum(1.0, 2 * (tails + 1) / (resamples + 1))
    return {
        name: PairedDifference(float(gap), float(low[i]), float(high[i]), float(p[i]))
        for i, (name, gap) in enumerate(zip(names, gaps.mean(axis=0), strict=True))
    }
