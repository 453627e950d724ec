"""Several rewards with weights, asked together, and their answers checked."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minionerec.core.errors import DataError
from minionerec.training.rewards.rollouts import Reward, Rollouts


@dataclass(frozen=True)
class WeightedRewards:
    """Rewards by name, and the weight of each.

    Attributes:
        functions: F rewards by name.
        weights: The weight of each, under the same names.
    """

    functions: Mapping[str, Reward]
    weights: Mapping[str, float]

    def ask(self, rollouts: Rollouts) -> np.ndarray:
        """What each reward says of rollouts: float64 (F, P, G), NaN where it does not apply; see `ask_reward`."""
        return np.stack([ask_reward(name, reward, rollouts) for name, reward in self.functions.items()])

    def total(self, found: np.ndarray) -> np.ndarray:
        """The reward of each completion: the weighted sum of those that apply to it.

        Args:
            found: float (F, P, G), what `ask` gave.

        Returns:
            float32 (P, G); NaN where none applies.
        """
        weights = np.array([self.weights[name] for name in self.functions], dtype=np.float32)
        parts = found.astype(np.float32) * weights[:, None, None]
        total: np.ndarray = np.where(np.isnan(parts).all(0), np.float32(np.nan), np.nansum(parts, axis=0))
        return total


def ask_reward(name: str, reward: Reward, rollouts: Rollouts) -> np.ndarray:
    """What one reward says of rollouts.

    Args:
        name: Its name, for messages.
        reward: The function.
        rollouts: The completions.

    Returns:
        float64 (P, G); NaN where it does not apply.

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
    if np.isinf(found).any():
        row, place = np.argwhere(np.isinf(found))[0]
        raise DataError(
            f"reward {name!r} gave {found[row, place]} for completion {place} of prompt {row}; give a finite number, "
            "or NaN where it does not apply."
        )
    return found
