"""Last part of a step: the loss of GRPO and its relatives, and the target's beside it, from log-probabilities.

GRPO: Shao et al., "DeepSeekMath" (2024), equation 3, with the KL term of its equation 4; bnpo and dapo take the mean
over tokens instead of completions (Yu et al., "DAPO", 2025, section 3.3); gspo takes one ratio a completion (Zheng et
al., "GSPO", 2025). The numbers are those of TRL's losses of these names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from minionerec.training.distillation import SoftTargets, soften
from minionerec.training.grpo.rollouts import Row
from minionerec.training.packing import shared_prefix_scores
from minionerec.training.rewards import Rollouts

# Third part of a step: log-probabilities of the completions of those groups that matter, and of targets.
#
# Groups stay whole: a device computes whole groups at a time, in the order in which they were rolled out. A group whose
# rewards are all equal has no advantage, and is left out of the reference and policy passes; its share in every mean is
# kept, so that the gradient is that of the whole batch but for such groups' KL term.


@dataclass(frozen=True)
class RolloutGroups:
    """P groups: prompts with G completions each. A step's, or the share of them that is computed at a time.

    Attributes:
        prompts: Token ids of each prompt.
        completions: Token ids of the G completions of each prompt.
        mask: bool (P * G, C), where a completion has a token; completions are ordered by group.
        advantages: float32 (P * G,).
        scored: bool (P,), the groups that are computed.
        tokens: Completion tokens of the whole step, over all devices.
        may_rest: Whether the model may be left alone where no group is scored: not where that is so in the whole step,
            for then the optimiser would miss most gradients.
        reference: float32 (P * G, C), log-probabilities under the reference model, 0 where there is no token or the
            group is not scored; None without a KL term.
        targets: Token ids of each prompt's target as a completion, of scored groups and others; None without the term
            likelihood.
        soft: A teacher's next codes for the targets' tokens, counted through all prompts; None without one.
    """

    prompts: Sequence[list[int]]
    completions: Sequence[Sequence[list[int]]]
    mask: torch.Tensor
    advantages: torch.Tensor
    scored: torch.Tensor
    tokens: int
    may_rest: bool
    reference: torch.Tensor | None = None
    targets: Sequence[list[int]] | None = None
    soft: SoftTargets | None = None

    def __len__(self) -> int:
        """Number of groups, P."""
        return len(self.prompts)

    @property
    def scored_mask(self) -> torch.Tensor:
        """Where there is a token that is computed: bool (P * G, C)."""
        return self.mask & self.scored.repeat_interleave(len(self.mask) // len(self)).unsqueeze(1)

    @cached_property
    def own_tokens(self) -> int:
        """Completion tokens of these groups."""
        return sum(len(ids) for group in self.completions for ids in group)

    @property
    def target_mask(self) -> torch.Tensor:
        """Where a target has a token: bool (P, T)."""
        lengths = torch.tensor([len(ids) for ids in self.targets or ()])
        return (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).to(self.mask.device)

    def branches(self) -> list[tuple[list[int], list[list[int]]]]:
        """Each prompt with what is scored behind it, completions and last the target; no tokens where nothing is."""
        found = []
        for position, used in enumerate(self.scored.tolist()):
            answers = list(self.completions[position]) if used else []
            answers += [] if self.targets is None else [self.targets[position]]
            found.append((self.prompts[position] if answers else [], answers))
        return found

    def parts(self, size: int) -> list["RolloutGroups"]:
        """The groups in order, so many at a time."""
        return [self.part(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def part(self, start: int, stop: int) -> "RolloutGroups":
        """Some groups."""
        size = len(self.mask) // len(self)
        rows = slice(start * size, stop * size)
        soft = self.soft
        if soft is not None and self.targets is not None:
            before = sum(map(len, self.targets[:start]))
            soft = soft.part(before, before + sum(map(len, self.targets[start:stop])))
        return replace(
            self,
            prompts=self.prompts[start:stop],
            completions=self.completions[start:stop],
            mask=self.mask[rows],
            advantages=self.advantages[rows],
            scored=self.scored[start:stop],
            reference=None if self.reference is None else self.reference[rows],
            targets=None if self.targets is None else self.targets[start:stop],
            soft=soft,
        )


def completions_of(rollouts: Rollouts, rows: Sequence[Row], sid_tokens: Sequence[list[int]]) -> list[list[list[int]]]:
    """Token ids of each prompt's completions: the SID's, and the tail that the wording puts after it."""
    found = zip(rollouts.sids.tolist(), rows, strict=True)
    return [[sid_tokens[sid] + row["tail"] for sid in group] for group, row in found]


def make_groups(
    rows: Sequence[Row],
    completions: Sequence[Sequence[list[int]]],
    advantages: np.ndarray,
    scored: np.ndarray,
    tokens: int,
    device: torch.device,
    targets: Sequence[list[int]] | None = None,
    soft: SoftTargets | None = None,
) -> RolloutGroups:
    """The groups of a step on one device.

    Args:
        rows: P rows.
        completions: Token ids of the G completions of each.
        advantages: float32 (P, G).
        scored: bool (P,).
        tokens: Completion tokens of the step, over all devices.
        device: Device of the tensors.
        targets: Token ids of each target as a completion, for the term likelihood.
        soft: A teacher's next codes for them.
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
        targets=targets,
        soft=soft,
    )


@dataclass(frozen=True)
class Scores:
    """Scores of a slice's completions, with gradient; 0 where there is no token or the group is not scored.

    Attributes:
        logps: float32 (P * G, C), log-probabilities of tokens.
        entropies: float32 (P * G, C), entropies of the distributions that the tokens were drawn from, without gradient;
            None where they are not computed.
        targets: float32 (P,), the mean loss over the tokens of each group's target; None where there are none.
    """

    logps: torch.Tensor
    entropies: torch.Tensor | None
    targets: torch.Tensor | None = None


