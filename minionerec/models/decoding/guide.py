"""Constraints of a search: the SIDs allowed for each prompt, and a bonus of each SID.

Both act in the trie before beams are dropped: a prefix is followed only if there is an allowed SID below it, and its
score includes the largest bonus below it. So lists are as long as the allowed SIDs permit, a prefix never scores less
than an SID below it (exact search stays exact), and complete SIDs are scored with their own bonus.
"""

from dataclasses import dataclass

import torch

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.trie import Trie


@dataclass(frozen=True)
class Guide:
    """Allowed SIDs and bonuses of a search for a batch of prompts.

    Attributes:
        nodes: bool (B, M), nodes with an allowed SID at or below them; None if all SIDs are allowed.
        sids: bool (B, S), allowed SIDs; None if all are allowed.
        bonus: float32 (M,), the largest bonus at or below each node; None without bonuses.
        sid_bonus: float32 (S,), the bonus of each SID; None without bonuses.
    """

    nodes: torch.Tensor | None = None
    sids: torch.Tensor | None = None
    bonus: torch.Tensor | None = None
    sid_bonus: torch.Tensor | None = None

    @classmethod
    def of(cls, trie: Trie, allowed: torch.Tensor | None = None, bonus: torch.Tensor | None = None) -> "Guide":
        """Create the guide of a search over a trie.

        Args:
            trie: The trie to search, with S SIDs and M nodes.
            allowed: bool (B, S), allowed SIDs of each prompt, by SID number; all if None.
            bonus: float32 (S,), added to the log-probability of each SID; none if None.

        Raises:
            ConfigError: If the widths are not S, or a bonus is not finite.

        Example:
            >>> import numpy as np
            >>> trie = Trie.build(np.array([[0, 1], [0, 2], [1, 1]]), np.array([[5, 6, 7], [8, 9, 10]]))
            >>> guide = Guide.of(trie, torch.tensor([[True, False, False]]), torch.tensor([0.0, 2.0, 1.0]))
            >>> guide.nodes.tolist(), guide.bonus.tolist()
            ([[True, True, False, True, False, False]], [2.0, 2.0, 1.0, 0.0, 2.0, 1.0])
        """
        device = trie.code.device
        for name, given in (("allowed", allowed), ("bonus", bonus)):
            if given is not None and given.shape[-1] != trie.n_sids:
                raise ConfigError(f"{name} covers {given.shape[-1]} SIDs, but the trie has {trie.n_sids}.")
        if bonus is not None and not bool(torch.isfinite(bonus).all()):
            raise ConfigError("a bonus is not a finite number.")
        nodes = None if allowed is None else reached(trie, allowed.to(device))
        sids = None if allowed is None else allowed.to(device)
        if bonus is None:
            return cls(nodes, sids)
        sid_bonus = bonus.float().to(device)
        return cls(nodes, sids, largest_below(trie, sid_bonus), sid_bonus)

    def start(self, batch: int, device: torch.device) -> torch.Tensor:
        """Scores of the empty prefix: float32 (B, 1)."""
        if self.bonus is None:
            return torch.zeros(batch, 1, device=device)
        return self.bonus[:1].expand(batch, 1)

    def steps(
        self, scores: torch.Tensor, nodes: torch.Tensor, children: torch.Tensor, present: torch.Tensor
    ) -> torch.Tensor:
        """Scores of steps plus the change of the bonus; minus infinity if no SID below is allowed.

        Args:
            scores: float32 (B, K, W), log-probabilities of the steps.
            nodes: int64 (B, K), nodes that the steps start from; -1 for none.
            children: int64 (B, K, W), nodes that the steps lead to.
            present: bool (B, K, W), False for entries without a child.
        """
        if self.bonus is not None:
            scores = scores + (self.bonus[children] - self.bonus[nodes.clamp(min=0)].unsqueeze(-1))
        if self.nodes is not None:
            scores = scores.masked_fill(~self._at(self.nodes, children), -torch.inf)
        return scores.masked_fill(~present, -torch.inf)

    def ends(
        self, totals: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of complete SIDs with their own bonus, and the allowed ones among them.

        Args:
            totals: float32 (B, W), scores of prefixes.
            ends: int64 (B, W), SID that ends at each prefix, -1 for none.
            positions: int64 (B, W), node of each prefix.

        Returns:
            Scores float32 (B, W), and `ends` with -1 for SIDs that are not allowed.
        """
        safe = ends.clamp(min=0)
        if self.sid_bonus is not None and self.bonus is not None:
            totals = totals + (self.sid_bonus[safe] - self.bonus[positions.clamp(min=0)])
        if self.sids is not None:
            ends = ends.masked_fill(~self._at(self.sids, safe), -1)
        return totals, ends

    def _at(self, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Entries of a bool (B, M) table at int64 (B, ...)."""
        return table.gather(1, positions.flatten(1)).view_as(positions)


def reached(trie: Trie, allowed: torch.Tensor) -> torch.Tensor:
    """Nodes at or below which an allowed SID, bool (B, S), ends: bool (B, M)."""
    is_reached = torch.zeros(len(allowed), len(trie.code), dtype=torch.bool, device=allowed.device)
    is_reached[:, trie.node_of_sid] = allowed
    for depth in reversed(range(trie.levels)):
        begin, end = trie.level_start[depth], trie.level_start[depth + 1]
        bounds = trie.first_child[begin : end + 1].long()
        first = int(bounds[0])
        below = is_reached[:, first : int(bounds[-1])].cumsum(1, dtype=torch.int32)
        below = torch.nn.functional.pad(below, (1, 0))
        bounds = bounds - first
        is_reached[:, begin:end] |= below[:, bounds[1:]] > below[:, bounds[:-1]]
    return is_reached


def largest_below(trie: Trie, values: torch.Tensor) -> torch.Tensor:
    """The largest value, float32 (..., S), of the SIDs that end at or below each node: float32 (..., M)."""
    largest = torch.full((*values.shape[:-1], len(trie.code)), -torch.inf, device=values.device)
    largest[..., trie.node_of_sid] = values
    for depth in reversed(range(trie.levels)):
        begin, end = trie.level_start[depth + 1], trie.level_start[depth + 2]
        below = largest[..., begin:end].clone()
        largest.scatter_reduce_(-1, trie.parent[begin:end].expand_as(below), below, "amax")
    return largest
