"""Metrics by kind of row as parts of a page: a table, differences, and what they say, for reports and comparisons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minionerec.data.kinds import FOLLOWED, LATER, NOT_FOLLOWED, SAME, WHOSE, Kinds
from minionerec.metrics.seeds import seed_differences
from minionerec.metrics.slices import FEWEST, Kind, SliceResult, alike, list_kinds, measure_kinds
from minionerec.metrics.statistics import PairedDifference
from minionerec.metrics.tables import MANY, MISSING
from minionerec.reports.cells import difference_cell, estimate_cell, signed
from minionerec.reports.document import Block, Bullets, Cell, Paragraph, Table
from minionerec.reports.systems import Bootstrap, System

TITLE = "By kind of row"
_CONCENTRATED = (("time", SAME), ("pair", FOLLOWED))  # kinds of which it is told how much of a metric they hold
_RESTS = (("time", LATER), ("pair", NOT_FOLLOWED))  # and the others of their groups


@dataclass(frozen=True)
class ByKind:
    """What recommenders reach by kind of row.

    Attributes:
        metric: The metric that pages show.
        whole: Its mean over all rows for each recommender, in the order of tables.
        parts: All figures, kind by kind.
        alike: Groups in which all rows are of one kind, with that kind.
        told: The recommenders that sentences speak of; baselines, of which some win by how a kind is chosen, are not.
        between: Takes a kind and two names; gives the paired difference of the metric, the first minus the second.
    """

    metric: str
    whole: Mapping[str, float]
    parts: Sequence[SliceResult]
    alike: Mapping[str, str]
    told: Sequence[str]
    between: Callable[[Kind, str, str], PairedDifference]


def headline_of(metrics: Sequence[str]) -> str:
    """The metric that is shown by kind: NDCG@10, or else the last NDCG@K, or else the last of all."""
    return next((name for name in ("NDCG@10", *reversed(metrics)) if name in metrics and "NDCG" in name), metrics[-1])


def measure_by_kind(
    systems: Sequence[System],
    kinds: Kinds,
    level: str,
    metrics: Sequence[str],
    bootstrap: Bootstrap,
    *,
    told: Sequence[str],
) -> ByKind:
    """Measure systems of the same rows by kind of row; sentences speak of those that are to be told."""
    metric = headline_of(metrics)
    values = {system.name: system.values(level, metrics) for system in systems}

    def between(kind: Kind, name: str, other: str) -> PairedDifference:
        mine, theirs = ({metric: values[each][metric][:, kind.where]} for each in (name, other))
        own = None if bootstrap.clusters is None else np.asarray(bootstrap.clusters)[kind.where]
        return seed_differences(mine, theirs, bootstrap.seed, bootstrap.resamples, own)[metric]

    whole = {name: float(of[metric].mean()) for name, of in values.items()}
    parts = measure_kinds(list_kinds(kinds), values, bootstrap.seed, bootstrap.resamples, bootstrap.clusters)
    return ByKind(metric, whole, parts, alike(kinds), told, between)


def by_kind_blocks(found: ByKind) -> list[Block]:
    """What the kinds say, a table of the metric, one of the differences from the first, and how to read them."""
    names = list(found.whole)
    blocks: list[Block] = [Bullets(sentences)] if (sentences := say(found)) else []
    values = {
        name: [estimate_cell(part.estimates.get(name, {}).get(found.metric)) for part in found.parts] for name in names
    }
    blocks += _tables(found.metric, found, values)
    others = list(found.told)[1:] or names[1:]
    if others:
        gaps = {
            name: [difference_cell(part.against.get(name, {}).get(found.metric)) for part in found.parts]
            for name in others
        }
        blocks += _tables(f"{found.metric}, each minus {names[0]}", found, gaps)
    return [*blocks, Paragraph(_note(found))]


def say(found: ByKind) -> list[str]:
    """How much of the metric a few kinds hold, and whether the order of recommenders changes with the kind."""
    if not any(part.estimates for part in found.parts):
        return []
    sentences = [_concentration(found, group, kind) for group, kind in _CONCENTRATED]
    return [sentence for sentence in [*sentences, _order(found)] if sentence]


def _concentration(found: ByKind, group: str, kind: str) -> str:
    """What share of the first recommender's metric comes from the rows of one kind, and what the others are worth."""
    first, metric = next(iter(found.whole)), found.metric
    of_group = {part.kind.name: part for part in found.parts if part.kind.group == group and part.estimates}
    if kind not in of_group or len(of_group) < 2 or not found.whole[first]:
        return ""
    part, other = of_group.pop(kind), next(iter(of_group.values()))
    held = part.kind.share * part.estimates[first][metric].mean / found.whole[first]
    here, there = (each.estimates[first][metric] for each in (part, other))
    return (
        f"{100 * held:.0f} % of the {metric} of {_quoted(first)} comes from {100 * part.kind.share:.0f} % of the rows, "
        f"those {_whose(part.kind)}: it is {here.mean:.4f} there, and {there.mean:.4f} "
        f"[{there.low:.4f}, {there.high:.4f}] on those {_whose(other.kind)}."
    )


