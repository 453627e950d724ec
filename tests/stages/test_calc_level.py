"""The stage calc-level as a user runs it."""

import json

import numpy as np
from support.commands import command
from support.paths import ROOT

from minionerec.metrics.predictions import Predictions

T = "<a_1><b_2><c_3>"


def run(*words, cwd=ROOT):
    return command(cwd, "calc-level", *map(str, words))


def write_json(path):
    lists = [[T, "junk", "<a_0><b_0><c_0>"], ["<a_1><b_2><c_4>", T, T]]
    path.write_text(json.dumps([{"input": "?", "output": T + "\n", "predict": predict} for predict in lists]))
    return path


def test_json_is_the_only_output(tmp_path):
    done = run("--predictions", write_json(tmp_path / "p.json"), "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out) == {
        "independent": {"1": [1.0, 1.0, 0.5, 0.5], "3": [1.0, 1.0, 1.0, 1.0]},
        "cumulative": {"1": [1.0, 1.0, 0.5], "3": [1.0, 1.0, 1.0]},
        "dropoff": {"l1": 1.0, "l1_to_l2": 1.0, "l2_to_l3": 0.5},
        "rows": 2,
    }
    assert "1 of 6 predictions are not semantic IDs of 3 levels" in done.err


def test_predictions_directory_and_file_as_tables(tmp_path):
    predictions = Predictions(
        ["u"], np.array([1]), [T], [[0, 1, 2]], [["<a_1><b_9><c_9>", "<a_1><b_9><c_9>", T]], [[3.0, 2.0, 1.0]]
    )
    predictions.save(tmp_path / "p", config={"beams": 2}, inputs={})
    done = run("--predictions", tmp_path / "p", "--ks", "1", "2")
    assert done.status == 0, done.err
    assert [line.split() for line in done.out.splitlines() if line.startswith("2 ")] == [
        ["2", "1.0000", "1.0000", "1.0000", "1.0000"],
        ["2", "1.0000", "1.0000", "1.0000"],
    ]
    assert "L1 → L2 kept" in done.out and "1 examples" in done.out
    same = run("--predictions", tmp_path / "p" / "predictions.parquet", "--ks", "1", "2")
    assert same.out == done.out
    beyond = run("--predictions", tmp_path / "p", "--ks", "3")
    assert beyond.status == 2
    assert "K = 3 is larger than the lists, which hold 2 candidates" in beyond.err


def test_user_errors_are_one_line_and_status_2(tmp_path):
    path = write_json(tmp_path / "p.json")
    for words, message in (
        (["--predictions", path, "--ks", "5"], "entry 1 has 3 predictions, fewer than the largest K, 5"),
        (["--predictions", tmp_path / "no.json"], "no.json: no such file"),
        (["--predictions", path, "--kz", "5"], "--kz"),
    ):
        done = run(*words)
        assert message in done.reported and done.out == ""
