"""Findings of a page: sentences by rules, each with its numbers, and none with a cause."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from minionerec.data.slices import FOLLOWED, LATER, NOT_FOLLOWED, SAME, WHOSE
from minionerec.metrics.predictions import SESSION_CONTEXT, labelled
from minionerec.metrics.results import Slice
from minionerec.metrics.statistics import PairedDifference
from minionerec.metrics.tables import MANY, format_percent, transition_label
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports.cells import listed, quoted, signed, signed_percent, with_interval
from minionerec.reports.reference import PublishedGap, spread
from minionerec.reports.results import ONE_BY_ONE, PageResults

_SHARES = (("time", SAME), ("pair", FOLLOWED))  # slices whose share of a metric is reported
_RESTS = (("time", LATER), ("pair", NOT_FOLLOWED))  # the other slices of their groups
_BASELINES = {given: [labelled(name, given) for name in NAMES] for given in ((), (SESSION_CONTEXT,))}
"""Names of the baselines on pages, by what they were given."""
_NONE = "no significant difference"
_SMALL = 0.05  # share of examples below which a slice is not reported
_LARGE = 0.1  # share of examples that is reported with what to change


@dataclass(frozen=True)
class Finding:
    """A sentence with its rule and numbers, unrounded."""

    rule: str
    text: str
    numbers: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object."""
        return {"rule": self.rule, "numbers": dict(self.numbers), "text": self.text}


def findings(results: PageResults, *rules: str) -> list[Finding]:
    """The findings of some or all `RULES`; a recommender is reported as ahead where an interval excludes 0."""
    return [found for rule in rules or RULES for found in RULES[rule](results)]


def _best(results: PageResults) -> list[Finding]:
    """The highest headline, its lead over the next, and a baseline that no trained recommender is ahead of."""
    ranked, means, metric = results.ranked, results.means, results.headline
    best, numbers = ranked[0], {"metric": metric, "means": means}
    if len(ranked) == 1:
        text = f"{quoted(best)} has {metric} {means[best]:.4f}; there is no other recommender to compare it with."
        return [Finding("best", text, numbers)]
    gap = results.difference(best, ranked[1], results.levels[0], metric)
    text = f"{_called(best)} has the highest {metric}, {means[best]:.4f}, "
    text += "and is ahead of the next, " if gap.verdict > 0 else "with no significant difference from the next, "
    text += f"{_called(ranked[1])}: {with_interval(gap)}."
    found = [Finding("best", _sentence(text), {**numbers, "to_next": list(gap)})]
    mine, theirs = _best_two(results)
    return found + ([] if {mine, theirs} == set(ranked[:2]) else _not_ahead(results, "best", "", mine, theirs))


def _best_two(results: PageResults) -> tuple[str | None, str | None]:
    """The best trained recommender and the best baseline, None where there is none."""
    ranked = results.ranked
    mine = next((name for name in ranked if not _is_baseline(name)), None)
    return mine, next((name for name in ranked if _is_baseline(name)), None)


def _is_baseline(name: str) -> bool:
    return any(name in names for names in _BASELINES.values())


def _not_ahead(results: PageResults, rule: str, where: str, mine: str | None, theirs: str | None) -> list[Finding]:
    """The best trained recommender compared with the best baseline; nothing where it is ahead."""
    if mine is None or theirs is None:
        return []
    gap = results.difference(mine, theirs, results.levels[0], results.headline)
    if gap.verdict > 0:
        return []
    text = f"{where}the best trained recommender, {quoted(mine)}, "
    text += "is behind" if gap.verdict < 0 else "is not significantly ahead of"
    text += f" the baseline {quoted(theirs)}: {with_interval(gap)}."
    return [Finding(rule, _sentence(text), {"trained": mine, "baseline": theirs, "difference": list(gap)})]


