"""Rewards as functions of rollouts, by name and in sums, and the advantages that follow from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.functions import function_at, function_file

if TYPE_CHECKING:
    from minionerec.sid.table import SidTable

# Inputs of rewards.


@dataclass(frozen=True)
class Rollouts:
    """The completions of some prompts: G distinct SIDs each, and what is known about the prompt's example.

    Attributes:
        sids: int64 (P, G), SID numbers (`SidTable.sid_numbers`), the most probable first; -1 after the last where a
            validation list has fewer, of which no reward is read.
        targets: int64 (P,), SID number of each example's target.
        scores: float32 (P, G), log-probabilities of the SIDs under the policy that proposed them; minus infinity where
            there is none.
        histories: For each row its item indices, oldest first; None where the prompt is about an item, not a user.
        table: The SIDs of the catalogue.
    """

    sids: np.ndarray
    targets: np.ndarray
    scores: np.ndarray
    histories: Sequence[Sequence[int] | None]
    table: "SidTable"

    @property
    def hits(self) -> np.ndarray:
        """Which completions are the target: bool (P, G)."""
        found: np.ndarray = self.sids == self.targets[:, None]
        return found

    @property
    def codes(self) -> np.ndarray:
        """Codes of the completions: int32 (P, G, L), -1 after the end of an SID shorter than L; any of no SID."""
        found: np.ndarray = self.table.distinct_codes[self.sids]
        return found


Reward = Callable[[Rollouts], np.ndarray]
"""A reward: takes rollouts, gives float (P, G); NaN where it does not apply to a row."""


# Rewards that compare a group's ranked completions with the target SID.
#
# Source: Kong et al., "MiniOneRec" (2025), section on reinforcement learning: a binary rule reward, and a penalty that
# weighs wrong completions by their rank as NDCG does.


def rule(rollouts: Rollouts) -> np.ndarray:
    """1 for a completion that is the target, else 0: float64 (P, G)."""
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
    """Each wrong completion's penalty by rank in a group with a hit; 0 for the hit, and in groups without one."""
    hits = rollouts.hits
    penalties = np.array(ndcg_penalties(hits.shape[1]))
    return np.where(hits.any(1, keepdims=True) & ~hits, penalties, 0.0)


def ranking(rollouts: Rollouts) -> np.ndarray:
    """The reward that "MiniOneRec" recommends: `rule` and `ndcg` together, float64 (P, G)."""
    found: np.ndarray = rule(rollouts) + ndcg(rollouts)
    return found


def position(rollouts: Rollouts) -> np.ndarray:
    """How many codes a completion has in common with the target, from the first on: float64 (P, G)."""
    mine, wanted = rollouts.codes, rollouts.table.distinct_codes[rollouts.targets][:, None]  # (P, G, L), (P, 1, L)
    same = (mine == wanted) & (wanted >= 0)
    found: np.ndarray = np.logical_and.accumulate(same, axis=2).sum(2).astype(np.float64)
    return found


# Rewards by more than the items' SIDs: by their texts, or by the scores of another model.

Scorer = Callable[[Sequence[Sequence[int]]], np.ndarray]


