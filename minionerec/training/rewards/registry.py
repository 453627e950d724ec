"""Rewards by name, what each of them reads, and a user's own by the dotted path of a function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minionerec.core.errors import ConfigError
from minionerec.core.paths import function_at, function_file
from minionerec.sid.table import SidTable
from minionerec.training.rewards.items import Scorer, make_collaborative, make_semantic
from minionerec.training.rewards.ranking import ndcg, position, rule
from minionerec.training.rewards.rollouts import Reward

REWARDS = ("rule", "ndcg", "position", "semantic", "collaborative")
# Names that stand for several.
PRESETS: dict[str, dict[str, float]] = {"ranking": {"rule": 1.0, "ndcg": 1.0}, "ranking_only": {"ndcg": 1.0}}
_SIMPLE: dict[str, Reward] = {"rule": rule, "ndcg": ndcg, "position": position}
_PLUS = " + "


@dataclass(frozen=True)
class RewardSources:
    """What rewards are made from.

    Attributes:
        table: SIDs of the N items.
        vectors: float (N, D), item vectors, for `semantic`.
        scorer: A sequential model, for `collaborative`.
    """

    table: SidTable
    vectors: np.ndarray | None = None
    scorer: Scorer | None = None


def reward_weights(rewards: Mapping[str, float]) -> dict[str, float]:
    """Weights of single rewards, from a setting in which a preset may stand for several.

    Args:
        rewards: Name, or dotted path of a user's own function, to weight.

    Raises:
        ConfigError: If a name is unknown, a weight is not a number other than 0, a reward is there twice, or there is
            none.

    Example:
        >>> reward_weights({"ranking": 1.0, "semantic": 0.5})
        {'rule': 1.0, 'ndcg': 1.0, 'semantic': 0.5}
    """
    weights: dict[str, float] = {}
    for name, weight in rewards.items():
        if name not in REWARDS and name not in PRESETS and "." not in name:
            raise ConfigError(
                f"unknown reward {name!r}; known: {', '.join([*REWARDS, *PRESETS])}, and functions of your own by "
                "their dotted path, such as my_rewards.novelty."
            )
        parts = PRESETS.get(name, {name: 1.0})
        if not np.isfinite(weight) or weight == 0 or weights.keys() & parts.keys():
            raise ConfigError(
                f"rewards: {name!r} with weight {weight:g}; expected each reward once, with a weight other than 0 "
                f"({', '.join(f'{preset} is {_PLUS.join(own)}' for preset, own in PRESETS.items())})."
            )
        weights.update({part: weight * share for part, share in parts.items()})
    if not weights:
        raise ConfigError("rewards is empty; name at least one, e.g. ranking.")
    return weights


def reward_files(names: Sequence[str]) -> dict[str, Path]:
    """The files of a user's own rewards, by "reward NAME": a changed file is a changed reward."""
    own = [name for name in names if name not in REWARDS and name not in PRESETS]
    files = {name: function_file(name, "rewards") for name in own}
    return {f"reward {name}": file for name, file in files.items() if file is not None}


def check_histories(
    weights: Mapping[str, float], histories: Sequence[Sequence[int] | None], tasks: Sequence[str]
) -> None:
    """Check that rewards that read histories find some.

    Raises:
        ConfigError: Naming reward and tasks.
    """
    if "collaborative" in weights and all(history is None for history in histories):
        raise ConfigError(
            f"reward 'collaborative' reads the history, which none of the tasks {list(tasks)} has; add the task "
            "next_sid, or leave the reward out."
        )


def make_reward(name: str, sources: RewardSources) -> Reward:
    """One reward function.

    Raises:
        ConfigError: If the reward needs a source that is not there, or a user's own cannot be found.
    """
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name == "semantic":
        if sources.vectors is None:
            raise ConfigError("reward 'semantic' needs item vectors; give --reward_vectors the output of embed-items.")
        return make_semantic(sources.table, sources.vectors)
    if name == "collaborative":
        if sources.scorer is None:
            raise ConfigError(
                "reward 'collaborative' needs a trained sequential model; give --reward_model its directory."
            )
        return make_collaborative(sources.table, sources.scorer)
    own: Reward = function_at(name, "rewards")
    return own
