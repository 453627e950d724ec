"""TRM4Rec: one or two small blocks, applied again and again to an answer and a line of reasoning."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    INIT_STD,
    Linear,
    attend,
    causal_mask,
    check_heads,
    init_weights,
    length_groups,
    linear,
    readout_slots,
    slot_range,
)
from minionerec.models.sequential.model import SequentialModel

# A batch of histories without its padding: one token after another, laid out as a grid for attention alone.


@dataclass(frozen=True)
class Packed:
    """The N items of a batch of histories, grid by grid and row by row.

    Maps of single tokens need no padding and run over (N, D); only attention lays its grids out. A row without any item
    keeps all its padding as tokens, because there every key is masked alike and the padding takes part.

    Attributes:
        positions: int64 (N,), index of each token among the B L slots of the batch.
        grids: At most three, each of b rows of similar length, padded to the longest of them, w: int64 (n,), index of
            each token among the b w slots, and float (b, 1, w, w), `causal_mask` of the rows.
        newest: int64 (B,), number of the token at which each row is read.
    """

    positions: torch.Tensor
    grids: list[tuple[torch.Tensor, torch.Tensor]]
    newest: torch.Tensor

    @classmethod
    def of(cls, histories: torch.Tensor, padding: Side) -> "Packed":
        """Pack int64 (B, L)."""
        batch, length = histories.shape
        is_token = (histories > 0) | (histories == 0).all(1, keepdim=True)
        slots = torch.arange(batch * length, device=histories.device).view(batch, length)
        grids, parts = [], []
        for positions, columns in length_groups(histories, padding):
            grid = histories[positions, columns]
            inside = is_token[positions, columns].flatten().nonzero()[:, 0]
            grids.append((inside, causal_mask(grid)))
            parts.append(slots[positions, columns].flatten()[inside])
        tokens = torch.cat(parts)
        numbers = torch.empty_like(slots).flatten()
        numbers[tokens] = torch.arange(len(tokens), device=tokens.device)
        return cls(tokens, grids, numbers[slots[:, 0] + readout_slots(histories, padding)])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of every token within its row.

        Args:
            q: float (N, H, d).
            k: float (N, H, d).
            v: float (N, H, d).

        Returns:
            float (N, H, d).
        """
        sizes = [len(positions) for positions, _ in self.grids]
        qkv = torch.stack((q, k, v), 1)  # (N, 3, H, d)
        contexts = []
        for (positions, mask), part in zip(self.grids, qkv.split(sizes), strict=True):
            height, width = len(mask), mask.shape[-1]
            cells = part.new_zeros(height * width, *part.shape[1:]).index_copy(0, positions, part)
            laid = cells.unflatten(0, (height, width)).transpose(1, 3)  # (b, H, 3, w, d)
            context = attend(laid[:, :, 0], laid[:, :, 1], laid[:, :, 2], mask).transpose(1, 2)
            contexts.append(context.flatten(0, 1).index_select(0, positions))
        return torch.cat(contexts)


RMS_EPS = 1e-5
ROPE_THETA = 10000.0
_INNER_MULTIPLE = 256


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Divide by √(mean(x²) + 1e-5) of the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add(RMS_EPS))


class RecursiveBlock(nn.Module):
    """Causal attention, then a SwiGLU, each with a residual connection and an RMS norm without weights after it.

    No map has a bias. Rotary embedding turns channel pair (i, i + d/2) of queries and keys by slot · θ^(-2i/d).
    """

    def __init__(self, hidden_size: int, num_heads: int, inner_size: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = Linear(hidden_size, hidden_size, bias=False)
        self.gate_up = Linear(hidden_size, 2 * inner_size, bias=False)
        self.down = Linear(inner_size, hidden_size, bias=False)

    def forward(
        self, x: torch.Tensor, batch: Packed, turns: torch.Tensor | None, newest_only: bool = False
    ) -> torch.Tensor:
        """Apply the block.

        Args:
            x: float (N, D), the tokens of a batch.
            batch: Layout of the tokens in the batch.
            turns: complex (N, 1, d / 2), by which channel pairs are multiplied; None for no rotary embedding.
            newest_only: Give the result only where rows are read.

        Returns:
            float (N, D), or (B, D) with `newest_only`.
        """
        context = batch.attend(*self.project(x, turns)).flatten(1)
        if newest_only:
            x, context = x[batch.newest], context[batch.newest]
        x = rms_norm(x + self.out(context))
        gate, up = self.gate_up(x).chunk(2, -1)
        return rms_norm(x + self.down(nn.functional.silu(gate) * up))

    def project(self, x: torch.Tensor, turns: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values: float (N, H, d) each, the first two turned and their channels in pairs."""
        heads, width = self.num_heads, x.shape[-1]
        weight = self.qkv.weight
        if turns is None:
            q, k, v = self.qkv(x).unflatten(-1, (3, heads, -1)).unbind(1)
            return q, k, v
        # Scores do not change when queries and keys have the same order of channels: with the two of a pair side by
        # side, a rotation is one product of complex numbers.
        paired = weight[: 2 * width].unflatten(0, (2 * heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        qkv = linear(x, torch.cat((paired, weight[2 * width :])))
        pairs = torch.view_as_complex(qkv[:, : 2 * width].unflatten(-1, (2 * heads, -1, 2)))
        turned = torch.view_as_real(pairs * turns).flatten(-2)  # (N, 2H, d)
        return turned[:, :heads], turned[:, heads:], qkv[:, 2 * width :].unflatten(-1, (heads, -1))


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
        width = hidden_size // num_heads
        if use_rope and width % 2:
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
        self.blocks = nn.ModuleList(RecursiveBlock(hidden_size, num_heads, inner_size) for _ in range(num_blocks))
        # Angles are not saved, so they have their values on the meta device too.
        rates = ROPE_THETA ** (-torch.arange(0, width, 2, device="cpu") / width)
        angles = torch.arange(max_len, device="cpu")[:, None] * rates
        self.angles: torch.Tensor | None
        self.register_buffer("angles", angles if use_rope else None, persistent=False)
        self.apply(init_weights)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return self._answers(histories, Packed.of(histories, self.padding), newest_only=True)

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        batch = Packed.of(histories, self.padding)
        answers = self._answers(histories, batch, newest_only=False)
        cells = answers.new_zeros(histories.numel(), answers.shape[1]).index_copy(0, batch.positions, answers)
        vectors: torch.Tensor = cells.unflatten(0, histories.shape)
        return vectors

    def _answers(self, histories: torch.Tensor, batch: Packed, newest_only: bool) -> torch.Tensor:
        """The answer after the last cycle: float (N, D), or (B, D) with `newest_only`."""
        slots = slot_range(histories.shape[1], self.max_len, self.padding).start + batch.positions % histories.shape[1]
        x = math.sqrt(self.items.embedding_dim) * self.items(histories.flatten()[batch.positions])
        if self.positions is not None:
            x = x + self.positions(slots)
        turns = None
        if self.angles is not None:
            angles = self.angles[slots][:, None]
            turns = torch.polar(torch.ones_like(angles), angles)
        answer, reasoning = self.answer, self.reasoning
        for step in range(1, self.num_steps + 1):
            last = step == self.num_steps
            with nullcontext() if last or self.full_backprop else torch.no_grad():
                for number, block in enumerate(self.blocks, start=1):
                    reasoning = block(reasoning + answer + x, batch, turns)
                    final = last and number == len(self.blocks)
                    answer = block(answer + reasoning, batch, turns, newest_only and final)
        return answer

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight
