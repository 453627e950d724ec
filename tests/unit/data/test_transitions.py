"""Counts of what followed what, against plain loops."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.data.transitions import count_transitions
from minionerec.nn.history import own_counts, rows_of

SIZE = 5


def windows(*rows):
    """Histories and targets of windows that have a target at every position: int64 (W, L), 0 behind the end."""
    width = max(len(row) for row in rows) - 1
    histories, targets = np.zeros((2, len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        histories[place, : len(row) - 1], targets[place, : len(row) - 1] = row[:-1], row[1:]
    return histories, targets


def counted(histories, targets, reach, decay, reverse):
    """The definition: every pair of a target and an item before it, one at a time."""
    found = defaultdict(float)
    for items, wanted in zip(histories.tolist(), targets.tolist(), strict=True):
        for place, target in enumerate(wanted):
            for back in range(min(reach, place + 1)):
                item = items[place - back]
                if target and item:
                    found[item - 1, target - 1] += decay**back
                    found[target - 1, item - 1] += reverse * decay**back
    return {pair: count for pair, count in found.items() if count}


def as_dict(table):
    rows = np.repeat(np.arange(len(table.offsets) - 1), np.diff(table.offsets))
    pairs = zip(rows.tolist(), table.followers.tolist(), strict=True)
    return dict(zip(pairs, table.counts.tolist(), strict=True))


@st.composite
def data(draw):
    """A few windows with gaps among their targets, as validation rows have."""
    rows = draw(st.lists(st.lists(st.integers(1, SIZE), min_size=2, max_size=7), min_size=1, max_size=6))
    histories, targets = windows(*rows)
    hidden = draw(st.lists(st.booleans(), min_size=targets.size, max_size=targets.size))
    return histories, np.where(np.reshape(hidden, targets.shape), 0, targets)


@settings(max_examples=60, deadline=None)
@given(data(), st.integers(1, 9), st.sampled_from([1.0, 0.6, 0.25]), st.sampled_from([0.0, 0.3, 1.0]))
def test_counts_are_those_of_a_double_loop(given_data, reach, decay, reverse):
    table = count_transitions(*given_data, SIZE, reach, decay, reverse)
    assert as_dict(table) == pytest.approx(counted(*given_data, reach, decay, reverse))
    assert len(table.offsets) == SIZE + 1 and table.offsets[-1] == len(table.counts) == len(table.followers)
    for first, last in zip(table.offsets, table.offsets[1:], strict=False):
        assert (np.diff(table.followers[first:last]) > 0).all()
    assert (table.offsets.dtype, table.followers.dtype, table.counts.dtype) == (np.int64, np.int32, np.float32)


def test_reach_and_reverse_by_hand():
    histories, targets = windows([1, 2, 3])
    near = count_transitions(histories, targets, 3, reach=1, decay=0.5, reverse=0.0)
    assert as_dict(near) == {(0, 1): 1.0, (1, 2): 1.0}
    both = count_transitions(histories, targets, 3, reach=2, decay=0.5, reverse=0.25)
    assert as_dict(both) == {(0, 1): 1.0, (1, 2): 1.0, (0, 2): 0.5, (1, 0): 0.25, (2, 1): 0.25, (2, 0): 0.125}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 99), max_size=8))
def test_rows_of_a_table(lengths, wanted):
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    rows = [row % len(lengths) for row in wanted]
    owner, place = rows_of(offsets, torch.tensor(rows, dtype=torch.long))
    expected = [(i, p) for i, row in enumerate(rows) for p in range(int(offsets[row]), int(offsets[row + 1]))]
    assert list(zip(owner.tolist(), place.tolist(), strict=True)) == expected


@settings(max_examples=80, deadline=None)
@given(data(), st.integers(1, 6), st.sampled_from([1.0, 0.6]), st.sampled_from([0.0, 0.3]))
def test_own_counts_are_what_a_window_added(given_data, reach, decay, reverse):
    """For every row, and from every position on: the difference between counting with those targets and without."""
    histories, targets = (part[:1] for part in given_data)
    width = histories.shape[1]
    rows = [(item, first) for item in range(1, SIZE + 1) for first in range(width)]
    entries, firsts = torch.tensor(rows).T
    shape = (len(rows), -1)
    windows, wanted = (torch.from_numpy(part).expand(*shape) for part in (histories, targets))
    after, before = own_counts(windows, wanted, entries, firsts, reach, decay, reverse)
    assert after.shape == before.shape == (len(rows), width)
    assert after.dtype == before.dtype == torch.float32
    whole = counted(histories, targets, reach, decay, reverse)
    for place, (item, first) in enumerate(rows):
        rest = counted(histories, np.where(np.arange(width) < first, targets, 0), reach, decay, reverse)
        added = np.zeros(SIZE + 1)
        np.add.at(added, targets[0], after[place].numpy())
        np.add.at(added, histories[0], before[place].numpy())
        row = [whole.get((item - 1, other), 0.0) - rest.get((item - 1, other), 0.0) for other in range(SIZE)]
        assert added == pytest.approx([0.0, *row], abs=1e-5)


def test_own_counts_are_exact_where_the_model_computes_in_bfloat16():
    """What is left over of a position's own answer would tell it."""
    window = (torch.tensor([[3, 1, 3, 2]]), torch.tensor([[1, 3, 2, 3]]), torch.tensor([3]), torch.tensor([0]))
    plain = own_counts(*window, 4, 0.6, 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, own_counts(*window, 4, 0.6, 0.3), plain))
