"""What the PSWRec models share: the phases of the input, the layers that attend by them, and the rotation."""

import math
from abc import abstractmethod

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    AttentionFrame,
    FeedForward,
    ItemEmbedding,
    attend,
    causal_mask,
    check_heads,
    init_weights,
)
from minionerec.models.nn.padding import full_width, length_groups, readout_slots, take_slots
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.phase import NUM_BANDS, PhaseBank, Phases, Silence


class PhaseAttention(AttentionFrame):
    """Self-attention that also reads the phases of the slots: `heads` says how; `read`, for one query a row.

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
            at: int64 (B,), the one slot of each row that is wanted; all if None.

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
        """What each head gathers at each slot.

        Args:
            q: float (B, H, L, d).
            k: float (B, H, L, d).
            v: float (B, H, L, d).
            phases: Of the L slots.
            mask: float (B, 1 or H, L, L), added to the scores.

        Returns:
            float (B, H, L, d).
        """

    @abstractmethod
    def read(self, q: torch.Tensor, x: torch.Tensor, own: Phases, phases: Phases, mask: torch.Tensor) -> torch.Tensor:
        """What each head gathers for one query.

        Args:
            q: float (B, H, 1, d).
            x: float (B, L, D), input of the layer.
            own: Phases of the slot that queries.
            phases: Of the L slots.
            mask: float (B, 1 or H, 1, L), added to the scores.

        Returns:
            float (B, H, 1, d).
        """

    def products(self, q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Products of queries, float (B, H, R, d), with the keys of x, float (B, L, D): (B, H, R, L)."""
        rows, heads, queries, _ = q.shape
        weight, bias = self._rows(1)
        folded = q.transpose(0, 1).flatten(1, 2) @ weight  # (H, B R, D)
        folded = folded.unflatten(1, (rows, queries)).transpose(0, 1).flatten(1, 2)  # (B, H R, D)
        found = (folded @ x.transpose(1, 2)).unflatten(1, (heads, queries))
        scores: torch.Tensor = found + q @ bias[:, :, None]
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

    def read(self, q: torch.Tensor, x: torch.Tensor, own: Phases, phases: Phases, mask: torch.Tensor) -> torch.Tensor:
        """See `PhaseAttention`; the product with a turned key is that of the query turned back."""
        turns = self.turns(phases)
        turned = turn(q / math.sqrt(q.shape[-1]), self.turns(own))
        # q · (e^{iφ} k) = cos φ (q · k) + sin φ (-i q · k)
        back = turned.unflatten(-1, (-1, 2)).flip(-1) * turned.new_tensor([1.0, -1.0])
        found = self.products(torch.cat((turned, back.flatten(-2)), 2), x)  # (B, H, 2, L)
        scores = (found * torch.view_as_real(turns).transpose(2, 3)).sum(2, keepdim=True) + mask
        return self.gather(self.attention_dropout(scores.softmax(-1)), x)

    def turns(self, phases: Phases) -> torch.Tensor:
        """What the pairs of each head are multiplied by, as complex numbers (B, H, L)."""
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


class PhaseLayer(nn.Module):
    """Attention, then the position-wise network, each followed by its norm."""

    def __init__(self, attention: PhaseAttention, feed_forward: FeedForward):
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward

    def forward(
        self, x: torch.Tensor, phases: Phases, mask: torch.Tensor, at: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `PhaseAttention`."""
        result: torch.Tensor = self.feed_forward(self.attention(x, phases, mask, at))
        return result


class PSWRec(SequentialModel):
    """Base of the PSWRec models, transformers whose attention reads the phases of a filter bank over their input.

    The bank reads the embedded input once, padding included, and all layers use its phases. The loss is cross-entropy
    plus `phase_aux_weight` times their roughness, the mean squared move of e^{iφ} from slot to slot. (`sequence_loss`
    has the cross-entropy alone.)

    Padding is masked as keys, so past the bank a row goes without most of its padding, and the last layer works for the
    slot that is read alone.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        num_bands: Bands in use; the parameters of all four exist.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
        phase_aux_weight: Weight of the roughness in the loss; at least 0.

    Raises:
        ConfigError: If a number does not serve.
    """

    causal = True
    silence: Silence = "kept"
    embedding_passes = 2
    """How often the norm and the dropout of the embedding are applied; the same norm each time."""

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        num_bands: int,
        inner_size: int,
        hidden_dropout: float,
        attention_dropout: float,
        phase_aux_weight: float,
    ):
        super().__init__(num_items, max_len, padding)
        check_heads(hidden_size, num_heads)
        if not 1 <= num_bands <= NUM_BANDS:
            raise ConfigError(f"the model would use {num_bands} bands of phases; there are 1 to {NUM_BANDS}.")
        if phase_aux_weight < 0:
            raise ConfigError(f"phase_aux_weight is {phase_aux_weight}; it must be at least 0.")
        self.phase_aux_weight = phase_aux_weight
        self.embedding = ItemEmbedding(num_items, max_len, hidden_size, hidden_dropout, padding)
        self.bank = PhaseBank(hidden_size, num_bands, self.silence)
        self.layers = nn.ModuleList(
            PhaseLayer(
                self.attention(hidden_size, num_heads, hidden_dropout, attention_dropout),
                FeedForward(hidden_size, inner_size, hidden_dropout),
            )
            for _ in range(num_layers)
        )
        self.apply(init_weights)

    @abstractmethod
    def attention(
        self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float
    ) -> PhaseAttention:
        """Build the attention of one layer."""

    def mask(self, histories: torch.Tensor, phases: Phases) -> torch.Tensor:
        """What is added to the scores of all layers: float (B, 1 or H, L, L)."""
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
        order, sizes = torch.cat([places for places, _ in groups]), [len(places) for places, _ in groups]
        # Rows of a group stand together from here on, so that groups are cut from the whole without a copy.
        histories = histories[order]
        x, phases = self.embed(histories)
        parts = zip(groups, histories.split(sizes), x.split(sizes), phases.split(sizes), strict=True)
        vectors = [
            self._last_vectors(rows[:, columns], part[:, columns], own.columns(columns))
            for (_, columns), rows, part, own in parts
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
        moments: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `SequentialModel`; plus `phase_aux_weight` times the roughness of the phases."""
        vectors, phases = self._encode(histories)
        loss = nn.functional.cross_entropy(self.logits(self.asked(vectors, moments)), targets)
        if self.phase_aux_weight == 0:
            return loss
        return loss + self.phase_aux_weight * phases.roughness()
