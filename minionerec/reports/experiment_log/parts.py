"""The parts of a data set's entry in the log, as blocks of a document."""

from collections.abc import Sequence

from minionerec.core.records import duration
from minionerec.metrics.ranking import Estimate
from minionerec.metrics.tables import format_interval, format_share
from minionerec.reports.cells import difference_cell, estimate_cell, relative, signed
from minionerec.reports.document import Block, Bullets, Cell, Paragraph, Section, Table
from minionerec.reports.experiment_log import said
from minionerec.reports.experiment_log.entry import Beside, Entry, sid_method
from minionerec.reports.experiment_log.gaps import shown_setting
from minionerec.reports.experiment_log.lineage import SFT, Training, changes
from minionerec.reports.experiment_log.rules import Said, percent, prefix, step_name
from minionerec.reports.experiment_log.trainings import (
    NOT_RECORDED,
    TITLES,
    backbone,
    machine,
    outcome,
    parameters,
)
from minionerec.reports.reference import DOUBTFUL, Reference
from minionerec.reports.sections.published import DOUBT
from minionerec.reports.systems import NOT_COMPARABLE

PENDING = "—"
READING = {"sid": "counted by semantic ID", "item": "counted by item"}
Row = list[str | Cell]


def sections(entry: Entry) -> list[Section]:
    """All parts of one data set."""
    found = [
        Section(f"{entry.name}: set-up", [Table(["", ""], [list(line) for line in setup(entry)], text_columns=2)]),
        Section(f"{entry.name}: training", trainings(entry)),
        Section(f"{entry.name}: results", results(entry)),
    ]
    reference = entry.material.reference
    if reference is not None:
        found.append(Section(f"{entry.name}: beside the published figures", published(entry, reference)))
    if entry.levels:
        found.append(Section(f"{entry.name}: level by level", levels(entry)))
    return found


def setup(entry: Entry) -> list[tuple[str, str]]:
    """Data, SIDs, evaluation and machine, as (name, value)."""
    material, ground = entry.material, entry.material.ground
    sizes = " / ".join(f"{size:,} {split}" for split, size in ground.sizes.items())
    lines = [
        ("Date", _date(entry)),
        ("Base model", "; ".join(dict.fromkeys(backbone(t) for t in entry.trainings if t.stage == SFT)) or "none"),
        ("Machine", _machines(entry)),
        ("Data", f"{entry.setting.corpus}: {ground.n_items:,} items; {sizes} rows"),
        ("Split", entry.protocol),
        ("Longest history", f"{ground.max_history} items"),
    ]
    if material.table is not None:
        table = material.table
        lines.append(
            (
                "Semantic IDs",
                f"{sid_method(entry.setting.sids)}, {table.levels} levels, {table.n_unique:,} for {len(table):,} items",
            )
        )
    lines.append(("Intervals", material.bootstrap.said()))
    for label in entry.finished:
        lines.append((f"Evaluation, {label}", _evaluation(entry, label)))
    lines += [(f"Evaluation, {label}", "pending") for label in entry.lineages if label not in entry.finished]
    return lines


def _date(entry: Entry) -> str:
    """When the first training of the entry began, by its record."""
    records = [training.record for training in entry.trainings] + [each.record for each in entry.lineages.values()]
    started = sorted(str(record["started"])[:10] for record in records if record)
    return started[0] if started else NOT_RECORDED


def _machines(entry: Entry) -> str:
    found = [machine(training.record["machine"]) for training in entry.trainings if training.record]
    return "; ".join(dict.fromkeys(found)) or NOT_RECORDED


def _evaluation(entry: Entry, label: str) -> str:
    material, lineage = entry.material, entry.lineages[label]
    evaluation, width = material.evaluations[label], material.recommended[label].system.width
    settings = (lineage.predictions or {}).get("settings") or {}
    words = ["whole catalogue ranked" if width is None else f"{width} candidates a row"]
    if settings.get("search"):
        words.append(f"{settings['search']} search over the SIDs that exist")
    if settings.get("seen"):
        words.append(f"seen items: {settings['seen']}")
    words.append(f"{evaluation.rows:,} {entry.setting.split} rows")
    if evaluation.invalid is not None:
        words.append(f"{format_share(evaluation.invalid, evaluation.predictions)} predictions are no item's SID")
    if len(lineage.seeds) > 1:
        words.append(f"seeds {', '.join(map(str, lineage.seeds))}")
    if lineage.record is not None:
        words.append(f"took {duration(lineage.record['seconds']['all'])}")
    return "; ".join(words)


