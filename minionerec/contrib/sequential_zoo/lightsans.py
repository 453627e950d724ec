"""LightSANs: attention from items to a few interests."""

import math
from typing import Any

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.models.nn.layers import (
    NORM_EPS,
    Dropout,
    FeedForward,
    Linear,
    TransformerLayer,
    check_heads,
    full_width,
    init_weights,
    readout_slots,
    take_slots,
)
from minionerec.models.sequential.model import SequentialModel


class InterestAttention(nn.Module):
    """Items attend to k pooled interests, and positions to positions: LN(x + Drop(O(item part + position part))).

    Pooling of z, which is K or V: C = softmax over slots of z θ, interests Cᵀ z. Item part of head h: softmax over
    slots of Q_h (Cᵀ K)_hᵀ / √d, with dropout, times (Cᵀ V)_h. Position part, the same for every row: softmax over the
    query slots of Q_P K_Pᵀ / (√(2 d) √d), times V_h, with Q_P and K_P linear in LN(P).

    What is constant along the slots drops out of a softmax over them, so three things need no product per slot: the
    pooling scores are x (Wᵀ θ); interests are W (Cᵀ x) + b, since the columns of C sum to 1; and item scores are
    x (W_Qᵀ K'), K' the interests.

    Attributes:
        query: Its bias changes nothing and gets no gradient; the published count holds it.
        key_pool: float (D, k), θ of the keys; N(0, 1) at first.
        value_pool: float (D, k), θ of the values.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, num_interests: int, hidden_dropout: float, attention_dropout: float
    ):
        super().__init__()
        self.num_heads = num_heads
        self.query = Linear(hidden_size, hidden_size)
        self.key = Linear(hidden_size, hidden_size)
        self.value = Linear(hidden_size, hidden_size)
        self.position_query = Linear(hidden_size, hidden_size)
        self.position_key = Linear(hidden_size, hidden_size)
        self.out = Linear(hidden_size, hidden_size)
        self.key_pool = nn.Parameter(torch.randn(hidden_size, num_interests))
        self.value_pool = nn.Parameter(torch.randn(hidden_size, num_interests))
        self.position_norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.attention_dropout = Dropout(attention_dropout)
        self.dropout = Dropout(hidden_dropout)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Attend.

        Args:
            x: float (B, L, D), all L = max_len slots.
            positions: float (L, D), P.
            at: int64 (B,), the slot of each row to compute; all if None.

        Returns:
            float (B, L, D), or (B, D) with `at`.
        """
        pools = torch.cat((self.key.weight.T @ self.key_pool, self.value.weight.T @ self.value_pool), 1)  # (D, 2k)
        pooled = (pools.T @ x.transpose(1, 2)).softmax(-1) @ x  # (B, 2k, D)
        keys, values = pooled.chunk(2, 1)
        keys, values = self.split_heads(self.key(keys)), self.split_heads(self.value(values))  # (B, H, k, d)
        query = self.query.weight.unflatten(0, (self.num_heads, -1)) / math.sqrt(keys.shape[-1])  # (H, d, D)
        scores = (keys @ query).flatten(1, 2) @ x.transpose(1, 2)  # (B, H k, L)
        weights = scores.softmax(-1).unflatten(1, (self.num_heads, -1))  # (B, H, k, L)
        order = self.position_weights(positions)  # (H, L, L)
        if at is None:
            item_part = torch.einsum("bhkl,bhkd->blhd", self.attention_dropout(weights), values)
            position_part = torch.einsum("hlm,bmhd->blhd", order, self.value(x).unflatten(-1, (self.num_heads, -1)))
            merged: torch.Tensor = self.norm(x + self.dropout(self.out((item_part + position_part).flatten(2))))
            return merged
        chosen = weights[torch.arange(len(x), device=x.device), ..., at]  # (B, H, k)
        item_part = (self.attention_dropout(chosen)[:, :, None] @ values)[:, :, 0]  # (B, H, d)
        order = order.transpose(0, 1)[at]  # (B, H, L)
        weight = self.value.weight.unflatten(0, (self.num_heads, -1))  # (H, d, D)
        bias = self.value.bias.unflatten(0, (self.num_heads, -1)) * order.sum(-1, keepdim=True)
        position_part = torch.einsum("bhe,hde->bhd", order @ x, weight) + bias
        mixed = (item_part + position_part).flatten(1)
        newest: torch.Tensor = self.norm(take_slots(x, at) + self.dropout(self.out(mixed)))
        return newest

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(..., M, D) as (..., H, M, D / H)."""
        heads: torch.Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
        return heads

    def position_weights(self, positions: torch.Tensor) -> torch.Tensor:
        """Weights of the position part: (L, D) to (H, L, L), columns summing to 1."""
        normed = self.position_norm(positions)
        query, key = self.split_heads(self.position_query(normed)), self.split_heads(self.position_key(normed))
        return (query @ key.transpose(1, 2) / (math.sqrt(2) * query.shape[-1])).softmax(1)


class LightSANs(SequentialModel):
    """Low-rank decomposed self-attention (Fan et al., "Lighter and Better", SIGIR 2021).

    Item-to-interest aggregation and interaction, decoupled position encoding, tied output. The published implementation
    departs from the paper:

    1. Both softmaxes of the attention run over the queries, not over what they attend to: over the slots for each
       interest, and over the query slots for each key slot of the position part.
    2. There is neither a padding mask nor a causal mask: padding slots hold row 0 of the item table, which is drawn
       like the others and learns as a class, and take part in the pooling and in the softmaxes.
    3. Keys and values have pools θ of their own, applied to the projected sequence; θ starts from N(0, 1) and not from
       the 0.02 of the other matrices.
    4. Position queries are divided by √(2 d) and the scores by √d once more. The position part has no dropout, and
       multiplies values that are not pooled.
    5. The loss is the full softmax over all V rows, the padding row included.

    Args:
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        attention_dropout: Dropout of the weights of interests.
        hidden_dropout: Dropout after the embedding and each part of a layer.
        num_interests: Interests k.
    """

    def __init__(
        self,
        *,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        attention_dropout: float = 0.5,
        hidden_dropout: float = 0.5,
        num_interests: int = 5,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        hidden_size = self.hidden_size
        check_heads(hidden_size, num_heads)
        if num_interests < 1:
            raise ConfigError(f"num_interests is {num_interests}; it must be at least 1.")
        self.items = nn.Embedding(self.num_items + 1, hidden_size, padding_idx=0)
        self.positions = nn.Embedding(self.max_len, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.dropout = Dropout(hidden_dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(
                InterestAttention(hidden_size, num_heads, num_interests, hidden_dropout, attention_dropout),
                FeedForward(hidden_size, inner_size, hidden_dropout),
            )
            for _ in range(num_layers)
        )
        self.apply(init_weights)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        histories = full_width(histories, self.max_len, self.padding)
        positions = self.positions.weight
        x = self.dropout(self.norm(self.items(histories)))
        for layer in self.layers[:-1]:
            x = layer(x, positions)
        vectors: torch.Tensor = self.layers[-1](x, positions, readout_slots(histories, self.padding))
        return vectors

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight
