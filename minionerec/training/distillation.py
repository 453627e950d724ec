"""Distillation from a catalogue model: its distributions over next codes, along true SIDs.

At every code the teacher's distribution over the codes that may follow is a soft target besides the true code (Hinton
et al., "Distilling the Knowledge in a Neural Network", 2015, section 2). The teacher is exact and cheap here: one
softmax over the catalogue gives the probability of every prefix of the trie.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from minionerec.models.decoding.trie import Trie
from minionerec.training.packing import LogitsOf

if TYPE_CHECKING:
    from minionerec.models.backbone.catalogue import CatalogueModel

_MASSES_AT_ONCE = 2**26  # log-probabilities of nodes that are held at a time
_IMPOSSIBLE = -1000.0


@dataclass(frozen=True)
class SoftTargets:
    """Distributions over next codes.

    Attributes:
        positions: int64 (K,), which labelled tokens of the batch they are about.
        tokens: int64 (K, W), vocabulary ids of the possible codes; any id where there is none.
        probabilities: float32 (K, W), summing to 1; 0 where there is none.
    """

    positions: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor

    def part(self, start: int, stop: int) -> "SoftTargets":
        """Those about some of the labelled tokens, which are counted from the first of these."""
        own = (self.positions >= start) & (self.positions < stop)
        return SoftTargets(self.positions[own] - start, self.tokens[own], self.probabilities[own])


Teacher = Callable[[Mapping[str, torch.Tensor]], SoftTargets]


@torch.no_grad()
def soft_targets(model: "CatalogueModel", trie: Trie, batch: Mapping[str, torch.Tensor]) -> SoftTargets:
    """A teacher's distribution at each code of a batch's SIDs, as when recommending.

    Args:
        model: The teacher, which is not trained; it is moved to the batch's device.
        trie: The same SIDs in the tokens of the student.
        batch: `labels` and what `minionerec.training.packing.teacher_questions` gives.
    """
    device = batch["labels"].device
    cast(torch.nn.Module, model).to(device)
    trie = trie.to(device)
    levels = trie.levels
    positions = ((batch["levels"] >= 0) & (batch["levels"] < levels)).nonzero()[:, 0]
    tokens = batch["labels"][0][positions].view(-1, levels)
    nodes = [torch.zeros_like(tokens[:, 0])]
    for level in range(levels - 1):
        nodes.append(trie.find(nodes[-1], tokens[:, level]))
    children, present = trie.children(torch.stack(nodes, 1))  # (P, L, W), behind the prefix before each code
    below = torch.zeros(children.shape, device=tokens.device)
    size = max(1, _MASSES_AT_ONCE // len(trie.code))
    for start in range(0, len(tokens), size):
        part = slice(start, start + size)
        at = batch["rows"][part], batch["slots"][part], batch["contexts"][part]
        masses = model.masses(batch["histories"], *at, batch["events"])
        below[part] = masses.gather(1, children[part].flatten(1)).view_as(children[part])
    # Codes of probability 0 have no logarithm; where all are of 0, all are alike.
    probabilities = below.clamp(min=_IMPOSSIBLE).masked_fill(~present, -torch.inf).softmax(-1)
    return SoftTargets(positions, trie.tokens(children).clamp(min=0).flatten(0, 1), probabilities.flatten(0, 1))


def soften(
    losses: torch.Tensor, logits_of: LogitsOf, labels: torch.Tensor, soft: SoftTargets, share: float
) -> torch.Tensor:
    """Losses, float32 (N,), of which a share is the cross-entropy to soft targets instead of labels.

    Args:
        losses: float32 (N,), cross-entropy of each labelled token.
        logits_of: Logits of tokens at labelled positions (`minionerec.training.packing.picked_losses`).
        labels: int64 (N,).
        soft: Soft targets of K of them.
        share: Their share, from 0 to 1.
    """
    own = labels[soft.positions].unsqueeze(1)
    tokens = torch.cat([soft.tokens, own], 1)
    shares = torch.cat([-soft.probabilities, torch.ones_like(own, dtype=soft.probabilities.dtype)], 1)
    # Both cross-entropies have the same normaliser, so that they differ by logits alone.
    more = (logits_of(soft.positions, tokens) * shares).sum(1)
    return losses.index_add(0, soft.positions, share * more)
