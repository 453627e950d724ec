"""The report that a person reads: `report.md` and one self-contained `report.html`, from finished predictions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import fingerprint, is_current, read_json, read_manifest, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError, MinioneRecError
from minionerec.core.log import get_logger
from minionerec.data.corpus import SPLITS, Corpus
from minionerec.evaluation.config import named_directories, split_named
from minionerec.metrics.levels import LevelAnalysis, level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import (
    DEFAULT_KS,
    Estimate,
    Evaluation,
    check_ks,
    evaluate_predictions,
    item_ranks,
    list_width,
    ranking_metrics,
    sid_ranks,
)
from minionerec.metrics.statistics import PairedDifference, paired_differences
from minionerec.metrics.tables import (
    MISSING,
    cumulative_rows,
    format_coverage,
    format_metrics_table,
    format_percent,
    format_share,
    independent_rows,
    metric_names,
    transition_label,
)
from minionerec.recommenders.floors import FOLLOWED, LAST_ITEM, POPULARITY, make_floors
from minionerec.recommenders.lists import Rows, recommend_rows
from minionerec.reports import plots
from minionerec.reports.document import (
    Block,
    Cell,
    Details,
    Example,
    Figure,
    Paragraph,
    Section,
    Table,
    Tiles,
)
from minionerec.reports.html import render_html
from minionerec.reports.markdown import render_markdown
from minionerec.reports.reference import Reference, load_reference, reference_path
from minionerec.sid.report import level_use
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

HTML_FILE, MARKDOWN_FILE, METRICS_FILE, TABLE_FILE = "report.html", "report.md", "metrics.json", "table.txt"
MINUS = "\N{MINUS SIGN}"
_TITLE_LENGTH = 110


@dataclass
class ReportConfig:
    """Settings of the report."""

    corpus: str = field(metadata={"help": "directory of the corpus (from scripts/prepare_data.py)"})
    sids: str = field(metadata={"help": "directory of the semantic IDs (from scripts/build_sids.py)"})
    predictions: list[str] = field(
        metadata={
            "help": "predictions to show, each as NAME=DIRECTORY (in YAML also a mapping of name to directory), in "
            "the order of the tables; the others are compared with the first, row by row"
        }
    )
    output: str = field(metadata={"help": "directory to write report.md and report.html into"})
    title: str = field(default="Generative recommendation", metadata={"help": "heading of the report"})
    split: str = field(default="test", metadata={"help": "split that the predictions are for: train, valid or test"})
    ks: list[int] | None = field(
        default=None,
        metadata={"help": "cut-offs K, in candidates; those of 1 3 5 10 20 50 within all lists if not given"},
    )
    reference: str | None = field(
        default=None, metadata={"help": "published numbers to set beside ours, by name (industrial); none if not given"}
    )
    ceiling: str | None = field(
        default=None, metadata={"help": "JSON file of what the best possible ranking may expect; left out if not given"}
    )
    examples: int = field(default=6, metadata={"help": "users whose recommendations are shown"})
    seed: int = field(default=0, metadata={"help": "seed of the bootstrap and of the choice of examples"})
    resamples: int = field(default=2000, metadata={"help": "bootstrap resamples behind every interval"})

    def __post_init__(self) -> None:
        """Bring `predictions` into one form and check what can be checked without files."""
        self.predictions = named_directories("predictions", self.predictions, "SFT=runs/demo/eval_sft")
        taken = [name for name, _ in self.sets if name in (POPULARITY, LAST_ITEM, FOLLOWED)]
        if taken:
            raise ConfigError(f"predictions names {taken[0]!r}, as one of the floors. Give each its own name.")
        if self.split not in SPLITS:
            raise ConfigError(f"split is {self.split!r}; known splits: {', '.join(SPLITS)}.")
        if self.ks is not None:
            self.ks = list(check_ks(self.ks))
        if self.examples < 0 or self.resamples < 1:
            raise ConfigError(f"examples is {self.examples} and resamples {self.resamples}; expected at least 0 and 1.")

    @property
    def sets(self) -> list[tuple[str, str]]:
        """(display name, directory) of each set of predictions."""
        return split_named(self.predictions)


@dataclass(frozen=True)
class ReportResult:
    """What was written.

    Attributes:
        html: The page.
        markdown: The same content as Markdown.
        table: SID-level metrics of all sets and floors as plain text, for the terminal.
        up_to_date: Whether an earlier report from the same inputs was kept.
    """

    html: Path
    markdown: Path
    table: str
    up_to_date: bool


@dataclass(frozen=True)
class _Material:
    """Everything that the sections draw on; `sets` holds the user's predictions, `floors` the three floors."""

    config: ReportConfig
    corpus: Corpus
    table: SidTable
    rows: pd.DataFrame
    ks: tuple[int, ...]
    sets: dict[str, Predictions]
    floors: dict[str, Predictions]
    widths: dict[str, int]
    evaluations: dict[str, Evaluation]
    levels: dict[str, LevelAnalysis]
    ceiling: dict[str, float]
    reference: Reference | None


