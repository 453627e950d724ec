"""One causal transformer layer, with learned or rotary positions."""

import torch
from torch import nn

from minionerec.models.nn.dropout import Dropout
from minionerec.models.nn.layers import attend
from minionerec.models.nn.linear import Linear
from minionerec.models.nn.padding import take_slots


class CausalLayer(nn.Module):
    """One pre-norm layer: x + Drop(attention(LN x)), then x + Drop(W2 gelu(W1 LN x))."""

    def __init__(
        self, hidden_size: int, num_heads: int, inner_size: int, dropout: float, attention_dropout: float, rotary: bool
    ):
        super().__init__()
        self.num_heads, self.rotary = num_heads, rotary
        self.attention_norm, self.norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.out = Linear(hidden_size, hidden_size)
        self.inner, self.outer = Linear(hidden_size, inner_size), Linear(inner_size, hidden_size)
        self.attention_dropout, self.dropout = Dropout(attention_dropout), Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Map float (B, L, D) to the same shape, or with slots `at`, int64 (B,), to (B, 1, D)."""
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if at is not None:
            rows = torch.arange(len(x), device=x.device)
            x, q, mask = take_slots(x, at)[:, None], q[rows, :, at][:, :, None], mask[rows, :, at][:, :, None]
        context = attend(q, k, v, mask, self.attention_dropout)
        x = x + self.dropout(self.out(context.transpose(1, 2).flatten(2)))
        result: torch.Tensor = x + self.dropout(self.outer(nn.functional.gelu(self.inner(self.norm(x)))))
        return result


def rotate(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """Rotary position embedding: the two halves of a head's width turn by slot · base^(-2i / d).

    Args:
        x: float (B, H, L, d), slots 0 to L - 1; only differences of slots matter to attention.
        base: Base of the angles.

    Returns:
        float (B, H, L, d).
    """
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    speed = base ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed  # (L, d / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
