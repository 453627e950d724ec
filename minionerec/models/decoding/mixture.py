"""Two models in one search: the score of a step is a weighted sum of both models' log-probabilities.

This is debiasing-diversifying decoding (Bao et al., "Decoding Matters", EMNLP 2024) where the first model is a language
model and the second a recommender that reads no text (`minionerec.models.decoding.leaves.LeafModel`). The second
model's steps telescope, so that a complete SID y scores

    share * log p_first(y) + (1 - share) * log p_second(y),

a product of experts: what the search decides is which SIDs are reached at all. `rerank` gives the same scores to the
SIDs that a search of the first model alone has reached.
"""

from collections.abc import Sequence

import torch

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.beam import BeamResult
from minionerec.models.decoding.branches import (
    Branches,
    OpensBranches,
    SearchModel,
    is_row_bound,
    open_branches,
    vocabulary_size,
)
from minionerec.models.decoding.trie import Trie


class MixedBranches:
    """Branches of two models side by side (`minionerec.models.decoding.branches.Branches`).

    Args:
        first: Branches of one model behind a batch of prompts.
        second: Branches of the other behind the same rows, in the same tokens.
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
        """Run one more token behind each of K branches; see `minionerec.models.decoding.branches.Branches.run`."""
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
        first: The model whose vocabulary prompts and tries speak in.
        second: A model that speaks the same tokens.
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
        """Where the models lie."""
        device: torch.device = self.models[0][0].device
        return device

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that prompts and tries speak in."""
        return self._vocab_size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
        """What searches grow prefixes on."""
        opened = [open_branches(model, prompts, trie) for model, _ in self.models]
        return MixedBranches(opened[0], opened[1], self.share) if len(opened) > 1 else opened[0]

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor | None:
        """Weighted sums of log-probabilities of all SIDs, float32 (B, S); None unless both models know them at once."""
        total = torch.zeros(len(prompts), trie.n_sids, device=self.device)
        for model, weight in self.models:
            known = model.sid_log_probs(prompts, trie) if isinstance(model, OpensBranches) else None
            if known is None:
                return None
            total = total + weight * known
        return total


def rerank(found: BeamResult, log_probs: torch.Tensor, share: float) -> BeamResult:
    """Order what a search of one model has found by a mixture with another.

    Args:
        found: Lists of the first model, B rows; their scores count `share`.
        log_probs: float32 (B, S), what the second model holds of all SIDs.
        share: From 0 to 1.
    """
    second = log_probs.gather(1, found.sids.clamp(min=0))
    scores = torch.where(found.sids < 0, -torch.inf, share * found.scores + (1 - share) * second)
    order = scores.argsort(dim=1, descending=True, stable=True)
    return BeamResult(found.sids.gather(1, order), scores.gather(1, order))
