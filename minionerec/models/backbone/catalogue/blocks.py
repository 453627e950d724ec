"""Scores of all SIDs of a large catalogue, block by block: the best SIDs, losses and probabilities of prefixes.

No tensor has as many elements as positions times SIDs. Log-probabilities take two passes over the blocks: the first
computes each tower's normaliser, the second the probabilities. Only the best SIDs, or the sums of prefixes above the
last level, are kept; the SIDs below a prefix are scored when a search reaches it.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import LeafBranches, sum_to_leaves
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.history import ScoredPositions
from minionerec.models.nn.rows import ColumnSubset, top_scores

if TYPE_CHECKING:
    from minionerec.models.backbone.catalogue.model import CatalogueModel

SIDS_AT_ONCE = 65_536
"""SIDs of a block; larger catalogues are scored block by block."""


class Blocks:
    """Scores of SIDs at positions of histories, some SIDs at a time, without a tensor whose size depends on all.

    Args:
        model: The model.
        histories: int64 (B, T), SIDs from 1, padded with 0 on the right.
        at: The P positions, without entries.
        labels: Targets whose counts positions leave out; see `PairCounts.positions`.
    """

    def __init__(
        self,
        model: "CatalogueModel",
        histories: torch.Tensor,
        at: ScoredPositions,
        labels: torch.Tensor | None = None,
    ):
        self.model, self.histories, self.row, self.slot, self.labels = model, histories, at.row, at.slot, labels
        self.contexts, self.given = at.known_contexts, model.given()
        self.size: int = model.config.num_sids
        distinct = histories[histories > 0].unique()
        indices = torch.where(histories > 0, torch.searchsorted(distinct, histories.contiguous()) + 1, 0)
        self.states = []
        for tower in model.each_tower():
            matrix = nn.functional.pad(tower.vectors(distinct - 1, self.given), (0, 0, 1, 0))
            self.states.append(tower.state(indices, at, matrix))

    def scores(self, columns: ColumnSubset, positions: slice = slice(None)) -> Iterator[torch.Tensor]:
        """Scores of some SIDs, tower by tower, float32 (P', C), at some of the positions."""
        row, slot = self.row[positions], self.slot[positions]
        indices = self.model.positions(self.histories, row, slot, self.labels, columns=columns)
        seen = (columns.find(self.histories - 1) + 1).masked_fill(self.histories == 0, 0)
        for tower, state in zip(self.model.each_tower(), self.states, strict=True):
            scores = tower.scores_of(columns, state[positions], seen, indices, self.given)
            yield self.model.with_popularity(scores, self.contexts[positions], columns.numbers)

    def __iter__(self) -> Iterator[ColumnSubset]:
        """The blocks."""
        for begin in range(0, self.size, SIDS_AT_ONCE):
            yield ColumnSubset.between(begin, min(begin + SIDS_AT_ONCE, self.size), self.histories.device)

    @cached_property
    def totals(self) -> torch.Tensor:
        """Logarithm of each tower's sum of exp s over all SIDs: float32 (towers, P)."""
        totals = torch.full((len(self.states), len(self.row)), -torch.inf, device=self.row.device)
        for columns in self:
            part = torch.stack([scores.logsumexp(-1) for scores in self.scores(columns)])
            totals = torch.logaddexp(totals, part)
        return totals

    def log_probs(self, columns: ColumnSubset, positions: slice = slice(None)) -> torch.Tensor:
        """Log-probabilities of some SIDs, averaged over towers: float32 (P', C); see `scores`."""
        parts = zip(self.scores(columns, positions), self.totals[:, positions], strict=True)
        return mean_log_probs([scores - total[:, None] for scores, total in parts])

    def losses(self, targets: torch.Tensor) -> torch.Tensor:
        """Negative log-probabilities of SIDs int64 (P,), averaged over towers: float32 (P,)."""
        target_scores = torch.zeros(len(self.states), len(targets), device=targets.device)
        for columns in self:
            at = columns.find(targets)
            for tower, scores in enumerate(self.scores(columns)):
                target_scores[tower] += scores.gather(1, at.clamp(min=0)[:, None])[:, 0].masked_fill(at < 0, 0.0)
        return (self.totals - target_scores).mean(0)

    def best(self, k: int, guide: Guide) -> tuple[torch.Tensor, torch.Tensor]:
        """The K best SIDs at each position, as of `OpensBranches.best_sids`: float32 (P, K) and int64 (P, K)."""
        scores = torch.full((len(self.row), 0), -torch.inf, device=self.row.device)
        sids = torch.zeros((len(self.row), 0), dtype=torch.int64, device=self.row.device)
        for columns in self:
            begin, end = int(columns.numbers[0]), int(columns.numbers[-1]) + 1
            block_scores = self.log_probs(columns)
            if guide.sid_bonus is not None:
                block_scores = block_scores + guide.sid_bonus[begin:end]
            if guide.sids is not None:
                block_scores = block_scores.masked_fill(~guide.sids[:, begin:end], -torch.inf)
            values, positions = top_scores(block_scores, k)
            sids = torch.cat([sids, positions + begin], 1)
            scores, order = top_scores(torch.cat([scores, values], 1), k)
            sids = sids.gather(1, order)
        return scores, sids

    def inner_masses(self, trie: Trie) -> torch.Tensor:
        """Log-probabilities of the I nodes above the last level of a trie of all SIDs: float32 (P, I)."""
        count = trie.level_start[trie.levels]
        masses = torch.full((len(self.row), count), -torch.inf, device=self.row.device)
        for columns in self:
            above = trie.parent[trie.node_of_sid[columns.numbers]]  # ascending
            begin, end = int(above[0]), int(above[-1]) + 1
            part = sum_to_leaves(self.log_probs(columns), above - begin, end - begin)
            masses[:, begin:end] = torch.logaddexp(masses[:, begin:end], part)
        for depth in reversed(range(1, trie.levels)):
            begin, end = trie.level_start[depth], trie.level_start[depth + 1]
            above, first = trie.parent[begin:end], trie.level_start[depth - 1]
            masses[:, first:begin] = sum_to_leaves(masses[:, begin:end], above - first, begin - first)
        return masses


class BlockBranches(LeafBranches):
    """`LeafBranches` that stores the probabilities of prefixes above the last level and computes those of SIDs."""

    def __init__(self, trie: Trie, blocks: Blocks):
        self.blocks = blocks
        super().__init__(trie, blocks.inner_masses(trie))

    def mass(self, nodes: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of nodes int64 (B, ...) of each prompt: float32 (B, ...)."""
        inner = self.masses.shape[1]
        log_probs = super().mass(nodes.clamp(max=inner - 1))
        for prompt in (nodes >= inner).flatten(1).any(1).nonzero()[:, 0].tolist():
            leaf = nodes[prompt] >= inner
            numbers, inverse = self.trie.sid[nodes[prompt][leaf]].long().unique(return_inverse=True)
            leaf_log_probs = self.blocks.log_probs(ColumnSubset(numbers), slice(prompt, prompt + 1))[0]
            log_probs[prompt, leaf] = leaf_log_probs[inverse]
        return log_probs


def mean_log_probs(log_probs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Logarithm of the mean probability of several towers, each float32 (P, C)."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(0) - float(np.log(len(log_probs)))


def newest_slots(histories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of each history's newest item: two int64 (B,)."""
    slot = ((histories > 0).sum(1) - 1).clamp(min=0)
    return torch.arange(len(slot), device=slot.device), slot


def most_values(sids: int, nodes: int, towers: int) -> int:
    """Number of values in memory while one position is scored."""
    if sids <= SIDS_AT_ONCE:
        return (towers + 1) * sids + 3 * nodes
    return (towers + 2) * SIDS_AT_ONCE + 2 * (nodes - sids)
