"""The data of a page: `Results` of recommenders and baselines, with the examples they are evaluated on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from minionerec.core.artefacts import fingerprint, read_json, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, shown
from minionerec.core.log import get_logger, progress
from minionerec.core.parquet import read_parquet
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS, ROWS, Protocol, read_examples
from minionerec.data.rows import SplitExamples
from minionerec.data.slices import example_slices
from minionerec.metrics.levels import LevelAnalysis, level_analysis
from minionerec.metrics.predictions import FILE, Predictions, length_of_lists
from minionerec.metrics.ranked import KIND
from minionerec.metrics.ranking import check_ks, sid_ranks
from minionerec.metrics.results import (
    Bootstrap,
    Evaluation,
    RecommenderResults,
    Results,
    Slice,
    alike,
    list_slices,
    metrics_at,
)
from minionerec.metrics.statistics import PairedDifference, paired_differences
from minionerec.metrics.values import (
    HR,
    VALUE,
    VALUE_WEIGHTS,
    Metrics,
    at_equal_hr,
    by_value,
    distinct_lists,
    item_values,
    value_metrics,
)
from minionerec.recommend.evaluation.baseline_lists import CONSTANTS_FILE, read_baseline_lists
from minionerec.recommend.evaluation.baseline_lists import FILE as BASELINES_FILE
from minionerec.recommend.rankers.baselines import RECENT, Chosen, make_baselines
from minionerec.recommend.rankers.lists import rank_rows
from minionerec.recommend.rankers.protocol import Allowed
from minionerec.reports.reference import HITS, PublishedGap, Reference, ReferenceRow
from minionerec.reports.runs import RunSetting
from minionerec.reports.trainings import Effort, Lineage, Training, trace
from minionerec.sid.table import SidTable, split_sid

logger = get_logger(__name__)

MANY = 8
"""Recommenders beyond which they are sorted by the headline metric."""
ONE_BY_ONE = 4
"""The most recommenders that are each compared with the previous one; more are compared with the first alone."""
SID, OWN_SIDS, TITLE = "SID", "own SIDs", "title"
"""What counts as a hit at level "sid": the SIDs of the page, a recommender's own SIDs, or titles."""


@dataclass(frozen=True)
class EvaluationSet:
    """The evaluation examples, the items, and the data for baselines.

    Attributes:
        source: Local path of a corpus, or of a file of sequences.
        split: Name of the split.
        rows: Examples of the split.
        protocol: Protocol of splitting and measuring.
        data: Items and the examples of all splits, from which baselines are computed.
        table: SIDs of the items; None without SIDs.
    """

    source: str
    split: str
    rows: SplitExamples
    protocol: Protocol
    data: Corpus
    table: SidTable | None = None

    @classmethod
    def read(cls, corpus: str, split: str, protocol: str = ROWS, items: str = "", sids: str = "") -> "EvaluationSet":
        """Load a corpus, or sequences that a protocol splits.

        Raises:
            ArtefactError: If the corpus or the SIDs are missing.
            DataError: If a file is malformed or too small, or the split has no examples.
        """
        rules = PROTOCOLS[protocol]
        data = read_examples(corpus, rules, items)
        examples = cls(corpus, split, data.rows(split), rules, data)
        if not sids:
            return examples
        read_manifest(sids, "sids")
        table = SidTable.load_index(sids, data.items["item_id"].astype(str).tolist())
        return replace(examples, table=table)

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return self.data.n_items

    def check(self, where: str, targets: np.ndarray) -> None:
        """Check that ranks or lists are of these examples.

        Raises:
            ArtefactError: Naming the first example that differs.
        """
        remedy = "Predict for this corpus and split, or set split."
        if self.protocol.name != ROWS:
            remedy += (
                " Check protocol, and that items names the file that the model was trained with: it numbers the items."
            )
        if len(targets) != len(self.rows):
            raise ArtefactError(
                f"{where}: {len(targets)} examples, but the {self.split} split of {self.source} has {len(self.rows)}. "
                f"{remedy}"
            )
        other = np.flatnonzero(np.asarray(targets) != self.rows.targets)
        if len(other):
            raise ArtefactError(
                f"{where}: example {other[0]} has target {targets[other[0]]}, in the {self.split} split of "
                f"{self.source} it is {self.rows.targets[other[0]]}. {remedy}"
            )

    def read_lists(self, where: str, path: Path) -> Predictions:
        """Load and check the lists of one seed; lists without SIDs get those of the table.

        Args:
            where: Name in messages.
            path: The artefact.

        Raises:
            ArtefactError: If the lists are of other examples or items.
        """
        predictions = Predictions.load(path)
        self.check(where, predictions.targets)
        largest = max((max(row, default=-1) for row in predictions.items), default=-1)
        if largest >= self.n_items:
            raise ArtefactError(
                f"{where}: lists item {largest}, but there are {self.n_items}. Predict for this corpus."
            )
        if self.table is None or any(predictions.target_sids):
            return predictions
        sids = self.table.sids
        return replace(
            predictions,
            target_sids=[sids[target] if target >= 0 else "" for target in predictions.targets],
            sids=[[sids[item] if item >= 0 else "" for item in row] for row in predictions.items],
        )


