"""Names of rewards, their weights and sources, and a user's own."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from support.rollouts import rollouts_of

from minionerec.core.errors import ConfigError, DataError
from minionerec.sid.table import SidTable
from minionerec.training.rewards import (
    OF_MODEL,
    PRESETS,
    REWARDS,
    WeightedRewards,
    check_histories,
    make_reward,
    reward_files,
    reward_values,
    reward_weights,
)

TABLE = SidTable(np.array([[1, 1], [1, 2], [2, 1]]), ["w", "x", "y"])
ROLLOUTS = rollouts_of(TABLE, [["<a_1><b_1>", "<a_1><b_2>"], ["<a_2><b_1>", "<a_1><b_2>"]], ["<a_1><b_1>"] * 2)
OWN = """
import numpy as np

answer = None


def long_shots(rollouts):
    return -rollouts.scores


def given(rollouts):
    return answer


number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module in the folder where they stand."""
    (tmp_path / "own_rewards.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "own_rewards.py"
    sys.modules.pop("own_rewards", None)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"fame": 1.0}, f"unknown reward 'fame'; known: {', '.join([*REWARDS, *PRESETS])}, and functions of your own"),
        ({"rule": 0.0}, "rewards: 'rule' with weight 0; expected each reward once, with a weight other than 0"),
        ({"rule": float("nan")}, "rewards: 'rule' with weight nan"),
        ({"rule": 1.0, "ranking": 1.0}, r"rewards: 'ranking' .*ranking is rule \+ ndcg"),
        ({}, "rewards is empty"),
    ],
)
def test_bad_rewards(rewards, message):
    with pytest.raises(ConfigError, match=message):
        reward_weights(rewards)


def test_weights_of_presets_and_own():
    assert reward_weights({"ranking": 2.0, "my.novelty": -0.5}) == {"rule": 2.0, "ndcg": 2.0, "my.novelty": -0.5}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("semantic", "reward_vectors"),
        ("collaborative", "reward_model"),
        ("expected_hits", "reward_model"),
        ("expected_value", "reward_model"),
        ("value", "reward_columns"),
    ],
)
def test_a_reward_whose_source_is_missing(name, setting):
    with pytest.raises(ConfigError, match=f"reward '{name}' needs .* give --{setting}"):
        make_reward(name, TABLE)


def test_a_reward_that_finds_no_history():
    check_histories({"rule": 1.0, "position": 1.0}, [None], ["title_to_sid"])
    check_histories({"collaborative": 1.0}, [None, [3]], ["title_to_sid", "next_sid"])
    for name in OF_MODEL:
        with pytest.raises(ConfigError, match=rf"'{name}' reads the history, which none of the tasks title_to"):
            check_histories({"rule": 1.0, name: 1.0}, [None], ["title_to_sid"])


def test_a_users_own_reward(own):
    reward = make_reward("own_rewards.long_shots", TABLE)
    assert reward_values("own_rewards.long_shots", reward, ROLLOUTS).tolist() == [[0, 1], [0, 1]]
    assert reward_files(["ranking", "own_rewards.long_shots"]) == {"reward own_rewards.long_shots": own}
    for name, message in (
        ("own_rewards.fame", "rewards is 'own_rewards.fame', but the module 'own_rewards' has no 'fame'"),
        ("own_rewards.number", "rewards is 'own_rewards.number', which cannot be called"),
        ("nowhere.fame", "there is no module 'nowhere'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_reward(name, TABLE)
        with pytest.raises(ConfigError, match=message):
            reward_files([name])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0.0, 1.0], r"reward 'mine' gave an array of shape \(2,\); expected \(2, 2\): 2 prompts x 2 completions"),
        (1.0, r"reward 'mine' gave an array of shape \(\)"),
        ([[0, float("inf")], [0, 1]], "reward 'mine' gave inf for completion 1 of prompt 0; give a finite number, or"),
        ([["a", "b"], ["c", "d"]], "reward 'mine' gave a list that holds more than numbers"),
        ([[0.0, 1.0], [2.0]], "reward 'mine' gave a list that holds more than numbers"),
    ],
)
def test_bad_answers_name_the_reward(answer, message):
    with pytest.raises(DataError, match=message):
        reward_values("mine", lambda rollouts: answer, ROLLOUTS)


def test_a_reward_that_does_not_apply_is_left_out_of_the_sum():
    nan = float("nan")
    rewards = WeightedRewards(
        {"one": lambda _: [[1, nan], [nan, nan]], "two": lambda _: [[1, 2], [3, nan]]}, {"two": 0.5, "one": 2.0}
    )
    found = rewards.values(ROLLOUTS)
    assert found.shape == (2, 2, 2) and found.dtype == np.float64
    total = rewards.total(found)
    assert total.dtype == np.float32
    assert np.array_equal(total, [[2.5, 1.0], [1.5, nan]], equal_nan=True)


def test_no_reward_is_read_where_a_list_has_no_item():
    rollouts = replace(ROLLOUTS, sids=ROLLOUTS.sids.copy(), scores=ROLLOUTS.scores.copy())
    rollouts.sids[0, -1], rollouts.scores[0, -1] = -1, -np.inf
    found = reward_values("own", lambda given: given.scores, rollouts)
    assert np.isnan(found[0, -1]) and np.isnan(found).sum() == 1
