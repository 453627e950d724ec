"""Sentences by rules: each says its numbers, and is said only where they bear it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minionerec.metrics.levels import LevelAnalysis
from minionerec.metrics.statistics import PairedDifference
from minionerec.reports.cells import MINUS
from minionerec.reports.experiment_log.gaps import Gap, SettingLine, shown_setting, spread

EQUAL, CLOSE, NEAR = 0.01, 0.05, 0.10
"""Largest relative gap that is called equal, close, and lower or higher without "much"."""
SIMILAR_POINTS = 2.5
"""Two retentions are called similar within so many percentage points."""
FLAT, UNIFORM = 0.75, 0.15
"""A hierarchy is flat where the last level keeps this share, uniform where all retentions lie within this much."""


@dataclass(frozen=True)
class Said:
    """A sentence with the rule that made it and its numbers, unrounded."""

    rule: str
    text: str
    numbers: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object."""
        return {"rule": self.rule, "numbers": dict(self.numbers), "text": self.text}


@dataclass(frozen=True)
class StagePair:
    """Two stages on the same rows.

    Attributes:
        after: The later stage.
        before: The one that it is compared with.
        differences: Metric to the paired difference, after minus before.
    """

    after: str
    before: str
    differences: Mapping[str, PairedDifference]


def verdict(found: Sequence[Gap], ours: str, theirs: str) -> list[Said]:
    """How a stage lies to a published row: the interval first, then the size of the gap, then what is nearly equal."""
    known = [gap for gap in found if not gap.doubtful]
    ends = spread(known)
    if ends is None:
        return []
    outside = [gap.metric for gap in known if not gap.inside]
    whole = f"All {len(known)} figures of {theirs} lie" if len(known) > 1 else f"The one figure of {theirs} lies"
    if len(outside) in (0, len(known)):
        first = f"{whole} {'outside' if outside else 'inside'} our 95 % intervals"
    else:
        first = f"{len(known) - len(outside)} of {len(known)} figures of {theirs} lie inside our 95 % intervals, "
        first += f"{_listed(outside)} outside"
    text = f"{first}: {ours} is {_word(*ends)}, {_range(*ends)}."
    said = [Said("verdict", text, {"relative": list(ends), "outside": outside, "figures": len(known)})]
    equal = [gap.metric for gap in known if gap.relative is not None and abs(gap.relative) <= EQUAL]
    if equal:
        text = f"Within 1 % of {theirs}: {_listed(equal)}."
        said.append(Said("near equal", text, {"metrics": equal}))
    return said


def _word(low: float, high: float) -> str:
    """What the largest relative gap is called."""
    size = max(abs(low), abs(high))
    if size <= EQUAL:
        return "equal"
    if size <= CLOSE:
        return "close"
    if low < 0 < high:
        return "higher in some and lower in others"
    return f"{'much ' if size > NEAR else ''}{'lower' if high <= 0 else 'higher'}"


def _range(low: float, high: float) -> str:
    """From the smaller to the larger gap, with signs where they differ or the gap is small."""
    if low < 0 < high or max(abs(low), abs(high)) <= CLOSE:
        return f"{signed_percent(low)} to {signed_percent(high)}" if low != high else signed_percent(low)
    small, large = sorted((abs(low), abs(high)))
    size = f"{100 * small:.1f} to {100 * large:.1f} %" if f"{small:.3f}" != f"{large:.3f}" else f"{100 * large:.1f} %"
    return f"by {size}"


def stage_pattern(step: StagePair) -> list[Said]:
    """In how many metrics a stage rose and fell, which fell, and how much of it the rows can show."""
    gains = {name: found.difference for name, found in step.differences.items()}
    rise, fall = [n for n, gain in gains.items() if gain > 0], [n for n, gain in gains.items() if gain < 0]
    shown = {name: found for name, found in step.differences.items() if found.low > 0 or found.high < 0}
    up, down = [n for n, found in shown.items() if found.low > 0], [n for n, found in shown.items() if found.high < 0]
    if not rise and not fall:
        text = f"{step.after} and {step.before} have the same value in all {len(gains)} metrics."
    elif not fall:
        text = f"From {step.before} to {step.after} none of {len(gains)} metrics falls, {len(rise)} rise."
    else:
        text = (
            f"From {step.before} to {step.after} {len(rise)} of {len(gains)} metrics rise and {len(fall)} fall: "
            f"{_listed([f'{name} ({_signed(gains[name])})' for name in fall])}."
        )
    if rise or fall:
        text += f" By the paired bootstrap {len(up)} rise and {len(down)} fall beyond chance"
        text += f" ({_listed(down)})." if down else "."
    numbers = {"before": step.before, "after": step.after, "rise": rise, "fall": fall, "shown_rise": up}
    return [Said("stage pattern", text, {**numbers, "shown_fall": down, "differences": gains})]


