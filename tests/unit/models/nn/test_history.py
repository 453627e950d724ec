"""Look-ups of counts: rows of the table, and what a window itself added to them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pairs import SIZE, counted, some_windows

from minionerec.models.nn.history import own_counts, rows_of


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 99), max_size=8))
def test_rows_of_a_table(lengths, wanted):
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    rows = [row % len(lengths) for row in wanted]
    owner, position = rows_of(offsets, torch.tensor(rows, dtype=torch.long))
    expected = [(i, p) for i, row in enumerate(rows) for p in range(int(offsets[row]), int(offsets[row + 1]))]
    assert list(zip(owner.tolist(), position.tolist(), strict=True)) == expected


@settings(max_examples=80)
@given(some_windows(), st.integers(1, 6), st.sampled_from([1.0, 0.6]), st.sampled_from([0.0, 0.3]))
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
    for position, (item, first) in enumerate(rows):
        rest = counted(histories, np.where(np.arange(width) < first, targets, 0), reach, decay, reverse)
        added = np.zeros(SIZE + 1)
        np.add.at(added, targets[0], after[position].numpy())
        np.add.at(added, histories[0], before[position].numpy())
        row = [whole.get((item - 1, other), 0.0) - rest.get((item - 1, other), 0.0) for other in range(SIZE)]
        assert added == pytest.approx([0.0, *row], rel=1e-4, abs=1e-5)


def test_own_counts_are_exact_where_the_model_computes_in_bfloat16():
    """What is left over of a position's own answer would tell it."""
    window = (torch.tensor([[3, 1, 3, 2]]), torch.tensor([[1, 3, 2, 3]]), torch.tensor([3]), torch.tensor([0]))
    plain = own_counts(*window, 4, 0.6, 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, own_counts(*window, 4, 0.6, 0.3), plain))
