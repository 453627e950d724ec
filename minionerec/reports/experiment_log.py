"""The stage `experiment-log`: any number of data sets with their stages, how they were trained, and all side by side.

OUTPUT/experiment_log.md, .html   the log; the HTML file loads nothing
OUTPUT/experiment_log.json        every number of it, unrounded
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import is_artefact, read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.records import duration
from minionerec.core.stage import Stage
from minionerec.core.stages import StageResult
from minionerec.metrics.levels import LevelAnalysis
from minionerec.metrics.tables import format_percent, format_share, transition_label
from minionerec.reports import sections
from minionerec.reports.cells import shown_setting, signed_percent
from minionerec.reports.config import EntrySetting, ExperimentLogConfig
from minionerec.reports.document import Block, Cell, Section, Table
from minionerec.reports.findings import findings
from minionerec.reports.html import write_page
from minionerec.reports.lineage import RL, SFT, Lineage, Training, changes
from minionerec.reports.provenance import configuration
from minionerec.reports.reference import (
    HITS,
    UNKNOWN,
    PublishedGap,
    ReferenceRow,
    load_reference,
    setting_lines,
    spread,
)
from minionerec.reports.report import results_json
from minionerec.reports.results import EvaluationSet, PageResults, read_results
from minionerec.reports.sections import PENDING, TableRow
from minionerec.reports.trainings import (
    NOT_RECORDED,
    TITLES,
    Value,
    backbone,
    learning_points,
    machine,
    our_settings,
    outcome,
    parameters,
)

logger = get_logger(__name__)

NAME = "experiment_log"
_DECODERS = {
    "beam": "constrained beam search, no sampling",
    "exact": "exact search of the catalogue",
    "stock": "constrained beam search of transformers, no sampling",
}


@dataclass(frozen=True)
class DataSetLog:
    """One data set of the log.

    Attributes:
        name: Its name.
        source: Its corpus, or file of sequences, as in the settings.
        results: The results of its stages.
    """

    name: str
    source: str
    results: PageResults

    @classmethod
    def read(cls, entry: EntrySetting, config: ExperimentLogConfig, inputs: Mapping[str, Path]) -> "DataSetLog":
        """Evaluate the finished stages of one data set, and trace their lineage.

        Raises:
            ArtefactError: If an input is missing, or the inputs do not belong together.
            ConfigError: If no stage is finished, or a K is larger than the lists of some stage.
            DataError: If a file is malformed.
        """
        corpus, items, sids = (str(inputs.get(f"{entry.name} {key}", "")) for key in ("corpus", "items", "sids"))
        found = read_results(
            entry.stages,
            entry.split,
            EvaluationSet.read(corpus, entry.split, entry.protocol, items, sids),
            seed=config.seed,
            resamples=config.resamples,
            resample=config.resample,
            levels=["sid", "item"] if entry.sids else ["item"],
            ks=config.ks,
            reference=load_reference(entry.reference) if entry.reference else None,
        )
        return cls(entry.name, entry.corpus, found)

    @property
    def examples(self) -> EvaluationSet:
        """The evaluation examples."""
        assert self.results.examples is not None
        return self.results.examples

    @property
    def stages(self) -> dict[str, Lineage]:
        """Its stages, including pending ones, with the lineage of the first seed."""
        return {name: found[0] for name, found in self.results.lineages.items()}

    @property
    def compared(self) -> str:
        """The stage compared with the published headline: the last finished one of RL, else the last.

        Stages with more model inputs than the histories are skipped, unless there are no others.
        """
        own = [name for name in self.results.own if name not in self.results.conditioned] or self.results.own
        trained = {name: self.stages[name].own for name in own if name in self.stages}
        return next((name for name in reversed(own) if (t := trained.get(name)) and t.stage == RL), own[-1])

    @property
    def headline(self) -> ReferenceRow | None:
        """The published headline result; None where the compared stage has more model inputs."""
        reference = self.results.reference
        if reference is None or self.compared in self.results.conditioned:
            return None
        return next(row for row in reference.rows if row.name == reference.headline)

    @property
    def gaps(self) -> list[PublishedGap]:
        """The compared stage minus the published headline; empty without published figures."""
        return [] if self.headline is None else self.results.gaps(self.compared, self.headline)

    @property
    def reading(self) -> str:
        """The reading of a hit in which the compared stage is compared with others."""
        results = self.results
        return results.levels[0] if self.headline is None else results.reading_of(self.headline, self.compared)

    @property
    def analysis(self) -> LevelAnalysis | None:
        """Hit rates by level of the compared stage."""
        return self.results.analyses.get(self.compared)

    def settings_beside(self, stage: str, row: ReferenceRow) -> list[dict[str, Any]]:
        """The settings of a published result, with ours."""
        results, lineage = self.results, self.stages[stage]
        theirs: Mapping[str, Value] = results.reference.settings.get(row.group, {}) if results.reference else {}
        list_length, table = results.recommenders[stage].list_length, results.table
        search = str((lineage.predictions or {}).get("settings", {}).get("search", "")) or UNKNOWN
        ours: dict[str, Value] = {
            **our_settings(lineage.trainings),
            "protocol": self.examples.rule,
            "sids": "none" if table is None else f"{self.sid_method}, {table.levels} levels",
            "hits": HITS[results.reading_of(row, stage)],
            "decoder": "full ranking" if list_length is None else _DECODERS.get(search, search),
            **({} if list_length is None else {"beams": list_length}),
        }
        if not any(key.startswith("rl_") for key in ours):  # a stage without RL is compared with their stage before RL
            theirs = {key: value for key, value in theirs.items() if not key.startswith("rl_")}
        return setting_lines(theirs, ours)

    @property
    def beside(self) -> list[tuple[str, ReferenceRow]]:
        """Stages with a published result of each source: the compared one, and others with their own source."""
        pairs = [(name, row) for name in [self.compared, *self.results.own] for row in self.results.counterparts(name)]
        first: dict[str, tuple[str, ReferenceRow]] = {}
        for name, row in ([(self.compared, self.headline)] if self.headline else []) + pairs:
            first.setdefault(row.group, (name, row))
        return list(first.values())

    @property
    def sid_method(self) -> str:
        """The method of the SIDs, from the manifest."""
        sids = self.examples.sids
        return str(read_manifest(sids)["config"].get("method", UNKNOWN)) if sids and is_artefact(sids) else UNKNOWN

    @property
    def warnings(self) -> list[str]:
        """Notes on the limits of these results."""
        found = [f"{self.name}: {name} is pending." for name in self.results.pending]
        for name, lineage in self.stages.items():
            if lineage.predictions and not lineage.trainings and not lineage.missing:
                found.append(f"{self.name}: the predictions of {name} name no checkpoint.")
            found += [
                f"{self.name}: {path}, an input of {name}, is missing or has changed; its settings are not shown."
                for path in lineage.missing
            ]
        reference = self.results.reference
        for row, metric in reference.doubtful if reference else ():
            found.append(f"{self.name}: the published {metric} of {row.name}, {row.shown(metric)}, is doubtful.")
        return found

    def sections(self) -> list[Section]:
        """All parts of one data set."""
        results, setup = self.results, [list(line) for line in self.setup()]
        found = [
            Section("Set-up", [Table(["", ""], setup, text_columns=2)]),
            Section("Training", self._trained()),
            sections.metrics(results),
            sections.differences(results),
            self._published(),
            sections.levels(results),
        ]
        return [Section(f"{self.name}: {part.title}", part.blocks) for part in found if part is not None]

    def setup(self) -> list[tuple[str, str]]:
        """Data, SIDs, evaluation and machine, as (name, value)."""
        records = [each.record for each in self.results.trainings] + [each.record for each in self.stages.values()]
        started = sorted(str(record["started"])[:10] for record in records if record)
        machines = dict.fromkeys(machine(each.record["machine"]) for each in self.results.trainings if each.record)
        models = dict.fromkeys(backbone(each) for each in self.results.trainings if each.stage == SFT)
        lines = [
            ("Date", started[0] if started else NOT_RECORDED),
            ("Base model", "; ".join(models) or "none"),
            ("Machine", "; ".join(machines) or NOT_RECORDED),
            ("Data", self.source),
            ("Protocol", self.examples.rule),
            *(line for line in sections.facts(self.results) if line[0] != "Protocol"),
        ]
        if self.results.table is not None:
            lines.append(("Semantic ID method", self.sid_method))
        lines.append(("Intervals", self.results.bootstrap.sentence()))
        return lines + [
            (f"Evaluation, {name}", "pending" if name in self.results.pending else self._evaluation(name))
            for name in self.stages
        ]

    def _evaluation(self, name: str) -> str:
        """How a stage was evaluated."""
        lineage, evaluation = self.stages[name], self.results.evaluations[name]
        settings = (lineage.predictions or {}).get("settings") or {}
        list_length = self.results.recommenders[name].list_length
        words = ["whole catalogue ranked" if list_length is None else f"{list_length} candidates per example"]
        if settings.get("search"):
            words.append(f"{settings['search']} search over valid SIDs")
        if settings.get("seen"):
            words.append(f"seen items: {settings['seen']}")
        words.append(f"{evaluation.rows:,} {self.results.split} examples")
        if evaluation.invalid is not None:
            words.append(f"invalid predictions: {format_share(evaluation.invalid, evaluation.predictions)}")
        seeds = [(each.predictions or {}).get("seed") for each in self.results.lineages[name]]
        if len(seeds) > 1:
            words.append(f"seeds {', '.join(map(str, seeds))}")
        if lineage.record is not None:
            words.append(f"took {duration(lineage.record['seconds']['all'])}")
        return "; ".join(words)

    def _trained(self) -> list[Block]:
        """Settings and outcome of every training; for a repeated kind, the changes."""
        if not self.results.trainings:
            return ["The predictions name no checkpoint, so no training is known."]
        blocks: list[Block] = []
        for training, earlier, changed in self.changes():
            kind = TITLES.get(training.stage, training.stage)
            caption = kind if training.name == kind else f"{training.name}: {kind}"
            if earlier is None or changed is None:
                lines = [list(line) for line in parameters(training)]
                blocks.append(Table(["Parameter", training.name], lines, f"{caption}.", 2))
            else:
                rows = [[key, shown_setting(then), shown_setting(now)] for key, (then, now) in changed.items()]
                caption += f", changes from {earlier.name}; all other parameters are the same."
                blocks.append(Table(["Parameter", earlier.name, training.name], rows, caption, 3))
            lines = [list(line) for line in outcome(training)]
            blocks.append(Table(["Outcome", training.name], lines, text_columns=2))
        return [*blocks, *sections.learning_curves(self.results.trainings)]

    def changes(self) -> list[tuple[Training, Training | None, dict[str, tuple[Any, Any]] | None]]:
        """Each training with the previous one of its stage, and the settings in which they differ."""
        found = []
        for index, training in enumerate(self.results.trainings):
            same = [other for other in self.results.trainings[:index] if other.stage == training.stage]
            found.append((training, *((same[-1], changes(training, same[-1])) if same else (None, None))))
        return found

    def _published(self) -> Section | None:
        """Published results compared with ours, and the settings side by side."""
        part = sections.published(self.results)
        if part is None:
            return None
        blocks = [*part.blocks]
        if not any(isinstance(block, Table) and block.caption.startswith("Discrepancy") for block in blocks):
            blocks.append("None of these stages is comparable with a published result.")
        for name, row in self.beside:
            lines: list[TableRow] = [
                [line["name"], *(shown_setting(line[of]) for of in ("paper", "ours")), "differs" * line["differs"]]
                for line in self.settings_beside(name, row)
            ]
            headers = ["Setting", f"theirs: {row.group}", f"ours: {name}", ""]
            if lines:
                text = "Settings side by side; unknown: not stated by the source."
                blocks.append(Table(headers, lines, text, 4))
        return Section(part.title, blocks)

    def to_json(self) -> dict[str, Any]:
        """All numbers that the log shows, unrounded."""
        return {
            **results_json(self.results, cost=True),
            "setup": dict(self.setup()),
            "trainings": {each.name: _training_json(each) for each in self.results.trainings},
            "changes": [
                {"training": now.name, "from": then.name, "changed": {key: list(pair) for key, pair in changed.items()}}
                for now, then, changed in self.changes()
                if then is not None and changed is not None
            ],
            "compared": self.compared,
            "reading": self.reading,
            "discrepancy": [gap.to_json() for gap in self.gaps],
            "settings": [
                {
                    "stage": name,
                    "row": f"{row.name} ({row.group})",
                    "lines": self.settings_beside(name, row),
                }
                for name, row in self.beside
            ],
        }


def _training_json(training: Training) -> dict[str, Any]:
    """One training: as text, and as recorded in its manifest and run record."""
    return {
        "stage": training.stage,
        "parameters": dict(parameters(training)),
        "outcome": dict(outcome(training)),
        "learning_curves": learning_points(training),
        "settings": dict(training.settings),
        "counts": dict(training.counts),
        "seed": training.seed,
        "progress": None if training.progress is None else list(training.progress),
        "record": training.record,
    }


def across(logs: Sequence[DataSetLog]) -> Section:
    """Metrics, gaps and levels of all data sets."""
    stages = "; ".join(f"{log.name}: {log.compared}, counted {sections.READING[log.reading]}" for log in logs)
    blocks: list[Block] = [f"Stage shown of each data set: {stages}.", _metrics_across(logs)]
    found = {log.name: log.analysis for log in logs if log.analysis is not None}
    if found:
        depth = max(analysis.levels for analysis in found.values())
        rows: list[TableRow] = []
        for level in range(depth):
            names = "+".join(f"L{n}" for n in range(1, level + 2))
            at_one = [a.cumulative[0][level] if level < a.levels and a.ks[0] == 1 else None for a in found.values()]
            exact = " (exact)" if level == depth - 1 else " accuracy"
            rows.append([f"{names}{exact}", *map(format_percent, at_one)])
        transitions = next(a for a in found.values() if a.levels == depth).transitions
        for level, transition in list(enumerate(transitions))[1:]:
            kept = [a.dropoff[level] if level < a.levels else None for a in found.values()]
            rows.append([transition_label(transition), *map(format_percent, kept)])
        blocks.append(Table(["Level, at K = 1", *found], rows))
    return Section("Across data sets", blocks)


def _metrics_across(logs: Sequence[DataSetLog]) -> Table:
    """Metrics of the published headlines, else those of all data sets, ours and theirs."""
    compared = {gap.metric for log in logs for gap in log.gaps}
    common = [name for name in logs[0].results.metrics if all(name in log.results.metrics for log in logs)]
    names = sorted(compared, key=lambda name: (not name.startswith("HR"), int(name.partition("@")[2]))) or common
    published = [(log, log.headline) for log in logs if log.headline is not None]
    rows: list[TableRow] = []
    for name in names:
        found = [log.results.estimates(log.reading)[log.compared].get(name) for log in logs]
        ours: TableRow = [PENDING if each is None else f"{each.mean:.4f}" for each in found]
        theirs = [row.shown(name) if name in row.metrics else PENDING for _, row in published]
        rows.append([name, *ours, *theirs])
    ranges = [Cell(gap_range(log), strong=True) for log in logs]
    rows.append([Cell("Gap", strong=True), *ranges, *[PENDING] * len(published)])
    headers = ["Metric", *(log.name for log in logs), *(f"{row.name} ({log.name})" for log, row in published)]
    caption = "Ours and the published headline; Gap: from the smallest to the largest relative difference."
    return Table(headers, rows, caption)


def gap_range(log: DataSetLog) -> str:
    """The smallest and the largest relative gap of a data set, in that order."""
    ends = spread(log.gaps)
    if ends is None:
        return PENDING
    first, second = sorted(ends, key=abs)
    return f"{signed_percent(first)} to {signed_percent(second)}"


def run_experiment_log(config: ExperimentLogConfig) -> StageResult:
    """Write the log of any number of data sets, stages and methods.

    Writes an artefact of kind "experiment_log". Equal inputs give equal bytes, except for run records. A data set of
    which no stage is finished has a line of the summary and a note.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If no stage of any entry is finished, or a K is larger than the lists of some stage.
        DataError: If a file is malformed.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            entries = config.parsed()
            finished = [entry for entry in entries if any(run.runs for run in entry.stages)]
            if not finished:
                raise ConfigError(
                    f"entries: no stage has predictions, e.g. {entries[0].stages[0].paths[0]} of {entries[0].name}. "
                    "Finish one first."
                )
            logs = [DataSetLog.read(entry, config, stage.inputs) for entry in finished]
            unfinished = {entry.name: [run.name for run in entry.stages] for entry in entries if entry not in finished}
            warnings = [text for log in logs for text in log.warnings]
            warnings += [f"{name}: all stages are pending: {', '.join(named)}." for name, named in unfinished.items()]
            for warning in warnings:
                logger.info("%s", warning)
            stages = {log.name: list(log.stages) for log in logs} | unfinished
            names = "; ".join(f"{name}: {', '.join(named)}" for name, named in stages.items())
            lead = f"{names}. Computed from finished artefacts."
            parts = [_short(logs, unfinished, warnings), *(part for log in logs for part in log.sections())]
            parts += [across(logs)] * (len(logs) > 1) + [configuration(stage.inputs)]
            content = {
                "title": config.title,
                "entries": {log.name: log.to_json() for log in logs},
                "gap_range": {log.name: list(ends) for log in logs if (ends := spread(log.gaps)) is not None},
                "warnings": warnings,
            }
            pending = sum(len(log.results.pending) for log in logs) + sum(map(len, unfinished.values()))
            counts = {"entries": len(stages), "stages": sum(map(len, stages.values())), "pending": pending}
            with work.finish(seed=config.seed, counts=counts) as folder:
                write_page(folder, NAME, config.title, lead, parts)
                (folder / f"{NAME}.json").write_text(
                    json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8"
                )
    written = read_json(stage.output / f"{NAME}.json")["entries"]
    first = [f"{name}: {found['findings'][0]['text']}" for name, found in written.items()]
    lines = [*first, f"log: {stage.output / NAME}.html (and .md, .json)"]
    return StageResult(stage.output, lines, metrics=written, up_to_date=up_to_date)


def _short(logs: Sequence[DataSetLog], unfinished: Iterable[str], warnings: Sequence[str]) -> Section:
    """The headline metric of each data set, findings, and notes."""
    rows, blocks = list[TableRow](), list[Block]()
    for log in logs:
        metric = log.results.headline
        found = log.results.estimates(log.reading)[log.compared][metric]
        rows.append([log.name, log.compared, metric, f"{found.mean:.4f}", gap_range(log)])
    rows += [[name, *[PENDING] * 4] for name in unfinished]
    headers = ["Data set", "Stage", "Metric", "Value", "Gap to the published headline"]
    blocks.append(Table(headers, rows, text_columns=3))
    blocks.append([f"{log.name}: {each.text}" for log in logs for each in findings(log.results, *_STATED)])
    if warnings:
        blocks += ["Notes:", list(warnings)]
    return Section("Summary", blocks)


_STATED = ("best", "baseline", "steps", "published")
