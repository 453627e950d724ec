"""Tables of metrics as plain text."""

import numpy as np
import pytest
from support.measuring import evaluate_predictions

from minionerec.metrics.predictions import Predictions
from minionerec.metrics.statistics import Estimate
from minionerec.metrics.tables import format_estimate, format_metrics_table, text_table


def test_metrics_table_lines_up():
    predictions = Predictions(["u"], np.array([1]), ["<a_1>"], [[1]], [["<a_1>"]], [[0.0]])
    evaluation = evaluate_predictions(predictions, [1], valid_sids=["<a_1>"])
    lines = format_metrics_table({"one": evaluation, "the other": evaluation}, "sid", "test split").splitlines()
    assert lines[0] == "test split" and lines[1].split() == ["SID-level", "HR@1", "NDCG@1"]
    assert lines[3:] == [f"{name:9}  {'  '.join(['1.0000 [1.0000, 1.0000]'] * 2)}" for name in ("one", "the other")]
    assert text_table(["a", "b"], [["x", "10"], ["yy", "5"]]).splitlines() == ["a    b", "--  --", "x   10", "yy   5"]


def test_an_estimate_over_seeds_shows_its_sd():
    assert format_estimate(None) == "-"
    assert format_estimate(Estimate(0.1379, 0.128, 0.148)) == "0.1379 [0.1280, 0.1480]"
    assert format_estimate(Estimate(0.1379, 0.128, 0.148, 0.00123)) == "0.1379 ± 0.0012 [0.1280, 0.1480]"


@pytest.mark.parametrize(
    ("ks", "shown"),
    [
        ([1, 5, 10, 20, 50], ["HR@10", "NDCG@10", "HR@50"]),
        ([3, 5, 20], ["HR@5", "NDCG@5", "HR@20"]),
        ([20], ["HR@20", "NDCG@20"]),
    ],
)
def test_a_table_has_few_metrics(ks, shown):
    predictions = Predictions(["u"], np.array([1]), ["<a_1>"], [[1] * 50], [["<a_1>"] * 50], [[0.0] * 50])
    evaluation = evaluate_predictions(predictions, ks, resamples=10)
    assert format_metrics_table({"one": evaluation}).splitlines()[0].split() == ["SID-level", *shown]
