"""`Results`: metrics of recommenders on the same examples, with intervals, paired differences and slices.

Per-example values are computed from the stored ranks of targets. With several seeds, an example's value is its mean
over them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from minionerec.core.artefacts import is_artefact, read_manifest, unchanged_input
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.metrics.predictions import Predictions, labelled
from minionerec.metrics.ranked import Ranked
from minionerec.metrics.ranking import (
    coverage,
    invalid_count,
    ranking_metrics,
)
from minionerec.metrics.statistics import (
    Estimate,
    PairedDifference,
    count_clusters,
    estimate,
    paired_differences,
)

FEWEST = 30  # minimum number of examples of a slice, or of users if these are resampled, for it to be measured

Estimates = Mapping[str, Mapping[str, Estimate]]
"""Recommender to metric to estimate."""


def metrics_at(ks: Sequence[int], every_mrr: bool) -> list[str]:
    """Names of the metrics at given cutoffs, in the order of tables; MRR at the largest, or at every cutoff."""
    return list(ranking_metrics(np.zeros(0, np.int64), ks, every_mrr=every_mrr))


@dataclass(frozen=True)
class RecommenderResults:
    """Ranks and lists of a recommender on the examples of one split.

    Attributes:
        name: Display name, with the inputs besides the histories.
        runs: The ranks of each seed, at least one, on the same R examples.
        lists: The lists of the first seed; None if not loaded or of other examples.
        kept_length: Requested length of those lists; 0 without lists.
        paths: The predictions artefacts of the seeds.
        about: Number of parameters and recipe, as far as recorded in manifests.
        details: Entries from the settings of a page, such as the published counterpart.
        counted_by: Unit of level "sid" on pages.
    """

    name: str
    runs: Sequence[Ranked]
    lists: Predictions | None = None
    kept_length: int = 0
    paths: Sequence[Path] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    counted_by: str = ""

    @classmethod
    def load(cls, name: str, paths: Sequence[Path], split: str) -> "RecommenderResults":
        """Load the ranks of a split from predictions artefacts, one per seed.

        Raises:
            ArtefactError: If one is no such artefact, or they are of different examples.
        """
        runs = [Ranked.load(path, split) for path in paths]
        for path, run in zip(paths, runs, strict=True):
            if not np.array_equal(run.targets, runs[0].targets):
                raise ArtefactError(
                    f"{path}: its {split} examples are not those of {paths[0]}. Run all seeds on one split."
                )
        results = cls(name, runs, paths=paths, about=_about(paths[0]))
        return replace(results, name=labelled(name, results.given))

    @classmethod
    def from_lists(cls, name: str, lists: Predictions, list_length: int | None = None) -> "RecommenderResults":
        """Create from the lists of one seed; the length of the longest list if `list_length` is None."""
        return cls(
            name, [Ranked.from_predictions(replace(lists, given=lists.given or ()), list_length=list_length)], lists
        )

    @property
    def list_length(self) -> int | None:
        """Shortest requested length of lists over the seeds; None if the whole catalogue was ranked."""
        return min((run.list_length for run in self.runs if run.list_length is not None), default=None)

    @property
    def targets(self) -> np.ndarray:
        """Item index of each example's target: int32 (R,)."""
        return self.runs[0].targets

    @property
    def users(self) -> Sequence[str]:
        """The user of each example."""
        return self.runs[0].users

    @property
    def given(self) -> tuple[str, ...]:
        """Inputs besides the histories, of any of the runs."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.given))

    def has(self, level: str) -> bool:
        """Whether all runs have ranks of a level, "sid" or "item"."""
        return all(level in run.ranks for run in self.runs)

    def values(self, level: str, metrics: Sequence[str], where: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Metric → value of each seed and example, float64 (S, R), optionally only for examples in a mask.

        Raises:
            ArtefactError: If there are no ranks at this level.
            ConfigError: If a metric's cutoff exceeds the length of the lists.
        """
        if not self.has(level):
            raise ArtefactError(
                f"{self.name}: has no ranks at level {level}. Train with --sids, or compare at level item."
            )
        ranks = [run.ranks[level] if where is None else run.ranks[level][where] for run in self.runs]
        values = {}
        for name in metrics:
            k = int(name.partition("@")[2])
            if self.list_length is not None and k > self.list_length:
                raise ConfigError(f"{name} needs lists of {k}, but those of {self.name} hold {self.list_length}.")
            values[name] = np.stack([ranking_metrics(run_ranks, [k])[name] for run_ranks in ranks])
        return values

    def check_same_examples(self, first: "RecommenderResults", split: str) -> None:
        """Check that the examples and their users equal those of another recommender.

        Raises:
            ArtefactError: If they differ.
        """
        remedy = "Compare recommenders of the same data, protocol and split."
        if not np.array_equal(self.targets, first.targets):
            raise ArtefactError(
                f"{self.name}: its {len(self.targets)} {split} examples are not the {len(first.targets)} of "
                f"{first.name}. {remedy}"
            )
        for row, (user, other) in enumerate(zip(self.users, first.users, strict=True)):
            if user != other:
                raise ArtefactError(
                    f"{self.name}: its {split} example {row} is of user {user!r}, that of {first.name} of {other!r}. "
                    f"{remedy}"
                )


