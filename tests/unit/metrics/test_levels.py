"""Per-level analysis and the published JSON form: cases worked by hand, and a slow oracle."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.core.errors import ConfigError, DataError
from minionerec.metrics.levels import level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.published_json import read_published_json, write_published_json
from minionerec.metrics.ranking import ranking_metrics, sid_ranks


def make(targets, lists) -> Predictions:
    return Predictions(
        users=[str(row) for row in range(len(targets))],
        targets=np.full(len(targets), -1, dtype=np.int32),
        target_sids=targets,
        items=[[-1] * len(row) for row in lists],
        sids=lists,
        scores=[[0.0] * len(row) for row in lists],
    )


def analyse(target, predicted, ks, **settings):
    return level_analysis(make([target], [predicted]), ks, keep_duplicates=True, **settings)


T = "<a_1><b_2><c_3>"


def test_exact_hit():
    found = analyse(T, [T], [1]).to_json()
    assert found == {
        "independent": {"1": [1.0, 1.0, 1.0, 1.0]},
        "cumulative": {"1": [1.0, 1.0, 1.0]},
        "dropoff": {"l1": 1.0, "l1_to_l2": 1.0, "l2_to_l3": 1.0},
        "rows": 1,
    }


def test_right_code_at_the_wrong_level_is_no_hit():
    assert analyse(T, ["<a_2><b_3><c_1>", "<a_3><b_1><c_2>"], [2]).dropoff == (0.0, None, None)


def test_duplicates_take_ranks_in_a_list_as_it_stands_and_none_otherwise():
    lists = [["<a_9><b_9><c_9>", "<a_9><b_9><c_9>", T]]
    assert level_analysis(make([T], lists), [2], keep_duplicates=True).independent[0, 3] == 0
    assert level_analysis(make([T], lists), [2]).independent[0, 3] == 1


def test_unparsable_predictions_miss_and_keep_their_position():
    lists = ["nothing", "<a_1><b_2>", "<b_2><a_1><c_3>", "", T]
    found = analyse(T, lists, [1, 4, 5])
    assert found.independent[:, 3].tolist() == [0, 0, 1]
    assert found.independent[1].tolist() == [0, 0, 0, 0]
    assert (found.unparsable, found.looked_at, found.rows) == (4, 5, 1)


def test_rows_without_parsable_target_are_left_out():
    found = level_analysis(make([T, "broken", "<a_1>"], [[T], [T], [T]]), [1])
    assert (found.rows, found.excluded) == (1, 2)
    assert found.independent.tolist() == [[1, 1, 1, 1]]


def test_a_further_code_counts_for_exact_alone():
    targets = [T, T, f"{T}<d_0>"]
    found = level_analysis(make(targets, [[T], [f"{T}<d_1>"], [f"{T}<d_1>"]]), [1])
    assert found.levels == 3
    assert found.cumulative.tolist() == [[1, 1, 1]]
    assert found.independent[0, 3] == pytest.approx(1 / 3)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_any_number_of_levels(levels):
    sid = "".join(f"<{letter}_5>" for letter in "abcd"[:levels])
    found = analyse(sid, [sid], [1])
    assert found.levels == levels and found.independent.shape == (1, levels + 1)
    assert len(found.to_json()["dropoff"]) == levels


def test_dropoff_by_hand():
    lists = [[T], ["<a_1><b_2><c_4>"], ["<a_1><b_4><c_4>"], ["<a_4><b_4><c_4>"]]
    found = level_analysis(make([T] * 4, lists), [1])
    assert found.to_json()["dropoff"] == {"l1": 0.75, "l1_to_l2": 2 / 3, "l2_to_l3": 0.5}


code = st.integers(0, 2)
sids = st.one_of(st.tuples(code, code, code).map(lambda c: f"<a_{c[0]}><b_{c[1]}><c_{c[2]}>"), st.just("junk"))


@given(st.lists(st.tuples(sids, st.lists(sids, min_size=4, max_size=6)), min_size=1, max_size=6))
def test_equals_a_walk_over_rows_and_lists(rows):
    rows = [*rows, (T, [T] * 4)]
    found = level_analysis(make([t for t, _ in rows], [p for _, p in rows]), [1, 2, 4], keep_duplicates=True)
    counted = [(re.findall(r"<[abc]_\d+>", t), p) for t, p in rows if t != "junk"]
    for position, k in enumerate((1, 2, 4)):
        independent, cumulative = np.zeros(4), np.zeros(3)
        for target, predicted in counted:
            parts = [re.findall(r"<[abc]_\d+>", text) for text in predicted[:k] if text != "junk"]
            independent[:3] += [any(p[level] == target[level] for p in parts) for level in range(3)]
            independent[3] += target in parts
            cumulative += [any(p[: level + 1] == target[: level + 1] for p in parts) for level in range(3)]
        np.testing.assert_allclose(found.independent[position], independent / len(counted))
        np.testing.assert_allclose(found.cumulative[position], cumulative / len(counted))
    assert (found.rows, found.excluded) == (len(counted), len(rows) - len(counted))


def test_exact_equals_the_hit_rate():
    rng = np.random.default_rng(0)
    lists = [[f"<a_{c}><b_{c % 3}>" for c in rng.permutation(30)[:20]] for _ in range(200)]
    predictions = make([f"<a_{c}><b_{c % 3}>" for c in rng.integers(0, 30, 200)], lists)
    found = level_analysis(predictions, [1, 5, 20])
    metrics = ranking_metrics(sid_ranks(predictions), [1, 5, 20])
    np.testing.assert_allclose(found.independent[:, -1], [metrics[f"HR@{k}"].mean() for k in (1, 5, 20)])


def test_errors_of_the_analysis():
    with pytest.raises(ConfigError, match=r"K = 5 .* hold 1 candidates"):
        level_analysis(make([T], [[T]]), [1, 5])
    with pytest.raises(DataError, match=r"no target parses as a semantic ID; the first is 'x'"):
        level_analysis(make(["x"], [[T]]), [1])


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def entry(target=T, predict=(T, T, T)):
    return {"input": "?", "output": f"{target}\n", "predict": list(predict)}


def test_json_round_trip(tmp_path):
    predictions = make([T, "<a_9><b_9><c_9>"], [[T, "junk", T], ["<a_0><b_0><c_0>", T]])
    write_published_json(tmp_path / "p.json", predictions, ["first", "second"])
    content = json.loads((tmp_path / "p.json").read_text())
    assert content[0] == {"input": "first", "output": f"{T}\n", "predict": [T, "junk"]}
    assert (tmp_path / "p.json").read_text().startswith('[\n    {\n        "input"')
    back = read_published_json(tmp_path / "p.json")
    assert list(back.target_sids) == list(predictions.target_sids)
    assert back.sids == [[T, "junk"], ["<a_0><b_0><c_0>", T]]
    assert back.targets.tolist() == [-1, -1] and back.items[0] == [-1, -1]
    with pytest.raises(DataError, match=r"1 inputs for 2 rows"):
        write_published_json(tmp_path / "q.json", predictions, ["first"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"p\.json: not valid JSON \(.*line 1"),
        ({}, r"p\.json: expected a list of entries .* got dict"),
        ([], r"p\.json: the list is empty"),
        ([entry(), {"output": T}], r"p\.json: entry 2 is \{'output'.*expected an object with a text as output and"),
        ([entry(), {"predict": []}], r"p\.json: entry 2 is \{'predict': \[\]\}"),
        ([entry(), 5], r"p\.json: entry 2 is 5"),
        ([{"output": 3, "predict": []}], r"entry 1 is \{'output': 3"),
        ([{"output": T, "predict": [1]}], r"entry 1 is .*'predict': \[1\]"),
    ],
)
def test_malformed_json_names_file_and_entry(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_published_json(write(tmp_path / "p.json", content))


def test_missing_json(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: no such file"):
        read_published_json(tmp_path / "none.json")
