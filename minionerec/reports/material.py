"""What a report draws on: predictions checked against data and SIDs, baselines, and everything measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from minionerec.core.artefacts import fingerprint, read_json, read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.paths import find_path
from minionerec.data.kinds import read_kinds
from minionerec.data.protocols import ROWS
from minionerec.metrics.levels import LevelAnalysis, level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import KIND, Ranked, runs_at
from minionerec.metrics.ranking import (
    Evaluation,
    check_ks,
    coverage,
    invalid_count,
    item_ranks,
    list_width,
    sid_ranks,
)
from minionerec.metrics.statistics import PairedDifference
from minionerec.recommend.evaluation.baseline_lists import CONSTANTS_FILE, FILE, read_baseline_lists
from minionerec.recommend.rankers.baselines import NAMES, RECENT, Chosen, chosen_baselines
from minionerec.recommend.rankers.lists import rank_rows
from minionerec.recommend.rankers.protocol import Allowed
from minionerec.reports.config import ReportConfig
from minionerec.reports.ground import Ground, read_ground
from minionerec.reports.reference import Reference, load_reference
from minionerec.reports.slices import ByKind, measure_by_kind
from minionerec.reports.systems import Bootstrap, System, differences, estimates, load_system, metrics_at, opposite
from minionerec.sid.table import SidTable

# The baselines' lists that an evaluation of the same rows has made already.


def find_baseline_lists(
    config: ReportConfig, ground: Ground, table: SidTable | None, width: int
) -> tuple[dict[str, Predictions], Chosen] | None:
    """The baselines' lists and constants, of the first evaluation that has those which a report would make itself.

    These are lists of the same rows of a corpus with the same content, with the same SIDs, of as many candidates at
    least, with nothing left out.

    Args:
        config: The report's settings.
        ground: Its rows.
        table: Its SIDs; None where there are none.
        width: Candidates of each list.

    Returns:
        Baseline to its lists, and the constants; None where no evaluation has them.

    Raises:
        ArtefactError: If the file of an evaluation cannot be read.
    """
    if ground.protocol.name != ROWS or ground.protocol.seen == "mask":
        return None
    corpus = fingerprint(find_path(config.corpus))
    sids = None if table is None else table.fingerprint
    for path in config.predictions.values():
        for place in runs_at(find_path(path)):
            if _has_them(place, corpus, config.split, sids, width):
                return read_baseline_lists(place, ground.rows, width, table)
    return None


def _has_them(place: Path, corpus: str, split: str, sids: str | None, width: int) -> bool:
    """Whether an evaluation has the baselines' lists that are wanted."""
    manifest = read_manifest(place, KIND)
    counts = manifest["counts"]
    made = manifest["inputs"].get("corpus", {})
    return (
        {FILE, CONSTANTS_FILE} <= manifest["files"].keys()
        and made.get("sha256") == corpus
        and counts.get("split") == split
        and counts.get("sid_table") == sids
        and type(counts.get("beams")) is int
        and counts["beams"] >= width
    )


logger = get_logger(__name__)


@dataclass(frozen=True)
class Shown:
    """One recommender of a report.

    Attributes:
        system: Ranks of all its seeds, at SID level too where the report has SIDs.
        lists: What its first seed recommended, with SIDs where the report has them; None where it has lists of other
            rows alone.
        width: Candidates that those lists hold; 0 without lists.
    """

    system: System
    lists: Predictions | None
    width: int


