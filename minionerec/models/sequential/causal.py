"""Causal transformer over items with a full softmax, and optional pointer and transition counts."""

from typing import Any

import torch
from scipy.sparse import csr_array
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.models.nn.history import HistoryScores, PairCounts, ScoredPositions
from minionerec.models.nn.layers import (
    CausalLayer,
    Dropout,
    check_heads,
    init_weights,
    readout_slots,
    slot_range,
)
from minionerec.models.sequential.model import CausalEncoder, ModelData

POSITIONS = ("rotary", "learned", "none")


class Causal(CausalEncoder):
    """A causal pre-norm transformer with tied item vectors at input and output.

    A history is read by pre-norm layers, x + Drop(attention(LN x)) and x + Drop(W2 gelu(W1 LN x)); items are scored by
    the product of the last state, after a LayerNorm, with their vectors, and, if enabled, by what
    `minionerec.models.nn.history` adds: a pointer to the history, and item transitions of training,
    from which a training position leaves out its own target and later ones. It is meant to be trained at all positions.

    Args:
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        attention_dropout: Dropout of attention weights.
        dropout: Dropout of item vectors at the input, and after each part of a layer.
        label_smoothing: Share of the target's probability that is spread over all rows of the table.
        positions: "rotary" (Su et al. 2021, base 10,000, all of a head's width), "learned" (a table of slots; with left
            padding it counts from the newest item) or "none".
        pointer: Whether items of the history get an additional score by their distance.
        reach: Largest distance of counted pairs; 0 without counts. Counts are set by `set_transitions`.
        decay: Decay per step of distance in the counts.
        reverse: Weight of pairs in the reverse direction in the counts.
        num_transitions: Number of stored counts.
    """

    def __init__(
        self,
        *,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        inner_size: int = 512,
        attention_dropout: float = 0.0,
        dropout: float = 0.3,
        label_smoothing: float = 0.0,
        positions: str = "rotary",
        pointer: bool = False,
        reach: int = 0,
        decay: float = 0.6,
        reverse: float = 0.3,
        num_transitions: int = 0,
        **sizes: Any,
    ):
        super().__init__(hidden_size=hidden_size, **sizes)
        check_heads(hidden_size, num_heads)
        if reach < 0 or not 0 < decay <= 1 or reverse < 0:
            raise ConfigError(
                f"reach is {reach}, decay {decay} and reverse {reverse}; reach and reverse must be at least 0, decay "
                "above 0 and at most 1."
            )
        if positions not in POSITIONS:
            raise ConfigError(f"unknown positions {positions!r}; known: {', '.join(POSITIONS)}.")
        rotary = positions == "rotary"
        if rotary and hidden_size // num_heads % 2:
            raise ConfigError(f"rotary positions need an even width a head, not {hidden_size // num_heads}.")
        self.label_smoothing = label_smoothing
        self.items = nn.Embedding(self.num_items + 1, hidden_size, padding_idx=0)
        self.slots = nn.Embedding(self.max_len, hidden_size) if positions == "learned" else None
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            CausalLayer(hidden_size, num_heads, inner_size, dropout, attention_dropout, rotary)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.pairs = PairCounts(self.num_items, num_transitions, reach, decay, reverse) if reach else None
        self.history = HistoryScores(hidden_size, self.max_len if pointer else 0, reach, first=1)
        self.apply(init_weights)
        if reach:
            self.history.start_counts(decay)
        self.scale_residual_maps()

    @classmethod
    def data_hyper(cls, data: ModelData) -> dict[str, Any]:
        """See `SequentialModel`; and the number of counts."""
        return {
            **super().data_hyper(data),
            "num_transitions": 0 if data.transitions is None else data.transitions.nnz,
        }

    def set_transitions(self, counted: csr_array) -> None:
        """Set the counts, computed by `count_transitions` with the model's reach, decay and reverse.

        Raises:
            ConfigError: If the model has no counts, or was built for another number of them.
        """
        expected_counts = None if self.pairs is None else len(self.pairs.counts)
        if self.pairs is None or counted.nnz != expected_counts:
            raise ConfigError(f"there are {counted.nnz} counts; the model was built for {expected_counts or 'none'}.")
        self.pairs.set(counted)

    def flaw(self) -> str | None:
        """See `SequentialModel`; checks the counts."""
        return None if self.pairs is None else self.pairs.flaw()

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight

    def embed(self, histories: torch.Tensor) -> torch.Tensor:
        """See `CausalEncoder`."""
        x = self.items(histories)
        if self.slots is not None:
            x = x + self.slots.weight[slot_range(histories.shape[1], self.max_len, self.padding)]
        embedded: torch.Tensor = self.dropout(x)
        return embedded

    def scores(
        self, histories: torch.Tensor, users: torch.Tensor | None = None, contexts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `SequentialModel`; pointer and counts, too, follow the vector by the request features."""
        row = torch.arange(len(histories), device=histories.device)
        vectors = self.conditioned(self.user_vectors(histories), contexts)
        return self._score(vectors, histories, row, readout_slots(histories, self.padding), None)

    def loss(
        self,
        histories: torch.Tensor,
        targets: torch.Tensor,
        users: torch.Tensor | None = None,
        contexts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `SequentialModel`; the counts of a row leave out its target."""
        row, slot = torch.arange(len(histories), device=histories.device), readout_slots(histories, self.padding)
        labels = torch.zeros_like(histories)
        labels[row, slot] = targets
        return self._loss(self.conditioned(self.user_vectors(histories), contexts), histories, row, slot, labels)

    def sequence_loss(
        self, histories: torch.Tensor, targets: torch.Tensor, contexts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `SequentialModel`; the counts of a position leave out its own target and later ones."""
        vectors, row, slot = self.target_vectors(histories, targets, contexts)
        return self._loss(vectors, histories, row, slot, targets)

    def _loss(
        self,
        vectors: torch.Tensor,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        labels: torch.Tensor,
    ) -> torch.Tensor:
        scores = self._score(vectors, histories, row, slot, labels)
        return nn.functional.cross_entropy(scores, labels[row, slot], label_smoothing=self.label_smoothing)

    def _score(
        self,
        vectors: torch.Tensor,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        labels: torch.Tensor | None,
    ) -> torch.Tensor:
        """Scores at positions, float (P, V), from their vectors; with labels, their counts are excluded."""
        positions = (
            ScoredPositions(row, slot) if self.pairs is None else self.pairs.positions(histories, row, slot, labels)
        )
        scores: torch.Tensor = self.history(self.logits(vectors), vectors, histories, positions)
        return scores
