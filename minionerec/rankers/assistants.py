"""The recommenders that assist in a search: sequential models, and checkpoints other than the one that is searched."""

from collections.abc import Sequence

import numpy as np
import torch

from minionerec.decoding.branches import evaluating
from minionerec.decoding.exact import exact_search
from minionerec.decoding.guide import Guide
from minionerec.decoding.leaves import sum_to_leaves
from minionerec.rankers.language import LanguageRanker
from minionerec.rankers.sequential import SequentialRanker


class SequentialAssistant:
    """A sequential model's softmax over items, summed over the items of each candidate.

    A row without history, of which the model could read nothing, gets the items' shares of the training targets, each
    counted once more than it is one.

    Args:
        ranker: The model.
        candidate_of_item: int64 (N,), the candidate of each item (its SID, its title).
        popularity: int64 (N,), how often each item is a training target.
        temperature: The model's scores are divided by it.
    """

    def __init__(
        self,
        ranker: SequentialRanker,
        candidate_of_item: np.ndarray,
        popularity: np.ndarray,
        temperature: float = 1.0,
    ):
        self.ranker, self.name, self.temperature = ranker, ranker.name, temperature
        self.tells_moments = ranker.tells_moments
        counts = torch.from_numpy(popularity + 1.0)
        self.popular = (counts / counts.sum()).log().float().to(ranker.device)
        self.candidate_of_item = torch.from_numpy(candidate_of_item.astype(np.int64)).to(ranker.device)
        self.candidates = int(candidate_of_item.max()) + 1

    def log_probs(self, histories: Sequence[np.ndarray], moments: Sequence[int] | None = None) -> torch.Tensor:
        """See `minionerec.rankers.mixture.Assistant`."""
        found = (self.ranker.scores(histories, moments).float() / self.temperature).log_softmax(-1)
        empty = torch.tensor([len(history) == 0 for history in histories], device=found.device)
        found = torch.where(empty.unsqueeze(1), self.popular, found)
        return sum_to_leaves(found, self.candidate_of_item, self.candidates)


class CheckpointAssistant:
    """A checkpoint's probabilities of all SIDs, by a search of the whole catalogue where the model has none at once.

    Args:
        ranker: The checkpoint.
        name: What tables call it.
        temperature: Log-probabilities are divided by it and normalised again.
    """

    def __init__(self, ranker: LanguageRanker, name: str, temperature: float = 1.0):
        self.ranker, self.name, self.temperature = ranker, name, temperature
        self.tells_moments = ranker.tells_moments

    def log_probs(self, histories: Sequence[np.ndarray], moments: Sequence[int] | None = None) -> torch.Tensor:
        """See `minionerec.rankers.mixture.Assistant`."""
        ranker = self.ranker
        guide = None if ranker.bonus is None else Guide.of(ranker.trie, bonus=ranker.bonus)
        with evaluating(ranker.bundle.model):
            prompts = ranker.prompts(histories, moments).ids
            found = exact_search(ranker.bundle.model, prompts, ranker.trie, ranker.trie.n_sids, guide=guide)
        by_number = torch.empty_like(found.scores).scatter_(1, found.sids, found.scores.float())
        return (by_number / self.temperature).log_softmax(-1)
