"""Which SIDs a step of the sampled loss holds, and how probable it was that they are there."""

import numpy as np
import torch

from minionerec.core.processes import process_rank, world_size
from minionerec.models.backbone.catalogue.sampled import Sample
from minionerec.models.nn.rows import ColumnSubset


class Sampler:
    """Draws the SIDs of a step: targets of its windows, SIDs drawn uniformly, and siblings of targets in the trie.

    All draws are with replacement and come from torch's generator. A sibling is one of the other SIDs below a target's
    prefix, which is all of its codes but the last. The processes of a launch, whose generators begin alike, draw all of
    their SIDs from all alike together, and each takes its own.

    Args:
        codes: int (N, L), the distinct SIDs, in ascending order.
        counts: int64 (N,), how often each is a training target.
        negatives: SIDs drawn from all alike, each step.
        siblings: Siblings drawn for each target.
    """

    def __init__(self, codes: np.ndarray, counts: np.ndarray, negatives: int, siblings: int):
        self.size, self.negatives, self.siblings = len(codes), negatives, siblings
        shares = counts / counts.sum()
        self.shares = torch.from_numpy(shares)  # of the training targets, float64 (N,)
        changed = np.ones(len(codes), dtype=bool)
        changed[1:] = (codes[1:, :-1] != codes[:-1, :-1]).any(1)
        prefix = np.cumsum(changed) - 1
        self.prefix = torch.from_numpy(prefix)  # of each SID, int64 (N,)
        self.starts = torch.from_numpy(np.append(np.flatnonzero(changed), len(codes)))  # first SID of each prefix
        self.prefix_shares = torch.from_numpy(np.bincount(prefix, shares))

    def to(self, device: torch.device) -> "Sampler":
        """The same sampler, its tables on a device."""
        for name in ("shares", "prefix", "starts", "prefix_shares"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def draw(self, labels: torch.Tensor) -> Sample:
        """The SIDs of a step.

        Args:
            labels: int64 (B, T), numbers from 1 of the targets of its windows, 0 or less where there is none.
        """
        device = labels.device
        targets = labels[labels > 0] - 1
        drawn = [targets]
        if self.negatives:
            numbers = torch.randint(self.size, (world_size(), self.negatives))[process_rank()]
            drawn.append(numbers.to(device))
        if self.siblings:
            drawn.append(self._beside(targets.repeat(self.siblings)))
        columns = ColumnSubset(torch.cat(drawn).unique())
        return Sample(columns, self._log_shares(labels, columns))

    def _beside(self, targets: torch.Tensor) -> torch.Tensor:
        """One of the other SIDs of each target's prefix; those alone below theirs are left out."""
        first = self.starts[self.prefix[targets]]
        others = self.starts[self.prefix[targets] + 1] - first - 1
        targets, first, others = (part[others > 0] for part in (targets, first, others))
        at = first + (torch.rand(len(targets), dtype=torch.float64).to(targets.device) * others).long()
        return at + (at >= targets)

    def _log_shares(self, labels: torch.Tensor, columns: ColumnSubset) -> torch.Tensor:
        """For each window the logarithm of the probability that each SID is there: float32 (B, C)."""
        row, slot = (labels > 0).nonzero(as_tuple=True)
        own, numbers = labels[row, slot] - 1, columns.numbers
        counts = torch.bincount(row, minlength=len(labels)).double()[:, None]  # (B, 1), labels of each window
        total = max(1, len(own))
        bring = self.shares[numbers]  # (C,), how probable it is that a label of another window brings each SID
        drawn = self.negatives * float(np.log1p(-1 / max(self.size, 2)))
        beside: torch.Tensor | float = 0.0
        if self.siblings:
            prefix = self.prefix[numbers]
            others = self.starts[prefix + 1] - self.starts[prefix] - 1
            missed = self.siblings * torch.log1p(-1 / others.clamp(min=1).double()).clamp(min=-50)  # none is drawn
            bring = bring + (self.prefix_shares[prefix] - bring) * -torch.expm1(missed)
            distinct, which = prefix.unique(return_inverse=True)  # every label's prefix is among them
            below = torch.zeros(len(labels), len(distinct), dtype=torch.float64, device=labels.device)
            below.index_put_((row, torch.searchsorted(distinct, self.prefix[own])), below.new_ones(()), True)
            beside = below[:, which] * missed
        # (B, C), logarithm of the probability that nothing has brought it
        absent = (total - counts) * torch.log1p(-bring.clamp(max=1 - 1e-9)) + beside + drawn
        found = torch.log(-torch.expm1(absent))
        found[row, columns.find(own)] = 0.0
        return found.float()