def _with_sids(predictions: Predictions, table: SidTable) -> Predictions:
    """Fill in the SIDs of a recommender that ranks items alone."""
    if any(predictions.target_sids):
        return predictions
    sids = table.sids
    return Predictions(
        users=predictions.users,
        targets=predictions.targets,
        target_sids=[sids[target] if target >= 0 else "" for target in predictions.targets],
        items=predictions.items,
        sids=[[sids[item] if item >= 0 else "" for item in row] for row in predictions.items],
        scores=predictions.scores,
    )


def _load_set(
    name: str, path: str, config: ReportConfig, rows: pd.DataFrame, table: SidTable
) -> tuple[Predictions, int]:
    """One set of predictions, checked against corpus and SIDs, and the number of candidates of its lists."""
    predictions = Predictions.load(path)
    targets = rows["target"].to_numpy(np.int32)
    if len(predictions) != len(rows):
        raise ArtefactError(
            f"{path} ({name}): {len(predictions)} rows, but the {config.split} split of {config.corpus} has "
            f"{len(rows)}. Predict for this corpus and split, or set split."
        )
    other = np.flatnonzero(np.asarray(predictions.targets) != targets)
    if len(other):
        raise ArtefactError(
            f"{path} ({name}): row {other[0]} has target {predictions.targets[other[0]]}, in the {config.split} split "
            f"of {config.corpus} it is {targets[other[0]]}. Predict for this corpus and split, or set split."
        )
    predictions = _with_sids(predictions, table)
    sids = table.sids
    for row, (target, sid) in enumerate(zip(targets, predictions.target_sids, strict=True)):
        if sid != sids[target]:
            raise ArtefactError(
                f"{path} ({name}): the target of row {row} has SID {sid!r}, in {config.sids} it is {sids[target]!r}. "
                "The predictions were made with another SID table: point sids at theirs."
            )
    return predictions, list_width(predictions, path)


def _load_ceiling(config: ReportConfig, corpus: Corpus, n_rows: int, ks: Sequence[int]) -> dict[str, float]:
    """The ceiling's metrics by name, empty where there is none for this split."""
    if config.ceiling is None or not Path(config.ceiling).is_file():
        return {}
    content = read_json(config.ceiling)
    values = content.get("ceiling", {}) if isinstance(content, dict) else {}
    for key, ours in (("split", corpus.split), ("rows", n_rows)):
        if content.get(key, ours) != ours:
            logger.warning("%s: is for %s %r, the report for %r: left out.", config.ceiling, key, content[key], ours)
            return {}
    return {name.upper(): float(value) for name, value in values.items() if int(name.partition("@")[2] or 0) in ks}


