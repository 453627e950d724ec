"""Counts of what followed what, against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pairs import SIZE, counted, some_windows

from minionerec.data.transitions import count_transitions


def as_dict(table):
    pairs = zip(*(numbers.tolist() for numbers in table.tocoo().coords), strict=True)
    return dict(zip(pairs, table.data.tolist(), strict=True))


@settings(max_examples=60)
@given(some_windows(), st.integers(1, 9), st.sampled_from([1.0, 0.6, 0.25]), st.sampled_from([0.0, 0.3, 1.0]))
def test_counts_are_those_of_a_double_loop(given_data, reach, decay, reverse):
    table = count_transitions([given_data], SIZE, reach, decay, reverse)
    assert as_dict(table) == pytest.approx(counted(*given_data, reach, decay, reverse))
    assert table.shape == (SIZE, SIZE) and table.indptr[-1] == len(table.data) == len(table.indices)
    for first, last in zip(table.indptr, table.indptr[1:], strict=False):
        assert (np.diff(table.indices[first:last]) > 0).all()
    assert (table.indices.dtype, table.data.dtype) == (np.int32, np.float32)
