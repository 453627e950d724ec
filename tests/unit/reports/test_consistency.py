"""Published cells that cannot be right; our own metrics always can."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import write_run

from minionerec.metrics.ranking import ranking_metrics
from minionerec.reports.config import ReportConfig
from minionerec.reports.reference import doubtful_cells, impossible_pairs, load_reference, read_reference
from minionerec.reports.report import run_report

KS = (1, 3, 5, 10, 20, 50)


def test_exactly_four_published_cells_cannot_be_right():
    found = {
        (name, row.name, metric)
        for name in ("industrial", "office", "beauty", "lastfm")
        for row, metric in load_reference(name).doubtful
    }
    assert found == {
        ("industrial", "D3", "NDCG@3"),
        ("industrial", "HSTU", "NDCG@3"),
        ("office", "S-DPO", "NDCG@10"),
        ("office", "TIGER", "NDCG@5"),
    }


def test_they_are_found_where_a_file_does_not_name_them(tmp_path):
    for name in ("industrial", "office"):
        known = load_reference(name)
        assert [doubtful_cells(row.metrics) for row in known.rows] == [list(row.doubtful) for row in known.rows]
    (tmp_path / "mine.yaml").write_text(
        "title: t\nsource: s\nheadline: A\nsettings: {paper: {beams: 20}}\n"
        "rows: [{name: A, group: paper, metrics: {HR@5: 0.1, NDCG@5: 0.11}},"
        " {name: B, group: paper, metrics: {HR@5: 0.08, NDCG@5: 0.06}}]\n"
    )
    reference = read_reference(tmp_path / "mine.yaml")
    first, second = reference.rows
    assert (first.shown("NDCG@5"), second.shown("NDCG@5")) == ("0.1100 ✗", "0.0600")
    assert (reference.best("NDCG@5"), reference.best("HR@5"), reference.best("HR@10")) == (0.06, 0.1, None)
    assert reference.settings["paper"]["beams"] == 20
    assert reference.settings["paper"]["backbone"] == "unknown"


def test_comparisons_mark_them_too(tmp_path):
    ranks = np.tile(np.arange(1, 21), 2)[None]
    for name in ("HSTU", "SASRec"):
        write_run(tmp_path / name, ranks, np.arange(40), valid=False)
    runs = {name: str(tmp_path / name) for name in ("HSTU", "SASRec")}
    settings = {"metrics": ["NDCG@3", "NDCG@5"], "reference": "industrial", "resamples": 10}
    markdown = run_report(ReportConfig(predictions=runs, layout="comparison", **settings)).text
    assert "published 0.0885 ✗" in markdown
    assert "published 0.0918 |" in markdown and "published 0.0700 |" in markdown


@given(st.lists(st.integers(0, 60), min_size=1, max_size=300))
def test_our_own_metrics_are_possible(ranks):
    means = {name: float(values.mean()) for name, values in ranking_metrics(np.array(ranks), KS).items()}
    assert impossible_pairs(means, tolerance=1e-12) == []
    rounded = {name: round(value, 4) for name, value in means.items()}
    assert doubtful_cells(rounded) == []


@pytest.mark.parametrize("metric", ["NDCG@5", "NDCG@10"])
def test_a_mistyped_cell_of_our_own_is_found(metric):
    ranks = np.tile(np.arange(0, 60), 20)
    means = {name: float(values.mean()) for name, values in ranking_metrics(ranks, KS).items()}
    assert doubtful_cells({**means, metric: means[metric] + 0.02}) == [metric]