@dataclass(frozen=True)
class Material:
    """Everything that the sections draw on.

    Attributes:
        config: The report's settings.
        ground: The rows that all recommenders were measured on, and the items.
        table: SIDs of the items; None where there are none.
        ks: Cut-offs.
        recommended: The user's recommenders by name, in the order of the tables.
        baselines: The baselines.
        chosen: Their constants, and what they reached on validation examples.
        evaluations: All of them, measured.
        levels: Their hit rates by level; of those that have lists, and only with SIDs.
        ceiling: What the best possible ranking of items may expect, by metric; empty where it is not known.
        reference: Published figures, if any are wanted.
        by_kind: The headline by kind of row; None where that is not wanted.
    """

    config: ReportConfig
    ground: Ground
    table: SidTable | None
    ks: tuple[int, ...]
    recommended: Mapping[str, Shown]
    baselines: Mapping[str, Shown]
    chosen: Chosen
    evaluations: Mapping[str, Evaluation]
    levels: Mapping[str, LevelAnalysis]
    ceiling: Mapping[str, float]
    reference: Reference | None
    by_kind: ByKind | None

    @property
    def everyone(self) -> dict[str, Shown]:
        """The user's recommenders, then the baselines."""
        return {**self.recommended, **self.baselines}

    @property
    def conditioned(self) -> list[str]:
        """The recommenders that were given more than the histories, as no published one was."""
        return [name for name, shown in self.recommended.items() if shown.system.given]

    @property
    def readings(self) -> tuple[str, ...]:
        """The readings of a hit, the main one first."""
        return ("item",) if self.table is None else ("sid", "item")

    @property
    def bootstrap(self) -> Bootstrap:
        """How intervals and paired tests are drawn."""
        return bootstrap_of(self.config, self.ground)

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, in the order of tables."""
        return metrics_at(self.ks, self.ground.protocol.mrr)

    @property
    def several_seeds(self) -> bool:
        """Whether some recommender was run with more than one seed."""
        return any(len(shown.system.runs) > 1 for shown in self.recommended.values())

    @property
    def headline(self) -> str:
        """The metric that is shown first."""
        return "NDCG@10" if 10 in self.ks else f"NDCG@{self.ks[-1]}"

    @cached_property
    def to_first(self) -> dict[str, dict[str, dict[str, PairedDifference]]]:
        """How far the others lie from the first recommender: by reading, name and metric."""
        first, *others = self.everyone
        return {
            level: {name: self._differences(name, first, level, self.metrics) for name in others}
            for level in self.readings
        }

    def difference(self, name: str, other: str) -> PairedDifference:
        """One recommender minus another by the headline and the main reading, from the same resamples as `to_first`."""
        first, level, metric = next(iter(self.everyone)), self.readings[0], self.headline
        if other == first:
            return self.to_first[level][name][metric]
        if name == first:
            return opposite(self.to_first[level][other][metric])
        return self._differences(name, other, level, [metric])[metric]

    def _differences(self, name: str, other: str, level: str, metrics: Sequence[str]) -> dict[str, PairedDifference]:
        mine, theirs = self.everyone[name].system, self.everyone[other].system
        return differences(mine, theirs, level, metrics, self.bootstrap)


def gather(config: ReportConfig) -> Material:
    """Read and check everything, and measure.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If a K is larger than the lists of some recommender, or a name is taken by a baseline.
        DataError: If a file is malformed.
    """
    taken = [name for name in config.predictions if name in NAMES]
    if taken:
        raise ConfigError(f"predictions names {taken[0]!r}, as one of the baselines. Give each its own name.")
    ground, table = read_ground(config), None
    if config.sids:
        read_manifest(find_path(config.sids), "sids")
        table = SidTable.load_index(find_path(config.sids), ground.items["item_id"].astype(str).tolist())
    shown = [load_shown(name, find_path(path), config, ground, table) for name, path in config.predictions.items()]
    recommended = {each.system.name: each for each in shown}
    if len(recommended) < len(shown):
        raise ConfigError(
            f"predictions: two of {', '.join(config.predictions)} are called the same with what they were given. Give "
            "each its own name."
        )
    ks = choose_ks(config.ks, ground.protocol.ks, [shown.system for shown in recommended.values()])
    baselines, chosen = _shown_baselines(config, ground, table, ks)
    everyone = {**recommended, **baselines}
    return Material(
        config=config,
        ground=ground,
        table=table,
        ks=ks,
        recommended=recommended,
        baselines=baselines,
        chosen=chosen,
        evaluations={name: evaluate(shown, config, ground, table, ks) for name, shown in everyone.items()},
        levels={} if table is None else _levels(everyone, ks),
        ceiling=load_ceiling(config, ground, ks),
        reference=load_reference(config.reference) if config.reference else None,
        by_kind=_by_kind(everyone, config, ground, "item" if table is None else "sid", ks) if config.slices else None,
    )


def bootstrap_of(config: ReportConfig, ground: Ground) -> Bootstrap:
    """How intervals and paired tests are drawn from the rows of a report."""
    return Bootstrap.of(config.seed, config.resamples, config.resample, ground.rows.users)


def with_sids(predictions: Predictions, table: SidTable | None) -> Predictions:
    """Fill in the SIDs of a recommender that ranks items alone."""
    if table is None or any(predictions.target_sids):
        return predictions
    sids = table.sids
    return replace(
        predictions,
        target_sids=[sids[target] if target >= 0 else "" for target in predictions.targets],
        sids=[[sids[item] if item >= 0 else "" for item in row] for row in predictions.items],
    )


def load_shown(name: str, path: Path, config: ReportConfig, ground: Ground, table: SidTable | None) -> Shown:
    """One recommender, its seeds checked against data and SIDs.

    Raises:
        ArtefactError: If it is about other rows, or was made with another SID table.
    """
    system, places = load_system(name, path, config.split), runs_at(path)
    for place, run in zip(places, system.runs, strict=True):
        check_rows(f"{place} ({name})", run.targets, config, ground)
    if str(read_manifest(places[0], KIND)["counts"].get("split", config.split)) != config.split:
        return Shown(system, None, 0)  # its ranks are of more splits than its lists
    lists = [load_lists(name, place, config, ground, table) for place in places[: _needed(system, table)]]
    if table is not None:
        runs = [with_sid_ranks(run, made) for run, made in zip(system.runs, lists, strict=False)]
        system = replace(system, runs=[*runs, *system.runs[len(runs) :]])
    return Shown(system, lists[0], list_width(lists[0], places[0]))


def _needed(system: System, table: SidTable | None) -> int:
    """Of how many seeds the lists are read: of the first, or of all where SID-level ranks come from lists."""
    return 1 if table is None or all("sid" in run.ranks for run in system.runs) else len(system.runs)


def with_sid_ranks(run: Ranked, lists: Predictions) -> Ranked:
    """The same ranks with those at SID level, which lists give where there are no full ones."""
    if "sid" in run.ranks:
        return run
    width = list_width(lists) if run.width is None else run.width
    return replace(run, ranks={**run.ranks, "sid": sid_ranks(lists)}, width=width)


def load_lists(name: str, place: Path, config: ReportConfig, ground: Ground, table: SidTable | None) -> Predictions:
    """The lists of one seed, checked against data and SIDs; SIDs are filled in where a recommender has none.

    Raises:
        ArtefactError: If they are of other rows or items, or were made with another SID table.
    """
    predictions = Predictions.load(place)
    check_rows(f"{place} ({name})", predictions.targets, config, ground)
    largest = max((max(row, default=-1) for row in predictions.items), default=-1)
    if largest >= len(ground.items):
        raise ArtefactError(
            f"{place} ({name}): lists item {largest}, but there are {len(ground.items)}. Predict for this corpus."
        )
    predictions = with_sids(predictions, table)
    if table is not None:
        sids = table.sids
        for row, (target, sid) in enumerate(zip(ground.rows.targets, predictions.target_sids, strict=True)):
            if sid != sids[target]:
                raise ArtefactError(
                    f"{place} ({name}): the target of row {row} has SID {sid!r}, in {config.sids} it is "
                    f"{sids[target]!r}. The predictions were made with another SID table: point sids at theirs."
                )
    return predictions


def check_rows(where: str, targets: np.ndarray, config: ReportConfig, ground: Ground) -> None:
    """Check that ranks or lists are of the rows that the data say.

    Raises:
        ArtefactError: Naming the first row that is another.
    """
    remedy = "Predict for this corpus and split, or set split."
    if ground.protocol.name != ROWS:
        remedy += (
            " Check protocol, and that items names the file that the model was trained with: it numbers the items."
        )
    if len(targets) != len(ground.rows):
        raise ArtefactError(
            f"{where}: {len(targets)} rows, but the {config.split} split of {config.corpus} has {len(ground.rows)}. "
            f"{remedy}"
        )
    other = np.flatnonzero(np.asarray(targets) != ground.rows.targets)
    if len(other):
        raise ArtefactError(
            f"{where}: row {other[0]} has target {targets[other[0]]}, in the {config.split} split of {config.corpus} "
            f"it is {ground.rows.targets[other[0]]}. {remedy}"
        )


def choose_ks(wanted: Sequence[int] | None, usual: Sequence[int], systems: Sequence[System]) -> tuple[int, ...]:
    """The cut-offs: those wanted, or the protocol's within all lists.

    Raises:
        ConfigError: If one that is wanted is larger than the lists of some recommender.
    """
    narrowest = min((system.width for system in systems if system.width is not None), default=None)
    if wanted is not None:
        return check_ks(wanted, narrowest)
    within = tuple(k for k in usual if narrowest is None or k <= max(1, narrowest))
    return within or (max(1, narrowest or 1),)


def _shown_baselines(
    config: ReportConfig, ground: Ground, table: SidTable | None, ks: Sequence[int]
) -> tuple[dict[str, Shown], Chosen]:
    """The baselines on the report's rows, measured by one of the evaluations, or else here; and their constants."""
    width = min(ks[-1], ground.n_items if table is None else table.n_unique)
    found = find_baseline_lists(config, ground, table, width)
    if found is None:
        return make_shown_baselines(ground, table, ks)
    return {name: _as_shown(name, lists, table, ks) for name, lists in found[0].items()}, found[1]


