"""Rewards against hand-worked tables."""

import pytest

from minionerec.core.errors import ConfigError, DataError
from minionerec.rewards.ranking import REWARDS, make_rewards, ndcg_penalties

# Weights of sixteen ranks, from the formula by hand to four places.
SIXTEEN = (
    "-.1638 -.1033 -.0819 -.0705 -.0634 -.0583 -.0546 -.0517 -.0493 -.0473 -.0457 -.0443 -.0430 -.0419 -.0409 -.0401"
)


def total(name, completions, target):
    parts = [
        reward(completions=completions, target_sid=[target] * len(completions)) for reward in make_rewards(name, 4)
    ]
    return [sum(values) for values in zip(*parts, strict=True)]


def test_penalties_of_sixteen_ranks():
    assert ndcg_penalties(16) == pytest.approx([float(word) for word in SIXTEEN.split()], abs=5e-5)
    assert sum(ndcg_penalties(7)) == pytest.approx(-1)


def test_ranking_rewards_of_two_groups():
    # Discounts of four ranks: 1, 0.6309, 0.5, 0.4307, in all 2.5616.
    group = ["<a_1><b_1>", "<a_1><b_2>\n", " <a_2><b_1>", "<a_2><b_2>"]
    assert total("rule", group, "<a_1><b_2>") == [0, 1, 0, 0]
    assert total("ranking", group, "<a_1><b_2>") == pytest.approx([-0.3904, 1, -0.1952, -0.1681], abs=1e-4)
    assert total("ranking_only", group, "<a_1><b_2>") == pytest.approx([-0.3904, 0, -0.1952, -0.1681], abs=1e-4)
    assert total("ranking", group, "<a_9><b_9>") == [0, 0, 0, 0]


def test_groups_do_not_mix():
    completions = ["<a_1>", "<a_2>", "<a_3>", "<a_4>", "<a_1>", "<a_2>", "<a_3>", "<a_4>"]
    targets = ["<a_1>"] * 4 + ["<a_9>"] * 4
    (penalty,) = make_rewards("ranking_only", 4)
    assert penalty(completions=completions, target_sid=targets)[4:] == [0, 0, 0, 0]
    assert penalty(completions=completions, target_sid=targets)[0] == 0
    with pytest.raises(DataError, match="6 completions are not whole groups of 4"):
        penalty(completions=completions[:6], target_sid=targets[:6])


def test_unknown_reward():
    with pytest.raises(ConfigError, match=f"unknown reward 'fame'; known: {', '.join(REWARDS)}"):
        make_rewards("fame", 16)
