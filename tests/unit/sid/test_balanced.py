import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from minionerec.core.errors import DataError
from minionerec.sid.kmeans import balanced_assign, reconstruct, residual_kmeans


@settings(max_examples=100)
@given(
    st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 150), st.sampled_from(["normal", "few", "equal", "far"])
)
def test_sizes_differ_by_at_most_one(seed, size, more, kind):
    rng = np.random.default_rng(seed)
    n = size + more
    costs = {
        "normal": lambda: rng.normal(size=(n, size)),
        "few": lambda: rng.integers(0, 3, (n, size)),
        "equal": lambda: np.ones((n, size)),
        "far": lambda: 1e6 + rng.random((n, size)),
    }[kind]().astype(np.float32)
    codes, prices = balanced_assign(costs)
    assert codes.dtype == np.int32 and prices.shape == (size,)
    counts = np.bincount(codes, minlength=size)
    assert set(counts) <= {n // size, -(-n // size)}
    again, _ = balanced_assign(costs)
    assert codes.tobytes() == again.tobytes()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_cost_is_within_epsilon_of_the_least(seed, start):
    rng = np.random.default_rng(seed)
    points, centroids = rng.normal(size=(600, 4)) * [4, 2, 1, 1], rng.normal(size=(12, 4))
    costs = ((points[:, None] - centroids) ** 2).sum(axis=2).astype(np.float32)
    tolerance = 0.01
    prices = None if start == "cold" else balanced_assign(costs[:120])[1]
    codes, _ = balanced_assign(costs, prices, tolerance)
    ours = costs[np.arange(600), codes].sum(dtype=np.float64)
    rows, positions = linear_sum_assignment(np.repeat(costs, 50, axis=1))
    least = np.repeat(costs, 50, axis=1)[rows, positions].sum(dtype=np.float64)
    spread = (costs.mean(axis=1) - costs.min(axis=1)).sum(dtype=np.float64)
    assert least - 1e-3 <= ours <= least + tolerance * spread
    assert ours < 1.002 * least  # in practice far nearer than the bound
    assert costs.min(axis=1).sum() < 0.97 * least  # balance does cost something here


def test_a_row_constant_changes_nothing():
    costs = np.random.default_rng(0).integers(0, 64, (60, 5)).astype(np.float32)
    shifted = costs + np.arange(60, dtype=np.float32)[:, None]
    assert balanced_assign(costs)[0].tolist() == balanced_assign(shifted)[0].tolist()


def test_fewer_items_than_codes():
    with pytest.raises(DataError, match="3 items cannot fill 4 codes"):
        balanced_assign(np.zeros((3, 4), np.float32))


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(20, 200), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_every_level_is_balanced(seed, n, sizes):
    vectors = np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32) ** 3
    codes, codebooks = residual_kmeans(vectors, sizes, seed, 5, balanced=True)
    assert codes.shape == (n, len(sizes)) and [len(book) for book in codebooks] == sizes
    for column, size in zip(codes.T, sizes, strict=True):
        counts = np.bincount(column, minlength=size)
        assert counts.min() >= n // size and counts.max() <= -(-n // size)


def test_balanced_levels_with_a_sample_beside_plain_ones():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 12))[rng.geometric(0.1, 4000) % 30] + rng.normal(size=(4000, 12))
    vectors = vectors.astype(np.float32)
    left, biggest = {}, {}
    for balanced in (False, True):
        codes, codebooks = residual_kmeans(vectors, (16, 16), 0, 10, balanced=balanced, train_rows=16 * 100)
        left[balanced] = ((vectors - reconstruct(codes, codebooks)) ** 2).sum()
        biggest[balanced] = np.bincount(codes[:, 0]).max()
    assert biggest[True] == 250 < biggest[False]
    assert left[True] < 1.15 * left[False]


def test_equal_clusters_are_recovered():
    rng = np.random.default_rng(1)
    truth = rng.permutation(np.repeat(np.arange(6), 20))
    vectors = (10 * np.eye(6)[truth] + 0.1 * rng.normal(size=(120, 6))).astype(np.float32)
    codes, codebooks = residual_kmeans(vectors, (6,), 0, 10, balanced=True)
    assert len(set(zip(codes[:, 0].tolist(), truth.tolist(), strict=True))) == 6
    means = np.stack([vectors[codes[:, 0] == code].mean(axis=0) for code in range(6)])
    np.testing.assert_allclose(codebooks[0], means, atol=1e-5)