def bottleneck(analysis: LevelAnalysis, stage: str) -> list[Said]:
    """The level at which most is lost at K = 1."""
    known = {step_name(n): kept for n, kept in enumerate(analysis.dropoff, start=1) if kept is not None}
    if len(known) < 2:
        return []
    worst = min(known, key=known.__getitem__)
    others = "; ".join(f"{name} {percent(kept)}" for name, kept in known.items() if name != worst)
    text = f"The bottleneck of {stage} is {worst}: {percent(known[worst])} at K = 1 ({others})."
    return [Said("bottleneck", text, {"stage": stage, "dropoff": list(analysis.dropoff), "worst": worst})]


def kept(analysis: LevelAnalysis, stage: str) -> list[Said]:
    """What further levels keep of what the level before them got right."""
    shares = [share for share in analysis.dropoff[1:] if share is not None]
    if not shares:
        return []
    low, high = min(shares), max(shares)
    numbers = {"stage": stage, "least": low, "most": high}
    if low >= 0.45 and high <= 0.55:
        text = f"Each further level of {stage} about halves what is right: {_span(shares)} is kept."
    else:
        text = f"Each further level of {stage} keeps {_span(shares)} of what was right before it."
    return [Said("halving", text, numbers)]


def gains(after: LevelAnalysis, before: LevelAnalysis, names: tuple[str, str]) -> list[Said]:
    """What a stage gained at each level at K = 1, in percentage points, and whether retention changed."""
    if after.levels != before.levels or not _first(after) or not _first(before):
        return []
    points = [100 * (a - b) for a, b in zip(after.cumulative[0], before.cumulative[0], strict=True)]
    both = zip(after.dropoff[1:], before.dropoff[1:], strict=True)
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    moved, numbers = [100 * (a - b) for a, b in pairs], {"after": names[0], "before": names[1], "points": points}
    if not any(points):
        return [Said("gain by level", f"At K = 1 {names[0]} and {names[1]} are equal at every level.", numbers)]
    listed = ", ".join(f"{_points(gain)} at {prefix(n)}" for n, gain in enumerate(points, start=1))
    said = [Said("gain by level", f"From {names[1]} to {names[0]}, at K = 1: {listed}.", numbers)]
    if pairs:
        same = max(abs(points) for points in moved) <= SIMILAR_POINTS
        parts = "; ".join(f"{percent(b)}, then {percent(a)}" for a, b in pairs)
        verb = "are similar" if same else "differ"
        text = f"Retentions of {names[1]} and {names[0]} {verb}: {parts}."
        said.append(Said("retention", text, {"points": moved, "similar": same}))
    return said


def sharpening(after: LevelAnalysis, before: LevelAnalysis, step: StagePair) -> list[Said]:
    """Whether a stage finds fewer first codes in long lists while its first guess gets better."""
    k = after.ks[-1]
    if after.levels != before.levels or k not in before.ks or k == 1 or not _first(after) or not _first(before):
        return []
    wide = float(after.independent[-1, 0]), float(before.independent[before.ks.index(k), 0])
    exact = float(after.independent[0, -1]), float(before.independent[0, -1])
    if not (wide[0] < wide[1] and exact[0] > exact[1]):
        return []
    text = (
        f"{step.after} is sharper than {step.before}: L1 within the first {k} falls from {percent(wide[1])} to "
        f"{percent(wide[0])}, while the exact first guess rises from {percent(exact[1])} to {percent(exact[0])}"
    )
    gain = step.differences.get("HR@1")
    text += ", though no further than chance goes." if gain is not None and gain.low <= 0 else "."
    return [Said("sharpening", text, {"k": k, "level_1": list(wide[::-1]), "exact": list(exact[::-1])})]