def _about(path: Path) -> dict[str, Any]:
    """Number of parameters and recipe, from the manifest of predictions, of their model, or of their input models."""
    for folder in (path, path.parent / "model"):
        if is_artefact(folder):
            counts = read_manifest(folder)["counts"]
            facts = {key: counts[key] for key in ("parameters", "recipe") if key in counts}
            if facts:
                return facts
    named = read_manifest(path)["inputs"].keys() & {"checkpoint", "assistant"} if is_artefact(path) else set()
    models = [unchanged_input(path, name) for name in named]
    sizes = [None if model is None else read_manifest(model)["counts"].get("parameters") for model in models]
    known = [size for size in sizes if isinstance(size, int)]
    return {"parameters": sum(known)} if known and len(known) == len(sizes) else {}


@dataclass(frozen=True)
class Bootstrap:
    """Settings of bootstrap intervals and paired tests.

    Attributes:
        seed: Seed of the draws.
        resamples: Number of resamples.
        users: User of each of R examples; users are resampled, each with all of its examples.
    """

    seed: int
    resamples: int
    users: Sequence[str] | np.ndarray

    @property
    def size(self) -> int:
        """Number of examples, R."""
        return len(self.users)

    @property
    def units(self) -> int:
        """Number of users that are resampled."""
        return count_clusters(self.users, self.size)

    def on(self, where: np.ndarray) -> "Bootstrap":
        """The same settings for the examples in a mask, bool (R,)."""
        return replace(self, users=np.asarray(self.users)[where])

    def sentence(self) -> str:
        """Description for pages."""
        unit = f"{self.units:,} users, each with all of its examples ({self.size:,} examples in all)"
        return f"Intervals and paired tests: {self.resamples:,} bootstrap samples of {unit}."


@dataclass(frozen=True)
class Slice:
    """Subset of the examples.

    Attributes:
        group: Criterion of the slice, e.g. "time".
        name: Name within the group, e.g. "later".
        where: bool (R,), mask of the examples.
    """

    group: str
    name: str
    where: np.ndarray

    @property
    def size(self) -> int:
        """Number of examples."""
        return int(self.where.sum())

    @property
    def share(self) -> float:
        """Share of all examples."""
        return float(self.where.mean())

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: group, kind, rows and share."""
        return {"group": self.group, "kind": self.name, "rows": self.size, "share": self.share}


def list_slices(kinds: Mapping[str, Mapping[str, np.ndarray]]) -> list[Slice]:
    """The slices with examples, of the groups with several such slices, in order."""
    groups = [[Slice(group, name, where) for name, where in of.items() if where.any()] for group, of in kinds.items()]
    return [part for slices in groups if len(slices) > 1 for part in slices]


def alike(kinds: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, str]:
    """Group → slice, for groups whose examples are all in one slice."""
    return {group: name for group, of in kinds.items() for name, where in of.items() if where.all()}


@dataclass(frozen=True)
class Evaluation:
    """All metrics of one recommender.

    Attributes:
        rows: Number of examples, R, including those with an empty list; the denominator of every mean.
        ks: The cutoffs.
        list_length: Requested length of the lists (beams); no K exceeds it.
        sid: Metric name ("HR@10", "NDCG@10", "MRR@50"...) → SID-level estimate; None if targets have no SID.
        item: Metric name → item-level estimate; None if a target item is unknown.
        predictions: Number of entries in all lists, counting each item that shares an SID.
        invalid: Number of entries whose SID belongs to no item; None if the valid SIDs were not given.
        invalid_until_hit: Number of such entries before each example's first hit, as the published system counts them.
        empty: Number of examples with an empty list.
        coverage: K → share of the catalogue among the first K items of any list; None if the size of the catalogue was
            not given or items are unknown.
    """

    rows: int
    ks: tuple[int, ...]
    list_length: int
    sid: Mapping[str, Estimate] | None
    item: Mapping[str, Estimate] | None
    predictions: int
    invalid: int | None
    invalid_until_hit: int | None
    empty: int
    coverage: Mapping[int, float] | None

    def metrics(self, level: str = "sid") -> Mapping[str, Estimate]:
        """The estimates of one level ("sid" or "item"); empty if it does not apply."""
        return (self.sid if level == "sid" else self.item) or {}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: unrounded means and intervals as [mean, low, high]."""

        def plain(metrics: Mapping[str, Estimate] | None) -> dict[str, list[float]] | None:
            return None if metrics is None else {name: [e.mean, e.low, e.high] for name, e in metrics.items()}

        return {
            "rows": self.rows,
            "ks": list(self.ks),
            "width": self.list_length,
            "sid": plain(self.sid),
            "item": plain(self.item),
            "predictions": self.predictions,
            "invalid": self.invalid,
            "invalid_until_hit": self.invalid_until_hit,
            "empty": self.empty,
            "coverage": None if self.coverage is None else {str(k): value for k, value in self.coverage.items()},
        }


