"""Ranking metrics and their intervals, against brute force and scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.measuring import evaluate_predictions, paired_bootstrap

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions, length_of_lists
from minionerec.metrics.ranking import check_ks, coverage, invalid_count, item_ranks, ranking_metrics, sid_ranks
from minionerec.metrics.statistics import bootstrap_interval, paired_differences


def make(targets, items, sid_of) -> Predictions:
    return Predictions(
        users=[str(row) for row in range(len(targets))],
        targets=np.array(targets, dtype=np.int32),
        target_sids=[sid_of(target) for target in targets],
        items=items,
        sids=[[sid_of(item) for item in row] for row in items],
        scores=[[-float(position) for position in range(len(row))] for row in items],
    )


def pair_sid(item: int) -> str:
    """Items 0 and 1 share an SID, 2 and 3 share one, and so on."""
    return f"<a_{item // 2}>" if item >= 0 else "<a_999>"


lists = st.lists(st.lists(st.integers(0, 11), max_size=12), min_size=1, max_size=8)


@given(lists, st.data())
def test_ranks_equal_a_walk_over_the_list(items, data):
    targets = [data.draw(st.integers(0, 11)) for _ in items]
    predictions = make(targets, items, pair_sid)
    for found, name in ((sid_ranks(predictions), pair_sid), (item_ranks(predictions), lambda item: item)):
        for target, row, rank in zip(targets, items, found, strict=True):
            seen = []
            for item in row:
                if name(item) not in seen:
                    seen.append(name(item))
            assert rank == (seen.index(name(target)) + 1 if name(target) in seen else 0)


def test_lists_of_examples_have_the_sids_of_their_items():
    rows = SplitExamples.of(["u"], [[0]], [1])
    found = Predictions.of(rows, [[1, -1, 0]], [[2.0, 1.0, 0.5]], ["<a_0>", "<a_1>"], ("gap",))
    assert found.sids == [["<a_1>", "", "<a_0>"]] and found.target_sids == ["<a_1>"]
    assert (found.users, found.targets.tolist(), found.given) == (["u"], [1], ("gap",))
    assert Predictions.of(rows, [[1]], [[2.0]], None).sids == [[""]]


def test_unknown_targets_are_never_hits():
    predictions = Predictions(["u"], np.array([-1]), [""], [[-1, 3]], [["", "<a_1>"]], [[0.0, -1.0]])
    assert sid_ranks(predictions).tolist() == [0]
    assert item_ranks(predictions).tolist() == [0]


def test_entries_that_are_no_item_keep_their_position():
    assert item_ranks(make([4], [[-1, -1, 2, 2, 4]], pair_sid)).tolist() == [4]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_metrics_equal_scikit_learn_and_brute_force(ranks):
    from sklearn.metrics import ndcg_score

    ks = [1, 3, 10, 50]
    values = ranking_metrics(np.array(ranks), ks)
    for row, rank in enumerate(ranks):
        relevance = np.zeros((1, 61))
        relevance[0, (rank or 61) - 1] = 1.0  # an absent target is ranked behind everything
        order = -np.arange(61, dtype=float)[None]
        for k in ks:
            assert values[f"HR@{k}"][row] == (1 <= rank <= k)
            assert values[f"NDCG@{k}"][row] == pytest.approx(ndcg_score(relevance, order, k=k))
            assert values[f"NDCG@{k}"][row] == pytest.approx(1 / math.log2(1 + rank) if 1 <= rank <= k else 0)
        assert values["MRR@50"][row] == pytest.approx(1 / rank if 1 <= rank <= 50 else 0)


def test_a_cutoff_beyond_the_lists_names_both_numbers():
    with pytest.raises(ConfigError, match=r"K = 50 .* hold 20 candidates"):
        check_ks([1, 50], 20)
    with pytest.raises(ConfigError, match=r"K = 5 .* hold 2 candidates"):
        evaluate_predictions(make([0], [[0, 2]], pair_sid), [5])
    with pytest.raises(ConfigError, match="ks is 0; expected whole numbers from 1"):
        ranking_metrics(np.array([1]), [0])
    with pytest.raises(ConfigError, match="ks is empty"):
        ranking_metrics(np.array([1]), [])


def test_invalid_predictions_are_counted_in_all_rows_and_after_hits():
    predictions = make([0, 4, 2], [[-1, 0, -1, -1], [-1, 2], []], pair_sid)
    valid = {pair_sid(item) for item in range(12)}
    assert invalid_count(predictions, valid) == 4
    assert invalid_count(predictions, valid, stop_at_hit=True) == 2


def test_coverage_counts_distinct_items_of_the_first_k():
    predictions = make([0, 0], [[1, 2, 3], [1, -1, 5]], pair_sid)
    assert coverage(predictions, 1, 10) == 0.1
    assert coverage(predictions, 3, 10) == 0.4


def test_evaluation_by_hand():
    predictions = make([0, 3, 8], [[0, 1, 2], [2, 3, 4], []], pair_sid)
    found = evaluate_predictions(predictions, [1, 2], valid_sids=["<a_0>", "<a_1>", "<a_4>"], n_items=10)
    assert found.sid["HR@1"].mean == pytest.approx(2 / 3)
    assert found.item["HR@1"].mean == pytest.approx(1 / 3)
    assert found.item["NDCG@2"].mean == pytest.approx((1 + 1 / math.log2(3)) / 3)
    assert found.item["MRR@2"].mean == pytest.approx(0.5)
    assert (found.rows, found.empty, found.predictions, found.invalid, found.list_length) == (3, 1, 6, 1, 3)
    assert found.coverage == {1: 0.2, 2: 0.4}
    assert found.sid["NDCG@1"].mean == found.to_json()["sid"]["NDCG@1"][0]
    assert found.sid["HR@1"].low <= found.sid["HR@1"].mean <= found.sid["HR@1"].high


def test_readings_that_do_not_apply_are_none():
    no_sids = make([1], [[1, 2]], lambda item: "")
    assert evaluate_predictions(no_sids, [1]).sid is None
    no_items = Predictions(["u"], np.array([-1]), ["<a_1>"], [[-1]], [["<a_1>"]], [[0.0]])
    found = evaluate_predictions(no_items, [1], n_items=5)
    assert found.item is None and found.coverage is None and found.sid["HR@1"].mean == 1.0


def test_width_is_what_the_manifest_says(tmp_path):
    predictions = make([0], [[0, 1, 2]], pair_sid)
    predictions.save(tmp_path / "p", config={"beams": 2}, inputs={})
    assert length_of_lists(predictions) == 3
    assert length_of_lists(predictions, tmp_path / "p") == 2


def test_paired_difference_sees_what_separate_intervals_hide():
    rng = np.random.default_rng(0)
    first = (rng.random(2000) < 0.3).astype(float)
    second = first.copy()
    second[np.flatnonzero(first)[:12]] = 0.0
    found = paired_bootstrap(first, second)
    assert found.difference == pytest.approx(0.006)
    assert 0 < found.low < found.difference < found.high and found.p < 0.01
    assert bootstrap_interval(first)[0] < second.mean()
    assert paired_bootstrap(first, first) == (0.0, 0.0, 0.0, 1.0)
    both = paired_differences({"x": first, "y": second, "z": first}, {"x": second, "y": second})
    assert both["x"] == found and list(both) == ["x", "y"]


def test_bootstrap_errors():
    with pytest.raises(DataError, match=r"at least one example, got 0"):
        bootstrap_interval(np.zeros(0))
    with pytest.raises(DataError, match=r"\(3,\) against \(4,\)"):
        paired_bootstrap(np.zeros(3), np.zeros(4))