def make_semantic(table: "SidTable", vectors: np.ndarray) -> Reward:
    """Cosine between the vectors of a completion and of the target, 0 for a vector of zeros.

    `vectors`, float (N, D), are of the items; an SID that several items share has the mean of theirs, each scaled to
    length 1 before.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    sums = np.zeros((table.n_unique, vectors.shape[1]))
    np.add.at(sums, table.sid_numbers, unit)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    unit = sums / np.where(lengths > 0, lengths, 1)  # (S, D)

    def semantic(rollouts: Rollouts) -> np.ndarray:
        found: np.ndarray = (unit[rollouts.sids] * unit[rollouts.targets][:, None]).sum(2)
        return found

    return semantic


def _of_model(table: "SidTable", scorer: Scorer, worth: Callable[[np.ndarray], np.ndarray]) -> Reward:
    """A reward from a model's scores of SIDs, float64 (D, S), by a function to rewards (D, S)."""

    def reward(rollouts: Rollouts) -> np.ndarray:
        distinct: dict[tuple[int, ...], int] = {}
        for history in rollouts.histories:
            if history is not None:
                distinct.setdefault(tuple(history), len(distinct))
        best = np.full((len(distinct), table.n_unique), -np.inf)
        if distinct:
            scores = np.asarray(scorer(list(distinct)))
            if scores.shape != (len(distinct), len(table)):
                raise DataError(
                    f"the model scores {scores.shape}; expected {len(distinct)} histories x {len(table)} items."
                )
            np.maximum.at(best.T, table.sid_numbers, scores.T)
        of_sids = worth(best)
        rewards = np.full(rollouts.sids.shape, np.nan)
        for row, history in enumerate(rollouts.histories):
            if history is not None:
                rewards[row] = of_sids[distinct[tuple(history)], rollouts.sids[row]]
        return rewards

    return reward


def make_collaborative(table: "SidTable", scorer: Scorer) -> Reward:
    """The score that a model gives a completion after the row's history; no target is looked at.

    An SID that several items share has the best of their scores. Rows without a history get NaN: the reward does not
    apply to them. The scorer takes B histories, item indices from the oldest on, and gives scores float (B, N), such as
    logits; each distinct history of a batch is scored once.
    """
    return _of_model(table, scorer, lambda scores: scores)


# Rewards of lists that a shop values: what a hit is worth, which items are shown, how different they are. Added up over
# the first ten of a list they are its value, its rare items, its distinct brands.


def make_expected(table: "SidTable", scorer: Scorer, values: np.ndarray | None = None) -> Reward:
    """The expected worth of a completion: its probability by a model, after the row's history, times its value.

    Added up over a list it is the number of hits, or the value of the purchases, that the model expects of it. No
    target is looked at: unlike `make_value`, which sees at most one hit in a group, it has no noise. A probability is
    the softmax of the scores of `make_collaborative` over SIDs; values are those of `make_value`, 1 for all if None.
    """
    worth = np.ones(table.n_unique) if values is None else _mean_worth(table, values)

    def expected(scores: np.ndarray) -> np.ndarray:
        shares = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
        return np.asarray(shares / shares.sum(1, keepdims=True) * worth)

    return _of_model(table, scorer, expected)


def _mean_worth(table: "SidTable", values: np.ndarray) -> np.ndarray:
    """Mean value of the items of each SID, float64 (S,), where all items have a mean of 1."""
    sums = np.bincount(table.sid_numbers, values / values.mean())
    return sums / np.bincount(table.sid_numbers)


def make_value(table: "SidTable", values: np.ndarray) -> Reward:
    """What the target is worth, for a completion that is the target, else 0.

    Values, float (N,), such as prices or margins, none negative and not all 0, are divided by their mean over the
    catalogue, so a hit is worth 1 on average over the items, as in `rule`; an SID that several items share has the mean
    of theirs. In expectation over purchases a completion's reward is its value times its probability, so the best list
    has the items whose value x probability is highest. A group holds one hit at most: divided by the group's standard
    deviation, its advantage is the same whatever it is worth. Set `scale_rewards` to none, or this reward is `rule`
    again.
    """
    worth = _mean_worth(table, values)

    def value(rollouts: Rollouts) -> np.ndarray:
        found: np.ndarray = rollouts.hits * worth[rollouts.targets][:, None]
        return found

    return value


RARE_SHARE = 0.2  # of the training purchases


def is_rare(purchases: np.ndarray) -> np.ndarray:
    """Which items have the last fifth of all purchases: bool (N,), of int (N,).

    Those with more purchases than theirs have at least four fifths; so items with equally many are alike.

    Source: the long tail of Abdollahpouri et al., "Managing popularity bias" (2019), by purchases.
    """
    _, inverse = np.unique(purchases, return_inverse=True)
    totals = np.bincount(inverse, purchases)  # purchases of all items with the same count, ascending
    above = totals.sum() - np.cumsum(totals)
    found: np.ndarray = (above >= (1 - RARE_SHARE) * totals.sum())[inverse]
    return found


