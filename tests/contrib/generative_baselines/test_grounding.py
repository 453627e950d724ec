"""Grounding as arrays: distances, weights, ranks and the choice of an exponent, each against a slow version."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.contrib.generative_baselines.grounding import (
    best_titles,
    choose_gamma,
    clean_text,
    reweight,
    row_min_max,
    title_distances,
)
from minionerec.recommend.rankers.candidates import candidate_maxima


def slow_order(scores, tie_order):
    positions = {title: position for position, title in enumerate(tie_order.tolist())}
    return sorted(range(len(scores)), key=lambda title: (scores[title], positions[title]))


def test_quotes_and_white_space_fall_off_both_sides_alike():
    written = ['"Oak table"', "Oak table\n", " 'Oak   table' ", "Oak\ttable"]
    assert {clean_text(text) for text in written} == {"Oak table"}
    assert clean_text('3" pipe') == '3" pipe'
    assert clean_text(' "" ') == ""


def test_distances_are_those_of_a_loop_and_0_for_equal_vectors():
    rng = np.random.default_rng(0)
    titles = (rng.normal(size=(40, 7)) * 1e3).astype(np.float32)
    texts = np.concatenate([titles[[3, 11]], (rng.normal(size=(5, 7)) * 1e3).astype(np.float32)])
    texts[2] = np.nextafter(titles[5], np.float32(np.inf))
    found = title_distances(titles, texts)
    wanted = [
        [math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(text, title, strict=True))) for title in titles]
        for text in texts
    ]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert found[0, 3] == 0 and found[1, 11] == 0 and found[2, 5] > 0
    np.testing.assert_array_equal(found, [title_distances(titles, text[None])[0] for text in texts])


def test_what_says_nothing_is_near_nothing():
    titles = np.array([[1, 0], [0, 0], [0, 1]], dtype=np.float32)
    found = title_distances(titles, np.array([[1, 0], [0, 0]], dtype=np.float32))
    np.testing.assert_allclose(found, [[0, math.sqrt(2), math.sqrt(2)], [0, 0, 0]])


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9))
def test_ranking_is_a_sort_with_ties_by_the_given_order(seed, rows, titles):
    rng = np.random.default_rng(seed)
    scores, tie_order = rng.integers(0, 4, (rows, titles)) / 3, rng.permutation(titles)
    wanted = [slow_order(row, tie_order) for row in scores]
    k = int(rng.integers(1, titles + 1))
    found, values = best_titles(scores, tie_order, k)
    assert found.tolist() == [row[:k] for row in wanted]
    assert values.tolist() == [scores[row, order[:k]].tolist() for row, order in enumerate(wanted)]


def test_gamma_0_keeps_the_order_and_no_gamma_moves_the_first():
    rng = np.random.default_rng(1)
    distances, weights = rng.random((20, 30)) + 2, row_min_max(rng.random((20, 30)))
    tie_order = np.arange(30)
    plain = best_titles(distances, tie_order, 30)[0]
    np.testing.assert_array_equal(best_titles(reweight(distances, weights, 0.0), tie_order, 30)[0], plain)
    for gamma in (0.01, 1.0, 99.0):
        found = best_titles(reweight(distances, weights, gamma), tie_order, 30)[0]
        np.testing.assert_array_equal(found[:, 0], plain[:, 0])
        assert not np.array_equal(found, plain)
        wanted = (distances[3, 4] - distances[3].min()) / np.ptp(distances[3]) / (1 + weights[3, 4]) ** gamma
        np.testing.assert_allclose(reweight(distances, weights, gamma)[3, 4], wanted, rtol=1e-12)


def test_more_weight_never_ranks_worse():
    rng = np.random.default_rng(2)
    distances, weights = rng.random((1, 25)), rng.random(25) / 2
    tie_order = rng.permutation(25)
    for title in range(25):
        heavier = weights.copy()
        heavier[title] += 0.4
        for gamma in (0.0, 0.5, 7.0):
            scores = [reweight(distances, each, gamma) for each in (weights, heavier)]
            before, after = (best_titles(each, tie_order, 25)[0][0].tolist().index(title) for each in scores)
            assert after <= before


def test_a_row_of_equal_distances_is_in_the_order_of_ties():
    tie_order = np.array([2, 0, 1])
    found = reweight(np.full((1, 3), 0.7), np.array([0.1, 1.0, 0.0]), 5.0)
    assert found.tolist() == [[0, 0, 0]]
    assert best_titles(found, tie_order, 3)[0].tolist() == [[2, 0, 1]]
    assert row_min_max(np.zeros((2, 3))).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_title_weighs_as_its_heaviest_item():
    items = np.array([[1.0, 5.0, 2.0, 3.0], [4.0, 0.0, 2.0, 3.0]])
    assert candidate_maxima(np.array([1, 0, 1, 0]))(items).tolist() == [[5, 2], [3, 4]]
    assert candidate_maxima(np.array([1, 0, 1, 0]))(items[0]).tolist() == [5, 2]


def test_the_exponent_is_the_best_on_the_rows_given_and_the_smallest_of_equals():
    rng = np.random.default_rng(3)
    tie_order = np.arange(12)
    distances, weights = rng.random((9, 12)), row_min_max(rng.random((9, 12)))
    targets = weights.argmax(axis=1)  # so that much weight is right
    parts = [(distances[:4], weights[:4], targets[:4]), (distances[4:], weights[4:], targets[4:])]
    gamma, reached = choose_gamma(parts, tie_order, [50.0, 0.0, 3.0, 90.0])
    wanted = {}
    for each in (0.0, 3.0, 50.0, 90.0):
        orders = [slow_order(row, tie_order) for row in reweight(distances, weights, each)]
        ranks = [order.index(target) + 1 for order, target in zip(orders, targets, strict=True)]
        wanted[each] = sum(1 / math.log2(rank + 1) for rank in ranks if rank <= 10) / 9
    assert reached == pytest.approx(wanted)
    best = max(wanted.values())
    assert gamma == min(each for each, value in wanted.items() if value == pytest.approx(best)) > 0
