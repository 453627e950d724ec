"""Sentences of a page: who leads, by how much, and whether the examples can show it."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from support.runs import results_of

from minionerec.core.artefacts import write_artefact
from minionerec.metrics.statistics import Estimate, PairedDifference
from minionerec.recommend.rankers.baselines import Chosen
from minionerec.reports.cells import MINUS
from minionerec.reports.findings import _for_cold_targets, _kept, findings
from minionerec.reports.reference import PublishedGap, load_reference, setting_lines, spread
from minionerec.reports.results import PageResults

ROWS = 80
WORSE = np.where(np.arange(ROWS) % 10 == 0, 3, 1)  # here and there at rank 3: NDCG is 0.5 there


def page(kinds=None, means=None, **changes):
    """Results of recommenders that have rank 1 or 3, in a share of examples each; of arrays their ranks."""
    ranks = {}
    for name, share in (means or {"SFT": 0.5, "GRPO": 0.9}).items():
        of = share if isinstance(share, np.ndarray) else np.where(np.arange(ROWS) < share * ROWS, 1, 3)
        ranks[name] = of[None]
    settings = {"headline": "NDCG@10", "first": next(iter(ranks)), "resamples": 200, **changes}
    return results_of(ranks, ["HR@1", "HR@10", "NDCG@10"], kinds, kind=PageResults, **settings)


def found_texts(results, *rules):
    """The sentences, with a hyphen for the minus sign."""
    return [found.text.replace(MINUS, "-") for found in findings(results, *rules)]


def shown(gap):
    return f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"


def test_a_lead_has_its_size_and_interval_and_of_a_tie_none_is_reported():
    results = page()
    gap = results.difference("GRPO", "SFT", "item", "NDCG@10")
    assert gap.low > 0 and found_texts(results, "best") == [
        f"GRPO has the highest NDCG@10, 0.9500, and is ahead of the next, SFT: {shown(gap)}."
    ]
    level = page(means={"A": 0.5, "B": 0.5})
    assert found_texts(level, "best") == [
        "A has the highest NDCG@10, 0.7500, with no significant difference from the next, B: "
        "+0.0000 [+0.0000, +0.0000]."
    ]
    assert found_texts(page(means={"A": 0.5}), "best") == [
        "A has NDCG@10 0.7500; there is no other recommender to compare it with."
    ]


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
    assert found_texts(results, "baseline") == [
        f'Compared with the strongest baseline on validation, EASE: behind "my model" ({shown(gap)}); no significant '
        "difference for SFT (+0.0000 [+0.0000, +0.0000])."
    ]
    lead = results.difference("popularity", "SFT", "item", "NDCG@10")
    assert found_texts(results, "best")[0].startswith(
        f"The baseline popularity has the highest NDCG@10, 0.9500, and is ahead of the next, SFT: {shown(lead)}"
    )
    unknown = page(means=means, baselines=["popularity", "EASE"])
    assert "on these examples (no validation results), popularity:" in found_texts(unknown, "baseline")[0]
    assert found_texts(page(), "baseline") == []


def test_a_trained_recommender_behind_a_baseline_is_named():
    means = {"A": 0.40, "B": 0.39, "popularity": 0.395, "EASE": 0.1}
    reported = found_texts(page(means={**means, "popularity": 0.30}, baselines=["popularity", "EASE"]), "best")
    assert len(reported) == 1  # ahead of it
    behind = page(means={"A": 0.4, "popularity": 0.9, "EASE": 0.8}, baselines=["popularity", "EASE"])
    gap = behind.difference("A", "popularity", "item", "NDCG@10")
    assert (
        found_texts(behind, "best")[1]
        == f"The best trained recommender, A, is behind the baseline popularity: {shown(gap)}."
    )


def test_step_by_step_with_the_metrics_that_fall_and_of_many_beside_the_best():
    other = np.where(np.arange(ROWS) % 2 == 0, 1, 11)  # HR@10 falls, HR@1 stays
    results = page(means={"SFT": 0.5, "GRPO": other, "x": 0.9})
    first, second = found_texts(results, "steps")
    gap = results.difference("GRPO", "SFT", "item", "NDCG@10")
    assert first == (
        f"Compared with the previous one, SFT: behind GRPO ({shown(gap)}). "
        "Of 3 metrics 0 rise and HR@10, NDCG@10 fall, 0 and 2 significantly."
    )
    assert second.startswith("Compared with the previous one, GRPO: ahead x (") and second.endswith("significantly.")
    many = {f"m{n}": 0.1 * n for n in range(1, 7)}
    (reported,) = found_texts(page(means=many), "steps")
    assert reported.startswith("Compared with the best, m6: behind m5 (-0.05") and "[" not in reported


def test_published_figures_above_inside_and_below():
    reference = load_reference("industrial")
    theirs = next(row.metrics["NDCG@10"] for row in reference.rows if row.name == "SASRec")
    means = {"SASRec": np.where(np.arange(ROWS) < 2 * theirs * ROWS, 3, 30), "GRU4Rec": 0.9, "Caser": np.full(ROWS, 30)}
    results = page(means=means, reference=reference)
    beside = {each.split(" the published")[0]: each for each in found_texts(results, "published")}
    assert list(beside) == ["Above", "Within our 95 % interval of", "Below"]
    assert "SASRec (" in beside["Within our 95 % interval of"] and "GRU4Rec (0.9500, published" in beside["Above"]
    assert "Caser (0.0000, published" in beside["Below"] and "Caser vs. MiniOneRec" in beside["Below"]
    assert "all 2 figures -100.0 % to -100.0 %, 0 inside)" in beside["Below"]
    assert found_texts(page(), "published") == []


SLICES = {
    "time": {"same time": np.arange(ROWS) < 40, "later": np.arange(ROWS) >= 40},
    "history": {"1-2": np.arange(ROWS) % 2 == 0, "3-5": np.arange(ROWS) % 2 == 1},
}


def test_slices_that_make_up_a_metric_and_turn_the_order():
    results = page(SLICES, {"batch": 0.5, "popularity": np.full(ROWS, 3), "later one": np.where(WORSE == 1, 2, 1)})
    share, order = found_texts(results, "slices")
    there, rest = (found.estimates("item")["batch"]["NDCG@10"] for _, found in results.by_slice[:2])
    assert share == (
        f"{100 * 0.5 * there.mean / 0.75:.0f} % of the NDCG@10 of batch comes from 50 % of the examples, those whose "
        f"target has the time of the newest history item: {there.mean:.4f} on these, and {rest.mean:.4f} "
        f"[{rest.low:.4f}, {rest.high:.4f}] on those whose target came later than the newest history item."
    )
    gap = results.by_slice[1][1].difference("later one", "batch", "item", "NDCG@10")
    assert order.startswith('Of batch, popularity and "later one", batch has the highest NDCG@10 over all examples')
    assert f'came later than the newest history item "later one" is ahead of it: {shown(gap)}' in order
    assert found_texts(results, "later examples") == []  # "later one" is ahead of popularity there
    behind = page(SLICES, {"batch": 0.5, "popularity": np.where(np.arange(ROWS) < 40, 9, 2)})
    gap = behind.by_slice[1][1].difference("batch", "popularity", "item", "NDCG@10")
    assert found_texts(behind, "later examples") == [
        "On the 50 % of examples whose target came later than the newest history item, the best trained recommender, "
        f"batch, is behind the baseline popularity: {shown(gap)}."
    ]
    assert found_texts(behind, "slices behind") == []  # the later ones alone
    assert "in no slice is another one significantly ahead" in found_texts(page(SLICES), "slices")[1]


def test_slices_in_which_a_baseline_is_ahead(monkeypatch):
    first = np.arange(ROWS) < 40
    means = {"batch": np.where(first, 3, 1), "popularity": np.where(first, 1, 9), "other": 0.0}
    results = page({"history": {"1-2": first, "3-5": ~first}}, means)
    gap = results.by_slice[0][1].difference("batch", "popularity", "item", "NDCG@10")
    text = (
        "Slices in which a baseline is ahead of the best trained recommender: on the 50 % of examples with a history "
        f"of 1 or 2 items batch is behind popularity, {shown(gap)}."
    )
    assert gap.verdict < 0 and found_texts(results, "slices behind") == [text]
    assert found_texts(page({"time": {"same time": ~first, "later": first}}, means), "slices behind") == []
    monkeypatch.setattr("minionerec.reports.findings._SMALL", 0.6)
    assert found_texts(results, "slices behind") == []


def test_a_lead_that_the_other_slice_does_not_show():
    same = np.where(np.arange(ROWS) < 40, 1, 3)
    results = page(SLICES, {"batch": same, "other": np.full(ROWS, 3)})
    assert found_texts(results, "slices")[1].endswith(
        "Its lead over the next, other, is not significant on examples whose target came later than the newest history "
        "item, +0.0000 [+0.0000, +0.0000]."
    )


def test_the_share_of_the_ceiling():
    results = page(means={"A": 0.5, "popularity": 0.9}, baselines=["popularity"], ceiling={"NDCG@10": 0.96})
    assert found_texts(results, "ceiling") == [
        "Share of the ceiling, 0.9600 (expected of the best possible ranking): the baseline popularity 99 % and A 78 %."
    ]
    assert found_texts(page(), "ceiling") == []


def test_all_rules_make_few_sentences(tmp_path):
    with write_artefact(tmp_path / "p", "predictions", config={}) as folder:
        (folder / "x").write_text("")
    assert 3 <= len(found_texts(page(SLICES))) <= 10


def test_gaps_and_settings_beside_published_ones():
    gap = PublishedGap("HR@3", 0.1, Estimate(0.12, 0.09, 0.15))
    assert (gap.gap, gap.relative, gap.inside) == (pytest.approx(0.02), pytest.approx(0.2), True)
    doubtful = PublishedGap("NDCG@5", 0.9, Estimate(0.1, 0.0, 0.2), doubtful=True)
    assert spread([gap, doubtful]) == (gap.relative, gap.relative) and spread([doubtful]) is None
    assert spread([PublishedGap("HR@1", 0.0, Estimate(0.1, 0.1, 0.1))]) is None
    lines = setting_lines(
        {"learning_rate": 3e-4, "batch": 1024, "beams": 50, "rl_beta": "unknown"},
        {"learning_rate": 0.0003, "batch": "1,024", "beams": 20, "backbone": "mine"},
    )
    differ = {"Backbone": False, "Beams": True, "Learning rate": False, "Examples per step": False}
    assert {line["name"]: line["differs"] for line in lines} == differ


def test_cold_targets_are_reported_with_what_to_change_where_they_are_many():
    for share, count in ((0.25, 1), (0.05, 0)):
        cold = np.arange(ROWS) < share * ROWS
        notes = found_texts(page({"target": {"cold": cold, "frequent": ~cold}}), "notes")
        found = [note for note in notes if "of the targets are cold" in note]
        assert len(found) == count and all(note.startswith("25.00 %") and "experts true" in note for note in found)


def test_advice_on_cold_targets_names_what_was_not_tried_and_nothing_without_texts():
    def advised(texts, **settings):
        training = SimpleNamespace(settings=settings)
        items = pd.DataFrame({"title": texts, "description": ""})
        results = SimpleNamespace(
            examples=SimpleNamespace(data=SimpleNamespace(items=items)),
            lineages={"mine": [SimpleNamespace(trainings=[training])]},
        )
        return _for_cold_targets(results)

    both = " What recommends them reads texts: try train-catalogue with experts true, or with unseen_negatives false, "
    assert advised(["Lamp", ""], experts=False, unseen_negatives=True) == both + "and compare the slice."
    assert "experts" not in advised(["Lamp"], experts=True, unseen_negatives=True)
    assert advised(["Lamp"], experts=True, unseen_negatives=False) == ""
    assert advised(["", ""], experts=False) == ""


def test_optimisation_that_found_nothing_better_is_named():
    results = page()
    kept, better = (SimpleNamespace(stage="grpo", counts={"best_step": step}) for step in (0, 10))
    for trainings, expected in (([kept, kept], 1), ([kept, better], 0)):
        lineages = [SimpleNamespace(trainings=[one], own=one, missing=()) for one in trainings]
        results.__dict__["lineages"] = {"GRPO": lineages, "SFT": []}
        texts = [found.text for found in _kept(results)]
        assert len(texts) == expected
        assert all(text.startswith("GRPO: GRPO found nothing better on validation examples") for text in texts)
