"""Rewards by rank and by codes, against hand-worked tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts import rollouts_of

from minionerec.sid.table import SidTable
from minionerec.training.rewards import (
    WeightedRewards,
    make_reward,
    ndcg,
    ndcg_penalties,
    position,
    ranking,
    reward_weights,
    rule,
)

# Weights of sixteen ranks, from the formula by hand to four places.
SIXTEEN = (
    "-.1638 -.1033 -.0819 -.0705 -.0634 -.0583 -.0546 -.0517 -.0493 -.0473 -.0457 -.0443 -.0430 -.0419 -.0409 -.0401"
)
TABLE = SidTable(np.array([[1, 1], [1, 2], [2, 1], [2, 2], [9, 9]]), ["v", "w", "x", "y", "z"])
GROUP = ["<a_1><b_1>", "<a_1><b_2>", "<a_2><b_1>", "<a_2><b_2>"]


def total(words, sids, target, table=TABLE):
    weights = reward_weights(words)
    rewards = WeightedRewards({name: make_reward(name, table) for name in weights}, weights)
    return rewards.total(rewards.values(rollouts_of(table, [sids], [target])))[0].tolist()


def test_penalties_of_sixteen_ranks():
    assert ndcg_penalties(16) == pytest.approx([float(word) for word in SIXTEEN.split()], abs=5e-5)
    assert sum(ndcg_penalties(7)) == pytest.approx(-1)


def test_ranking_rewards_of_a_group():
    # Discounts of four ranks: 1, 0.6309, 0.5, 0.4307, in all 2.5616.
    assert total({"rule": 1}, GROUP, GROUP[1]) == [0, 1, 0, 0]
    assert total({"ranking": 1}, GROUP, GROUP[1]) == pytest.approx([-0.3904, 1, -0.1952, -0.1681], abs=1e-4)
    assert total({"ranking_only": 1}, GROUP, GROUP[1]) == pytest.approx([-0.3904, 0, -0.1952, -0.1681], abs=1e-4)
    wanted = pytest.approx([-0.1952, 2, -0.0976, -0.084], abs=1e-4)
    assert total({"rule": 2, "ndcg": 0.5}, GROUP, GROUP[1]) == wanted
    assert total({"ranking": 1}, GROUP, "<a_9><b_9>") == [0, 0, 0, 0]


def test_groups_do_not_mix():
    found = ndcg(rollouts_of(TABLE, [GROUP, GROUP], [GROUP[0], "<a_9><b_9>"]))
    assert found[0, 0] == 0 and (found[0, 1:] < 0).all()
    assert found[1].tolist() == [0, 0, 0, 0]


def test_the_ranking_preset_is_the_function_of_its_name():
    rollouts = rollouts_of(TABLE, [GROUP, GROUP], [GROUP[2], "<a_9><b_9>"])
    assert np.array_equal(ranking(rollouts), rule(rollouts) + ndcg(rollouts))
    assert ranking(rollouts)[0].astype(np.float32).tolist() == total({"ranking": 1}, GROUP, GROUP[2])


@given(
    st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=2, max_size=12, unique=True),
    st.randoms(use_true_random=False),
)
def test_position_against_plain_code(codes, random):
    lengths = [random.randint(1, 3) for _ in codes]
    cut = [row[:length] + (-1,) * (3 - length) for row, length in zip(codes, lengths, strict=True)]
    cut = sorted(set(cut))
    table = SidTable(np.array(cut), [str(index) for index in range(len(cut))])
    target = random.randrange(len(cut))
    found = position(rollouts_of(table, [table.sids], [table.sids[target]]))[0]
    for row, value in zip(cut, found, strict=True):
        pairs = [mine == theirs for mine, theirs in zip(row, cut[target], strict=True) if mine >= 0 and theirs >= 0]
        assert value == (pairs.index(False) if False in pairs else len(pairs))
