import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minionerec.sid.table import SortedRows, group_sizes, row_keys

SHAPES = st.tuples(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3, 2**20 - 1]))


@given(SHAPES)
def test_keys_are_in_the_order_of_the_rows(shape):
    seed, rows, levels, most = shape  # 40 levels of a million codes are more than 64 bits
    codes = np.random.default_rng(seed).integers(-1, most + 1, (rows, levels)).astype(np.int32)
    codes = codes[np.random.default_rng(seed).integers(0, rows, 2 * rows)]
    keys = row_keys(codes)
    assert keys.dtype == np.int64
    distinct, inverse, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    assert (np.unique(keys, return_inverse=True)[1] == inverse.reshape(-1)).all()
    assert (group_sizes(codes) == counts).all()
    lying = SortedRows(distinct)
    for row in distinct[:5].tolist():
        for length in range(levels + 1):
            first, last = lying.span(row[:length])
            assert (distinct[first:last, :length] == row[:length]).all()
            assert last - first == (distinct[:, :length] == row[:length]).all(axis=1).sum()
    assert len(set(lying.span([most + 5]))) == 1


def test_no_rows():
    assert row_keys(np.empty((0, 3), np.int32)).shape == (0,)