def trainings(entry: Entry) -> list[Block]:
    """Settings and outcome of every training; of one of a kind that was met before, what changed."""
    if not entry.trainings:
        return [Paragraph("The predictions name no checkpoint, so nothing is known of any training.")]
    blocks: list[Block] = []
    for place, training in enumerate(entry.trainings):
        kind = TITLES.get(training.stage, training.stage)
        blocks += [*_settings(training, entry.trainings[:place], kind)]
        lines = [list(line) for line in outcome(training)]
        blocks.append(Table(["Outcome", training.name], lines, text_columns=2))
    return blocks


def _settings(training: Training, earlier: Sequence[Training], kind: str) -> list[Block]:
    same = [other for other in earlier if other.stage == training.stage]
    changed = changes(training, same[-1]) if same else None
    if changed is None:
        lines = [list(line) for line in parameters(training)]
        return [Table(["Parameter", training.name], lines, f"{_titled(training, kind)}.", 2)]
    rows = [[name, shown_setting(then), shown_setting(now)] for name, (then, now) in changed.items()]
    caption = f"{_titled(training, kind)}, what changed from {same[-1].name}; all other parameters are the same."
    return [Table(["Parameter", same[-1].name, training.name], rows, caption, 3)]


def _titled(training: Training, kind: str) -> str:
    return kind if training.name == kind else f"{training.name}: {kind}"


def results(entry: Entry) -> list[Block]:
    """Every stage at every cut-off, in each reading; what needs no training; differences between stages."""
    table = entry.material.table
    once = table is not None and table.n_unique == len(table)
    blocks: list[Block] = [_stage_table(entry, level) for level in entry.material.readings[: 1 if once else None]]
    if once:
        blocks.append(Paragraph("No two items share a semantic ID, so the figures counted by item are the same."))
    rows: list[Row] = [[name, *_row(entry, name, entry.level)] for name in entry.material.baselines]
    blocks.append(
        Table(["Without training", *entry.names], rows, f"Baselines on the same rows, {READING[entry.level]}.")
    )
    blocks.append(Paragraph(f"{'; '.join(entry.material.chosen.sentences())}."))
    if entry.steps:
        gaps: list[Row] = [
            [f"{step.after} minus {step.before}", *(difference_cell(step.differences.get(n)) for n in entry.names)]
            for step in entry.steps
        ]
        note = "Stages on the same rows: paired bootstrap, 95 % interval and two-sided p below each difference."
        blocks.append(Table(["Stages", *entry.names], gaps, note))
    return [*blocks, *spoken(said.of_stages(entry))]


def _stage_table(entry: Entry, level: str) -> Table:
    rows: list[Row] = []
    for label in entry.lineages:
        finished = label in entry.finished
        rows.append([label, *(_row(entry, label, level) if finished else [PENDING] * len(entry.names))])
    width = entry.material.recommended[entry.compared].system.width
    ranked = "whole catalogue ranked" if width is None else f"{width} candidates a row"
    caption = f"{entry.name}, {entry.setting.split} rows, {ranked}, {READING[level]}; 95 % bootstrap intervals below."
    return Table(["Stage", *entry.names], rows, caption)


def _row(entry: Entry, label: str, level: str) -> list[Cell]:
    found = entry.estimates(label, level)
    return [_value(found.get(name)) for name in entry.names]


def _value(estimate: Estimate | None) -> Cell:
    return Cell(PENDING) if estimate is None else estimate_cell(estimate)


