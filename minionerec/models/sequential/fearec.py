"""FEARec: auto-correlation in place of attention."""

import math

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.dropout import Dropout
from minionerec.models.nn.layers import NORM_EPS, FeedForward, ItemEmbedding, init_weights
from minionerec.models.nn.linear import Linear, linear
from minionerec.models.nn.padding import take_slots
from minionerec.models.sequential.encoder import MixingLayer, UnmaskedEncoder


class AutoCorrelation(nn.Module):
    """Mixes the k cyclic shifts of a sequence that resemble it most: LN(x + Drop(O(Σ w_i roll(V, -d_i)))).

    The auto-correlation irfft(rfft(Q) · conj(rfft(K))) at delay d, averaged over heads and channels, is
    c_d = Σ_t ⟨Q_{t+d}, K_t⟩ / D with t + d taken modulo L: sums over the circular diagonals of a Gram matrix, which
    need no transform and do not hang on the number of heads. The delays d_1 … d_k are those with the largest c_d, in
    training on the average of the batch, in evaluation for each row; w is the softmax of their c_d.

    Two more facts save projections. The biases of Q and K add the same to c_d at every d, so neither the choice nor the
    softmax sees them: c_d = Σ_t ⟨x_{t+d}, A x_t⟩ / D + constant with A = W_Qᵀ W_K. And as w sums to 1, the shifts may
    be mixed before the maps V and O, which then are one.

    Attributes:
        query: Its bias changes nothing and gets no gradient, nor does that of `key`; the published count holds them.
        shifted: int64 (L, L), row + column modulo L.
    """

    def __init__(self, max_len: int, hidden_size: int, num_delays: int, dropout: float):
        super().__init__()
        self.num_delays = num_delays
        self.query = Linear(hidden_size, hidden_size)
        self.key = Linear(hidden_size, hidden_size)
        self.value = Linear(hidden_size, hidden_size)
        self.out = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.dropout = Dropout(dropout)
        slots = torch.arange(max_len)
        self.shifted: torch.Tensor
        self.register_buffer("shifted", (slots + slots[:, None]) % max_len, persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Mix.

        Args:
            x: float (B, L, D), all L = max_len slots.
            at: int64 (B,), the one slot of each row that is wanted; all if None.

        Returns:
            float (B, L, D), or (B, D) with `at`.
        """
        rows, length, width = x.shape
        product = self.query.weight.T @ (self.key.weight / width)
        gram = linear(x, product) @ x.transpose(1, 2)  # (B, L, L); delay d: column t + d of row t
        delays = self.delays(gram.detach())  # (B or 1, k)
        shifts = nn.functional.one_hot(self.shifted[delays], length).to(x.dtype).flatten(2)  # (B or 1, k, L²)
        weights = torch.einsum("bkn,bn->bk", shifts, gram.flatten(1)).softmax(-1)
        if at is None:
            given, mixed = x, torch.einsum("bk,bkn->bn", weights, shifts).view(rows, length, length) @ x
        else:
            places = (at[:, None] + delays) % length  # (B, k)
            shifted = x[torch.arange(rows, device=x.device)[:, None], places]
            given, mixed = take_slots(x, at), (weights[:, None] @ shifted)[:, 0]
        weight = self.out.weight @ self.value.weight
        bias = nn.functional.linear(self.value.bias, self.out.weight, self.out.bias)
        merged: torch.Tensor = self.norm(given + self.dropout(linear(mixed, weight, bias)))
        return merged

    def delays(self, gram: torch.Tensor) -> torch.Tensor:
        """The delays with the largest auto-correlation: int64 (B, k), or (1, k) for the whole batch in training."""
        gram = gram.mean(0, keepdim=True) if self.training else gram
        return gram.gather(2, self.shifted.expand(len(gram), -1, -1)).sum(1).topk(self.num_delays).indices


class FEARec(UnmaskedEncoder):
    """Auto-correlation in place of attention (Du et al., "Frequency Enhanced Hybrid Attention Network", 2023).

    What ran for the published Beauty row is the paper's auto-correlation attention with time-delay aggregation, all
    frequencies kept (global ratio 1), then the position-wise network; two such layers, a tied output, full softmax. It
    departs from the paper:

    1. Every contrastive term and the regularisation in the frequency domain are off: the loss is the cross-entropy over
       all V rows of the item table, the padding row included.
    2. The attention in the time domain is off (spatial ratio 0), and with it the mixture of the two; likewise the ramp
       of frequency bands over the layers.
    3. In training the delays are chosen once for the batch, by its mean, in evaluation for each row; the paper's
       equations choose for each sequence.
    4. No mask is applied: padding takes part in the correlation, and cyclic shifts carry padding and the newest items
       to any slot. As the input holds the history alone, nothing of the target leaks.
    5. k = ⌊topk_factor · ln L⌋ with factor 1: 3 of 50 delays.
    6. For odd L the published transform back gives L - 1 delays, here there are all L; for the even L of the tables
       both are the same.
    7. As correlations are averaged over heads, the number of heads changes nothing, and there is none here. The dropout
       of attention weights has nothing to act on.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        inner_size: Width of the position-wise network.
        topk_factor: Delays per natural logarithm of `max_len`.
        hidden_dropout: Dropout behind the embedding and each part of a layer.

    Raises:
        ConfigError: If `topk_factor` makes no delay, or more than there are.
    """

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "right",
        hidden_size: int = 64,
        num_layers: int = 2,
        inner_size: int = 256,
        topk_factor: float = 1.0,
        hidden_dropout: float = 0.5,
    ):
        super().__init__(num_items, max_len, padding)
        num_delays = int(topk_factor * math.log(max_len))
        if not 1 <= num_delays <= max_len:
            raise ConfigError(
                f"topk_factor {topk_factor} makes {num_delays} delays of max_len {max_len}; take one that makes 1 to "
                f"{max_len}."
            )
        self.embedding = ItemEmbedding(num_items, max_len, hidden_size, hidden_dropout, padding)
        self.layers = nn.ModuleList(
            MixingLayer(
                AutoCorrelation(max_len, hidden_size, num_delays, hidden_dropout),
                FeedForward(hidden_size, inner_size, hidden_dropout),
            )
            for _ in range(num_layers)
        )
        self.apply(init_weights)
