"""PSWRec V13 without phase rotation: attention scaled by magnitudes, with a bias from phases in step."""

import math

import torch
from torch import nn

from minionerec.data.rows import Side
from minionerec.models.nn.layers import attend
from minionerec.models.sequential.phase import NUM_BANDS, Phases
from minionerec.models.sequential.pswrec import PhaseAttention, PSWRec, band_features, initial_band_logits


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
        self, hidden_size: int, num_heads: int, num_bands: int, hidden_dropout: float, attention_dropout: float
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

    def read(self, q: torch.Tensor, x: torch.Tensor, own: Phases, phases: Phases, mask: torch.Tensor) -> torch.Tensor:
        """See `PhaseAttention`."""
        products = self.products(q * (self.scale(own) / math.sqrt(q.shape[-1])), x)
        bias = self.features(own)[0] @ self.features(phases)[1].transpose(-1, -2)
        scores = products * self.scale(phases).transpose(-1, -2) + bias + mask
        return self.gather(self.attention_dropout(scores.softmax(-1)), x)

    def features(self, phases: Phases) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of queries and of keys whose products are the bias: twice float (B, H, L, 2 S)."""
        features = band_features(phases, self.band_logits.softmax(-1))
        weight = nn.functional.softplus(self.phase_bias) / math.sqrt(self.gamma.shape[1])
        return features * weight[:, None, None], features

    def scale(self, phases: Phases) -> torch.Tensor:
        """What queries or keys are multiplied by: float (B, H, L, 1)."""
        relative = phases.magnitude / (phases.magnitude.mean(1, keepdim=True) + 1e-8)  # (B, S, L)
        return (1 + 0.5 * (nn.functional.softplus(self.gamma) @ relative).tanh())[..., None]


class PSWRecV13Unrotated(PSWRec):
    """PSWRec V13 without phase rotation ("V13withoutphaserot").

    See `ScaledAttention` for the equations. There is no paper; what the published implementation does beside:

    1. Norm and dropout of the embedding are applied twice, with one and the same norm.
    2. The bank reads the padding before a history, so left padding takes part in the phases.
    3. The guard for rows without a visible key can never act and is left out: padding is masked with -10000.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        num_bands: Bands in use, 1 to 4; the parameters of all four exist.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
        phase_aux_weight: Weight of the roughness of the phases in the loss.
    """

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "left",
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        num_bands: int = NUM_BANDS,
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
            num_bands,
            inner_size,
            hidden_dropout,
            attention_dropout,
            phase_aux_weight,
        )

    def attention(
        self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float
    ) -> PhaseAttention:
        """See `PSWRec`."""
        return ScaledAttention(hidden_size, num_heads, self.bank.num_bands, hidden_dropout, attention_dropout)
