"""The loss of S-DPO, and what a prompt's log-ratios tell (Chen et al., 2024).

A log-ratio r is the log-probability of a whole completion, end mark included, under the policy, less that under the
reference: a sum over tokens, not a mean.
"""

import torch
from torch.nn.functional import softplus


def softmax_preference_loss(ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """The loss of each prompt, log(1 + sum over negatives d of exp(beta (r_d - r_target))).

    It is the cross-entropy of a softmax over `beta * ratios` with the target as label. One negative makes it the loss
    of DPO; where policy and reference are equal it is log(1 + N).

    Args:
        ratios: float (P, 1 + N), log-ratios, the target's first.
        beta: Their scale.

    Returns:
        float (P,).

    Example:
        >>> softmax_preference_loss(torch.zeros(1, 4), 0.1).exp().item()
        4.0
    """
    return softplus((beta * (ratios[:, 1:] - ratios[:, :1])).logsumexp(1))


def ratio_figures(ratios: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is logged of each prompt: float (P,) or (P, N) each.

    Args:
        ratios: float (P, 1 + N), log-ratios, the target's first.

    Returns:
        `accuracy`, 1 where the target's log-ratio is above that of every negative; `margin`, how far it is above the
        highest; `log_ratio/target` and `log_ratio/negatives`, which both fall where the policy only flees from
        what it is shown; `kl`, exp(-r) + r - 1 of the target: how far the policy has left the reference there.
    """
    ratios = ratios.detach()
    target, negatives = ratios[:, 0], ratios[:, 1:]
    margin = target - negatives.amax(1)
    return {
        "accuracy": (margin > 0).float(),
        "margin": margin,
        "log_ratio/target": target,
        "log_ratio/negatives": negatives,
        "kl": (-target).exp() + target - 1,
    }
