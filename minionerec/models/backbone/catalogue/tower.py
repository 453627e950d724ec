"""A tower: one transformer of a catalogue model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from minionerec.models.backbone.catalogue import blocks
from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.nn.context import ContextStates
from minionerec.models.nn.history import HistoryScores, ScoredPositions
from minionerec.models.nn.layers import CausalLayer, Dropout, Linear, causal_mask, length_groups, linear
from minionerec.models.nn.rows import ColumnSubset, take_rows


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
    def freeze(self, text: torch.Tensor | None, code_rows: torch.Tensor | None) -> None:
        """Cache the vectors of all SIDs, until training mode discards them.

        Args:
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).
        """
        self.thaw()
        size, device = len(self.bias), self.bias.device
        if size <= blocks.SIDS_AT_ONCE:
            self._frozen = self.matrix(text, code_rows)
            return
        matrix = torch.zeros(size + 1, self.norm.normalized_shape[0], device=device, dtype=self.bias.dtype)
        for sids in torch.arange(size, device=device).split(blocks.SIDS_AT_ONCE):
            matrix[sids + 1] = self.vectors(sids, text, code_rows)
        self._frozen = matrix

    def thaw(self) -> None:
        """Discard the vectors that `freeze` computed."""
        self._frozen = None

    def train(self, mode: bool = True) -> "Tower":
        """Set training or evaluation mode; training discards the vectors that `freeze` computed."""
        if mode:
            self.thaw()
        return super().train(mode)

    def matrix(self, text: torch.Tensor | None, code_rows: torch.Tensor | None) -> torch.Tensor:
        """Vectors of padding (zeros, row 0) and of all SIDs: float (N + 1, D)."""
        if self._frozen is not None:
            return self._frozen
        parts = [] if self.items is None else [self.items.weight]
        if self.text_map is not None:
            parts.append(self.text_map(text))
        parts += [table(rows) for table, rows in zip(self.codes, () if code_rows is None else code_rows, strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return nn.functional.pad(total, (0, 0, 1, 0))

    def scores(
        self,
        histories: torch.Tensor,
        positions: ScoredPositions,
        text: torch.Tensor | None,
        code_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Scores of all SIDs at the requested positions.

        Args:
            histories: int64 (B, T), SIDs from 1, 0 is padding on the right.
            positions: The positions.
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).

        Returns:
            float (P, N).
        """
        matrix = self.matrix(text, code_rows)
        state = self.state(histories, positions, matrix)
        scores = linear(state, matrix[1:], self.bias)
        scored: torch.Tensor = self.history(scores, state, histories, positions)
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

    def vectors(self, rows: torch.Tensor, text: torch.Tensor | None, code_rows: torch.Tensor | None) -> torch.Tensor:
        """Vectors of some SIDs, with sparse gradients: float (R, D).

        Args:
            rows: int64 (R,), numbers of SIDs from 0.
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).
        """
        if self._frozen is not None:
            return self._frozen[rows + 1]
        parts = [] if self.items is None else [take_rows(self.items.weight, rows)]
        if self.text_map is not None and text is not None:
            parts.append(self.text_map(text[rows]))
        parts += [take_rows(weight, indices) for weight, indices in self._code_tables(rows, code_rows)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _code_tables(
        self, rows: torch.Tensor, code_rows: torch.Tensor | None
    ) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Iterate over the tables of code vectors, with the rows of some SIDs in each."""
        for table, of_sid in zip(self.codes, () if code_rows is None else code_rows, strict=True):
            yield cast(nn.Parameter, table.weight), of_sid[rows]

    def row_tables(
        self, rows: torch.Tensor, columns: torch.Tensor, code_rows: torch.Tensor | None
    ) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Iterate over the parameters that a sampled loss indexes, with the indexed rows.

        Args:
            rows: int64 (R,), SIDs whose vectors are used.
            columns: int64 (C,), SIDs that are scored.
            code_rows: int64 (tables, N).
        """
        yield self.bias, columns
        if self.items is not None:
            yield cast(nn.Parameter, self.items.weight), rows
        yield from self._code_tables(rows, code_rows)

    def scores_of(
        self,
        columns: ColumnSubset,
        state: torch.Tensor,
        seen: torch.Tensor,
        positions: ScoredPositions,
        text: torch.Tensor | None,
        code_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Scores of some SIDs from given states: float (P, C).

        Args:
            columns: The SIDs.
            state: float (P, D), see `state`.
            seen: int64 (B, T), see `SidBlock`.
            positions: The positions, whose entries name columns.
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).
        """
        first = columns.first
        if first is None or self._frozen is None:
            vectors = self.vectors(columns.numbers, text, code_rows)
        else:
            vectors = self._frozen[first + 1 : first + 1 + len(columns)]
        scores = linear(state, vectors, take_rows(self.bias, columns.numbers))
        scored: torch.Tensor = self.history(scores, state, seen, positions)
        return scored

    def scores_at(self, part: "SidBlock", text: torch.Tensor | None, code_rows: torch.Tensor | None) -> torch.Tensor:
        """Scores of some SIDs at the requested positions, equal to the same columns of `scores`: float (P, C).

        Args:
            part: The SIDs and positions.
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).
        """
        matrix = nn.functional.pad(self.vectors(part.rows, text, code_rows), (0, 0, 1, 0))
        state = self.state(part.histories, part.positions, matrix)
        columns = part.columns
        scores = linear(state, matrix[1 : len(columns) + 1], take_rows(self.bias, columns.numbers))
        scored: torch.Tensor = self.history(scores, state, part.seen, part.positions)
        return scored


@dataclass(frozen=True)
class SidBlock:
    """Some SIDs to be scored at positions of a batch; the size of its tensors does not depend on the catalogue.

    Attributes:
        columns: The SIDs that are scored, C numbers from 0.
        rows: int64 (R,), SIDs whose vectors are needed: the scored ones, then the others of the histories.
        histories: int64 (B, T), indices in `rows` from 1, 0 is padding.
        seen: int64 (B, T), columns from 1; 0 is padding, or an SID that is not scored.
        positions: The positions, whose entries name columns.
    """

    columns: ColumnSubset
    rows: torch.Tensor
    histories: torch.Tensor
    seen: torch.Tensor
    positions: ScoredPositions

    @classmethod
    def of(cls, histories: torch.Tensor, columns: ColumnSubset, positions: ScoredPositions) -> "SidBlock":
        """Create from histories int64 (B, T), SIDs from 1, padded with 0 on the right."""
        seen = (columns.find(histories - 1) + 1).masked_fill(histories == 0, 0)
        others = histories[(histories > 0) & (seen == 0)].unique()
        indices = torch.searchsorted(others, histories.contiguous()) + 1 + len(columns)
        indices = torch.where(seen > 0, seen, indices).masked_fill(histories == 0, 0)
        return cls(columns, torch.cat([columns.numbers, others - 1]), indices, seen, positions)
