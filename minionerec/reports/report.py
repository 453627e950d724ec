"""The report that a person reads: `report.md` and one self-contained `report.html`, from finished predictions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.log import get_logger
from minionerec.core.places import find_path
from minionerec.core.stage import Stage
from minionerec.metrics.tables import format_metrics_table
from minionerec.reports import plots
from minionerec.reports.config import ReportConfig
from minionerec.reports.document import Paragraph, Section
from minionerec.reports.material import Material, gather
from minionerec.reports.page import write_page
from minionerec.reports.provenance import configuration
from minionerec.reports.sections.codebooks import codebooks
from minionerec.reports.sections.examples import examples
from minionerec.reports.sections.levels import levels
from minionerec.reports.sections.published import published
from minionerec.reports.sections.ranking import differences_to_first, lists, metrics
from minionerec.reports.sections.summary import facts, headline
from minionerec.reports.slices import TITLE as BY_KIND
from minionerec.reports.slices import by_kind_blocks

logger = get_logger(__name__)

NAME = "report"
HTML_FILE, MARKDOWN_FILE, METRICS_FILE, TABLE_FILE = f"{NAME}.html", f"{NAME}.md", "metrics.json", "table.txt"


@dataclass(frozen=True)
class ReportResult:
    """What was written.

    Attributes:
        html: The page.
        markdown: The same content as Markdown.
        table: Metrics of all recommenders and baselines as plain text, for the terminal: at SID level where there are
            SIDs, else at item level.
        up_to_date: Whether an earlier report from the same inputs was kept.
    """

    html: Path
    markdown: Path
    table: str
    up_to_date: bool

    def lines(self) -> list[str]:
        """The table, and where the page lies."""
        return [*self.table.splitlines(), f"Report: {self.html} (and {self.markdown})"]


def run_report(config: ReportConfig) -> ReportResult:
    """Write the report of one or more recommenders on the rows of one split.

    Writes an artefact of kind "report": `report.html` (loads nothing), `report.md`, `metrics.json` (unrounded) and
    `table.txt`. Equal inputs give equal bytes.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If a K is larger than the lists of some recommender, or the reference is unknown.
        DataError: If a file is malformed.
    """
    if config.ceiling and not find_path(config.ceiling).is_file():
        logger.warning("%s: no such file; the report shows no ceiling.", config.ceiling)
    if config.times and not find_path(config.times).is_file():
        logger.warning("%s: no such file; the report does not tell rows apart by time from it.", config.times)
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            material = gather(config)
            parts = sections(material, stage.inputs)
            with work.finish(seed=config.seed, counts=_counts(material)) as place:
                write_page(place, NAME, config.title, _lead(material), parts)
                (place / METRICS_FILE).write_text(json.dumps(_metrics(material), indent=1) + "\n", encoding="utf-8")
                table = format_metrics_table(material.evaluations, material.readings[0], _table_title(material))
                (place / TABLE_FILE).write_text(table + "\n", encoding="utf-8")
    output = stage.output
    table = (output / TABLE_FILE).read_text(encoding="utf-8").rstrip("\n")
    return ReportResult(output / HTML_FILE, output / MARKDOWN_FILE, table, up_to_date)


def sections(material: Material, inputs: Mapping[str, Path]) -> list[Section]:
    """The parts of the page, those about semantic IDs only where there are any."""
    found: list[Section | None] = [
        headline(material),
        facts(material),
        metrics(material),
        differences_to_first(material),
        None if material.by_kind is None else Section(BY_KIND, by_kind_blocks(material.by_kind)),
        lists(material),
        levels(material) if any(name in material.levels for name in material.recommended) else None,
        None if material.reference is None else published(material, material.reference),
        None if material.table is None else codebooks(material, material.table),
        examples(material) if material.config.examples else None,
        configuration(inputs),
    ]
    parts = [part for part in found if part is not None]
    if not plots.available():
        missing = "Plots are left out: matplotlib is not installed (the extra 'plots')."
        parts[0] = Section(parts[0].title, [*parts[0].blocks, Paragraph(missing)])
    return parts


def _lead(material: Material) -> str:
    config, ground = material.config, material.ground
    return (
        f"{', '.join(material.recommended)} on the {config.split} rows of {config.corpus} ({ground.title}), "
        f"{len(ground.rows):,} rows, {ground.n_items:,} items."
    )


def _table_title(material: Material) -> str:
    ground, seeds = material.ground, ", ± sd over seeds" if material.several_seeds else ""
    return f"{material.config.split} split ({ground.title}), {len(ground.rows):,} rows, 95 % bootstrap intervals{seeds}"


def _counts(material: Material) -> dict[str, Any]:
    sids = {} if material.table is None else {"sid_table": material.table.fingerprint}
    return {"rows": len(material.ground.rows), **sids, "ks": list(material.ks)}


def _metrics(material: Material) -> dict[str, Any]:
    """The content of `metrics.json`: what `Evaluation.to_json` gives, by level, and the sd of several seeds."""
    content: dict[str, Any] = {}
    for name, evaluation in material.evaluations.items():
        entry = evaluation.to_json()
        if material.by_kind is not None:
            entry["slices"] = [part.to_json(name) for part in material.by_kind.parts]
        if name in material.levels:
            entry["levels"] = material.levels[name].to_json()
        seeds = len(material.everyone[name].system.runs)
        if seeds > 1:
            entry["seeds"] = seeds
            entry["sd"] = {
                level: {metric: found.sd for metric, found in evaluation.metrics(level).items()}
                for level in material.readings
            }
        content[name] = entry
    return content
