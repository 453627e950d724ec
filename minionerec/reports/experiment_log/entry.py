"""One data set of the log: its stages measured on the same rows, and what they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import is_artefact, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.paths import find_path
from minionerec.data.protocols import ROWS
from minionerec.metrics.levels import LevelAnalysis
from minionerec.metrics.ranking import Estimate
from minionerec.reports.config import ReportConfig
from minionerec.reports.experiment_log.config import EntrySetting, ExperimentLogConfig
from minionerec.reports.experiment_log.gaps import Gap, SettingLine, Value, gaps_to, setting_lines
from minionerec.reports.experiment_log.lineage import RL, Lineage, Training, trace
from minionerec.reports.experiment_log.rules import StagePair
from minionerec.reports.experiment_log.trainings import our_settings
from minionerec.reports.material import Material, gather
from minionerec.reports.reference import UNKNOWN, ReferenceRow
from minionerec.reports.systems import differences

ONE_BY_ONE = 4
"""Stages that are each compared with the one before; of more, all are compared with the first."""

HITS = {"sid": "the SID of the target", "item": "the target itself"}
"""A reading → what settings say of it."""


@dataclass(frozen=True)
class Beside:
    """A stage beside a published row.

    Attributes:
        stage: The stage.
        row: The row.
        level: The reading of a hit that the row's source states; our first one where it states none.
        gaps: The metrics that both have.
        lines: Their settings, theirs beside ours.
    """

    stage: str
    row: ReferenceRow
    level: str
    gaps: Sequence[Gap]
    lines: Sequence[SettingLine]

    @property
    def theirs(self) -> str:
        """The row by name and source."""
        return f"{self.row.name} ({self.row.group})"


@dataclass(frozen=True)
class Entry:
    """One data set of the log.

    Attributes:
        setting: What the settings say of it.
        material: Its finished stages, measured.
        lineages: Name of each stage (its label, with what it was given), pending ones too, to what it comes from.
        trainings: All trainings behind the stages, each once, the first first.
        steps: Paired differences between stages.
    """

    setting: EntrySetting
    material: Material
    lineages: Mapping[str, Lineage]
    trainings: Sequence[Training]
    steps: Sequence[StagePair]

    @property
    def name(self) -> str:
        """Its name."""
        return self.setting.name

    @property
    def level(self) -> str:
        """The reading of a hit that its tables show first: "sid" or "item"."""
        return self.material.readings[0]

    @property
    def protocol(self) -> str:
        """How its rows were split."""
        ground = self.material.ground
        return ground.title if ground.protocol.name == ROWS else ground.protocol.title

    @property
    def names(self) -> list[str]:
        """The metrics of its tables, in their order."""
        return log_metrics(self.material)

    @property
    def finished(self) -> list[str]:
        """Labels of the stages that are measured."""
        return list(self.material.recommended)

    @property
    def compared(self) -> str:
        """The stage that is set beside the published headline: the last finished one of RL, else the last.

        Stages that were given more than the histories are not, unless there are no others.
        """
        among = self.comparable or self.finished
        own = {label: self.lineages[label].own for label in among}
        return next((label for label in reversed(own) if (t := own[label]) and t.stage == RL), among[-1])

    @property
    def comparable(self) -> list[str]:
        """The finished stages that were given the histories alone, as published rows were."""
        return [label for label in self.finished if label not in self.material.conditioned]

    @property
    def levels(self) -> dict[str, LevelAnalysis]:
        """Hit rates by level of the finished stages that have them."""
        return {label: self.material.levels[label] for label in self.finished if label in self.material.levels}

    def estimates(self, stage: str, level: str | None = None) -> Mapping[str, Estimate]:
        """The metrics of a stage, in one reading."""
        return self.material.evaluations[stage].metrics(level or self.level)

    @property
    def headline(self) -> ReferenceRow | None:
        """The published row that the compared stage is set beside; None where it was given more than published ones."""
        reference = self.material.reference
        if self.compared in self.material.conditioned:
            return None
        return None if reference is None else next(row for row in reference.rows if row.name == reference.headline)

    @cached_property
    def beside(self) -> list[Beside]:
        """The compared stage beside the published headline, then each stage beside a published row of its own."""
        reference, headline = self.material.reference, self.headline
        if reference is None or headline is None:
            return []
        pairs = [(label, row) for label in self.comparable for row in reference.own_counterparts(label)]
        first = (self.compared, headline)
        return [self._beside(label, row) for label, row in [first, *(pair for pair in pairs if pair != first)]]

    def _beside(self, stage: str, row: ReferenceRow) -> Beside:
        reference = self.material.reference
        theirs = reference.settings.get(row.group, {}) if reference else {}
        level = stated_reading(theirs, self.material.readings)
        gaps = gaps_to(row, self.estimates(stage, level))
        ours = self.our_settings(stage, level)
        if not any(key.startswith("rl_") for key in ours):  # a stage without RL is set beside what came before theirs
            theirs = {key: value for key, value in theirs.items() if not key.startswith("rl_")}
        return Beside(stage, row, level, gaps, setting_lines(theirs, ours))

    @property
    def gaps(self) -> Sequence[Gap]:
        """The compared stage beside the headline; empty without published figures."""
        return self.beside[0].gaps if self.beside else []

    @property
    def reading(self) -> str:
        """The reading of a hit in which the compared stage is set beside others."""
        return self.beside[0].level if self.beside else self.level

    def our_settings(self, stage: str, level: str) -> dict[str, Value]:
        """What a stage was made with and is read by, by the names that published settings go by."""
        table, lineage = self.material.table, self.lineages[stage]
        width = self.material.recommended[stage].system.width
        search = str((lineage.predictions or {}).get("settings", {}).get("search", "")) or UNKNOWN
        return {
            **our_settings(lineage.trainings),
            "protocol": self.protocol,
            "sids": "none" if table is None else f"{sid_method(self.setting.sids)}, {table.levels} levels",
            "hits": HITS[level],
            "decoder": "full ranking" if width is None else _DECODERS.get(search, search),
            **({} if width is None else {"beams": width}),
        }

    @property
    def warnings(self) -> list[str]:
        """What a reader should know of this entry's numbers."""
        found = [
            f"{self.name}: {label} is pending." for label, lineage in self.lineages.items() if not lineage.predictions
        ]
        for label, lineage in self.lineages.items():
            if lineage.predictions and not lineage.trainings and not lineage.missing:
                found.append(f"{self.name}: the predictions of {label} name no checkpoint.")
            found += [
                f"{self.name}: {place}, which {label} was made from, is not there as it was; its settings are left out."
                for place in lineage.missing
            ]
        reference = self.material.reference
        for row, metric in reference.doubtful if reference else ():
            found.append(f"{self.name}: the published {metric} of {row.name}, {row.shown(metric)}, cannot be right.")
        return found


