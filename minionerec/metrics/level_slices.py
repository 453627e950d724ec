"""Accuracy level by level of the semantic ID, by kind of row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minionerec.metrics.levels import LevelAnalysis, level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.slices import FEWEST, Kind
from minionerec.metrics.tables import MISSING, text_table
from minionerec.sid.table import split_sid


@dataclass(frozen=True)
class LevelPart:
    """The hit rates on the rows of one kind.

    Attributes:
        kind: The kind.
        analysis: Its hit rates; None where fewer than `FEWEST` of its targets are semantic IDs.
    """

    kind: Kind
    analysis: LevelAnalysis | None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: group, kind, rows (those that count), share, and what `LevelAnalysis.to_json` gives."""
        return {**self.kind.to_json(), **(self.analysis.to_json() if self.analysis else {})}


def levels_by_kind(
    predictions: Predictions, kinds: Sequence[Kind], ks: Sequence[int], levels: int, width: int, keep_duplicates: bool
) -> list[LevelPart]:
    """`level_analysis` on the rows of each kind.

    Args:
        predictions: The ranked lists of R rows.
        kinds: Kinds of these rows.
        ks: Cut-offs.
        levels: Levels compared, L.
        width: Number of candidates that were asked for.
        keep_duplicates: As in `level_analysis`.
    """
    parts = []
    for kind in kinds:
        here = predictions.on(kind.where)
        deep = sum(len(split_sid(sid) or ()) >= levels for sid in here.target_sids)
        found = None
        if deep >= FEWEST:
            found = level_analysis(here, ks, levels=levels, width=width, keep_duplicates=keep_duplicates)
        parts.append(LevelPart(kind, found))
    return parts


def format_level_parts(parts: Sequence[LevelPart], ks: Sequence[int], levels: int) -> str:
    """A text table: a row a kind, and for each K the cumulative accuracy of each level."""
    names = ["+".join(f"L{n}" for n in range(1, level + 1)) for level in range(1, levels + 1)]
    rows, before = [], ""
    for part in parts:
        kind, analysis = part.kind, part.analysis
        label = kind.group if kind.group != before else ""
        cells = [MISSING] * (len(ks) * levels)
        if analysis is not None:
            cells = [f"{value:.4f}" for k in ks for value in analysis.cumulative[analysis.ks.index(k)]]
        rows.append([f"{label:<8} {kind.name}", f"{kind.rows:,}", f"{100 * kind.share:.1f} %", *cells])
        before = kind.group
    headers = ["Cumulative accuracy by kind of row", "rows", "share", *(f"@{k} {name}" for k in ks for name in names)]
    note = f"\n{MISSING}: fewer than {FEWEST} rows" if any(part.analysis is None for part in parts) else ""
    return text_table(headers, rows) + note
