"""Advantages of completions among their siblings: those that share a prefix with them."""

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-4  # added to standard deviations, as in TRL's group advantages


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