def _order(found: ByKind) -> str:
    """Where another than the best of all rows is ahead of it, and where its lead is not to be seen."""
    means = {name: found.whole[name] for name in found.told}
    if len(means) < 2:
        return ""
    best, following = sorted(means, key=means.__getitem__, reverse=True)[:2]
    ahead = []
    for part in found.parts:
        here = {name: part.estimates[name][found.metric].mean for name in found.told if name in part.estimates}
        leader = max(here, key=here.__getitem__, default=best)
        if leader != best:
            gap = found.between(part.kind, leader, best)
            if gap.low > 0:
                ahead.append(
                    f"on rows {_whose(part.kind)} {_quoted(leader)} is ahead of it by {gap.difference:.4f} "
                    f"[{gap.low:.4f}, {gap.high:.4f}]"
                )
    said = "; ".join(ahead) if ahead else "no kind of row shows another of them ahead of it"
    opening = f"Of {_all_of(found.told)}, {_quoted(best)} has the highest {found.metric} over all rows"
    return f"{opening}{'; ' if ahead else ', and '}{said}.{_lead_lost(found, best, following)}"


def _lead_lost(found: ByKind, best: str, following: str) -> str:
    """Where the lead over the next, which all rows show, is not to be seen: among what concentration leaves over."""
    everything = Kind("", "", np.ones_like(found.parts[0].kind.where))
    if found.between(everything, best, following).low <= 0:
        return ""
    lost = []
    for part in found.parts:
        if part.estimates and (part.kind.group, part.kind.name) in _RESTS:
            gap = found.between(part.kind, best, following)
            if gap.low <= 0:
                interval = f"{signed(gap.difference)} [{signed(gap.low)}, {signed(gap.high)}]"
                lost.append(f"{_whose(part.kind)}, {interval}")
    return f" No lead over the next, {_quoted(following)}, can be shown on rows {'; or '.join(lost)}." if lost else ""


def _tables(title: str, found: ByKind, columns: Mapping[str, Sequence[Cell]]) -> list[Block]:
    """One table with a row a kind; with many recommenders one a group, with a row a recommender."""
    parts = found.parts
    groups = list(dict.fromkeys(part.kind.group for part in parts))
    if len(found.whole) > MANY:
        return [_group_table(title, group, parts, columns) for group in groups]
    rows: list[list[str | Cell]] = []
    for place, part in enumerate(parts):
        kind = part.kind
        label = kind.group if place == 0 or parts[place - 1].kind.group != kind.group else ""
        cells = [of[place] for of in columns.values()]
        rows.append([label, kind.name, _rows_cell(kind), *cells])
    return [Table(["", "", "rows", *columns], rows, f"{title} by kind of row.", text_columns=2)] if rows else []


def _group_table(title: str, group: str, parts: Sequence[SliceResult], columns: Mapping[str, Sequence[Cell]]) -> Table:
    places = [place for place, part in enumerate(parts) if part.kind.group == group]
    rows: list[list[str | Cell]] = [["rows", *(_rows_cell(parts[place].kind) for place in places)]]
    rows += [[name, *(of[place] for place in places)] for name, of in columns.items()]
    return Table([group, *(parts[place].kind.name for place in places)], rows, f"{title} by kind of row: {group}.")


def _rows_cell(kind: Kind) -> Cell:
    return Cell(f"{kind.rows:,}", f"{100 * kind.share:.0f} %")


def _note(found: ByKind) -> str:
    """How to read the tables."""
    groups = {part.kind.group for part in found.parts}
    said = ["Means with 95 % bootstrap intervals over the rows of each kind, drawn as above; differences are paired."]
    if "time" in groups:
        said.append("Time: that of the target beside that of the newest item of the history, as the data give it.")
    if "pair" in groups or "reverse" in groups:
        said.append("Pair and reverse: whether the newest item and the target stood next to each other in training.")
    if "target" in groups:
        said.append("A cold target is no target in training, a rare one in up to 5 rows.")
    if "history" in groups:
        said.append("History: the number of its items.")
    if found.parts:
        said.append("Of so many kinds one interval in twenty leaves out the truth by chance.")
    said += [f"All rows are of one kind in {group}: {kind}." for group, kind in found.alike.items()]
    if any(not part.estimates for part in found.parts):
        said.append(f"{MISSING}: fewer than {FEWEST} rows, or users where these are drawn; nothing is said of them.")
    return " ".join(said)


def _whose(kind: Kind) -> str:
    """How a sentence about the rows of a kind goes on after "rows"."""
    return WHOSE[kind.group, kind.name]


def _all_of(names: Sequence[str]) -> str:
    """Names in a row, or their number where they are many."""
    quoted = [_quoted(name) for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}" if len(names) <= MANY // 2 else f"these {len(names)}"


def _quoted(name: str) -> str:
    return f'"{name}"' if len(name.split()) > 1 else name
