"""How the semantic IDs use their codes."""

from typing import Any

import numpy as np

from minionerec.core.artefacts import read_json
from minionerec.core.places import find_path
from minionerec.metrics.tables import MISSING
from minionerec.reports import plots
from minionerec.reports.cells import percent
from minionerec.reports.document import Block, Cell, Figure, Paragraph, Section, Table
from minionerec.reports.material import Material
from minionerec.sid.report import level_use
from minionerec.sid.table import SidTable


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