def _compared(results: PageResults, rule: str, names: Sequence[str], other: str, what: str) -> list[Finding]:
    """One sentence comparing recommenders with another; nothing without any."""
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
    """All recommenders compared with the strongest baseline that knows as much, by validation where available."""
    kinds = {given: [name for name in results.ranked if name in names] for given, names in _BASELINES.items()}
    found, several = [], all(kinds.values())
    for given, known in kinds.items():
        if not known:
            continue
        best = None if results.chosen is None else results.chosen.strongest_of(given)
        chosen = labelled(best, given) if best else None
        strongest = chosen if chosen in known else known[0]
        where = "validation" if chosen in known else "these examples (no validation results)"
        names = [
            name
            for name in results.own
            if not _is_baseline(name) and (not several or results.recommenders[name].given == given)
        ]
        found += _compared(results, "baseline", names, strongest, f"the strongest baseline on {where}")
    return found


def _steps(results: PageResults) -> list[Finding]:
    """Each recommender compared with the previous one; where there are many, all with the best."""
    own = results.own
    if len(own) > ONE_BY_ONE:
        first = results.level_with_best[0]
        return _compared(results, "steps", [name for name in results.ranked if name in own], first, "the best")
    found = []
    for before, name in pairwise(own):
        gaps = results.differences(before, results.levels[0], [name])[name]
        fall = [metric for metric, gap in gaps.items() if gap.difference < 0]
        rise = sum(gap.difference > 0 for gap in gaps.values())
        (each,) = _compared(results, "steps", [name], before, "the previous one")
        text = f"{each.text} Of {len(gaps)} metrics {rise} rise" + (f" and {', '.join(fall)} fall" if fall else "")
        sure = [sum(gap.verdict == way for gap in gaps.values()) for way in (1, -1)]
        found.append(replace(each, text=f"{text}, {sure[0]} and {sure[1]} significantly."))
    return found


def _published(results: PageResults) -> list[Finding]:
    """Recommenders above, near or below published figures, by the headline metric or, where doubtful, its pair."""
    found: dict[str, tuple[str, PublishedGap, Sequence[PublishedGap]]] = {}
    for name in results.own:
        for row in results.counterparts(name):
            gaps = results.gaps(name, row)
            known = {gap.metric: gap for gap in gaps if not gap.doubtful}
            gap = next((known[metric] for metric in (*results.pair, *known) if metric in known), None)
            if gap is not None:
                other = "" if row.name == name else f" vs. {row.name}"
                found[f"{name} / {row.name} ({row.group})"] = (f"{quoted(name)}{other}", gap, gaps)
    sentences = []
    for words, sign in (("Above", 1), ("Within our 95 % interval of", 0), ("Below", -1)):
        here = {key: each for key, each in found.items() if _side(each[1]) == sign}
        if here:
            parts = [_compared_with(label, gap, gaps, results.headline) for label, gap, gaps in here.values()]
            text = f"{words} the published {results.headline}: {'; '.join(parts)}."
            sentences.append(Finding("published", text, {key: gap.to_json() for key, (_, gap, _) in here.items()}))
    return sentences


def _side(gap: PublishedGap) -> int:
    """0 where the published figure lies in our interval, else 1 where ours is above it and -1 where it is below."""
    return 0 if gap.inside else 1 if gap.gap > 0 else -1


def _compared_with(label: str, gap: PublishedGap, gaps: Sequence[PublishedGap], headline: str) -> str:
    """One recommender compared with one published result: the headline metric, and the range of all figures."""
    known = [each for each in gaps if not each.doubtful]
    metric = "" if gap.metric == headline else f"{gap.metric} "
    text = f"{label} ({metric}{gap.ours.mean:.4f}, published {gap.paper:.4f}, {signed(gap.gap)}"
    ends = spread(known)
    if len(known) > 1 and ends is not None:
        inside = sum(each.inside for each in known)
        text += f"; all {len(known)} figures {signed_percent(ends[0])} to {signed_percent(ends[1])}, {inside} inside"
    return f"{text})"


def _later(results: PageResults) -> list[Finding]:
    """A baseline that no trained recommender is ahead of, where the target is later than the history."""
    for each, found in results.by_slice:
        if (each.group, each.name) == ("time", LATER) and found is not None:
            where = f"on the {100 * each.share:.0f} % of examples {_whose(each)}, "
            return _not_ahead(found, "later examples", where, *_best_two(found))
    return []


def _baselines_ahead(results: PageResults) -> list[Finding]:
    """Slices of a twentieth of the examples and more in which a baseline is ahead of the best trained recommender."""
    parts: dict[str, PairedDifference] = {}
    for each, found in results.by_slice:
        if found is None or each.share < _SMALL or (each.group, each.name) == ("time", LATER):  # `_later` reports these
            continue
        mine, theirs = _best_two(found)
        if mine is None or theirs is None:
            continue
        gap = found.difference(mine, theirs, results.levels[0], results.headline)
        if gap.verdict < 0:
            where = f"on the {100 * each.share:.0f} % of examples {_whose(each)}"
            parts[f"{where} {quoted(mine)} is behind {quoted(theirs)}, {with_interval(gap)}"] = gap
    text = f"Slices in which a baseline is ahead of the best trained recommender: {'; '.join(parts)}."
    return [Finding("slices behind", text, {words: list(gap) for words, gap in parts.items()})] if parts else []


def _slices(results: PageResults) -> list[Finding]:
    """The share of the headline metric of some slices, and slices in which the order of recommenders changes."""
    measured = [(each, found) for each, found in results.by_slice if found is not None]
    if not measured:
        return []
    sentences = []
    for group, name in _SHARES:
        of_group = {each.name: (each, found) for each, found in measured if each.group == group}
        if name in of_group and len(of_group) > 1 and results.means[results.first]:
            part = of_group.pop(name)
            sentences += _share(results, part, next(iter(of_group.values())))
    return sentences + (_order(results, measured) if len(results.own) > 1 else [])


def _share(results: PageResults, part: tuple[Slice, PageResults], rest: tuple[Slice, PageResults]) -> list[Finding]:
    """The share of the first recommender's headline metric from one slice, with its value there and on the rest."""
    metric, first, level = results.headline, results.first, results.levels[0]
    here, there = (found.estimates(level)[first][metric] for _, found in (part, rest))
    held = part[0].share * here.mean / results.means[first]
    text = (
        f"{100 * held:.0f} % of the {metric} of {quoted(first)} comes from {100 * part[0].share:.0f} % of the "
        f"examples, those {_whose(part[0])}: {here.mean:.4f} on these, and {there.mean:.4f} [{there.low:.4f}, "
        f"{there.high:.4f}] on those {_whose(rest[0])}."
    )
    return [Finding("slices", text, {"share": held, "of_examples": part[0].share, "there": here.mean})]


def _order(results: PageResults, measured: Sequence[tuple[Slice, PageResults]]) -> list[Finding]:
    """Slices in which another recommender is ahead of the best, and those in which its lead is not significant."""
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
    text += f"; {'; '.join(ahead)}." if ahead else ", and in no slice is another one significantly ahead."
    if lost:
        text += f" Its lead over the next, {quoted(following)}, is not significant on examples {'; or '.join(lost)}."
    return [Finding("slices", text, {words: list(gap) for words, gap in ahead.items()})]


def _whose(each: Slice) -> str:
    """The text that describes a slice, following "examples"."""
    return WHOSE[each.group, each.name]


def _ceiling(results: PageResults) -> list[Finding]:
    """The share of the ceiling reached by the best recommender and, if that is a baseline, by the best trained one."""
    ceiling, means = results.ceiling_of_sids.get(results.headline), results.means
    if not ceiling:
        return []
    names = dict.fromkeys([results.ranked[0], results.level_with_best[0]])
    parts = [f"{_called(name)} {100 * means[name] / ceiling:.0f} %" for name in names]
    text = f"Share of the ceiling, {ceiling:.4f} (expected of the best possible ranking): {listed(parts)}."
    return [Finding("ceiling", text, {"ceiling": ceiling, **{name: means[name] / ceiling for name in names}})]


def _weakest_level(results: PageResults) -> list[Finding]:
    """The level of the semantic ID with the largest drop-off at K = 1, where recommenders are few."""
    sentences = []
    for name in (name for name in results.own if name in results.analyses):
        analysis = results.analyses[name]
        known = {
            transition_label(each): share
            for each, share in zip(analysis.transitions, analysis.dropoff, strict=True)
            if share is not None
        }
        if len(known) > 1 and len(results.own) <= ONE_BY_ONE:
            worst = min(known, key=known.__getitem__)
            text = f"{quoted(name)} has its largest drop-off at {worst}: {format_percent(known[worst])} at K = 1."
            sentences.append(Finding("weakest level", text, {"worst": worst, **known}))
    return sentences


def _notes(results: PageResults) -> list[Finding]:
    """Recommenders of one seed, pending ones, trainings without effect, cold targets, truncated histories."""
    alone = [name for name in results.own if (effort := results.effort(name)) is not None and effort.single]
    sentences = []
    if alone:
        text = f"Trained with a single seed, so without deviation over seeds: {', '.join(map(quoted, alone))}."
        sentences.append(Finding("single seed", text, {"names": alone}))
    if results.pending:
        text = f"Pending: {', '.join(map(quoted, results.pending))}."
        sentences.append(Finding("pending", text, {"names": results.pending}))
    return [*sentences, *_kept(results), *_hard_examples(results)]


def _kept(results: PageResults) -> Iterator[Finding]:
    """Preference optimisation that ended with the weights that it started from, in every seed."""
    for name in results.own:
        newest = [lineage.trainings[-1] for lineage in results.lineages.get(name, ()) if lineage.trainings]
        if newest and all(each.stage in ("grpo", "dpo") and each.counts.get("best_step") == 0 for each in newest):
            text = f"{quoted(name)}: {newest[0].stage.upper()} found nothing better on validation examples and kept "
            yield Finding("kept", text + "the weights that it started from.", {"name": name})


def _hard_examples(results: PageResults) -> Iterator[Finding]:
    """Shares of cold targets and of truncated histories, with what to change, where they are large."""
    cold = next((each for each in results.slices if (each.group, each.name) == ("target", "cold")), None)
    if cold is not None and cold.share >= _LARGE:
        text = f"{format_percent(cold.share)} of the targets are cold: no training example has them as its target."
        yield Finding("cold targets", text + _for_cold_targets(results), {"share": cold.share})
    examples = results.examples
    truncated = 0 if examples is None else examples.data.counts.get("truncated_histories", 0)
    corpus = None if examples is None else examples.data
    if corpus is not None and truncated >= _LARGE * sum(corpus.sizes.values()):
        share = truncated / sum(corpus.sizes.values())
        text = f"{format_percent(share)} of the histories are truncated to their newest {corpus.max_history} items; "
        yield Finding("truncated histories", text + "max_history of prepare-data sets how many.", {"share": share})


def _for_cold_targets(results: PageResults) -> str:
    """What recommends cold targets, as far as it was not tried; "" where items have no texts."""
    examples = results.examples
    if examples is not None and not (examples.data.items[["title", "description"]] != "").any(axis=None):
        return ""
    trainings = [each for runs in results.lineages.values() for run in runs for each in run.trainings]
    tries = [
        f"with {name} {str(value).lower()}"
        for name, value in (("experts", True), ("unseen_negatives", False))
        if not any(training.settings.get(name) is value for training in trainings)
    ]
    if not tries:
        return ""
    return f" What recommends them reads texts: try train-catalogue {', or '.join(tries)}, and compare the slice."


def _called(name: str) -> str:
    """A recommender's name in a sentence, marked as a baseline where it is one."""
    return f"the baseline {quoted(name)}" if _is_baseline(name) else quoted(name)


def _sentence(text: str) -> str:
    """A sentence with its first letter capitalised, unless it begins with a name."""
    return text[0].upper() + text[1:] if text.startswith(("the ", "on ")) else text


RULES: Mapping[str, Callable[[PageResults], list[Finding]]] = {
    "best": _best,
    "baseline": _baseline,
    "steps": _steps,
    "later examples": _later,
    "slices behind": _baselines_ahead,
    "published": _published,
    "ceiling": _ceiling,
    "notes": _notes,
    "slices": _slices,
    "weakest level": _weakest_level,
}
SHORT = tuple(RULES)[:8]
"""The rules of the summary; findings of the others appear next to their tables."""
