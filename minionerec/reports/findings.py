"""What the numbers of a page say, in sentences by rules: each states its numbers, and none a cause."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from minionerec.data.kinds import FOLLOWED, LATER, NOT_FOLLOWED, SAME, WHOSE
from minionerec.metrics.results import Slice
from minionerec.metrics.statistics import PairedDifference
from minionerec.metrics.tables import MANY, format_percent, transition_label
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports.cells import listed, quoted, signed, signed_percent, with_interval
from minionerec.reports.reference import PublishedGap, spread
from minionerec.reports.results import ONE_BY_ONE, PageResults

_SHARES = (("time", SAME), ("pair", FOLLOWED))  # slices of which it is said how much of a metric they make up
_RESTS = (("time", LATER), ("pair", NOT_FOLLOWED))  # and the others of their groups
_NONE = "no difference that these examples can show"


@dataclass(frozen=True)
class Finding:
    """A sentence with the rule that made it and its numbers, unrounded."""

    rule: str
    text: str
    numbers: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object."""
        return {"rule": self.rule, "numbers": dict(self.numbers), "text": self.text}


def findings(results: PageResults, *rules: str) -> list[Finding]:
    """What results say, by some of the `RULES` or all; who is ahead is said where an interval excludes 0."""
    return [found for rule in rules or RULES for found in RULES[rule](results)]


def _best(results: PageResults) -> list[Finding]:
    """The highest headline, whether that is a lead over the next, and a baseline that no trained one is ahead of."""
    ranked, means, metric = results.ranked, results.means, results.headline
    best, numbers = ranked[0], {"metric": metric, "means": means}
    if len(ranked) == 1:
        text = f"{quoted(best)} stands alone here: {metric}, {means[best]:.4f}, and nothing to compare it with."
        return [Finding("best", text, numbers)]
    gap = results.difference(best, ranked[1], results.levels[0], metric)
    text = f"{_called(best)} has the highest {metric}, {means[best]:.4f}, "
    text += (
        "and is ahead of the next, " if gap.verdict > 0 else "but no lead that these examples can show over the next, "
    )
    text += f"{_called(ranked[1])}: {with_interval(gap)}."
    found = [Finding("best", _sentence(text), {**numbers, "to_next": list(gap)})]
    mine, theirs = _best_two(results)
    return found + ([] if {mine, theirs} == set(ranked[:2]) else _not_ahead(results, "best", "", mine, theirs))


def _best_two(results: PageResults) -> tuple[str | None, str | None]:
    """The best trained recommender and the best baseline, None where there is none."""
    ranked = results.ranked
    mine = next((name for name in ranked if name not in NAMES), None)
    return mine, next((name for name in ranked if name in NAMES), None)


def _not_ahead(results: PageResults, rule: str, where: str, mine: str | None, theirs: str | None) -> list[Finding]:
    """That the best trained recommender is behind the best baseline, or level with it; nothing where it is ahead."""
    if mine is None or theirs is None:
        return []
    gap = results.difference(mine, theirs, results.levels[0], results.headline)
    if gap.verdict > 0:
        return []
    text = f"{where}the best trained recommender, {quoted(mine)}, "
    text += "is behind" if gap.verdict < 0 else "has no lead that these examples can show over"
    text += f" the baseline {quoted(theirs)}: {with_interval(gap)}."
    return [Finding(rule, _sentence(text), {"trained": mine, "baseline": theirs, "difference": list(gap)})]


def _compared(results: PageResults, rule: str, names: Sequence[str], other: str, what: str) -> list[Finding]:
    """One sentence on how recommenders lie to another; nothing without any."""
    found = {n: results.difference(n, other, results.levels[0], results.headline) for n in names if n != other}
    shown: Callable[[PairedDifference], str] = with_interval
    if len(found) > ONE_BY_ONE:
        shown = lambda gap: signed(gap.difference)  # noqa: E731
    parts = []
    for words, verdict in (("ahead", 1), ("behind", -1), (f"{_NONE} for", 0)):
        here = [f"{quoted(name)} ({shown(gap)})" for name, gap in found.items() if gap.verdict == verdict]
        if here:
            parts.append(f"{words} {', '.join(here)}")
    text = f"Compared with {what}, {quoted(other)}: {'; '.join(parts)}."
    return [Finding(rule, text, {name: list(gap) for name, gap in found.items()})] if found else []


def _baseline(results: PageResults) -> list[Finding]:
    """Everyone beside the strongest baseline, which validation chose where there is any."""
    known = [name for name in results.ranked if name in NAMES]
    if not known:
        return []
    chosen = results.chosen.strongest if results.chosen else None
    strongest = chosen if chosen in known else known[0]
    where = "validation" if chosen in known else "these examples, for there are none of validation"
    names = [name for name in results.own if name not in NAMES]
    return _compared(results, "baseline", names, strongest, f"the strongest baseline on {where}")