def make_rare(table: "SidTable", purchases: np.ndarray) -> Reward:
    """1 for a completion that is seldom bought or new, else 0, whatever the target.

    Rare are the SIDs that have the last fifth (`is_rare`) of the training purchases, int (N,), of the items
    (`Corpus.popularity`). Items that training hardly knows, new ones above all, are among them. Alone its best list has
    nothing but such items: give it a small weight beside `ranking`.
    """
    rare_sids = is_rare(np.bincount(table.sid_numbers, purchases))  # (S,)

    def rare(rollouts: Rollouts) -> np.ndarray:
        found: np.ndarray = rare_sids[rollouts.sids].astype(np.float64)
        return found

    return rare


def make_diversity(table: "SidTable", labels: Sequence[object] | np.ndarray | None = None) -> Reward:
    """1 for a completion whose label no better-ranked one of its group has, else 0, whatever the target.

    Added up it is the number of distinct labels, and the best list has a label only once. Alone it does not look at the
    target: give it a small weight beside `ranking`. Labels are those of the N items; items without one (None or "")
    have the same, and of items that share an SID the first one's counts. None: the first code.
    """
    _, first = np.unique(table.sid_numbers, return_index=True)  # of each SID
    if labels is None:
        own = table.distinct_codes[:, 0]
    else:
        texts = np.array(["" if label is None else str(label) for label in labels], dtype=object)
        own = np.unique(texts, return_inverse=True)[1][first]

    def diversity(rollouts: Rollouts) -> np.ndarray:
        found = own[rollouts.sids]  # (P, G)
        alike = found[:, :, None] == found[:, None, :]
        fresh: np.ndarray = 1.0 - np.tril(alike, -1).any(2)
        return fresh

    return diversity


# Rewards by name, what each of them reads, and a user's own by the dotted path of a function.

OF_MODEL = ("collaborative", "expected_hits", "expected_value")
"""Rewards that ask a model."""
REWARDS = ("rule", "ndcg", "position", "semantic", *OF_MODEL, "value", "rare", "diversity")
COLUMN_REWARDS = ("value", "expected_value", "diversity")
# Names of several rewards.
PRESETS: dict[str, dict[str, float]] = {"ranking": {"rule": 1.0, "ndcg": 1.0}, "ranking_only": {"ndcg": 1.0}}
_SIMPLE: dict[str, Reward] = {"rule": rule, "ndcg": ndcg, "position": position}
# Makers of rewards that need a source, and what to give.
_OF_SOURCE: dict[str, tuple[Callable[["SidTable", Any], Reward], str]] = {
    "semantic": (make_semantic, "item vectors; give --reward_vectors the output of embed-items"),
    "collaborative": (make_collaborative, "a trained model; give --reward_model its directory"),
    "expected_hits": (make_expected, "a trained model; give --reward_model its directory"),
    "expected_value": (
        lambda table, source: make_expected(table, *source),
        "a trained model and a number of each item; give --reward_model and --reward_columns",
    ),
    "value": (make_value, "a number of each item; give --reward_columns"),
    "rare": (make_rare, "the training purchases of each item; give a corpus that has some"),
}
_PLUS = " + "


