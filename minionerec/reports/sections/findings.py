"""What the numbers of a report say, in a few sentences made from paired differences."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from minionerec.metrics.statistics import PairedDifference
from minionerec.reports.cells import signed

_ONE_BY_ONE = 4  # recommenders whose differences are told each with its interval; of more the verdicts are told
_NONE = "no difference that these rows can show"


@dataclass(frozen=True)
class LaterRows:
    """The rows whose target came later than the newest item of the history.

    Attributes:
        share: Their part of all rows.
        means: Mean of the metric on them for each recommender.
        between: Takes two names; gives the paired difference on them, the first minus the second.
    """

    share: float
    means: Mapping[str, float]
    between: Callable[[str, str], PairedDifference]


@dataclass(frozen=True)
class Standing:
    """What sentences are made from.

    Attributes:
        metric: Name of the metric.
        means: Its mean for each recommender, in the order of the report.
        baselines: Which of them are baselines.
        strongest: The baseline that is best on validation examples; None where there are none.
        ceiling: What the best possible ranking may expect; None where that is not known.
        between: Takes two names; gives the paired difference, the first minus the second.
        later: The same of the later rows; None where times are not known, or all or too few rows are later ones.
    """

    metric: str
    means: Mapping[str, float]
    baselines: Collection[str]
    strongest: str | None
    ceiling: float | None
    between: Callable[[str, str], PairedDifference]
    later: LaterRows | None = None


def findings(standing: Standing) -> list[str]:
    """At most six sentences: the best, everyone beside the strongest baseline, step by step, and the ceiling.

    Where a baseline is ahead of the best trained recommender, or level with it, on all rows or on the later ones, the
    first sentence says so. A pair is asked for, and told, once. Ahead or behind is said where the interval of the
    difference excludes 0.
    """
    means, baselines = standing.means, standing.baselines
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    own = [name for name in means if name not in baselines]
    told = set(ranked[:2])
    sentences = [highest(standing, ranked)]
    baseline = standing.strongest or next((name for name in ranked if name in baselines), None)
    sentences[0] += _not_ahead(standing, told, baseline)
    if baseline is not None:
        where = "validation" if standing.strongest else "these rows, for there are no validation examples"
        others = [name for name in own if {name, baseline} != told]
        what = f"the strongest baseline on {where}"
        sentences += beside(standing, others, baseline, what, one_by_one=len(own) <= _ONE_BY_ONE)
    if len(own) <= _ONE_BY_ONE:
        steps = [(name, before) for before, name in pairwise(own) if {name, before} != told]
        sentences += [_step(standing, name, before) for name, before in steps]
    else:
        others = [name for name in own[1:] if {name, own[0]} != told]
        sentences += beside(standing, others, own[0], "the first", one_by_one=False)
    if standing.ceiling:
        sentences.append(_share(standing, ranked[0], next((name for name in ranked if name in own), None)))
    return sentences


def highest(standing: Standing, ranked: Sequence[str]) -> str:
    """Who has the highest mean, and whether that is a lead over the next."""
    best = ranked[0]
    value = f"{standing.metric}, {standing.means[best]:.4f}"
    if len(ranked) == 1:
        return f"{_said(standing, best)} stands alone here: {value}, and nothing to compare it with."
    following = _said(standing, ranked[1])
    found = standing.between(best, ranked[1])
    opening = f"{_said(standing, best)} has the highest {value}"
    sentence = (
        f"{opening}, and is ahead of the next, {following}, by {_size(found)}."
        if _verdict(found) > 0
        else f"{opening}, but no lead over the next, {following}, that these rows can show: {_signed(found)}."
    )
    return sentence[0].upper() + sentence[1:] if best in standing.baselines else sentence


def _not_ahead(standing: Standing, told: Collection[str], strongest: str | None) -> str:
    """What to add where the best baseline is ahead of the best trained recommender, or level; "" where it is neither.

    Args:
        standing: What sentences are made from.
        told: The two that the first sentence speaks of.
        strongest: The baseline that everyone is set beside in the next one.
    """
    found = ""
    mine, theirs = _best_two(standing.means, standing.baselines)
    if mine and theirs and {mine, theirs} != set(told) and theirs != strongest:
        found += _if_not_ahead(standing, "", mine, theirs, standing.between)
    if (later := standing.later) is not None:
        mine, theirs = _best_two(later.means, standing.baselines)
        where = f"On the {100 * later.share:.0f} % of rows whose target came later than the newest history item, "
        if mine and theirs:
            found += _if_not_ahead(standing, where, mine, theirs, later.between)
    return found


def _best_two(means: Mapping[str, float], baselines: Collection[str]) -> tuple[str | None, str | None]:
    """The best trained recommender and the best baseline, None where there is none."""
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    mine = next((name for name in ranked if name not in baselines), None)
    return mine, next((name for name in ranked if name in baselines), None)


def _if_not_ahead(
    standing: Standing, where: str, mine: str, theirs: str, between: Callable[[str, str], PairedDifference]
) -> str:
    """A sentence on a baseline that a recommender is not ahead of, with a space before it; "" where it is ahead."""
    gap, other = between(mine, theirs), _said(standing, theirs)
    if _verdict(gap) > 0:
        return ""
    if _verdict(gap) < 0:
        said = f"{other} is ahead of the best trained recommender, {quoted(mine)}, by {_size(gap)}."
    else:
        said = f"{quoted(mine)} has no lead over {other} that these rows can show: {_signed(gap)}."
    return f" {where}{said}" if where else f" {said[0].upper()}{said[1:]}"


def beside(standing: Standing, names: Sequence[str], other: str, what: str, *, one_by_one: bool) -> list[str]:
    """One sentence on how some recommenders lie to another; none without any."""
    found = {name: standing.between(name, other) for name in names}
    if not found:
        return []
    if one_by_one:
        return [f"Beside {what}, {quoted(other)}: {'; '.join(_clause(name, gap) for name, gap in found.items())}."]
    parts = []
    for words, verdict in (("ahead", 1), ("behind", -1), (f"{_NONE} for", 0)):
        here = {name: gap for name, gap in found.items() if _verdict(gap) == verdict}
        if here:
            parts.append(f"{words} {', '.join(f'{quoted(name)} ({signed(here[name].difference)})' for name in here)}")
    return [f"Beside {what}, {quoted(other)}: {'; '.join(parts)}."]


def _clause(name: str, found: PairedDifference) -> str:
    if _verdict(found) == 0:
        return f"for {quoted(name)} {_NONE}, {_signed(found)}"
    return f"{quoted(name)} is {'ahead' if _verdict(found) > 0 else 'behind'} by {_size(found)}"


def _step(standing: Standing, name: str, before: str) -> str:
    """A recommender beside the one that stands before it."""
    found = standing.between(name, before)
    if _verdict(found) == 0:
        return f"Between {quoted(name)} and {quoted(before)} there is {_NONE}: {_signed(found)}."
    return f"{quoted(name)} is {'ahead of' if _verdict(found) > 0 else 'behind'} {quoted(before)} by {_size(found)}."


def _share(standing: Standing, best: str, best_own: str | None) -> str:
    """What share of the ceiling the best reaches, and beside a baseline the best that is none."""
    ceiling = standing.ceiling or 1.0
    sentence = f"{100 * standing.means[best] / ceiling:.0f} %"
    if best_own not in (None, best):
        sentence += f", {quoted(str(best_own))} {100 * standing.means[str(best_own)] / ceiling:.0f} %"
    return f"Of what the best possible ranking may expect, {ceiling:.4f}, {_said(standing, best)} reaches {sentence}."


def _verdict(found: PairedDifference) -> int:
    """1 where the first is ahead, -1 where it is behind, 0 where the interval holds 0."""
    return int(found.low > 0) - int(found.high < 0)


def _size(found: PairedDifference) -> str:
    """How large a difference is that has a direction, whichever that is."""
    low, high = sorted((abs(found.low), abs(found.high)))
    return f"{abs(found.difference):.4f} [{low:.4f}, {high:.4f}]"


def _signed(found: PairedDifference) -> str:
    return f"{signed(found.difference)} [{signed(found.low)}, {signed(found.high)}]"


def _said(standing: Standing, name: str) -> str:
    return f"the baseline {quoted(name)}" if name in standing.baselines else quoted(name)


def quoted(name: str) -> str:
    """A name as it can stand in a sentence: in quotes where it is more than one word."""
    return f'"{name}"' if len(name.split()) > 1 else name