def read_recommender(run: RunSetting, split: str, examples: EvaluationSet) -> RecommenderResults:
    """Load the ranks of all seeds of a recommender and the lists of the first, checked against data and SIDs.

    Args:
        run: The recommender of the settings.
        split: The split.
        examples: Examples of the split.

    Raises:
        ArtefactError: If it is of other examples.
        ConfigError: If a seed is a copy of another.
    """
    paths = run.runs
    recommender = replace(RecommenderResults.load(run.name, paths, split), details=run.details)
    known: dict[str, Path] = {}
    for path, ranked in zip(paths, recommender.runs, strict=True):
        other = known.setdefault(fingerprint(path), path)
        if other != path:
            raise ConfigError(
                f"predictions: {run.name}: {path} has the same files as {other}. Name each seed's own run."
            )
        examples.check(f"{path} ({run.name})", ranked.targets)
    recommender = replace(recommender, counted_by=_counted_by(paths[0], recommender, examples))
    if str(read_manifest(paths[0], KIND)["counts"].get("split", split)) != split:
        return recommender  # the lists are of another split than the ranks
    needs_sids = examples.table is not None and not recommender.has("sid")
    lists = [examples.read_lists(f"{path} ({run.name})", path) for path in (paths if needs_sids else paths[:1])]
    if needs_sids:
        runs = [
            replace(
                ranked,
                ranks={**ranked.ranks, "sid": sid_ranks(of_seed)},
                list_length=length_of_lists(of_seed) if ranked.list_length is None else ranked.list_length,
            )
            for ranked, of_seed in zip(recommender.runs, lists, strict=True)
        ]
        recommender = replace(recommender, runs=runs, counted_by=SID)
    return replace(recommender, lists=lists[0], kept_length=length_of_lists(lists[0], paths[0]))


def _counted_by(path: Path, recommender: RecommenderResults, examples: EvaluationSet) -> str:
    """The unit of a hit at level "sid" of predictions; "" without SIDs."""
    if not recommender.has("sid"):
        return ""
    rows = read_parquet(path / FILE, {"row": "whole", "target_sid": "text"}, only=True)
    target_sids = rows.drop_duplicates("row").sort_values("row")["target_sid"].tolist()
    if any(text and split_sid(text) is None for text in target_sids):
        return TITLE
    table = examples.table
    return SID if table is not None and target_sids == [table.sids[t] for t in examples.rows.targets] else OWN_SIDS


