"""Recommenders that filter histories by frequency: FEARec and WEARec."""

import copy
import math
from collections import OrderedDict
from typing import Any, cast

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    INIT_STD,
    NORM_EPS,
    Dropout,
    FeedForward,
    ItemEmbedding,
    Linear,
    check_heads,
    full_width,
    init_weights,
    linear,
    readout_slots,
    take_slots,
)
from minionerec.models.sequential.model import SequentialModel, check_share

# What both share: layers that see padding as they see items.


class UnmaskedEncoder(SequentialModel):
    """Layers that mix all `max_len` slots, padding included, after an embedding block whose table scores items too.

    Attributes:
        embedding: The embedding block.
        layers: Each a `mix`, which maps float (B, L, D) to the same shape, or to (B, D) with the slot of each row that
            is wanted, and a position-wise network `feed_forward`, each followed by its norm.
    """

    embedding: ItemEmbedding
    layers: nn.ModuleList

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        histories = full_width(histories, self.max_len, self.padding)
        x = self.embedding(histories)
        for layer in self.layers[:-1]:
            x = layer(x)
        mix, feed_forward = cast(nn.Sequential, self.layers[-1])
        vectors: torch.Tensor = feed_forward(mix(x, readout_slots(histories, self.padding)))
        return vectors

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.embedding.items.weight


