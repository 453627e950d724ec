"""PSWRec V13 without phase rotation: attention scaled by magnitudes, with a bias from phases in step."""

import math

import torch
from torch import nn

from minionerec.sequential.layers import attend
from minionerec.sequential.models.pswrec import PhaseAttention, PSWRec, band_features, initial_band_logits
from minionerec.sequential.padding import Side
from minionerec.sequential.phase import NUM_BANDS, Phases


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
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own: Phases, phases: Phases, mask: torch.Tensor
    ) -> torch.Tensor:
        """See `PhaseAttention`."""
        weights = self.band_logits.softmax(-1)
        num_bands = weights.shape[1]
        # One product gives scores and bias: `attend` divides by the root of the whole width.
        width, whole = q.shape[-1], q.shape[-1] + 2 * num_bands
        bias = (nn.functional.softplus(self.phase_bias) * math.sqrt(whole / num_bands))[:, None, None]
        scale = math.sqrt(whole / width)
        queries = torch.cat((q * (scale * self.scale(own)), band_features(own, weights) * bias), -1)
        keys = torch.cat((k * self.scale(phases), band_features(phases, weights)), -1)
        return attend(queries, keys, v, mask, self.attention_dropout)

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