def baselines_of(
    runs: Sequence[RunSetting],
    examples: EvaluationSet,
    ks: Sequence[int],
) -> tuple[dict[str, RecommenderResults], Chosen]:
    """The baselines, read from one of the evaluations or computed, with seen items masked as in the protocol.

    Lists of an evaluation are reused if corpus, examples and SIDs are the same, they are long enough, and nothing is
    masked.

    Args:
        runs: The recommenders of the page.
        examples: The examples.
        ks: Cutoffs, ascending.

    Returns:
        Name → results of each baseline; and the constants of the baselines.

    Raises:
        ArtefactError: If the file of an evaluation cannot be read.
    """
    table, rows, list_length = examples.table, examples.rows, ks[-1]
    reach = min(list_length, examples.n_items if table is None else table.n_unique)
    masked = examples.protocol.seen == "mask"
    stored = None
    if examples.protocol.name == ROWS and not masked:
        corpus = fingerprint(examples.source)
        paths_of_runs = (path for run in runs for path in run.runs)
        path = next((path for path in paths_of_runs if _has_baselines(path, corpus, examples, reach)), None)
        stored = None if path is None else read_baseline_lists(path, rows, examples.n_items, reach, table)
    if stored is None:
        allowed = Allowed.leaving_out(rows.seen, examples.n_items) if masked else None
        chosen, rankers = make_baselines(examples.data, table, masked=masked)
        lists = {
            name: rank_rows(ranker, rows, reach, examples.n_items, table=table, allowed=allowed)
            for name, ranker in progress(rankers.items(), "ranking by baselines", len(rankers), unit="baselines")
            if not (masked and name == RECENT)
        }
        stored = lists, chosen
    baselines = {
        name: replace(RecommenderResults.from_lists(name, predictions, list_length), kept_length=list_length)
        for name, predictions in stored[0].items()
    }
    return baselines, stored[1]


def _has_baselines(path: Path, corpus: str, examples: EvaluationSet, reach: int) -> bool:
    """Whether an evaluation has baseline lists of this corpus, split, SIDs and length."""
    manifest = read_manifest(path, KIND)
    counts = manifest["counts"]
    return (
        {BASELINES_FILE, CONSTANTS_FILE} <= manifest["files"].keys()
        and manifest["inputs"].get("corpus", {}).get("sha256") == corpus
        and counts.get("split") == examples.split
        and counts.get("sid_table") == (None if examples.table is None else examples.table.fingerprint)
        and type(counts.get("beams")) is int
        and counts["beams"] >= reach
    )


class ValueGap(NamedTuple):
    """Value of a recommender's lists beside that of another's, re-ranked to the same HR@10.

    Attributes:
        hit: HR@10.
        value: value@10.
        re_ranked: value@10 of the other, re-ranked.
        difference: The paired difference of these.
    """

    hit: float
    value: float
    re_ranked: float
    difference: PairedDifference


