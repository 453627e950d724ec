"""Preference losses over one preferred and N other completions of a prompt, on `shared_prefix_logps`.

All completions of a prompt are scored in one pass over it, so N more of them cost their own tokens alone.
"""

from collections.abc import Sequence

import torch


def completion_sums(logps: torch.Tensor, completions: Sequence[Sequence[Sequence[int]]]) -> torch.Tensor:
    """Log-probability of each completion, for groups of one size.

    Args:
        logps: (N,), log-probabilities of all tokens, from `shared_prefix_logps`.
        completions: The same completions that it was given; every group has as many.

    Returns:
        (groups, completions of a group), with gradient.
    """
    lengths = [len(one) for group in completions for one in group]
    return torch.stack([part.sum() for part in logps.split(lengths)]).view(len(completions), -1)


def softmax_preference_loss(policy: torch.Tensor, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """S-DPO: the preferred completion against all others at once.

    -log sigmoid(-log sum over the others of exp(beta (their log-ratio - the preferred one's))), a log-ratio being that
    of policy to reference. With one other it is DPO. Source: Chen et al., "On Softmax Direct Preference Optimization
    for Recommendation" (2024).

    Args:
        policy: (B, 1 + N), log-probabilities of completions under the policy, the preferred one first.
        reference: (B, 1 + N), under the reference.
        beta: Weight of the log-ratios.

    Returns:
        The mean over B.

    Example:
        >>> softmax_preference_loss(torch.zeros(3, 2), torch.zeros(3, 2), beta=1.0).item()
        0.6931471824645996
    """
    ratios = beta * (policy - reference)
    return -torch.nn.functional.logsigmoid(-(ratios[:, 1:] - ratios[:, :1]).logsumexp(1)).mean()
