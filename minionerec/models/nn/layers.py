"""Layers that several models share, and the two exact savings: short batches and single readouts."""

import math
from collections.abc import Callable

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.dropout import Dropout
from minionerec.models.nn.linear import Linear, linear
from minionerec.models.nn.padding import length_groups, slot_range, take_slots

MASKED = -10000.0
"""Added to the scores of keys that may not be seen; finite, so that a row without any visible key stays defined."""
INIT_STD = 0.02
NORM_EPS = 1e-12


def init_weights(module: nn.Module) -> None:
    """Draw the weights of one layer as the published models do; to be used with `nn.Module.apply`.

    Linear and Embedding weights come from N(0, 0.02), the padding row of an embedding included; linear biases and
    LayerNorm biases are 0, LayerNorm weights 1. Convolutions and bare parameters stay as they are.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
        nn.init.zeros_(module.bias)


def check_heads(hidden_size: int, num_heads: int) -> None:
    """Check that a width divides into heads.

    Raises:
        ConfigError: If it does not.
    """
    if num_heads < 1 or hidden_size % num_heads:
        raise ConfigError(f"hidden_size is {hidden_size}, which is no multiple of num_heads {num_heads}.")


def causal_mask(histories: torch.Tensor) -> torch.Tensor:
    """What is added to attention scores so that a query sees the items up to itself, and no padding.

    Args:
        histories: int64 (B, L), 0 is padding.

    Returns:
        float32 (B, 1, L, L): 0 where key <= query and the key is an item, else -10000.
    """
    width = histories.shape[1]
    past = torch.ones(width, width, dtype=torch.bool, device=histories.device).tril_()
    seen = past & (histories > 0)[:, None, None, :]
    return torch.where(seen, 0.0, MASKED)


def item_mask(histories: torch.Tensor) -> torch.Tensor:
    """What is added to attention scores so that every query sees all items, and no padding: float32 (B, 1, 1, L)."""
    return torch.where(histories > 0, 0.0, MASKED)[:, None, None, :]


def by_length(
    encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], histories: torch.Tensor, padding: Side
) -> torch.Tensor:
    """Encode a batch in up to three groups of similar length, each without the columns that are padding in all of it.

    Only for encoders whose result for a row does not hang on its padding columns: those that mask padding as keys, read
    one slot, and number slots with `slot_range`. A row without any item keeps the full width, because there every key
    is masked alike and the padding takes part.

    Args:
        encode: From int64 (b, w) and the rows' places in the batch, int64 (b,), to float (b, D).
        histories: int64 (B, L).
        padding: Side of the padding.

    Returns:
        float (B, D), in the order of the rows.
    """
    groups = length_groups(histories, padding)
    if len(groups) == 1:
        places, columns = groups[0]
        return encode(histories[:, columns], places)
    parts = [encode(histories[places, columns], places) for places, columns in groups]
    order = torch.cat([places for places, _ in groups])
    return torch.cat(parts).index_select(0, order.argsort())


class ItemEmbedding(nn.Module):
    """Items and slots as vectors: Dropout(LayerNorm(E[item] + P[slot])), LayerNorm eps 1e-12.

    Attributes:
        items: Table of V = num_items + 1 rows; row 0 is padding, which look-ups leave without a gradient.
        positions: Table of max_len rows.
    """

    def __init__(self, num_items: int, max_len: int, hidden_size: int, dropout: float, padding: Side):
        super().__init__()
        self.max_len, self.padding = max_len, padding
        self.items = nn.Embedding(num_items + 1, hidden_size, padding_idx=0)
        self.positions = nn.Embedding(max_len, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.dropout = Dropout(dropout)

    def forward(self, histories: torch.Tensor) -> torch.Tensor:
        """Embed int64 (B, w), w at most max_len, padding columns possibly cut off: float (B, w, D)."""
        slots = slot_range(histories.shape[1], self.max_len, self.padding)
        embedded: torch.Tensor = self.dropout(self.norm(self.items(histories) + self.positions.weight[slots]))
        return embedded


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: Dropout | None = None
) -> torch.Tensor:
    """Scaled dot-product attention, softmax(q kᵀ / √d + mask) v, with dropout on the attention weights.

    Args:
        q: float (B, H, M, d).
        k: float (B, H, L, d).
        v: float (B, H, L, d).
        mask: float, broadcast to (B, H, M, L), added to the scores; None for none.
        dropout: Applied to the weights.

    Returns:
        float (B, H, M, d).
    """
    if dropout is None or dropout.p == 0 or not dropout.training:
        return nn.functional.scaled_dot_product_attention(q, k, v, None if mask is None else mask.to(q.dtype))
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.add_(mask)
    context: torch.Tensor = dropout(scores.softmax(-1)) @ v
    return context


class AttentionFrame(nn.Module):
    """What stands around attention: maps to queries, keys and values, and LN(x + Drop(O(heads))), LayerNorm eps 1e-12.

    The projections Q, K and V, each D x D with bias, stand in one matrix.
    """

    def __init__(self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.out = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.attention_dropout = Dropout(attention_dropout)
        self.dropout = Dropout(hidden_dropout)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(B, M, D) as (B, H, M, D / H)."""
        heads: torch.Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads

    def project(
        self, x: torch.Tensor, at: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, split into heads.

        Args:
            x: float (B, L, D).
            at: int64 (B,), the one slot of each row that queries; all slots if None.

        Returns:
            float (B, H, M, d), M = 1 with `at`, else L; float (B, H, L, d); the same.
        """
        if at is None:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            width = x.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q = linear(take_slots(x, at)[:, None], weight[:width], bias[:width])
            k, v = linear(x, weight[width:], bias[width:]).chunk(2, -1)
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)

    def merge(self, context: torch.Tensor, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Output projection, dropout, residual connection and norm.

        Args:
            context: float (B, H, M, d).
            x: float (B, L, D), the layer's input.
            at: As in `project`.

        Returns:
            float (B, M, D).
        """
        given = x if at is None else take_slots(x, at)[:, None]
        merged: torch.Tensor = self.norm(given + self.dropout(self.out(context.transpose(1, 2).flatten(2))))
        return merged


class SelfAttention(AttentionFrame):
    """Multi-head self-attention with a residual connection."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, at: torch.Tensor | None = None) -> torch.Tensor:
        """Attend.

        Args:
            x: float (B, L, D).
            mask: float, broadcast to (B, 1, L, L), added to the scores; None for none.
            at: int64 (B,), the one slot of each row that is wanted; all if None.

        Returns:
            float (B, L, D), or (B, 1, D) with `at`.
        """
        q, k, v = self.project(x, at)
        return self.merge(attend(q, k, v, mask_rows(mask, at), self.attention_dropout), x, at)


def mask_rows(mask: torch.Tensor | None, at: torch.Tensor | None) -> torch.Tensor | None:
    """The rows of a mask (B, 1, L or 1, L) that belong to the one query of each row: (B, 1, 1, L)."""
    if mask is None or at is None or mask.shape[2] == 1:
        return mask
    return take_slots(mask[:, 0].expand(len(at), -1, -1), at)[:, None, None]


class FeedForward(nn.Module):
    """Position-wise network with a residual connection: LN(x + Drop(W2 gelu(W1 x))), exact GELU, eps 1e-12."""

    def __init__(self, hidden_size: int, inner_size: int, dropout: float):
        super().__init__()
        self.inner = Linear(hidden_size, inner_size)
        self.outer = Linear(inner_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.dropout = Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float (..., D) to the same shape."""
        result: torch.Tensor = self.norm(x + self.dropout(self.outer(nn.functional.gelu(self.inner(x)))))
        return result


class TransformerLayer(nn.Module):
    """Self-attention, then the position-wise network, each followed by its norm (post-norm)."""

    def __init__(
        self, hidden_size: int, num_heads: int, inner_size: int, hidden_dropout: float, attention_dropout: float
    ):
        super().__init__()
        self.attention = SelfAttention(hidden_size, num_heads, hidden_dropout, attention_dropout)
        self.feed_forward = FeedForward(hidden_size, inner_size, hidden_dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, at: torch.Tensor | None = None) -> torch.Tensor:
        """As `SelfAttention`: float (B, L, D), or (B, 1, D) with `at`."""
        result: torch.Tensor = self.feed_forward(self.attention(x, mask, at))
        return result
