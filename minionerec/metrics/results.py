"""`Results`: recommenders on the same examples: their seeds, the readings of a hit, metrics, and per-example values.

All comparisons of recommenders are computed here: means with intervals, paired differences, and
both on some of the examples. A per-example value follows from the rank of the example's target, so ranks are what is
kept; of several seeds an example's value is its mean over them.
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
    Clusters,
    Estimate,
    PairedDifference,
    count_clusters,
    estimate,
    paired_differences,
)

USERS, EXAMPLES = "users", "examples"
FEWEST = 30  # examples of a slice, and users where these are resampled, below which it is not measured

Estimates = Mapping[str, Mapping[str, Estimate]]
"""Recommender to metric to estimate."""


def metrics_at(ks: Sequence[int], every_mrr: bool) -> list[str]:
    """Names of the metrics at some cutoffs, in the order of tables; MRR at the largest alone, or at every one."""
    return list(ranking_metrics(np.zeros(0, np.int64), ks, every_mrr=every_mrr))


@dataclass(frozen=True)
class RecommenderResults:
    """A recommender on the examples of one split.

    Attributes:
        name: Display name, with the inputs beyond the histories.
        runs: The ranks of each seed, at least one; all are of the same R examples.
        lists: The lists of its first seed; None where they were not read, or are of other examples.
        kept_length: Candidates that those lists may hold; 0 without lists.
        paths: The predictions artefacts of the seeds.
        about: Parameters and recipe, where its manifests record them.
        details: Facts from the settings of a page, such as its published counterpart.
        counted_by: The unit of its level "sid", where pages show it.
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
        """The ranks of a split that predictions artefacts hold, one a seed.

        Raises:
            ArtefactError: If one is no such artefact, or they are about different examples.
        """
        runs = [Ranked.load(path, split) for path in paths]
        for path, run in zip(paths, runs, strict=True):
            if not np.array_equal(run.targets, runs[0].targets):
                raise ArtefactError(
                    f"{path}: its {split} examples are not those of {paths[0]}. Run all seeds on one split."
                )
        found = cls(name, runs, paths=paths, about=_about(paths[0]))
        return replace(found, name=labelled(name, found.given))

    @classmethod
    def from_lists(cls, name: str, lists: Predictions, list_length: int | None = None) -> "RecommenderResults":
        """One seed's lists, with the requested candidates (those of the longest list if None)."""
        return cls(
            name, [Ranked.from_predictions(replace(lists, given=lists.given or ()), list_length=list_length)], lists
        )

    @property
    def list_length(self) -> int | None:
        """Candidates of the shortest lists that ranks were found in; None where the whole catalogue was ranked."""
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
        """Its inputs beyond the histories, in any of its runs; may be empty."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.given))

    def has(self, level: str) -> bool:
        """Whether it can be measured in a reading of a hit: "sid" or "item"."""
        return all(level in run.ranks for run in self.runs)

    def values(self, level: str, metrics: Sequence[str], where: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Metric to the value of each seed and example, float64 (S, R); of some examples alone where those are given.

        Raises:
            ArtefactError: If there are no ranks at this level.
            ConfigError: If a metric looks further than the lists go.
        """
        if not self.has(level):
            raise ArtefactError(
                f"{self.name}: has no ranks at level {level}. Train with --sids, or compare at level item."
            )
        ranks = [run.ranks[level] if where is None else run.ranks[level][where] for run in self.runs]
        found = {}
        for name in metrics:
            k = int(name.partition("@")[2])
            if self.list_length is not None and k > self.list_length:
                raise ConfigError(f"{name} needs lists of {k}, but those of {self.name} hold {self.list_length}.")
            found[name] = np.stack([ranking_metrics(each, [k])[name] for each in ranks])
        return found

    def check_same_examples(self, first: "RecommenderResults", split: str) -> None:
        """Check that it is measured on the same examples, of the same users, as another.

        Raises:
            ArtefactError: If it is not.
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
    """The facts of a model from the manifest of its predictions, or its own, or those that the predictions name."""
    for folder in (path, path.parent / "model"):
        if is_artefact(folder):
            counts = read_manifest(folder)["counts"]
            found = {key: counts[key] for key in ("parameters", "recipe") if key in counts}
            if found:
                return found
    named = read_manifest(path)["inputs"].keys() & {"checkpoint", "assistant"} if is_artefact(path) else set()
    models = [unchanged_input(path, name) for name in named]
    sizes = [None if model is None else read_manifest(model)["counts"].get("parameters") for model in models]
    known = [size for size in sizes if isinstance(size, int)]
    return {"parameters": sum(known)} if known and len(known) == len(sizes) else {}


@dataclass(frozen=True)
class Bootstrap:
    """How intervals and paired tests are drawn.

    Attributes:
        seed: Seed of the draws.
        resamples: Number of resamples.
        clusters: The user of each of R examples where users are drawn; None where examples are.
        size: Number of examples, R.
    """

    seed: int
    resamples: int
    clusters: Clusters
    size: int

    @classmethod
    def of(cls, seed: int, resamples: int, resample: str, users: Sequence[str]) -> "Bootstrap":
        """As settings say: `resample` is "users" or "examples"."""
        return cls(seed, resamples, users if resample == USERS else None, len(users))

    @property
    def units(self) -> int:
        """Number of users, or examples, drawn from."""
        return count_clusters(self.clusters, self.size)

    def on(self, where: np.ndarray) -> "Bootstrap":
        """The same for some of the examples: bool (R,)."""
        clusters = None if self.clusters is None else np.asarray(self.clusters)[where]
        return replace(self, clusters=clusters, size=int(where.sum()))

    def sentence(self) -> str:
        """Its description for pages."""
        examples = f"{self.size:,} examples"
        by_user = f"{self.units:,} users, each with all of its examples ({examples} in all)"
        drawn = f"{examples}, each by itself" if self.clusters is None else by_user
        return f"Intervals and paired tests: {self.resamples:,} bootstrap samples of {drawn}."


@dataclass(frozen=True)
class Slice:
    """Some of the examples.

    Attributes:
        group: Criterion of the slice, e.g. "time".
        name: Its name in the group, e.g. "later".
        where: bool (R,), which examples are in it.
    """

    group: str
    name: str
    where: np.ndarray

    @property
    def size(self) -> int:
        """Number of its examples."""
        return int(self.where.sum())

    @property
    def share(self) -> float:
        """Its part of all examples."""
        return float(self.where.mean())

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: group, kind, rows and share."""
        return {"group": self.group, "kind": self.name, "rows": self.size, "share": self.share}


def list_slices(kinds: Mapping[str, Mapping[str, np.ndarray]]) -> list[Slice]:
    """The slices that have examples, of the groups with several slices, in order."""
    found = [[Slice(group, name, where) for name, where in of.items() if where.any()] for group, of in kinds.items()]
    return [each for of in found if len(of) > 1 for each in of]


def alike(kinds: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, str]:
    """Groups whose examples are all in one slice; group to slice."""
    return {group: name for group, of in kinds.items() for name, where in of.items() if where.all()}


@dataclass(frozen=True)
class Evaluation:
    """All metrics of one recommender.

    Attributes:
        rows: Number of examples, R; the denominator of every mean, examples with an empty list included.
        ks: The cutoffs.
        list_length: Number of candidates that a list may hold (beams); no K exceeds it.
        sid: Metric name ("HR@10", "NDCG@10", "MRR@50"...) to SID-level estimate; None where targets have no SID.
        item: Metric name to item-level estimate; None where the target item of some example is not known.
        predictions: Number of entries in all lists together, items that share an SID each counted.
        invalid: How many of those entries bear an SID of no item; None if the valid SIDs were not given.
        invalid_until_hit: The same, counting an example only up to its first hit: the published system's reading,
            which undercounts.
        empty: Examples whose list holds nothing.
        coverage: K to the share of the catalogue that is in the first K items of some list; None if the size of the
            catalogue was not given or items are not known.
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
        """The estimates of one reading ("sid" or "item"); empty where that reading does not apply."""
        return (self.sid if level == "sid" else self.item) or {}

    def mean(self, name: str, level: str = "sid") -> float:
        """One mean by name, e.g. `mean("NDCG@10")`.

        Raises:
            ConfigError: If it was not computed; the message lists what was.
        """
        known = self.metrics(level)
        if name not in known:
            raise ConfigError(
                f"metric {name!r} was not computed at {level} level; computed: {', '.join(known) or 'none'}."
            )
        return known[name].mean

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
        recommenders: Name to recommender, in the order of tables.
        levels: The readings of a hit, "sid" and "item", the main one first.
        metrics: Names of the metrics, in the order of tables.
        bootstrap: How intervals and paired tests are drawn.
        slices: Parts of the examples to look at.
        slice_metrics: The metrics that these are measured by.
        first: The recommender that others are compared with; the first of them if empty.
        where: bool (R,), the examples that all figures are of; all if None.
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
        """The recommenders that can be measured in a reading."""
        return [name for name, recommender in self.recommenders.items() if recommender.has(level)]

    def values(self, name: str, level: str, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        """Metric to the value of each seed and example, float64 (S, R), as of `RecommenderResults.values`."""
        return self.recommenders[name].values(level, metrics, self.where)

    def estimates(self, level: str) -> Estimates:
        """Mean, 95 % interval and, of several seeds, standard deviation of every metric in one reading.

        Returns:
            Recommender to metric to estimate, without those that have no ranks in this reading.
        """
        names, drawn = self.measured(level), self.bootstrap
        for some in self._together([name for name in names if (name, level, self.metrics[0]) not in self._estimates]):
            values = {
                (name, level, metric): found
                for name in some
                for metric, found in self.values(name, level, self.metrics).items()
            }
            self._estimates.update(estimate(values, drawn.seed, drawn.resamples, drawn.clusters))
        return {name: {metric: self._estimates[name, level, metric] for metric in self.metrics} for name in names}

    def differences(
        self, other: str, level: str, names: Sequence[str] | None = None, metrics: Sequence[str] | None = None
    ) -> dict[str, dict[str, PairedDifference]]:
        """How far recommenders lie from another on the same examples: theirs minus the other's.

        Args:
            other: The other.
            level: The reading; recommenders without it are left out.
            names: Recommenders; all but the other if None.
            metrics: Metrics; all if None.
        """
        metrics = self.metrics if metrics is None else metrics
        known, drawn = self.measured(level), self.bootstrap
        wanted = [name for name in (known if names is None else names) if name in known and name != other]
        if other not in known:
            return {}
        new = [n for n in wanted if any((n, other, level, metric) not in self._differences for metric in metrics)]
        theirs = self.values(other, level, metrics) if new else {}
        for some in self._together(new):
            mine = {(n, other, level, m): of for n in some for m, of in self.values(n, level, metrics).items()}
            beside = {key: theirs[key[3]] for key in mine}
            found = paired_differences(mine, beside, drawn.seed, drawn.resamples, clusters=drawn.clusters)
            self._differences.update(found)
        return {name: {m: self._differences[name, other, level, m] for m in metrics} for name in wanted}

    def difference(self, name: str, other: str, level: str, metric: str) -> PairedDifference:
        """One recommender minus another by one metric, from the same resamples as `differences`."""
        if (other, name, level, metric) in self._differences:
            return self._differences[other, name, level, metric].opposite()
        return self.differences(other, level, [name], [metric])[name][metric]

    def _together(self, names: Sequence[str]) -> list[list[str]]:
        """Recommenders whose values are drawn from at once: one by one, for memory; of few examples all together."""
        return [[name] for name in names] if self.where is None else [list(names)] if names else []

    def on(self, where: np.ndarray, metrics: Sequence[str]) -> Self | None:
        """Results on some of the examples, bool (R,); None where there are fewer than `FEWEST` to draw from."""
        drawn = self.bootstrap.on(where)
        if drawn.units < FEWEST:
            return None
        return replace(self, metrics=metrics, bootstrap=drawn, slices=(), where=where, _estimates={}, _differences={})

    @cached_property
    def by_slice(self) -> list[tuple[Slice, Self | None]]:
        """Every slice with its results; None where it has too few examples."""
        return [(each, self.on(each.where, self.slice_metrics)) for each in self.slices]

    def slices_json(self, name: str) -> list[dict[str, Any]]:
        """A recommender's figures by slice in the main reading, beside the one that others are compared with.

        Metrics are [mean, sd, low, high], differences [difference, low, high, p].
        """
        first, found = self.first or self.names[0], []
        for each, results in self.by_slice:
            metrics: Mapping[str, Estimate] = {}
            against: Mapping[str, PairedDifference] = {}
            if results is not None:
                metrics = results.estimates(self.levels[0])[name]
                against = results.differences(first, self.levels[0]).get(name, {})
            found.append(
                {
                    **each.to_json(),
                    "metrics": {metric: [e.mean, e.sd, e.low, e.high] for metric, e in metrics.items()},
                    "against": {metric: list(gap) for metric, gap in against.items()},
                }
            )
        return found

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
