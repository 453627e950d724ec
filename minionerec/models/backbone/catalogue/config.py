"""The shape of a catalogue model."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig


class CatalogueConfig(PreTrainedConfig):
    """Shape of a `CatalogueModel`.

    Attributes:
        vocab_size: Tokens of its tokenizer.
        num_sids: Distinct SIDs of the catalogue, N.
        levels: Levels of the SIDs, L.
        max_code: Largest code.
        max_history: Most items that are read.
        hidden_size: Width D of a tower.
        num_hidden_layers: Layers of a tower.
        num_attention_heads: Heads of a tower.
        intermediate_size: Width of its position-wise networks.
        towers: Number of towers.
        text_width: Width of the text vectors; 0 for none.
        learned_vectors: Whether SIDs have a vector of their own.
        code_vectors: Whether codes have vectors.
        code_sizes: Rows of each table of code vectors.
        pointer: Whether SIDs of the history get an additional score.
        experts: Whether counts are pooled with the model's probabilities (`minionerec.models.nn.experts`).
        num_expert_counts: Transition counts stored for that.
        num_expert_neighbours: Similarities of texts stored for that.
        num_transitions: Stored counts, E; 0 for none.
        reach: Items back that pairs are counted, and looked up.
        decay: Weight of each further step back in the counts.
        reverse: Weight of a pair in the other direction in the counts.
        session_tokens: Vocabulary ids of the tokens for the same session and a later one; empty where the model is not
            conditioned on the session context.
    """

    model_type = "minionerec_catalogue"

    def __init__(
        self,
        vocab_size: int = 1,
        num_sids: int = 1,
        levels: int = 1,
        max_code: int = 0,
        max_history: int = 10,
        hidden_size: int = 128,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        intermediate_size: int = 512,
        towers: int = 1,
        text_width: int = 0,
        learned_vectors: bool = True,
        code_vectors: bool = True,
        code_sizes: Sequence[int] = (),
        pointer: bool = True,
        experts: bool = False,
        num_expert_counts: int = 0,
        num_expert_neighbours: int = 0,
        num_transitions: int = 0,
        reach: int = 10,
        decay: float = 0.6,
        reverse: float = 0.0,
        session_tokens: Sequence[int] = (),
        **kwargs: Any,
    ):
        self.vocab_size = vocab_size
        self.num_sids = num_sids
        self.levels = levels
        self.max_code = max_code
        self.max_history = max_history
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.towers = towers
        self.text_width = text_width
        self.learned_vectors = learned_vectors
        self.code_vectors = code_vectors
        self.code_sizes = list(code_sizes)
        self.pointer = pointer
        self.experts = experts
        self.num_expert_counts = num_expert_counts
        self.num_expert_neighbours = num_expert_neighbours
        self.num_transitions = num_transitions
        self.reach = reach
        self.decay = decay
        self.reverse = reverse
        self.session_tokens = list(session_tokens)
        super().__init__(**kwargs)
