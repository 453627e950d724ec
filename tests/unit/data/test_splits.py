"""Rows and splits against plain loops, and the leak checks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.checks import check_filled, check_global_time, check_histories, corpus_counts
from minionerec.data.corpus import Corpus
from minionerec.data.rows import Histories, SplitRows
from minionerec.data.splits import build_rows, global_time_split, leave_last_out_split, stable_order

interactions = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=40)


def histories_of(rows):
    return Histories(rows.by_user, rows.begins, rows.ends)


def corpus_of(train, valid, test, max_history=3, n_items=10):
    """A corpus from (user, history, target) triples."""
    tables = [
        SplitRows.of(
            [user for user, _, _ in rows],
            [history for _, history, _ in rows],
            [target for _, _, target in rows],
        )
        for rows in (train, valid, test)
    ]
    ids = [str(item) for item in range(n_items)]
    items = pd.DataFrame({"item_id": ids, "title": ids, "description": [""] * n_items})
    return Corpus(items, *tables, split="by hand", max_history=max_history)


@given(
    st.lists(st.one_of(st.integers(-3, 3), st.integers(-(2**62), 2**62)), max_size=30), st.sampled_from(["i8", "f8"])
)
def test_the_fast_order_is_the_stable_one(values, kind):
    array = np.array(values, dtype=kind)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@given(interactions, st.integers(1, 5))
def test_rows_are_each_users_past_and_next_item(pairs, max_history):
    users = np.array([user for user, _ in pairs], dtype=np.int64)
    items = np.array([item for _, item in pairs], dtype=np.int64)
    past: dict[int, list[int]] = {}
    expected, truncated = [], 0
    for place, (user, item) in enumerate(pairs):
        history = past.setdefault(user, [])
        if history:
            expected.append((place, history[-max_history:]))
            truncated += len(history) > max_history
        history.append(item)
    rows = build_rows(users, items, max_history)
    got = [(int(place), history.tolist()) for place, history in zip(rows.targets, histories_of(rows), strict=True)]
    assert got == expected
    assert rows.truncated == truncated
    assert all(history.dtype == np.int32 for history in histories_of(rows))


def test_a_history_needs_room():
    with pytest.raises(ConfigError, match="max_history is 0; a history holds at least 1"):
        build_rows(np.array([0]), np.array([0]), 0)


@given(st.integers(0, 500))
def test_global_time_cuts_at_the_published_places(n_rows):
    labels = global_time_split(n_rows)
    sizes = np.bincount(labels, minlength=3).tolist()
    assert sizes == [n_rows * 8 // 10, n_rows * 9 // 10 - n_rows * 8 // 10, n_rows - n_rows * 9 // 10]
    assert (np.diff(labels) >= 0).all()


@given(st.lists(st.integers(0, 5), max_size=30))
def test_leave_last_out_against_a_loop(users):
    labels = leave_last_out_split(np.array(users, dtype=np.int64))
    for place, user in enumerate(users):
        later = users[place + 1 :].count(user)
        assert labels[place] == (2 if later == 0 else 1 if later == 1 else 0)


@given(interactions, st.integers(1, 4), st.booleans())
def test_right_splits_pass_the_leak_check(pairs, max_history, by_time):
    users = np.array([user for user, _ in pairs], dtype=np.int64)
    rows = build_rows(users, np.array([item for _, item in pairs], dtype=np.int64), max_history)
    row_users = users[rows.targets]
    labels = global_time_split(len(row_users)) if by_time else leave_last_out_split(row_users)
    triples = [(f"u{u}", h, pairs[t][1]) for u, h, t in zip(row_users, histories_of(rows), rows.targets, strict=True)]
    parts = [[triple for triple, label in zip(triples, labels, strict=True) if label == part] for part in range(3)]
    corpus = corpus_of(*parts, max_history=max_history)
    counts = check_histories(corpus)
    users_with_rows = {user for user, _, _ in triples}
    assert counts["continued_rows"] == len(triples) - len(users_with_rows)
    assert counts["broken_rows"] == 0


def test_a_training_row_beyond_a_test_row_leaks():
    future = [("ann", [1, 2], 3)]
    present = [("ann", [1], 2)]
    other = [("bob", [4], 5)]
    check_histories(corpus_of(present, other, future))
    with pytest.raises(DataError, match=r"leaks: test row 1 \(user 'ann', 1 items of history\)"):
        check_histories(corpus_of(future, other, present))
    with pytest.raises(DataError, match="leaks: valid row 2"):
        check_histories(corpus_of(future, [*other, *present], []))


def test_the_same_row_in_two_splits_leaks():
    row = [("ann", [1], 2)]
    with pytest.raises(DataError, match="leaks: test row 1"):
        check_histories(corpus_of(row, [("bob", [4], 5)], row))


def test_full_histories_that_an_earlier_split_continues_are_counted():
    later, earlier = ("ann", [2, 3, 4], 5), ("ann", [1, 2, 3], 4)
    right = check_histories(corpus_of([earlier], [], [later]))
    wrong = check_histories(corpus_of([later], [], [earlier]))
    assert (right["possible_leaks"], right["broken_rows"], right["continued_rows"]) == (0, 0, 1)
    assert (wrong["possible_leaks"], wrong["broken_rows"], wrong["continued_rows"]) == (1, 1, 0)


def test_one_thing_over_and_over_is_no_leak():
    row = ("ann", [1, 1, 1], 1)
    assert check_histories(corpus_of([row], [row], [row]))["possible_leaks"] == 0


def test_missing_rows_are_counted():
    counts = check_histories(corpus_of([("ann", [1], 2)], [], [("ann", [1, 2, 3], 4)]))
    assert (counts["continued_rows"], counts["broken_rows"]) == (0, 1)


def test_times_must_rise_from_split_to_split():
    times = {"train": np.array([1, 5]), "valid": np.array([5, 6]), "test": np.array([6, 9])}
    check_global_time(times)
    with pytest.raises(DataError, match="latest valid target has time 7, after the earliest test target at 6"):
        check_global_time({**times, "valid": np.array([5, 7])})


def test_an_empty_split_is_named_with_all_sizes():
    with pytest.raises(DataError, match=r"shop\.csv: split 'valid' holds no row \(train 1, valid 0, test 1\)"):
        check_filled({"train": 1, "valid": 0, "test": 1}, "shop.csv")


def test_counts_by_hand():
    corpus = corpus_of([("ann", [1, 2, 3], 4)], [("bob", [1], 3), ("ann", [2, 3, 4], 9)], [("eve", [9], 9)])
    assert corpus_counts(corpus) == {
        "train_rows": 1,
        "valid_rows": 2,
        "test_rows": 1,
        "rows": 4,
        "users": 3,
        "items": 10,
        "items_without_description": 10,
        "valid_cold_targets": 1,
        "valid_new_users": 1,
        "test_cold_targets": 1,
        "test_new_users": 1,
        "full_histories": 2,
    }
