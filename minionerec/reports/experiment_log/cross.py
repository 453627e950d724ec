"""The data sets of a log side by side."""

from collections.abc import Sequence
from typing import Any

from minionerec.reports.document import Block, Cell, Paragraph, Section, Table
from minionerec.reports.experiment_log import said
from minionerec.reports.experiment_log.entry import Entry
from minionerec.reports.experiment_log.gaps import spread
from minionerec.reports.experiment_log.parts import PENDING, READING, spoken
from minionerec.reports.experiment_log.rules import percent, prefix, signed_percent, step_name


def cross_section(entries: Sequence[Entry]) -> Section:
    """Metrics, gaps and levels of all data sets, and what sets them apart."""
    stages = "; ".join(f"{entry.name}: {entry.compared}, {READING[entry.reading]}" for entry in entries)
    blocks: list[Block] = [Paragraph(f"The stage of each data set that is shown: {stages}."), _metrics(entries)]
    if any(entry.compared in entry.levels for entry in entries):
        blocks.append(_levels(entries))
    return Section("Across data sets", [*blocks, *spoken(said.across(entries))])


def shared_names(entries: Sequence[Entry]) -> list[str]:
    """The metrics of the cross table: those of published headlines, else those that all entries have."""
    told = [gap.metric for entry in entries for gap in entry.gaps]
    everyone = [name for name in entries[0].names if all(name in entry.names for entry in entries)]
    names = {name for entry in entries for name in entry.names}
    return sorted(set(told) & names, key=_order) or everyone


def _order(name: str) -> tuple[bool, int]:
    kind, k = name.split("@")
    return kind != "HR", int(k)


def _metrics(entries: Sequence[Entry]) -> Table:
    published = [entry for entry in entries if entry.headline is not None]
    headers = ["Metric", *(entry.name for entry in entries)]
    headers += [f"{entry.headline.name} ({entry.name})" for entry in published if entry.headline is not None]
    rows: list[list[str | Cell]] = []
    for name in shared_names(entries):
        row: list[str | Cell] = [name]
        for entry in entries:
            found = entry.estimates(entry.compared, entry.reading).get(name)
            row.append(PENDING if found is None else f"{found.mean:.4f}")
        for entry in published:
            theirs = entry.headline
            row.append(PENDING if theirs is None or name not in theirs.metrics else theirs.shown(name))
        rows.append(row)
    rows.append([Cell("Gap", strong=True), *(Cell(gap_range(entry), strong=True) for entry in entries)])
    rows[-1] = [*rows[-1], *[PENDING] * len(published)]
    caption = "Ours beside the published headline; Gap: from the smallest to the largest relative difference."
    return Table(headers, rows, caption)


def gap_range(entry: Entry) -> str:
    """The smallest and the largest relative gap of an entry, in that order."""
    ends = spread(entry.gaps)
    if ends is None:
        return PENDING
    first, second = sorted(ends, key=abs)
    return f"{signed_percent(first)} to {signed_percent(second)}"


def _levels(entries: Sequence[Entry]) -> Table:
    found = {entry.name: entry.levels[entry.compared] for entry in entries if entry.compared in entry.levels}
    depth = max(analysis.levels for analysis in found.values())
    rows = []
    for level in range(1, depth + 1):
        exact = " (exact)" if level == depth else " accuracy"
        values = [a.cumulative[0][level - 1] if level <= a.levels and a.ks[0] == 1 else None for a in found.values()]
        rows.append([f"{prefix(level)}{exact}", *(percent(value) for value in values)])
    for level in range(2, depth + 1):
        shares = [a.dropoff[level - 1] if level <= a.levels else None for a in found.values()]
        rows.append([step_name(level), *map(percent, shares)])
    return Table(["Level, at K = 1", *found], rows)


def cross_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """The same, unrounded."""
    levels = {entry.name: entry.levels[entry.compared] for entry in entries if entry.compared in entry.levels}
    return {
        "stages": {entry.name: entry.compared for entry in entries},
        "metrics": {
            entry.name: {
                "ours": {name: found.mean for name, found in entry.estimates(entry.compared, entry.reading).items()},
                "paper": dict(entry.headline.metrics) if entry.headline else {},
            }
            for entry in entries
        },
        "gap_range": {entry.name: list(ends) for entry in entries if (ends := spread(entry.gaps)) is not None},
        "levels": {
            name: {
                "cumulative": found.cumulative[0].tolist() if found.ks[0] == 1 else None,
                "dropoff": list(found.dropoff),
            }
            for name, found in levels.items()
        },
        "insight": [each.to_json() for each in said.across(entries)],
    }
