"""Named recommenders, each run with one seed or several, as metrics, intervals and paired differences.

Comparisons and reports both read runs here. A row's value is its mean over the seeds, before users are resampled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import is_artefact, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.metrics.predictions import labelled
from minionerec.metrics.ranked import FILE, KIND, Ranked, runs_at
from minionerec.metrics.ranking import Estimate, ranking_metrics
from minionerec.metrics.seeds import estimate_seeds, seed_differences
from minionerec.metrics.statistics import Clusters, PairedDifference, count_clusters
from minionerec.reports.config import USERS

_ABOUT = ("parameters", "recipe")
NOT_COMPARABLE = "given more than the history: not comparable with published rows"
"""The line that stands, beside published figures, above recommenders that were given what no published one was."""


@dataclass(frozen=True)
class System:
    """A recommender's ranks on the rows of one split.

    Attributes:
        name: Display name, as tables and sentences show it: with what it was given beyond the histories.
        runs: The ranks of each seed's run; all are of the same R rows.
        about: Parameters and recipe, where its manifests say so.
    """

    name: str
    runs: Sequence[Ranked]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int | None:
        """Candidates of the shortest lists that ranks were found in; None where the whole catalogue was ranked."""
        return min((run.width for run in self.runs if run.width is not None), default=None)

    @property
    def targets(self) -> np.ndarray:
        """Item index of each row's target: int32 (R,)."""
        return self.runs[0].targets

    @property
    def given(self) -> tuple[str, ...]:
        """What it was given beyond the histories, in any of its runs; nothing if empty."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.given))

    @property
    def users(self) -> Sequence[str]:
        """The user of each row."""
        return self.runs[0].users

    def values(self, level: str, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        """Metric name to the value of each seed and row, float64 (S, R).

        Raises:
            ArtefactError: If there are no ranks at this level.
            ConfigError: If a metric looks further than the lists go.
        """
        if not all(level in run.ranks for run in self.runs):
            raise ArtefactError(
                f"{self.name}: has no ranks at level {level}. Train with --sids, or compare at level item."
            )
        found = {}
        for name in metrics:
            k = int(name.partition("@")[2])
            if self.width is not None and k > self.width:
                raise ConfigError(f"{name} needs lists of {k}, but those of {self.name} hold {self.width}.")
            found[name] = np.stack([ranking_metrics(run.ranks[level], [k])[name] for run in self.runs])
        return found


def metrics_at(ks: Sequence[int], every_mrr: bool) -> list[str]:
    """Names of the metrics at some cut-offs, in the order of tables; MRR at the largest alone, or at every one."""
    return list(ranking_metrics(np.zeros(0, np.int64), ks, every_mrr=every_mrr))


def load_system(name: str, path: Path, split: str) -> System:
    """The ranks that a predictions artefact, or a run of several seeds, holds for a split.

    Raises:
        ArtefactError: If there is no such artefact, or it is about other rows.
    """
    return load_runs(name, runs_at(path), split)


def load_runs(name: str, places: Sequence[Path], split: str) -> System:
    """The ranks that predictions artefacts, one a seed, hold for a split.

    Raises:
        ArtefactError: If one is no such artefact, or they are about different rows.
    """
    runs = [Ranked.load(place, split) for place in places]
    for place, run in zip(places, runs, strict=True):
        if not np.array_equal(run.targets, runs[0].targets):
            raise ArtefactError(f"{place}: its {split} rows are not those of {places[0]}. Run all seeds on one split.")
    found = System(name, runs, _about(places[0]))
    return replace(found, name=labelled(name, found.given))


def splits_of(path: Path) -> list[str]:
    """The splits that a predictions artefact, or a run of several seeds, speaks of; the lists' own comes first."""
    place = runs_at(path)[0]
    found = [str(read_manifest(place, KIND)["counts"].get("split", "test"))]
    if (place / FILE).is_file():
        found += pd.read_parquet(place / FILE, columns=["split"])["split"].unique().tolist()
    return list(dict.fromkeys(found))


def _about(place: Path) -> dict[str, Any]:
    """What the manifest of predictions, or of the model beside them, says of the model."""
    for folder in (place, place.parent / "model"):
        if is_artefact(folder):
            counts = read_manifest(folder)["counts"]
            found = {key: counts[key] for key in _ABOUT if key in counts}
            if found:
                return found
    return {}


def check_same_rows(system: System, first: System, split: str) -> None:
    """Check that two systems speak of the same rows, of the same users.

    Raises:
        ArtefactError: If they do not.
    """
    if not np.array_equal(system.targets, first.targets):
        raise ArtefactError(
            f"{system.name}: its {len(system.targets)} {split} rows are not the {len(first.targets)} of {first.name}. "
            "Compare recommenders of the same data, protocol and split."
        )
    for row, (user, other) in enumerate(zip(system.users, first.users, strict=True)):
        if user != other:
            raise ArtefactError(
                f"{system.name}: its {split} row {row} is of user {user!r}, that of {first.name} of {other!r}. "
                "Compare recommenders of the same data, protocol and split."
            )


@dataclass(frozen=True)
class Bootstrap:
    """How a page's intervals and paired tests are drawn.

    Attributes:
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: The user of each of the R rows where users are drawn; None where examples are.
        rows: Number of rows, R.
    """

    seed: int
    resamples: int
    clusters: Clusters
    rows: int

    @classmethod
    def of(cls, seed: int, resamples: int, resample: str, users: Sequence[str]) -> "Bootstrap":
        """As the settings of a page say, for rows of some users."""
        return cls(seed, resamples, users if resample == USERS else None, len(users))

    def said(self) -> str:
        """The sentence that pages say it with."""
        count, rows = count_clusters(self.clusters, self.rows), f"{self.rows:,} examples"
        by_user = f"{count:,} users, each with all of its examples ({rows} in all)"
        drawn = f"{rows}, each by itself" if self.clusters is None else by_user
        return f"Intervals and paired tests: {self.resamples:,} bootstrap samples of {drawn}."


def estimates(system: System, level: str, metrics: Sequence[str], bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Mean, 95 % interval and, of several seeds, standard deviation of each metric."""
    return estimate_seeds(system.values(level, metrics), bootstrap.seed, bootstrap.resamples, bootstrap.clusters)


def differences(
    system: System, first: System, level: str, metrics: Sequence[str], bootstrap: Bootstrap
) -> dict[str, PairedDifference]:
    """How far a system lies from another on the same rows, for each metric."""
    mine, theirs = system.values(level, metrics), first.values(level, metrics)
    return seed_differences(mine, theirs, bootstrap.seed, bootstrap.resamples, bootstrap.clusters)


def opposite(found: PairedDifference) -> PairedDifference:
    """The same difference with the two systems in the other order."""
    return PairedDifference(0.0 - found.difference, 0.0 - found.high, 0.0 - found.low, found.p)
