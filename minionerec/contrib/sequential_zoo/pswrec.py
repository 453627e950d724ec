"""PSWRec: transformers whose attention reads the phases of a filter bank over their input, in five versions."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    AttentionFrame,
    FeedForward,
    ItemEmbedding,
    TransformerLayer,
    attend,
    causal_mask,
    check_heads,
    full_width,
    init_weights,
    length_groups,
    readout_slots,
    take_slots,
)
from minionerec.models.sequential.model import SequentialModel

# A bank of causal filters that gives every slot a phase and a magnitude in each of four bands.

KERNELS = (3, 7, 15, 31)
DILATIONS = (1, 2, 4, 8)
NUM_BANDS = len(KERNELS)
_FLOOR = 1e-8
_SILENT = 1e-3
_TINY = 1e-30

Silence = Literal["kept", "zero angle", "no phase"]
"""Treatment of slots whose magnitude is at most 0.001: none; angle 0, cos 1, sin 0; or cos 0, sin 0."""


@dataclass(frozen=True)
class Phases:
    """Phase and magnitude of each slot in each band.

    Attributes:
        cos: float (B, S, L), cosine of the phase.
        sin: float (B, S, L), its sine.
        magnitude: float (B, S, L), above 0.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    magnitude: torch.Tensor

    def roughness(self) -> torch.Tensor:
        """Mean over rows, bands and neighbouring slots of how far the phase moves: |e^{iφ(t+1)} - e^{iφ(t)}|²."""
        return (self.cos.diff(dim=-1).square() + self.sin.diff(dim=-1).square()).mean()

    def split(self, sizes: list[int]) -> list["Phases"]:
        """Split the rows into runs of the given sizes."""
        parts = (value.split(sizes) for value in (self.cos, self.sin, self.magnitude))
        return [Phases(*values) for values in zip(*parts, strict=True)]

    def columns(self, slots: slice) -> "Phases":
        """The given slots alone."""
        return Phases(self.cos[..., slots], self.sin[..., slots], self.magnitude[..., slots])

    def take(self, at: torch.Tensor) -> "Phases":
        """One slot of each row: all of (B, S, 1)."""
        index = at[:, None, None].expand(-1, self.cos.shape[1], 1)
        return Phases(self.cos.gather(2, index), self.sin.gather(2, index), self.magnitude.gather(2, index))


def to_phases(real: torch.Tensor, imaginary: torch.Tensor, silence: Silence) -> Phases:
    """Phase and magnitude of complex numbers.

    The magnitude is √(U² + V² + 1e-8), the angle atan2(V, U + 1e-8), or atan2(V, U) for the silence "no phase". Cosine
    and sine are taken as quotients, which are the same; the gradient is finite everywhere.

    Args:
        real: float (B, S, L), U.
        imaginary: float (B, S, L), V.
        silence: Treatment of slots of a magnitude of at most 0.001.
    """
    magnitude = (real.square() + imaginary.square() + _FLOOR).sqrt()
    if silence != "no phase":
        real = real + _FLOOR
    if silence != "kept":
        loud = magnitude > _SILENT
        real, imaginary = torch.where(loud, real, 1.0), torch.where(loud, imaginary, 0.0)
    inverse = (real.square() + imaginary.square()).clamp_min(_TINY).rsqrt()
    cos, sin = real * inverse, imaginary * inverse
    if silence == "no phase":
        cos = cos * loud
    return Phases(cos, sin, magnitude)


