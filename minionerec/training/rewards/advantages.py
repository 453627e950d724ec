"""Advantages: how much better a completion is than the others of its group, or than those beside it in the tree."""

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-4  # added to standard deviations, as in TRL
_LANES = 8


def _sums(values: np.ndarray) -> np.ndarray:
    """Sums of rows, float32 (P, 1), NaN left out.

    In a fixed order, that of torch on a CPU: eight running sums, then these one after the other. So the same rewards
    give the same advantages to the last bit with every build of NumPy.
    """
    rows, width = values.shape
    padded = np.zeros((rows, -(-width // _LANES), _LANES), dtype=np.float32)
    padded.reshape(rows, -1)[:, :width] = np.nan_to_num(values)
    lanes = np.add.accumulate(padded, axis=1)[:, -1]  # (P, 8)
    return np.add.accumulate(lanes, axis=1)[:, -1:]


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Each completion's reward less the mean of its group, over the group's standard deviation.

    (r - mean) / (standard deviation with one degree of freedom less + 1e-4), see Shao et al., "DeepSeekMath" (2024),
    section 4.1.1. A group whose rewards are all equal gets exactly 0.

    Args:
        rewards: float (P, G), G at least 2; NaN where a completion has none: it is left out of its group's mean and
            deviation.

    Returns:
        float32 (P, G); 0 at NaN.

    Example:
        >>> group_advantages(np.array([[1.0, 0.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]])).round(2).tolist()
        [[1.5, -0.5, -0.5, -0.5], [0.0, 0.0, 0.0, 0.0]]
    """
    rewards = rewards.astype(np.float32)
    count = np.isfinite(rewards).sum(1, keepdims=True).astype(np.float32)  # (P, 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # of a group with one reward or none
        differences = rewards - _sums(rewards) / count
        variance = _sums(differences**2) / count * (count / (count - 1))
        advantages = differences / (np.sqrt(variance) + np.float32(EPSILON))
    return np.where(has_signal(rewards)[:, None] & np.isfinite(rewards), advantages, np.float32(0))


def has_signal(rewards: np.ndarray) -> np.ndarray:
    """Which groups have rewards that differ: bool (P,). The others have nothing to learn from.

    Args:
        rewards: float (P, G); NaN where a completion has none.
    """
    known = np.isfinite(rewards)
    highest = np.where(known, rewards, -np.inf).max(1)
    lowest = np.where(known, rewards, np.inf).min(1)
    found: np.ndarray = highest > lowest
    return found


def sibling_advantages(groups: Sequence[Sequence[Sequence[int]]], rewards: np.ndarray) -> np.ndarray:
    """How much better each completion's branches are than the branches beside them.

    At each depth of a group, the completions that share a prefix are split by their next code. A branch is worth the
    mean reward of its completions, and gets (worth - mean of the branches) / (standard deviation of the branches, with
    one degree of freedom less, + 1e-4); every completion of the branch gets that. Prefixes with one branch give 0. The
    advantage is the mean over the depths.

    Source: the sibling term of V-STAR, a follow-up of MiniOneRec.

    Args:
        groups: For each group the codes of its G completions; the depths are those that all of a group have.
        rewards: float (groups, G).

    Returns:
        float64 (groups, G).

    Example:
        >>> found = sibling_advantages([[[1, 5], [1, 6], [2, 5], [2, 6]]], np.array([[1.0, 0.0, 0.0, 0.0]]))
        >>> found.round(2).tolist()
        [[0.71, -0.0, -0.35, -0.35]]
    """
    found = np.zeros(np.shape(rewards))
    for group, (completions, values) in enumerate(zip(groups, np.asarray(rewards, dtype=np.float64), strict=True)):
        levels = min(map(len, completions))
        for depth in range(levels):
            families: dict[tuple[int, ...], dict[int, list[int]]] = {}
            for place, completion in enumerate(completions):
                branches = families.setdefault(tuple(completion[:depth]), {})
                branches.setdefault(completion[depth], []).append(place)
            for branches in families.values():
                if len(branches) < 2:
                    continue
                worth = np.array([values[places].mean() for places in branches.values()])
                scores = (worth - worth.mean()) / (worth.std(ddof=1) + EPSILON)
                for places, score in zip(branches.values(), scores, strict=True):
                    found[group, places] += score / levels
    return found
