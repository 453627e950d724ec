"""Tables of metrics as plain text."""

import numpy as np
from support.measuring import evaluate_predictions

from minionerec.metrics.predictions import Predictions
from minionerec.metrics.statistics import Estimate
from minionerec.metrics.tables import format_estimate, format_metrics_table, text_table


def test_metrics_table_lines_up():
    predictions = Predictions(["u"], np.array([1]), ["<a_1>"], [[1]], [["<a_1>"]], [[0.0]])
    evaluation = evaluate_predictions(predictions, [1], valid_sids=["<a_1>"])
    lines = format_metrics_table({"one": evaluation}, "sid", "test split").splitlines()
    assert lines[0] == "test split" and lines[1].split() == ["SID-level", "one"]
    assert "HR@1       1.0000 [1.0000, 1.0000]" in lines and f"invalid    {'0 of 1':>23}" in lines
    assert text_table(["a", "b"], [["x", "10"], ["yy", "5"]]).splitlines() == ["a    b", "--  --", "x   10", "yy   5"]


def test_an_estimate_over_seeds_shows_its_sd():
    assert format_estimate(None) == "-"
    assert format_estimate(Estimate(0.1379, 0.128, 0.148)) == "0.1379 [0.1280, 0.1480]"
    assert format_estimate(Estimate(0.1379, 0.128, 0.148, 0.00123)) == "0.1379 ± 0.0012 [0.1280, 0.1480]"


def test_many_recommenders_stand_below_one_another():
    predictions = Predictions(["u"], np.array([1]), ["<a_1>"], [[1]], [["<a_1>"]], [[0.0]])
    evaluation = evaluate_predictions(predictions, [1], resamples=10)
    few, many = ({f"r{n}": evaluation for n in range(count)} for count in (8, 9))
    assert format_metrics_table(few).splitlines()[0].split() == ["SID-level", *few]
    lines = format_metrics_table(many).splitlines()
    assert lines[0].split() == ["SID-level", "HR@1", "NDCG@1", "MRR@1", "invalid", "coverage", "examples"]
    assert [line.split()[0] for line in lines[2:]] == list(many)
