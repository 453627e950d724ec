"""Published results for comparison in reports, stored as YAML next to this module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.errors import ConfigError
from minionerec.core.values import read_yaml
from minionerec.metrics.statistics import Estimate

PLACE = Path(__file__).with_name("published")
UNKNOWN = "unknown"
"""The value of a setting that its source does not state."""
DOUBTFUL = "✗"
"""The mark of a doubtful cell."""
SETTINGS = {
    "backbone": "Backbone",
    "protocol": "Split and protocol",
    "sids": "Semantic IDs",
    "hits": "Hit",
    "decoder": "Decoder",
    "beams": "Beams",
    "epochs": "Maximum epochs",
    "learning_rate": "Learning rate",
    "schedule": "Learning rate after warm-up",
    "batch": "Examples per step",
    "rl_epochs": "RL: epochs",
    "rl_learning_rate": "RL: learning rate",
    "rl_batch": "RL: completions per step",
    "rl_generations": "RL: rollouts per prompt",
    "rl_beta": "RL: weight of the KL term",
    "rl_reward": "RL: reward",
}
"""The settings that published figures are compared by, with their labels on pages."""


@dataclass(frozen=True)
class ReferenceRow:
    """One published result.

    Attributes:
        name: Name in the source.
        group: Table of the source, e.g. "replication" or "paper".
        metrics: Metric name ("HR@10") → value.
        compare: Names of our recommenders to compare with this result, besides `name`.
        independent: K → hit rates by level, followed by the exact one; empty if the source has none.
        cumulative: K → cumulative accuracy by level; empty if the source has none.
        dropoff: Drop-off at K = 1, as shares; empty if the source has none.
        doubtful: Metrics that no ranking can have together with the others of the row, as named in the file.
    """

    name: str
    group: str
    metrics: Mapping[str, float]
    compare: tuple[str, ...] = ()
    independent: Mapping[int, list[float]] = field(default_factory=dict)
    cumulative: Mapping[int, list[float]] = field(default_factory=dict)
    dropoff: tuple[float, ...] = ()
    doubtful: tuple[str, ...] = ()

    def shown(self, metric: str) -> str:
        """A metric with four digits, marked if doubtful."""
        return f"{self.metrics[metric]:.4f}" + (f" {DOUBTFUL}" if metric in self.doubtful else "")


@dataclass(frozen=True)
class Reference:
    """A published set of results on one data set.

    Attributes:
        name: Key of the setting `reference`.
        title: Title.
        source: Source of the numbers and the conditions under which they were obtained.
        headline: Name of the result that all of our recommenders are compared with, besides their counterparts.
        rows: All results.
        settings: Group → settings, by the names of `SETTINGS`; missing ones are "unknown".
    """

    name: str
    title: str
    source: str
    headline: str
    rows: tuple[ReferenceRow, ...]
    settings: Mapping[str, Mapping[str, str | int | float]] = field(default_factory=dict)

    @property
    def doubtful(self) -> list[tuple[ReferenceRow, str]]:
        """The doubtful cells, as (row, metric)."""
        return [(row, metric) for row in self.rows for metric in row.doubtful]

    def best(self, metric: str) -> float | None:
        """The highest published value of a metric, without doubtful ones; None without any."""
        known = (row.metrics[metric] for row in self.rows if metric in row.metrics and metric not in row.doubtful)
        return max(known, default=None)

    def own_counterparts(self, name: str) -> list[ReferenceRow]:
        """The results with the name or alias of one of our recommenders."""
        return [row for row in self.rows if name.lower() in (alias.lower() for alias in (row.name, *row.compare))]

    def counterparts(self, name: str) -> list[ReferenceRow]:
        """The results to compare one of our recommenders with: its own counterparts, then the headline result."""
        results = self.own_counterparts(name)
        return results + [row for row in self.rows if row.name == self.headline and row not in results]


def reference_path(name: str) -> Path:
    """The file of one reference.

    Raises:
        ConfigError: If the name is unknown; the message lists the known ones.
    """
    path = PLACE / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PLACE.glob("*.yaml")))
        raise ConfigError(
            f"unknown reference {name!r}; known references: {known}. Set reference to one of them or to null."
        )
    return path


def load_reference(name: str) -> Reference:
    """Read one reference by name.

    Raises:
        ConfigError: If the name is unknown.
    """
    path = reference_path(name)
    content: dict[str, Any] = read_yaml(path)
    rows = tuple(
        ReferenceRow(
            name=row["name"],
            group=row["group"],
            metrics={metric: float(value) for metric, value in row["metrics"].items()},
            compare=tuple(row.get("compare", ())),
            independent=row.get("independent", {}),
            cumulative=row.get("cumulative", {}),
            dropoff=tuple(row.get("dropoff", ())),
            doubtful=tuple(row.get("doubtful", ())),
        )
        for row in content["rows"]
    )
    settings = {
        group: {key: values.get(key, UNKNOWN) for key in SETTINGS} for group, values in content["settings"].items()
    }
    return Reference(path.stem, content["title"], content["source"], content["headline"], rows, settings)


HITS = {"sid": "the SID of the target", "item": "the target itself"}
"""A reading → the value of the setting `hits`."""


@dataclass(frozen=True)
class PublishedGap:
    """One of our metrics with the published one.

    Attributes:
        metric: Name of the metric.
        paper: Published value.
        ours: Our value, with its 95 % interval.
        doubtful: Whether the published value is doubtful.
    """

    metric: str
    paper: float
    ours: Estimate
    doubtful: bool = False

    @property
    def gap(self) -> float:
        """Our value minus the published one."""
        return self.ours.mean - self.paper

    @property
    def relative(self) -> float | None:
        """Relative difference from the published value; None if that is 0."""
        return self.gap / self.paper if self.paper else None

    @property
    def inside(self) -> bool:
        """Whether the published value is within our interval."""
        return self.ours.low <= self.paper <= self.ours.high

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object; numbers are not rounded."""
        content = {"metric": self.metric, "paper": self.paper, "ours": self.ours.mean, "gap": self.gap}
        return {**content, "relative": self.relative, "inside_interval": self.inside, "doubtful": self.doubtful}


def spread(gaps: Sequence[PublishedGap]) -> tuple[float, float] | None:
    """Smallest and largest relative gap, without doubtful values; None if there is none."""
    known = [gap.relative for gap in gaps if gap.relative is not None and not gap.doubtful]
    return (min(known), max(known)) if known else None
