"""SASRec: self-attention over the past."""

import torch
from torch import nn

from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    ItemEmbedding,
    TransformerLayer,
    by_length,
    causal_mask,
    check_heads,
    init_weights,
)
from minionerec.models.nn.padding import readout_slots
from minionerec.models.sequential.model import SequentialModel


class SASRec(SequentialModel):
    """A causal post-norm transformer over items (Kang & McAuley, "Self-Attentive Sequential Recommendation", 2018).

    Embedding of §III-A, self-attention of §III-B (eq. 2 to 4), tied output of §III-D (eq. 6). Where the published
    implementations behind the tables depart from the paper:

    1. Norms stand behind the residual connections (post-norm), not before the layers.
    2. The position-wise network is four times as wide as the model and has a GELU; the paper's keeps the width, with a
       ReLU.
    3. Attention has an output projection and biases.
    4. The loss is the full softmax over all V rows of the item table, the padding row included, at the last position
       alone; the paper has binary cross-entropy with one negative at all positions (`sequence_loss` is the full
       softmax at all positions).
    5. Item vectors are not multiplied by √D.

    Args:
        num_items: Number of items.
        max_len: Longest history.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
    """

    causal = True
    masks_padding = True

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "right",
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        hidden_dropout: float = 0.5,
        attention_dropout: float = 0.5,
    ):
        super().__init__(num_items, max_len, padding)
        check_heads(hidden_size, num_heads)
        self.embedding = ItemEmbedding(num_items, max_len, hidden_size, hidden_dropout, padding)
        self.layers = nn.ModuleList(
            TransformerLayer(hidden_size, num_heads, inner_size, hidden_dropout, attention_dropout)
            for _ in range(num_layers)
        )
        self.apply(init_weights)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._last_vectors, histories, self.padding)

    def _last_vectors(self, histories: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x, mask = self.embedding(histories), causal_mask(histories)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        newest: torch.Tensor = self.layers[-1](x, mask, readout_slots(histories, self.padding))[:, 0]
        return newest

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        x: torch.Tensor = self.embedding(histories)
        mask = causal_mask(histories)
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.embedding.items.weight
