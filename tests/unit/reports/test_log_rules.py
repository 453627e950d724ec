"""Sentences of the experiment log: each is said only where its numbers bear it out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.metrics.levels import LevelAnalysis
from minionerec.metrics.ranking import Estimate
from minionerec.metrics.statistics import PairedDifference
from minionerec.reports.cells import MINUS
from minionerec.reports.experiment_log import rules
from minionerec.reports.experiment_log.gaps import Gap, SettingLine, setting_lines, spread
from minionerec.reports.experiment_log.rules import StagePair

SHARES = st.floats(0.01, 0.99)


def gap(metric, paper, ours, half=0.001, doubtful=False):
    return Gap(metric, paper, Estimate(ours, ours - half, ours + half), doubtful)


def analysis(dropoff, wide=None, exact=None, ks=(1, 50)):
    """Hit rates by level with a drop-off; at the larger cut-off L1 is `wide`, the exact rate `exact`."""
    first = np.cumprod([share or 0.0 for share in dropoff])
    rates = np.array([first, first])
    independent = np.concatenate([rates, rates[:, -1:]], axis=1)
    if wide is not None:
        independent[-1, 0] = wide
    if exact is not None:
        independent[0, -1] = exact
    return LevelAnalysis(ks, len(dropoff), independent, rates, tuple(dropoff), 100, 0, 0, 5000)


@given(st.lists(st.tuples(SHARES, SHARES, st.floats(0, 0.2), st.booleans()), min_size=1, max_size=8))
def test_verdict_counts_intervals_first_and_spans_all_gaps(values):
    found = [gap(f"HR@{n}", *value) for n, value in enumerate(values, start=1)]
    known = [each for each in found if not each.doubtful]
    said = rules.verdict(found, "ours", "theirs")
    if not known:
        assert said == []
        return
    first = said[0]
    assert first.numbers["outside"] == [
        each.metric for each in known if not each.ours.low <= each.paper <= each.ours.high
    ]
    assert first.numbers["figures"] == len(known)
    low, high = first.numbers["relative"]
    assert (low, high) == (min(each.relative for each in known), max(each.relative for each in known))
    assert first.text.index("95 % interval") < first.text.index("ours is")
    size = max(abs(low), abs(high))
    assert (" is equal," in first.text) == (size <= 0.01)
    assert (" is close," in first.text) == (0.01 < size <= 0.05)
    assert (" is much " in first.text) == (size > 0.10 and not low < 0 < high)
    near = [each.metric for each in known if abs(each.relative) <= 0.01]
    assert [each.numbers["metrics"] for each in said[1:]] == ([near] if near else [])


@pytest.mark.parametrize(
    ("ours", "text"),
    [
        ((0.0995, 0.1005), f"equal, {MINUS}0.5 % to +0.5 %."),
        ((0.096, 0.098), f"close, {MINUS}4.0 % to {MINUS}2.0 %."),
        ((0.092, 0.096), "lower, by 4.0 to 8.0 %."),
        ((0.088, 0.0845), "much lower, by 12.0 to 15.5 %."),
        ((0.12, 0.12), "much higher, by 20.0 %."),
        ((0.08, 0.12), f"higher in some and lower in others, {MINUS}20.0 % to +20.0 %."),
    ],
)
def test_words_of_a_verdict(ours, text):
    found = [gap(f"HR@{k}", 0.1, value) for k, value in zip((3, 5), ours, strict=True)]
    assert rules.verdict(found, "A", "B")[0].text.endswith(f"A is {text}")


def test_intervals_of_a_verdict():
    near, far = gap("HR@3", 0.1, 0.1005), gap("HR@5", 0.1, 0.2)
    start = [rules.verdict(found, "A", "B")[0].text.split(": A is")[0] for found in ([near], [far], [near, far])]
    assert start == [
        "The one figure of B lies inside our 95 % intervals",
        "The one figure of B lies outside our 95 % intervals",
        "1 of 2 figures of B lie inside our 95 % intervals, HR@5 outside",
    ]
    doubtful = gap("NDCG@5", 0.9, 0.1, doubtful=True)
    assert rules.verdict([near, doubtful], "A", "B")[0].numbers["figures"] == 1
    assert spread([doubtful]) is None and spread([gap("HR@1", 0.0, 0.1)]) is None


@given(st.lists(st.tuples(st.sampled_from([-0.01, 0.0, 0.01]), st.booleans()), min_size=1, max_size=6))
def test_stage_pattern_names_every_metric_that_falls(values):
    def difference(size, shown):
        half = 0.001 if shown else 0.1
        return PairedDifference(size, size - half, size + half, 0.5)

    step = StagePair("B", "A", {f"HR@{n}": difference(*value) for n, value in enumerate(values, start=1)})
    (said,) = rules.stage_pattern(step)
    fall = [name for name, found in step.differences.items() if found.difference < 0]
    assert said.numbers["fall"] == fall
    assert all(f"{name} ({MINUS}0.0100)" in said.text for name in fall)
    assert ("none of" in said.text) == (not fall and any(size > 0 for size, _ in values))
    assert said.numbers["shown_fall"] == [n for n in fall if step.differences[n].high < 0]
    assert ("same value" in said.text) == all(size == 0 for size, _ in values)


@given(st.lists(SHARES, min_size=2, max_size=4))
def test_bottleneck_is_the_smallest_share(shares):
    (said,) = rules.bottleneck(analysis(shares), "X")
    assert shares[[rules.step_name(n) for n in range(1, len(shares) + 1)].index(said.numbers["worst"])] == min(shares)
    (said,) = rules.kept(analysis(shares), "X")
    assert ("halves" in said.text) == (min(shares[1:]) >= 0.45 and max(shares[1:]) <= 0.55)
    assert said.numbers == {"stage": "X", "least": min(shares[1:]), "most": max(shares[1:])}


def test_nothing_is_said_of_levels_that_nobody_reached():
    empty = analysis([0.0, None, None])
    assert rules.bottleneck(empty, "X") == [] and rules.kept(empty, "X") == []
    assert rules.contrast({"A": empty, "B": empty}) == []
    other = analysis([0.5, 0.5])
    assert rules.gains(empty, other, ("X", "Y")) == []  # other numbers of levels
    assert rules.sharpening(empty, other, StagePair("X", "Y", {})) == []
    late = analysis([0.5, 0.5], ks=(5, 50))
    assert rules.gains(late, late, ("X", "Y")) == [] and rules.reach({}) == []


@given(st.tuples(SHARES, SHARES, SHARES), st.tuples(SHARES, SHARES, SHARES))
def test_gains_are_points_and_retentions_similar_within_two_and_a_half(after, before):
    said = {each.rule: each for each in rules.gains(analysis(after), analysis(before), ("B", "A"))}
    points = 100 * (np.cumprod(after) - np.cumprod(before))
    assert said["gain by level"].numbers["points"] == pytest.approx(points)
    if after == before:
        assert "equal at every level" in said["gain by level"].text and "retention" not in said
        return
    similar = max(abs(100 * (a - b)) for a, b in zip(after[1:], before[1:], strict=True)) <= 2.5
    assert said["retention"].numbers["similar"] == similar
    assert ("are similar" in said["retention"].text) == similar


@given(SHARES, SHARES, SHARES, SHARES)
def test_sharper_is_said_where_first_codes_fall_and_the_first_guess_rises(wide, wide_before, exact, exact_before):
    after, before = analysis([0.5, 0.5], wide, exact), analysis([0.5, 0.5], wide_before, exact_before)
    step = StagePair("B", "A", {"HR@1": PairedDifference(0.01, -0.01, 0.03, 0.4)})
    said = rules.sharpening(after, before, step)
    assert bool(said) == (wide < wide_before and exact > exact_before)
    assert all(each.text.endswith("no further than chance goes.") for each in said)
    sure = StagePair("B", "A", {"HR@1": PairedDifference(0.02, 0.01, 0.03, 0.001)})
    assert all("chance" not in each.text for each in rules.sharpening(after, before, sure))


def test_reach_spans_the_stages():
    (said,) = rules.reach({"A": analysis([0.4, 0.5], wide=0.48), "B": analysis([0.4, 0.5], wide=0.58)})
    assert (
        said.text
        == "Within the first 50 the code of L1 is right in 48.00 to 58.00 % of the rows, the whole SID in 20.00 %."
    )


@given(st.lists(st.tuples(st.sampled_from(["unknown", 1, 2]), st.sampled_from(["unknown", 1, 2])), max_size=5))
def test_hypotheses_come_from_settings_that_are_known_to_differ_alone(pairs):
    lines = [SettingLine(f"setting {n}", *pair) for n, pair in enumerate(pairs)]
    (said,) = rules.hypotheses(lines, "theirs")
    differ = {f"setting {n}" for n, (a, b) in enumerate(pairs) if "unknown" not in (a, b) and a != b}
    assert set(said.numbers["differ"]) == differ
    assert ("no explanation" in said.text) == (not differ)
    assert set(said.numbers["unknown"]) == {f"setting {n}" for n, pair in enumerate(pairs) if "unknown" in pair}


def test_settings_are_compared_as_they_are_shown():
    lines = setting_lines(
        {"learning_rate": 3e-4, "batch": 1024, "beams": 50, "rl_beta": "unknown"},
        {"learning_rate": 0.0003, "batch": "1,024", "beams": 20, "backbone": "mine"},
    )
    assert {line.name: line.differs for line in lines} == {
        "Backbone": False,
        "Beams": True,
        "Learning rate": False,
        "Examples a step": False,
    }


@given(st.lists(st.tuples(SHARES, SHARES, SHARES), min_size=0, max_size=4))
def test_contrast_orders_data_sets_and_names_their_shape(sets):
    found = {f"set {n}": analysis(list(shares)) for n, shares in enumerate(sets)}
    said = rules.contrast(found)
    if len(sets) < 2:
        assert said == []
        return
    first, last, *shapes = said
    assert list(first.numbers.values()) == sorted((shares[0] for shares in sets), reverse=True)
    assert list(last.numbers.values()) == sorted((shares[2] for shares in sets), reverse=True)
    expected = []
    for _, second, third in sets:
        if third >= 0.75:
            expected.append("flat")
        elif abs(second - third) <= 0.15:
            expected.append("uniform")
    assert [each.rule for each in shapes] == expected
