"""Everything that the page draws on: recommenders measured on the same rows, baselines, published rows, differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import fingerprint, read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.paths import find_path
from minionerec.metrics.predictions import FILE, labelled
from minionerec.metrics.ranking import Estimate
from minionerec.metrics.seeds import estimate_seeds, seed_differences
from minionerec.metrics.statistics import PairedDifference
from minionerec.recommend.evaluation.baseline_lists import CONSTANTS_FILE, read_chosen
from minionerec.recommend.rankers.baselines import NAMES, POPULARITY, Chosen
from minionerec.reports.config import EXAMPLES, ReportConfig
from minionerec.reports.experiment_log.entry import stated_reading
from minionerec.reports.experiment_log.gaps import Gap, gaps_to
from minionerec.reports.ground import Ground, read_ground
from minionerec.reports.leaderboard.config import LeaderboardConfig, RowSetting
from minionerec.reports.leaderboard.effort import Effort, find_effort
from minionerec.reports.material import check_rows, load_lists, with_sid_ranks
from minionerec.reports.reference import Reference, ReferenceRow, load_reference
from minionerec.reports.systems import Bootstrap, System, load_runs
from minionerec.sid.table import SidTable, split_sid

SID, OWN_SIDS, TITLE, NOTHING = "SID", "own SIDs", "title", "—"
"""What a recommender's first reading counts: the SIDs of the page, SIDs of its own, titles, or nothing but items."""
LEVELS = ("sid", "item")
Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class BoardLine:
    """One recommender.

    Attributes:
        setting: What the settings say of it.
        values: "LEVEL METRIC" to the value of each seed and row, float64 (S, R); empty while it is pending.
        grouped: What its "sid" level counts: `SID`, `OWN_SIDS`, `TITLE` or `NOTHING`.
        estimates: Level to metric to mean, interval and sd over seeds.
        effort: What it took; None while it is pending.
        row: Its published counterpart; None without one, and where it was given what no published row was.
        level: The reading in which it is set beside that.
        gaps: The metrics that both have.
        against: As `estimates`, the paired difference from the baseline; empty for the baseline itself, or without one.
        given: What it was given beyond the histories; nothing if empty.
    """

    setting: RowSetting
    values: Values = field(default_factory=dict)
    grouped: str = NOTHING
    estimates: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    effort: Effort | None = None
    row: ReferenceRow | None = None
    level: str = LEVELS[0]
    gaps: Sequence[Gap] = ()
    against: Mapping[str, Mapping[str, PairedDifference]] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name, with what it was given beyond the histories."""
        return labelled(self.setting.name, self.given)

    @property
    def pending(self) -> bool:
        """Whether there are no predictions yet."""
        return not self.values

    def found(self, level: str, metric: str) -> Estimate | None:
        """One metric; None where it is not known."""
        return self.estimates.get(level, {}).get(metric)


@dataclass(frozen=True)
class Baselines:
    """What needs no training, as one of the evaluations measured it.

    Attributes:
        source: The recommender whose evaluation that was.
        chosen: Their constants; None of an evaluation that does not say them.
        estimates: Name to level to metric to estimate.
        resampled: What that evaluation drew for the intervals.
    """

    source: str
    chosen: Chosen | None
    estimates: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
    resampled: str


@dataclass(frozen=True)
class Board:
    """Everything that the page draws on.

    Attributes:
        config: The settings.
        ground: The rows that all were measured on.
        table: SIDs of the items; None where none are given.
        lines: The recommenders in the order of the page.
        baselines: The baselines; None where no evaluation has them.
        reference: Published figures, if any are wanted.
    """

    config: LeaderboardConfig
    ground: Ground
    table: SidTable | None
    lines: Sequence[BoardLine]
    baselines: Baselines | None
    reference: Reference | None

    @property
    def bootstrap(self) -> Bootstrap:
        """How intervals and paired tests are drawn."""
        return _bootstrap(self.config, self.ground)

    @property
    def metrics(self) -> list[str]:
        """Columns of the tables: HR by K, NDCG by K."""
        return metric_names(self.config.ks)

    @property
    def pair(self) -> list[str]:
        """The headline, and the other metric at its cut-off."""
        kind, _, k = self.config.headline.partition("@")
        return [self.config.headline, f"{'HR' if kind == 'NDCG' else 'NDCG'}@{k}"]

    @property
    def finished(self) -> list[BoardLine]:
        """The recommenders that are measured, the best by the headline first."""
        finished = [line for line in self.lines if not line.pending]
        return sorted(finished, key=lambda line: -self.score(line))

    def score(self, line: BoardLine) -> float:
        """The headline of one recommender."""
        return line.estimates[self.config.level][self.config.headline].mean

    @cached_property
    def to_leader(self) -> dict[str, PairedDifference]:
        """How far each of the others lies from the leader by the headline."""
        leader, *others = self.finished
        key = f"{self.config.level} {self.config.headline}"
        return {
            line.name: _differences({key: line.values[key]}, {key: leader.values[key]}, self.bootstrap)[key]
            for line in others
        }

    @property
    def level_with_leader(self) -> list[str]:
        """Names of those that these rows cannot tell from the leader, and of the leader."""
        leader = self.finished[0].name
        return [leader, *(name for name, found in self.to_leader.items() if found.low <= 0 <= found.high)]


def _bootstrap(config: LeaderboardConfig, ground: Ground) -> Bootstrap:
    return Bootstrap.of(config.seed, config.resamples, config.resample, ground.rows.users)


def _differences(mine: Values, theirs: Values, bootstrap: Bootstrap) -> dict[str, PairedDifference]:
    return seed_differences(mine, theirs, bootstrap.seed, bootstrap.resamples, bootstrap.clusters)


def metric_names(ks: Sequence[int]) -> list[str]:
    """HR at every K, then NDCG."""
    return [f"{kind}@{k}" for kind in ("HR", "NDCG") for k in ks]


def gather(config: LeaderboardConfig) -> Board:
    """Read and check everything, and measure.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If no row is finished, or a K is larger than the lists of some recommender.
        DataError: If a file is malformed.
    """
    data = _report_config(config)
    ground, table = read_ground(data), None
    if config.sids:
        read_manifest(find_path(config.sids), "sids")
        table = SidTable.load_index(find_path(config.sids), ground.items["item_id"].astype(str).tolist())
    reference = load_reference(config.reference) if config.reference else None
    lines = [_line(row, config, data, ground, table, reference) for row in config.parsed()]
    if all(line.pending for line in lines):
        first = lines[0].setting.places[0]
        raise ConfigError(f"rows: none of {len(lines)} has predictions, {first} among them. Finish one first.")
    lines = _with_differences(lines, config, _bootstrap(config, ground))
    return Board(config, ground, table, _ordered(lines, config), _baselines(lines, config, ground, table), reference)


def _report_config(config: LeaderboardConfig) -> ReportConfig:
    return ReportConfig(
        corpus=config.corpus,
        items=config.items,
        protocol=config.protocol,
        predictions={row.name: str(row.places[0]) for row in config.parsed()},
        output=config.output,
        split=config.split,
        slices=False,
    )


def _line(
    row: RowSetting,
    config: LeaderboardConfig,
    data: ReportConfig,
    ground: Ground,
    table: SidTable | None,
    reference: Reference | None,
) -> BoardLine:
    """One recommender, measured."""
    theirs = next((each for each in reference.rows if each.name == row.published), None) if reference else None
    places = row.runs
    if not places:
        return BoardLine(row, row=theirs)
    _check_distinct(row, places)
    system = load_runs(row.name, places, config.split)
    for place, run in zip(places, system.runs, strict=True):
        check_rows(f"{place} ({row.name})", run.targets, data, ground)
    theirs = None if system.given else theirs
    grouped = _grouped(places[0], system, ground, table)
    if table is not None and any("sid" not in run.ranks for run in system.runs):
        lists = [load_lists(row.name, place, data, ground, table) for place in places]
        pairs = zip(system.runs, lists, strict=True)
        system, grouped = replace(system, runs=[with_sid_ranks(run, made) for run, made in pairs]), SID
    levels = [level for level in LEVELS if all(level in run.ranks for run in system.runs)]
    if config.level not in levels:
        raise ConfigError(f"rows: {row.name}: has no SIDs, by which level sid counts. Give sids, or level item.")
    names = metric_names(config.ks)
    values = {f"{level} {name}": found for level in levels for name, found in system.values(level, names).items()}
    drawn = _bootstrap(config, ground)
    by_level = _by_level(estimate_seeds(values, drawn.seed, drawn.resamples, drawn.clusters))
    stated = reference.settings.get(theirs.group, {}) if reference and theirs else {}
    level = stated_reading(stated, sorted(levels, key=lambda level: level != config.level))
    return BoardLine(
        setting=row,
        values=values,
        grouped=grouped,
        estimates=by_level,
        effort=find_effort(row.name, places, system),
        row=theirs,
        level=level,
        gaps=gaps_to(theirs, by_level[level]) if theirs else (),
        given=system.given,
    )


def _check_distinct(row: RowSetting, places: Sequence[Path]) -> None:
    """Check that no run is a copy of another: it would count twice, and shrink the spread over seeds."""
    known: dict[str, Path] = {}
    for place in places:
        other = known.setdefault(fingerprint(place), place)
        if other != place:
            raise ConfigError(f"rows: {row.name}: {place} holds the same files as {other}. Name each seed's own run.")


def _by_level(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by "LEVEL METRIC" as level to metric to value."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        level, _, metric = key.partition(" ")
        found.setdefault(level, {})[metric] = value
    return found


def _grouped(place: Path, system: System, ground: Ground, table: SidTable | None) -> str:
    """What the "sid" level of predictions counts."""
    if not all("sid" in run.ranks for run in system.runs):
        return NOTHING
    rows = pd.read_parquet(place / FILE, columns=["row", "target_sid"]).drop_duplicates("row").sort_values("row")
    theirs = rows["target_sid"].tolist()
    if any(text and split_sid(text) is None for text in theirs):
        return TITLE
    ours = [table.sids[target] for target in ground.rows.targets] if table is not None else []
    return SID if theirs == ours else OWN_SIDS


def _with_differences(lines: Sequence[BoardLine], config: LeaderboardConfig, bootstrap: Bootstrap) -> list[BoardLine]:
    """The lines with their paired differences from the baseline."""
    base = next((line for line in lines if line.setting.name == config.baseline and not line.pending), None)
    if base is None:
        return list(lines)
    found = []
    for line in lines:
        gaps = {} if line is base else _differences(line.values, base.values, bootstrap)
        found.append(replace(line, against=_by_level(gaps)))
    return found


def _ordered(lines: Sequence[BoardLine], config: LeaderboardConfig) -> list[BoardLine]:
    """The lines in the order of the page: pending ones last, unless they stand as given."""
    if config.order == "given":
        return list(lines)

    def key(line: BoardLine) -> tuple[bool, float]:
        if line.effort is None:
            return True, 0.0
        if config.order == "headline":
            return False, -line.estimates[config.level][config.headline].mean
        value = line.effort.parameters if config.order == "parameters" else line.effort.seconds
        return False, float("inf") if value is None else float(value)

    return sorted(lines, key=key)


def _baselines(
    lines: Sequence[BoardLine], config: LeaderboardConfig, ground: Ground, table: SidTable | None
) -> Baselines | None:
    """The baselines of the first evaluation that has them by the SIDs of the page; else by item, of the first."""
    measured = {line.name: found for line in lines if (found := _measured(line, config, len(ground.rows)))}
    same = [name for name, found in measured.items() if table and found.get("sid_table") == table.fingerprint]
    source = next(iter(same or measured), None)
    if source is None:
        return None
    levels = LEVELS if same else LEVELS[1:]
    names = [name for name in NAMES if name not in {line.setting.name for line in lines}]
    known = {name: found for name in names if (found := measured[source]["recommenders"].get(name))}
    found = {
        name: {
            level: {metric: Estimate(*numbers) for metric, numbers in (each.get(level) or {}).items()}
            for level in levels
        }
        for name, each in known.items()
    }
    drawn = str(measured[source].get("resampled", EXAMPLES))  # as before users were
    return Baselines(source, measured[source]["chosen"], found, drawn) if found else None


def _measured(line: BoardLine, config: LeaderboardConfig, rows: int) -> dict[str, Any] | None:
    """What an evaluation of one recommender wrote, where it measured the baselines too on the page's rows."""
    for place in line.setting.runs:
        file = place / "metrics.json"
        content = read_json(file) if file.is_file() else {}
        baselines = content.get("recommenders", {}).get(POPULARITY)
        if baselines and content.get("split") == config.split and baselines["rows"] == rows:
            chosen = read_chosen(place) if (place / CONSTANTS_FILE).is_file() else None
            return {**content, "chosen": chosen}
    return None
