"""Slices of examples: each group shares out the rows, and says what the plain reading of the rows says."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import source_of
from support.small_corpus import corpus_of

from minionerec.data.protocols import PROTOCOLS
from minionerec.data.rows import ItemEvents
from minionerec.data.slices import (
    FOLLOWED,
    IN_SESSION,
    LATER,
    NOT_FOLLOWED,
    NOT_VIEWED,
    REVERSED,
    SAME,
    VIEWED,
    WHOSE,
    example_slices,
)
from minionerec.data.times import NO_TIME, RowTimes

N = 6


TRAIN = [("ann", [0], 1), ("ann", [0, 1], 2), ("bob", [], 3), ("bob", [3], 1), ("cleo", [4, 0], 1)]
TEST = [("ann", [0, 1, 2], 1), ("bob", [3, 1], 0), ("dora", [], 2), ("dora", [5, 4], 0), ("eve", [1, 5], 5)]


def of(kinds, group, kind):
    return np.flatnonzero(kinds[group][kind]).tolist()


def with_events(rows, of_targets):
    """The examples with events of items: purchases (1) of item 5, views (0) of all others."""
    of_items = np.where(rows.items == 5, 1, 0).astype(np.int16)
    return replace(rows, events=ItemEvents(of_items, np.array(of_targets, np.int16)))


def test_kinds_of_a_corpus_by_hand():
    corpus = corpus_of(TRAIN, TEST, TEST)
    times = RowTimes(np.array([5, 5, 5, NO_TIME, 7]), np.array([5, 4, NO_TIME, 3, 7]))
    kinds = example_slices(corpus, replace(corpus.rows("test"), times=times), "test")
    assert (of(kinds, "time", SAME), of(kinds, "time", LATER)) == ([0, 4], [1])
    assert (of(kinds, "pair", FOLLOWED), of(kinds, "pair", NOT_FOLLOWED)) == ([3], [0, 1, 4])  # 4, 0 in cleo's history
    assert of(kinds, "reverse", REVERSED) == [0, 1]  # 1, 2 and 0, 1; the other way round in the rows
    assert of(kinds, "repeat", "target is in the history") == [0, 4]
    assert of(kinds, "target", "cold") == [1, 3, 4]
    assert of(kinds, "target", "rare") == [0, 2]
    assert [of(kinds, "history", kind) for kind in ("none", "1-2", "3-5")] == [[2], [1, 3, 4], [0]]
    assert of(kinds, "user", "new") == [2, 3, 4]


def test_a_target_was_viewed_where_another_event_of_it_is_in_the_history():
    corpus = corpus_of(TRAIN, TEST, TEST)
    rows = with_events(corpus.rows("test"), of_targets=[1, 1, 1, 0, 1])
    # The target of the first is there as a view, that of the last as a purchase.
    kinds = example_slices(corpus, rows, "test")
    assert (of(kinds, "viewed", VIEWED), of(kinds, "viewed", NOT_VIEWED)) == ([0], [1, 2, 3, 4])
    assert of(kinds, "repeat", "target is in the history") == [0, 4]


def test_sessions_follow_from_times_that_are_finer_than_half_an_hour():
    corpus = corpus_of(TRAIN, TEST, TEST)
    start = 1_600_000_000
    previous = np.array([start, start + 60, start, NO_TIME, start])
    times = RowTimes(np.array([start + 1800, start + 1861, start + 90_000, start, start]), previous)
    kinds = example_slices(corpus, replace(corpus.rows("test"), times=times), "test")
    assert (of(kinds, "session", IN_SESSION), of(kinds, "session", LATER)) == ([0, 4], [1, 2])
    assert (of(kinds, "time", SAME), of(kinds, "time", LATER)) == ([4], [0, 1, 2])
    days = RowTimes(*(np.array([n * 86_400 + start - start % 86_400 for n in ns]) for ns in ([3, 4, 5, 5, 9], [3] * 5)))
    assert "session" not in example_slices(corpus, replace(corpus.rows("test"), times=days), "test")


def test_a_frequent_target_is_one_of_more_than_five_rows():
    corpus = corpus_of([("u", [0], 1)] * 5 + [("u", [0], 2)] * 6, [], [("u", [0], 1), ("u", [0], 2)])
    kinds = example_slices(corpus, corpus.rows("test"), "test")
    assert (of(kinds, "target", "rare"), of(kinds, "target", "frequent")) == ([0], [1])
    assert "time" not in kinds


def test_training_rows_are_not_looked_up_in_training():
    corpus = corpus_of(TRAIN, TEST, TEST)
    assert list(example_slices(corpus, corpus.rows("train"), "train")) == ["repeat", "history"]


def test_every_kind_can_be_reported_in_a_sentence():
    corpus = corpus_of(TRAIN, TEST, TEST)
    times = RowTimes(np.full(5, 1_600_000_000), np.full(5, 1_599_999_999))
    rows = with_events(replace(corpus.rows("test"), times=times), of_targets=[1] * 5)
    kinds = example_slices(corpus, rows, "test")
    assert [(group, kind) for group, of in kinds.items() for kind in of] == list(WHOSE)


users = st.lists(st.lists(st.integers(1, N), min_size=5, max_size=9), min_size=1, max_size=5)


@settings(max_examples=40)
@given(users, st.sampled_from("ab"), st.integers(2, 4))
def test_a_protocols_rows_agree_with_the_sequences(sequences, protocol, max_len):
    """Whatever the protocol and its longest history: pairs are those of the users' training items."""
    if protocol == "b":
        sequences = sequences * 5  # a 5-core
    split = replace(PROTOCOLS[protocol], max_len=max_len).split(source_of(*sequences, n_items=N))
    rows = split.rows("test")
    kinds = example_slices(split, rows, "test")
    trained = [list(history[:-1]) for history in rows.histories]  # all but the validation item
    pairs = {pair for items in trained for pair in pairwise(items)}
    plain = [(history[-1], target) in pairs for history, target in zip(rows.histories, rows.targets, strict=True)]
    turned = [(target, history[-1]) in pairs for history, target in zip(rows.histories, rows.targets, strict=True)]
    held = [target in history for history, target in zip(rows.histories, rows.targets, strict=True)]
    assert kinds["pair"][FOLLOWED].tolist() == plain
    assert kinds["reverse"][REVERSED].tolist() == turned
    assert kinds["repeat"]["target is in the history"].tolist() == held
    assert kinds["user"]["in training"].all()
    for of in kinds.values():
        assert (np.sum(list(of.values()), axis=0) == 1).all()


def test_where_no_times_are_known_the_group_is_left_out():
    corpus = corpus_of(TRAIN, TEST, TEST)
    for times in (None, RowTimes(np.arange(5), np.full(5, NO_TIME))):
        assert "time" not in example_slices(corpus, replace(corpus.test, times=times), "test")


@pytest.mark.parametrize("rows", [[], [("u", [], 1)]])
def test_training_without_pairs(rows):
    corpus = corpus_of([("u", [], 0), *rows], [], [("u", [0], 1), ("v", [], 0)])
    kinds = example_slices(corpus, corpus.rows("test"), "test")
    assert of(kinds, "pair", NOT_FOLLOWED) == [0]
