"""Distributions over all leaves of a trie (SIDs, or titles) as branches for a search.

A model that gives every leaf a probability at once gives every prefix one too, the sum of the leaves below it, and a
step from a prefix to one of its children the ratio of the two. The catalogue model is searched in this way, and
so does whatever ranks items by itself, once the probabilities of a leaf's items are summed.
"""

from collections.abc import Sequence

import torch

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import BeamResult
from minionerec.models.decoding.branches import (
    Branches,
    OpensBranches,
    SearchModel,
    is_row_bound,
    open_branches,
    vocabulary_size,
)
from minionerec.models.decoding.guide import largest_below
from minionerec.models.decoding.trie import Trie

_FAINT = -80.0  # nats below the most probable leaf, where single precision has little left


def sum_to_leaves(item_log_probs: torch.Tensor, leaf_of_item: torch.Tensor, leaves: int) -> torch.Tensor:
    """Log-probabilities of leaves: of each, the sum over its items.

    Args:
        item_log_probs: float32 (B, N).
        leaf_of_item: int64 (N,), every leaf having an item.
        leaves: Number of leaves, S.

    Returns:
        float32 (B, S).

    Example:
        >>> sum_to_leaves(torch.tensor([[0.25, 0.25, 0.5]]).log(), torch.tensor([1, 1, 0]), 2).exp().tolist()
        [[0.5, 0.5]]
    """
    index = leaf_of_item.expand_as(item_log_probs)
    highest = item_log_probs.new_full((len(item_log_probs), leaves), -torch.inf)
    highest = _finite(highest.scatter_reduce(1, index, item_log_probs, "amax"))
    sums = torch.zeros_like(highest).scatter_add(1, index, (item_log_probs - highest.gather(1, index)).exp())
    return sums.log() + highest


