"""Encoders that several models share: causal layers, and layers that see padding as they see items."""

import math

import torch
from torch import nn

from minionerec.models.nn.causal import CausalLayer
from minionerec.models.nn.layers import INIT_STD, FeedForward, ItemEmbedding, by_length, causal_mask
from minionerec.models.nn.padding import full_width, readout_slots
from minionerec.models.sequential.model import SequentialModel


class CausalEncoder(SequentialModel):
    """Causal pre-norm layers, and a norm behind them, over the vectors that a model makes of its histories.

    Attributes:
        layers: Causal layers.
        norm: What the last state goes through.
    """

    causal = True
    masks_padding = True
    layers: nn.ModuleList
    norm: nn.LayerNorm

    def embed(self, histories: torch.Tensor) -> torch.Tensor:
        """What the first layer reads: int64 (B, L) to float (B, L, D)."""
        raise NotImplementedError

    def scale_residual_maps(self) -> None:
        """Draw the maps that end in residual connections so that their sum does not grow with the number of layers."""
        for layer in self.modules():
            if isinstance(layer, CausalLayer):
                for part in (layer.out, layer.outer):
                    nn.init.normal_(part.weight, std=INIT_STD / math.sqrt(2 * len(self.layers)))

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._last_vectors, histories, self.padding)

    def _last_vectors(self, histories: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x, mask = self.embed(histories), causal_mask(histories)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        vectors: torch.Tensor = self.norm(self.layers[-1](x, mask, readout_slots(histories, self.padding))[:, 0])
        return vectors

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        x, mask = self.embed(histories), causal_mask(histories)
        for layer in self.layers:
            x = layer(x, mask)
        vectors: torch.Tensor = self.norm(x)
        return vectors


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
