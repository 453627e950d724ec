"""Third part of a step: log-probabilities of the completions of those groups that matter.

Groups stay whole: a device computes whole groups at a time, in the order in which they were rolled out. A group whose
rewards are all equal has no advantage, and is left out of the reference and policy passes; its place in every mean is
kept, so that the gradient is that of the whole batch but for such groups' KL term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from minionerec.training.grpo.rows import Row
from minionerec.training.rewards.rollouts import Rollouts
from minionerec.training.shared_prefix import shared_prefix_logps


@dataclass(frozen=True)
class RolloutGroups:
    """P groups: prompts with G completions each. A step's, or the share of them that is computed at a time.

    Attributes:
        prompts: Token ids of each prompt.
        completions: Token ids of the G completions of each prompt.
        mask: bool (P * G, C), where a completion has a token; completions stand group by group.
        advantages: float32 (P * G,).
        scored: bool (P,), the groups that are computed.
        tokens: Completion tokens of the whole step, over all devices.
        may_rest: Whether the model may be left alone where no group is scored: not where that is so in the whole step,
            for then the optimiser would miss most gradients.
        reference: float32 (P * G, C), log-probabilities under the reference model, 0 where there is no token or the
            group is not scored; None without a KL term.
    """

    prompts: Sequence[list[int]]
    completions: Sequence[Sequence[list[int]]]
    mask: torch.Tensor
    advantages: torch.Tensor
    scored: torch.Tensor
    tokens: int
    may_rest: bool
    reference: torch.Tensor | None = None

    def __len__(self) -> int:
        """Number of groups, P."""
        return len(self.prompts)

    @property
    def scored_mask(self) -> torch.Tensor:
        """Where there is a token that is computed: bool (P * G, C)."""
        return self.mask & self.scored.repeat_interleave(len(self.mask) // len(self)).unsqueeze(1)

    def parts(self, size: int) -> list["RolloutGroups"]:
        """The groups in order, so many at a time."""
        return [self._part(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def _part(self, start: int, stop: int) -> "RolloutGroups":
        size = len(self.mask) // len(self)
        rows = slice(start * size, stop * size)
        return replace(
            self,
            prompts=self.prompts[start:stop],
            completions=self.completions[start:stop],
            mask=self.mask[rows],
            advantages=self.advantages[rows],
            scored=self.scored[start:stop],
            reference=None if self.reference is None else self.reference[rows],
        )


def completions_of(rollouts: Rollouts, rows: Sequence[Row], sid_tokens: Sequence[list[int]]) -> list[list[list[int]]]:
    """Token ids of each prompt's completions: the SID's, and the tail that the wording puts behind it.

    Args:
        rollouts: The SIDs.
        rows: What was rolled out.
        sid_tokens: Token ids of each SID number.
    """
    found = zip(rollouts.sids.tolist(), rows, strict=True)
    return [[sid_tokens[sid] + row["tail"] for sid in group] for group, row in found]


def make_groups(
    rows: Sequence[Row],
    completions: Sequence[Sequence[list[int]]],
    advantages: np.ndarray,
    scored: np.ndarray,
    tokens: int,
    device: torch.device,
) -> RolloutGroups:
    """The groups of a step on one device.

    Args:
        rows: P rows.
        completions: Token ids of the G completions of each.
        advantages: float32 (P, G).
        scored: bool (P,).
        tokens: Completion tokens of the step, over all devices.
        device: Where the tensors lie.
    """
    lengths = torch.tensor([len(ids) for group in completions for ids in group])
    return RolloutGroups(
        prompts=[row["prompt"] for row in rows],
        completions=completions,
        mask=(torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).to(device),
        advantages=torch.from_numpy(advantages).flatten().to(device),
        scored=torch.from_numpy(scored).to(device),
        tokens=tokens,
        may_rest=bool(scored.any()),
    )


def completion_logps(
    model: Any, backbone: PreTrainedModel, groups: RolloutGroups
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities, with gradient, of the scored groups' completions.

    Args:
        model: The language model, or a distributed wrapper of it.
        backbone: The model itself, without wrapper.
        groups: What is asked about.

    Returns:
        Log-probabilities float32 (P * G, C), and, where the head computes them, entropies of the distributions that the
        tokens were drawn from, without gradient; both 0 where there is no token or the group is not scored.
    """
    scored = groups.scored.nonzero().flatten().tolist()
    if not scored:
        return _nothing(model, backbone, groups)
    logps, entropies = shared_prefix_logps(
        model, backbone, [groups.prompts[place] for place in scored], [groups.completions[place] for place in scored]
    )
    mask = groups.scored_mask
    empty = torch.zeros(mask.shape, device=logps.device)
    return empty.masked_scatter(mask, logps), (
        None if entropies is None else empty.masked_scatter(mask, entropies.detach())
    )


def _nothing(model: Any, backbone: PreTrainedModel, groups: RolloutGroups) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Zeros that one can go backwards from, where no group is scored."""
    if groups.may_rest and model is backbone:
        smallest = min(backbone.parameters(), key=torch.numel)
        nothing = torch.zeros(groups.mask.shape, device=smallest.device) + 0.0 * smallest.sum().float()
        return nothing, nothing.detach()
    # A distributed model waits for every process: take part with a token of no weight.
    logps, entropies = shared_prefix_logps(model, backbone, [groups.prompts[0][:1]], [[groups.completions[0][0][:1]]])
    nothing = logps.sum() * 0.0 + torch.zeros(groups.mask.shape, device=logps.device)
    return nothing, None if entropies is None else nothing.detach()
