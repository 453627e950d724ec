"""HSTU: pointwise attention without a softmax, gated, and no position-wise network."""

import math
from typing import Any

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.models.nn.layers import INIT_STD, Dropout, Linear, by_length, readout_slots, slot_range, take_slots
from minionerec.models.sequential.model import SequentialModel

_EXTRA_SLOTS = 11
_NORM_EPS = 1e-6
_REPEATED = -5e4


class HSTU(SequentialModel):
    """Hierarchical sequential transduction unit (Zhai et al., arXiv 2402.17152, §3 and §4.1.1).

    Input Drop(√D E[item] + P[slot]). A block: [U, V, Q, K] = SiLU(LN(x) W) (eq. 1), A = SiLU(Q Kᵀ + b) / n under the
    causal mask (eq. 2), x + Drop(U · LN(A V)) W' + b' (eq. 3); norms have no parameters. State and item vectors are
    scaled to length 1, and scores are their products divided by the temperature. Where the published code departs from
    the paper, and this model from the code:

    1. n is max_len + 11, whatever a row's length, which the norm of A V takes back (up to its eps); so many slots stand
       in P too, of which the last 11 are never read.
    2. Attention dropout exists as a setting there, and does nothing; here there is none.
    3. Q and K are not scaled by 1 / √d.
    4. The bias b has a part for positions and one for times. The data here have no times; the code would then drop the
       whole bias, this model keeps the positions' part: w[j - i], shared by the heads.
    5. With `num_negatives` 0 the loss is the full softmax over all V rows; with the code's 128 or 512 the sampled
       softmax, negatives drawn uniformly for each position, those equal to the target struck out.
    6. The code truncates the normal initialisation of items and slots at two standard deviations; here it
       is at -2 and 2, which is hardly ever reached. The results on record were made so.

    Args:
        num_layers: Blocks.
        num_heads: Attention heads.
        head_size: Width of a head's queries, keys and values.
        dropout: Dropout of input and gated outputs.
        temperature: Divisor of the cosines.
        num_negatives: Negatives of the sampled softmax; 0 for the full one.
    """

    causal = True
    masks_padding = True

    def __init__(
        self,
        *,
        num_layers: int = 4,
        num_heads: int = 4,
        head_size: int = 16,
        dropout: float = 0.5,
        temperature: float = 0.05,
        num_negatives: int = 0,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        if temperature <= 0 or num_negatives < 0:
            raise ConfigError(
                f"temperature is {temperature} and num_negatives {num_negatives}; they must be above 0, and 0 or above."
            )
        self.temperature, self.num_negatives = temperature, num_negatives
        slots, hidden_size = self.max_len + _EXTRA_SLOTS, self.hidden_size
        self.items = nn.Embedding(self.num_items + 1, hidden_size, padding_idx=0)
        self.slots = nn.Embedding(slots, hidden_size)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            HSTUBlock(hidden_size, num_heads, head_size, dropout, slots) for _ in range(num_layers)
        )
        nn.init.trunc_normal_(self.items.weight, std=INIT_STD)
        nn.init.trunc_normal_(self.slots.weight, std=math.sqrt(1 / hidden_size))

    def _embed(self, histories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input vectors (B, L, D), and which keys a query sees, (B, 1, L, L) of 0 and 1."""
        width = histories.shape[1]
        slots = self.slots.weight[slot_range(width, self.max_len, self.padding)]
        x = self.dropout(self.items(histories) * math.sqrt(self.items.embedding_dim) + slots)
        item = (histories > 0).to(x.dtype)
        past = torch.ones(width, width, dtype=x.dtype, device=x.device).tril_()
        return x * item[..., None], past * item[:, None, None, :]

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._last_vectors, histories, self.padding)

    def _last_vectors(self, histories: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, seen = self._embed(histories)
        for block in self.blocks[:-1]:
            x = block(x, seen)
        return normalise(self.blocks[-1](x, seen, readout_slots(histories, self.padding))[:, 0])

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        x, seen = self._embed(histories)
        for block in self.blocks:
            x = block(x, seen)
        return normalise(x)

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`; items of length 1, divided by the temperature."""
        return normalise(self.items.weight) / self.temperature

    def cross_entropy(self, vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, over all V rows or over the target and negatives: (K, D) and int64 (K,) to a scalar."""
        if not self.num_negatives:
            return super().cross_entropy(vectors, targets)
        negatives = torch.randint(1, self.num_items + 1, (len(targets), self.num_negatives), device=targets.device)
        chosen = torch.cat([targets[:, None], negatives], 1)
        scores = (normalise(self.items(chosen)) @ vectors[:, :, None])[..., 0] / self.temperature
        repeated = torch.cat([torch.zeros_like(targets[:, None], dtype=torch.bool), negatives == targets[:, None]], 1)
        return nn.functional.cross_entropy(scores.masked_fill(repeated, _REPEATED), torch.zeros_like(targets))


class HSTUBlock(nn.Module):
    """One block: x + Drop(U · LN(A V)) W' + b', see `HSTU`."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, dropout: float, slots: int):
        super().__init__()
        self.num_heads, self.slots = num_heads, slots
        inner = num_heads * head_size
        self.uvqk = Linear(hidden_size, 4 * inner, bias=False)
        self.out = Linear(inner, hidden_size)
        self.relative = nn.Parameter(torch.empty(2 * slots - 1))
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.uvqk.weight, std=INIT_STD)
        nn.init.xavier_uniform_(self.out.weight)
        nn.init.normal_(self.relative, std=INIT_STD)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Map float (B, L, D) to the same shape, or with slots `at`, int64 (B,), to (B, 1, D).

        Args:
            x: float (B, L, D).
            seen: float (B, 1, L, L), 1 where a query sees a key, else 0.
            at: int64 (B,), the one slot of each row to compute.
        """
        width = x.shape[1]
        normed = nn.functional.layer_norm(x, x.shape[-1:], eps=_NORM_EPS)
        u, v, q, k = nn.functional.silu(self.uvqk(normed)).chunk(4, -1)
        position = torch.arange(width, device=x.device)
        bias = self.relative[self.slots - 1 + position[None, :] - position[:, None]][None].expand(len(x), -1, -1)
        if at is not None:
            x, u, q, bias, seen = (take_slots(part, at)[:, None] for part in (x, u, q, bias, seen[:, 0]))
            seen = seen[:, None]
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
        weights = nn.functional.silu(q @ k.transpose(-1, -2) + bias[:, None]) / self.slots * seen
        context = (weights @ v).transpose(1, 2).flatten(2)
        gated = u * nn.functional.layer_norm(context, context.shape[-1:], eps=_NORM_EPS)
        result: torch.Tensor = x + self.out(self.dropout(gated))
        return result


def normalise(x: torch.Tensor) -> torch.Tensor:
    """Scale vectors to length 1 along the last axis; lengths below 1e-6 are clamped."""
    unit: torch.Tensor = x / x.norm(dim=-1, keepdim=True).clamp(min=_NORM_EPS)
    return unit
