"""What a reader looks for first: one number for each recommender, and what was measured."""

import numpy as np

from minionerec.data.protocols import ROWS
from minionerec.metrics.tables import format_interval, format_mean
from minionerec.rankers.baselines import NAMES
from minionerec.reports.document import Block, Bullets, Paragraph, Section, Table, Tiles
from minionerec.reports.material import Material
from minionerec.reports.sections.findings import Standing, findings
from minionerec.sid.table import SidTable


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
    said = findings(Standing(name, means, baselines, strongest, ceiling, material.difference))
    if len(means) > 1:
        text += (
            " Differences are paired row by row; ahead and behind are said where the 95 % interval of the difference "
            "excludes 0. It speaks of the choice of test rows for these trained models, not of the training seed."
        )
    blocks: list[Block] = [Tiles(tiles), Bullets(said), Paragraph(text)]
    return Section("In short", blocks)


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
