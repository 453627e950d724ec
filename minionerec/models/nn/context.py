"""Conditioning on request features: scale and shift of states, and popularity, by their codes."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

from minionerec.data.names import UNKNOWN

HIDDEN_SHARE = 0.1
"""Share of each feature's codes that are hidden in training, so that a request may leave any out."""
UNSOLD = 0.2
"""Pseudo-count added to each item's number of targets, so that zeros have a logarithm."""


def hidden(contexts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Replace codes of request features by "unknown" at random, those of each feature by themselves.

    Args:
        contexts: int64 (B, T, F), or (B, F).
        labels: int64 (B, T), or (B,); only codes at labels above 0 are replaced.
    """
    masked, has_target = contexts.clone(), labels > 0
    known = contexts[has_target]
    masked[has_target] = known.masked_fill(torch.rand(known.shape, device=known.device) < HIDDEN_SHARE, UNKNOWN)
    return masked


class CodeTable(nn.Module):
    """Rows of a table for each code of several request features, feature after feature.

    Args:
        sizes: Number of codes of each of F features, `minionerec.data.names.UNKNOWN` among them.
    """

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        self.starts = [0, *accumulate(sizes)]

    @property
    def rows(self) -> int:
        """Number of rows, S."""
        return self.starts[-1]

    def rows_of(self, contexts: torch.Tensor) -> list[torch.Tensor]:
        """The row of each code, for each feature int64 (P,).

        Args:
            contexts: int64 (P, F); or (P, 1), of which each code stands for those of all features.
        """
        starts = self.starts[:-1]
        columns = contexts.expand(-1, len(starts)).unbind(1)
        return [codes + start for codes, start in zip(columns, starts, strict=True)]


class ContextStates(CodeTable):
    """Scale and shift of a state by the codes of request features, summed over features; initialised to the identity.

    Args:
        sizes: See `CodeTable`.
        width: Width of the state, D.
    """

    def __init__(self, sizes: Sequence[int], width: int):
        super().__init__(sizes)
        self.scale = nn.Parameter(torch.zeros(self.rows, width))
        self.shift = nn.Parameter(torch.zeros(self.rows, width))

    def forward(self, state: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        """Scale and shift states by their codes.

        Args:
            state: float (P, D).
            contexts: int64 (P, F).

        Returns:
            float (P, D).
        """
        scale, shift = torch.ones_like(state), torch.zeros_like(state)
        for rows in self.rows_of(contexts):
            scale, shift = scale + self.scale[rows], shift + self.shift[rows]
        return state * scale + shift


class LearnedPopularity(CodeTable):
    """Log frequency of each item as a target, by request feature, added to scores with one weight per code.

    The weights are fitted on held-out examples after training.

    Args:
        sizes: See `CodeTable`.
        num_items: Number of items, N.

    Attributes:
        logs: float32 (S, N), log frequencies for each code of each feature.
        weights: float32 (S,); 0 until they are fitted.
    """

    logs: torch.Tensor
    weights: torch.Tensor

    def __init__(self, sizes: Sequence[int], num_items: int):
        super().__init__(sizes)
        self.register_buffer("logs", torch.zeros(self.rows, num_items))
        self.register_buffer("weights", torch.zeros(self.rows))

    def set(self, logs: torch.Tensor, weights: torch.Tensor) -> None:
        """Copy log frequencies, float (S, N), and weights, float (S,)."""
        self.logs.copy_(logs)
        self.weights.copy_(weights)

    def forward(
        self, scores: torch.Tensor, contexts: torch.Tensor, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add weighted log frequencies to scores.

        Args:
            scores: float (P, N), or (P, C) of some items.
            contexts: int64 (P, F).
            columns: int64 (C,), the items of the columns; all if None.

        Returns:
            float, like `scores`.
        """
        if not bool(self.weights.any()):
            return scores
        logs = self.logs if columns is None else self.logs[:, columns]
        for rows in self.rows_of(contexts):
            scores = scores + self.weights[rows, None] * logs[rows]
        return scores
