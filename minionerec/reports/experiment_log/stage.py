"""The stage that writes the experiment log."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.log import get_logger
from minionerec.core.stage import Stage
from minionerec.metrics.ranking import Estimate
from minionerec.reports.document import Block, Bullets, Cell, Paragraph, Section, Table
from minionerec.reports.experiment_log import said
from minionerec.reports.experiment_log.config import ExperimentLogConfig
from minionerec.reports.experiment_log.entry import Beside, Entry, gather_entry
from minionerec.reports.experiment_log.gaps import spread
from minionerec.reports.experiment_log.lineage import RL, SFT, Training, changes
from minionerec.reports.experiment_log.parts import PENDING, READING, sections, setup, spoken
from minionerec.reports.experiment_log.rules import percent, prefix, signed_percent, step_name
from minionerec.reports.experiment_log.trainings import outcome, parameters
from minionerec.reports.page import write_page
from minionerec.reports.provenance import configuration

# The data sets of a log side by side.


def cross_section(entries: Sequence[Entry]) -> Section:
    """Metrics, gaps and levels of all data sets, and what sets them apart."""
    stages = "; ".join(f"{entry.name}: {entry.compared}, {READING[entry.reading]}" for entry in entries)
    blocks: list[Block] = [Paragraph(f"The stage of each data set that is shown: {stages}."), _metrics(entries)]
    if any(entry.compared in entry.levels for entry in entries):
        blocks.append(_levels(entries))
    return Section("Across data sets", [*blocks, *spoken(said.across(entries))])


def shared_names(entries: Sequence[Entry]) -> list[str]:
    """The metrics of the cross table: those of published headlines, else those that all entries have."""
    told = [gap.metric for entry in entries for gap in entry.gaps]
    everyone = [name for name in entries[0].names if all(name in entry.names for entry in entries)]
    names = {name for entry in entries for name in entry.names}
    return sorted(set(told) & names, key=_order) or everyone


def _order(name: str) -> tuple[bool, int]:
    kind, k = name.split("@")
    return kind != "HR", int(k)


def _metrics(entries: Sequence[Entry]) -> Table:
    published = [entry for entry in entries if entry.headline is not None]
    headers = ["Metric", *(entry.name for entry in entries)]
    headers += [f"{entry.headline.name} ({entry.name})" for entry in published if entry.headline is not None]
    rows: list[list[str | Cell]] = []
    for name in shared_names(entries):
        row: list[str | Cell] = [name]
        for entry in entries:
            found = entry.estimates(entry.compared, entry.reading).get(name)
            row.append(PENDING if found is None else f"{found.mean:.4f}")
        for entry in published:
            theirs = entry.headline
            row.append(PENDING if theirs is None or name not in theirs.metrics else theirs.shown(name))
        rows.append(row)
    rows.append([Cell("Gap", strong=True), *(Cell(gap_range(entry), strong=True) for entry in entries)])
    rows[-1] = [*rows[-1], *[PENDING] * len(published)]
    caption = "Ours beside the published headline; Gap: from the smallest to the largest relative difference."
    return Table(headers, rows, caption)


def gap_range(entry: Entry) -> str:
    """The smallest and the largest relative gap of an entry, in that order."""
    ends = spread(entry.gaps)
    if ends is None:
        return PENDING
    first, second = sorted(ends, key=abs)
    return f"{signed_percent(first)} to {signed_percent(second)}"


def _levels(entries: Sequence[Entry]) -> Table:
    found = {entry.name: entry.levels[entry.compared] for entry in entries if entry.compared in entry.levels}
    depth = max(analysis.levels for analysis in found.values())
    rows = []
    for level in range(1, depth + 1):
        exact = " (exact)" if level == depth else " accuracy"
        values = [a.cumulative[0][level - 1] if level <= a.levels and a.ks[0] == 1 else None for a in found.values()]
        rows.append([f"{prefix(level)}{exact}", *(percent(value) for value in values)])
    for level in range(2, depth + 1):
        shares = [a.dropoff[level - 1] if level <= a.levels else None for a in found.values()]
        rows.append([step_name(level), *map(percent, shares)])
    return Table(["Level, at K = 1", *found], rows)


def cross_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """The same, unrounded."""
    levels = {entry.name: entry.levels[entry.compared] for entry in entries if entry.compared in entry.levels}
    return {
        "stages": {entry.name: entry.compared for entry in entries},
        "metrics": {
            entry.name: {
                "ours": {name: found.mean for name, found in entry.estimates(entry.compared, entry.reading).items()},
                "paper": dict(entry.headline.metrics) if entry.headline else {},
            }
            for entry in entries
        },
        "gap_range": {entry.name: list(ends) for entry in entries if (ends := spread(entry.gaps)) is not None},
        "levels": {
            name: {
                "cumulative": found.cumulative[0].tolist() if found.ks[0] == 1 else None,
                "dropoff": list(found.dropoff),
            }
            for name, found in levels.items()
        },
        "insight": [each.to_json() for each in said.across(entries)],
    }


# The log as JSON: every number unrounded.


def entry_json(entry: Entry) -> dict[str, Any]:
    """One data set."""
    reference = entry.material.reference
    kinds = {"sft": [SFT], "rl": [RL]}
    known = {kind for listed in kinds.values() for kind in listed}
    kinds["other_trainings"] = sorted({training.stage for training in entry.trainings} - known)
    return {
        "setup": dict(setup(entry)),
        **{
            key: {each.name: training_json(each) for each in entry.trainings if each.stage in wanted}
            for key, wanted in kinds.items()
        },
        "changes": _changes(entry),
        "stages": {label: _stage_json(entry, label) for label in entry.lineages},
        "baselines": {name: _metrics_json(entry.estimates(name)) for name in entry.material.baselines},
        "baseline_constants": entry.material.chosen.to_json(),
        "differences": [
            {
                "after": step.after,
                "before": step.before,
                "metrics": {name: list(found) for name, found in step.differences.items()},
            }
            for step in entry.steps
        ],
        "paper": {} if reference is None else {_key(row.name, row.group): dict(row.metrics) for row in reference.rows},
        "doubtful": [] if reference is None else [[row.name, metric] for row, metric in reference.doubtful],
        "compared": entry.compared,
        "reading": entry.reading,
        "discrepancy": [gap.to_json() for gap in entry.gaps],
        "settings": _settings_json(entry.beside[0]) if entry.beside else [],
        "counterparts": [
            {
                "stage": beside.stage,
                "row": beside.theirs,
                "discrepancy": [gap.to_json() for gap in beside.gaps],
                "settings": _settings_json(beside),
            }
            for beside in entry.beside[1:]
        ],
        "levels": {label: analysis.to_json() for label, analysis in entry.levels.items()},
        "observations": [each.to_json() for each in said.of_entry(entry)],
    }


def _settings_json(beside: Beside) -> list[dict[str, Any]]:
    return [
        {"name": line.name, "paper": line.theirs, "ours": line.ours, "differs": line.differs} for line in beside.lines
    ]


def _key(name: str, group: str) -> str:
    return name if group == "paper" else f"{name} ({group})"


def training_json(training: Training) -> dict[str, Any]:
    """One training: in words and as its manifest and record say it."""
    return {
        "stage": training.stage,
        "parameters": dict(parameters(training)),
        "outcome": dict(outcome(training)),
        "settings": dict(training.settings),
        "counts": dict(training.counts),
        "seed": training.seed,
        "progress": None if training.progress is None else list(training.progress),
        "record": training.record,
    }


def _changes(entry: Entry) -> list[dict[str, Any]]:
    """Trainings of one kind, each with what changed from the one before."""
    found = []
    for place, training in enumerate(entry.trainings):
        same = [other for other in entry.trainings[:place] if other.stage == training.stage]
        changed = changes(training, same[-1]) if same else None
        if changed is not None:
            pairs = {name: list(values) for name, values in changed.items()}
            found.append({"training": training.name, "from": same[-1].name, "changed": pairs})
    return found


def _stage_json(entry: Entry, label: str) -> dict[str, Any] | None:
    """The metrics of a stage in the main reading, their intervals, and the item-level ones; None while pending."""
    if label not in entry.finished:
        return None
    given = entry.material.recommended[label].system.given
    found = {"reading": entry.level, "rows": entry.material.evaluations[label].rows, "given": list(given)}
    found |= _metrics_json(entry.estimates(label))
    if entry.level == "sid":
        found["item"] = _metrics_json(entry.estimates(label, "item"))
    return found


def _metrics_json(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    found: dict[str, Any] = {name: each.mean for name, each in estimates.items()}
    found["intervals"] = {name: [each.low, each.high] for name, each in estimates.items()}
    if any(each.sd is not None for each in estimates.values()):
        found["sd"] = {name: each.sd for name, each in estimates.items()}
    return found


logger = get_logger(__name__)

NAME = "experiment_log"


@dataclass(frozen=True)
class ExperimentLogResult:
    """What was written.

    Attributes:
        output: The directory.
        entries: Number of data sets.
        said: What each entry's observations begin with, and its gap.
        up_to_date: Whether an earlier log of the same inputs was kept.
    """

    output: Path
    entries: int
    said: Sequence[str]
    up_to_date: bool

    def lines(self) -> list[str]:
        """The first sentences, and where the log lies."""
        return [*self.said, f"log: {self.output / NAME}.html (and .md, .json)"]


def run_experiment_log(config: ExperimentLogConfig) -> ExperimentLogResult:
    """Write the log of any number of data sets, stages and methods.

    Writes an artefact of kind "experiment_log": `experiment_log.md`, `experiment_log.html` and `experiment_log.json`
    (unrounded). Equal inputs give equal bytes, but for what run records say.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If an entry has no finished stage, or a K is larger than the lists of some stage.
        DataError: If a file is malformed.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            entries = [gather_entry(entry, config) for entry in config.parsed()]
            for warning in (text for entry in entries for text in entry.warnings):
                logger.info("%s", warning)
            content = {
                "title": config.title,
                "entries": {entry.name: entry_json(entry) for entry in entries},
                "cross": cross_json(entries) if len(entries) > 1 else None,
                "warnings": [text for entry in entries for text in entry.warnings],
            }
            with work.finish(seed=config.seed, counts=_counts(entries)) as place:
                write_page(place, NAME, config.title, _lead(entries), document(entries, stage))
                (place / f"{NAME}.json").write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    content = json.loads((stage.output / f"{NAME}.json").read_text(encoding="utf-8"))
    said = {name: found["observations"] for name, found in content["entries"].items()}
    first = [f"{name}: {observed[0]['text']}" for name, observed in said.items() if observed]
    return ExperimentLogResult(stage.output, len(said), first, up_to_date)


