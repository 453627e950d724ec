"""Values of several seeds: an example's value is its mean over them, before users (or examples) are resampled.

The interval is thus that of the mean of these trained models over other test users; the spread over seeds stands beside
it and is no part of it.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from minionerec.metrics.ranking import Estimate, estimate
from minionerec.metrics.statistics import Clusters, PairedDifference, paired_differences


def by_row(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each row's mean over the seeds, float64 (R,), of values (S, R)."""
    return {name: table.mean(0) for name, table in values.items()}


def estimate_seeds(
    values: Mapping[str, np.ndarray], seed: int = 0, resamples: int = 2000, clusters: Clusters = None
) -> dict[str, Estimate]:
    """Mean, 95 % interval and, of several seeds, the standard deviation of their means.

    Args:
        values: Metric to float (S, R), the value of each seed and row; not all need the same number of seeds.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.
        clusters: The user of each row, where users are drawn with all of their examples.
    """
    found = estimate(by_row(values), seed, resamples, clusters)
    return {
        name: replace(found[name], sd=float(table.mean(1).std(ddof=1))) if len(table) > 1 else found[name]
        for name, table in values.items()
    }


def seed_differences(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    seed: int = 0,
    resamples: int = 2000,
    clusters: Clusters = None,
) -> dict[str, PairedDifference]:
    """`paired_differences` of each row's means over the seeds; values are (S, R), each side with its own seeds."""
    return paired_differences(by_row(first), by_row(second), seed, resamples, clusters=clusters)
