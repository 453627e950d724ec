"""Metrics by kind of row: of several recommenders, with intervals and paired differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minionerec.metrics.ranking import Estimate
from minionerec.metrics.seeds import estimate_seeds, seed_differences
from minionerec.metrics.statistics import Clusters, PairedDifference, count_clusters
from minionerec.metrics.tables import MISSING, format_estimate, text_table

FEWEST = 30  # examples of a kind, and users where these are resampled, that anything is said of

Values = Mapping[str, Mapping[str, np.ndarray]]
"""Recommender to metric to the value of each seed and row, float64 (S, R)."""


@dataclass(frozen=True)
class Kind:
    """One kind of row.

    Attributes:
        group: What the rows were told apart by, e.g. "time".
        name: Its name in the group, e.g. "later".
        where: bool (R,), which rows are of it.
    """

    group: str
    name: str
    where: np.ndarray

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return int(self.where.sum())

    @property
    def share(self) -> float:
        """Its part of all rows."""
        return float(self.where.mean())

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: group, kind, rows and share."""
        return {"group": self.group, "kind": self.name, "rows": self.rows, "share": self.share}


@dataclass(frozen=True)
class SliceResult:
    """What recommenders reach on the rows of one kind; nothing is said where `FEWEST` could not be drawn from.

    Attributes:
        kind: The kind.
        estimates: Recommender to metric to its mean on these rows.
        against: The same for the paired difference from the first recommender, which has none.
    """

    kind: Kind
    estimates: Mapping[str, Mapping[str, Estimate]]
    against: Mapping[str, Mapping[str, PairedDifference]]

    def to_json(self, recommender: str) -> dict[str, Any]:
        """One recommender's figures: metrics as [mean, sd, low, high], differences as [difference, low, high, p]."""
        metrics, against = self.estimates.get(recommender, {}), self.against.get(recommender, {})
        return {
            **self.kind.to_json(),
            "metrics": {name: [e.mean, e.sd, e.low, e.high] for name, e in metrics.items()},
            "against": {name: list(found) for name, found in against.items()},
        }


def list_kinds(kinds: Mapping[str, Mapping[str, np.ndarray]]) -> list[Kind]:
    """The kinds that have rows, of the groups that tell rows apart, in order."""
    found = [[Kind(group, name, where) for name, where in of.items() if where.any()] for group, of in kinds.items()]
    return [kind for of in found if len(of) > 1 for kind in of]


def alike(kinds: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, str]:
    """Of the groups that do not tell rows apart, the one kind that all rows are of; group to kind."""
    return {group: name for group, of in kinds.items() for name, where in of.items() if where.all()}


def measure_kinds(
    kinds: Sequence[Kind], values: Values, seed: int = 0, resamples: int = 2000, clusters: Clusters = None
) -> list[SliceResult]:
    """The metrics of several recommenders by kind of row; the others are compared with the first.

    Args:
        kinds: Kinds of the R rows.
        values: The values of each recommender, seed and row; all are of the same metrics.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.
        clusters: The user of each row, where users are drawn with all of their examples.
    """
    return [_part(kind, values, seed, resamples, clusters) for kind in kinds]


def _part(kind: Kind, values: Values, seed: int, resamples: int, clusters: Clusters) -> SliceResult:
    own = None if clusters is None else np.asarray(clusters)[kind.where]
    if count_clusters(own, kind.rows) < FEWEST:
        return SliceResult(kind, {}, {})
    first, *others = values
    keys = {(name, metric): f"{name} {metric}" for name, of in values.items() for metric in of}
    here = {key: values[name][metric][:, kind.where] for (name, metric), key in keys.items()}
    found = estimate_seeds(here, seed, resamples, own)  # of all at once, for one drawing of rows
    beside = {keys[name, metric]: here[keys[first, metric]] for name in others for metric in values[name]}
    gaps = seed_differences({key: here[key] for key in beside}, beside, seed, resamples, own)
    return SliceResult(
        kind,
        {name: {metric: found[keys[name, metric]] for metric in of} for name, of in values.items()},
        {name: {metric: gaps[keys[name, metric]] for metric in values[name]} for name in others},
    )


def format_parts(parts: Sequence[SliceResult], metric: str, names: Sequence[str]) -> str:
    """A text table: a row a kind, a column a recommender, each mean with its interval."""
    rows = []
    before = ""
    for part in parts:
        kind = part.kind
        label = kind.group if kind.group != before else ""
        cells = [format_estimate(part.estimates.get(name, {}).get(metric)) for name in names]
        rows.append([f"{label:<8} {kind.name}", f"{kind.rows:,}", f"{100 * kind.share:.1f} %", *cells])
        before = kind.group
    note = f"\n{MISSING}: fewer than {FEWEST} rows or users" if any(not part.estimates for part in parts) else ""
    return text_table([f"{metric} by kind of row", "rows", "share", *names], rows) + note