def completion_scores(model: Any, backbone: PreTrainedModel, groups: RolloutGroups) -> Scores:
    """Score the completions of the scored groups, and all targets, in one pass over each prompt.

    A target is one more branch behind its prompt, and costs nothing where it is among the completions. The loss of its
    tokens is their cross-entropy, or that to a teacher's next codes.

    Args:
        model: The language model, or a distributed wrapper of it.
        backbone: The model itself, without wrapper.
        groups: The groups to score.
    """
    found = [(prompt, answers) for prompt, answers in groups.branches() if answers]
    if not found:
        return _nothing(model, backbone, groups)
    layout, branches = _layout(groups), [answers for _, answers in found]
    logps, entropies, logits_of = shared_prefix_scores(model, backbone, [prompt for prompt, _ in found], branches)
    completions = _laid_out(logps, layout, groups)
    drawn = None if entropies is None else _laid_out(entropies.detach(), layout, groups)
    if groups.targets is None:
        return Scores(completions, drawn)
    losses = -logps
    if groups.soft is not None:
        labels = torch.tensor([token for group in branches for ids in group for token in ids], device=logps.device)
        numbers = (layout.flatten().cumsum(0) - 1).view_as(layout)[:, -1][layout[:, -1]]  # of the targets' tokens
        soft = replace(groups.soft, positions=numbers[groups.soft.positions])
        losses = soften(losses, logits_of, labels, soft, 1.0)
    of_targets = torch.zeros(layout.shape, device=losses.device).masked_scatter(layout, losses)[:, -1]
    return Scores(completions, drawn, of_targets.sum(1) / layout[:, -1].sum(1))


def _layout(groups: RolloutGroups) -> torch.Tensor:
    """Where there is a token that is computed, targets behind completions: bool (P, G + 1, W), or (P, G, W)."""
    completions: torch.Tensor = groups.scored_mask.unflatten(0, (len(groups), -1))
    if groups.targets is None:
        return completions
    targets = groups.target_mask.unsqueeze(1)
    width = max(completions.shape[2], targets.shape[2])
    parts = [torch.nn.functional.pad(part, (0, width - part.shape[2])) for part in (completions, targets)]
    return torch.cat(parts, 1)


def _laid_out(values: torch.Tensor, layout: torch.Tensor, groups: RolloutGroups) -> torch.Tensor:
    """Values of the completions' tokens among those of a layout, float32 (N,), as float32 (P * G, C)."""
    whole = torch.zeros(layout.shape, device=values.device).masked_scatter(layout, values)
    size, width = len(groups.mask) // len(groups), groups.mask.shape[1]
    return whole[:, :size, :width].flatten(0, 1)


def _nothing(model: Any, backbone: PreTrainedModel, groups: RolloutGroups) -> Scores:
    """Zeros that one can go backwards from, where no group is scored."""
    if groups.may_rest and model is backbone:
        smallest = min(backbone.parameters(), key=torch.numel)
        nothing = torch.zeros(groups.mask.shape, device=smallest.device) + 0.0 * smallest.sum().float()
        return Scores(nothing, nothing.detach())
    # A distributed model waits for every process: take part with a token of no weight.
    prompt, completion = groups.prompts[0][:1], groups.completions[0][0][:1]
    logps, entropies, _ = shared_prefix_scores(model, backbone, [prompt], [[completion]])
    nothing = logps.sum() * 0.0 + torch.zeros(groups.mask.shape, device=logps.device)
    return Scores(nothing, None if entropies is None else nothing.detach())


CLIP = 0.2  # ratios are clipped to 1 - CLIP and 1 + CLIP


def policy_loss(
    logps: torch.Tensor,
    groups: RolloutGroups,
    *,
    kind: str = "grpo",
    beta: float = 0.0,
    slices: float = 1,
    processes: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The loss of one slice of a step.

    There is one update a rollout, so every ratio is 1 and clipping does not act; the ratio is there for its gradient.

    Args:
        logps: float32 (R, C), log-probabilities of the completions' tokens, 0 where there is none or the group is not
            scored.
        groups: Advantages, mask and the reference's log-probabilities.
        kind: "grpo" (mean over each completion, then over completions), "bnpo" (mean over the slice's tokens), "dapo"
            (mean over the step's tokens) or "gspo" (as grpo, with one ratio a completion).
        beta: Weight of the KL term.
        slices: Slices of the step on each device: how often the slice's completions (of bnpo, its tokens) would make up
            the device's.
        processes: Devices.

    Returns:
        The loss, a scalar with gradient, divided by the slices of the step; the ratio of each token's probability to
        the one it was rolled out with, float32 (R, C), or of a completion's, (R, 1); and each token's estimate of the
        divergence from the reference, float32 (R, C), None without a KL term.
    """
    mask, advantages = groups.mask.float(), groups.advantages.unsqueeze(1)
    lengths = mask.sum(-1).clamp(min=1.0)
    log_ratio = logps - logps.detach()
    if kind == "gspo":
        log_ratio = ((log_ratio * mask).sum(-1) / lengths).unsqueeze(-1)
    ratio = log_ratio.exp()
    kl = None
    if groups.reference is not None:
        kl = (groups.reference - logps).exp() - (groups.reference - logps) - 1
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    if kl is not None:
        losses = losses + beta * kl
    if kind == "dapo":
        return (losses * mask).sum() / (groups.tokens / processes), ratio.detach(), kl
    if kind == "bnpo":
        loss = (losses * mask).sum() / mask.sum().clamp(min=1.0)
    else:
        loss = ((losses * mask).sum(-1) / lengths).mean()
    return loss / slices, ratio.detach(), kl
