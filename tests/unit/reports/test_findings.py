"""Sentences of a report: who leads, by how much, and whether the rows can show it."""

from itertools import combinations

import numpy as np
import pytest

from minionerec.metrics.ranked import Ranked
from minionerec.metrics.statistics import PairedDifference
from minionerec.reports.cells import MINUS
from minionerec.reports.sections.findings import LaterRows, Standing, findings
from minionerec.reports.systems import Bootstrap, System, differences, opposite

AHEAD, BEHIND, SAME = (0.0123, 0.0050, 0.0190), (-0.0123, -0.0190, -0.0050), (0.0004, -0.0012, 0.0019)


def standing(means, pairs, baselines=(), ceiling=None, strongest=None):
    """A standing whose differences are written down; `pairs` maps (one, other) to one minus other, asked once each."""
    left = dict(pairs)

    def between(one, other):
        return PairedDifference(*left.pop((one, other)), 0.5)

    return Standing("NDCG@10", means, baselines, strongest, ceiling, between), left


def told(found):
    """The sentences, with a hyphen for the minus sign."""
    return [sentence.replace(MINUS, "-") for sentence in findings(found)]


def test_a_clear_lead_has_its_size_and_interval():
    found, left = standing({"SFT": 0.1288, "GRPO": 0.1411}, {("GRPO", "SFT"): AHEAD})
    assert told(found) == [
        "GRPO has the highest NDCG@10, 0.1411, and is ahead of the next, SFT, by 0.0123 [0.0050, 0.0190]."
    ]
    assert not left


def test_an_interval_that_holds_zero_is_no_lead():
    found, _ = standing({"SFT": 0.1288, "GRPO": 0.1292}, {("GRPO", "SFT"): SAME})
    assert told(found) == [
        "GRPO has the highest NDCG@10, 0.1292, but no lead over the next, SFT, that these rows can show: "
        "+0.0004 [-0.0012, +0.0019]."
    ]
    at_the_end, _ = standing({"A": 0.2, "B": 0.1}, {("A", "B"): (0.1, 0.0, 0.2)})
    assert "no lead over the next, B, that these rows can show: +0.1000 [+0.0000, +0.2000]" in told(at_the_end)[0]


def test_the_same_ranks_and_an_end_at_zero_are_no_difference():
    pairs = {("A", "B"): AHEAD, ("C", "B"): (0.0, 0.0, 0.0), ("D", "C"): (0.01, 0.0, 0.02)}
    found, _ = standing({"A": 0.2, "B": 0.1, "C": 0.05, "D": 0.06}, pairs)
    assert told(found)[1:] == [
        "Between C and B there is no difference that these rows can show: +0.0000 [+0.0000, +0.0000].",
        "Between D and C there is no difference that these rows can show: +0.0100 [+0.0000, +0.0200].",
    ]


def test_everyone_beside_the_strongest_baseline_and_step_by_step():
    means = {"SFT": 0.30, "GRPO": 0.29, "x": 0.32, "popularity": 0.1, "transition counts": 0.31}
    pairs = {
        ("x", "transition counts"): AHEAD,
        ("SFT", "transition counts"): SAME,
        ("GRPO", "transition counts"): (-0.02, -0.03, -0.01),
        ("GRPO", "SFT"): BEHIND,
        ("x", "GRPO"): (0.03, 0.02, 0.04),
    }
    counts = "transition counts"
    found, left = standing(means, pairs, ("popularity", counts), ceiling=0.40, strongest=counts)
    assert told(found) == [
        'x has the highest NDCG@10, 0.3200, and is ahead of the next, the baseline "transition counts", '
        "by 0.0123 [0.0050, 0.0190].",
        'Beside the strongest baseline on validation, "transition counts": for SFT no difference that these rows can '
        "show, +0.0004 [-0.0012, +0.0019]; GRPO is behind by 0.0200 [0.0100, 0.0300].",
        "GRPO is behind SFT by 0.0123 [0.0050, 0.0190].",
        "x is ahead of GRPO by 0.0300 [0.0200, 0.0400].",
        "Of what the best possible ranking may expect, 0.4000, x reaches 80 %.",
    ]
    assert not left


def test_a_baseline_may_be_the_best():
    means = {"my model": 0.20, "second": 0.19, "popularity": 0.25}
    pairs = {
        ("popularity", "my model"): (0.05, 0.04, 0.06),
        ("second", "popularity"): (-0.06, -0.07, -0.05),
        ("second", "my model"): (-0.01, -0.02, 0.01),
    }
    found, left = standing(means, pairs, ("popularity",), ceiling=0.5, strongest="popularity")
    assert told(found) == [
        'The baseline popularity has the highest NDCG@10, 0.2500, and is ahead of the next, "my model", '
        "by 0.0500 [0.0400, 0.0600].",
        "Beside the strongest baseline on validation, popularity: second is behind by 0.0600 [0.0500, 0.0700].",
        'Between second and "my model" there is no difference that these rows can show: -0.0100 [-0.0200, +0.0100].',
        'Of what the best possible ranking may expect, 0.5000, the baseline popularity reaches 50 %, "my model" 40 %.',
    ]
    assert not left


