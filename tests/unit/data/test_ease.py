"""EASE: counts of pairs, and the weights of a row that are kept."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from minionerec.data.ease import count_together, ease_weights, largest_weights


def test_sets_are_counted_by_pairs():
    sets = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 0], [1, 1, 0]], dtype=np.float32)
    parts = [csr_array(sets[:2]), csr_array(sets[2:])]
    assert count_together(parts, 3).tolist() == [[2, 2, 0], [2, 4, 1], [0, 1, 1]]
    assert count_together([], 2).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("most", [2, 5, 9])
def test_the_largest_positive_weights_of_each_row_are_kept(most):
    weights = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    weights[3] = -1
    columns, values = largest_weights(weights, most)
    assert columns.shape == values.shape == (5, min(most, 5))
    for row, kept, own in zip(weights, columns, values, strict=True):
        assert len(set(kept)) == len(kept) and own.tolist() == row[kept].clip(min=0).tolist()
        assert sorted(own) == sorted(np.sort(row)[-len(kept) :].clip(min=0))


def test_weights_predict_a_set_from_the_rest_of_it():
    """They solve the least squares of the sets on themselves with a ridge, a zero diagonal as constraint."""
    sets = (np.random.default_rng(1).random((40, 6)) < 0.4).astype(np.float64)
    weights = ease_weights(sets.T @ sets, 3.0)
    for entry in range(6):
        others = np.delete(np.arange(6), entry)
        gram = sets[:, others].T @ sets[:, others] + 3.0 * np.eye(5)
        solved = np.linalg.solve(gram, sets[:, others].T @ sets[:, entry])
        assert np.allclose(weights[others, entry], solved, rtol=1e-4, atol=1e-6) and weights[entry, entry] == 0