def published(entry: Entry, reference: Reference) -> list[Block]:
    """Published rows with the best in bold, ours beside the headline and beside rows of their own, and settings."""
    names = [name for name in entry.names if any(name in row.metrics for row in reference.rows)]
    blocks = published_rows(reference, names)
    if entry.material.conditioned:
        blocks.append(Paragraph(f"{', '.join(entry.material.conditioned)}: {NOT_COMPARABLE}."))
    for beside in entry.beside:
        if beside.gaps:
            blocks.append(_discrepancy(beside))
    blocks += spoken(said.of_gaps(entry)) or [Paragraph("No figure is shared with the published headline.")]
    groups: dict[str, Beside] = {}
    for beside in entry.beside:
        groups.setdefault(beside.row.group, beside)
    return blocks + [_settings_table(beside) for beside in groups.values() if beside.lines]


def published_rows(reference: Reference, names: Sequence[str]) -> list[Block]:
    """All rows of a source by some metrics, the best in bold, and what is to be known of the source."""
    rows: list[Row] = []
    for row in reference.rows:
        cells = [
            Cell(row.shown(name), strong=name not in row.doubtful and row.metrics[name] == reference.best(name))
            if name in row.metrics
            else Cell(PENDING)
            for name in names
        ]
        rows.append([row.name, row.group, *cells])
    return [
        Paragraph(reference.source),
        Table(["Method", "Source", *names], rows, f"{reference.title}: published figures, the best in bold.", 2),
        *([Paragraph(DOUBT)] if reference.doubtful else []),
    ]


def _settings_table(beside: Beside) -> Table:
    lines = [[line.name, shown_setting(line.theirs), shown_setting(line.ours)] for line in beside.lines]
    headers = ["Setting", f"theirs: {beside.row.group}", f"ours: {beside.stage}"]
    return Table(headers, lines, "Settings side by side; what the source does not tell is unknown.", 3)


def _discrepancy(beside: Beside) -> Table:
    rows: list[Row] = [
        [
            gap.metric,
            f"{gap.paper:.4f}" + (f" {DOUBTFUL}" if gap.doubtful else ""),
            f"{gap.ours.mean:.4f}",
            signed(gap.gap),
            relative(gap.ours.mean, gap.paper),
            Cell("inside" if gap.inside else "outside", format_interval(gap.ours)),
        ]
        for gap in beside.gaps
    ]
    headers = ["Metric", beside.theirs, f"ours: {beside.stage}", "Gap", "Relative", "in our 95 % interval"]
    return Table(headers, rows, f"Discrepancy: {beside.stage} against {beside.theirs}, {READING[beside.level]}.")


def levels(entry: Entry) -> list[Block]:
    """Independent and cumulative hit rates of each stage, the drop-off of all, and what they say."""
    found = entry.levels
    depth = max(analysis.levels for analysis in found.values())
    form = "".join(f"<{letter}_…>" for letter in "abcdefgh"[:depth])
    blocks: list[Block] = [
        Paragraph(f"A semantic ID has {depth} levels, {form}. minionerec calc-level prints these tables as well.")
    ]
    for kind, meaning in (
        ("independent", "any of the first K predictions has the target's code at that level; exact: the whole SID"),
        ("cumulative", "a single one of the first K predictions has the target's codes up to that level"),
    ):
        for label, analysis in found.items():
            numbers = range(1, analysis.levels + 1)
            alone = kind == "independent"
            last = [*(f"Level {n}" for n in numbers), "Exact"] if alone else [prefix(n) for n in numbers]
            rows = [
                [str(k), *(f"{value:.4f}" for value in values)]
                for k, values in zip(analysis.ks, getattr(analysis, kind).tolist(), strict=True)
            ]
            blocks.append(Table(["K", *last], rows, f"{label}, {kind}: {meaning}."))
    rows = [[step_name(n), *(_kept(analysis.dropoff, n) for analysis in found.values())] for n in range(1, depth + 1)]
    blocks.append(Table(["Drop-off at K = 1", *found], rows))
    return [*blocks, *spoken(said.of_levels(entry))]


def _kept(dropoff: Sequence[float | None], level: int) -> str:
    return percent(dropoff[level - 1]) if level <= len(dropoff) else PENDING


def spoken(sentences: Sequence[Said]) -> list[Block]:
    """Sentences as a list; nothing without any."""
    return [Bullets([each.text for each in sentences])] if sentences else []