def _gather(config: ReportConfig) -> _Material:
    corpus = Corpus.load(config.corpus)
    read_manifest(config.sids, "sids")
    table = SidTable.load_index(config.sids, corpus.items["item_id"].astype(str).tolist())
    rows = corpus.rows(config.split)
    sets, widths = {}, {}
    for name, path in config.sets:
        sets[name], widths[name] = _load_set(name, path, config, rows, table)
    narrowest = min(widths, key=lambda name: widths[name])
    if config.ks is None:
        ks = tuple(k for k in DEFAULT_KS if k <= max(1, widths[narrowest]))
    else:
        ks = check_ks(config.ks, widths[narrowest])
    reach = min(ks[-1], table.n_unique)
    floors = {
        name: recommend_rows(floor, Rows.of(corpus, config.split), reach, table=table)
        for name, floor in make_floors(corpus, table).items()
    }
    valid = set(table.sids)
    evaluations, levels = {}, {}
    for name, predictions in {**sets, **floors}.items():
        evaluations[name] = evaluate_predictions(
            predictions, ks, valid_sids=valid, n_items=corpus.n_items, width=widths.get(name, ks[-1]),
            seed=config.seed, resamples=config.resamples,
        )  # fmt: skip
        levels[name] = level_analysis(predictions, ks, width=widths.get(name, ks[-1]), where=name)
    return _Material(
        config=config,
        corpus=corpus,
        table=table,
        rows=rows,
        ks=ks,
        sets=sets,
        floors=floors,
        widths=widths,
        evaluations=evaluations,
        levels=levels,
        ceiling=_load_ceiling(config, corpus, len(rows), ks),
        reference=load_reference(config.reference) if config.reference else None,
    )


def _estimate_cell(estimate: Estimate | None) -> Cell:
    return (
        Cell(MISSING)
        if estimate is None
        else Cell(f"{estimate.mean:.4f}", f"[{estimate.low:.4f}, {estimate.high:.4f}]")
    )


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", MINUS)


