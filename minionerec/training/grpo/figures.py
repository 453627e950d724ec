"""Figures of a step for the training log, over all devices."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence

from minionerec.training.grpo.loss import CLIP, RolloutGroups
from minionerec.training.rewards import Rollouts, WeightedRewards

# Figures that are no mean over the step; a share is between 0 and 1.
_SUMMARIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clip_ratio/low_min": lambda values: values.nan_to_num(1.0).min(),
    "clip_ratio/high_max": lambda values: values.nan_to_num(0.0).max(),
}


class Figures:
    """Numbers by name, collected between two lines of the log.

    Args:
        accelerator: Knows the other devices.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self._values: dict[str, list[float]] = defaultdict(list)
        self._tokens: dict[str, list[torch.Tensor]] = defaultdict(list)

    def add(self, figures: Mapping[str, float]) -> None:
        """Keep a step's numbers."""
        for name, value in figures.items():
            self._values[name].append(value)

    def add_tokens(self, values: Mapping[str, torch.Tensor]) -> None:
        """Keep one number for each token or completion of a slice, until the step ends."""
        for name, tensor in values.items():
            self._tokens[name].append(tensor.flatten().float())

    def forget_step(self) -> None:
        """Drop what the slices of a step left, where it is computed again."""
        self._tokens.clear()

    def end_step(self) -> None:
        """Turn what the slices of a step left into numbers: means, and the 99th percentile of the KL."""
        if not self._tokens:
            return
        own = pad_sequence([torch.cat(parts) for parts in self._tokens.values()], True, torch.nan)  # (names, values)
        own = self.accelerator.pad_across_processes(own.T, pad_index=torch.nan)
        every = torch.nn.functional.pad(self.accelerator.gather(own).T, (0, 1), value=torch.nan)  # there may be none
        rows = dict(zip(self._tokens, every, strict=True))
        found = {name: _SUMMARIES.get(name, torch.nanmean)(values) for name, values in rows.items()}
        if "kl" in rows:
            found["kl_p99"] = rows["kl"].nanquantile(0.99)
        self._tokens.clear()
        self.add(dict(zip(found, torch.stack([*found.values()]).tolist(), strict=True)))  # all with one wait

    def take(self) -> dict[str, float | None]:
        """The mean of each number since the last call, and reset; None where all were NaN."""
        known = {name: [value for value in values if not math.isnan(value)] for name, values in self._values.items()}
        self._values.clear()
        return {name: sum(values) / len(values) if values else None for name, values in known.items()}


def rollout_figures(rollouts: Rollouts, accelerator: Accelerator) -> dict[str, float]:
    """Quality of the rollouts.

    Returns:
        `hit@g`, the share of groups that hold the target; `beam_mass`, the probability of all G together, mean over
        groups; `distinct_items`, how many SIDs are among all rollouts of the step.
    """
    seen = torch.zeros(rollouts.table.n_unique + 2)
    seen[torch.from_numpy(rollouts.sids).flatten()] = 1
    seen[-2:] = torch.tensor([rollouts.hits.any(1).mean(), np.exp(rollouts.scores).sum(1).mean()])
    total = accelerator.reduce(seen.to(accelerator.device), "sum").cpu()
    return {
        "hit@g": float(total[-2]) / accelerator.num_processes,
        "beam_mass": float(total[-1]) / accelerator.num_processes,
        "distinct_items": int((total[:-2] > 0).sum()),
    }


def reward_figures(rewards: WeightedRewards, found: np.ndarray, accelerator: Accelerator) -> dict[str, float]:
    """Means and deviations of each reward and of their sum, over the completions that they apply to.

    `found` are the rewards' values for this device's rollouts, float64 (F, P, G).

    Returns:
        `rewards/NAME/mean`, `rewards/NAME/std`, `reward`, `reward_std`, and `frac_reward_zero_std`, the share of groups
            whose rewards are all alike.
    """
    own = torch.from_numpy(found.astype(np.float32)).transpose(0, 1).contiguous()  # (P, F, G)
    every = accelerator.gather(own.to(accelerator.device)).transpose(0, 1).cpu().numpy()  # (F, all P, G)
    total = rewards.total(every)
    named = {f"rewards/{name}/": values for name, values in zip(rewards.functions, every, strict=True)}
    figures: dict[str, float] = {}
    for name, values in named.items():
        figures[f"{name}mean"], figures[f"{name}std"] = _mean_and_std(values)
    figures["reward"], figures["reward_std"] = _mean_and_std(total)
    figures["frac_reward_zero_std"] = float(np.isclose(np.ptp(total, axis=1), 0).mean())
    return figures


def _mean_and_std(values: np.ndarray) -> tuple[float, float]:
    known = values[np.isfinite(values)].astype(np.float64)
    return (
        float(known.mean()) if len(known) else math.nan,
        float(known.std(ddof=1)) if len(known) > 1 else math.nan,
    )


def completion_figures(
    completions: Sequence[Sequence[Sequence[int]]], ends: Collection[int], accelerator: Accelerator
) -> dict[str, float]:
    """Lengths of the completions in tokens, of all and of those that end with one of the tokens `ends`."""
    flat = [ids for group in completions for ids in group]
    own = torch.tensor([[len(ids), ids[-1] in ends] for ids in flat], device=accelerator.device)
    lengths, ended = accelerator.gather(own).cpu().numpy().T
    figures = {f"completions/{name}_length": value for name, value in _extent(lengths).items()}
    figures |= {f"completions/{name}_terminated_length": value for name, value in _extent(lengths[ended > 0]).items()}
    return figures | {"completions/clipped_ratio": float(1 - ended.mean())}


def _extent(lengths: np.ndarray) -> dict[str, float]:
    lengths = lengths if len(lengths) else np.zeros(1)
    return {"mean": float(lengths.mean()), "min": float(lengths.min()), "max": float(lengths.max())}


def token_figures(
    ratio: torch.Tensor, kl: torch.Tensor | None, entropies: torch.Tensor | None, groups: RolloutGroups
) -> dict[str, torch.Tensor]:
    """Figures of each token of a slice (entropy, KL), and which ratios are clipped: below, above, either.

    Tokens of groups that are not scored have no entropy and no KL: NaN. Ratio and KL are those of `policy_loss`;
    entropies float32 (R, C), where the head computes them.
    """
    mask, advantages = groups.scored_mask, groups.advantages.unsqueeze(1)
    low = ((ratio < 1 - CLIP) & (advantages < 0)).float()
    high = ((ratio > 1 + CLIP) & (advantages > 0)).float()
    found = {"low_mean": low, "low_min": low.mean(1), "high_mean": high, "high_max": high.mean(1)}
    found = {f"clip_ratio/{name}": values for name, values in (found | {"region_mean": low + high}).items()}
    if entropies is not None:
        found["entropy"] = entropies.masked_fill(~mask, torch.nan)
    if kl is not None:
        found["kl"] = kl.detach().masked_fill(~mask, torch.nan)
    return found
