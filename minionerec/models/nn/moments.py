"""What a model makes of the moment that it is asked about, and how much popularity there counts."""

import torch
from torch import nn

from minionerec.data.moments import MOMENTS, UNKNOWN

UNTOLD = 0.1
"""How many moments are hidden in training, so that a model also answers where no one tells it."""
UNSOLD = 0.2
"""How often every item counts as a target beside what was counted, so that one that never was has a logarithm."""


def hidden(moments: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Moments of which some, drawn at random, are unknown.

    Args:
        moments: int64 (B, T), places in `minionerec.data.moments.MOMENTS`.
        labels: int64 (B, T); only the moments of those above 0 are drawn.
    """
    found, asked = moments.clone(), labels > 0
    told = moments[asked]
    found[asked] = told.masked_fill(torch.rand(told.shape, device=told.device) < UNTOLD, UNKNOWN)
    return found


class MomentStates(nn.Module):
    """Scales and shifts a state by the moment that it is asked about; at first it leaves all as they are.

    Args:
        width: Width of the state, D.
    """

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(len(MOMENTS), width))
        self.shift = nn.Parameter(torch.zeros(len(MOMENTS), width))

    def forward(self, state: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
        """The state of each moment.

        Args:
            state: float (P, D).
            moments: int64 (P,), places in `minionerec.data.moments.MOMENTS`.

        Returns:
            float (P, D).
        """
        scaled: torch.Tensor = state * (1 + self.scale[moments]) + self.shift[moments]
        return scaled


class LearnedPopularity(nn.Module):
    """How often each item was a target, by moment, as an addition to scores with one weight a moment.

    It is no part of training, where it would learn to be relied on: the weights are found on rows that were held out.

    Args:
        num_items: Number of items, N.

    Attributes:
        logs: float32 (3, N), logarithms of how often, for each moment.
        weights: float32 (3,); 0 until they are found.
    """

    logs: torch.Tensor
    weights: torch.Tensor

    def __init__(self, num_items: int):
        super().__init__()
        self.register_buffer("logs", torch.zeros(len(MOMENTS), num_items))
        self.register_buffer("weights", torch.zeros(len(MOMENTS)))

    def set(self, logs: torch.Tensor, weights: torch.Tensor) -> None:
        """Take logarithms, float (3, N), and weights, float (3,), over."""
        self.logs.copy_(logs)
        self.weights.copy_(weights)

    def forward(self, scores: torch.Tensor, moments: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
        """Scores with the addition.

        Args:
            scores: float (P, N), or (P, C) of some items.
            moments: int64 (P,), places in `minionerec.data.moments.MOMENTS`.
            columns: int64 (C,), those items; all if None.

        Returns:
            float, like `scores`.
        """
        if not bool(self.weights.any()):
            return scores
        logs = self.logs if columns is None else self.logs[:, columns]
        return scores + self.weights[moments, None] * logs[moments]
