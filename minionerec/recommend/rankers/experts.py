"""Experts of a language model: its search pooled with training counts (`minionerec.models.nn.experts`).

A language model has the probabilities of those SIDs alone that a search reaches. Of a catalogue of at most `ALL_SIDS`
SIDs all are scored. Of a larger one the candidates of a query are the beams of the model, and the `NAMED` best SIDs of
the experts without it; one further search, which may reach these alone and has a beam for each, gives their exact
log-probabilities. The pool then ranks the candidates.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.models.decoding.beam import BeamResult, beam_search
from minionerec.models.decoding.branches import SearchModel, pad_left
from minionerec.models.decoding.guide import Guide
from minionerec.models.nn.experts import Experts
from minionerec.models.nn.rows import top_scores
from minionerec.recommend.rankers.protocol import Queries

if TYPE_CHECKING:
    from minionerec.recommend.rankers.language import LanguageRanker

ALL_SIDS = 1024
"""Catalogues of at most so many SIDs are scored as a whole."""
NAMED = 100
"""SIDs of a larger catalogue that the experts add to the beams."""


def pooled_log_probs(
    experts: Experts,
    numbers: np.ndarray,
    queries: Queries,
    log_probs: torch.Tensor | None = None,
    scored: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probabilities of the pool for queries.

    Args:
        experts: The experts, of N SIDs.
        numbers: int64 (I,), the SID of each item, from 0.
        queries: B queries.
        log_probs: float32 (B, N), of the model; None for experts alone.
        scored: bool (B, N), SIDs that the model has scored; all if None.

    Returns:
        float32 (B, N), minus infinity for SIDs that are not scored.
    """
    device = experts.weights.device
    width = max([1, *map(len, queries.histories)])
    histories = np.zeros((len(queries), width), dtype=np.int64)
    older = []
    for row, (history, seen) in enumerate(zip(queries.histories, queries.seen, strict=True)):
        histories[row, : len(history)] = numbers[np.asarray(history, dtype=np.int64)] + 1
        before = np.asarray(seen, dtype=np.int64)[: len(seen) - len(history)]
        older.append((numbers[before] + 1).tolist())
    given = torch.from_numpy(histories).to(device)
    past = pad_left(older, device)[0] if any(older) else None
    pooled: torch.Tensor = experts(log_probs, given, *newest_slots(given), past, scored)
    return pooled


class ExpertSearch:
    """The search of a language model, pooled with experts.

    Args:
        ranker: The language model.
        experts: Experts of its SIDs, on its device.
    """

    def __init__(self, ranker: "LanguageRanker", experts: Experts):
        self.ranker, self.experts = ranker, experts
        self.n_sids = ranker.trie.n_sids

    @property
    def scores_all(self) -> bool:
        """Whether all SIDs are candidates."""
        return self.n_sids <= ALL_SIDS

    def beams(self, num_beams: int) -> int:
        """Beams of the widest search for a query, by those of the model alone."""
        return self.n_sids if self.scores_all else min(self.n_sids, num_beams + NAMED)

    def candidates(
        self,
        queries: Queries,
        model: SearchModel,
        prompts: Sequence[Sequence[int]],
        num_beams: int,
        allowed: torch.Tensor | None = None,
    ) -> BeamResult:
        """The candidates of queries with the model's log-probabilities, the most probable first.

        Args:
            queries: B queries.
            model: The language model.
            prompts: Token ids of their prompts.
            num_beams: Beams of the model alone.
            allowed: bool (B, N), SIDs that may be listed; all if None. A catalogue that is scored as a whole is scored
                without regard to it.
        """
        trie, width = self.ranker.trie, self.beams(num_beams)
        if self.scores_all:
            return beam_search(model, prompts, trie, width)
        own = self.ranker.search_model(model, prompts, num_beams, allowed)
        named = pooled_log_probs(self.experts, self.ranker.table.sid_numbers, queries)
        if allowed is not None:
            named = named.masked_fill(~allowed.to(named.device), -torch.inf)
        values, sids = top_scores(named, NAMED)
        chosen = torch.zeros_like(named, dtype=torch.bool).scatter_(1, sids, values > -torch.inf)
        chosen = chosen.scatter_reduce(1, own.sids.clamp(min=0), own.sids >= 0, "amax")
        return beam_search(model, prompts, trie, width, guide=Guide.of(trie, chosen))

    def search(
        self,
        queries: Queries,
        model: SearchModel,
        prompts: Sequence[Sequence[int]],
        num_beams: int,
        allowed: torch.Tensor | None = None,
    ) -> BeamResult:
        """The best SIDs of the pool, with its log-probabilities among the candidates; arguments as of `candidates`."""
        candidates = self.candidates(queries, model, prompts, num_beams, allowed)
        pooled = pooled_log_probs(self.experts, self.ranker.table.sid_numbers, queries, *dense(candidates, self.n_sids))
        if self.ranker.bonus is not None:
            pooled = pooled + self.ranker.bonus.to(pooled.device)
        if allowed is not None:
            pooled = pooled.masked_fill(~allowed.to(pooled.device), -torch.inf)
        scores, sids = top_scores(pooled, num_beams)
        listed = scores > -torch.inf
        return BeamResult(sids.masked_fill(~listed, -1), scores.masked_fill(~listed, -torch.inf))


def dense(result: BeamResult, n_sids: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Lists of SIDs as rows of all SIDs.

    Args:
        result: Lists of B rows.
        n_sids: Number of SIDs, N.

    Returns:
        Log-probabilities, float32 (B, N), 0 for SIDs that are not listed; and which are, bool (B, N), None for all.
    """
    scored = torch.zeros(len(result.sids), n_sids + 1, dtype=torch.bool, device=result.sids.device)
    columns = torch.where(result.sids < 0, n_sids, result.sids)
    scored.scatter_(1, columns, True)
    log_probs = torch.zeros(scored.shape, device=scored.device).scatter_(1, columns, result.scores.float())
    scored = scored[:, :n_sids]
    return log_probs[:, :n_sids], None if bool(scored.all()) else scored
