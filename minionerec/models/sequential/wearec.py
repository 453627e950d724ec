"""WEARec: filters that depend on the user, in the frequency domain and on Haar wavelets."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.dropout import Dropout
from minionerec.models.nn.layers import INIT_STD, NORM_EPS, FeedForward, ItemEmbedding, check_heads, init_weights
from minionerec.models.nn.linear import Linear
from minionerec.models.nn.padding import take_slots
from minionerec.models.sequential.encoder import MixingLayer, UnmaskedEncoder


class _FilterSpectrum(torch.autograd.Function):
    """Multiply the spectrum along time by real numbers, that is, convolve cyclically with an even kernel.

    Such a filter is its own adjoint, so that the gradient takes two real transforms more, where autograd would pad the
    spectrum and transform it as complex numbers.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, spectrum: torch.Tensor) -> torch.Tensor:
        """From float (B, H, d, L) and (B, H, L // 2 + 1) to (B, H, d, L)."""
        transformed = torch.view_as_real(torch.fft.rfft(x))
        ctx.save_for_backward(transformed, spectrum)
        return _inverse(transformed, spectrum, x.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Filter the gradient; the spectrum's is the product of the two transforms."""
        transformed, spectrum = ctx.saved_tensors
        length = gradient.shape[-1]
        other = torch.view_as_real(torch.fft.rfft(gradient))
        # All bins but the first and that of half the length stand for two.
        counts = torch.full_like(spectrum[0, 0], 2 / length)
        counts[0] = 1 / length
        if length % 2 == 0:
            counts[-1] = 1 / length
        products = (transformed * other).sum(2).sum(-1)
        return _inverse(other, spectrum, length), products * counts


def _inverse(transformed: torch.Tensor, spectrum: torch.Tensor, length: int) -> torch.Tensor:
    """A spectrum as pairs of real numbers, (B, H, d, bins, 2), times (B, H, bins), back in time: (B, H, d, L)."""
    # Each factor twice, in the layout of the pairs: one long product instead of many of two numbers.
    factors = spectrum.repeat_interleave(2, -1)[:, :, None]
    filtered = (transformed.flatten(-2) * factors).unflatten(-1, (-1, 2))
    back: torch.Tensor = torch.fft.irfft(torch.view_as_complex(filtered), n=length)
    return back


_filter_spectrum: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _FilterSpectrum.apply


class WaveletFourierFilter(nn.Module):
    """Mixes slots linearly: (1 - α) of a one-level Haar filter plus α of a filter of the spectrum, then a norm.

    The spectrum along time of each head is multiplied by base_filter · (1 + s) and base_bias + b is added to its real
    part, where (s, b) come from the mean of the input over all slots. Multiplying a spectrum by real numbers is
    convolving cyclically with their inverse transform; where one slot is wanted, only that one is convolved.

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
            at: int64 (B,), the one slot of each row that is wanted; all if None.

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
            mixed = _filter_spectrum(heads, spectrum) + bias[:, :, None]
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
    4. All layers begin with the same detail weights, filters and biases; only the linear maps are drawn anew.
    5. The loss is the full softmax over all V rows, the padding row included.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Heads with filters of their own; D must be a multiple.
        inner_size: Width of the position-wise network.
        alpha: Share of the Fourier branch, in [0, 1].
        hidden_dropout: Dropout behind the embedding and each part of a layer.

    Raises:
        ConfigError: If `num_heads` does not divide `hidden_size`, or `alpha` lies outside [0, 1].
    """

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "left",
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        alpha: float = 0.3,
        hidden_dropout: float = 0.5,
    ):
        super().__init__(num_items, max_len, padding)
        check_heads(hidden_size, num_heads)
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha is {alpha}; it is a share and must lie in [0, 1].")
        self.embedding = ItemEmbedding(num_items, max_len, hidden_size, hidden_dropout, padding)
        layer = MixingLayer(
            WaveletFourierFilter(max_len, hidden_size, num_heads, alpha, hidden_dropout),
            FeedForward(hidden_size, inner_size, hidden_dropout),
        )
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.apply(init_weights)
