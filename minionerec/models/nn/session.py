"""Conditioning on the session context: scale and shift of states, and popularity by context."""

import torch
from torch import nn

from minionerec.data.contexts import SESSION_CONTEXTS, UNKNOWN

HIDDEN_SHARE = 0.1
"""How many contexts are hidden in training, so that a model also answers where no one tells it."""
UNSOLD = 0.2
"""How often every item counts as a target beside what was counted, so that one that never was has a logarithm."""


def hidden(contexts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Session contexts of which some, drawn at random, are unknown.

    Args:
        contexts: int64 (B, T), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.
        labels: int64 (B, T); only the contexts of those above 0 are drawn.
    """
    found, has_target = contexts.clone(), labels > 0
    known = contexts[has_target]
    found[has_target] = known.masked_fill(torch.rand(known.shape, device=known.device) < HIDDEN_SHARE, UNKNOWN)
    return found


class SessionStates(nn.Module):
    """Scales and shifts a state by the session context; at first the identity.

    Args:
        width: Width of the state, D.
    """

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(len(SESSION_CONTEXTS), width))
        self.shift = nn.Parameter(torch.zeros(len(SESSION_CONTEXTS), width))

    def forward(self, state: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        """The state in each context.

        Args:
            state: float (P, D).
            contexts: int64 (P,), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.

        Returns:
            float (P, D).
        """
        scaled: torch.Tensor = state * (1 + self.scale[contexts]) + self.shift[contexts]
        return scaled


class LearnedPopularity(nn.Module):
    """Log frequency of each item as a target, by session context, added to scores with one weight a context.

    It is no part of training, where it would learn to be relied on: the weights are found on rows that were held out.

    Args:
        num_items: Number of items, N.

    Attributes:
        logs: float32 (3, N), logarithms of how often, for each context.
        weights: float32 (3,); 0 until they are found.
    """

    logs: torch.Tensor
    weights: torch.Tensor

    def __init__(self, num_items: int):
        super().__init__()
        self.register_buffer("logs", torch.zeros(len(SESSION_CONTEXTS), num_items))
        self.register_buffer("weights", torch.zeros(len(SESSION_CONTEXTS)))

    def set(self, logs: torch.Tensor, weights: torch.Tensor) -> None:
        """Take logarithms, float (3, N), and weights, float (3,), over."""
        self.logs.copy_(logs)
        self.weights.copy_(weights)

    def forward(
        self, scores: torch.Tensor, contexts: torch.Tensor, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores with the addition.

        Args:
            scores: float (P, N), or (P, C) of some items.
            contexts: int64 (P,), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.
            columns: int64 (C,), those items; all if None.

        Returns:
            float, like `scores`.
        """
        if not bool(self.weights.any()):
            return scores
        logs = self.logs if columns is None else self.logs[:, columns]
        return scores + self.weights[contexts, None] * logs[contexts]