def _difference_cell(found: PairedDifference | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    return Cell(_signed(found.difference), f"[{_signed(found.low)}, {_signed(found.high)}], p = {found.p:.3f}")


def _headline(material: _Material) -> Section:
    name = "NDCG@10" if 10 in material.ks else f"NDCG@{material.ks[-1]}"
    tiles = []
    for who in material.evaluations:
        estimate = material.evaluations[who].metrics("sid")[name]
        tiles.append((who, f"{estimate.mean:.4f}", f"[{estimate.low:.4f}, {estimate.high:.4f}]"))
    if name in material.ceiling and material.table.n_unique == len(material.table):
        tiles.append(("ceiling", f"{material.ceiling[name]:.4f}", "expected of the best possible ranking"))
    text = f"{name} on the {material.config.split} rows, counted by semantic ID, with its 95 % bootstrap interval."
    return Section("In short", [Tiles(tiles), Paragraph(text)])


def _facts(material: _Material) -> Section:
    corpus, table = material.corpus, material.table
    shared = np.array([len(table.items_of(sid)) > 1 for sid in table.sids])
    hidden = int(shared[material.rows["target"].to_numpy(np.int64)].sum())
    widths = ", ".join(f"{name} {width}" for name, width in material.widths.items())
    rows = [
        ["Split", f"{corpus.split}; {material.config.split} rows"],
        ["Rows", f"{len(corpus.train):,} train, {len(corpus.valid):,} valid, {len(corpus.test):,} test"],
        ["Items", f"{corpus.n_items:,}"],
        ["Longest history", f"{corpus.max_history} items"],
        ["Semantic IDs", f"{table.n_unique:,} distinct, {table.levels} levels"],
        ["SID table", table.fingerprint],
        ["Beams (candidates a row)", widths],
        ["Items that share their SID", f"{int(shared.sum()):,} of {len(table):,}"],
        ["Rows whose target shares its SID", f"{hidden:,} of {len(material.rows):,}"],
    ]
    note = (
        "A SID-level hit is the target's semantic ID: items that share an ID count for one another. An item-level hit "
        "is the target itself; items that share an ID are ranked by popularity in training, then by item index."
    )
    return Section("What was measured", [Table(["", ""], rows, text_columns=2), Paragraph(note)])


def _metrics_section(material: _Material) -> Section:
    blocks: list[Block] = []
    for level, reading in (("sid", "SID-level"), ("item", "Item-level")):
        headers = [reading, *material.evaluations]
        ceiling = material.ceiling if level == "item" else {}
        if ceiling:
            headers.append("ceiling")
        rows: list[list[str | Cell]] = []
        for name in metric_names(material.evaluations, level):
            row: list[str | Cell] = [name]
            row += [_estimate_cell(evaluation.metrics(level).get(name)) for evaluation in material.evaluations.values()]
            if ceiling:
                row.append(f"{ceiling[name]:.4f}" if name in ceiling else MISSING)
            rows.append(row)
        caption = f"{reading} metrics; means over all rows, 95 % bootstrap intervals in brackets."
        if ceiling:
            caption += " The ceiling is what the best possible ranking of items may expect on these rows."
        blocks.append(Table(headers, rows, caption))
    if plots.available():
        series = {
            name: {k: _triple(evaluation.metrics("sid")[f"HR@{k}"]) for k in material.ks}
            for name, evaluation in material.evaluations.items()
        }
        dashed = {}
        reachable = {k: material.ceiling[f"HR@{k}"] for k in material.ks if f"HR@{k}" in material.ceiling}
        if reachable and material.table.n_unique == len(material.table):  # else a SID-level hit is easier than the item
            dashed["ceiling"] = reachable
        for theirs in material.reference.rows if material.reference else ():
            points = {k: theirs.metrics[f"HR@{k}"] for k in material.ks if f"HR@{k}" in theirs.metrics}
            if material.reference and points and (theirs.compare or theirs.name == material.reference.headline):
                dashed[f"{theirs.name} ({theirs.group})"] = points
        caption = "HR@K (SID-level); bands are 95 % intervals, dashed lines have none."
        blocks.append(Figure(plots.hit_rate_curves(series, dashed), caption))
    return Section("Ranking metrics", blocks)


def _triple(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.low, estimate.high


def _lists_section(material: _Material) -> Section:
    rows: list[list[str | Cell]] = []
    for label, cells in (
        (
            "Predictions of no item's SID",
            [format_share(e.invalid, e.predictions) for e in material.evaluations.values()],
        ),
        (
            "The same, up to the first hit of each row",
            [format_share(e.invalid_until_hit, e.predictions) for e in material.evaluations.values()],
        ),
        ("Rows with an empty list", [format_share(e.empty, e.rows) for e in material.evaluations.values()]),
        ("Catalogue coverage", [format_coverage(e) for e in material.evaluations.values()]),
    ):
        rows.append([label, *cells])
    note = (
        "Coverage is the share of the catalogue that stands in the first K items of at least one row. Counting invalid "
        "predictions only up to the first hit is how the published system counts."
    )
    return Section("Validity and coverage", [Table(["", *material.evaluations], rows), Paragraph(note)])


def _differences_section(material: _Material) -> Section:
    everyone = {**material.sets, **material.floors}
    first = next(iter(everyone))
    blocks: list[Block] = []
    for level, ranks_of in (("SID-level", sid_ranks), ("Item-level", item_ranks)):
        values = {name: ranking_metrics(ranks_of(predictions), material.ks) for name, predictions in everyone.items()}
        others = [name for name in everyone if name != first]
        found = {
            name: paired_differences(values[name], values[first], material.config.seed, material.config.resamples)
            for name in others
        }
        rows: list[list[str | Cell]] = [
            [metric, *(_difference_cell(found[name].get(metric)) for name in others)] for metric in values[first]
        ]
        blocks.append(Table([level, *others], rows, f"{level}: each minus {first}."))
    note = (
        "Both systems are resampled on the same rows; the interval is the 95 % percentile interval of the difference, "
        "p the two-sided bootstrap p-value. It speaks of the choice of rows alone, not of the training seed."
    )
    return Section(f"Differences to {first}", [Paragraph(note), *blocks])


def _levels_section(material: _Material) -> Section:
    blocks: list[Block] = []
    names = list(material.sets)
    depth = max(material.levels[name].levels for name in names)
    labels = ["+".join(f"L{n}" for n in range(1, level + 1)) for level in range(1, depth + 1)]
    if plots.available():
        panels = {
            f"K = {k}": {
                name: analysis.cumulative[analysis.ks.index(k)].tolist()
                for name, analysis in material.levels.items()
                if analysis.levels == depth
            }
            for k in sorted({material.ks[0], 10 if 10 in material.ks else material.ks[-1]})
        }
        caption = "Cumulative accuracy: one of the first K predictions has the target's codes up to that level."
        blocks.append(Figure(plots.level_bars(panels, labels), caption))
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


def _compared(ours: float, theirs: float) -> tuple[str, str]:
    """Difference and relative difference of ours to theirs."""
    relative = f"{100 * (ours - theirs) / theirs:+.1f} %".replace("-", MINUS) if theirs else MISSING
    return _signed(ours - theirs), relative


def _reference_section(material: _Material, reference: Reference) -> Section:
    own = {name: material.evaluations[name].metrics("sid") for name in material.evaluations}
    names = metric_names(material.evaluations, "sid")
    shown = [name for name in names if any(name in row.metrics for row in reference.rows)]
    rows: list[list[str | Cell]] = []
    for row in reference.rows:
        rows.append([row.name, row.group, *(f"{row.metrics[n]:.4f}" if n in row.metrics else MISSING for n in shown)])
    for who, metrics in own.items():
        rows.append([who, "this report", *(_estimate_cell(metrics.get(name)) for name in shown)])
    blocks: list[Block] = [
        Paragraph(reference.source),
        Table(["System", "Source", *shown], rows, f"{reference.title}: published rows, and ours (SID-level).", 2),
    ]
    for who in material.sets:
        for theirs in reference.counterparts(who):
            lines: list[list[str | Cell]] = []
            for name in shown:
                if name not in theirs.metrics:
                    continue
                estimate = own[who][name]
                inside = estimate.low <= theirs.metrics[name] <= estimate.high
                lines.append(
                    [
                        name,
                        f"{theirs.metrics[name]:.4f}",
                        _estimate_cell(estimate),
                        *_compared(estimate.mean, theirs.metrics[name]),
                        "yes" if inside else "no",
                    ]
                )
            caption = f"Discrepancy: {who} of this report against {theirs.name} ({theirs.group})."
            headers = [
                "Metric",
                f"theirs: {theirs.name}",
                f"ours: {who}",
                "ours minus theirs",
                "relative",
                "within our interval",
            ]
            blocks.append(Table(headers, lines, caption))
            blocks += _reference_levels(who, material.levels[who], theirs.name, theirs)
    return Section(f"Beside the published numbers: {reference.title}", blocks)


def _reference_levels(who: str, analysis: LevelAnalysis, name: str, theirs: Any) -> list[Block]:
    """Per-level tables of ours with the published value and the difference under each number."""
    blocks: list[Block] = []
    for kind, (headers, _), values, published in (
        ("independent", independent_rows(analysis), analysis.independent, theirs.independent),
        ("cumulative", cumulative_rows(analysis), analysis.cumulative, theirs.cumulative),
    ):
        rows: list[list[str | Cell]] = []
        for k, ours in zip(analysis.ks, values.tolist(), strict=True):
            if len(published.get(k, ())) != len(ours):
                continue
            cells = [Cell(f"{a:.4f}", f"{b:.4f}, {_signed(a - b)}") for a, b in zip(ours, published[k], strict=True)]
            rows.append([str(k), *cells])
        if rows:
            caption = f"{who} by level, {kind}; below each number the published one ({name}) and ours minus theirs."
            blocks.append(Table(headers, rows, caption))
    if len(theirs.dropoff) == analysis.levels:
        rows = []
        for transition, ours, their in zip(analysis.transitions, analysis.dropoff, theirs.dropoff, strict=True):
            gap = MISSING if ours is None else f"{100 * (ours - their):+.2f}".replace("-", MINUS)
            rows.append([transition_label(transition), format_percent(their), format_percent(ours), gap])
        blocks.append(Table(["Drop-off at K = 1", f"theirs: {name}", f"ours: {who}", "points"], rows))
    return blocks


def _codebook_section(material: _Material) -> Section:
    table = material.table
    path = Path(material.config.sids) / "report.json"
    built: dict[str, Any] = read_json(path) if path.is_file() else {}
    known = built.get("levels", [])
    rows: list[list[str | Cell]] = []
    uses = level_use(table.codes)
    for place, use in enumerate(uses):
        extra = known[place] if place < len(known) else {}
        size, error = extra.get("size"), extra.get("error")
        rows.append(
            [
                use.level,
                f"{use.items:,}",
                f"{use.used:,}",
                MISSING if size is None else f"{size:,}",
                f"{use.perplexity:.1f}",
                f"{use.largest:,}",
                MISSING if error is None else f"{100 * error:.1f} %",
            ]
        )
    headers = ["Level", "items", "codes used", "codebook", "perplexity", "items on the largest", "variance left"]
    caption = (
        "Perplexity is the number of equally used codes with the same entropy; variance left is what the levels so "
    )
    blocks: list[Block] = [Table(headers, rows, caption + "far leave unexplained.")]
    if plots.available():
        counts = [np.asarray([n for n in use.use if n]) for use in uses]
        blocks.append(Figure(plots.codebook_use(counts), "Items per code at each level, most used code first."))
    groups = [len(table.items_of(sid)) for sid in dict.fromkeys(table.sids)]
    crowded = [size for size in groups if size > 1]
    text = (
        f"{table.n_unique:,} distinct SIDs for {len(table):,} items; {len(crowded):,} SIDs are shared, by "
        f"{sum(crowded):,} items in all, at most {max(groups):,} on one."
    )
    collisions = built.get("collisions", {})
    before = collisions.get("before", {})
    if before:
        after = collisions.get("after", {}).get("sharing_items")
        text += (
            f" Collision handling {collisions.get('method')!r}: {before.get('sharing_items')} items shared their SID "
        )
        text += f"before, {after} after."
    blocks.append(Paragraph(text))
    return Section("Use of the codebooks", blocks)


def _examples_section(material: _Material) -> Section:
    """Seeded rows: half of them hits of the first set in its first five items, half misses."""
    first = next(iter(material.sets))
    ranks = item_ranks(material.sets[first])
    hits, misses = np.flatnonzero((ranks >= 1) & (ranks <= 5)), np.flatnonzero((ranks == 0) | (ranks > 5))
    rng = np.random.default_rng(material.config.seed)
    wanted = min(material.config.examples, len(ranks))
    n_hits = min(max(wanted // 2, wanted - len(misses)), len(hits))
    chosen = [*rng.choice(hits, n_hits, replace=False), *rng.choice(misses, wanted - n_hits, replace=False)]
    titles = [_shorten(title) for title in material.corpus.items["title"].astype(str)]
    blocks: list[Block] = [
        Paragraph(
            f"Rows drawn at random: {n_hits} in which {first} has the target among its first five items, and "
            f"{wanted - n_hits} in which it has not (over all rows that is {len(hits):,} against {len(misses):,}). "
            "✓ marks the target."
        )
    ]
    for row in (int(row) for row in chosen):
        history, target = material.rows["history"].iloc[row], int(material.rows["target"].iloc[row])
        lists = [
            (
                name,
                [(titles[item] if item >= 0 else "(no item)", item == target) for item in predictions.items[row][:5]],
            )
            for name, predictions in material.sets.items()
        ]
        blocks.append(Example(f"Row {row}", [titles[item] for item in history], titles[target], lists))
    return Section("Examples", blocks)


def _shorten(title: str) -> str:
    """A title for display: on one line, shop entities such as "&deg;" read as characters, cut where it is long."""
    title = " ".join(unescape(title).split()) or "(no title)"
    return title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 1].rstrip() + "…"


def _manifests(config: ReportConfig) -> dict[str, tuple[str, dict[str, Any]]]:
    """Manifests of the inputs and of what they were made from, as far as it still lies there unchanged.

    Returns:
        Path to (fingerprint, manifest), inputs first.
    """
    queue = [config.corpus, config.sids, *(path for _, path in config.sets)]
    wanted: dict[str, str | None] = dict.fromkeys(queue)
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    while queue:
        path = queue.pop(0)
        if path in found or not Path(path).is_dir():
            continue
        try:
            digest, manifest = fingerprint(path), read_manifest(path)
        except MinioneRecError:
            continue
        if wanted[path] not in (None, digest):
            continue
        found[path] = (digest, manifest)
        for record in manifest["inputs"].values():
            wanted.setdefault(record["path"], record["sha256"])
            queue.append(record["path"])
    return found


def _configuration_section(material: _Material) -> Section:
    found = _manifests(material.config)
    rows: list[list[str | Cell]] = [
        [path, str(manifest["kind"]), MISSING if manifest["seed"] is None else str(manifest["seed"]), digest[:16]]
        for path, (digest, manifest) in found.items()
    ]
    versions: dict[str, set[str]] = {}
    for _, manifest in found.values():
        for package, version in manifest["versions"].items():
            versions.setdefault(package, set()).add(version)
    details: list[Block] = []
    for path, (_, manifest) in found.items():
        kept = {key: manifest[key] for key in ("config", "inputs", "counts", "seed", "versions")}
        details.append(
            Details(f"{manifest['kind']}: {path}", json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False))
        )
    return Section(
        "Configuration",
        [
            Table(["Artefact", "Kind", "Seed", "SHA-256 (first 16)"], rows, text_columns=2),
            Table(
                ["Package", "Version"],
                [[name, " and ".join(sorted(found))] for name, found in sorted(versions.items())],
            ),
            *details,
        ],
    )


def _sections(material: _Material) -> list[Section]:
    sections = [
        _headline(material),
        _facts(material),
        _metrics_section(material),
        _differences_section(material),
        _lists_section(material),
        _levels_section(material),
    ]
    if material.reference is not None:
        sections.append(_reference_section(material, material.reference))
    sections.append(_codebook_section(material))
    if material.config.examples:
        sections.append(_examples_section(material))
    sections.append(_configuration_section(material))
    return sections


def run_report(config: ReportConfig) -> ReportResult:
    """Write the report of one or more sets of predictions on one corpus and one SID table.

    Writes an artefact of kind "report": `report.html` (loads nothing), `report.md`, `metrics.json` (unrounded) and
    `table.txt`. Equal inputs give equal bytes.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If a K is larger than the lists of some set, or the reference is unknown.
        DataError: If a file is malformed.
    """
    inputs: dict[str, str | Path] = {"corpus": config.corpus, "sids": config.sids}
    for name, path in config.sets:
        read_manifest(path, "predictions")
        inputs[f"predictions {name}"] = path
    if config.reference:
        inputs["reference"] = reference_path(config.reference)
    if config.ceiling and Path(config.ceiling).is_file():
        inputs["ceiling"] = config.ceiling
    elif config.ceiling:
        logger.warning("%s: no such file; the report shows no ceiling.", config.ceiling)
    output = Path(config.output)
    resolved = {**vars(config), "plots": plots.available()}
    current = is_current(output, "report", resolved, inputs)
    if current:
        logger.info("%s is up to date.", output)
    else:
        material = _gather(config)
        sections = _sections(material)
        if not plots.available():
            missing = "Plots are left out: matplotlib is not installed (the extra 'plots')."
            sections[0] = Section(sections[0].title, [*sections[0].blocks, Paragraph(missing)])
        lead = (
            f"{', '.join(material.sets)} on the {config.split} rows of {config.corpus} ({material.corpus.split}), "
            f"{len(material.rows):,} rows, {material.corpus.n_items:,} items."
        )
        title = f"{config.split} split ({material.corpus.split}), {len(material.rows):,} rows, 95 % bootstrap intervals"
        metrics = {
            name: {**evaluation.to_json(), "levels": material.levels[name].to_json()}
            for name, evaluation in material.evaluations.items()
        }
        counts = {"rows": len(material.rows), "sid_table": material.table.fingerprint, "ks": list(material.ks)}
        with write_artefact(output, "report", config=resolved, inputs=inputs, seed=config.seed, counts=counts) as place:
            (place / HTML_FILE).write_text(render_html(config.title, lead, sections), encoding="utf-8")
            (place / MARKDOWN_FILE).write_text(render_markdown(config.title, lead, sections), encoding="utf-8")
            (place / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
            table = format_metrics_table(material.evaluations, "sid", title)
            (place / TABLE_FILE).write_text(table + "\n", encoding="utf-8")
    table = (output / TABLE_FILE).read_text(encoding="utf-8").rstrip("\n")
    return ReportResult(output / HTML_FILE, output / MARKDOWN_FILE, table, current)
