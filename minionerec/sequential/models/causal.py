"""The project's own baseline: a causal transformer with a full softmax, item text beside item ids if wanted."""

import math

import torch
from torch import nn

from minionerec.backbone.dropout import Dropout
from minionerec.core.errors import ConfigError
from minionerec.sequential.layers import INIT_STD, attend, by_length, causal_mask, check_heads, init_weights
from minionerec.sequential.model import SequentialModel
from minionerec.sequential.padding import Side, readout_slots, slot_range, take_slots

POSITIONS = ("rotary", "learned", "none")


class Causal(SequentialModel):
    """A causal pre-norm transformer whose item vectors may have two sources, tied at input and output.

    An item's vector is e_i + M t_i: a learned vector, and a linear map of a fixed text vector where there is one. A
    history is read by pre-norm layers, x + Drop(attention(LN x)) and x + Drop(W2 gelu(W1 LN x)); items are scored by
    the product of the last state, behind a LayerNorm, with their vectors. It is meant to be trained at all positions.

    Args:
        num_items: Number of items.
        max_len: Longest history.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        dropout: Dropout of item vectors at the input, and behind each part of a layer.
        attention_dropout: Dropout of attention weights.
        label_smoothing: Share of the target's probability that is spread over all rows of the table.
        positions: "rotary" (Su et al. 2021, base 10,000, all of a head's width), "learned" (a table of slots; with left
            padding it counts from the newest item) or "none".
        text_width: Width T of the text vectors; 0 for none. `set_text` gives them.

    Raises:
        ConfigError: If heads do not divide the width, or `positions` is unknown.
    """

    causal = True
    masks_padding = True
    text: torch.Tensor

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "right",
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        inner_size: int = 512,
        dropout: float = 0.3,
        attention_dropout: float = 0.0,
        label_smoothing: float = 0.0,
        positions: str = "rotary",
        text_width: int = 0,
    ):
        super().__init__(num_items, max_len, padding)
        check_heads(hidden_size, num_heads)
        if positions not in POSITIONS:
            raise ConfigError(f"unknown positions {positions!r}; known: {', '.join(POSITIONS)}.")
        if positions == "rotary" and hidden_size // num_heads % 2:
            raise ConfigError(f"rotary positions need an even width a head, not {hidden_size // num_heads}.")
        self.label_smoothing = label_smoothing
        self.items = nn.Embedding(num_items + 1, hidden_size, padding_idx=0)
        self.slots = nn.Embedding(max_len, hidden_size) if positions == "learned" else None
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            CausalLayer(hidden_size, num_heads, inner_size, dropout, attention_dropout, positions == "rotary")
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.text_map = nn.Linear(text_width, hidden_size, bias=False) if text_width else None
        if text_width:
            self.register_buffer("text", torch.zeros(num_items + 1, text_width))
        self.apply(init_weights)
        for layer in self.modules():
            if isinstance(layer, CausalLayer):  # so that the sum of the layers' outputs does not grow with their number
                for part in (layer.out, layer.outer):
                    nn.init.normal_(part.weight, std=INIT_STD / math.sqrt(2 * num_layers))

    def set_text(self, vectors: torch.Tensor) -> None:
        """Give the items their text vectors.

        Args:
            vectors: float32 (N, T), row i of item i + 1.

        Raises:
            ConfigError: If the shape is another.
        """
        wanted = (self.num_items, self.text_map.in_features if self.text_map is not None else 0)
        if tuple(vectors.shape) != wanted:
            raise ConfigError(
                f"text vectors have shape {tuple(vectors.shape)}; expected {wanted} (num_items, text_width)."
            )
        self.text[1:] = vectors

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight if self.text_map is None else self.items.weight + self.text_map(self.text)

    def _embed(self, histories: torch.Tensor) -> torch.Tensor:
        x = self.items(histories)
        if self.text_map is not None:
            x = x + self.text_map(self.text[histories])
        if self.slots is not None:
            x = x + self.slots.weight[slot_range(histories.shape[1], self.max_len, self.padding)]
        return self.dropout(x)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._last_vectors, histories, self.padding)

    def _last_vectors(self, histories: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x, mask = self._embed(histories), causal_mask(histories)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        return self.norm(self.layers[-1](x, mask, readout_slots(histories, self.padding))[:, 0])

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        x, mask = self._embed(histories), causal_mask(histories)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class CausalLayer(nn.Module):
    """One pre-norm layer: x + Drop(attention(LN x)), then x + Drop(W2 gelu(W1 LN x))."""

    def __init__(
        self, hidden_size: int, num_heads: int, inner_size: int, dropout: float, attention_dropout: float, rotary: bool
    ):
        super().__init__()
        self.num_heads, self.rotary = num_heads, rotary
        self.attention_norm, self.norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)
        self.inner, self.outer = nn.Linear(hidden_size, inner_size), nn.Linear(inner_size, hidden_size)
        self.attention_dropout, self.dropout = Dropout(attention_dropout), Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Map float (B, L, D) to the same shape, or with slots `at`, int64 (B,), to (B, 1, D)."""
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.attention_norm(x)).chunk(3, -1))  # fmt: skip
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if at is not None:
            rows = torch.arange(len(x), device=x.device)
            x, q, mask = take_slots(x, at)[:, None], q[rows, :, at][:, :, None], mask[rows, :, at][:, :, None]
        context = attend(q, k, v, mask, self.attention_dropout)
        x = x + self.dropout(self.out(context.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.outer(nn.functional.gelu(self.inner(self.norm(x)))))


def rotate(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """Rotary position embedding: the two halves of a head's width turn by slot · base^(-2i / d).

    Args:
        x: float (B, H, L, d), slots 0 to L - 1; only differences of slots matter to attention.
        base: Base of the angles.

    Returns:
        float (B, H, L, d).
    """
    half = x.shape[-1] // 2
    speed = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed  # (L, d / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
