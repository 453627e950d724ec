"""Encoders that see padding as they see items."""

import torch
from torch import nn

from minionerec.nn.layers import FeedForward, ItemEmbedding
from minionerec.nn.padding import full_width, readout_slots
from minionerec.sequential.model import SequentialModel


class MixingLayer(nn.Module):
    """Something that mixes slots, then the position-wise network, each followed by its norm.

    Attributes:
        mix: Maps float (B, L, D) to the same shape, or to (B, D) with the slot of each row that is wanted.
        feed_forward: The position-wise network.
    """

    def __init__(self, mix: nn.Module, feed_forward: FeedForward):
        super().__init__()
        self.mix = mix
        self.feed_forward = feed_forward

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """As `mix`."""
        result: torch.Tensor = self.feed_forward(self.mix(x, at))
        return result


class UnmaskedEncoder(SequentialModel):
    """Layers that mix all `max_len` slots, padding included, behind an embedding block whose table scores items too.

    Attributes:
        embedding: The embedding block.
        layers: Each maps float (B, L, D) to the same shape, or to (B, D) with the slot of each row that is wanted.
    """

    embedding: ItemEmbedding
    layers: nn.ModuleList

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        histories = full_width(histories, self.max_len, self.padding)
        x = self.embedding(histories)
        for layer in self.layers[:-1]:
            x = layer(x)
        vectors: torch.Tensor = self.layers[-1](x, readout_slots(histories, self.padding))
        return vectors

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.embedding.items.weight
