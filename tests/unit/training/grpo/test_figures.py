"""What a step tells the log."""

import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from support.rollouts import rollouts_of

from minionerec.sid.table import SidTable
from minionerec.training.grpo.figures import Figures, completion_figures, reward_figures, rollout_figures, token_figures
from minionerec.training.grpo.loss import RolloutGroups
from minionerec.training.rewards import WeightedRewards

NAN = float("nan")
TABLE = SidTable(np.array([[1, 1], [1, 2], [2, 1]]), ["w", "x", "y"])
FIRST, SECOND, THIRD = TABLE.sids


@pytest.fixture(scope="module")
def accelerator():
    return Accelerator(cpu=True)


def test_means_since_the_last_line_of_the_log(accelerator):
    figures = Figures(accelerator)
    figures.add({"a": 1.0, "b": NAN, "c": NAN})
    figures.add({"a": 3.0, "b": 2.0, "c": NAN})
    assert figures.take() == {"a": 2.0, "b": 2.0, "c": None}
    assert figures.take() == {}


def test_tokens_of_all_slices_make_one_number_a_step(accelerator):
    figures = Figures(accelerator)
    for values in ([1.0, 2.0], [6.0]):  # the mean over tokens, not over slices
        figures.add_tokens({"kl": torch.tensor(values), "clip_ratio/high_max": torch.tensor(values)})
        figures.add_tokens({"clip_ratio/low_min": torch.tensor(values) / 10, "entropy": torch.zeros(0)})
    figures.end_step()
    found = figures.take()
    assert found["kl"] == 3 and found["kl_p99"] == pytest.approx(np.quantile([1, 2, 6], 0.99))
    assert found["clip_ratio/high_max"] == 6 and found["clip_ratio/low_min"] == pytest.approx(0.1)
    assert found["entropy"] is None


def test_figures_of_rollouts(accelerator):
    rollouts = rollouts_of(TABLE, [[FIRST, SECOND], [SECOND, FIRST]], [FIRST, THIRD])
    found = rollout_figures(rollouts, accelerator)
    assert found["hit@g"] == 0.5 and found["distinct_items"] == 2
    assert found["beam_mass"] == pytest.approx(1 + math.exp(-1))


def test_figures_of_rewards(accelerator):
    rewards = WeightedRewards({"one": lambda _: None, "two": lambda _: None}, {"one": 1.0, "two": 2.0})
    found = np.array([[[1.0, 0.0], [NAN, NAN]], [[0.5, 0.5], [1.0, 1.0]]])
    figures = reward_figures(rewards, found, accelerator)
    assert figures["rewards/one/mean"] == 0.5 and figures["rewards/one/std"] == pytest.approx(0.5**0.5)
    assert figures["rewards/two/mean"] == 0.75
    assert figures["reward"] == pytest.approx(np.mean([2, 1, 2, 2]))
    assert figures["reward_std"] == pytest.approx(np.std([2, 1, 2, 2], ddof=1))
    assert figures["frac_reward_zero_std"] == 0.5
    nothing = reward_figures(rewards, np.full((2, 2, 2), NAN), accelerator)
    assert math.isnan(nothing["reward"]) and nothing["frac_reward_zero_std"] == 0


def test_figures_of_completions(accelerator):
    found = completion_figures([[[5, 6, 1], [5, 1]], [[5], [6, 7]]], {0, 1}, accelerator)
    assert found["completions/mean_length"] == 2 and found["completions/clipped_ratio"] == 0.5
    assert (found["completions/min_length"], found["completions/max_length"]) == (1, 3)
    assert found["completions/mean_terminated_length"] == 2.5
    assert completion_figures([[[5]]], {0}, accelerator)["completions/max_terminated_length"] == 0


def test_figures_of_tokens_are_about_scored_groups_and_clipped_ratios():
    mask = torch.ones(4, 2, dtype=torch.bool)
    scored = torch.tensor([True, False])
    groups = RolloutGroups([[1]] * 2, [[[5, 6]] * 2] * 2, mask, torch.tensor([1.0, -1.0, 1.0, -1.0]), scored, 8, True)
    ratio = torch.tensor([[1.5, 1.0], [1.5, 0.5], [1.0, 1.0], [1.0, 1.0]])
    kl = torch.arange(8.0).reshape(4, 2)
    found = token_figures(ratio, kl, kl + 1, groups)
    for name, values in (("kl", [0, 1, 2, 3]), ("entropy", [1, 2, 3, 4])):
        assert found[name][:2].flatten().tolist() == values and found[name][2:].isnan().all()
    assert found["clip_ratio/high_mean"].tolist() == [[1, 0], [0, 0], [0, 0], [0, 0]]
    assert found["clip_ratio/low_mean"].tolist() == [[0, 0], [0, 1], [0, 0], [0, 0]]
    assert found["clip_ratio/region_mean"].sum() == 2
    assert found["clip_ratio/high_max"].max() == 0.5 and found["clip_ratio/low_min"].min() == 0
    assert token_figures(ratio, None, None, groups).keys() == {
        f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")
    }