def _as_shown(name: str, lists: Predictions, table: SidTable | None, ks: Sequence[int]) -> Shown:
    """A baseline from its lists."""
    ranks = {"item": item_ranks(lists)} | ({} if table is None else {"sid": sid_ranks(lists)})
    return Shown(System(name, [Ranked(lists.users, lists.targets, ranks, ks[-1])]), lists, ks[-1])


def make_shown_baselines(ground: Ground, table: SidTable | None, ks: Sequence[int]) -> tuple[dict[str, Shown], Chosen]:
    """The baselines on the report's rows, with seen items masked as the protocol masks them; and their constants."""
    masked = ground.protocol.seen == "mask"
    allowed = Allowed.leaving_out(ground.rows.histories, ground.rows.n_items) if masked else None
    reach = min(ks[-1], ground.n_items if table is None else table.n_unique)
    found = {}
    chosen, rankers = chosen_baselines(ground.data, table, masked=masked)
    for name, baseline in rankers.items():
        if masked and name == RECENT:
            continue
        lists = rank_rows(baseline, ground.rows, reach, table=table, allowed=allowed)
        found[name] = _as_shown(name, lists, table, ks)
    return found, chosen


def evaluate(
    shown: Shown, config: ReportConfig, ground: Ground, table: SidTable | None, ks: tuple[int, ...]
) -> Evaluation:
    """All metrics of one recommender: of the ranks of all seeds, and of the lists of the first."""
    names = metrics_at(ks, ground.protocol.mrr)
    lists, n_items, bootstrap = shown.lists, ground.n_items, bootstrap_of(config, ground)
    valid = None if table is None else set(table.sids)
    counted = lists if valid is not None else None
    within = [k for k in ks if k <= shown.width]
    return Evaluation(
        rows=len(ground.rows),
        ks=ks,
        width=n_items if shown.system.width is None else shown.system.width,
        sid=None if table is None else estimates(shown.system, "sid", names, bootstrap),
        item=estimates(shown.system, "item", names, bootstrap),
        predictions=sum(len(row) for row in lists.items) if lists else 0,
        invalid=invalid_count(counted, valid or ()) if counted else None,
        invalid_until_hit=invalid_count(counted, valid or (), stop_at_hit=True) if counted else None,
        empty=sum(len(row) == 0 for row in lists.items) if lists else 0,
        coverage={k: coverage(lists, k, n_items) for k in within} if lists else None,
    )


