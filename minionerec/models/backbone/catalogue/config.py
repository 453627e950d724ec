"""The shape of a catalogue model."""

from dataclasses import field
from typing import Any

from transformers import PreTrainedConfig


class CatalogueConfig(PreTrainedConfig):
    """Shape of a `CatalogueModel`.

    Attributes:
        vocab_size: Tokens of the tokenizer.
        num_sids: Distinct SIDs of the catalogue, N.
        levels: Levels of the SIDs, L.
        max_code: Largest code.
        max_history: Maximum number of items read from a history.
        hidden_size: Width D of a tower.
        num_hidden_layers: Layers of a tower.
        num_attention_heads: Attention heads of a tower.
        intermediate_size: Width of the feed-forward layers.
        towers: Number of towers.
        text_width: Width of the given vectors of SIDs, of texts and of columns of items; 0 without.
        item_columns: Columns of the items whose codes are the last entries of the given vectors, as
            `minionerec.data.roles.ColumnCode.stored` gives them.
        learned_vectors: Whether each SID has a learned vector.
        code_vectors: Whether codes have vectors.
        code_sizes: Rows of each table of code vectors.
        pointer: Whether SIDs of the history get an additional score.
        experts: Whether experts are pooled with the model's probabilities (`minionerec.models.nn.experts`).
        num_expert_counts: Number of transition counts of the experts.
        num_expert_neighbours: Number of text similarities of the experts.
        num_expert_ease: Number of their weights of EASE of each SID.
        expert_width: Width of their vectors of SIDs.
        num_transitions: Number of stored transition counts, E; 0 without.
        reach: Largest distance, in items, of counted pairs.
        decay: Factor of a pair's weight per step of distance.
        reverse: Weight of a pair in the reverse direction.
        event_tokens: Vocabulary ids of the tokens of events, which stand behind SIDs and have vectors that are added to
            those of the SIDs; empty without.
        context_tokens: For each request feature that the model is conditioned on, vocabulary ids of the tokens of its
            known codes; empty without.
    """

    model_type = "minionerec_catalogue"

    vocab_size: int = 1
    num_sids: int = 1
    levels: int = 1
    max_code: int = 0
    max_history: int = 10
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 512
    towers: int = 1
    text_width: int = 0
    item_columns: list[dict[str, Any]] = field(default_factory=list)
    learned_vectors: bool = True
    code_vectors: bool = True
    code_sizes: list[int] = field(default_factory=list)
    pointer: bool = True
    experts: bool = False
    num_expert_counts: int = 0
    num_expert_neighbours: int = 0
    num_expert_ease: int = 0
    expert_width: int = 0
    num_transitions: int = 0
    reach: int = 10
    decay: float = 0.6
    reverse: float = 0.0
    event_tokens: list[int] = field(default_factory=list)
    context_tokens: list[list[int]] = field(default_factory=list)
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    @property
    def context_sizes(self) -> list[int]:
        """Number of codes of each request feature, the unknown one among them."""
        return [1 + len(tokens) for tokens in self.context_tokens]
