"""TRM4Rec: one or two small blocks, applied again and again to an answer and a line of reasoning."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.models.nn.layers import (
    INIT_STD,
    Linear,
    attend,
    by_length,
    causal_mask,
    check_heads,
    init_weights,
    readout_slots,
    rotate,
    slot_range,
    take_slots,
)
from minionerec.models.sequential.model import SequentialModel

RMS_EPS = 1e-5
_INNER_MULTIPLE = 256


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Divide by √(mean(x²) + 1e-5) of the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add(RMS_EPS))


class RecursiveBlock(nn.Module):
    """Causal attention, then a SwiGLU, each with a residual connection and an RMS norm without weights after it.

    No map has a bias.
    """

    def __init__(self, hidden_size: int, num_heads: int, inner_size: int, rotary: bool):
        super().__init__()
        self.num_heads, self.rotary = num_heads, rotary
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = Linear(hidden_size, hidden_size, bias=False)
        self.gate_up = Linear(hidden_size, 2 * inner_size, bias=False)
        self.down = Linear(inner_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map float (B, L, D) to the same shape, with a mask float (B, 1, L, L) added to the scores."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, L, d) each
        if self.rotary:
            q, k = rotate(q), rotate(k)
        x = rms_norm(x + self.out(attend(q, k, v, mask).transpose(1, 2).flatten(2)))
        gate, up = self.gate_up(x).chunk(2, -1)
        return rms_norm(x + self.down(nn.functional.silu(gate) * up))


class TRM4Rec(SequentialModel):
    """Recursion of tiny blocks over items (after "Less is More: Recursive Reasoning with Tiny Networks", 2025).

    Every token has an answer and a reasoning, which start as two learned vectors, and its input x = √D · E[item]
    (+ P[slot]). A cycle goes once over the blocks, and each makes reasoning = block(reasoning + answer + x), then
    answer = block(answer + reasoning); after `num_steps` cycles with the same blocks, the answer at the newest item is
    the user's vector. Where this model departs from the paper (Jolicoeur-Martineau):

    1. Reasoning is updated once for each update of the answer; the paper updates it several times.
    2. With two blocks each takes its turn at both updates; the paper stacks two layers in one network.
    3. The two starts are learned parameters. With `full_backprop` off, training runs all cycles but the last without
       gradients, so the starts never move (with one cycle alone they do); they count as parameters all the same.
    4. There is no halting, no deep supervision and no head for either: one cross-entropy over all V rows of the item
       table, the padding row included, tied to the input and without its factor √D.
    5. Attention is causal, with one map for queries, keys and values.
    6. Linear maps and tables start from N(0, 0.02); no dropout anywhere.

    The published rows are `use_positions` off and `use_rope` on ("vanilla", and "FullBP" with `full_backprop`), then
    `use_positions` with `use_rope` off ("pos-only") or on ("pos+RoPE").

    Args:
        num_heads: Attention heads; D must be a multiple.
        num_steps: Cycles, T.
        num_blocks: Blocks of a cycle.
        expansion: The SwiGLU's width is 2/3 of `expansion` · D, rounded up to a multiple of 256.
        use_rope: Rotate queries and keys by their slots.
        use_positions: Add learned vectors of the slots to the input.
        full_backprop: Train through all cycles, and not through the last alone.
    """

    causal = True
    masks_padding = True

    def __init__(
        self,
        *,
        num_heads: int = 2,
        num_steps: int = 4,
        num_blocks: int = 1,
        expansion: float = 4.0,
        use_rope: bool = True,
        use_positions: bool = False,
        full_backprop: bool = False,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        hidden_size, max_len = self.hidden_size, self.max_len
        check_heads(hidden_size, num_heads)
        for name, count in (("num_steps", num_steps), ("num_blocks", num_blocks)):
            if count < 1:
                raise ConfigError(f"{name} is {count}; it must be at least 1.")
        if use_rope and hidden_size // num_heads % 2:
            raise ConfigError(
                f"hidden_size {hidden_size} with num_heads {num_heads} makes heads of odd width, but use_rope turns "
                "pairs of channels. Change num_heads, or leave use_rope out."
            )
        self.num_steps, self.full_backprop = num_steps, full_backprop
        self.items = nn.Embedding(self.num_items + 1, hidden_size, padding_idx=0)
        self.positions = nn.Embedding(max_len, hidden_size) if use_positions else None
        self.answer = nn.Parameter(INIT_STD * torch.randn(hidden_size))
        self.reasoning = nn.Parameter(INIT_STD * torch.randn(hidden_size))
        inner_size = _INNER_MULTIPLE * math.ceil(round(expansion * hidden_size * 2 / 3) / _INNER_MULTIPLE)
        self.blocks = nn.ModuleList(
            RecursiveBlock(hidden_size, num_heads, inner_size, use_rope) for _ in range(num_blocks)
        )
        self.apply(init_weights)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._newest_vectors, histories, self.padding)

    def _newest_vectors(self, histories: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return take_slots(self.position_vectors(histories), readout_slots(histories, self.padding))

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`; the answers after the last cycle."""
        mask = causal_mask(histories)
        x = math.sqrt(self.items.embedding_dim) * self.items(histories)
        if self.positions is not None:
            x = x + self.positions.weight[slot_range(histories.shape[1], self.max_len, self.padding)]
        answer, reasoning = self.answer.expand_as(x), self.reasoning.expand_as(x)
        for step in range(1, self.num_steps + 1):
            with nullcontext() if step == self.num_steps or self.full_backprop else torch.no_grad():
                for block in self.blocks:
                    reasoning = block(reasoning + answer + x, mask)
                    answer = block(answer + reasoning, mask)
        return answer

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight
