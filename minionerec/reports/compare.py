"""Tables of several recommenders on the same rows: mean and sd over seeds, paired bootstrap, the published figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ArtefactError
from minionerec.core.paths import find_path
from minionerec.core.stage import Stage
from minionerec.data.corpus import Corpus
from minionerec.data.kinds import read_kinds
from minionerec.data.sequences import Split
from minionerec.data.stored import StoredCorpus
from minionerec.metrics.ranking import Estimate
from minionerec.metrics.statistics import PairedDifference
from minionerec.metrics.tables import MISSING
from minionerec.recommend.rankers.lists import RankedSplit
from minionerec.reports.cells import difference_cell, estimate_cell
from minionerec.reports.config import CompareConfig
from minionerec.reports.document import Block, Cell, Paragraph, Section, Table
from minionerec.reports.ground import read_data
from minionerec.reports.markdown import render_markdown
from minionerec.reports.page import write_page
from minionerec.reports.reference import Reference, ReferenceRow, load_reference
from minionerec.reports.slices import TITLE as BY_KIND
from minionerec.reports.slices import ByKind, by_kind_blocks, measure_by_kind
from minionerec.reports.systems import (
    NOT_COMPARABLE,
    Bootstrap,
    System,
    check_same_rows,
    differences,
    estimates,
    load_system,
    splits_of,
)

SPLITS = ("test", "valid")
NAME = "comparison"
JSON_FILE, MARKDOWN_FILE = f"{NAME}.json", f"{NAME}.md"
TITLE = "Recommenders on the same rows"


@dataclass(frozen=True)
class ComparedLine:
    """One recommender on one split.

    Attributes:
        name: Its name.
        seeds: Number of seeds.
        metrics: Metric to its mean over rows and seeds, with its interval and the sd over seeds.
        published: Its published counterpart; None without one.
        against: Metric to the paired difference from the first recommender; empty for the first.
        about: As in `System`.
        given: What it was given beyond the histories; nothing if empty.
    """

    name: str
    seeds: int
    metrics: Mapping[str, Estimate]
    published: ReferenceRow | None
    against: Mapping[str, PairedDifference]
    about: Mapping[str, Any]
    given: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: metrics as [mean, sd, low, high], differences as [difference, low, high, p]."""
        return {
            "name": self.name,
            "seeds": self.seeds,
            "metrics": {name: [e.mean, e.sd, e.low, e.high] for name, e in self.metrics.items()},
            "published": dict(self.published.metrics) if self.published else {},
            "against": {name: list(found) for name, found in self.against.items()},
            "about": dict(self.about),
            "given": list(self.given),
        }


@dataclass(frozen=True)
class Compared:
    """What was found on one split.

    Attributes:
        lines: The recommenders.
        by_kind: Their metrics by kind of row; None where that was not asked for.
        drawn: The sentence on how intervals were drawn.
    """

    lines: Sequence[ComparedLine]
    by_kind: ByKind | None
    drawn: str

    def to_json(self) -> list[dict[str, Any]]:
        """The lines as JSON-ready objects, with `slices` (as `Part.to_json` gives them) where there are kinds."""
        parts = None if self.by_kind is None else self.by_kind.parts
        return [
            line.to_json() | ({} if parts is None else {"slices": [part.to_json(line.name) for part in parts]})
            for line in self.lines
        ]


@dataclass(frozen=True)
class CompareResult:
    """What was found.

    Attributes:
        splits: Split to the recommenders' lines, in the order given, as `Compared.to_json` gives them.
        markdown: The tables.
        output: Where they were written; None where they were not.
        up_to_date: Whether an earlier comparison of the same inputs was kept.
    """

    splits: Mapping[str, Any]
    markdown: str
    output: Path | None = None
    up_to_date: bool = False

    def lines(self) -> list[str]:
        """The tables, and where they lie."""
        return [*self.markdown.splitlines(), *([f"comparison: {self.output}"] if self.output else [])]


def run_compare(config: CompareConfig) -> CompareResult:
    """Compare recommenders on the same rows.

    With an output it writes an artefact of kind "comparison": `comparison.md`, `comparison.html` and
    `comparison.json` (unrounded).

    Raises:
        ArtefactError: If an input is missing, or is about other rows than the first or the corpus.
        ConfigError: If a metric looks further than a list goes.
    """
    stage = Stage(config)
    if not config.output:
        stage.check_inputs()
        found = compare(config)
        return CompareResult(_plain(found), render_markdown(TITLE, _lead(found), _sections(found, config)))
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            found = compare(config)
            with work.finish(seed=config.seed, counts={split: len(of.lines) for split, of in found.items()}) as place:
                write_page(place, NAME, TITLE, _lead(found), _sections(found, config))
                (place / JSON_FILE).write_text(json.dumps(_plain(found), indent=1) + "\n", encoding="utf-8")
    markdown = (stage.output / MARKDOWN_FILE).read_text(encoding="utf-8")
    return CompareResult(read_json(stage.output / JSON_FILE), markdown, stage.output, up_to_date)


