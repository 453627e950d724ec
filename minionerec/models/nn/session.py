"""Conditioning on the session context: scale and shift of states, and popularity by context."""

import torch
from torch import nn

from minionerec.data.contexts import SESSION_CONTEXTS, UNKNOWN

HIDDEN_SHARE = 0.1
"""Share of contexts that are hidden in training, so that the model also works without them."""
UNSOLD = 0.2
"""Pseudo-count added to each item's number of targets, so that zeros have a logarithm."""


def hidden(contexts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Replace session contexts by "unknown" at random.

    Args:
        contexts: int64 (B, T), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.
        labels: int64 (B, T); only contexts at labels above 0 are replaced.
    """
    masked, has_target = contexts.clone(), labels > 0
    known = contexts[has_target]
    masked[has_target] = known.masked_fill(torch.rand(known.shape, device=known.device) < HIDDEN_SHARE, UNKNOWN)
    return masked


class SessionStates(nn.Module):
    """Scale and shift of a state by session context; initialised to the identity.

    Args:
        width: Width of the state, D.
    """

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(len(SESSION_CONTEXTS), width))
        self.shift = nn.Parameter(torch.zeros(len(SESSION_CONTEXTS), width))

    def forward(self, state: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        """Scale and shift states by their contexts.

        Args:
            state: float (P, D).
            contexts: int64 (P,), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.

        Returns:
            float (P, D).
        """
        scaled: torch.Tensor = state * (1 + self.scale[contexts]) + self.shift[contexts]
        return scaled


class LearnedPopularity(nn.Module):
    """Log frequency of each item as a target, by session context, added to scores with one weight per context.

    The weights are fitted on held-out examples after training.

    Args:
        num_items: Number of items, N.

    Attributes:
        logs: float32 (3, N), log frequencies for each context.
        weights: float32 (3,); 0 until they are fitted.
    """

    logs: torch.Tensor
    weights: torch.Tensor

    def __init__(self, num_items: int):
        super().__init__()
        self.register_buffer("logs", torch.zeros(len(SESSION_CONTEXTS), num_items))
        self.register_buffer("weights", torch.zeros(len(SESSION_CONTEXTS)))

    def set(self, logs: torch.Tensor, weights: torch.Tensor) -> None:
        """Copy log frequencies, float (3, N), and weights, float (3,)."""
        self.logs.copy_(logs)
        self.weights.copy_(weights)

    def forward(
        self, scores: torch.Tensor, contexts: torch.Tensor, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add weighted log frequencies to scores.

        Args:
            scores: float (P, N), or (P, C) of some items.
            contexts: int64 (P,), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.
            columns: int64 (C,), the items of the columns; all if None.

        Returns:
            float, like `scores`.
        """
        if not bool(self.weights.any()):
            return scores
        logs = self.logs if columns is None else self.logs[:, columns]
        return scores + self.weights[contexts, None] * logs[contexts]