class _SumTaps(torch.autograd.Function):
    """Sum over the taps of each band, tap m moved m · dilation slots onward; what moves beyond the last slot is lost.

    Autograd of shifted slices would fill a whole gradient with zeros for every one of them.
    """

    @staticmethod
    def forward(ctx: Any, taps: torch.Tensor, shifts: list[list[int]]) -> torch.Tensor:
        """From float (Σ m, 2, B, L), the taps of all bands one after the other, to (S, 2, B, L)."""
        ctx.shifts = shifts
        summed = taps.new_zeros(len(shifts), *taps.shape[1:])
        tap = iter(taps)
        for band, moves in zip(summed, shifts, strict=True):
            for shift in moves:
                band[..., shift:] += next(tap)[..., : taps.shape[-1] - shift]
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Move the gradient back."""
        length = gradient.shape[-1]
        taps = gradient.new_empty(sum(map(len, ctx.shifts)), *gradient.shape[1:])
        tap = iter(taps)
        for band, moves in zip(gradient, ctx.shifts, strict=True):
            for shift in moves:
                part = next(tap)
                part[..., : length - shift] = band[..., shift:]
                part[..., length - shift :] = 0
        return taps, None


_sum_taps: Callable[[torch.Tensor, list[list[int]]], torch.Tensor] = _SumTaps.apply


class PhaseBank(nn.Module):
    """Pairs of depth-wise dilated causal convolutions, one pair a band, each averaged over the channels.

    Band s has kernels of k_s = 3, 7, 15, 31 taps at dilations of 1, 2, 4, 8 slots. Its real part is
    U_s(t) = 1/D Σ_c Σ_m w[c, k_s - 1 - m] x[t - m · dilation, c], and V_s likewise with weights of its own; what lies
    before the first slot is 0. The mean over channels is taken first: one product gives all taps at all slots, and
    their sums along time follow. Taps before the first slot for every slot are left out.

    Attributes:
        weights: For each band float (2, D, k_s), real and imaginary, drawn uniformly from ±1/√k_s.
    """

    def __init__(self, hidden_size: int, num_bands: int, silence: Silence):
        super().__init__()
        self.num_bands, self.silence = num_bands, silence
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(2, hidden_size, taps).uniform_(-1 / math.sqrt(taps), 1 / math.sqrt(taps)))
            for taps in KERNELS
        )

    def forward(self, x: torch.Tensor) -> Phases:
        """Phases of the first `num_bands` bands of float (B, L, D)."""
        batch, length, width = x.shape
        used = [
            weight[..., -(1 + (length - 1) // dilation) :].flip(-1)
            for weight, dilation in zip(self.weights[: self.num_bands], DILATIONS, strict=False)
        ]  # (2, D, m), the tap of the slot itself first
        shifts = [
            [tap * dilation for tap in range(weight.shape[-1])]
            for weight, dilation in zip(used, DILATIONS, strict=False)
        ]
        flat = torch.cat([weight.permute(2, 0, 1) for weight in used]).flatten(0, 1)  # (2 Σ m, D)
        taps = ((flat / width) @ x.reshape(-1, width).T).view(-1, 2, batch, length)
        real, imaginary = _sum_taps(taps, shifts).transpose(0, 2).unbind(1)
        return to_phases(real, imaginary, self.silence)


class PhaseAttention(AttentionFrame):
    """Self-attention that also reads the phases of the slots: `heads` for all slots, `read` for one query a row.

    For one query neither keys nor values are computed: q · (K x + b) = (Kᵀ q) · x + q · b, and a weighted sum of
    values is the value of a weighted sum.
    """

    def forward(
        self, x: torch.Tensor, phases: Phases, mask: torch.Tensor, at: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend.

        Args:
            x: float (B, L, D).
            phases: Of the L slots.
            mask: float (B, 1 or H, L, L), added to the scores.
            at: int64 (B,), the slot of each row to compute; all if None.

        Returns:
            float (B, L, D), or (B, 1, D) with `at`.
        """
        if at is None:
            return self.merge(self.heads(*self.project(x), phases, mask), x)
        width = x.shape[-1]
        one = take_slots(x, at)[:, None]
        q = self.split_heads(nn.functional.linear(one, self.qkv.weight[:width], self.qkv.bias[:width]))
        seen = mask[torch.arange(len(at), device=x.device), :, at][:, :, None]
        return self.merge(self.read(q, x, phases.take(at), phases, seen), x, at)

    @abstractmethod
    def heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """Output of each head at each slot, float (B, H, L, d), from queries, keys and values of that shape.

        The mask is float (B, 1 or H, L, L), added to the scores.
        """

    @abstractmethod
    def read(
        self, q: torch.Tensor, x: torch.Tensor, query_phases: Phases, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """Output of each head for one query, float (B, H, 1, d) as the query, of the layer's input x, float (B, L, D).

        The mask is float (B, 1 or H, 1, L), added to the scores.
        """

    def products(self, q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Products of queries, float (B, H, R, d), with the keys of x, float (B, L, D): (B, H, R, L)."""
        batch, heads, queries, _ = q.shape
        weight, bias = self._rows(1)
        folded = q.transpose(0, 1).flatten(1, 2) @ weight  # (H, B R, D)
        folded = folded.unflatten(1, (batch, queries)).transpose(0, 1).flatten(1, 2)  # (B, H R, D)
        products = (folded @ x.transpose(1, 2)).unflatten(1, (heads, queries))
        scores: torch.Tensor = products + q @ bias[:, :, None]
        return scores

    def gather(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Sums of the values of x, float (B, L, D), with weights float (B, H, 1, L): (B, H, 1, d)."""
        weight, bias = self._rows(2)
        summed = (weights[:, :, 0] @ x).transpose(0, 1) @ weight.transpose(1, 2)  # (H, B, d)
        return summed.transpose(0, 1)[:, :, None] + weights.sum(-1, keepdim=True) * bias[:, None]

    def _rows(self, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight, (H, d, D), and bias, (H, d), of queries, keys or values: part 0, 1 or 2."""
        weight, bias = self.qkv.weight.chunk(3)[part], self.qkv.bias.chunk(3)[part]
        return weight.unflatten(0, (self.num_heads, -1)), bias.unflatten(0, (self.num_heads, -1))


class RotatedAttention(PhaseAttention):
    """Head h turns queries and keys by the phase of band h, after scaling them by 1 + γ_h · magnitude.

    The pairs of dimensions that a turn mixes are neighbours, (0, 1), (2, 3) …; the published implementation pairs the
    two halves of a head. As the projections before are free, the two are one model with its rows in another order.

    Attributes:
        gamma: float (H,), or None where nothing scales.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        hidden_dropout: float,
        attention_dropout: float,
        gamma: float | None = None,
    ):
        super().__init__(hidden_size, num_heads, hidden_dropout, attention_dropout)
        if hidden_size // num_heads % 2:
            raise ConfigError(f"heads are {hidden_size // num_heads} wide; only an even width can be turned.")
        self.gamma = None if gamma is None else nn.Parameter(torch.full((num_heads,), gamma))

    def heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`."""
        turns = self.turns(phases)
        return attend(turn(q, turns), turn(k, turns), v, mask, self.attention_dropout)

    def read(
        self, q: torch.Tensor, x: torch.Tensor, query_phases: Phases, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`; the product with a turned key is that of the query turned back."""
        turns = self.turns(phases)
        turned = turn(q / math.sqrt(q.shape[-1]), self.turns(query_phases))
        # q · (e^{iφ} k) = cos φ (q · k) + sin φ (-i q · k)
        back = turned.unflatten(-1, (-1, 2)).flip(-1) * turned.new_tensor([1.0, -1.0])
        products = self.products(torch.cat((turned, back.flatten(-2)), 2), x)  # (B, H, 2, L)
        scores = (products * torch.view_as_real(turns).transpose(2, 3)).sum(2, keepdim=True) + mask
        return self.gather(self.attention_dropout(scores.softmax(-1)), x)

    def turns(self, phases: Phases) -> torch.Tensor:
        """Factors of the pairs of each head, as complex numbers (B, H, L)."""
        angles = torch.complex(phases.cos, phases.sin)
        return angles if self.gamma is None else angles * (1 + self.gamma[:, None] * phases.magnitude)


def turn(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Multiply the pairs of float (B, H, M, d), as complex numbers, by complex (B, H, M)."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns[..., None]).flatten(-2)


def initial_band_logits(num_heads: int, num_bands: int) -> torch.Tensor:
    """Logits of each head's weights of the bands, highest at the head's share of the way through them: float (H, S)."""
    head, band = torch.arange(num_heads)[:, None] + 0.5, torch.arange(num_bands) + 0.5
    return -((band - head * num_bands / num_heads) ** 2)


def band_features(phases: Phases, weights: torch.Tensor) -> torch.Tensor:
    """Vectors whose products are weighted cosines of phase differences, Σ_s w_hs cos(φ_s(i) - φ_s(j)).

    Args:
        phases: Of L slots, S bands.
        weights: float (H, S), at least 0; 1e-8 is added, so that their root has a gradient.

    Returns:
        float (B, H, L, 2 S).
    """
    angles = torch.cat((phases.cos, phases.sin), 1).transpose(1, 2)  # (B, L, 2 S)
    return angles[:, None] * (weights + 1e-8).sqrt().repeat(1, 2)[:, None]


class PSWRec(SequentialModel):
    """Base of the PSWRec models, transformers whose attention reads the phases of a filter bank over their input.

    The bank reads the embedded input once, padding included, and all layers use its phases. The loss is cross-entropy
    plus `phase_aux_weight` times their roughness, the mean squared move of e^{iφ} from slot to slot. (`sequence_loss`
    has the cross-entropy alone.)

    Padding is masked as keys, so past the bank a row goes without most of its padding, and the last layer works for the
    slot that is read alone.

    There is no paper; the published implementations of all versions also do:

    1. Norm and dropout of the embedding are applied twice (`embedding_passes`), with one and the same norm: at dropout
       0.5 only a quarter of the entries survive in training.
    2. The bank reads the padding before a history, so left padding takes part in the phases.
    3. The guard for rows without a visible key can never act and is left out: padding is masked with -10000.

    Args:
        attention: Builds the attention of one layer, from width, heads, and the dropouts of vectors and of weights.
        num_bands: Bands in use, one for each head if None; the parameters of all four exist.
        padding: Side on which histories are padded.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        attention_dropout: Dropout of attention weights.
        hidden_dropout: Dropout after the embedding and each part of a layer.
        phase_aux_weight: Weight of the roughness of the phases in the loss; at least 0.
    """

    causal = True
    silence: Silence = "kept"
    embedding_passes = 2

    def __init__(
        self,
        attention: Callable[[int, int, float, float], PhaseAttention],
        num_bands: int | None = None,
        /,
        *,
        padding: Side = "left",
        num_layers: int = 2,
        num_heads: int = NUM_BANDS,
        inner_size: int = 256,
        attention_dropout: float = 0.5,
        hidden_dropout: float = 0.5,
        phase_aux_weight: float = 0.05,
        **sizes: Any,
    ):
        super().__init__(padding=padding, **sizes)
        hidden_size, used_bands = self.hidden_size, num_heads if num_bands is None else num_bands
        check_heads(hidden_size, num_heads)
        if not 1 <= used_bands <= NUM_BANDS:
            raise ConfigError(f"the model would use {used_bands} bands of phases; there are 1 to {NUM_BANDS}.")
        if phase_aux_weight < 0:
            raise ConfigError(f"phase_aux_weight is {phase_aux_weight}; it must be at least 0.")
        self.phase_aux_weight = phase_aux_weight
        self.embedding = ItemEmbedding(self.num_items, self.max_len, hidden_size, hidden_dropout, padding)
        self.bank = PhaseBank(hidden_size, used_bands, self.silence)
        self.layers = nn.ModuleList(
            TransformerLayer(
                attention(hidden_size, num_heads, hidden_dropout, attention_dropout),
                FeedForward(hidden_size, inner_size, hidden_dropout),
            )
            for _ in range(num_layers)
        )
        self.apply(init_weights)

    def mask(self, histories: torch.Tensor, phases: Phases) -> torch.Tensor:
        """Additive mask of the scores of all layers: float (B, 1 or H, L, L)."""
        return causal_mask(histories)

    def embed(self, histories: torch.Tensor) -> tuple[torch.Tensor, Phases]:
        """Input of the first layer, float (B, L, D) from int64 (B, L), L = max_len, and its phases."""
        x = self.embedding(histories)
        for _ in range(1, self.embedding_passes):
            x = self.embedding.dropout(self.embedding.norm(x))
        return x, self.bank(x)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return self._encode(histories)[0]

    def _encode(self, histories: torch.Tensor) -> tuple[torch.Tensor, Phases]:
        histories = full_width(histories, self.max_len, self.padding)
        groups = length_groups(histories, self.padding)
        order, sizes = torch.cat([positions for positions, _ in groups]), [len(positions) for positions, _ in groups]
        # Rows of a group are adjacent from here on, so that groups are slices without a copy.
        histories = histories[order]
        x, phases = self.embed(histories)
        parts = zip(groups, histories.split(sizes), x.split(sizes), phases.split(sizes), strict=True)
        vectors = [
            self._last_vectors(rows[:, columns], part[:, columns], row_phases.columns(columns))
            for (_, columns), rows, part, row_phases in parts
        ]
        return torch.cat(vectors)[order.argsort()], phases

    def _last_vectors(self, histories: torch.Tensor, x: torch.Tensor, phases: Phases) -> torch.Tensor:
        mask = self.mask(histories, phases)
        for layer in self.layers[:-1]:
            x = layer(x, phases, mask)
        newest: torch.Tensor = self.layers[-1](x, phases, mask, readout_slots(histories, self.padding))[:, 0]
        return newest

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        width = histories.shape[1]
        histories = full_width(histories, self.max_len, self.padding)
        x, phases = self.embed(histories)
        mask = self.mask(histories, phases)
        for layer in self.layers:
            x = layer(x, phases, mask)
        return x[:, -width:] if self.padding == "left" else x[:, :width]

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.embedding.items.weight

    def loss(
        self,
        histories: torch.Tensor,
        targets: torch.Tensor,
        users: torch.Tensor | None = None,
        contexts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `SequentialModel`; plus `phase_aux_weight` times the roughness of the phases."""
        vectors, phases = self._encode(histories)
        loss = nn.functional.cross_entropy(self.logits(self.conditioned(vectors, contexts)), targets)
        if self.phase_aux_weight == 0:
            return loss
        return loss + self.phase_aux_weight * phases.roughness()


class SyncAttention(PhaseAttention):
    """Attention whose scores and weights both follow how far two slots are in step.

    With weights w_h = softmax(band_logits_h) of the bands and m_h(i) = Σ_s w_hs mag_s(i),
    sync_h(i, j) = e^{β_h} · 2 m_h(i) m_h(j) / (m_h(i) + m_h(j)) · Σ_s w_hs cos(φ_s(i) - φ_s(j)) is added to the scores;
    after softmax and dropout the weights are multiplied by sigmoid(κ sync) and divided by their sum.

    Attributes:
        band_logits: float (H, S).
        beta: float (H,), from 0.1.
        kappa: float, scalar, from 1.
    """

    def __init__(self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float):
        super().__init__(hidden_size, num_heads, hidden_dropout, attention_dropout)
        self.band_logits = nn.Parameter(initial_band_logits(num_heads, NUM_BANDS))
        self.beta = nn.Parameter(torch.full((num_heads,), 0.1))
        self.kappa = nn.Parameter(torch.tensor(1.0))

    def heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`."""
        return self.weights((q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2), phases, phases, mask) @ v

    def read(
        self, q: torch.Tensor, x: torch.Tensor, query_phases: Phases, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`."""
        return self.gather(self.weights(self.products(q / math.sqrt(q.shape[-1]), x), query_phases, phases, mask), x)

    def weights(self, scores: torch.Tensor, query_phases: Phases, phases: Phases, mask: torch.Tensor) -> torch.Tensor:
        """Attention weights from scores, float (B, H, M, L) to the same; `query_phases` are those of the M slots."""
        bands = self.band_logits.softmax(-1)
        strength_q, strength_k = (bands @ part.magnitude for part in (query_phases, phases))  # (B, H, M), (B, H, L)
        # The product of the two magnitudes goes into the features.
        scale = 2 * self.beta.exp()[:, None] * strength_q
        features_q = band_features(query_phases, bands) * scale[..., None]
        features_k = band_features(phases, bands) * strength_k[..., None]
        sync = features_q @ features_k.transpose(-1, -2)
        sync = sync / (strength_q[..., None] + (strength_k[..., None, :] + 1e-8))
        gated = self.attention_dropout((scores + sync + mask).softmax(-1)) * (self.kappa * sync).sigmoid()
        shares: torch.Tensor = gated / (gated.sum(-1, keepdim=True) + 1e-9)
        return shares


class ScaledAttention(PhaseAttention):
    """Attention with queries and keys scaled by magnitudes, and a bias from phases in step.

    With mag~_s = mag_s / mean over the bands of mag_s and a_h = tanh(Σ_s softplus(γ_hs) mag~_s), queries and keys are
    scaled by 1 + a_h / 2, and softplus(b_h) / √S · Σ_s w_hs cos(φ_s(i) - φ_s(j)) is added to the scores, with
    w_h = softmax(band_logits_h).

    Attributes:
        band_logits: float (H, S).
        gamma: float (H, S), from -3.
        phase_bias: float (H,), b, from -5.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float, num_bands: int
    ):
        super().__init__(hidden_size, num_heads, hidden_dropout, attention_dropout)
        self.band_logits = nn.Parameter(initial_band_logits(num_heads, num_bands))
        self.gamma = nn.Parameter(torch.full((num_heads, num_bands), -3.0))
        self.phase_bias = nn.Parameter(torch.full((num_heads,), -5.0))

    def heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`."""
        # One product gives scores and bias: `attend` divides by the root of the whole width.
        whole = q.shape[-1] + 2 * self.gamma.shape[1]
        queries, keys = self.features(phases)
        scale = self.scale(phases)
        queries = torch.cat((q * (scale * math.sqrt(whole / q.shape[-1])), queries * math.sqrt(whole)), -1)
        return attend(queries, torch.cat((k * scale, keys), -1), v, mask, self.attention_dropout)

    def read(
        self, q: torch.Tensor, x: torch.Tensor, query_phases: Phases, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`."""
        products = self.products(q * (self.scale(query_phases) / math.sqrt(q.shape[-1])), x)
        bias = self.features(query_phases)[0] @ self.features(phases)[1].transpose(-1, -2)
        scores = products * self.scale(phases).transpose(-1, -2) + bias + mask
        return self.gather(self.attention_dropout(scores.softmax(-1)), x)

    def features(self, phases: Phases) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of queries and of keys whose products are the bias: twice float (B, H, L, 2 S)."""
        features = band_features(phases, self.band_logits.softmax(-1))
        weight = nn.functional.softplus(self.phase_bias) / math.sqrt(self.gamma.shape[1])
        return features * weight[:, None, None], features

    def scale(self, phases: Phases) -> torch.Tensor:
        """Factors of queries or keys: float (B, H, L, 1)."""
        relative = phases.magnitude / (phases.magnitude.mean(1, keepdim=True) + 1e-8)  # (B, S, L)
        return (1 + 0.5 * (nn.functional.softplus(self.gamma) @ relative).tanh())[..., None]


# The versions.


class PSWRecV5(PSWRec):
    """Attention with a bias and a gate from the phases of four bands; see `SyncAttention` for the equations.

    What the published implementation does otherwise than those of the later versions:

    1. A slot whose magnitude is at most 0.001 in a band has no phase there: its cosine and sine are 0.
    2. Dropout acts on the weights before they are gated and divided by their sum, so rows sum to 1 in training too.
    3. Norm and dropout of the embedding are applied once.
    """

    silence = "no phase"
    embedding_passes = 1

    def __init__(self, *, num_heads: int = 2, **sizes: Any):
        super().__init__(SyncAttention, NUM_BANDS, num_heads=num_heads, **sizes)


_OUT_OF_STEP = -1e9


class PSWRecV12(PSWRec):
    """Attention whose head h turns queries and keys by the phase of band h, and sees slots in step alone (B-RoPE).

    Scores are (e^{iφ_h(i)} q_h(i)) · (e^{iφ_h(j)} k_h(j)) / √d. Two different slots whose cos(φ_h(i) - φ_h(j)) is below
    `sync_threshold` do not see each other in head h. The published implementation also does:

    1. All dimensions of a head turn by one angle, that of the slot's content; there is no angle of the slot's number.
    2. A slot whose magnitude is at most 0.001 has angle 0. An angle is atan2(V, U + 1e-8), because the gradient of
       atan2(0, 0) is not defined.

    Args:
        num_heads: 4, one for each band.
        sync_threshold: Least cosine of a phase difference across which a head sees.
    """

    silence = "zero angle"

    def __init__(self, *, num_heads: int = NUM_BANDS, sync_threshold: float = 0.0, **sizes: Any):
        if num_heads != NUM_BANDS:
            raise ConfigError(f"num_heads is {num_heads}; PSWRec V12 has one head for each of its {NUM_BANDS} bands.")
        super().__init__(RotatedAttention, num_heads=num_heads, **sizes)
        self.sync_threshold = sync_threshold

    @torch.no_grad()
    def mask(self, histories: torch.Tensor, phases: Phases) -> torch.Tensor:
        """See `PSWRec`; slots out of step are masked far below padding."""
        angles = torch.stack((phases.cos, phases.sin), -1)  # (B, S, L, 2)
        apart = angles @ angles.transpose(-1, -2) < self.sync_threshold
        apart.diagonal(dim1=-2, dim2=-1).fill_(False)
        return super().mask(histories, phases).masked_fill(apart, _OUT_OF_STEP)


class PSWRecV13(PSWRec):
    """Attention whose head h turns queries and keys by the phase of band h and scales them by its magnitude.

    q'_h(t) = (1 + γ_h mag_h(t)) e^{iφ_h(t)} q_h(t), k' likewise, v untouched; scores q'·k' / √d; γ starts at 0. All
    dimensions of a head turn by one angle, that of the slot's content. With fewer than four heads the bands beyond them
    have parameters that nothing uses. D / num_heads must be even.
    """

    gamma_init = 0.0

    def __init__(self, **sizes: Any):
        super().__init__(partial(RotatedAttention, gamma=self.gamma_init), **sizes)


class PSWRecV14(PSWRecV13):
    """`PSWRecV13` whose γ starts at 0.1, so that magnitudes matter from the first step."""

    gamma_init = 0.1


class PSWRecV13Unrotated(PSWRec):
    """PSWRec V13 without phase rotation ("V13withoutphaserot"); see `ScaledAttention` for the equations.

    Args:
        num_bands: Bands in use, 1 to 4; the parameters of all four exist.
    """

    def __init__(self, *, num_bands: int = NUM_BANDS, **sizes: Any):
        super().__init__(partial(ScaledAttention, num_bands=num_bands), num_bands, **sizes)
