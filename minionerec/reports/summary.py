"""Summary of a report: up to seven kinds of sentences, computed from paired differences, without causes."""

from collections.abc import Sequence

from minionerec.data.slices import LATER, WHOSE
from minionerec.metrics.statistics import PairedDifference
from minionerec.metrics.values import HR, VALUE
from minionerec.recommend.rankers.baselines import NAMES
from minionerec.reports.cells import quoted, signed, signed_percent, with_interval
from minionerec.reports.reference import PublishedGap, spread
from minionerec.reports.results import PageResults

_SMALL = 0.05  # share of examples below which a slice is not reported
_ALL_INTERVALS = 4  # recommenders up to which differences are shown with intervals


def summary(results: PageResults) -> list[str]:
    """The sentences of the summary; a recommender is reported as ahead where the 95 % interval excludes 0."""
    return [
        *_best(results),
        *_against_baselines(results),
        *_later(results),
        *_slices_led_by_baselines(results),
        *_published(results),
        *_value(results),
        *_kept_start(results),
    ]


def _best(results: PageResults) -> list[str]:
    """Sentences on the highest headline metric and its lead, and on a baseline that no trained recommender beats."""
    ranked, means, metric = results.ranked, results.means, results.headline
    best = ranked[0]
    if len(ranked) == 1:
        return [f"{quoted(best)} has {metric} {means[best]:.4f}; there is no other recommender to compare it with."]
    gap = results.difference(best, ranked[1], results.levels[0], metric)
    text = f"{_called(best)} has the highest {metric}, {means[best]:.4f}, "
    text += "and is ahead of the next, " if gap.verdict > 0 else "with no significant difference from the next, "
    text += f"{_called(ranked[1])}: {with_interval(gap)}."
    trained, baseline = _best_two(results)
    return [_sentence(text)] + (
        [] if {trained, baseline} == set(ranked[:2]) else _not_ahead(results, "", trained, baseline)
    )


def _best_two(results: PageResults) -> tuple[str | None, str | None]:
    """Names of the best trained recommender and the best baseline; None if there is none."""
    ranked = results.ranked
    trained = next((name for name in ranked if name not in NAMES), None)
    return trained, next((name for name in ranked if name in NAMES), None)


def _not_ahead(results: PageResults, where: str, trained: str | None, baseline: str | None) -> list[str]:
    """Sentence that compares the best trained recommender with the best baseline, unless it is ahead."""
    if trained is None or baseline is None:
        return []
    gap = results.difference(trained, baseline, results.levels[0], results.headline)
    if gap.verdict > 0:
        return []
    text = f"{where}the best trained recommender, {quoted(trained)}, "
    text += "is behind" if gap.verdict < 0 else "is not significantly ahead of"
    return [_sentence(f"{text} the baseline {quoted(baseline)}: {with_interval(gap)}.")]


def _against_baselines(results: PageResults) -> list[str]:
    """Sentence that compares recommenders with the strongest baseline, by validation if available."""
    known = [name for name in results.ranked if name in NAMES]
    if not known:
        return []
    chosen = None if results.chosen is None else results.chosen.strongest
    strongest = chosen if chosen in known else known[0]
    where = "validation" if chosen in known else "these examples (no validation results)"
    names = [name for name in results.without_baselines if name not in NAMES]
    return _compared(results, names, strongest, f"the strongest baseline on {where}")


def _compared(results: PageResults, names: Sequence[str], other: str, what: str) -> list[str]:
    """Sentence that compares recommenders with another one; none without recommenders."""
    gaps = {name: results.difference(name, other, results.levels[0], results.headline) for name in names}
    parts = []
    for words, verdict in (("ahead", 1), ("behind", -1), ("no significant difference for", 0)):
        shown = [
            f"{quoted(name)} ({with_interval(gap) if len(gaps) <= _ALL_INTERVALS else signed(gap.difference)})"
            for name, gap in gaps.items()
            if gap.verdict == verdict
        ]
        if shown:
            parts.append(f"{words} {', '.join(shown)}")
    return [f"Compared with {what}, {quoted(other)}: {'; '.join(parts)}."] if gaps else []


def _later(results: PageResults) -> list[str]:
    """Sentence on a baseline that no trained recommender beats on targets later than the history, or its session."""
    for part, measured in results.by_slice:
        if part.name == LATER and measured is not None:
            where = f"on the {100 * part.share:.0f} % of examples {WHOSE[part.group, part.name]}, "
            return _not_ahead(measured, where, *_best_two(measured))
    return []


