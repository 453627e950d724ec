"""Rewards that compare a group's ranked completions with the target SID.

Source: Kong et al., "MiniOneRec" (2025), section on reinforcement learning: a binary rule reward, and a penalty that
weighs wrong completions by their rank as NDCG does.
"""

import math
from collections.abc import Callable, Sequence

from minionerec.core.errors import DataError
from minionerec.sid.table import split_sid

Reward = Callable[..., list[float | None]]


def clean(text: str) -> str:
    """A text without its white space."""
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
    return [float(clean(text) == clean(target)) for text, target in zip(completions, target_sid, strict=True)]


def position(completions: Sequence[str], target_sid: Sequence[str], **columns: object) -> list[float | None]:
    """How many codes a completion has in common with the target SID, from the first on.

    Args:
        completions: Completion texts.
        target_sid: The SID that each completion should have been.
        **columns: Other dataset columns, unused.

    Example:
        >>> position(["<a_1><b_2><c_9>", "<a_7><b_2><c_3>"], ["<a_1><b_2><c_3>"] * 2)
        [2.0, 0.0]
    """
    rewards: list[float | None] = []
    for text, target in zip(completions, target_sid, strict=True):
        found, wanted = split_sid(clean(text)) or (), split_sid(clean(target)) or ()
        same = [mine == theirs for mine, theirs in zip(found, wanted, strict=False)]
        rewards.append(float(same.index(False) if False in same else len(same)))
    return rewards


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
    """The NDCG penalty for groups of a given size: 0 for a hit, and for all of a group without a hit.

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
