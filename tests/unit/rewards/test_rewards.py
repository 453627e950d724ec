"""Rewards and sibling advantages against hand-worked tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minionerec.core.errors import ConfigError, DataError
from minionerec.rewards.advantages import sibling_advantages
from minionerec.rewards.ranking import ndcg_penalties, position
from minionerec.rewards.registry import (
    PRESETS,
    REWARDS,
    RewardSources,
    check_columns,
    make_reward,
    parse_rewards,
)
from minionerec.sid.table import SidTable

# Weights of sixteen ranks, from the formula by hand to four places.
SIXTEEN = (
    "-.1638 -.1033 -.0819 -.0705 -.0634 -.0583 -.0546 -.0517 -.0493 -.0473 -.0457 -.0443 -.0430 -.0419 -.0409 -.0401"
)
# Items 2 and 3 share an SID.
TABLE = SidTable(np.array([[1, 1], [1, 2], [2, 1], [2, 1]]), ["w", "x", "y", "z"])


def total(words, completions, target, table=TABLE, **sources):
    weights = parse_rewards(words)
    made = {name: make_reward(name, RewardSources(table, 4, **sources)) for name in weights}
    parts = [
        [weights[name] * value for value in reward(completions=completions, target_sid=[target] * len(completions))]
        for name, reward in made.items()
    ]
    return [sum(values) for values in zip(*parts, strict=True)]


def test_penalties_of_sixteen_ranks():
    assert ndcg_penalties(16) == pytest.approx([float(word) for word in SIXTEEN.split()], abs=5e-5)
    assert sum(ndcg_penalties(7)) == pytest.approx(-1)


def test_ranking_rewards_of_two_groups():
    # Discounts of four ranks: 1, 0.6309, 0.5, 0.4307, in all 2.5616.
    group = ["<a_1><b_1>", "<a_1><b_2>\n", " <a_2><b_1>", "<a_2><b_2>"]
    assert total(["rule"], group, "<a_1><b_2>") == [0, 1, 0, 0]
    assert total(["ranking"], group, "<a_1><b_2>") == pytest.approx([-0.3904, 1, -0.1952, -0.1681], abs=1e-4)
    assert total(["ranking_only"], group, "<a_1><b_2>") == pytest.approx([-0.3904, 0, -0.1952, -0.1681], abs=1e-4)
    assert total(["rule=2", "ndcg=0.5"], group, "<a_1><b_2>") == pytest.approx([-0.1952, 2, -0.0976, -0.084], abs=1e-4)
    assert total(["ranking"], group, "<a_9><b_9>") == [0, 0, 0, 0]


def test_groups_do_not_mix():
    completions = ["<a_1>", "<a_2>", "<a_3>", "<a_4>", "<a_1>", "<a_2>", "<a_3>", "<a_4>"]
    targets = ["<a_1>"] * 4 + ["<a_9>"] * 4
    penalty = make_reward("ndcg", RewardSources(TABLE, 4))
    assert penalty(completions=completions, target_sid=targets)[4:] == [0, 0, 0, 0]
    assert penalty(completions=completions, target_sid=targets)[0] == 0
    with pytest.raises(DataError, match="6 completions are not whole groups of 4"):
        penalty(completions=completions[:6], target_sid=targets[:6])


def test_position_counts_codes_from_the_left():
    target = "<a_1><b_2><c_3>"
    texts = [target, "<a_1><b_2><c_4>\n", " <a_1><b_9><c_3>", "<a_9><b_2><c_3>", "no SID", "<a_1><b_2>"]
    assert position(texts, [target] * 6) == [3, 2, 1, 0, 0, 2]


def test_semantic_is_the_cosine_of_vectors():
    vectors = np.array([[3.0, 0.0], [1.0, 1.0], [0.0, 5.0], [2.0, 0.0]])
    group = ["<a_1><b_1>", "<a_1><b_2>", "<a_2><b_1>"]
    # The shared SID stands between its two items, whatever their lengths: along (1, 1).
    half = 0.5**0.5
    assert total(["semantic"], group, "<a_1><b_1>", vectors=vectors) == pytest.approx([1, half, half])
    assert total(["semantic=2"], group, "<a_1><b_2>", vectors=vectors) == pytest.approx([2 * half, 2, 2])
    vectors[0] = 0
    assert total(["semantic"], group, "<a_1><b_1>", vectors=vectors) == [0, 0, 0]
    with pytest.raises(DataError, match="'<a_9><b_9>' is no SID of the catalogue"):
        total(["semantic"], ["<a_9><b_9>"], "<a_1><b_1>", vectors=vectors)


def test_collaborative_is_the_models_score():
    asked = []

    def scorer(histories):
        asked.extend(histories)
        return np.array([[10 * len(history) + item for item in range(4)] for history in histories])

    reward = make_reward("collaborative", RewardSources(TABLE, 2, scorer=scorer))
    completions = ["<a_1><b_2>\n", "<a_2><b_1>", "<a_1><b_1>", "<a_2><b_1>", "<a_1><b_1>", "<a_1><b_2>"]
    history = [[7, 8], [7, 8], [7], [7], None, None]
    # The shared SID has the better score of items 2 and 3.
    assert reward(completions=completions, history=history) == [21, 23, 10, 13, None, None]
    assert asked == [(7, 8), (7,)]
    wrong = make_reward("collaborative", RewardSources(TABLE, 2, scorer=lambda rows: np.zeros((len(rows), 3))))
    with pytest.raises(DataError, match=r"scores \(2, 3\); expected 2 histories x 4 items"):
        wrong(completions=completions, history=history)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fame"], f"unknown reward 'fame'; known: {', '.join([*REWARDS, *PRESETS])}"),
        (["rule=often"], "rewards: 'rule=often'; expected each reward once"),
        (["rule=0"], "rewards: 'rule=0'"),
        (["rule", "ranking"], r"rewards: 'ranking'; .*ranking is rule \+ ndcg"),
        ([], "rewards is empty"),
    ],
)
def test_bad_reward_words(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_rewards(words)


@pytest.mark.parametrize(("name", "setting"), [("semantic", "reward_vectors"), ("collaborative", "reward_model")])
def test_a_reward_whose_source_is_missing(name, setting):
    with pytest.raises(ConfigError, match=f"reward '{name}' needs .* give --{setting}"):
        make_reward(name, RewardSources(TABLE, 4))


def test_a_reward_whose_column_is_missing():
    columns = {"target_sid": ["<a_1><b_1>"], "history": [None]}
    check_columns(parse_rewards(["ranking", "position"]), columns, ["title_to_sid"])
    with pytest.raises(
        ConfigError, match=r"'collaborative' reads the column 'history', which none of .*'title_to_sid'"
    ):
        check_columns(parse_rewards(["rule", "collaborative"]), columns, ["title_to_sid"])


def test_sibling_advantages_by_hand():
    """Three depths, worked out on paper.

    Depth 0: branches 1 (mean of 1, 0, 0.5 = 0.5) and 2 (0): mean 0.25, deviation 0.353553, scores +-0.706907.
    Depth 1 below 1: branches 5 (mean of 1, 0 = 0.5) and 6 (0.5): no deviation, 0. Below 2: one branch, 0.
    Depth 2 below 1 5: branches 7 (1) and 8 (0): mean 0.5, deviation 0.707107, scores +-0.707007. Others: one branch.
    """
    group = [[1, 5, 7], [1, 5, 8], [1, 6, 7], [2, 5, 7]]
    found = sibling_advantages([group], np.array([[1.0, 0.0, 0.5, 0.0]]))
    assert found == pytest.approx(np.array([[0.471305, -0.000033, 0.235636, -0.235636]]), abs=1e-6)


def test_siblings_at_the_depths_that_all_have():
    short = sibling_advantages([[[1], [2]]], np.array([[1.0, 0.0]]))
    assert np.array_equal(sibling_advantages([[[1, 5], [2]]], np.array([[1.0, 0.0]])), short)


@given(
    st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=2, max_size=8, unique=True),
    st.randoms(use_true_random=False),
)
def test_sibling_advantages_are_fair(group, random):
    rewards = np.array([[random.random() for _ in group]])
    found = sibling_advantages([group], rewards)
    assert np.abs(found).max() < len(group)
    assert sibling_advantages([group], np.full_like(rewards, 0.3)) == pytest.approx(0, abs=1e-9)
    assert sibling_advantages([group], -rewards) == pytest.approx(-found)
    # With one code they are the ordinary advantages of a group.
    flat = sibling_advantages([[[place] for place in range(len(group))]], rewards)
    assert flat == pytest.approx((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4))