def reward_weights(rewards: Mapping[str, float]) -> dict[str, float]:
    """Weights of single rewards, from a setting in which a preset may name several.

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
    """Check that rewards that read histories find some; the `ConfigError` names reward and tasks."""
    for name in OF_MODEL:
        if name in weights and all(history is None for history in histories):
            raise ConfigError(
                f"reward {name!r} reads the history, which none of the tasks {', '.join(tasks)} has; add the task "
                "next_sid, or leave the reward out."
            )


def make_reward(name: str, table: "SidTable", source: Any = None) -> Reward:
    """One reward function.

    Args:
        name: Its name, or the dotted path of a user's own.
        table: SIDs of the N items.
        source: What it reads besides: the second argument of its maker, such as item vectors for `semantic`.

    Raises:
        ConfigError: If the reward needs a source that is missing, or a user's own cannot be found.
    """
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name in _OF_SOURCE:
        make, needed = _OF_SOURCE[name]
        if source is None:
            raise ConfigError(f"reward {name!r} needs {needed}.")
        return make(table, source)
    if name == "diversity":
        return make_diversity(table, source)
    own: Reward = function_at(name, "rewards")
    return own


# Several rewards with weights, called together, and their values checked.


@dataclass(frozen=True)
class WeightedRewards:
    """F rewards by name, and the weight of each under the same name."""

    functions: Mapping[str, Reward]
    weights: Mapping[str, float]

    def values(self, rollouts: Rollouts) -> np.ndarray:
        """Values of each reward for rollouts: float64 (F, P, G), NaN where it does not apply; see `reward_values`."""
        return np.stack([reward_values(name, reward, rollouts) for name, reward in self.functions.items()])

    def total(self, found: np.ndarray) -> np.ndarray:
        """The weighted sum of the rewards that apply to each completion: float32 (P, G), NaN where none does."""
        weights = np.array([self.weights[name] for name in self.functions], dtype=np.float32)
        parts = found.astype(np.float32) * weights[:, None, None]
        total: np.ndarray = np.where(np.isnan(parts).all(0), np.float32(np.nan), np.nansum(parts, axis=0))
        return total


def reward_values(name: str, reward: Reward, rollouts: Rollouts) -> np.ndarray:
    """Values of one reward for rollouts: float64 (P, G), NaN where it does not apply or there is no completion.

    Raises:
        DataError: If the answer has another shape, or holds what is no number or an infinite one.
    """
    prompts, size = rollouts.sids.shape
    answer = reward(rollouts)
    try:
        found = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"reward {name!r} gave a {type(answer).__name__} that holds more than numbers; expected an array of "
            f"{prompts} prompts x {size} completions."
        ) from None
    if found.shape != (prompts, size):
        raise DataError(
            f"reward {name!r} gave an array of shape {found.shape}; expected {(prompts, size)}: {prompts} prompts x "
            f"{size} completions."
        )
    found = np.where(rollouts.sids < 0, np.nan, found)
    if np.isinf(found).any():
        row, where = np.argwhere(np.isinf(found))[0]
        raise DataError(
            f"reward {name!r} gave {found[row, where]} for completion {where} of prompt {row}; give a finite number, "
            "or NaN where it does not apply."
        )
    return found


# Advantages: how much better a completion is than the others of its group.

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


def group_advantages(rewards: np.ndarray, scaled: bool = True) -> np.ndarray:
    """Each completion's reward less the mean of its group, over the group's standard deviation.

    (r - mean) / (standard deviation with one degree of freedom less + 1e-4), see Shao et al., "DeepSeekMath" (2024),
    section 4.1.1. A group whose rewards are all equal gets exactly 0.

    Args:
        rewards: float (P, G), G at least 2; NaN where a completion has none: it is left out of its group's mean and
            deviation.
        scaled: Whether to divide; else it is the difference alone (Liu et al., "Dr. GRPO", 2025).

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
        advantages = differences / (np.sqrt(variance) + np.float32(EPSILON)) if scaled else differences
    return np.where(has_signal(rewards)[:, None] & np.isfinite(rewards), advantages, np.float32(0))


def has_signal(rewards: np.ndarray) -> np.ndarray:
    """Which groups have rewards, float (P, G), that differ: bool (P,). The others have nothing to learn from."""
    known = np.isfinite(rewards)
    highest = np.where(known, rewards, -np.inf).max(1)
    lowest = np.where(known, rewards, np.inf).min(1)
    found: np.ndarray = highest > lowest
    return found
