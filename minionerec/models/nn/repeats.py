"""How probable it is that an item of a history is chosen again, item by item."""

import torch
from torch import nn


class Repeats(nn.Module):
    """Gives the items of a history the probability of being chosen again that was counted in training.

    It stands in place of the model's own, which knows the items of a history by how long ago they came and not by how
    often they are chosen again; then all probabilities are scaled to sum to 1.

    Args:
        num_items: Number of items, N.

    Attributes:
        logs: float32 (N,), logarithms of the share of the times that an item was in the history in which it was chosen.
        prior: float32 (), the same of an item that was in none.
        shift: float32 (), added to the logarithms; minus infinity where nothing is changed.
    """

    logs: torch.Tensor
    prior: torch.Tensor
    shift: torch.Tensor

    def __init__(self, num_items: int):
        super().__init__()
        self.register_buffer("logs", torch.zeros(num_items))
        self.register_buffer("prior", torch.zeros(()))
        self.register_buffer("shift", torch.full((), -torch.inf))

    def set(self, logs: torch.Tensor, prior: torch.Tensor | float, shift: torch.Tensor | float) -> None:
        """Take what was counted over, and the shift that was found."""
        self.logs.copy_(logs)
        self.prior.fill_(float(prior))
        self.shift.fill_(float(shift))

    def forward(
        self, log_probs: torch.Tensor, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor
    ) -> torch.Tensor:
        """Log-probabilities with those of the items of the histories.

        Args:
            log_probs: float32 (P, N).
            histories: int64 (B, T), items from 1, 0 is padding.
            row: int64 (P,), the history of each position.
            slot: int64 (P,), its column: the newest item that is read.

        Returns:
            float32 (P, N).
        """
        if bool(torch.isneginf(self.shift)):
            return log_probs
        back = torch.arange(histories.shape[1], device=histories.device) <= slot[:, None]
        items = histories[row] * back  # (P, T)
        given = (self.logs[(items - 1).clamp(min=0)] + self.shift).to(log_probs.dtype)
        changed = nn.functional.pad(log_probs, (1, 0)).scatter(1, items, given)  # the column of padding is left out
        return changed[:, 1:].log_softmax(-1)