LATER = "On the 80 % of rows whose target came later than the newest history item, "


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (AHEAD, ""),
        (
            (-0.0024, -0.0046, -0.0001),
            f'{LATER}the baseline "transition counts" is ahead of the best trained recommender, "my model", by 0.0024 '
            "[0.0001, 0.0046].",
        ),
        (
            SAME,
            f'{LATER}"my model" has no lead over the baseline "transition counts" that these rows can show: +0.0004 '
            "[-0.0012, +0.0019].",
        ),
    ],
    ids=["ahead", "behind", "level"],
)
def test_the_first_sentence_says_who_leads_on_later_rows(gap, said):
    counts, metric = "transition counts", "NDCG@10"
    means = {"my model": 0.0388, "popularity": 0.0308, counts: 0.0375}
    later = LaterRows(
        0.8,
        {"my model": 0.0336, "popularity": 0.0315, counts: 0.0359},
        lambda one, other: {("my model", counts): PairedDifference(*gap, 0.5)}[one, other],
    )
    between = {("my model", counts): AHEAD}
    found = Standing(
        metric, means, ("popularity", counts), counts, None, lambda *pair: PairedDifference(*between[pair], 0.5), later
    )
    opening = 'my model" has the highest NDCG@10, 0.0388, and is ahead of the next, the baseline "transition counts"'
    assert told(found) == [f'"{opening}, by 0.0123 [0.0050, 0.0190].{" " if said else ""}{said}']


def test_the_first_sentence_names_a_baseline_that_validation_did_not_choose():
    """Third of all, with EASE the strongest on validation: the second sentence speaks of EASE alone."""
    means = {"A": 0.40, "B": 0.39, "popularity": 0.395, "EASE": 0.1}
    pairs = {
        ("A", "popularity"): SAME,
        ("A", "EASE"): AHEAD,
        ("B", "EASE"): AHEAD,
        ("B", "A"): SAME,
    }
    found, left = standing(means, pairs, ("popularity", "EASE"), strongest="EASE")
    assert "no lead over the next, the baseline popularity" in told(found)[0]
    assert not left
    second = {**means, "popularity": 0.38}
    pairs = {
        ("A", "B"): SAME,
        ("A", "popularity"): (-0.001, -0.002, 0.001),
        ("A", "EASE"): AHEAD,
        ("B", "EASE"): AHEAD,
    }
    found, left = standing(second, pairs, ("popularity", "EASE"), strongest="EASE")
    assert told(found)[0].endswith(
        " A has no lead over the baseline popularity that these rows can show: -0.0010 [-0.0020, +0.0010]."
    )
    assert not left


def test_one_alone():
    found, _ = standing({"SFT": 0.1288}, {}, ceiling=0.14)
    assert told(found) == [
        "SFT stands alone here: NDCG@10, 0.1288, and nothing to compare it with.",
        "Of what the best possible ranking may expect, 0.1400, SFT reaches 92 %.",
    ]
    beside, _ = standing({"SFT": 0.1288, "popularity": 0.1}, {("SFT", "popularity"): AHEAD}, ("popularity",))
    assert told(beside) == [
        "SFT has the highest NDCG@10, 0.1288, and is ahead of the next, the baseline popularity, "
        "by 0.0123 [0.0050, 0.0190]."
    ]


def test_of_many_the_verdicts_are_told():
    means = {"a": 0.30, "b": 0.50, "c": 0.29, "d": 0.40, "e": 0.10, "popularity": 0.25}
    gaps = {
        (one, other): (means[one] - means[other], means[one] - means[other] - 0.02, means[one] - means[other] + 0.02)
        for pair in combinations(means, 2)
        for one, other in (pair, pair[::-1])
    }
    found, _ = standing(means, gaps, ("popularity",), ceiling=1.0)
    assert told(found) == [
        "b has the highest NDCG@10, 0.5000, and is ahead of the next, d, by 0.1000 [0.0800, 0.1200].",
        "Beside the strongest baseline on these rows, for there are no validation examples, popularity: "
        "ahead a (+0.0500), b (+0.2500), c (+0.0400), d (+0.1500); behind e (-0.1500).",
        "Beside the first, a: ahead b (+0.2000), d (+0.1000); behind e (-0.2000); "
        "no difference that these rows can show for c (-0.0100).",
        "Of what the best possible ranking may expect, 1.0000, b reaches 50 %.",
    ]


@pytest.mark.parametrize("own", range(1, 9))
def test_there_are_at_most_six_sentences(own):
    means = {**{f"m{number}": 0.1 + number / 100 for number in range(own)}, "popularity": 0.5, "transition counts": 0.4}
    baselines = ("popularity", "transition counts")
    found = Standing("NDCG@10", means, baselines, "popularity", 0.9, lambda one, other: PairedDifference(*AHEAD, 0.01))
    assert len(findings(found)) <= 6
    assert len(findings(Standing("NDCG@10", means, (), None, None, found.between))) <= 6


def test_sentences_of_ranks_by_hand():
    """Everywhere at rank 1, and everywhere at rank 3: NDCG is 1, and 1 / log2(4) = 0.5, in every resample."""
    targets = np.arange(8, dtype=np.int32)
    users = [str(target) for target in targets]

    def system(name, ranks):
        return System(name, [Ranked(users, targets, {"item": np.array(ranks)}, None)])

    systems = {"third": system("third", [3] * 8), "best": system("best", [1] * 8), "mixed": system("mixed", [1, 3] * 4)}
    means = {"third": 0.5, "best": 1.0, "mixed": 0.75}

    def between(one, other):
        return differences(systems[one], systems[other], "item", ["NDCG@10"], Bootstrap.of(0, 200, "users", users))[
            "NDCG@10"
        ]

    said = findings(Standing("NDCG@10", means, (), None, None, between))
    assert said[1] == "best is ahead of third by 0.5000 [0.5000, 0.5000]."
    gap = between("best", "mixed")
    assert gap.difference == pytest.approx(0.25) and 0 < gap.low < 0.25 < gap.high < 0.5
    assert f"best has the highest NDCG@10, 1.0000, and is ahead of the next, mixed, by 0.2500 [{gap.low:.4f}" in said[0]
    assert len(said) == 2
    assert opposite(gap) == pytest.approx(between("mixed", "best"))