def _steps(results: PageResults) -> list[Finding]:
    """Each recommender beside the one before; of many all beside the best."""
    own = results.own
    if len(own) > ONE_BY_ONE:
        first = results.level_with_best[0]
        return _compared(results, "steps", [name for name in results.ranked if name in own], first, "the best")
    found = []
    for before, name in pairwise(own):
        gaps = results.differences(before, results.levels[0], [name])[name]
        fall = [metric for metric, gap in gaps.items() if gap.difference < 0]
        rise = sum(gap.difference > 0 for gap in gaps.values())
        (each,) = _compared(results, "steps", [name], before, "the one before")
        text = f"{each.text} Of {len(gaps)} metrics {rise} rise" + (f" and {', '.join(fall)} fall" if fall else "")
        sure = [sum(gap.verdict == way for gap in gaps.values()) for way in (1, -1)]
        found.append(replace(each, text=f"{text}, {sure[0]} and {sure[1]} beyond chance."))
    return found


def _published(results: PageResults) -> list[Finding]:
    """Who is above, at or below published figures: by the headline, or where that cannot be right by its pair."""
    found: dict[str, tuple[str, PublishedGap, Sequence[PublishedGap]]] = {}
    for name in results.own:
        for row in results.counterparts(name):
            gaps = results.gaps(name, row)
            known = {gap.metric: gap for gap in gaps if not gap.doubtful}
            gap = next((known[metric] for metric in (*results.pair, *known) if metric in known), None)
            if gap is not None:
                beside = "" if row.name == name else f" beside {row.name}"
                found[f"{name} / {row.name} ({row.group})"] = (f"{quoted(name)}{beside}", gap, gaps)
    said = []
    for words, sign in (("Above", 1), ("With our 95 % interval around", 0), ("Below", -1)):
        here = {key: each for key, each in found.items() if _side(each[1]) == sign}
        if here:
            parts = [_beside(label, gap, gaps, results.headline) for label, gap, gaps in here.values()]
            text = f"{words} the published {results.headline}: {'; '.join(parts)}."
            said.append(Finding("published", text, {key: gap.to_json() for key, (_, gap, _) in here.items()}))
    return said


def _side(gap: PublishedGap) -> int:
    """0 where the published figure lies in our interval, else 1 where ours is above it and -1 where it is below."""
    return 0 if gap.inside else 1 if gap.gap > 0 else -1


def _beside(label: str, gap: PublishedGap, gaps: Sequence[PublishedGap], headline: str) -> str:
    """One recommender beside one published row: the headline, and the range of all figures."""
    known = [each for each in gaps if not each.doubtful]
    metric = "" if gap.metric == headline else f"{gap.metric} "
    text = f"{label} ({metric}{gap.ours.mean:.4f}, published {gap.paper:.4f}, {signed(gap.gap)}"
    ends = spread(known)
    if len(known) > 1 and ends is not None:
        inside = sum(each.inside for each in known)
        text += f"; all {len(known)} figures {signed_percent(ends[0])} to {signed_percent(ends[1])}, {inside} inside"
    return f"{text})"


def _later(results: PageResults) -> list[Finding]:
    """A baseline that no trained recommender is ahead of where the target came later than the history."""
    for each, found in results.by_slice:
        if (each.group, each.name) == ("time", LATER) and found is not None:
            where = f"on the {100 * each.share:.0f} % of examples {_whose(each)}, "
            return _not_ahead(found, "later examples", where, *_best_two(found))
    return []


def _slices(results: PageResults) -> list[Finding]:
    """How much of the headline a few slices make up, and whether the order of recommenders changes with the slice."""
    measured = [(each, found) for each, found in results.by_slice if found is not None]
    if not measured:
        return []
    said = []
    for group, name in _SHARES:
        of_group = {each.name: (each, found) for each, found in measured if each.group == group}
        if name in of_group and len(of_group) > 1 and results.means[results.first]:
            part = of_group.pop(name)
            said += _share(results, part, next(iter(of_group.values())))
    return said + (_order(results, measured) if len(results.own) > 1 else [])


def _share(results: PageResults, part: tuple[Slice, PageResults], rest: tuple[Slice, PageResults]) -> list[Finding]:
    """What share of the first recommender's headline one slice makes up, and its value there and on the rest."""
    metric, first, level = results.headline, results.first, results.levels[0]
    here, there = (found.estimates(level)[first][metric] for _, found in (part, rest))
    held = part[0].share * here.mean / results.means[first]
    text = (
        f"{100 * held:.0f} % of the {metric} of {quoted(first)} comes from {100 * part[0].share:.0f} % of the "
        f"examples, those {_whose(part[0])}: it is {here.mean:.4f} there, and {there.mean:.4f} [{there.low:.4f}, "
        f"{there.high:.4f}] on those {_whose(rest[0])}."
    )
    return [Finding("slices", text, {"share": held, "of_examples": part[0].share, "there": here.mean})]


