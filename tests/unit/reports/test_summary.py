"""Sentences of a page: who leads, by how much, and whether the examples can show it."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.runs import results_of

from minionerec.metrics.statistics import Estimate, PairedDifference
from minionerec.recommend.rankers.baselines import Chosen
from minionerec.reports.cells import MINUS
from minionerec.reports.reference import PublishedGap, load_reference, spread
from minionerec.reports.results import PageResults
from minionerec.reports.summary import (
    _against_baselines,
    _best,
    _kept_start,
    _later,
    _published,
    _slices_led_by_baselines,
    summary,
)

ROWS = 80


def page(kinds=None, means=None, **changes):
    """Results of recommenders that have rank 1 or 3, in a share of examples each; of arrays their ranks."""
    ranks = {}
    for name, share in (means or {"SFT": 0.5, "GRPO": 0.9}).items():
        of = share if isinstance(share, np.ndarray) else np.where(np.arange(ROWS) < share * ROWS, 1, 3)
        ranks[name] = of[None]
    settings = {"headline": "NDCG@10", "examples": None, "first": next(iter(ranks)), "resamples": 200, **changes}
    return results_of(ranks, ["HR@1", "HR@10", "NDCG@10"], kinds, kind=PageResults, **settings)


def texts(sentences):
    """The sentences, with a hyphen for the minus sign."""
    return [sentence.replace(MINUS, "-") for sentence in sentences]


def shown(gap):
    return f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"


def test_a_lead_has_its_size_and_interval_and_of_a_tie_none_is_reported():
    results = page()
    gap = results.difference("GRPO", "SFT", "item", "NDCG@10")
    text = f"GRPO has the highest NDCG@10, 0.9500, and is ahead of the next, SFT: {shown(gap)}."
    assert gap.low > 0 and texts(_best(results)) == [text]
    level = page(means={"A": 0.5, "B": 0.5})
    lead = "A has the highest NDCG@10, 0.7500, with no significant difference from the next, B"
    assert texts(_best(level)) == [f"{lead}: +0.0000 [+0.0000, +0.0000]."]
    alone = "A has NDCG@10 0.7500; there is no other recommender to compare it with."
    assert texts(_best(page(means={"A": 0.5}))) == [alone]


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.2, 1), (-0.2, -0.1, -1), (-0.1, 0.1, 0), (0.0, 0.2, 0), (-0.2, 0.0, 0)]
)
def test_a_direction_needs_an_interval_without_zero(low, high, verdict):
    gap = PairedDifference((low + high) / 2, low, high, 0.5)
    assert gap.verdict == verdict == -gap.opposite().verdict


def test_everyone_beside_the_baseline_that_validation_chose():
    means = {"SFT": 0.5, "my model": 0.3, "popularity": 0.9, "EASE": 0.5}
    results = page(means=means, baselines=["popularity", "EASE"], chosen=Chosen(valid={"popularity": 0.1, "EASE": 0.2}))
    gap = results.difference("my model", "EASE", "item", "NDCG@10")
    assert texts(_against_baselines(results)) == [
        f'Compared with the strongest baseline on validation, EASE: behind "my model" ({shown(gap)}); no significant '
        "difference for SFT (+0.0000 [+0.0000, +0.0000])."
    ]
    lead = results.difference("popularity", "SFT", "item", "NDCG@10")
    assert texts(_best(results))[0].startswith(
        f"The baseline popularity has the highest NDCG@10, 0.9500, and is ahead of the next, SFT: {shown(lead)}"
    )
    unknown = page(means=means, baselines=["popularity", "EASE"])
    assert "on these examples (no validation results), popularity:" in texts(_against_baselines(unknown))[0]
    assert texts(_against_baselines(page())) == []


def test_a_trained_recommender_behind_a_baseline_is_named():
    means = {"A": 0.40, "B": 0.39, "popularity": 0.395, "EASE": 0.1}
    reported = texts(_best(page(means={**means, "popularity": 0.30}, baselines=["popularity", "EASE"])))
    assert len(reported) == 1  # ahead of it
    behind = page(means={"A": 0.4, "popularity": 0.9, "EASE": 0.8}, baselines=["popularity", "EASE"])
    gap = behind.difference("A", "popularity", "item", "NDCG@10")
    text = f"The best trained recommender, A, is behind the baseline popularity: {shown(gap)}."
    assert texts(_best(behind))[1] == text


def test_published_figures_above_inside_and_below():
    reference = load_reference("industrial")
    theirs = next(row.metrics["NDCG@10"] for row in reference.rows if row.name == "SASRec")
    means = {"SASRec": np.where(np.arange(ROWS) < 2 * theirs * ROWS, 3, 30), "GRU4Rec": 0.9, "Caser": np.full(ROWS, 30)}
    results = page(means=means, reference=reference)
    beside = {each.split(" the published")[0]: each for each in texts(_published(results))}
    assert list(beside) == ["Above", "Within our 95 % interval of", "Below"]
    assert "SASRec (" in beside["Within our 95 % interval of"] and "GRU4Rec (0.9500, published" in beside["Above"]
    assert "Caser (0.0000, published" in beside["Below"] and "Caser vs. MiniOneRec" in beside["Below"]
    assert "all 2 figures -100.0 % to -100.0 %, 0 inside)" in beside["Below"]
    assert texts(_published(page())) == []


SLICES = {
    "time": {"same time": np.arange(ROWS) < 40, "later": np.arange(ROWS) >= 40},
    "history": {"1-2": np.arange(ROWS) % 2 == 0, "3-5": np.arange(ROWS) % 2 == 1},
}


def test_a_baseline_that_no_recommender_leads_on_later_examples():
    leads = np.where(np.arange(ROWS) < 40, 3, 30)
    assert texts(_later(page(SLICES, {"batch": 0.5, "popularity": leads}))) == []
    behind = page(SLICES, {"batch": 0.5, "popularity": np.where(np.arange(ROWS) < 40, 9, 2)})
    gap = behind.by_slice[1][1].difference("batch", "popularity", "item", "NDCG@10")
    assert texts(_later(behind)) == [
        "On the 50 % of examples whose target came later than the newest history item, the best trained recommender, "
        f"batch, is behind the baseline popularity: {shown(gap)}."
    ]
    assert texts(_slices_led_by_baselines(behind)) == []  # the later ones alone


def test_slices_in_which_a_baseline_is_ahead(monkeypatch):
    first = np.arange(ROWS) < 40
    means = {"batch": np.where(first, 3, 1), "popularity": np.where(first, 1, 9), "other": 0.0}
    results = page({"history": {"1-2": first, "3-5": ~first}}, means)
    gap = results.by_slice[0][1].difference("batch", "popularity", "item", "NDCG@10")
    text = (
        "Slices in which a baseline is ahead of the best trained recommender: on the 50 % of examples with a history "
        f"of 1 or 2 items batch is behind popularity, {shown(gap)}."
    )
    assert gap.verdict < 0 and texts(_slices_led_by_baselines(results)) == [text]
    assert texts(_slices_led_by_baselines(page({"time": {"same time": ~first, "later": first}}, means))) == []
    monkeypatch.setattr("minionerec.reports.summary._SMALL", 0.6)
    assert texts(_slices_led_by_baselines(results)) == []


def test_the_summary_is_short():
    means = {"SFT": 0.5, "GRPO": 0.9, "popularity": 0.7, "EASE": 0.2}
    assert 2 <= len(summary(page(SLICES, means))) <= 6


def test_gaps_to_published_figures():
    gap = PublishedGap("HR@3", 0.1, Estimate(0.12, 0.09, 0.15))
    assert (gap.gap, gap.relative, gap.inside) == (pytest.approx(0.02), pytest.approx(0.2), True)
    doubtful = PublishedGap("NDCG@5", 0.9, Estimate(0.1, 0.0, 0.2), doubtful=True)
    assert spread([gap, doubtful]) == (gap.relative, gap.relative) and spread([doubtful]) is None
    assert spread([PublishedGap("HR@1", 0.0, Estimate(0.1, 0.1, 0.1))]) is None


def test_optimisation_that_found_nothing_better_is_named():
    results = page()
    kept, better = (SimpleNamespace(stage="grpo", counts={"best_step": step}) for step in (0, 10))
    for trainings, expected in (([kept, kept], 1), ([kept, better], 0)):
        lineages = [SimpleNamespace(trainings=[one], own=one, missing=()) for one in trainings]
        results.__dict__["lineages"] = {"GRPO": lineages, "SFT": []}
        sentences = _kept_start(results)
        assert len(sentences) == expected
        assert all(text.startswith("GRPO: GRPO found nothing better on validation examples") for text in sentences)
