"""Last part of a step: the loss of GRPO and its relatives, from log-probabilities and advantages.

GRPO: Shao et al., "DeepSeekMath" (2024), equation 3, with the KL term of its equation 4; bnpo and dapo take the mean
over tokens instead of completions (Yu et al., "DAPO", 2025, section 3.3); gspo takes one ratio a completion (Zheng et
al., "GSPO", 2025). The numbers are those of TRL's losses of these names.
"""

from dataclasses import dataclass

import torch

from minionerec.training.grpo.scoring import RolloutGroups

CLIP = 0.2  # ratios are clipped to 1 - CLIP and 1 + CLIP


@dataclass(frozen=True)
class LossTerms:
    """A loss, and what it is made of.

    Attributes:
        loss: Scalar with gradient, divided by the slices of the step.
        ratio: float32 (R, C), of each token's probability to the one it was rolled out with; (R, 1) of a completion's.
        kl: float32 (R, C), each token's estimate of the divergence from the reference; None without a KL term.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    kl: torch.Tensor | None


def policy_loss(
    logps: torch.Tensor,
    groups: RolloutGroups,
    *,
    kind: str = "grpo",
    beta: float = 0.0,
    slices: int = 1,
    processes: int = 1,
) -> LossTerms:
    """The loss of one slice of a step.

    There is one update a rollout, so every ratio is 1 and clipping does not act; the ratio is there for its gradient.

    Args:
        logps: float32 (R, C), log-probabilities of the completions' tokens, 0 where there is none or the group is not
            scored.
        groups: Advantages, mask and the reference's log-probabilities.
        kind: "grpo" (mean over each completion, then over completions), "bnpo" (mean over the slice's tokens), "dapo"
            (mean over the step's tokens) or "gspo" (as grpo, with one ratio a completion).
        beta: Weight of the KL term.
        slices: Slices of the step on each device.
        processes: Devices.
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
        return LossTerms((losses * mask).sum() / (groups.tokens / processes), ratio.detach(), kl)
    if kind == "bnpo":
        loss = (losses * mask).sum() / mask.sum().clamp(min=1.0)
    else:
        loss = ((losses * mask).sum(-1) / lengths).mean()
    return LossTerms(loss / slices, ratio.detach(), kl)