# FEARec: auto-correlation in place of attention.


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
        slots = torch.arange(max_len, device="cpu")  # not saved, so it has its values on the meta device too
        self.shifted: torch.Tensor
        self.register_buffer("shifted", (slots + slots[:, None]) % max_len, persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Mix.

        Args:
            x: float (B, L, D), all L = max_len slots.
            at: int64 (B,), the slot of each row to compute; all if None.

        Returns:
            float (B, L, D), or (B, D) with `at`.
        """
        batch, length, width = x.shape
        product = self.query.weight.T @ (self.key.weight / width)
        gram = linear(x, product) @ x.transpose(1, 2)  # (B, L, L); delay d: column t + d of row t
        delays = self.delays(gram.detach())  # (B or 1, k)
        shifts = nn.functional.one_hot(self.shifted[delays], length).to(x.dtype).flatten(2)  # (B or 1, k, L²)
        weights = torch.einsum("bkn,bn->bk", shifts, gram.flatten(1)).softmax(-1)
        if at is None:
            residual, mixed = x, torch.einsum("bk,bkn->bn", weights, shifts).view(batch, length, length) @ x
        else:
            positions = (at[:, None] + delays) % length  # (B, k)
            shifted = x[torch.arange(batch, device=x.device)[:, None], positions]
            residual, mixed = take_slots(x, at), (weights[:, None] @ shifted)[:, 0]
        weight = self.out.weight @ self.value.weight
        bias = nn.functional.linear(self.value.bias, self.out.weight, self.out.bias)
        merged: torch.Tensor = self.norm(residual + self.dropout(linear(mixed, weight, bias)))
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
        num_layers: Layers.
        inner_size: Width of the position-wise network.
        topk_factor: Delays per natural logarithm of `max_len`.
        hidden_dropout: Dropout after the embedding and each part of a layer.
    """

    def __init__(
        self,
        *,
        num_layers: int = 2,
        inner_size: int = 256,
        topk_factor: float = 1.0,
        hidden_dropout: float = 0.5,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        max_len, hidden_size = self.max_len, self.hidden_size
        num_delays = int(topk_factor * math.log(max_len))
        if not 1 <= num_delays <= max_len:
            raise ConfigError(
                f"topk_factor {topk_factor} makes {num_delays} delays of max_len {max_len}; take one that makes 1 to "
                f"{max_len}."
            )
        self.embedding = ItemEmbedding(self.num_items, max_len, hidden_size, hidden_dropout, self.padding)
        self.layers = nn.ModuleList(
            nn.Sequential(
                OrderedDict(
                    mix=AutoCorrelation(max_len, hidden_size, num_delays, hidden_dropout),
                    feed_forward=FeedForward(hidden_size, inner_size, hidden_dropout),
                )
            )
            for _ in range(num_layers)
        )
        self.apply(init_weights)


# WEARec: filters that depend on the user, in the frequency domain and on Haar wavelets.


class WaveletFourierFilter(nn.Module):
    """Mixes slots linearly: (1 - α) of a one-level Haar filter plus α of a filter of the spectrum, then a norm.

    The spectrum along time of each head is multiplied by base_filter · (1 + s) and base_bias + b is added to its real
    part, where (s, b) come from the mean of the input over all slots. Multiplying a spectrum by real numbers is
    convolving cyclically with their inverse transform; for one slot, only that one is convolved.

    Attributes:
        detail: float (L // 2, D), what the Haar details of each pair of slots are multiplied by.
        base_filter: float (H, L // 2 + 1).
        base_bias: float (H, L // 2 + 1).
        gate_param: float (1,), used nowhere; the published counts hold it.
    """

    def __init__(self, max_len: int, hidden_size: int, num_heads: int, alpha: float, dropout: float):
        super().__init__()
        self.max_len, self.num_heads, self.alpha = max_len, num_heads, alpha
        bins = max_len // 2 + 1
        self.detail = nn.Parameter(INIT_STD * torch.randn(max_len // 2, hidden_size))
        self.base_filter = nn.Parameter(torch.ones(num_heads, bins))
        self.base_bias = nn.Parameter(torch.full((num_heads, bins), -0.1))
        self.adapt = nn.Sequential(
            Linear(hidden_size, hidden_size), nn.GELU(), Linear(hidden_size, num_heads * bins * 2)
        )
        self.gate_param = nn.Parameter(torch.zeros(1))
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """Filter.

        Args:
            x: float (B, L, D), all L = max_len slots.
            at: int64 (B,), the slot of each row to compute; all if None.

        Returns:
            float (B, L, D), or (B, D) with `at`.
        """
        adapted = self.adapt(x.mean(1)).view(len(x), self.num_heads, -1, 2)  # (B, H, bins, 2)
        # The Haar branch is the identity, which is a spectrum of ones, and what `haar` adds to it.
        spectrum = self.alpha * self.base_filter * (1 + adapted[..., 0]) + (1 - self.alpha)
        # In time the added spectrum is the same for all channels of a head.
        bias = self.alpha * torch.fft.irfft(self.base_bias + adapted[..., 1], n=self.max_len, norm="ortho")  # (B, H, L)
        heads = x.unflatten(-1, (self.num_heads, -1)).permute(0, 2, 3, 1)  # (B, H, d, L)
        if at is None:
            mixed = torch.fft.irfft(torch.fft.rfft(heads) * spectrum[:, :, None], n=self.max_len) + bias[:, :, None]
            merged: torch.Tensor = self.norm(x + self.dropout(mixed.permute(0, 3, 1, 2).flatten(2) + self.haar(x)))
            return merged
        lags = (at[:, None] - torch.arange(self.max_len, device=x.device)) % self.max_len  # (B, L)
        kernel = torch.fft.irfft(spectrum, n=self.max_len).gather(2, lags[:, None].expand_as(bias))
        mixed = (heads @ kernel[..., None])[..., 0] + bias.gather(2, at[:, None, None].expand(-1, self.num_heads, 1))
        newest: torch.Tensor = self.norm(take_slots(x, at) + self.dropout(mixed.flatten(1) + self.haar_at(x, at)))
        return newest

    def haar(self, x: torch.Tensor) -> torch.Tensor:
        """The Haar branch less its input, times 1 - α: float (B, L, D) to the same.

        Of a pair (e, o) whose details (e - o) / 2 are multiplied by w, e becomes e - (1 - w) (e - o) / 2 and o becomes
        o + (1 - w) (e - o) / 2. The last slot of an odd length becomes 0.
        """
        pairs = x[:, : 2 * len(self.detail)].unflatten(1, (-1, 2))  # (B, L // 2, 2, D)
        moved = (pairs[:, :, 0] - pairs[:, :, 1]) * ((1 - self.alpha) / 2 * (1 - self.detail))
        added = torch.stack((-moved, moved), 2).flatten(1, 2)
        return added if self.max_len % 2 == 0 else torch.cat((added, (self.alpha - 1) * x[:, -1:]), 1)

    def haar_at(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """One slot of each row of `haar`: (B, D)."""
        alone = (at == 2 * len(self.detail))[:, None]
        pair = torch.where(alone[:, 0], 0, at // 2)
        even, odd = take_slots(x, 2 * pair), take_slots(x, 2 * pair + 1)
        sign = torch.where(at % 2 == 0, -1.0, 1.0)[:, None]
        moved = sign * (even - odd) * (1 - self.detail[pair]) / 2
        return (1 - self.alpha) * torch.where(alone, -take_slots(x, at), moved)


class WEARec(UnmaskedEncoder):
    """Adaptive Fourier and wavelet filters (Xu et al., arXiv 2511.07028).

    Per layer: LN(x + Drop((1 - α) wavelet(x) + α fourier(x))), then the position-wise network. The Fourier branch is
    F' = F · base_filter (1 + s) + base_bias + b over the L // 2 + 1 bins of the orthonormal transform along time, with
    (s, b) = MLP(mean of x over the slots); the wavelet branch is one level of Haar along time, the details times a
    learned weight per pair and channel. Where the published implementation departs from its paper:

    1. α is fixed, not learned; a scalar `gate_param` exists in every layer, is used nowhere, and is counted.
    2. The bias of the spectrum is real and equal for all channels of a head: in time it acts mostly on slot 0.
    3. Nothing masks the padding: it takes part in transform, wavelet and context. As row 0 of the item table is drawn
       like the others and learns as a class, left padding tells the model how long the history is.
    4. All layers begin with the same detail weights, filters and biases; only the linear maps are redrawn.
    5. The loss is the full softmax over all V rows, the padding row included.

    Args:
        num_layers: Layers.
        num_heads: Heads with filters of their own; D must be a multiple.
        inner_size: Width of the position-wise network.
        alpha: Share of the Fourier branch, in [0, 1].
        hidden_dropout: Dropout after the embedding and each part of a layer.
    """

    def __init__(
        self,
        *,
        padding: Side = "left",
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        alpha: float = 0.3,
        hidden_dropout: float = 0.5,
        **sizes: Any,
    ):
        super().__init__(padding=padding, **sizes)
        max_len, hidden_size = self.max_len, self.hidden_size
        check_heads(hidden_size, num_heads)
        check_share("alpha", alpha)
        self.embedding = ItemEmbedding(self.num_items, max_len, hidden_size, hidden_dropout, padding)
        layer = nn.Sequential(
            OrderedDict(
                mix=WaveletFourierFilter(max_len, hidden_size, num_heads, alpha, hidden_dropout),
                feed_forward=FeedForward(hidden_size, inner_size, hidden_dropout),
            )
        )
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.apply(init_weights)
