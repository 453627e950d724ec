"""Rewards that compare a group's ranked completions with the target SID.

Source: Kong et al., "MiniOneRec" (2025), section on reinforcement learning: a binary rule reward, and a penalty that
weighs wrong completions by their rank as NDCG does.
"""

import math
from collections.abc import Callable, Sequence

from minionerec.core.errors import ConfigError, DataError

Reward = Callable[..., list[float | None]]


def _clean(text: str) -> str:
    return "".join(text.split())


def rule(completions: Sequence[str], target_sid: Sequence[str], **columns: object) -> list[float | None]:
    """1 for a completion that is the target SID, else 0; white space does not count.

    Args:
        completions: Completion texts.
        target_sid: The SID that each completion should have been.
        **columns: Other dataset columns, unused.

    Example:
        >>> rule(["<a_1><b_2>", "<a_1><b_3>"], ["<a_1><b_2>"] * 2)
        [1.0, 0.0]
    """
    return [float(_clean(text) == _clean(target)) for text, target in zip(completions, target_sid, strict=True)]


def ndcg_penalties(generations: int) -> list[float]:
    """Penalty of a wrong completion at each rank of a group: minus its share of the group's discounts.

    Rank i, from 0, has -(1 / log2(i + 2)) / sum over all ranks of 1 / log2(j + 2).

    Example:
        >>> [round(w, 4) for w in ndcg_penalties(16)][:3]
        [-0.1638, -0.1033, -0.0819]
    """
    discounts = [1 / math.log2(rank + 2) for rank in range(generations)]
    return [-discount / sum(discounts) for discount in discounts]


def make_ndcg(generations: int) -> Reward:
    """The NDCG penalty for groups of a given size.

    Args:
        generations: Group size G; completions come as whole groups, each in rank order.
    """
    weights = ndcg_penalties(generations)

    def ndcg(completions: Sequence[str], target_sid: Sequence[str], **columns: object) -> list[float | None]:
        if len(completions) % generations:
            raise DataError(f"{len(completions)} completions are not whole groups of {generations}.")
        hits = rule(completions, target_sid)
        rewards: list[float | None] = []
        for start in range(0, len(hits), generations):
            group = hits[start : start + generations]
            rewards += [w if 1.0 in group and not hit else 0.0 for hit, w in zip(group, weights, strict=True)]
        return rewards

    return ndcg


def _make_rule(generations: int) -> Reward:
    return rule


REWARDS: dict[str, tuple[Callable[[int], Reward], ...]] = {
    "rule": (_make_rule,),
    "ranking": (_make_rule, make_ndcg),
    "ranking_only": (make_ndcg,),
}


def make_rewards(name: str, generations: int) -> list[Reward]:
    """The reward functions, summed with weight 1 each, that a name stands for.

    "rule" is 1 for a hit; "ranking" adds the NDCG penalty for wrong completions in groups that hold a hit;
    "ranking_only" is the penalty alone.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in REWARDS:
        raise ConfigError(f"unknown reward {name!r}; known: {', '.join(REWARDS)}.")
    return [make(generations) for make in REWARDS[name]]