@dataclass(frozen=True)
class Results:
    """Recommenders on the same examples.

    Attributes:
        recommenders: Name → recommender, in the order of tables.
        levels: The levels of a hit, "sid" and "item", the main one first.
        metrics: Names of the metrics, in the order of tables.
        bootstrap: Settings of intervals and paired tests.
        slices: Slices of the examples.
        slice_metrics: The metrics of slices.
        first: The recommender that others are compared with; the first in `recommenders` if empty.
        where: bool (R,), mask of the evaluated examples; all if None.
    """

    recommenders: Mapping[str, RecommenderResults]
    levels: Sequence[str]
    metrics: Sequence[str]
    bootstrap: Bootstrap
    slices: Sequence[Slice] = ()
    slice_metrics: Sequence[str] = ()
    first: str = ""
    where: np.ndarray | None = None
    _estimates: dict[tuple[str, str, str], Estimate] = field(default_factory=dict, repr=False, compare=False)
    _differences: dict[tuple[str, str, str, str], PairedDifference] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def names(self) -> list[str]:
        """The names of the recommenders."""
        return list(self.recommenders)

    @property
    def ks(self) -> tuple[int, ...]:
        """The cutoffs of the metrics."""
        return tuple(sorted({int(name.partition("@")[2]) for name in self.metrics}))

    @property
    def several_seeds(self) -> bool:
        """Whether some recommender was run with more than one seed."""
        return any(len(recommender.runs) > 1 for recommender in self.recommenders.values())

    def measured(self, level: str) -> list[str]:
        """Names of the recommenders with ranks of a level."""
        return [name for name, recommender in self.recommenders.items() if recommender.has(level)]

    def values(self, name: str, level: str, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        """Metric → value of each seed and example, float64 (S, R); see `RecommenderResults.values`."""
        return self.recommenders[name].values(level, metrics, self.where)

    def estimates(self, level: str) -> Estimates:
        """Mean, 95 % interval and, over several seeds, standard deviation of every metric at one level.

        Returns:
            Recommender → metric → estimate, for the recommenders with ranks of this level.
        """
        names, bootstrap = self.measured(level), self.bootstrap
        for group in self._together([name for name in names if (name, level, self.metrics[0]) not in self._estimates]):
            values = {
                (name, level, metric): seed_values
                for name in group
                for metric, seed_values in self.values(name, level, self.metrics).items()
            }
            self._estimates.update(estimate(values, bootstrap.seed, bootstrap.resamples, bootstrap.users))
        return {name: {metric: self._estimates[name, level, metric] for metric in self.metrics} for name in names}

    def differences(
        self, other: str, level: str, names: Sequence[str] | None = None, metrics: Sequence[str] | None = None
    ) -> dict[str, dict[str, PairedDifference]]:
        """Paired differences of recommenders minus another one, on the same examples.

        Args:
            other: Name of the other recommender.
            level: Level of a hit; recommenders without ranks of it are left out.
            names: Names of the recommenders; all others if None.
            metrics: Metrics; all if None.
        """
        metrics = self.metrics if metrics is None else metrics
        known, bootstrap = self.measured(level), self.bootstrap
        compared = [name for name in (known if names is None else names) if name in known and name != other]
        if other not in known:
            return {}
        new = [n for n in compared if any((n, other, level, metric) not in self._differences for metric in metrics)]
        other_values = self.values(other, level, metrics) if new else {}
        for group in self._together(new):
            values = {(n, other, level, m): of for n in group for m, of in self.values(n, level, metrics).items()}
            counterparts = {key: other_values[key[3]] for key in values}
            differences = paired_differences(
                values, counterparts, bootstrap.seed, bootstrap.resamples, clusters=bootstrap.users
            )
            self._differences.update(differences)
        return {name: {m: self._differences[name, other, level, m] for m in metrics} for name in compared}

    def difference(self, name: str, other: str, level: str, metric: str) -> PairedDifference:
        """Paired difference of one recommender minus another by one metric; see `differences`."""
        if (other, name, level, metric) in self._differences:
            return self._differences[other, name, level, metric].opposite()
        return self.differences(other, level, [name], [metric])[name][metric]

    def _together(self, names: Sequence[str]) -> list[list[str]]:
        """Groups of recommenders to resample together: each by itself to save memory, or all together in a slice."""
        return [[name] for name in names] if self.where is None else [list(names)] if names else []

    def on(self, where: np.ndarray, metrics: Sequence[str]) -> Self | None:
        """Results on the examples in a mask, bool (R,); None with fewer than `FEWEST` units to resample."""
        bootstrap = self.bootstrap.on(where)
        if bootstrap.units < FEWEST:
            return None
        return replace(
            self, metrics=metrics, bootstrap=bootstrap, slices=(), where=where, _estimates={}, _differences={}
        )

    @cached_property
    def by_slice(self) -> list[tuple[Slice, Self | None]]:
        """Every slice with its results; None for too few examples."""
        return [(part, self.on(part.where, self.slice_metrics)) for part in self.slices]

    def slices_json(self, name: str) -> list[dict[str, Any]]:
        """A recommender's metrics by slice at the main level, and differences from `first`.

        Metrics are [mean, sd, low, high], differences [difference, low, high, p].
        """
        first, content = self.first or self.names[0], []
        for part, results in self.by_slice:
            metrics: Mapping[str, Estimate] = {}
            against: Mapping[str, PairedDifference] = {}
            if results is not None:
                metrics = results.estimates(self.levels[0])[name]
                against = results.differences(first, self.levels[0]).get(name, {})
            content.append(
                {
                    **part.to_json(),
                    "metrics": {metric: [e.mean, e.sd, e.low, e.high] for metric, e in metrics.items()},
                    "against": {metric: list(gap) for metric, gap in against.items()},
                }
            )
        return content

    def evaluation(
        self, name: str, valid_sids: Collection[str] | None = None, n_items: int | None = None
    ) -> Evaluation:
        """All metrics of one recommender, and statistics of its lists.

        Args:
            name: The recommender.
            valid_sids: The SIDs of the catalogue, for the invalid count.
            n_items: Size of the catalogue, for coverage.
        """
        recommender = self.recommenders[name]
        lists, counted = (
            recommender.lists,
            recommender.lists is not None and any(recommender.lists.target_sids) and valid_sids is not None,
        )
        items_known = bool((np.asarray(recommender.targets) >= 0).all())
        list_length = recommender.list_length if lists is None else recommender.kept_length or recommender.list_length
        within = [k for k in self.ks if list_length is None or k <= list_length]

        def estimates(level: str) -> Mapping[str, Estimate] | None:
            return self.estimates(level)[name] if level in self.levels and recommender.has(level) else None

        return Evaluation(
            rows=len(recommender.runs[0]),
            ks=self.ks,
            list_length=(n_items or 0) if recommender.list_length is None else recommender.list_length,
            sid=estimates("sid"),
            item=estimates("item") if items_known else None,
            predictions=sum(len(row) for row in lists.items) if lists else 0,
            invalid=invalid_count(lists, valid_sids or ()) if counted and lists else None,
            invalid_until_hit=invalid_count(lists, valid_sids or (), stop_at_hit=True) if counted and lists else None,
            empty=sum(len(row) == 0 for row in lists.items) if lists else 0,
            coverage={k: coverage(lists, k, n_items) for k in within} if lists and n_items and items_known else None,
        )
