"""The leak checks, and the counts of a corpus."""

from functools import partial

import pytest
from support import small_corpus

from minionerec.core.errors import DataError
from minionerec.data.corpus import check_filled
from minionerec.data.published import check_histories, corpus_counts

corpus_of = partial(small_corpus.corpus_of, n_items=10, max_history=3)


def test_a_training_row_beyond_a_test_row_leaks():
    future = [("ann", [1, 2], 3)]
    present = [("ann", [1], 2)]
    other = [("bob", [4], 5)]
    check_histories(corpus_of(present, other, future))
    with pytest.raises(DataError, match=r"leaks: test example 1 \(user 'ann', 1 items of history\)"):
        check_histories(corpus_of(future, other, present))
    with pytest.raises(DataError, match="leaks: valid example 2"):
        check_histories(corpus_of(future, [*other, *present], []))


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


def test_an_empty_split_is_named_with_all_sizes():
    with pytest.raises(DataError, match=r"shop\.csv: split 'valid' holds no example \(train 1, valid 0, test 1\)"):
        check_filled({"train": 1, "valid": 0, "test": 1}, "shop.csv")


def test_counts_by_hand():
    corpus = corpus_of([("ann", [1, 2, 3], 4)], [("bob", [1], 3), ("ann", [2, 3, 4], 9)], [("eve", [9], 2)])
    expected = {"train_rows": 1, "valid_rows": 2, "test_rows": 1, "rows": 4, "users": 3, "items": 10}
    expected |= {"items_without_description": 10, "full_histories": 2, "valid_cold_targets": 2, "valid_new_users": 1}
    assert corpus_counts(corpus) == expected | {"test_cold_targets": 1, "test_new_users": 1}
