"""Rewards that compare a group's ranked completions with the target SID.

Source: Kong et al., "MiniOneRec" (2025), section on reinforcement learning: a binary rule reward, and a penalty that
weighs wrong completions by their rank as NDCG does.
"""

import math

import numpy as np

from minionerec.training.rewards.rollouts import Rollouts


def rule(rollouts: Rollouts) -> np.ndarray:
    """1 for a completion that is the target, else 0.

    Args:
        rollouts: The completions.

    Returns:
        float64 (P, G).
    """
    return rollouts.hits.astype(np.float64)


def ndcg_penalties(generations: int) -> list[float]:
    """Penalty of a wrong completion at each rank of a group: minus its share of the group's discounts.

    Rank i, from 0, has -(1 / log2(i + 2)) / sum over all ranks of 1 / log2(j + 2).

    Examples:
        >>> [round(weight, 4) for weight in ndcg_penalties(16)[:3]]
        [-0.1638, -0.1033, -0.0819]
    """
    discounts = [1 / math.log2(rank + 2) for rank in range(generations)]
    return [-discount / sum(discounts) for discount in discounts]


def ndcg(rollouts: Rollouts) -> np.ndarray:
    """Each wrong completion's penalty by rank in a group with a hit; 0 for the hit, and in groups without one.

    Args:
        rollouts: The completions.

    Returns:
        float64 (P, G).
    """
    hits = rollouts.hits
    penalties = np.array(ndcg_penalties(hits.shape[1]))
    return np.where(hits.any(1, keepdims=True) & ~hits, penalties, 0.0)


def ranking(rollouts: Rollouts) -> np.ndarray:
    """The reward that "MiniOneRec" recommends: `rule` and `ndcg` together, float64 (P, G).

    Args:
        rollouts: The completions.
    """
    found: np.ndarray = rule(rollouts) + ndcg(rollouts)
    return found


def position(rollouts: Rollouts) -> np.ndarray:
    """How many codes a completion has in common with the target, from the first on.

    Args:
        rollouts: The completions.

    Returns:
        float64 (P, G).
    """
    mine, wanted = rollouts.codes, rollouts.table.distinct_codes[rollouts.targets][:, None]  # (P, G, L), (P, 1, L)
    same = (mine == wanted) & (wanted >= 0)
    found: np.ndarray = np.logical_and.accumulate(same, axis=2).sum(2).astype(np.float64)
    return found
