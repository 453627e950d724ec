"""PSWRec V5: attention with a bias and a gate from phases in step."""

import math

import torch
from torch import nn

from minionerec.data.rows import Side
from minionerec.models.sequential.phase import NUM_BANDS, Phases
from minionerec.models.sequential.pswrec import PhaseAttention, PSWRec, band_features, initial_band_logits


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

    def read(self, q: torch.Tensor, x: torch.Tensor, own: Phases, phases: Phases, mask: torch.Tensor) -> torch.Tensor:
        """See `PhaseAttention`."""
        return self.gather(self.weights(self.products(q / math.sqrt(q.shape[-1]), x), own, phases, mask), x)

    def weights(self, scores: torch.Tensor, own: Phases, phases: Phases, mask: torch.Tensor) -> torch.Tensor:
        """Attention weights from scores, float (B, H, M, L) to the same; `own` are the phases of the M slots."""
        bands = self.band_logits.softmax(-1)
        strength_q, strength_k = (bands @ each.magnitude for each in (own, phases))  # (B, H, M), (B, H, L)
        # The product of the two magnitudes goes into the features.
        scale = 2 * self.beta.exp()[:, None] * strength_q
        features_q = band_features(own, bands) * scale[..., None]
        features_k = band_features(phases, bands) * strength_k[..., None]
        sync = features_q @ features_k.transpose(-1, -2)
        sync = sync / (strength_q[..., None] + (strength_k[..., None, :] + 1e-8))
        gated = self.attention_dropout((scores + sync + mask).softmax(-1)) * (self.kappa * sync).sigmoid()
        shares: torch.Tensor = gated / (gated.sum(-1, keepdim=True) + 1e-9)
        return shares


class PSWRecV5(PSWRec):
    """Attention with a bias and a gate from the phases of four bands.

    See `SyncAttention` for the equations. There is no paper; what the published implementation does beside:

    1. A slot whose magnitude is at most 0.001 in a band has no phase there: its cosine and sine are 0.
    2. Dropout acts on the weights before they are gated and divided by their sum, so rows sum to 1 in training too.
    3. The bank reads the padding before a history, so left padding takes part in the phases.
    4. Norm and dropout of the embedding are applied once, unlike in the later versions.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
        phase_aux_weight: Weight of the roughness of the phases in the loss.
    """

    silence = "no phase"
    embedding_passes = 1

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "left",
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        hidden_dropout: float = 0.5,
        attention_dropout: float = 0.5,
        phase_aux_weight: float = 0.05,
    ):
        super().__init__(
            num_items,
            max_len,
            padding,
            hidden_size,
            num_layers,
            num_heads,
            NUM_BANDS,
            inner_size,
            hidden_dropout,
            attention_dropout,
            phase_aux_weight,
        )

    def attention(
        self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float
    ) -> PhaseAttention:
        """See `PSWRec`."""
        return SyncAttention(hidden_size, num_heads, hidden_dropout, attention_dropout)
