"""Distributions over all leaves of a trie (SIDs, or titles) as branches for a search.

Given the probabilities of all leaves, the probability of a prefix is the sum over the leaves below it, and that of a
step the ratio of two prefixes. The catalogue model is searched in this way, as are models that rank items, once the
probabilities of a leaf's items are summed.
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

_FAINT = -80.0  # log-probability relative to the best leaf below which single precision is lost


def sum_to_leaves(item_log_probs: torch.Tensor, leaf_of_item: torch.Tensor, leaves: int) -> torch.Tensor:
    """Log-probabilities of S leaves, float32 (B, S), as sums over their items, float32 (B, N).

    `leaf_of_item`, int64 (N,), has at least one item per leaf.

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
    """Log-probabilities of the M nodes of a trie, float32 (B, M), as sums over the leaves below, float32 (B, S).

    Those of the leaves may be of any range. The root has 0 if they sum to 1.
    """
    highest = leaf_log_probs.detach().amax(1, keepdim=True).expand(-1, len(trie.code))
    log_probs = _log_sums(trie, leaf_log_probs, highest)
    faint = log_probs < highest + _FAINT
    if bool(faint.any()):
        below = _finite(largest_below(trie, leaf_log_probs.detach()))
        log_probs = torch.where(faint, _log_sums(trie, leaf_log_probs, below), log_probs)
    return log_probs


def _log_sums(trie: Trie, leaf_log_probs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp over the leaves at or below each node, computed relative to `scale`, float32 (B, M)."""
    mass = torch.zeros_like(scale)
    for nodes in trie.paths.unbind(1):
        present = (nodes >= 0).nonzero()[:, 0]
        nodes, leaves = (
            (nodes, leaf_log_probs) if len(present) == len(nodes) else (nodes[present], leaf_log_probs[:, present])
        )
        mass.index_add_(1, nodes, (leaves - scale[:, nodes]).exp())
    return mass.log() + scale


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Values with minus infinity replaced by the lowest finite number, so that differences are defined."""
    return values.clamp(min=torch.finfo(values.dtype).min)


class LeafBranches:
    """`Branches` from the log-probabilities of all nodes.

    Args:
        trie: Trie with M nodes.
        masses: float32 (B, M), log-probabilities of all nodes after each prompt (`node_log_probs`).

    Attributes:
        hidden: int64 (B, 1), the prefix after each prompt: the root.
        count: Number of branch tokens run for each prompt.
    """

    def __init__(self, trie: Trie, masses: torch.Tensor):
        self.trie, self.masses = trie, masses
        self.hidden = torch.zeros(len(masses), 1, dtype=torch.int64, device=masses.device)
        self.count = 0
        self._nodes = self.hidden[:, :0]  # (B, slots)

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """See `Branches.run`; returns nodes of the prefixes, int64 (B, K, 1), 0 for none."""
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
        self, hidden: torch.Tensor, tokens: torch.Tensor, present: torch.Tensor, normaliser: str = "full"
    ) -> torch.Tensor:
        """See `Branches.scores`.

        Only existing codes have a probability, so both normalisers agree unless candidates are left out.
        """
        node = hidden.expand(tokens.shape)
        child = self.trie.find(node, tokens)
        present = present & (child >= 0)
        steps = self.mass(child.clamp(min=0)) - self.mass(node)
        steps = steps.masked_fill(~present, -torch.inf)
        if normaliser != "full":
            steps = (steps - steps.logsumexp(-1, keepdim=True)).masked_fill(~present, -torch.inf)
        return steps


class LeafModel(OpensBranches):
    """Searchable model with a given distribution over all leaves for each row of a batch.

    Args:
        leaf_log_probs: float32 (B, S), by the leaves' numbers in the searched tries.
        vocab_size: Size of the vocabulary of these tries.
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
        """Open branches for a search; only the number of prompts matters. Errors are those of `sid_log_probs`."""
        return LeafBranches(trie, node_log_probs(trie, self.sid_log_probs(prompts, trie)))

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor:
        """The given distributions.

        Raises:
            ConfigError: If the trie has another number of leaves, or an SID is a prefix of another.
            DataError: If the numbers of prompts and rows differ.
        """
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
    """Weighted combination of the `Branches` of two models.

    Args:
        first: Branches of one model after a batch of prompts.
        second: Branches of the other model after the same prompts, over the same tokens.
        share: Weight of the first, from 0 to 1; the second has 1 - share. A model of weight 0 is never run.

    Attributes:
        hidden: uint8 (B, D), bytes of both models' states of each prompt.
        count: Number of branch tokens run for each prompt.
    """

    def __init__(self, first: Branches, second: Branches, share: float):
        self.parts = [(part, weight) for part, weight in ((first, share), (second, 1 - share)) if weight]
        self.hidden = _pack([part.hidden for part, _ in self.parts])
        self.count = 0

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """See `Branches.run`."""
        self.count += tokens.shape[1]
        return _pack([part.run(tokens, parents, depth) for part, _ in self.parts])

    def scores(
        self, hidden: torch.Tensor, tokens: torch.Tensor, present: torch.Tensor, normaliser: str = "full"
    ) -> torch.Tensor:
        """Weighted sums of log-probabilities of candidate tokens; see `Branches.scores`.

        Each model applies `normaliser`; the sum is not normalised again.
        """
        total = torch.zeros(tokens.shape, device=tokens.device)
        states = hidden.split([part.hidden.shape[-1] * part.hidden.dtype.itemsize for part, _ in self.parts], -1)
        for (part, weight), state in zip(self.parts, states, strict=True):
            model_state = state.clone(memory_format=torch.contiguous_format).view(part.hidden.dtype)
            total = total + weight * part.scores(model_state, tokens, present, normaliser)
        return total


def _pack(states: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate the bytes of tensors (..., D) of any dtypes: uint8."""
    return torch.cat([state.contiguous().view(torch.uint8) for state in states], -1)


class Mixture(OpensBranches):
    """Searchable mixture of two models with the same tokens; the first defines the vocabulary of prompts and tries.

    `share`, from 0 to 1, is the weight of the first. A model of weight 0 is never run.

    Raises:
        ConfigError: If the weight is out of range, or the architecture of a backbone is not supported.
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
        """Weighted sums of log-probabilities of all SIDs, float32 (B, S); None unless both models compute them."""
        total = torch.zeros(len(prompts), trie.n_sids, device=self.device)
        for model, weight in self.models:
            log_probs = model.sid_log_probs(prompts, trie) if isinstance(model, OpensBranches) else None
            if log_probs is None:
                return None
            total = total + weight * log_probs
        return total


def rerank(result: BeamResult, log_probs: torch.Tensor, share: float) -> BeamResult:
    """Rerank the results of one model's search by a mixture with another model.

    Args:
        result: Lists of the first model, B rows.
        log_probs: float32 (B, S), log-probabilities of all SIDs by the second model.
        share: Weight of the first model's scores, from 0 to 1.
    """
    second = log_probs.gather(1, result.sids.clamp(min=0))
    scores = torch.where(result.sids < 0, -torch.inf, share * result.scores + (1 - share) * second)
    order = scores.argsort(dim=1, descending=True, stable=True)
    return BeamResult(result.sids.gather(1, order), scores.gather(1, order))
