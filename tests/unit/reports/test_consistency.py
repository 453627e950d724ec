"""Published cells that cannot be right; our own metrics always can."""

import numpy as np
import pytest

from minionerec.metrics.ranking import ranking_metrics
from minionerec.reports.reference import doubtful_cells, load_reference, read_reference

KS = (1, 3, 5, 10, 20, 50)


def test_exactly_four_published_cells_cannot_be_right():
    references = {name: load_reference(name) for name in ("industrial", "office", "beauty", "lastfm")}
    found = {(name, row.name, metric) for name, of in references.items() for row, metric in of.doubtful}
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


@pytest.mark.parametrize("metric", ["NDCG@5", "NDCG@10"])
def test_a_mistyped_cell_of_our_own_is_found(metric):
    ranks = np.tile(np.arange(0, 60), 20)
    means = {name: float(values.mean()) for name, values in ranking_metrics(ranks, KS).items()}
    assert doubtful_cells({**means, metric: means[metric] + 0.02}) == [metric]
