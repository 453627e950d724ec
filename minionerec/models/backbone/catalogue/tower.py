"""A tower: one transformer of a catalogue model."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import nn

from minionerec.models.backbone.catalogue import blocks
from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.nn.context import ContextStates
from minionerec.models.nn.history import HistoryScores, ScoredPositions
from minionerec.models.nn.layers import CausalLayer, Dropout, Linear, causal_mask, length_groups, linear
from minionerec.models.nn.rows import ColumnSubset, take_rows

SidInputs = tuple[torch.Tensor | None, torch.Tensor | None]
"""Given vectors of the SIDs, float32 (N, T'), and the row of each SID in each table of code vectors, int64 (tables, N);
None without."""


class Tower(nn.Module):
    """One transformer with its item vectors and its scores of all SIDs.

    Args:
        config: Shape.
        code_sizes: Number of rows of each table of code vectors.
    """

    def __init__(self, config: CatalogueConfig, code_sizes: Sequence[int]):
        super().__init__()
        width, size = config.hidden_size, config.num_sids
        self.items = nn.Embedding(size, width) if config.learned_vectors else None
        self.text_map = Linear(config.text_width, width, bias=False) if config.text_width else None
        self.codes = nn.ModuleList(nn.Embedding(rows, width) for rows in code_sizes)
        self.bias = nn.Parameter(torch.zeros(size))
        self.dropout = Dropout(0.0)
        self.layers = nn.ModuleList(
            CausalLayer(width, config.num_attention_heads, config.intermediate_size, 0.0, 0.0, rotary=True)
            for _ in range(config.num_hidden_layers)
        )
        self.events = nn.Embedding(1 + len(config.event_tokens), width) if config.event_tokens else None
        self.context_states = ContextStates(config.context_sizes, width) if config.context_tokens else None
        self.norm = nn.LayerNorm(width)
        self.history = HistoryScores(
            width, config.max_history if config.pointer else 0, config.reach if config.num_transitions else 0
        )
        self._frozen: torch.Tensor | None = None

    @torch.no_grad()
    def freeze(self, given: SidInputs) -> None:
        """Cache the vectors of all SIDs, until training mode discards them."""
        self.thaw()
        size, device = len(self.bias), self.bias.device
        matrix = torch.zeros(size + 1, self.norm.normalized_shape[0], device=device, dtype=self.bias.dtype)
        for sids in torch.arange(size, device=device).split(blocks.SIDS_AT_ONCE):
            matrix[sids + 1] = self.vectors(sids, given)
        self._frozen = matrix

    def thaw(self) -> None:
        """Discard the vectors that `freeze` computed."""
        self._frozen = None

    def train(self, mode: bool = True) -> "Tower":
        """Set training or evaluation mode; training discards the vectors that `freeze` computed."""
        if mode:
            self.thaw()
        return super().train(mode)

    def matrix(self, given: SidInputs) -> torch.Tensor:
        """Vectors of padding (zeros, row 0) and of all SIDs: float (N + 1, D)."""
        if self._frozen is not None:
            return self._frozen
        text, code_rows = given
        parts = [] if self.items is None else [self.items.weight]
        if self.text_map is not None:
            parts.append(self.text_map(text))
        parts += [table(rows) for table, rows in zip(self.codes, () if code_rows is None else code_rows, strict=True)]
        return nn.functional.pad(_total(parts), (0, 0, 1, 0))

    def scores(self, histories: torch.Tensor, positions: ScoredPositions, given: SidInputs) -> torch.Tensor:
        """Scores of all SIDs at positions of histories (see `state`): float (P, N)."""
        matrix = self.matrix(given)
        state = self.state(histories, positions, matrix)
        return self._scored(state, matrix[1:], self.bias, histories, positions)

    def _scored(
        self,
        state: torch.Tensor,
        vectors: torch.Tensor,
        bias: torch.Tensor,
        seen: torch.Tensor,
        positions: ScoredPositions,
    ) -> torch.Tensor:
        """Products of states and SID vectors with the bias, and what the history adds: float (P, C)."""
        scores = linear(state, vectors, bias)
        scored: torch.Tensor = self.history(scores, state, seen, positions)
        return scored

    def state(self, histories: torch.Tensor, positions: ScoredPositions, matrix: torch.Tensor) -> torch.Tensor:
        """Output of the layers at each requested position: float (P, D).

        Args:
            histories: int64 (B, T), rows of `matrix`, 0 is padding on the right.
            positions: The positions.
            matrix: float (., D), vectors, those of padding first.
        """
        first = torch.zeros(len(histories), dtype=torch.int64, device=histories.device)  # index in `flat` of each row
        parts, count = [], 0
        for rows, columns in length_groups(histories, "right"):
            part = histories[rows, columns]
            first[rows] = count + torch.arange(len(rows), device=rows.device) * part.shape[1]
            count += part.numel()
            x = nn.functional.embedding(part, matrix)
            if self.events is not None:
                events = torch.zeros_like(part) if positions.events is None else positions.events[rows, columns]
                x = x + self.events(events)
            x, mask = self.dropout(x), causal_mask(part)
            for layer in self.layers:
                x = layer(x, mask)
            parts.append(x.flatten(0, 1))
        flat = torch.cat(parts)
        states = flat[first[positions.row] + positions.slot]
        if self.context_states is not None:
            states = self.context_states(states, positions.known_contexts)
        state: torch.Tensor = self.norm(states)
        return state

    def vectors(self, rows: torch.Tensor, given: SidInputs) -> torch.Tensor:
        """Vectors of some SIDs, int64 (R,) from 0, with sparse gradients: float (R, D)."""
        if self._frozen is not None:
            return self._frozen[rows + 1]
        text, _ = given
        parts = [] if self.items is None else [take_rows(self.items.weight, rows)]
        if self.text_map is not None and text is not None:
            parts.append(self.text_map(text[rows]))
        parts += [take_rows(weight, indices) for weight, indices in self._code_tables(rows, given)]
        return _total(parts)

    def _code_tables(self, rows: torch.Tensor, given: SidInputs) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Iterate over the tables of code vectors, with the rows of some SIDs in each."""
        _, code_rows = given
        for table, of_sid in zip(self.codes, () if code_rows is None else code_rows, strict=True):
            yield cast(nn.Parameter, table.weight), of_sid[rows]

    def row_tables(
        self, rows: torch.Tensor, columns: torch.Tensor, given: SidInputs
    ) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Iterate over the parameters that a sampled loss indexes, with the indexed rows.

        Args:
            rows: int64 (R,), SIDs whose vectors are used.
            columns: int64 (C,), SIDs that are scored.
            given: See `SidInputs`.
        """
        yield self.bias, columns
        if self.items is not None:
            yield cast(nn.Parameter, self.items.weight), rows
        yield from self._code_tables(rows, given)

    def scores_of(
        self,
        columns: ColumnSubset,
        state: torch.Tensor,
        seen: torch.Tensor,
        positions: ScoredPositions,
        given: SidInputs,
    ) -> torch.Tensor:
        """Scores of some SIDs from given states: float (P, C).

        Args:
            columns: The SIDs.
            state: float (P, D), see `state`.
            seen: int64 (B, T), columns from 1 of the histories; 0 is padding, or an SID that is not scored.
            positions: The positions, whose entries name columns.
            given: See `SidInputs`.
        """
        first = columns.first
        if first is None or self._frozen is None:
            vectors = self.vectors(columns.numbers, given)
        else:
            vectors = self._frozen[first + 1 : first + 1 + len(columns)]
        return self._scored(state, vectors, take_rows(self.bias, columns.numbers), seen, positions)


def _total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum of at least one tensor, from the first on."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