@dataclass(frozen=True, kw_only=True)
class PageResults(Results):
    """Results with the further data of a page.

    Attributes:
        examples: The examples.
        baselines: Names of the baselines.
        chosen: Constants and validation metrics of the baselines.
        headline: The metric that ranks recommenders.
        reference: Published results; None without.
        ceiling: Metric → expectation for the best possible ranking of items; empty if unknown.
        alike: Group → slice, for groups of slices in which all examples are in one slice.
        stages: Title of the trainings of each stage, by the stage's name.
        worth: float64 (N,), what each item is worth, of mean 1; None if unknown.
        value_column: Column of the items with what each is worth.
    """

    examples: EvaluationSet
    baselines: Sequence[str] = ()
    chosen: Chosen | None = None
    headline: str = "NDCG@10"
    reference: Reference | None = None
    ceiling: Mapping[str, float] = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    worth: np.ndarray | None = None
    value_column: str = ""

    @property
    def table(self) -> SidTable | None:
        """SIDs of the items."""
        return self.examples.table

    @property
    def split(self) -> str:
        """Name of the split."""
        return self.examples.split

    @property
    def without_baselines(self) -> list[str]:
        """Names of the user's recommenders, without baselines."""
        return [name for name in self.names if name not in self.baselines]

    @property
    def conditioned(self) -> list[str]:
        """Names of the recommenders, including baselines, that were given more than the histories."""
        return [name for name in self.names if self.recommenders[name].given]

    @property
    def means(self) -> dict[str, float]:
        """The headline metric of all recommenders at the main level."""
        return {name: of_metric[self.headline].mean for name, of_metric in self.estimates(self.levels[0]).items()}

    @property
    def ranked(self) -> list[str]:
        """All recommenders, the best by the headline metric first."""
        means = self.means
        return sorted(means, key=means.__getitem__, reverse=True)

    @property
    def pair(self) -> list[str]:
        """The headline metric, and the other one of HR and NDCG at its cutoff, where measured."""
        kind, _, k = self.headline.partition("@")
        other = f"{'HR' if kind == 'NDCG' else 'NDCG'}@{k}"
        return [self.headline, *([other] if other in self.metrics else [])]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The compared pairs: all with the first; where there are few, each with the previous one, too."""
        names = self.without_baselines
        with_first = [(name, self.first) for name in self.names if name != self.first]
        steps = list(zip(names[1:], names, strict=False)) if len(names) <= ONE_BY_ONE else []
        return with_first + [pair for pair in steps if pair not in with_first and pair[::-1] not in with_first]

    @cached_property
    def analyses(self) -> dict[str, LevelAnalysis]:
        """Hit rates by level of the semantic ID of all recommenders with lists of SIDs; empty without SIDs."""
        if self.table is None:
            return {}
        analyses = {}
        for name, recommender in self.recommenders.items():
            if recommender.lists is not None and recommender.counted_by != TITLE:
                within = [k for k in self.ks if k <= recommender.kept_length] or [max(1, recommender.kept_length)]
                analyses[name] = level_analysis(
                    recommender.lists, within, list_length=recommender.kept_length, where=name
                )
        return analyses

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        """All metrics of all recommenders, and statistics of their lists."""
        valid = None if self.table is None else set(self.table.sids)
        return {name: self.evaluation(name, valid, self.examples.n_items) for name in self.names}

    @cached_property
    def lineages(self) -> dict[str, list[Lineage]]:
        """The lineage of each trained recommender's predictions, by seed."""
        return {
            name: [trace(name, path, self.stages) for path in recommender.paths]
            for name, recommender in self.recommenders.items()
            if name not in self.baselines
        }

    @cached_property
    def trainings(self) -> list[Training]:
        """The trainings of all first seeds once, in order.

        Each has the name of the recommender whose predictions are its own, if any, else that of its directory.
        """
        lineages = {name: of_seeds[0] for name, of_seeds in self.lineages.items()}
        names = {line.training.path.absolute(): name for name, line in lineages.items() if line.training is not None}
        known: dict[Path, Training] = {}
        for lineage in lineages.values():
            for training in lineage.trainings:
                path = training.path.absolute()
                known.setdefault(path, replace(training, name=names.get(path, training.name)))
        return list(known.values())

    @cached_property
    def trade_offs(self) -> dict[str, list[Metrics]]:
        """Hits and value of each recommender's lists, re-ranked by each of `VALUE_WEIGHTS`; empty if value is unknown.

        The first weight is 0: the lists as they are.
        """
        curves: dict[str, list[Metrics]] = {}
        for name, recommender in self.recommenders.items():
            lists, worth = recommender.lists, self.worth
            if lists is not None and worth is not None:
                items, scores = distinct_lists(lists)
                targets = np.asarray(lists.targets, dtype=np.int64)
                re_ranked = (by_value(items, scores, worth, weight) for weight in VALUE_WEIGHTS)
                curves[name] = [value_metrics(best, targets, worth) for best in re_ranked]
        return curves

    @cached_property
    def value_gaps(self) -> dict[str, ValueGap]:
        """Value of the user's other recommenders beside that of the first, re-ranked to the HR@10 of each."""
        curves = {name: self.trade_offs[name] for name in self.without_baselines if name in self.trade_offs}
        first, gaps = curves.pop(self.first, None), {}
        if first is None:
            return {}
        drawn = self.bootstrap
        for name, (as_ranked, *_) in curves.items():
            hit, value = float(as_ranked[HR].mean()), as_ranked[VALUE]
            of_first, _ = at_equal_hr(hit, first, VALUE)
            difference = paired_differences(
                {VALUE: value}, {VALUE: of_first}, drawn.seed, drawn.resamples, drawn.users
            )[VALUE]
            gaps[name] = ValueGap(hit, float(value.mean()), float(of_first.mean()), difference)
        return gaps

    def effort(self, name: str) -> Effort:
        """The cost of one of the user's recommenders."""
        recommender = self.recommenders[name]
        counted = recommender.about.get("parameters")
        return Effort(self.lineages[name], recommender.list_length, counted if isinstance(counted, int) else None)

    def counterparts(self, name: str) -> list[ReferenceRow]:
        """The published results to compare a recommender with; none if it is given more than the histories.

        These are the results of the same name or alias and the headline result of the source. If any settings name
        counterparts, only those named are used.
        """
        reference, recommender = self.reference, self.recommenders[name]
        if reference is None or recommender.given or name in self.baselines:
            return []
        if any(other.details.get("published") for other in self.recommenders.values()):
            return [row for row in reference.rows if row.name == recommender.details.get("published")][:1]
        return reference.counterparts(name)

    def reading_of(self, row: ReferenceRow, name: str) -> str:
        """The reading of a hit stated by a published result's source, where available; else the main one."""
        stated = self.reference.settings.get(row.group, {}) if self.reference else {}
        readings = [level for level in self.levels if self.recommenders[name].has(level)]
        return next((level for level in readings if HITS[level] == stated.get("hits")), readings[0])

    def gaps(self, name: str, row: ReferenceRow) -> list[PublishedGap]:
        """A recommender compared with a published result, in the reading that its source states."""
        return [
            PublishedGap(metric, row.metrics[metric], estimate, metric in row.doubtful)
            for metric, estimate in self.estimates(self.reading_of(row, name))[name].items()
            if metric in row.metrics
        ]


