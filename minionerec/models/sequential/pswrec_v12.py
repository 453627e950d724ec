"""PSWRec V12: attention turned by phases, between slots in step alone (B-RoPE with a gate)."""

import torch

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.sequential.phase import NUM_BANDS, Phases
from minionerec.models.sequential.pswrec import PhaseAttention, PSWRec, RotatedAttention

_OUT_OF_STEP = -1e9


class PSWRecV12(PSWRec):
    """Attention whose head h turns queries and keys by the phase of band h, and sees slots in step alone.

    Scores are (e^{iφ_h(i)} q_h(i)) · (e^{iφ_h(j)} k_h(j)) / √d. Two different slots whose cos(φ_h(i) - φ_h(j)) is below
    `sync_threshold` do not see each other in head h. There is no paper; what the published implementation does beside:

    1. Norm and dropout of the embedding are applied twice, with one and the same norm.
    2. All dimensions of a head turn by one angle, that of the slot's content; there is no angle of the slot's number.
    3. A slot whose magnitude is at most 0.001 has angle 0. An angle is atan2(V, U + 1e-8), because the gradient of
       atan2(0, 0) is not defined.
    4. The bank reads the padding before a history, so left padding takes part in the phases.
    5. The guard for rows in which every score is masked is left out: a slot always sees itself, so it can never act.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; 4, one for each band.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
        phase_aux_weight: Weight of the roughness of the phases in the loss.
        sync_threshold: Least cosine of a phase difference across which a head sees.

    Raises:
        ConfigError: If `num_heads` is not 4.
    """

    silence = "zero angle"

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "left",
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = NUM_BANDS,
        inner_size: int = 256,
        hidden_dropout: float = 0.5,
        attention_dropout: float = 0.5,
        phase_aux_weight: float = 0.05,
        sync_threshold: float = 0.0,
    ):
        if num_heads != NUM_BANDS:
            raise ConfigError(f"num_heads is {num_heads}; PSWRec V12 has one head for each of its {NUM_BANDS} bands.")
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
        self.sync_threshold = sync_threshold

    def attention(
        self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float
    ) -> PhaseAttention:
        """See `PSWRec`."""
        return RotatedAttention(hidden_size, num_heads, hidden_dropout, attention_dropout)

    @torch.no_grad()
    def mask(self, histories: torch.Tensor, phases: Phases) -> torch.Tensor:
        """See `PSWRec`; slots out of step are masked far below padding."""
        angles = torch.stack((phases.cos, phases.sin), -1)  # (B, S, L, 2)
        apart = angles @ angles.transpose(-1, -2) < self.sync_threshold
        apart.diagonal(dim1=-2, dim2=-1).fill_(False)
        return super().mask(histories, phases).masked_fill(apart, _OUT_OF_STEP)