def reach(found: Mapping[str, LevelAnalysis]) -> list[Said]:
    """What the longest lists reach at the first level and exactly."""
    shared = [analysis for analysis in found.values() if analysis.ks[-1] > 1]
    if not shared:
        return []
    k = min(analysis.ks[-1] for analysis in shared)
    at = [analysis.independent[analysis.ks.index(k)] for analysis in shared if k in analysis.ks]
    first, exact = [float(row[0]) for row in at], [float(row[-1]) for row in at]
    text = f"Within the first {k} the code of L1 is right in {_span(first)} of the rows, "
    text += f"the whole SID in {_span(exact)}."
    return [Said("reach", text, {"k": k, "level_1": first, "exact": exact})]


def hypotheses(lines: Sequence[SettingLine], theirs: str) -> list[Said]:
    """What may explain a gap: the settings that are known to differ, and no others."""
    differing = [line for line in lines if line.differs]
    unknown = [line.name for line in lines if not line.known]
    numbers = {"differ": {line.name: [line.theirs, line.ours] for line in differing}, "unknown": unknown}
    if differing:
        parts = [f"{line.name}: {shown_setting(line.theirs)}, ours {shown_setting(line.ours)}" for line in differing]
        text = f"Settings known to differ from those of {theirs}, each of which may have a part in the gap: "
        text += f"{'; '.join(parts)}."
    else:
        text = f"No setting is known to differ from those of {theirs}, so the log offers no explanation of the gap."
    if unknown:
        text += f" Not told on one side: {'; '.join(unknown)}."
    return [Said("hypothesis", text, numbers)]


def contrast(found: Mapping[str, LevelAnalysis]) -> list[Said]:
    """Where the difficulty lies in each of several data sets."""
    known = {name: a for name, a in found.items() if _first(a) and None not in a.dropoff and a.levels > 1}
    if len(known) < 2:
        return []
    ordered = sorted(known, key=lambda name: -known[name].dropoff[0])  # type: ignore[operator]
    listed = ", then ".join(f"{name} ({percent(known[name].dropoff[0])})" for name in ordered)
    said = [Said("order of L1", f"L1 is right most often on {listed}.", {n: known[n].dropoff[0] for n in ordered})]
    by_last = sorted(known, key=lambda name: -known[name].dropoff[-1])  # type: ignore[operator]
    listed = ", then ".join(f"{name} ({percent(known[name].dropoff[-1])})" for name in by_last)
    text = f"The last level keeps most on {listed}."
    said.append(Said("order of retention", text, {name: known[name].dropoff[-1] for name in by_last}))
    for name, analysis in known.items():
        said += _shape(name, [share for share in analysis.dropoff[1:] if share is not None], analysis.dropoff[0])
    return said


def _shape(name: str, shares: Sequence[float], first: float | None) -> list[Said]:
    """Whether a data set's hierarchy is flat or uniform; nothing where it is neither."""
    listed, numbers = _listed([percent(share) for share in shares]), {"retentions": list(shares), "level_1": first}
    if shares[-1] >= FLAT:
        text = (
            f"{name} is flat: of what is right before the last level {percent(shares[-1])} is right at it too, so the "
            f"difficulty lies above (L1 {percent(first)}, retentions {listed})."
        )
        return [Said("flat", text, numbers)]
    if len(shares) > 1 and max(shares) - min(shares) <= UNIFORM:
        text = f"{name} is uniform: what the levels below the first keep lies within 15 points ({listed})."
        return [Said("uniform", text, numbers)]
    return []


def _first(analysis: LevelAnalysis) -> bool:
    """Whether the smallest cut-off is 1."""
    return analysis.ks[0] == 1


def prefix(level: int) -> str:
    """A prefix of the SID as tables name it, e.g. "L1+L2"."""
    return "+".join(f"L{n}" for n in range(1, level + 1))


def step_name(level: int) -> str:
    """A number of the drop-off as tables name it, e.g. "L1 → L1+L2 retention"."""
    return "L1 accuracy" if level == 1 else f"{prefix(level - 1)} → {prefix(level)} retention"


def percent(share: float | None) -> str:
    """A share in percent with two digits."""
    return "—" if share is None else f"{100 * share:.2f} %"


def signed_percent(share: float) -> str:
    """A relative difference with its sign and one digit, which may be zero's."""
    return f"{100 * share:+.1f} %".replace("-", MINUS)


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", MINUS)


def _points(value: float) -> str:
    return f"{value:+.2f} points".replace("-", MINUS)


def _span(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _listed(words: Sequence[str], comma: str = ", ") -> str:
    """Words as a sentence lists them."""
    return words[0] if len(words) == 1 else f"{comma.join(words[:-1])} and {words[-1]}"