def choose_ks(
    requested: Sequence[int] | None, default: Sequence[int], recommenders: Sequence[RecommenderResults]
) -> list[int]:
    """The requested cutoffs, or the default ones within all lists.

    Raises:
        ConfigError: If a requested cutoff exceeds the lists of a recommender.
    """
    narrowest = min(
        (recommender.list_length for recommender in recommenders if recommender.list_length is not None), default=None
    )
    if requested is not None:
        return list(check_ks(requested, narrowest))
    return [k for k in default if narrowest is None or k <= narrowest] or [max(1, narrowest or 1)]


def read_results(
    runs: Sequence[RunSetting],
    examples: EvaluationSet,
    *,
    seed: int = 0,
    resamples: int = 2000,
    levels: Sequence[str] = ("item",),
    ks: Sequence[int] | None = None,
    metrics: Sequence[str] = (),
    first: str = "",
    reference: Reference | None = None,
    ceiling: str | None = None,
    stages: Mapping[str, str] | None = None,
    value_column: str = "",
) -> PageResults:
    """Read and check recommenders and baselines on the examples of one split.

    Args:
        runs: The recommenders; if more than `MANY`, the results are sorted by the headline metric.
        examples: The examples.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.
        levels: The readings of a hit, the main one first.
        ks: Cutoffs; those of the protocol within all lists if None.
        metrics: Metrics; those at the cutoffs if empty.
        first: The recommender that others are compared with, by its name in the settings; the first if empty.
        reference: Published figures.
        ceiling: JSON file of the expected metrics of the best possible ranking; ignored if it is of other examples.
        stages: Title of the trainings of each stage, by the stage's name.
        value_column: Column of the items with what each is worth; none if empty.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If a K is larger than the lists of some recommender, two have one name, or there is no such column.
        DataError: If a file is malformed.
    """
    split = examples.split
    recommenders = [
        read_recommender(run, split, examples)
        for run in progress(runs, f"reading ranks of {split} examples", unit="recommenders")
    ]
    named = {recommender.name: recommender for recommender in recommenders}
    if len(named) < len(recommenders):
        raise ConfigError(
            f"predictions: two of {', '.join(run.name for run in runs)} have the same name with their inputs. "
            "Give each its own name."
        )
    for recommender in recommenders:
        recommender.values(levels[0], ())  # raises if something is missing
        recommender.check_same_examples(recommenders[0], split)
    if not metrics:
        metrics = metrics_at(choose_ks(ks, examples.protocol.ks, recommenders), examples.protocol.mrr)
    ndcg = [name for name in metrics if name.startswith("NDCG")]
    headline = "NDCG@10" if "NDCG@10" in ndcg else [*metrics, *ndcg][-1]
    ks = sorted({int(name.partition("@")[2]) for name in metrics})
    baselines, chosen = baselines_of(runs, examples, ks)
    # A recommender replaces the baseline of its name.
    baselines = {name: recommender for name, recommender in baselines.items() if name not in named}
    groups = example_slices(examples.data, examples.rows, split)
    parts: list[Slice] = list_slices(groups)
    by_name = dict(zip((run.name for run in runs), recommenders, strict=True))
    results = PageResults(
        {**named, **baselines},
        levels,
        metrics,
        Bootstrap(seed, resamples, examples.rows.users.tolist()),
        parts,
        examples=examples,
        baselines=list(baselines),
        chosen=chosen,
        headline=headline,
        first=by_name[first].name if first in by_name else recommenders[0].name,
        reference=reference,
        ceiling=read_ceiling(ceiling, examples, metrics) if ceiling else {},
        alike=alike(groups),
        stages=stages or {},
        worth=_worth(examples.data.items, value_column) if value_column else None,
        value_column=value_column,
    )
    results = replace(results, slice_metrics=[name for name in metrics if name in results.pair])
    if len(recommenders) > MANY:
        means = results.means
        best_first = sorted(named, key=means.__getitem__, reverse=True)
        results = replace(results, recommenders={name: named[name] for name in best_first} | baselines)
    return results


