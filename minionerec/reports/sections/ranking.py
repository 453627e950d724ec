"""Ranking metrics, differences from the first recommender, validity and coverage."""

from minionerec.metrics.ranking import Estimate
from minionerec.metrics.tables import MANY, MISSING, format_coverage, format_share, metric_names
from minionerec.reports import plots
from minionerec.reports.cells import difference_cell, estimate_cell
from minionerec.reports.document import Block, Cell, Figure, Paragraph, Section, Table, turned
from minionerec.reports.material import Material

READING = {"sid": "SID-level", "item": "Item-level"}


def metrics(material: Material) -> Section:
    """A table for each reading of a hit, and HR@K as a plot."""
    blocks: list[Block] = [_readable(_metrics_table(material, level)) for level in material.readings]
    if plots.available():
        blocks.append(_hit_rates(material))
    return Section("Ranking metrics", blocks)


def _readable(table: Table) -> Table:
    """The table with recommenders as rows where they are too many to stand side by side."""
    return turned(table) if len(table.headers) > MANY + 1 else table


def _metrics_table(material: Material, level: str) -> Table:
    headers = [READING[level], *material.evaluations]
    ceiling = material.ceiling if level == "item" else {}
    if ceiling:
        headers.append("ceiling")
    rows: list[list[str | Cell]] = []
    for name in metric_names(material.evaluations, level):
        row: list[str | Cell] = [name]
        row += [estimate_cell(evaluation.metrics(level).get(name)) for evaluation in material.evaluations.values()]
        if ceiling:
            row.append(f"{ceiling[name]:.4f}" if name in ceiling else MISSING)
        rows.append(row)
    caption = f"{READING[level]} metrics; means over all rows, 95 % bootstrap intervals in brackets."
    if material.several_seeds:
        caption += " Means over several seeds have their standard deviation behind ±."
    if ceiling:
        caption += " The ceiling is what the best possible ranking of items may expect on these rows."
    return Table(headers, rows, caption)


def _hit_rates(material: Material) -> Figure:
    level, table = material.readings[0], material.table
    series = {
        name: {k: _triple(evaluation.metrics(level)[f"HR@{k}"]) for k in material.ks}
        for name, evaluation in material.evaluations.items()
    }
    dashed = {}
    reachable = {k: material.ceiling[f"HR@{k}"] for k in material.ks if f"HR@{k}" in material.ceiling}
    if reachable and (table is None or table.n_unique == len(table)):  # else a SID-level hit is easier than the item
        dashed["ceiling"] = reachable
    reference = material.reference
    for theirs in reference.rows if reference else ():
        points = {k: theirs.metrics[f"HR@{k}"] for k in material.ks if f"HR@{k}" in theirs.metrics}
        if reference and points and (theirs.compare or theirs.name == reference.headline):
            dashed[f"{theirs.name} ({theirs.group})"] = points
    caption = f"HR@K ({'SID' if level == 'sid' else 'item'}-level); bands are 95 % intervals, dashed lines have none."
    return Figure(plots.hit_rate_curves(series, dashed), caption)


def _triple(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.low, estimate.high


def differences_to_first(material: Material) -> Section:
    """How far everyone lies from the first recommender, row by row."""
    first, *others = material.everyone
    blocks: list[Block] = []
    for level in material.readings:
        found = material.to_first[level]
        rows: list[list[str | Cell]] = [
            [metric, *(difference_cell(found[name].get(metric)) for name in others)] for metric in material.metrics
        ]
        blocks.append(_readable(Table([READING[level], *others], rows, f"{READING[level]}: each minus {first}.")))
    note = (
        "Both systems are resampled on the same rows; the interval is the 95 % percentile interval of the difference, "
        "p the two-sided bootstrap p-value. It speaks of the choice of test rows for these trained models, not of the "
        "training seed."
    )
    if material.several_seeds:
        note += " Of several seeds each row's mean is taken first."
    return Section(f"Differences to {first}", [Paragraph(note), *blocks])


def lists(material: Material) -> Section:
    """What the lists hold that is nobody's, and how much of the catalogue they show."""
    known = [
        (evaluation, material.everyone[name].lists is not None) for name, evaluation in material.evaluations.items()
    ]
    rows: list[list[str | Cell]] = []
    if material.table is not None:
        rows += [
            ["Predictions of no item's SID", *(format_share(e.invalid, e.predictions) for e, _ in known)],
            [
                "The same, up to the first hit of each row",
                *(format_share(e.invalid_until_hit, e.predictions) for e, _ in known),
            ],
        ]
    rows += [
        ["Rows with an empty list", *(format_share(e.empty, e.rows) if there else MISSING for e, there in known)],
        ["Catalogue coverage", *(format_coverage(e) for e, _ in known)],
    ]
    note = "Coverage is the share of the catalogue that stands in the first K items of at least one row."
    if material.table is not None:
        note += " Counting invalid predictions only up to the first hit is how the published system counts."
    if material.several_seeds:
        note += " Of several seeds the first one's lists are looked at."
    title = "Validity and coverage" if material.table is not None else "Coverage"
    return Section(title, [_readable(Table(["", *material.evaluations], rows)), Paragraph(note)])
