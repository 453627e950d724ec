"""Published figures beside ours, and how far apart they are."""

from collections.abc import Mapping

from minionerec.metrics.levels import LevelAnalysis
from minionerec.metrics.ranking import Estimate
from minionerec.metrics.tables import (
    MISSING,
    cumulative_rows,
    format_percent,
    independent_rows,
    metric_names,
    transition_label,
)
from minionerec.reports.cells import MINUS, estimate_cell, relative, signed
from minionerec.reports.document import Block, Cell, Paragraph, Section, Table
from minionerec.reports.material import Material
from minionerec.reports.reference import DOUBTFUL, Reference, ReferenceRow
from minionerec.reports.sections.ranking import READING
from minionerec.reports.systems import NOT_COMPARABLE

DOUBT = (
    f"{DOUBTFUL} marks a published NDCG that cannot be right beside its hit rates: a row that is hit between two "
    "cut-offs k and K adds to NDCG between 1 / log2(K + 1) and 1 / log2(k + 2)."
)


def published(material: Material, reference: Reference) -> Section:
    """All published rows beside ours, then each of ours that was given the histories alone against its counterparts."""
    level = material.readings[0]
    own = {name: evaluation.metrics(level) for name, evaluation in material.evaluations.items()}
    names = metric_names(material.evaluations, level)
    shown = [name for name in names if any(name in row.metrics for row in reference.rows)]
    rows: list[list[str | Cell]] = []
    for row in reference.rows:
        rows.append([row.name, row.group, *(row.shown(n) if n in row.metrics else MISSING for n in shown)])
    for who in [name for name in own if name not in material.conditioned]:
        rows.append([who, "this report", *(estimate_cell(own[who].get(name)) for name in shown)])
    if material.conditioned:
        rows.append([NOT_COMPARABLE, *[""] * (1 + len(shown))])
    for who in material.conditioned:
        rows.append([who, "this report", *(estimate_cell(own[who].get(name)) for name in shown)])
    reading = READING[level] if level == "sid" else "item-level"
    blocks: list[Block] = [
        Paragraph(reference.source),
        Table(["System", "Source", *shown], rows, f"{reference.title}: published rows, and ours ({reading}).", 2),
    ]
    if reference.doubtful:
        blocks.append(Paragraph(DOUBT))
    for who in (name for name in material.recommended if name not in material.conditioned):
        for theirs in reference.counterparts(who):
            blocks.append(_discrepancy(who, own[who], theirs, shown))
            if who in material.levels:
                blocks += _by_level(who, material.levels[who], theirs)
    return Section(f"Beside the published numbers: {reference.title}", blocks)


def _discrepancy(who: str, own: Mapping[str, Estimate], theirs: ReferenceRow, shown: list[str]) -> Table:
    lines: list[list[str | Cell]] = []
    for name in shown:
        if name not in theirs.metrics:
            continue
        estimate, published_value = own[name], theirs.metrics[name]
        lines.append(
            [
                name,
                theirs.shown(name),
                estimate_cell(estimate),
                signed(estimate.mean - published_value),
                relative(estimate.mean, published_value),
                "yes" if estimate.low <= published_value <= estimate.high else "no",
            ]
        )
    headers = [
        "Metric",
        f"theirs: {theirs.name}",
        f"ours: {who}",
        "ours minus theirs",
        "relative",
        "within our interval",
    ]
    return Table(headers, lines, f"Discrepancy: {who} of this report against {theirs.name} ({theirs.group}).")


def _by_level(who: str, analysis: LevelAnalysis, theirs: ReferenceRow) -> list[Block]:
    """Per-level tables of ours with the published value and the difference under each number."""
    blocks: list[Block] = []
    for kind, (headers, _), values, known in (
        ("independent", independent_rows(analysis), analysis.independent, theirs.independent),
        ("cumulative", cumulative_rows(analysis), analysis.cumulative, theirs.cumulative),
    ):
        rows: list[list[str | Cell]] = []
        for k, ours in zip(analysis.ks, values.tolist(), strict=True):
            if len(known.get(k, ())) != len(ours):
                continue
            cells = [Cell(f"{a:.4f}", f"{b:.4f}, {signed(a - b)}") for a, b in zip(ours, known[k], strict=True)]
            rows.append([str(k), *cells])
        if rows:
            caption = (
                f"{who} by level, {kind}; below each number the published one ({theirs.name}) and ours minus theirs."
            )
            blocks.append(Table(headers, rows, caption))
    if len(theirs.dropoff) == analysis.levels:
        blocks.append(_dropoff(who, analysis, theirs))
    return blocks


def _dropoff(who: str, analysis: LevelAnalysis, theirs: ReferenceRow) -> Table:
    rows: list[list[str | Cell]] = []
    for transition, ours, their in zip(analysis.transitions, analysis.dropoff, theirs.dropoff, strict=True):
        gap = MISSING if ours is None else f"{100 * (ours - their):+.2f}".replace("-", MINUS)
        rows.append([transition_label(transition), format_percent(their), format_percent(ours), gap])
    return Table(["Drop-off at K = 1", f"theirs: {theirs.name}", f"ours: {who}", "points"], rows)
