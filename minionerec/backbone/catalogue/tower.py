"""A tower: one transformer of a catalogue model."""

from collections.abc import Sequence

import torch
from torch import nn

from minionerec.backbone.catalogue.config import CatalogueConfig
from minionerec.nn.causal import CausalLayer
from minionerec.nn.dropout import Dropout
from minionerec.nn.history import HistoryScores, Places
from minionerec.nn.layers import causal_mask
from minionerec.nn.linear import Linear, linear
from minionerec.nn.padding import length_groups


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
        self.norm = nn.LayerNorm(width)
        self.history = HistoryScores(
            width, config.max_history if config.pointer else 0, config.reach if config.num_transitions else 0
        )

        self._frozen: torch.Tensor | None = None

    @torch.no_grad()
    def freeze(self, text: torch.Tensor | None, code_rows: torch.Tensor | None) -> None:
        """Compute the vectors of all SIDs once, for a model that is to recommend, until it is put into training mode.

        Args:
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).
        """
        self._frozen = None
        self._frozen = self.matrix(text, code_rows)

    def train(self, mode: bool = True) -> "Tower":
        """Set training or evaluation mode; training forgets what `freeze` computed."""
        if mode:
            self._frozen = None
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
        places: Places,
        text: torch.Tensor | None,
        code_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Scores of all SIDs at the asked positions.

        Args:
            histories: int64 (B, T), SIDs from 1, 0 is padding on the right.
            places: The positions.
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).

        Returns:
            float (P, N).
        """
        matrix = self.matrix(text, code_rows)
        first = torch.zeros(len(histories), dtype=torch.int64, device=histories.device)  # of each row, in `flat`
        parts, count = [], 0
        for rows, columns in length_groups(histories, "right"):
            part = histories[rows, columns]
            first[rows] = count + torch.arange(len(rows), device=rows.device) * part.shape[1]
            count += part.numel()
            x, mask = self.dropout(nn.functional.embedding(part, matrix)), causal_mask(part)
            for layer in self.layers:
                x = layer(x, mask)
            parts.append(x.flatten(0, 1))
        flat = torch.cat(parts)
        state = self.norm(flat[first[places.row] + places.slot])  # (P, D)
        scores = linear(state, matrix[1:], self.bias)
        scored: torch.Tensor = self.history(scores, state, histories, places)
        return scored
