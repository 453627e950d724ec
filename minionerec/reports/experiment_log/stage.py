"""The stage that writes the experiment log."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minionerec.core.log import get_logger
from minionerec.core.stage import Stage
from minionerec.reports.document import Block, Bullets, Paragraph, Section, Table
from minionerec.reports.experiment_log.config import ExperimentLogConfig
from minionerec.reports.experiment_log.content import entry_json
from minionerec.reports.experiment_log.cross import cross_json, cross_section, gap_range
from minionerec.reports.experiment_log.entry import Entry, gather_entry
from minionerec.reports.experiment_log.parts import sections
from minionerec.reports.page import write_page
from minionerec.reports.provenance import configuration

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