def _slices_led_by_baselines(results: PageResults) -> list[str]:
    """Sentence on slices of at least 5 % of the examples in which a baseline beats the best trained recommender."""
    parts = []
    for part, measured in results.by_slice:
        key = part.group, part.name
        if measured is None or part.share < _SMALL or part.name == LATER:  # `_later` reports these
            continue
        trained, baseline = _best_two(measured)
        if trained is None or baseline is None:
            continue
        gap: PairedDifference = measured.difference(trained, baseline, results.levels[0], results.headline)
        if gap.verdict < 0:
            where = f"on the {100 * part.share:.0f} % of examples {WHOSE[key]}"
            parts.append(f"{where} {quoted(trained)} is behind {quoted(baseline)}, {with_interval(gap)}")
    return [f"Slices in which a baseline is ahead of the best trained recommender: {'; '.join(parts)}."] * bool(parts)


def _published(results: PageResults) -> list[str]:
    """Sentences on recommenders above, near or below published results, by the headline metric or its pair."""
    compared: dict[str, tuple[str, PublishedGap, Sequence[PublishedGap]]] = {}
    for name in results.without_baselines:
        for row in results.counterparts(name):
            gaps = results.gaps(name, row)
            known = {gap.metric: gap for gap in gaps if not gap.doubtful}
            gap = next((known[metric] for metric in (*results.pair, *known) if metric in known), None)
            if gap is not None:
                other = "" if row.name == name else f" vs. {row.name}"
                compared[f"{name} / {row.name} ({row.group})"] = (f"{quoted(name)}{other}", gap, gaps)
    sentences = []
    for words, side in (("Above", 1), ("Within our 95 % interval of", 0), ("Below", -1)):
        parts = [
            _beside_published(label, gap, gaps, results.headline)
            for label, gap, gaps in compared.values()
            if side == (0 if gap.inside else 1 if gap.gap > 0 else -1)
        ]
        if parts:
            sentences.append(f"{words} the published {results.headline}: {'; '.join(parts)}.")
    return sentences


def _beside_published(label: str, gap: PublishedGap, gaps: Sequence[PublishedGap], headline: str) -> str:
    """Comparison of a recommender with a published result: the headline metric, and the range of all metrics."""
    known = [of_metric for of_metric in gaps if not of_metric.doubtful]
    metric = "" if gap.metric == headline else f"{gap.metric} "
    text = f"{label} ({metric}{gap.ours.mean:.4f}, published {gap.paper:.4f}, {signed(gap.gap)}"
    ends = spread(known)
    if len(known) > 1 and ends is not None:
        inside = sum(of_metric.inside for of_metric in known)
        text += f"; all {len(known)} figures {signed_percent(ends[0])} to {signed_percent(ends[1])}, {inside} inside"
    return f"{text})"


def _value(results: PageResults) -> list[str]:
    """Sentence on the value of lists beside that of the first recommender, re-ranked to the same HR@10."""
    parts = [
        f"{quoted(name)} finds {VALUE} {gap.value:.4f} with {HR} {gap.hit:.4f}, {quoted(results.first)} re-ranked by "
        f"{results.value_column} {gap.re_ranked:.4f} ({with_interval(gap.difference)})"
        for name, gap in results.value_gaps.items()
    ]
    return [f"In purchase value: {'; '.join(parts)}."] if parts else []


def _kept_start(results: PageResults) -> list[str]:
    """Sentences on preference optimisation that kept its initial weights in every seed."""
    sentences = []
    for name in results.without_baselines:
        newest = [lineage.trainings[-1] for lineage in results.lineages.get(name, ()) if lineage.trainings]
        if newest and all(run.counts.get("best_step") == 0 for run in newest):
            sentences.append(
                f"{quoted(name)}: {newest[0].stage.upper()} found nothing better on validation examples and kept the "
                "weights that it started from."
            )
    return sentences


def _called(name: str) -> str:
    """Name of a recommender in a sentence, marked if it is a baseline."""
    return f"the baseline {quoted(name)}" if name in NAMES else quoted(name)


def _sentence(text: str) -> str:
    """Capitalise the first letter of a sentence, unless it begins with a name."""
    return text[0].upper() + text[1:] if text.startswith(("the ", "on ")) else text
