"""Numbers that others published, kept as data beside this module, for comparison in reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minionerec.core.errors import ConfigError
from minionerec.core.settings import read_yaml

PLACE = Path(__file__).with_name("reference")


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
    """

    name: str
    group: str
    metrics: Mapping[str, float]
    compare: tuple[str, ...] = ()
    independent: Mapping[int, list[float]] = field(default_factory=dict)
    cumulative: Mapping[int, list[float]] = field(default_factory=dict)
    dropoff: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reference:
    """A published set of results on one data set.

    Attributes:
        name: Key by which reports ask for it.
        title: What it is.
        source: Where the numbers come from and under which conditions they were obtained.
        headline: Name of the row that every one of our sets is compared with, besides its counterpart.
        rows: All lines.
    """

    name: str
    title: str
    source: str
    headline: str
    rows: tuple[ReferenceRow, ...]

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
    """Read one reference by name.

    Raises:
        ConfigError: If there is none of that name.
    """
    content: dict[str, Any] = read_yaml(reference_path(name))
    rows = tuple(
        ReferenceRow(
            name=row["name"],
            group=row["group"],
            metrics={metric: float(value) for metric, value in row["metrics"].items()},
            compare=tuple(row.get("compare", ())),
            independent=row.get("independent", {}),
            cumulative=row.get("cumulative", {}),
            dropoff=tuple(row.get("dropoff", ())),
        )
        for row in content["rows"]
    )
    return Reference(name, content["title"], content["source"], content["headline"], rows)
