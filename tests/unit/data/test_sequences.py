"""Arrays of histories and windows against loops over users."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.data.sequences import Samples, make_windows, padded

SEQUENCES = st.lists(st.integers(2, 23), min_size=1, max_size=6)


def lay_out(lengths):
    """Distinct items 1, 2, ... user by user: flat, begins, ends."""
    ends = np.cumsum(lengths)
    return np.arange(1, ends[-1] + 1, dtype=np.int32), ends - lengths, ends


def unpad(row):
    return [int(item) for item in row if item]


@given(SEQUENCES, st.integers(1, 9), st.sampled_from(["left", "right"]))
def test_histories_are_the_newest_items_on_the_side_away_from_padding(lengths, max_len, padding):
    flat, begins, ends = lay_out(np.array(lengths))
    samples = Samples(np.arange(len(ends)), flat[ends - 1], flat, begins, ends - 1, max_len, padding)
    for row, (begin, end) in zip(samples.histories, zip(begins, ends - 1, strict=True), strict=True):
        newest = flat[begin:end][-max_len:].tolist()
        fill = [0] * (max_len - len(newest))
        assert row.tolist() == (fill + newest if padding == "left" else newest + fill)


def test_seen_items_are_the_whole_history_not_only_the_newest():
    flat, begins, ends = lay_out(np.array([5, 3]))
    samples = Samples(np.arange(2), flat[ends - 1], flat, begins, ends - 1, 2, "left")
    rows, items = samples.seen(slice(0, 2))
    assert rows.tolist() == [0, 0, 0, 0, 1, 1]
    assert items.tolist() == [1, 2, 3, 4, 6, 7]
    rows, items = samples.seen(slice(1, 2))
    assert (rows.tolist(), items.tolist()) == ([0, 0], [6, 7])


@given(SEQUENCES, st.integers(1, 9), st.integers(1, 30), st.sampled_from(["left", "right"]))
def test_windows_hold_every_target_once_with_its_past_before_it(lengths, max_len, first, padding):
    flat, begins, ends = lay_out(np.array(lengths))
    firsts = np.minimum(first, np.array(lengths))
    windows = make_windows(flat, begins, ends, firsts, max_len, padding)
    met = []
    for history, targets in zip(windows.histories, windows.targets, strict=True):
        items = unpad(history)
        assert items == list(range(items[0], items[-1] + 1))
        for place in np.flatnonzero(targets):
            target = int(targets[place])
            assert history[place] == target - 1  # the item before it stands where the loss is
            user = int(np.searchsorted(ends, target - 1, side="right"))
            before = target - 1 - int(begins[user])
            assert target - items[0] >= min(before, max(1, max_len // 2))
            met.append(target)
    wanted = [item for b, e, f in zip(begins, ends, firsts, strict=True) for item in flat[b + f : e].tolist()]
    assert sorted(met) == wanted


def test_padding_side_of_windows():
    flat, begins, ends = lay_out(np.array([3]))
    left = make_windows(flat, begins, ends, np.array([1]), 4, "left")
    right = make_windows(flat, begins, ends, np.array([1]), 4, "right")
    assert (left.histories.tolist(), left.targets.tolist()) == ([[0, 0, 1, 2]], [[0, 0, 2, 3]])
    assert (right.histories.tolist(), right.targets.tolist()) == ([[1, 2, 0, 0]], [[2, 3, 0, 0]])


def test_no_windows_from_sequences_without_a_target():
    flat, begins, ends = lay_out(np.array([1, 2]))
    assert len(make_windows(flat, begins, ends, np.array([1, 2]), 4, "left")) == 0


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_keeps_empty_ranges(padding):
    rows = padded(np.array([7, 8]), np.array([0, 1, 2]), np.array([0, 2, 2]), 2, padding)
    assert rows.tolist() == [[0, 0], [0, 8] if padding == "left" else [8, 0], [0, 0]]
