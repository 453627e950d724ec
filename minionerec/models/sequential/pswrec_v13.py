"""PSWRec V13 and V14: attention turned by phases and scaled by their magnitudes (AM-B-RoPE)."""

from minionerec.data.rows import Side
from minionerec.models.sequential.phase import NUM_BANDS
from minionerec.models.sequential.pswrec import PhaseAttention, PSWRec, RotatedAttention


class PSWRecV13(PSWRec):
    """Attention whose head h turns queries and keys by the phase of band h and scales them by its magnitude.

    q'_h(t) = (1 + γ_h mag_h(t)) e^{iφ_h(t)} q_h(t), k' likewise, v untouched; scores q'·k' / √d; γ starts at 0. Phases
    and magnitudes are those of `minionerec.models.sequential.phase`. There is no paper; what the published
    implementation does beside:

    1. Norm and dropout of the embedding are applied twice, with one and the same norm: at dropout 0.5 only a quarter of
       the entries survive in training.
    2. All dimensions of a head turn by one angle, that of the slot's content; there is no angle of the slot's number.
    3. With fewer than four heads the bands beyond them have parameters that nothing uses.
    4. The bank reads the padding before a history, so left padding takes part in the phases.
    5. The guard for rows without a visible key can never act and is left out: padding is masked with -10000.

    Args:
        num_items: Number of items.
        max_len: Longest history; shorter batches are padded to it.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads and bands in use, 1 to 4; D / num_heads must be even.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
        phase_aux_weight: Weight of the roughness of the phases in the loss.
    """

    gamma_init = 0.0

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
    ):
        super().__init__(
            num_items,
            max_len,
            padding,
            hidden_size,
            num_layers,
            num_heads,
            num_heads,
            inner_size,
            hidden_dropout,
            attention_dropout,
            phase_aux_weight,
        )

    def attention(
        self, hidden_size: int, num_heads: int, hidden_dropout: float, attention_dropout: float
    ) -> PhaseAttention:
        """See `PSWRec`."""
        return RotatedAttention(hidden_size, num_heads, hidden_dropout, attention_dropout, self.gamma_init)


class PSWRecV14(PSWRecV13):
    """`PSWRecV13` whose γ starts at 0.1, so that magnitudes have a say from the first step."""

    gamma_init = 0.1
