"""The report that a person reads: `report.md` and one self-contained `report.html`, from finished predictions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json
from minionerec.core.log import get_logger
from minionerec.core.paths import find_path
from minionerec.core.stage import Stage
from minionerec.data.kinds import LATER
from minionerec.data.protocols import ROWS
from minionerec.metrics.ranking import item_ranks
from minionerec.metrics.tables import (
    MISSING,
    cumulative_rows,
    format_interval,
    format_mean,
    format_metrics_table,
    format_percent,
    independent_rows,
    transition_label,
)
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports import plots
from minionerec.reports.cells import percent
from minionerec.reports.config import ReportConfig
from minionerec.reports.document import Block, Bullets, Cell, ExampleBlock, Figure, Paragraph, Section, Table, Tiles
from minionerec.reports.material import Material, gather
from minionerec.reports.page import write_page
from minionerec.reports.provenance import configuration
from minionerec.reports.sections.findings import LaterRows, Standing, findings
from minionerec.reports.sections.published import published
from minionerec.reports.sections.ranking import differences_to_first, lists, metrics
from minionerec.reports.slices import TITLE as BY_KIND
from minionerec.reports.slices import by_kind_blocks
from minionerec.sid.report import level_use
from minionerec.sid.table import SidTable

# What a reader looks for first: one number for each recommender, and what was measured.


def headline(material: Material) -> Section:
    """One metric of everyone, as tiles, and what it says."""
    name = material.headline
    level, tiles = material.readings[0], []
    for who, evaluation in material.evaluations.items():
        estimate = evaluation.metrics(level)[name]
        tiles.append((who, format_mean(estimate), format_interval(estimate)))
    unique = material.table is None or material.table.n_unique == len(material.table)
    ceiling = material.ceiling.get(name) if unique else None  # else a SID-level hit is easier than the item
    if ceiling is not None:
        tiles.append(("ceiling", f"{ceiling:.4f}", "expected of the best possible ranking"))
    counted = "semantic ID" if level == "sid" else "item"
    text = f"{name} on the {material.config.split} rows, counted by {counted}, with its 95 % bootstrap interval."
    text += f" {material.bootstrap.said()}"
    if material.several_seeds:
        text += " ± is the standard deviation over seeds."
    means = {who: evaluation.metrics(level)[name].mean for who, evaluation in material.evaluations.items()}
    baselines, strongest = material.baselines.keys(), material.chosen.strongest
    said = findings(Standing(name, means, baselines, strongest, ceiling, material.difference, later_rows(material)))
    if len(means) > 1:
        text += (
            " Differences are paired row by row; ahead and behind are said where the 95 % interval of the difference "
            "excludes 0. It speaks of the choice of test rows for these trained models, not of the training seed."
        )
    blocks: list[Block] = [Bullets(said), Tiles(tiles), Paragraph(text)]
    return Section("In short", blocks)


def later_rows(material: Material) -> LaterRows | None:
    """The rows whose target came later than the newest item, for the first sentences.

    Returns:
        None where kinds of rows are not wanted or times not known, where all rows are later ones, or where too few are.
    """
    by_kind = material.by_kind
    if by_kind is None or by_kind.metric != material.headline:
        return None
    part = next((part for part in by_kind.parts if (part.kind.group, part.kind.name) == ("time", LATER)), None)
    if part is None or not part.estimates:
        return None
    means = {name: found[by_kind.metric].mean for name, found in part.estimates.items()}
    return LaterRows(part.kind.share, means, partial(by_kind.between, part.kind))


def facts(material: Material) -> Section:
    """Data, SIDs, candidates and seeds."""
    ground, table = material.ground, material.table
    lines = [
        *([] if ground.protocol.name == ROWS else [["Protocol", ground.protocol.title]]),
        ["Split", f"{ground.title}; {material.config.split} rows"],
        ["Rows", ", ".join(f"{size:,} {split}" for split, size in ground.sizes.items())],
        ["Items", f"{ground.n_items:,}"],
        ["Longest history", f"{ground.max_history} items"],
    ]
    if table is not None:
        lines += [
            ["Semantic IDs", f"{table.n_unique:,} distinct, {table.levels} levels"],
            ["SID table", table.fingerprint],
        ]
    widths = {name: shown.system.width for name, shown in material.recommended.items()}
    ranked = ", ".join(f"{name} {'whole catalogue' if width is None else width}" for name, width in widths.items())
    lines.append(["Beams (candidates a row)" if table is not None else "Candidates a row", ranked])
    if material.several_seeds:
        seeds = ", ".join(f"{name} {len(shown.system.runs)}" for name, shown in material.recommended.items())
        lines.append(["Seeds", seeds])
    about = {name: shown.system.about.get("parameters") for name, shown in material.recommended.items()}
    if any(about.values()):
        lines.append(["Parameters", ", ".join(f"{name} {count:,}" for name, count in about.items() if count)])
    for sentence in material.chosen.sentences():
        what, _, text = sentence.partition(": ")
        lines.append([f"Baseline {what}" if what in NAMES else f"Baselines' {what}", text])
    note = "A hit is the target item itself."
    if table is not None:
        lines += _shared(material, table)
        note = (
            "A SID-level hit is the target's semantic ID: items that share an ID count for one another. An item-level "
            "hit is the target itself; items that share an ID are ranked by popularity in training, then by item index."
        )
    return Section("What was measured", [Table(["", ""], lines, text_columns=2), Paragraph(note)])


def _shared(material: Material, table: SidTable) -> list[list[str]]:
    """How many items, and targets, share their SID."""
    shared = np.bincount(table.sid_numbers)[table.sid_numbers] > 1
    hidden = int(shared[material.ground.rows.targets.astype(np.int64)].sum())
    return [
        ["Items that share their SID", f"{int(shared.sum()):,} of {len(table):,}"],
        ["Rows whose target shares its SID", f"{hidden:,} of {len(material.ground.rows):,}"],
    ]


# Accuracy level by level of the semantic ID.


def levels(material: Material) -> Section:
    """Independent and cumulative hit rates and the drop-off of the user's recommenders."""
    names = [name for name in material.recommended if name in material.levels]
    depth = max(material.levels[name].levels for name in names)
    blocks: list[Block] = [_bars(material, depth)] if plots.available() else []
    for name in names:
        analysis = material.levels[name]
        headers, rows = independent_rows(analysis)
        text = f"{name}, independent: any of the first K predictions has the target's code at that level."
        blocks.append(Table(headers, rows, text))
        headers, rows = cumulative_rows(analysis)
        blocks.append(Table(headers, rows, f"{name}, cumulative: one prediction has the codes up to that level."))
    every = [name for name in names if material.levels[name].levels == depth]
    rows = [
        [transition_label(transition), *(format_percent(material.levels[name].dropoff[place]) for name in every)]
        for place, transition in enumerate(material.levels[every[0]].transitions)
    ]
    blocks.append(Table(["Drop-off at K = 1", *every], rows))
    counts = "; ".join(
        f"{name}: {a.rows:,} rows, {a.excluded:,} left out, {a.unparsable:,} of {a.looked_at:,} predictions are no SID"
        for name, a in ((name, material.levels[name]) for name in names)
    )
    blocks.append(Paragraph(f"{counts}."))
    return Section("Accuracy by level", blocks)


