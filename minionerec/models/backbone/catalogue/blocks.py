"""All SIDs of a large catalogue, scored block by block: the best of them, their loss and the masses of prefixes.

Nothing here is as large as positions times SIDs. Two passes over the blocks give log-probabilities: the first adds up
each tower's softmax, the second has what each SID's probability is. What is kept of it are the best SIDs, or the sums
of prefixes above the last level; the SIDs below a prefix are scored when a search reaches it.
"""

from collections.abc import Iterator, Sequence
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
"""Catalogues of more SIDs are scored by blocks of so many."""


class Blocks:
    """Scores of all SIDs at positions of histories, a block at a time.

    Args:
        model: The model.
        histories: int64 (B, T), SIDs from 1, padded with 0 on the right.
        row: int64 (P,), the history of each position.
        slot: int64 (P,), its column.
        contexts: int64 (P,), session context of the next item; None: unknown.
    """

    def __init__(
        self,
        model: "CatalogueModel",
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        contexts: torch.Tensor | None = None,
    ):
        self.model, self.histories, self.row, self.slot = model, histories, row, slot
        self.contexts = ScoredPositions(row, slot, contexts=contexts).known_contexts
        self.size: int = model.config.num_sids
        self.given = model.given()
        rows = histories[histories > 0].unique()
        own = torch.where(histories > 0, torch.searchsorted(rows, histories.contiguous()) + 1, 0)
        self.states = []
        for tower in model.each_tower():
            matrix = nn.functional.pad(tower.vectors(rows - 1, *self.given), (0, 0, 1, 0))
            self.states.append(tower.state(own, ScoredPositions(row, slot, contexts=self.contexts), matrix))

    def scores(self, columns: ColumnSubset, positions: slice = slice(None)) -> Iterator[torch.Tensor]:
        """Scores of some SIDs, float32 (P', C), tower by tower.

        Args:
            columns: The SIDs.
            positions: Which of the positions.
        """
        row, slot = self.row[positions], self.slot[positions]
        indices = self.model.positions_at(self.histories, row, slot, columns)
        seen = (columns.find(self.histories - 1) + 1).masked_fill(self.histories == 0, 0)
        for tower, state in zip(self.model.each_tower(), self.states, strict=True):
            scores = tower.scores_of(columns, state[positions], seen, indices, *self.given).float()
            yield self.model.with_popularity(scores, self.contexts[positions], columns.numbers)

    def __iter__(self) -> Iterator[ColumnSubset]:
        """The blocks."""
        for begin in range(0, self.size, SIDS_AT_ONCE):
            yield ColumnSubset.between(begin, min(begin + SIDS_AT_ONCE, self.size), self.histories.device)

    def totals(self) -> torch.Tensor:
        """Logarithm of each tower's sum of exp s over all SIDs: float32 (towers, P)."""
        found = torch.full((len(self.states), len(self.row)), -torch.inf, device=self.row.device)
        for columns in self:
            part = torch.stack([scores.logsumexp(-1) for scores in self.scores(columns)])
            found = torch.logaddexp(found, part)
        return found

    def log_probs(self, totals: torch.Tensor, columns: ColumnSubset, positions: slice = slice(None)) -> torch.Tensor:
        """Log-probabilities of some SIDs, averaged over towers: float32 (P', C); see `totals` and `scores`."""
        parts = zip(self.scores(columns, positions), totals[:, positions], strict=True)
        found = [scores - total[:, None] for scores, total in parts]
        return found[0] if len(found) == 1 else torch.stack(found).logsumexp(0) - float(np.log(len(found)))

    def losses(self, wanted: torch.Tensor) -> torch.Tensor:
        """Negative log-probabilities of SIDs int64 (P,), averaged over towers: float32 (P,)."""
        own = torch.zeros(len(self.states), len(wanted), device=wanted.device)
        for columns in self:
            at = columns.find(wanted)
            for tower, scores in enumerate(self.scores(columns)):
                own[tower] += scores.gather(1, at.clamp(min=0)[:, None])[:, 0].masked_fill(at < 0, 0.0)
        return (self.totals() - own).mean(0)

    def best(self, k: int, guide: Guide) -> tuple[torch.Tensor, torch.Tensor]:
        """The best SIDs at each position.

        Args:
            k: How many.
            guide: Allowed SIDs, and additions to log-probabilities.

        Returns:
            Scores float32 (P, K), descending, minus infinity where there are no more, and numbers int64 (P, K).
        """
        totals = self.totals()
        scores = torch.full((len(self.row), 0), -torch.inf, device=self.row.device)
        sids = torch.zeros((len(self.row), 0), dtype=torch.int64, device=self.row.device)
        for columns in self:
            begin, end = int(columns.numbers[0]), int(columns.numbers[-1]) + 1
            found = self.log_probs(totals, columns)
            if guide.own is not None:
                found = found + guide.own[begin:end]
            if guide.sids is not None:
                found = found.masked_fill(~guide.sids[:, begin:end], -torch.inf)
            values, positions = top_scores(found, k)
            sids = torch.cat([sids, positions + begin], 1)
            scores, order = top_scores(torch.cat([scores, values], 1), k)
            sids = sids.gather(1, order)
        return scores, sids

    def inner_masses(self, trie: Trie, totals: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the nodes above the last level: float32 (P, I), they being the first I of the trie.

        Args:
            trie: All SIDs, of one length.
            totals: Result of `totals`.
        """
        count = trie.level_start[trie.levels]
        found = torch.full((len(self.row), count), -torch.inf, device=self.row.device)
        for columns in self:
            above = trie.parent[trie.node_of_sid[columns.numbers]]  # ascending
            begin, end = int(above[0]), int(above[-1]) + 1
            part = sum_to_leaves(self.log_probs(totals, columns), above - begin, end - begin)
            found[:, begin:end] = torch.logaddexp(found[:, begin:end], part)
        for depth in reversed(range(1, trie.levels)):
            begin, end = trie.level_start[depth], trie.level_start[depth + 1]
            above, first = trie.parent[begin:end], trie.level_start[depth - 1]
            found[:, first:begin] = sum_to_leaves(found[:, begin:end], above - first, begin - first)
        return found


class BlockBranches(LeafBranches):
    """As `LeafBranches`, with the masses of prefixes above the last level at hand, and those of SIDs on request.

    Args:
        trie: All SIDs of the model.
        blocks: Scores after each of B prompts.
    """

    def __init__(self, trie: Trie, blocks: Blocks):
        self.blocks, self.totals = blocks, blocks.totals()
        super().__init__(trie, blocks.inner_masses(trie, self.totals))

    def mass(self, nodes: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of nodes int64 (B, ...) of each prompt: float32 (B, ...)."""
        inner = self.masses.shape[1]
        found = super().mass(nodes.clamp(max=inner - 1))
        for prompt in (nodes >= inner).flatten(1).any(1).nonzero()[:, 0].tolist():
            leaf = nodes[prompt] >= inner
            numbers, which = self.trie.sid[nodes[prompt][leaf]].long().unique(return_inverse=True)
            own = self.blocks.log_probs(self.totals, ColumnSubset(numbers), slice(prompt, prompt + 1))[0]
            found[prompt, leaf] = own[which]
        return found


def newest_slots(histories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The position of each history's newest item: rows and columns, int64 (B,)."""
    slot = ((histories > 0).sum(1) - 1).clamp(min=0)
    return torch.arange(len(slot), device=slot.device), slot


def most_values(shape: Sequence[int]) -> int:
    """Values in memory while one position is scored.

    Args:
        shape: SIDs and nodes of the trie, and towers.
    """
    sids, nodes, towers = shape
    if sids <= SIDS_AT_ONCE:
        return (towers + 1) * sids + 3 * nodes
    return (towers + 2) * SIDS_AT_ONCE + 2 * (nodes - sids)
