"""Rewards by name, with weights, and what each of them reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minionerec.core.errors import ConfigError
from minionerec.rewards.items import Scorer, make_collaborative, make_semantic
from minionerec.rewards.ranking import Reward, make_ndcg, position, rule
from minionerec.sid.table import SidTable

# Each reward with the dataset columns that it reads.
REWARDS: dict[str, tuple[str, ...]] = {
    "rule": ("target_sid",),
    "ndcg": ("target_sid",),
    "position": ("target_sid",),
    "semantic": ("target_sid",),
    "collaborative": ("history",),
}
# Names that stand for several.
PRESETS: dict[str, dict[str, float]] = {"ranking": {"rule": 1.0, "ndcg": 1.0}, "ranking_only": {"ndcg": 1.0}}
_PLUS = " + "


@dataclass(frozen=True)
class RewardSources:
    """What rewards are made from.

    Attributes:
        table: SIDs of the N items.
        generations: Group size G.
        vectors: float (N, D), item vectors, for `semantic`.
        scorer: A sequential model, for `collaborative`.
    """

    table: SidTable
    generations: int
    vectors: np.ndarray | None = None
    scorer: Scorer | None = None


def parse_rewards(words: Sequence[str]) -> dict[str, float]:
    """Reward weights from "name=weight" words; a bare name has weight 1, and a preset stands for its rewards.

    Raises:
        ConfigError: If a name is unknown, a weight is not a number other than 0, or nothing is left.

    Example:
        >>> parse_rewards(["ranking", "semantic=0.5"])
        {'rule': 1.0, 'ndcg': 1.0, 'semantic': 0.5}
    """
    weights: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            weight = float(text or 1)
        except ValueError:
            weight = 0.0
        if name not in REWARDS and name not in PRESETS:
            raise ConfigError(f"unknown reward {name!r}; known: {', '.join([*REWARDS, *PRESETS])}.")
        parts = PRESETS.get(name, {name: 1.0})
        if not np.isfinite(weight) or weight == 0 or weights.keys() & parts.keys():
            raise ConfigError(
                f"rewards: {word!r}; expected each reward once, as name or name=weight with a weight other than 0 "
                f"({', '.join(f'{preset} is {_PLUS.join(own)}' for preset, own in PRESETS.items())})."
            )
        weights.update({part: weight * share for part, share in parts.items()})
    if not weights:
        raise ConfigError("rewards is empty; name at least one, e.g. ranking.")
    return weights


def check_columns(weights: Mapping[str, float], columns: Mapping[str, Sequence[object]], tasks: Sequence[str]) -> None:
    """Check that every reward finds something in the columns it reads.

    Raises:
        ConfigError: Naming reward, column and tasks.
    """
    for name in weights:
        for column in REWARDS[name]:
            if all(value is None for value in columns.get(column, ())):
                raise ConfigError(
                    f"reward {name!r} reads the column {column!r}, which none of the tasks {list(tasks)} fills; add "
                    "the task next_sid, or leave the reward out."
                )


def make_reward(name: str, sources: RewardSources) -> Reward:
    """One reward function.

    Raises:
        ConfigError: If the reward needs a source that is not there.
    """
    if name == "rule":
        return rule
    if name == "position":
        return position
    if name == "ndcg":
        return make_ndcg(sources.generations)
    if name == "semantic":
        if sources.vectors is None:
            raise ConfigError("reward 'semantic' needs item vectors; give --reward_vectors the output of embed_items.")
        return make_semantic(sources.table, sources.vectors)
    if sources.scorer is None:
        raise ConfigError("reward 'collaborative' needs a trained sequential model; give --reward_model its directory.")
    return make_collaborative(sources.table, sources.scorer)