def document(entries: Sequence[Entry], stage: Stage) -> list[Section]:
    """All sections: what a reader looks for first, each data set, all side by side, and where the numbers come from."""
    found = [_short(entries), *(section for entry in entries for section in sections(entry))]
    if len(entries) > 1:
        found.append(cross_section(entries))
    return [*found, configuration(stage.inputs)]


def _short(entries: Sequence[Entry]) -> Section:
    rows = []
    for entry in entries:
        metric = entry.material.headline
        found = entry.estimates(entry.compared, entry.reading)[metric]
        rows.append([entry.name, entry.compared, metric, f"{found.mean:.4f}", gap_range(entry)])
    headers = ["Data set", "Stage", "Metric", "Value", "Gap to the published headline"]
    blocks: list[Block] = [Table(headers, rows, text_columns=3)]
    warnings = [text for entry in entries for text in entry.warnings]
    if warnings:
        blocks += [Paragraph("To know before reading on:"), Bullets(warnings)]
    return Section("In short", blocks)


def _lead(entries: Sequence[Entry]) -> str:
    said = "; ".join(f"{entry.name}: {', '.join(entry.lineages)}" for entry in entries)
    return f"{said}. Written from finished artefacts: every figure and every sentence follows from their files."


def _counts(entries: Sequence[Entry]) -> dict[str, int]:
    return {
        "entries": len(entries),
        "stages": sum(len(entry.lineages) for entry in entries),
        "pending": sum(len(entry.lineages) - len(entry.finished) for entry in entries),
    }
