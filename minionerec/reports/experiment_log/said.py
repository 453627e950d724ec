"""Which sentences the log says of a data set, and across data sets."""

from collections.abc import Sequence
from dataclasses import replace

from minionerec.reports.experiment_log import rules
from minionerec.reports.experiment_log.entry import ONE_BY_ONE, Entry
from minionerec.reports.experiment_log.gaps import spread
from minionerec.reports.experiment_log.rules import Said, signed_percent


def of_gaps(entry: Entry) -> list[Said]:
    """Stages beside published rows: how far they lie, and the settings that differ."""
    found: list[Said] = []
    for place, beside in enumerate(entry.beside if len(entry.beside) <= 1 + ONE_BY_ONE else entry.beside[:1]):
        said = rules.verdict(beside.gaps, beside.stage, beside.theirs)
        said = said if place == 0 else [replace(each, rule="counterpart") for each in said[:1]]
        found += [*said, *(rules.hypotheses(beside.lines, beside.theirs) if said else [])]
    return found


def of_stages(entry: Entry) -> list[Said]:
    """Stage beside stage on the same rows."""
    return [said for step in entry.steps for said in rules.stage_pattern(step)]


def of_levels(entry: Entry) -> list[Said]:
    """Level by level; nothing where there are no SIDs."""
    levels, found = entry.levels, []
    if entry.compared in levels:
        found += rules.bottleneck(levels[entry.compared], entry.compared)
        found += rules.kept(levels[entry.compared], entry.compared)
    for step in entry.steps:
        if step.after in levels and step.before in levels:
            pair, names = (levels[step.after], levels[step.before]), (step.after, step.before)
            found += rules.gains(*pair, names) + rules.sharpening(*pair, step)
    return found + rules.reach(levels)


def of_entry(entry: Entry) -> list[Said]:
    """All of one data set."""
    return of_gaps(entry) + of_stages(entry) + of_levels(entry)


def across(entries: Sequence[Entry]) -> list[Said]:
    """What sets the data sets apart."""
    ends = {entry.name: found for entry in entries if (found := spread(entry.gaps)) is not None}
    said = []
    if len(ends) > 1:
        ordered = sorted(ends, key=lambda name: max(map(abs, ends[name])))
        parts = "; ".join(
            f"{name} {signed_percent(ends[name][0])} to {signed_percent(ends[name][1])}" for name in ordered
        )
        text = f"Gaps to the published figures, the smallest first: {parts}."
        said.append(Said("order of gaps", text, {name: list(ends[name]) for name in ordered}))
    return said + rules.contrast({e.name: e.levels[e.compared] for e in entries if e.compared in e.levels})
