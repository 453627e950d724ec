"""Distillation from a catalogue model: its distributions over next codes, along true SIDs and along a student's own.

At every code the teacher's distribution over the codes that may follow is a soft target besides the true code (Hinton
et al., "Distilling the Knowledge in a Neural Network", 2015, section 2). The teacher is exact and cheap here: one
softmax over the catalogue gives the probability of every prefix of the trie. So it is as cheap on-policy, at the
prefixes that the student's own beams or samples visit (Agarwal et al., "On-Policy Distillation of Language Models",
2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from minionerec.core.errors import ConfigError
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.trie import Trie
from minionerec.sid.table import SidTable
from minionerec.training.packing import LogitsOf

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


@dataclass(frozen=True)
class PathTargets:
    """Distributions before each code of K SIDs of each prompt.

    Attributes:
        index: int64 (P, K, L), which of D distributions, one for each prefix of a prompt; -1 where there is none.
        tokens: int64 (D, W), vocabulary ids of the possible codes; -1 where there is none.
        probabilities: float32 (D, W), summing to 1; 0 where there is none.
    """

    index: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor


class Teacher:
    """A catalogue model that is queried for next codes, of a batch of `TreeCollator` or of a student's own SIDs.

    Args:
        model: The catalogue model; it is not trained.
        trie: The same SIDs in the tokens of the student.
    """

    def __init__(self, model: CatalogueModel, trie: Trie):
        self.model, self.trie = model, trie

    @torch.no_grad()
    def soft_targets(self, batch: dict[str, torch.Tensor]) -> SoftTargets:
        """The teacher's distribution at each code of the batch's SIDs, as when recommending.

        Args:
            batch: `labels`, `histories`, `rows`, `slots`, `contexts` and `levels`.
        """
        self._move(batch["labels"].device)
        levels = self.trie.levels
        positions = ((batch["levels"] >= 0) & (batch["levels"] < levels)).nonzero()[:, 0]
        tokens = batch["labels"][0][positions].view(-1, levels)
        nodes = [torch.zeros_like(tokens[:, 0])]
        for level in range(levels - 1):
            nodes.append(self.trie.find(nodes[-1], tokens[:, level]))
        children, probabilities = self._next_codes(
            torch.stack(nodes, 1), batch["histories"], batch["rows"], batch["slots"], batch["contexts"]
        )
        return SoftTargets(positions, children.clamp(min=0).flatten(0, 1), probabilities.flatten(0, 1))

    @torch.no_grad()
    def along(
        self, sids: torch.Tensor, histories: Sequence[Sequence[int] | None], contexts: torch.Tensor
    ) -> PathTargets:
        """The teacher's distribution before each code of some SIDs of each prompt.

        Args:
            sids: int64 (P, K), SID numbers; -1 for none.
            histories: Of each prompt SID numbers from 1, the oldest first; none or empty where no teacher applies.
            contexts: int64 (P,), the session context of each.
        """
        device = sids.device
        self._move(device)
        queried = torch.tensor([bool(history) for history in histories], device=device)
        used = [list(history) for history in histories if history]
        lengths = torch.tensor([len(history) for history in used], dtype=torch.long, device=device)
        padded = torch.zeros(len(used), max(map(len, used), default=1), dtype=torch.long)
        for row, history in zip(padded, used, strict=True):
            row[: len(history)] = torch.tensor(history)
        nodes = self.trie.paths[sids.clamp(min=0)][..., :-1]  # (P, K, L), the prefix before each code
        rows = torch.arange(len(used), device=device)
        tokens, probabilities = self._next_codes(
            nodes[queried].flatten(1), padded.to(device), rows, lengths - 1, contexts[queried]
        )
        known = (queried.unsqueeze(1) & (sids >= 0)).unsqueeze(2).expand_as(nodes)
        keys = nodes + torch.arange(len(sids), device=device).view(-1, 1, 1) * len(self.trie.code)
        distinct, inverse = keys[known].unique(return_inverse=True)
        index = torch.full_like(nodes, -1).masked_scatter(known, inverse)
        # One of the equal distributions of each distinct prefix.
        positions = torch.arange(known[queried].numel(), device=device)[known[queried].flatten()]
        firsts = torch.full_like(distinct, known.numel()).scatter_reduce_(0, inverse, positions, "amin")
        return PathTargets(index, tokens.flatten(0, 1)[firsts], probabilities.flatten(0, 1)[firsts])

    def _move(self, device: torch.device) -> None:
        if self.trie.code.device != device:
            model: torch.nn.Module = self.model
            model.to(device)
            self.trie = self.trie.to(device)

    def _next_codes(
        self,
        prefixes: torch.Tensor,
        histories: torch.Tensor,
        rows: torch.Tensor,
        slots: torch.Tensor,
        contexts: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes that may follow prefixes, and their probabilities, at positions of histories.

        Args:
            prefixes: int64 (Q, K), nodes of the trie.
            histories: See `CatalogueModel.masses`.
            rows: int64 (Q,).
            slots: int64 (Q,).
            contexts: int64 (Q,).

        Returns:
            Vocabulary ids int64 (Q, K, W), -1 where there is none, and probabilities float32 (Q, K, W), 0 there.
        """
        children, present = self.trie.children(prefixes)
        below = torch.zeros(children.shape, device=prefixes.device)
        size = max(1, _MASSES_AT_ONCE // len(self.trie.code))
        for start in range(0, len(prefixes), size):
            part = slice(start, start + size)
            masses = self.model.masses(histories, rows[part], slots[part], contexts[part])
            below[part] = masses.gather(1, children[part].flatten(1)).view_as(children[part])
        # Codes of probability 0 have no logarithm; where all are of 0, all are alike.
        probabilities = below.clamp(min=_IMPOSSIBLE).masked_fill(~present, -torch.inf).softmax(-1)
        return self.trie.tokens(children).masked_fill(~present, -1), probabilities


def soften(
    losses: torch.Tensor, logits_of: LogitsOf, labels: torch.Tensor, soft: SoftTargets, share: float
) -> torch.Tensor:
    """Losses of which a share is the cross-entropy to soft targets instead of labels.

    Args:
        losses: float32 (N,), cross-entropy of each labelled token.
        logits_of: Logits of tokens at labelled positions (`minionerec.training.packing.picked_losses`).
        labels: int64 (N,).
        soft: Soft targets of K of them.
        share: Their share, from 0 to 1.

    Returns:
        float32 (N,).
    """
    own = labels[soft.positions].unsqueeze(1)
    tokens = torch.cat([soft.tokens, own], 1)
    shares = torch.cat([-soft.probabilities, torch.ones_like(own, dtype=soft.probabilities.dtype)], 1)
    # Both cross-entropies have the same normaliser, so that they differ by logits alone.
    more = (logits_of(soft.positions, tokens) * shares).sum(1)
    return losses.index_add(0, soft.positions, share * more)


_LEAST = 1e-9  # probability of the teacher in reverse divergences


def divergences(
    log_probs: torch.Tensor, tokens: torch.Tensor, probabilities: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kullback-Leibler divergences between a teacher's next codes q and those of a student p.

    Forward: sum of q (log q - log p), p being over the whole vocabulary, so that other tokens lose probability; its
    gradient is that of the cross-entropy to soft targets. Reverse: sum of p (log p - log q) over the codes that may
    follow, p being among them alone.

    Args:
        log_probs: float32 (N, W), the student's log-probabilities of the codes, over the whole vocabulary.
        tokens: int64 (N, W), the codes; -1 where there is none.
        probabilities: float32 (N, W), the teacher's; 0 where there is none.

    Returns:
        Both divergences, float32 (N,); 0 where there is no code.
    """
    forward = (torch.xlogy(probabilities, probabilities) - probabilities * log_probs).sum(1)
    absent = tokens < 0
    some = ~absent.all(1, keepdim=True)
    own = log_probs.masked_fill(absent & some, -torch.inf).log_softmax(1)
    difference = (own - probabilities.clamp(min=_LEAST).log()).masked_fill(absent, 0.0)
    return forward, (own.exp() * difference).sum(1)


def load_teacher(path: str | Path, table: SidTable, trie: Trie) -> Teacher:
    """The catalogue model of a checkpoint as a teacher.

    Args:
        path: The checkpoint.
        table: SIDs of the student.
        trie: The same SIDs in the student's tokens.

    Raises:
        ArtefactError: If it was trained on other SIDs.
        ConfigError: If it holds another kind of model.
    """
    model = load_bundle(path, table=table).model
    if not isinstance(model, CatalogueModel):
        raise ConfigError(
            f"{path}: holds a {type(model).__name__}, but a teacher is a catalogue model (minionerec train-catalogue)."
        )
    model.requires_grad_(False)
    return Teacher(model, trie)
