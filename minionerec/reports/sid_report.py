"""Tables of semantic IDs side by side, judged before any recommender is trained: one page to read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, to_plain
from minionerec.core.places import find_path
from minionerec.core.stage import Stage
from minionerec.data.corpus import Corpus
from minionerec.embed.vectors import make_vectors
from minionerec.reports.config import SidReportConfig
from minionerec.reports.page import write_page
from minionerec.reports.sections.sids import Judged, buckets, collisions, levels, overview, prefixes
from minionerec.sid.diagnostics import diagnose, gather_evidence
from minionerec.sid.quantiser import CODEBOOKS_FILE, Quantiser
from minionerec.sid.report import REPORT_FILE
from minionerec.sid.table import SidTable

NAME = "sid_report"
HTML_FILE, MARKDOWN_FILE, JSON_FILE = f"{NAME}.html", f"{NAME}.md", "diagnostics.json"


@dataclass(frozen=True)
class SidReportResult:
    """What was written.

    Attributes:
        html: The page.
        markdown: The same content as Markdown, without plots.
        diagnostics: Display name to the unrounded measures (`minionerec.sid.diagnostics.Diagnostics` as objects).
        up_to_date: Whether an earlier page from the same inputs was kept.
    """

    html: Path
    markdown: Path
    diagnostics: Mapping[str, Any]
    up_to_date: bool

    def lines(self) -> list[str]:
        """Bits per item of each table, and where the page lies."""
        bits = [f"{name}: {found['bits_per_item']:.3f} bits per item" for name, found in self.diagnostics.items()]
        return [*bits, f"Report: {self.html} (and {self.markdown})"]


def run_sid_report(config: SidReportConfig) -> SidReportResult:
    """Write the page about one or more tables of semantic IDs of one corpus.

    Writes an artefact of kind "sid_report": `sid_report.html` (loads nothing), `sid_report.md` and `diagnostics.json`
    (unrounded). Equal inputs give equal bytes.

    Raises:
        ArtefactError: If an input is missing, or the output is one of them.
        DataError: If a table lacks an item, or nothing can be measured.
        ConfigError: If the encoder is unknown.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            corpus = Corpus.load(find_path(config.corpus))
            counts: dict[str, Any] = {}
            judged = judge(config, corpus, counts)
            titles = corpus.items["title"].fillna("").astype(str).tolist()
            parts = [
                overview(judged),
                levels(judged),
                collisions(judged),
                prefixes(judged),
                buckets(judged, titles, config.buckets, config.seed),
            ]
            names = ", ".join(judged)
            lead = f"{names}: semantic IDs of {corpus.n_items:,} items ({config.corpus}), before any training."
            measures = {name: to_plain(asdict(entry.measures)) for name, entry in judged.items()}
            with work.finish(seed=config.seed, counts=counts) as place:
                write_page(place, NAME, config.title, lead, parts)
                (place / JSON_FILE).write_text(json.dumps(measures, indent=1) + "\n", encoding="utf-8")
    output = stage.output
    return SidReportResult(output / HTML_FILE, output / MARKDOWN_FILE, read_json(output / JSON_FILE), up_to_date)


def judge(config: SidReportConfig, corpus: Corpus, counts: dict[str, Any]) -> dict[str, Judged]:
    """Measure every table on the same evidence: item vectors, titles and training rows.

    Args:
        config: The settings.
        corpus: The items, and the training rows.
        counts: Takes what the encoder counted.

    Returns:
        Display name to the table with its measures.
    """
    item_ids = corpus.items["item_id"].astype(str).tolist()
    rows = corpus.rows("train")
    evidence = gather_evidence(
        make_vectors(corpus, config, counts),
        corpus.items["title"].fillna("").astype(str).tolist(),
        rows.users.tolist(),
        rows.histories.tolist(),
        rows.targets,
    )
    judged = {}
    for name, path in config.tables.items():
        place = find_path(path)
        table, report = SidTable.load_index(place, item_ids), read_json(place / REPORT_FILE)
        codebooks = Quantiser.load(place).codebooks if (place / CODEBOOKS_FILE).is_file() else None
        measures = diagnose(table.codes, evidence, codebooks)
        errors = [level["error"] for level in report["levels"]]
        with_errors = [replace(use, error=error) for use, error in zip(measures.levels, errors, strict=True)]
        judged[name] = Judged(table, report, replace(measures, levels=with_errors))
    return judged