def _levels(everyone: Mapping[str, Shown], ks: Sequence[int]) -> dict[str, LevelAnalysis]:
    return {
        name: level_analysis(
            shown.lists, [k for k in ks if k <= shown.width] or [max(1, shown.width)], width=shown.width, where=name
        )
        for name, shown in everyone.items()
        if shown.lists is not None
    }


def _by_kind(
    everyone: Mapping[str, Shown], config: ReportConfig, ground: Ground, level: str, ks: Sequence[int]
) -> ByKind:
    """HR and NDCG of everyone by kind of row, at the headline's cut-off."""
    times = find_path(config.times) if config.times else None
    kinds = read_kinds(ground.data, ground.rows, config.split, times if times and times.is_file() else None)
    k = 10 if 10 in ks else ks[-1]
    systems = [shown.system for shown in everyone.values()]
    told = list(everyone)[: len(config.predictions)]
    metrics = [f"HR@{k}", f"NDCG@{k}"]
    return measure_by_kind(systems, kinds, level, metrics, bootstrap_of(config, ground), told=told)


def load_ceiling(config: ReportConfig, ground: Ground, ks: Sequence[int]) -> dict[str, float]:
    """The ceiling's metrics by name, empty where there is none for this split."""
    if config.ceiling is None or not find_path(config.ceiling).is_file():
        return {}
    content = read_json(find_path(config.ceiling))
    values = content.get("ceiling", {}) if isinstance(content, dict) else {}
    for key, ours in (("split", ground.title), ("rows", len(ground.rows))):
        if content.get(key, ours) != ours:
            logger.warning("%s: is for %s %r, the report for %r: left out.", config.ceiling, key, content[key], ours)
            return {}
    return {name.upper(): float(value) for name, value in values.items() if int(name.partition("@")[2] or 0) in ks}