def node_log_probs(trie: Trie, leaf_log_probs: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all nodes of a trie: of each, the sum of the leaves at or below it.

    Args:
        trie: S leaves and M nodes.
        leaf_log_probs: float32 (B, S), however far apart.

    Returns:
        float32 (B, M); the root's are 0 where the leaves' sum to 1.
    """
    highest = leaf_log_probs.detach().amax(1, keepdim=True).expand(-1, len(trie.code))
    found = _log_sums(trie, leaf_log_probs, highest)
    faint = found < highest + _FAINT
    if bool(faint.any()):
        below = _finite(largest_below(trie, leaf_log_probs.detach()))
        found = torch.where(faint, _log_sums(trie, leaf_log_probs, below), found)
    return found


def _log_sums(trie: Trie, leaf_log_probs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Logarithms of the sums of the leaves at or below each node, reckoned in units of `scale`, float32 (B, M)."""
    mass = torch.zeros_like(scale)
    for nodes in trie.paths.unbind(1):
        there = (nodes >= 0).nonzero()[:, 0]
        nodes, leaves = (
            (nodes, leaf_log_probs) if len(there) == len(nodes) else (nodes[there], leaf_log_probs[:, there])
        )
        mass.index_add_(1, nodes, (leaves - scale[:, nodes]).exp())
    return mass.log() + scale


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Values that others are subtracted from: the lowest number where they are minus infinity."""
    return values.clamp(min=torch.finfo(values.dtype).min)


class LeafBranches:
    """Prefixes after a batch of prompts (`minionerec.models.decoding.branches.Branches`).

    Args:
        trie: The leaves that the distributions are over, M nodes.
        masses: float32 (B, M), log-probabilities of all nodes after each prompt (`node_log_probs`).

    Attributes:
        hidden: int64 (B, 1), the prefix after each prompt: the root.
        count: Branch tokens that have been run for each prompt.
    """

    def __init__(self, trie: Trie, masses: torch.Tensor):
        self.trie, self.masses = trie, masses
        self.hidden = torch.zeros(len(masses), 1, dtype=torch.int64, device=masses.device)
        self.count = 0
        self._nodes = self.hidden[:, :0]  # (B, slots)

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more code after each of K prefixes; see `minionerec.models.decoding.branches.Branches.run`.

        Returns:
            int64 (B, K, 1), the prefixes reached, 0 where there is none.
        """
        if self.count:
            before = self._nodes.gather(1, parents.clamp(min=0)).masked_fill(parents < 0, 0)
        else:
            before = torch.zeros_like(tokens)
        nodes = self.trie.find(before, tokens).clamp(min=0)
        self._nodes = torch.cat([self._nodes, nodes], 1)
        self.count += tokens.shape[1]
        return nodes.unsqueeze(-1)

    def mass(self, nodes: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of nodes int64 (B, K, W) of each prompt: float32 (B, K, W)."""
        rows = torch.arange(len(nodes), device=nodes.device)[:, None, None]
        return self.masses[rows, nodes]

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate codes; see `minionerec.models.decoding.branches.Branches.scores`.

        Only codes that exist have a probability, so both normalisers agree but where candidates are left out.
        """
        node = hidden.expand(tokens.shape)
        child = self.trie.find(node, tokens)
        present = present & (child >= 0)
        steps = (self.mass(child.clamp(min=0)) - self.mass(node)) / temperature
        steps = steps.masked_fill(~present, -torch.inf)
        if normaliser != "full" or temperature != 1:
            steps = (steps - steps.logsumexp(-1, keepdim=True)).masked_fill(~present, -torch.inf)
        return steps


class LeafModel(OpensBranches):
    """Distributions over all leaves, one for each row of a batch, as a model that is searched.

    Args:
        leaf_log_probs: float32 (B, S), by the leaves' numbers in the tries that are searched.
        vocab_size: Size of the vocabulary of those tries.
    """

    row_bound = True

    def __init__(self, leaf_log_probs: torch.Tensor, vocab_size: int):
        self.leaf_log_probs, self._vocab_size = leaf_log_probs, vocab_size

    @property
    def device(self) -> torch.device:
        """Device of the distributions."""
        return self.leaf_log_probs.device

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary of tries; prompts are not read."""
        return self._vocab_size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> LeafBranches:
        """Branches for a search; of the prompts only the number counts.

        Raises:
            ConfigError: If the trie has another number of leaves, or one inside another.
            DataError: If there are more or fewer prompts than rows.
        """
        return LeafBranches(trie, node_log_probs(trie, self.sid_log_probs(prompts, trie)))

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor:
        """The distributions themselves; see `branches`."""
        if trie.n_sids != self.leaf_log_probs.shape[1]:
            raise ConfigError(
                f"the distribution is over {self.leaf_log_probs.shape[1]} SIDs, but the trie has {trie.n_sids}."
            )
        if trie.mixed_ends:
            raise ConfigError(
                "some SIDs begin other SIDs, so a step has no probability of ending there; search over "
                "trie.with_tail([end token])."
            )
        if len(prompts) != len(self.leaf_log_probs):
            raise DataError(f"{len(prompts)} prompts, but {len(self.leaf_log_probs)} distributions are given.")
        return self.leaf_log_probs


# Two models in one search: the score of a step is a weighted sum of both models' log-probabilities.
#
# This is debiasing-diversifying decoding (Bao et al., "Decoding Matters", EMNLP 2024) where the first model is a
# language model and the second a recommender that reads no text (`LeafModel`). The second model's steps telescope, so
# that a complete SID y scores
#
#     share * log p_first(y) + (1 - share) * log p_second(y),
#
# a product of experts: what the search decides is which SIDs are reached at all. `rerank` gives the same scores to the
# SIDs that a search of the first model alone has reached.


class MixedBranches:
    """Branches of two models side by side (`minionerec.models.decoding.branches.Branches`).

    Args:
        first: Branches of one model after a batch of prompts.
        second: Branches of the other after the same rows, in the same tokens.
        share: The first one's weight, from 0 to 1; the second has the rest. A model of weight 0 is never run.

    Attributes:
        hidden: uint8 (B, D), the bytes of what both models need to know of each prompt.
        count: Branch tokens that have been run for each prompt.
    """

    def __init__(self, first: Branches, second: Branches, share: float):
        self.parts = [(part, weight) for part, weight in ((first, share), (second, 1 - share)) if weight]
        self.hidden = _pack([part.hidden for part, _ in self.parts])
        self.count = 0

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token after each of K branches; see `minionerec.models.decoding.branches.Branches.run`."""
        self.count += tokens.shape[1]
        return _pack([part.run(tokens, parents, depth) for part, _ in self.parts])

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Weighted sums of log-probabilities of candidate tokens; see `Branches.scores`.

        Each model's own are by `normaliser` and `temperature`; their sum is not normalised again.
        """
        total = torch.zeros(tokens.shape, device=tokens.device)
        states = hidden.split([part.hidden.shape[-1] * part.hidden.dtype.itemsize for part, _ in self.parts], -1)
        for (part, weight), state in zip(self.parts, states, strict=True):
            known = state.clone(memory_format=torch.contiguous_format).view(part.hidden.dtype)
            total = total + weight * part.scores(known, tokens, present, normaliser, temperature)
        return total


def _pack(states: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors (..., D) of any types as the bytes of all, uint8."""
    return torch.cat([state.contiguous().view(torch.uint8) for state in states], -1)


class Mixture(OpensBranches):
    """Two models that are searched as one.

    Args:
        first: The model whose vocabulary prompts and tries have.
        second: A model with the same tokens.
        share: The first one's weight, from 0 to 1. At 1 the second is never opened, at 0 the first.

    Raises:
        ConfigError: If the weight is out of range, or a backbone is of a kind that is not scored right here.
    """

    def __init__(self, first: SearchModel, second: SearchModel, share: float):
        if not 0 <= share <= 1:
            raise ConfigError(f"share is {share}; it must be from 0 to 1.")
        self.models = [(model, weight) for model, weight in ((first, share), (second, 1 - share)) if weight]
        self.share, self._vocab_size = share, vocabulary_size(first)
        self.row_bound = any(is_row_bound(model) for model, _ in self.models)

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        device: torch.device = self.models[0][0].device
        return device

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary of prompts and tries."""
        return self._vocab_size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
        """Branches for a search."""
        opened = [open_branches(model, prompts, trie) for model, _ in self.models]
        return MixedBranches(opened[0], opened[1], self.share) if len(opened) > 1 else opened[0]

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor | None:
        """Weighted sums of log-probabilities of all SIDs, float32 (B, S); None unless both models have them at once."""
        total = torch.zeros(len(prompts), trie.n_sids, device=self.device)
        for model, weight in self.models:
            known = model.sid_log_probs(prompts, trie) if isinstance(model, OpensBranches) else None
            if known is None:
                return None
            total = total + weight * known
        return total


def rerank(found: BeamResult, log_probs: torch.Tensor, share: float) -> BeamResult:
    """Rerank the results of one model's search by a mixture with another.

    Args:
        found: Lists of the first model, B rows; their scores count `share`.
        log_probs: float32 (B, S), what the second model holds of all SIDs.
        share: From 0 to 1.
    """
    second = log_probs.gather(1, found.sids.clamp(min=0))
    scores = torch.where(found.sids < 0, -torch.inf, share * found.scores + (1 - share) * second)
    order = scores.argsort(dim=1, descending=True, stable=True)
    return BeamResult(found.sids.gather(1, order), scores.gather(1, order))