def compare(config: CompareConfig) -> dict[str, Compared]:
    """Split to what is found of all recommenders that speak of it, in the order given."""
    places = {name: find_path(path) for name, path in config.runs.items()}
    spoken = {name: splits_of(place) for name, place in places.items()}
    reference = load_reference(config.reference) if config.reference else None
    data = read_data(config.corpus, config.protocol, config.items) if config.slices else None
    found = {}
    for split in SPLITS:
        systems = [load_system(name, place, split) for name, place in places.items() if split in spoken[name]]
        if systems:
            lines = compare_systems(systems, split, config, reference)
            by_kind = None if data is None else _by_kind(systems, split, config, data)
            found[split] = Compared(lines, by_kind, _bootstrap(systems, config).said())
    if not found:
        raise ArtefactError(f"{next(iter(places.values()))}: is about neither {' nor '.join(SPLITS)} rows.")
    return found


def compare_systems(
    systems: list[System], split: str, config: CompareConfig, reference: Reference | None
) -> list[ComparedLine]:
    """The lines of one split."""
    first, settings = systems[0], (config.level, config.metrics, _bootstrap(systems, config))
    lines = []
    for system in systems:
        check_same_rows(system, first, split)
        against = {} if system is first else differences(system, first, *settings)
        published = None if system.given else _published(system.name, reference)
        lines.append(
            ComparedLine(
                name=system.name,
                seeds=len(system.runs),
                metrics=estimates(system, *settings),
                published=published,
                against=against,
                about=system.about,
                given=system.given,
            )
        )
    return lines


def _bootstrap(systems: Sequence[System], config: CompareConfig) -> Bootstrap:
    """How intervals are drawn; all systems are of the same rows and users."""
    return Bootstrap.of(config.seed, config.resamples, config.resample, systems[0].users)


def _by_kind(systems: list[System], split: str, config: CompareConfig, data: Corpus | StoredCorpus | Split) -> ByKind:
    rows = RankedSplit.of(data, split)
    if not np.array_equal(systems[0].targets, rows.targets):
        raise ArtefactError(
            f"{systems[0].name}: its {len(systems[0].targets)} {split} rows are not the {len(rows)} of "
            f"{config.corpus} (protocol {config.protocol}). Give the corpus, protocol and items that it was made from."
        )
    kinds = read_kinds(data, rows, split, find_path(config.times) if config.times else None)
    told = [system.name for system in systems]
    return measure_by_kind(systems, kinds, config.level, config.metrics, _bootstrap(systems, config), told=told)


def _published(name: str, reference: Reference | None) -> ReferenceRow | None:
    """The published row of that name or alias."""
    own = reference.own_counterparts(name) if reference else []
    return own[0] if own else None


def _plain(found: Mapping[str, Compared]) -> dict[str, list[dict[str, Any]]]:
    return {split: compared.to_json() for split, compared in found.items()}


def _lead(found: Mapping[str, Compared]) -> str:
    names = dict.fromkeys(line.name for compared in found.values() for line in compared.lines)
    return f"{', '.join(names)}; every table is of the same rows."


def _sections(found: Mapping[str, Compared], config: CompareConfig) -> list[Section]:
    sections = []
    for split, compared in found.items():
        title = f"{split} rows, {config.level} level"
        sections.append(Section(title, _blocks(compared, split, config)))
        if compared.by_kind is not None:
            sections.append(Section(f"{BY_KIND}: {title}", by_kind_blocks(compared.by_kind)))
    return sections


def _blocks(compared: Compared, split: str, config: CompareConfig) -> list[Block]:
    """The tables of one split: metrics, and differences from the first recommender."""
    lines, metrics = compared.lines, config.metrics
    rows: list[list[str | Cell]] = []
    beside = [line for line in lines if not (config.reference and line.given)]
    apart = [line for line in lines if line not in beside]
    for line in [*beside, *apart]:
        if apart and line is apart[0]:
            rows.append([NOT_COMPARABLE, *[""] * (2 + len(metrics))])
        parameters = line.about.get("parameters")
        row: list[str | Cell] = [line.name, f"{parameters:,}" if parameters else MISSING, str(line.seeds)]
        for metric in metrics:
            theirs = line.published if split == "test" else None
            note = f"; published {theirs.shown(metric)}" if theirs and metric in theirs.metrics else ""
            row.append(estimate_cell(line.metrics[metric], note))
        rows.append(row)
    note = f"Mean ± sd over seeds; in brackets the 95 % interval of each example's mean over seeds. {compared.drawn}"
    blocks: list[Block] = [Table(["recommender", "parameters", "seeds", *metrics], rows), Paragraph(note)]
    if len(lines) > 1:
        gaps: list[list[str | Cell]] = [
            [line.name, *(difference_cell(line.against[metric]) for metric in metrics)] for line in lines[1:]
        ]
        said = "Paired: both recommenders on the same bootstrap samples."
        blocks += [Table([f"minus {lines[0].name}", *metrics], gaps), Paragraph(said)]
    return blocks