def _worth(items: pd.DataFrame, column: str) -> np.ndarray:
    """What each item is worth, of mean 1: float64 (N,)."""
    if column not in items.columns:
        raise ConfigError(
            f"value_column is {shown(column)}, but the corpus has no such column of items; it has "
            f"{', '.join(items.columns)}."
        )
    values = item_values(items.set_index("item_id", drop=False)[column])
    of_mean_1: np.ndarray = values / values.mean()
    return of_mean_1


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def read_ceiling(file: str, examples: EvaluationSet, metrics: Sequence[str]) -> dict[str, float]:
    """Read the metrics of the ceiling by name; empty if the file is missing or of other examples.

    Raises:
        ArtefactError: If the file has another format.
    """
    if not Path(file).is_file():
        return {}
    content = read_json(file)
    values = content.get("ceiling", {}) if isinstance(content, dict) else None
    if not isinstance(values, dict) or not all(_is_share(value) for value in values.values()):
        raise ArtefactError(f"{file}: expected an object whose ceiling holds metrics from 0 to 1. Make it again.")
    for key, expected in (("split", examples.data.split), ("rows", len(examples.rows))):
        if content.get(key, expected) != expected:
            logger.warning("%s: is for %s %r, the report for %r; ignored.", file, key, content[key], expected)
            return {}
    ks = {name.partition("@")[2] for name in metrics}
    return {name.upper(): float(value) for name, value in values.items() if name.partition("@")[2] in ks}
