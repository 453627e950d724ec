"""Accuracy level by level of the semantic ID."""

from minionerec.metrics.tables import cumulative_rows, format_percent, independent_rows, transition_label
from minionerec.reports import plots
from minionerec.reports.document import Block, Figure, Paragraph, Section, Table
from minionerec.reports.material import Material


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