def _bars(material: Material, depth: int) -> Figure:
    labels = ["+".join(f"L{n}" for n in range(1, level + 1)) for level in range(1, depth + 1)]
    panels = {}
    for k in sorted({material.ks[0], 10 if 10 in material.ks else material.ks[-1]}):
        panels[f"K = {k}"] = {
            name: analysis.cumulative[analysis.ks.index(k)].tolist()
            for name, analysis in material.levels.items()
            if analysis.levels == depth and k in analysis.ks
        }
    caption = "Cumulative accuracy: one of the first K predictions has the target's codes up to that level."
    return Figure(plots.level_bars({title: bars for title, bars in panels.items() if bars}, labels), caption)


# Some users: what they had, what they were shown, what they took.

_SHOWN, _HISTORY = 5, 20


def examples(material: Material) -> Section | None:
    """Seeded rows: half of them hits of the first recommender in its first five items, half misses.

    Returns:
        None where no recommender has lists of these rows.
    """
    listed = {name: shown.lists for name, shown in material.recommended.items() if shown.lists is not None}
    if not listed:
        return None
    first = next(iter(listed))
    ranks = item_ranks(listed[first])
    hits, misses = np.flatnonzero((ranks >= 1) & (ranks <= _SHOWN)), np.flatnonzero((ranks == 0) | (ranks > _SHOWN))
    rng = np.random.default_rng(material.config.seed)
    wanted = min(material.config.examples, len(ranks))
    n_hits = min(max(wanted // 2, wanted - len(misses)), len(hits))
    chosen = [*rng.choice(hits, n_hits, replace=False), *rng.choice(misses, wanted - n_hits, replace=False)]
    titles = material.ground.titles()
    text = (
        f"Rows drawn at random: {n_hits} in which {first} has the target among its first five items, and "
        f"{wanted - n_hits} in which it has not (over all rows that is {len(hits):,} against {len(misses):,}). "
        "✓ marks the target."
    )
    blocks: list[Block] = [Paragraph(text)]
    for row in (int(row) for row in chosen):
        target = int(material.ground.rows.targets[row])
        lists = [
            (name, [(titles[item] if item >= 0 else "(no item)", item == target) for item in made.items[row][:_SHOWN]])
            for name, made in listed.items()
        ]
        history = _newest([titles[item] for item in material.ground.rows.histories[row]])
        blocks.append(ExampleBlock(f"Row {row}", history, titles[target], lists))
    return Section("Examples", blocks)


def _newest(history: list[str]) -> list[str]:
    """A history cut to what a reader may want to see."""
    left = len(history) - _HISTORY
    return [f"({left:,} earlier items)", *history[left:]] if left > 0 else history


# How the semantic IDs use their codes.


def codebooks(material: Material, table: SidTable) -> Section:
    """Use of each level, and how many items share an SID."""
    path = find_path(material.config.sids) / "report.json"
    built: dict[str, Any] = read_json(path) if path.is_file() else {}
    known = built.get("levels", [])
    rows: list[list[str | Cell]] = []
    uses = level_use(table.codes)
    for place, use in enumerate(uses):
        extra = known[place] if place < len(known) else {}
        size = extra.get("size")
        rows.append(
            [
                use.level,
                f"{use.items:,}",
                f"{use.used:,}",
                MISSING if size is None else f"{size:,}",
                f"{use.perplexity:.1f}",
                f"{use.largest:,}",
                percent(extra.get("error")),
            ]
        )
    headers = ["Level", "items", "codes used", "codebook", "perplexity", "items on the largest", "variance left"]
    caption = (
        "Perplexity is the number of equally used codes with the same entropy; variance left is what the levels so "
        "far leave unexplained."
    )
    blocks: list[Block] = [Table(headers, rows, caption)]
    if plots.available():
        counts = [np.asarray([n for n in use.use if n]) for use in uses]
        blocks.append(Figure(plots.codebook_use(counts), "Items per code at each level, most used code first."))
    blocks.append(Paragraph(_sharing(table, built.get("collisions", {}))))
    return Section("Use of the codebooks", blocks)


def _sharing(table: SidTable, collisions: dict[str, Any]) -> str:
    """How many items share an SID, before collisions were handled and after."""
    groups = np.bincount(table.sid_numbers)
    crowded = groups[groups > 1]
    text = (
        f"{table.n_unique:,} distinct SIDs for {len(table):,} items; {len(crowded):,} SIDs are shared, by "
        f"{crowded.sum():,} items in all, at most {groups.max():,} on one."
    )
    before = collisions.get("before", {})
    if before:
        after = collisions.get("after", {}).get("sharing_items")
        text += (
            f" Collision handling {collisions.get('method')!r}: {before.get('sharing_items')} items shared their SID "
            f"before, {after} after."
        )
    return text


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
