"""Codes shared out by optimal transport: the plan, and the regrouping of items that collide."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.sid import collisions
from minionerec.sid.collisions import count_collisions, encode_together, resolve_collisions, transport_plan
from minionerec.sid.kmeans import assign, reconstruct


@pytest.mark.parametrize("shape", [(6, 6), (40, 8), (5, 16)])
def test_the_plan_has_equal_rows_and_columns(shape):
    costs = np.random.default_rng(0).random(shape)
    plan = transport_plan(costs, epsilon=0.3, iterations=200)
    np.testing.assert_allclose(plan.sum(axis=0), 1 / shape[1], rtol=1e-12)  # the last half step is theirs
    assert np.abs(plan.sum(axis=1) - 1 / shape[0]).max() < 1e-6


def test_of_a_few_codes_it_is_the_plan_of_least_cost_and_entropy():
    """The optimum of a 2 x 2 plan has one free number; it is found here by trying all of them."""
    costs, epsilon = np.array([[0.0, 1.0], [0.9, 0.8]]), 0.2
    share = np.linspace(1e-6, 0.5 - 1e-6, 400_001)
    plans = np.stack([share, 0.5 - share, 0.5 - share, share], axis=1)
    scaled = (costs.ravel() - 0.5) / 0.50001
    values = plans @ scaled + epsilon * (plans * np.log(plans)).sum(axis=1)
    assert transport_plan(costs, epsilon, 500).ravel() == pytest.approx(plans[values.argmin()], abs=2e-6)


@pytest.mark.parametrize("items", [1, 2, 64, 300])
def test_a_small_entropy_leaves_no_nan(items):
    costs = np.random.default_rng(items).random((items, 64))
    costs[0] *= 1e6  # one item far from everything takes the whole range of the others
    plan = transport_plan(costs)
    assert np.isfinite(plan).all()
    np.testing.assert_allclose(plan.sum(axis=0), 1 / 64, rtol=1e-12)
    assert encode_together(costs).shape == (items,)


def test_a_small_entropy_gives_the_nearest_codes_where_their_counts_permit():
    rng = np.random.default_rng(1)
    codebook = rng.normal(size=(8, 4))
    nearest = np.tile(np.arange(8), 3)
    points = codebook[nearest] + 0.05 * rng.normal(size=(24, 4))
    costs = ((points[:, None] - codebook) ** 2).sum(axis=2)
    assert costs.argmin(axis=1).tolist() == encode_together(costs).tolist() == nearest.tolist()
    assert (transport_plan(costs, 1.0) > 0.001).all()  # as it does not where entropy weighs much


def colliding(seed, sizes, n):
    rng = np.random.default_rng(seed)
    codebooks = [rng.normal(size=(size, 3)).astype(np.float32) for size in sizes]
    vectors = rng.normal(size=(n, 3)).astype(np.float32)
    vectors[: n // 4] = vectors[0]  # some items are equal, and no plan can tell them apart
    return vectors, codebooks, assign(vectors, codebooks)[0]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(1, 40))
def test_regrouping_changes_the_last_level_alone_and_adds_no_collision(seed, sizes, n):
    vectors, codebooks, codes = colliding(seed, sizes, n)
    given_codes = codes.copy()
    unique = [count_collisions(codes).unique]
    most = collisions.ROUNDS
    try:
        for collisions.ROUNDS in (1, 2, 3, most):
            found_codes, found = resolve_collisions(codes, "sinkhorn", vectors=vectors, codebooks=codebooks)
            unique.append(found.after.unique)
    finally:
        collisions.ROUNDS = most
    assert (codes == given_codes).all()
    assert (found_codes[:, :-1] == codes[:, :-1]).all()
    assert unique == sorted(unique)
    shared = Counter(map(tuple, codes.tolist()))
    alone = np.array([shared[tuple(row)] == 1 for row in codes.tolist()])
    assert (found_codes[alone] == codes[alone]).all()
    assert found_codes.min() >= 0 and (found_codes < sizes).all()


def test_distinct_items_with_room_get_distinct_codes():
    rng = np.random.default_rng(0)
    codebooks = [np.zeros((1, 8), np.float32), rng.normal(size=(64, 8)).astype(np.float32)]
    vectors = (codebooks[1][np.arange(60) % 6] + 0.3 * rng.normal(size=(60, 8))).astype(np.float32)
    codes = assign(vectors, codebooks)[0]
    found_codes, found = resolve_collisions(codes, "sinkhorn", vectors=vectors, codebooks=codebooks)
    assert found.before.unique < 20 and found.after.unique > 45
    moved, _ = resolve_collisions(codes, "relocate", vectors=vectors, codebooks=codebooks)
    assert found.distance_paid is not None and found.distance_paid > 0
    errors = [((vectors - reconstruct(c, codebooks)) ** 2).sum() for c in (codes, found_codes, moved)]
    assert found.distance_paid == pytest.approx(errors[1] - errors[0], rel=1e-4)


def test_sids_of_other_items_stay_taken():
    line = [np.array([[0.0]], np.float32), np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)]
    vectors = np.array([[1.1], [1.4]], np.float32)
    codes, about = np.array([[0, 1], [0, 1]]), {"vectors": vectors, "codebooks": line}
    found, _ = resolve_collisions(codes, "sinkhorn", **about, taken=np.array([[0, 1, -1], [0, 2, 0]]))
    assert found.tolist() == [[0, 0], [0, 3]]
    full = np.array([[0, code] for code in range(4)])
    stuck_codes, stuck = resolve_collisions(codes, "sinkhorn", **about, taken=full)
    assert stuck_codes.tolist() == [[0, 1], [0, 1]] and stuck.after.sharing_items == 3