def _order(results: PageResults, measured: Sequence[tuple[Slice, PageResults]]) -> list[Finding]:
    """The slices in which another than the best is ahead of it, and those in which its lead cannot be shown."""
    own, metric, level = results.own, results.headline, results.levels[0]
    best, following = [name for name in results.ranked if name in own][:2]
    leads, lost = results.difference(best, following, level, metric).verdict > 0, []
    ahead: dict[str, PairedDifference] = {}
    for each, found in measured:
        leader = next(name for name in found.ranked if name in own)
        if leader != best and (gap := found.difference(leader, best, level, metric)).verdict > 0:
            ahead[f"on examples {_whose(each)} {quoted(leader)} is ahead of it: {with_interval(gap)}"] = gap
        if leads and (each.group, each.name) in _RESTS:
            gap = found.difference(best, following, level, metric)
            lost += [f"{_whose(each)}, {with_interval(gap)}"] if gap.verdict <= 0 else []
    all_of = listed([quoted(name) for name in own]) if len(own) <= MANY // 2 else f"these {len(own)}"
    text = f"Of {all_of}, {quoted(best)} has the highest {metric} over all examples"
    text += f"; {'; '.join(ahead)}." if ahead else ", and no slice shows another of them ahead of it."
    if lost:
        text += f" No lead over the next, {quoted(following)}, can be shown on examples {'; or '.join(lost)}."
    return [Finding("slices", text, {words: list(gap) for words, gap in ahead.items()})]


def _whose(each: Slice) -> str:
    """How a sentence about the examples of a slice goes on after "examples"."""
    return WHOSE[each.group, each.name]


def _ceiling(results: PageResults) -> list[Finding]:
    """What share of the ceiling the best reaches, and beside a baseline the best that is none."""
    ceiling, means = results.ceiling_of_sids.get(results.headline), results.means
    if not ceiling:
        return []
    names = dict.fromkeys([results.ranked[0], results.level_with_best[0]])
    parts = [f"{_called(name)} {100 * means[name] / ceiling:.0f} %" for name in names]
    text = f"Of what the best possible ranking may expect, {ceiling:.4f}, {listed(parts)} are reached."
    return [Finding("ceiling", text, {"ceiling": ceiling, **{name: means[name] / ceiling for name in names}})]


def _weakest_level(results: PageResults) -> list[Finding]:
    """The level of the semantic ID at which each of few recommenders loses most at K = 1."""
    said = []
    for name in (name for name in results.own if name in results.analyses):
        analysis = results.analyses[name]
        known = {
            transition_label(each): share
            for each, share in zip(analysis.transitions, analysis.dropoff, strict=True)
            if share is not None
        }
        if len(known) > 1 and len(results.own) <= ONE_BY_ONE:
            worst = min(known, key=known.__getitem__)
            text = f"{quoted(name)} loses most at {worst}: {format_percent(known[worst])} at K = 1."
            said.append(Finding("weakest level", text, {"worst": worst, **known}))
    return said


def _notes(results: PageResults) -> list[Finding]:
    """Who was trained with one seed alone, and who is pending."""
    alone = [name for name in results.own if (effort := results.effort(name)) is not None and effort.single]
    said = []
    if alone:
        text = f"Trained with a single seed, so with no spread over seeds: {', '.join(map(quoted, alone))}."
        said.append(Finding("single seed", text, {"names": alone}))
    if results.pending:
        text = f"Pending: {', '.join(map(quoted, results.pending))}."
        said.append(Finding("pending", text, {"names": results.pending}))
    return said


def _called(name: str) -> str:
    """A recommender in a sentence, called a baseline where it is one."""
    return f"the baseline {quoted(name)}" if name in NAMES else quoted(name)


def _sentence(text: str) -> str:
    """A sentence that may begin with a word of ours."""
    return text[0].upper() + text[1:] if text.startswith(("the ", "on ")) else text


RULES: Mapping[str, Callable[[PageResults], list[Finding]]] = {
    "best": _best,
    "baseline": _baseline,
    "steps": _steps,
    "later examples": _later,
    "published": _published,
    "ceiling": _ceiling,
    "notes": _notes,
    "slices": _slices,
    "weakest level": _weakest_level,
}
SHORT = tuple(RULES)[:7]
"""The rules of the head of a page; the sentences of the others stand by their tables."""
