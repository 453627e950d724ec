"""What a catalogue model gives."""

from dataclasses import dataclass

import torch
from transformers.utils.generic import ModelOutput


@dataclass
class CatalogueOutput(ModelOutput):
    """What the model says of histories.

    Attributes:
        loss: float scalar, mean over towers and labels of the negative log-probability; only with labels.
        log_probs: float32 (P, N), of every SID, averaged over towers: after the newest item of each history, or with
            `distribution` at each label, row by row.
    """

    loss: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None
