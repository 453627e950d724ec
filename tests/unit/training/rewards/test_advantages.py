"""Advantages in a group, against hand-worked tables and TRL's formula."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minionerec.training.rewards import (
    group_advantages,
    has_signal,
    ndcg_penalties,
)

NAN = float("nan")


def plain(group):
    """The formula in double precision."""
    group = np.asarray(group, dtype=np.float64)
    return (group - group.mean()) / (group.std(ddof=1) + 1e-4)


@given(st.lists(st.lists(st.integers(-20, 20), min_size=6, max_size=6), min_size=1, max_size=5))
def test_group_advantages_are_the_formula(groups):
    rewards = np.array(groups) / 7
    found = group_advantages(rewards)
    assert found.dtype == np.float32
    for group, advantages in zip(rewards, found, strict=True):
        wanted = plain(group) if np.ptp(group) else np.zeros(6)
        assert advantages == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_a_group_of_equal_rewards_has_no_advantage_at_all():
    rewards = np.full((1, 7), 0.1, dtype=np.float32)
    assert group_advantages(rewards).tolist() == [[0.0] * 7]
    assert has_signal(np.array([[0.1, 0.1], [0.1, 0.2], [NAN, 0.1], [NAN, NAN]])).tolist() == [False, True] + 2 * [
        False
    ]


def test_rewards_that_are_not_there_are_left_out():
    found = group_advantages(np.array([[1.0, NAN, 0.0, 0.5], [NAN, 0.5, NAN, NAN], [NAN] * 4]))
    assert found[0, [0, 2, 3]] == pytest.approx(plain([1, 0, 0.5]), rel=1e-4, abs=1e-5)
    assert found[0, 1] == 0 and not found[1:].any()


def test_advantages_are_those_of_trl_and_have_the_same_bits_however_the_array_lies():
    """All sixteen groups with a hit under the ranking reward, as TRL computes them in float32."""
    rewards = np.tile(np.array(ndcg_penalties(16), dtype=np.float32), (16, 1))
    np.fill_diagonal(rewards, 1.0)
    values = torch.from_numpy(rewards)
    centred = values - values.nanmean(1, keepdim=True)
    deviation = ((centred**2).nanmean(1, keepdim=True) * (16 / 15)).sqrt()
    assert group_advantages(rewards) == pytest.approx((centred / (deviation + 1e-4)).numpy(), abs=1e-6)
    assert np.array_equal(group_advantages(rewards), group_advantages(np.asfortranarray(rewards)))
    assert np.array_equal(group_advantages(rewards)[3:4], group_advantages(rewards[3:4]))


def test_advantages_that_are_not_scaled_keep_what_a_hit_is_worth():
    rewards = np.array([[1.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    found = group_advantages(rewards, scaled=False)
    assert found.tolist() == [[0.75, -0.25, -0.25, -0.25], [3.0, -1.0, -1.0, -1.0], [0.0] * 4]
    scaled = group_advantages(rewards)
    assert scaled[1] == pytest.approx(scaled[0], abs=1e-3)  # divided by its deviation, four times is once
