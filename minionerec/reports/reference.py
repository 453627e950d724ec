"""Numbers that others published, kept as data beside this module, for comparison in reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.errors import ConfigError
from minionerec.core.settings import read_yaml
from minionerec.reports.consistency import doubtful_cells

PLACE = Path(__file__).with_name("reference")
UNKNOWN = "unknown"
"""What stands for a setting that its source does not tell."""
DOUBTFUL = "✗"
"""The mark of a cell that cannot be right."""
SETTINGS = {
    "backbone": "Backbone",
    "protocol": "Split and protocol",
    "sids": "Semantic IDs",
    "hits": "A hit is",
    "decoder": "Decoder",
    "beams": "Beams",
    "epochs": "Epochs, at most",
    "learning_rate": "Learning rate",
    "schedule": "Learning rate after warm-up",
    "batch": "Examples a step",
    "rl_epochs": "RL: epochs",
    "rl_learning_rate": "RL: learning rate",
    "rl_batch": "RL: completions a step",
    "rl_generations": "RL: rollouts of a prompt",
    "rl_beta": "RL: weight of the KL term",
    "rl_reward": "RL: reward",
}
"""The settings that published figures are compared by, and what pages call them."""


@dataclass(frozen=True)
class ReferenceRow:
    """One published line of metrics.

    Attributes:
        name: Its name in the source.
        group: Which table it stands in, e.g. "replication" or "paper".
        metrics: Metric name ("HR@10") to value.
        compare: Names of our prediction sets that it is the counterpart of, besides its own name.
        independent: K to the hit rates by level, last the exact one; empty where the source has none.
        cumulative: K to the cumulative accuracy by level; empty where the source has none.
        dropoff: The drop-off at K = 1, as shares; empty where the source has none.
        doubtful: Metrics that cannot be right beside the others (`minionerec.reports.consistency`).
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
        """A metric as pages show it: four digits, marked where it cannot be right."""
        return f"{self.metrics[metric]:.4f}" + (f" {DOUBTFUL}" if metric in self.doubtful else "")


@dataclass(frozen=True)
class Reference:
    """A published set of results on one data set.

    Attributes:
        name: Key by which reports ask for it.
        title: What it is.
        source: Where the numbers come from and under which conditions they were obtained.
        headline: Name of the row that every one of our sets is compared with, besides its counterpart.
        rows: All lines.
        settings: Group to its settings, by the names of `SETTINGS`; those that are not told are "unknown".
    """

    name: str
    title: str
    source: str
    headline: str
    rows: tuple[ReferenceRow, ...]
    settings: Mapping[str, Mapping[str, str | int | float]] = field(default_factory=dict)

    @property
    def doubtful(self) -> list[tuple[ReferenceRow, str]]:
        """The cells that cannot be right, as (row, metric)."""
        return [(row, metric) for row in self.rows for metric in row.doubtful]

    def best(self, metric: str) -> float | None:
        """The highest published value of a metric that can be right; None without one."""
        known = (row.metrics[metric] for row in self.rows if metric in row.metrics and metric not in row.doubtful)
        return max(known, default=None)

    def own_counterparts(self, name: str) -> list[ReferenceRow]:
        """The rows of the same name or alias as one of our sets."""
        return [row for row in self.rows if name.lower() in (alias.lower() for alias in (row.name, *row.compare))]

    def counterparts(self, name: str) -> list[ReferenceRow]:
        """The rows to compare one of our sets with: its own counterparts, then the headline row."""
        own = self.own_counterparts(name)
        return own + [row for row in self.rows if row.name == self.headline and row not in own]


def reference_path(name: str) -> Path:
    """The file of one reference.

    Raises:
        ConfigError: If there is none; the message lists those there are.
    """
    path = PLACE / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PLACE.glob("*.yaml")))
        raise ConfigError(
            f"unknown reference {name!r}; known references: {known}. Set reference to one of them or to null."
        )
    return path


def load_reference(name: str) -> Reference:
    """Read one reference by name; cells that cannot be right are found and marked.

    Raises:
        ConfigError: If there is none of that name.
    """
    return read_reference(reference_path(name))


def read_reference(path: Path) -> Reference:
    """Read the file of a reference.

    Raises:
        ConfigError: If it is no YAML.
    """
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
            doubtful=tuple(doubtful_cells(row["metrics"], row.get("doubtful", ()))),
        )
        for row in content["rows"]
    )
    settings = {
        group: {key: values.get(key, UNKNOWN) for key in SETTINGS} for group, values in content["settings"].items()
    }
    return Reference(path.stem, content["title"], content["source"], content["headline"], rows, settings)