def stated_reading(theirs: Mapping[str, Any], readings: Sequence[str]) -> str:
    """The reading of a hit that published settings state, where it is one of ours; our first one where it is not."""
    return next((level for level in readings if HITS[level] == theirs.get("hits")), readings[0])


_DECODERS = {
    "beam": "constrained beam search, nothing drawn",
    "exact": "exact search of the catalogue",
    "stock": "constrained beam search of transformers, nothing drawn",
}


def sid_method(sids: str) -> str:
    """How a table of SIDs was made, as its manifest says it."""
    place = find_path(sids)
    return str(read_manifest(place)["config"].get("method", "unknown")) if is_artefact(place) else "unknown"


def gather_entry(setting: EntrySetting, config: ExperimentLogConfig) -> Entry:
    """Measure the finished stages of one data set, and find what all of them come from.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If no stage is finished, or a K is larger than the lists of some stage.
        DataError: If a file is malformed.
    """
    if not setting.finished:
        first = next(iter(setting.stages.values())).predictions
        raise ConfigError(
            f"entries: {setting.name}: none of its stages has predictions, {first} among them. Finish one, or leave "
            "the entry out."
        )
    material = gather(_report_config(setting, config))
    shown = dict(zip(setting.finished, material.recommended, strict=True))
    names = {label: shown.get(label, label) for label in setting.stages}
    lineages = {names[label]: trace(names[label], stage) for label, stage in setting.stages.items()}
    return Entry(setting, material, lineages, _trainings(lineages), _steps(material))


def _report_config(setting: EntrySetting, config: ExperimentLogConfig) -> ReportConfig:
    return ReportConfig(
        corpus=setting.corpus,
        items=setting.items,
        protocol=setting.protocol,
        sids=setting.sids,
        predictions={label: str(stage.predictions) for label, stage in setting.finished.items()},
        output=str(Path(config.output)),
        split=setting.split,
        ks=config.ks,
        reference=setting.reference or None,
        seed=config.seed,
        resamples=config.resamples,
        resample=config.resample,
        slices=False,
    )


def log_metrics(material: Material) -> list[str]:
    """HR and NDCG at every cut-off, and MRR where the protocol reports it at every one."""
    kinds = ("HR", "NDCG", "MRR") if material.ground.protocol.mrr else ("HR", "NDCG")
    return [f"{kind}@{k}" for kind in kinds for k in material.ks]


def _trainings(lineages: Mapping[str, Lineage]) -> list[Training]:
    """All trainings once, by place; each under the name of the stage whose predictions are its own."""
    names = {own.path.absolute(): label for label, lineage in lineages.items() if (own := lineage.own) is not None}
    found: dict[Path, Training] = {}
    for lineage in lineages.values():
        for training in lineage.trainings:
            place = training.path.absolute()
            found.setdefault(place, replace(training, name=names.get(place, training.name)))
    return list(found.values())


def _steps(material: Material) -> list[StagePair]:
    labels = list(material.recommended)
    pairs = pairwise(labels) if len(labels) <= ONE_BY_ONE else ((labels[0], label) for label in labels[1:])
    names = log_metrics(material)
    found = []
    for before, after in pairs:
        first, second = (material.recommended[label].system for label in (before, after))
        gaps = differences(second, first, material.readings[0], names, material.bootstrap)
        found.append(StagePair(after, before, gaps))
    return found


def pending(setting: EntrySetting) -> dict[str, Any]:
    """How far each unfinished stage is, for the question whether a log is up to date."""
    found = {}
    for label in setting.stages.keys() - setting.finished.keys():
        trainings = trace(label, setting.stages[label]).trainings
        found[label] = [list(training.progress or ()) for training in trainings]
    return dict(sorted(found.items()))
