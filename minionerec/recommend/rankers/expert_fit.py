"""Experts of a language model, counted and fitted at the end of its training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.catalogue.blocks import SIDS_AT_ONCE
from minionerec.models.decoding.beam import BeamResult
from minionerec.models.decoding.branches import evaluating
from minionerec.models.decoding.decoder import decode_batches, fitting_batch_size
from minionerec.recommend.rankers.experts import ExpertSearch, dense
from minionerec.recommend.rankers.language import LanguageRanker
from minionerec.recommend.rankers.lists import split_queries
from minionerec.recommend.rankers.protocol import Queries
from minionerec.training.catalogue.windows import held_out_windows, older_sids
from minionerec.training.experts import corpus_experts, fit_experts
from minionerec.training.neighbours import corpus_likeness

logger = get_logger(__name__)

MOST_EXAMPLES = 3000
"""Validation examples that the experts of a language model are fitted on, at most."""
_BEAMS = 50  # of the model alone


def with_experts(bundle: Bundle, corpus: Corpus, seed: int) -> tuple[Bundle, dict[str, Any]]:
    """Give a language model experts, fitted on validation examples.

    Args:
        bundle: The trained model.
        corpus: The corpus whose training examples are counted.
        seed: Of the choice of `MOST_EXAMPLES` validation examples, where there are more.

    Returns:
        The checkpoint, with experts where they rank validation examples better; and what was found, for the manifest:
        `experts`, as in `minionerec.training.experts.FittedExperts.counts`.
    """
    numbers = bundle.table.sid_numbers
    if bundle.table.n_unique > SIDS_AT_ONCE:
        logger.warning(
            "Experts are left out: they score every SID for each query, and the catalogue has %s, more than %s.",
            f"{bundle.table.n_unique:,}",
            f"{SIDS_AT_ONCE:,}",
        )
        return bundle, {}
    if not corpus.sizes["valid"]:
        logger.warning("Experts are left out: there are no validation examples to fit their weights on.")
        return bundle, {}
    device = torch.device(bundle.model.device)
    experts = corpus_experts(corpus, numbers, corpus_likeness(corpus, numbers)).to(device)
    ranker = LanguageRanker(bundle, corpus)
    rows = corpus.chosen("valid", corpus.sample_numbers("valid", MOST_EXAMPLES, seed))
    queries = split_queries(rows, ranker.features, ranker.context)
    heldout = held_out_windows(rows, numbers, corpus.max_history, ranker.features)
    heldout["older"] = older_sids(rows, numbers, corpus.max_history)
    search = ExpertSearch(ranker, experts)
    if not search.scores_all:  # the experts alone name candidates, by weights that were fitted without a model
        fit_experts(experts, heldout, None, seed)
    variants = [replace(queries, context={}), *([queries] if ranker.features else [])]
    sids, scores = (
        torch.stack(parts) for parts in zip(*(_candidates(search, variant) for variant in variants), strict=True)
    )

    def score(rows: np.ndarray, contexts: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        given = (contexts != UNKNOWN).any(1) & (len(variants) > 1)
        return dense(
            BeamResult(sids[given.astype(int), rows].to(device), scores[given.astype(int), rows].to(device)),
            search.n_sids,
        )

    fitted = fit_experts(experts, heldout, score, seed)
    if fitted is None:
        return bundle, {}
    return replace(bundle, experts=experts), {"experts": fitted.counts()}


def _candidates(search: ExpertSearch, queries: Queries) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates of queries, int64 (R, K), -1 after the end, and their log-probabilities, float32 (R, K)."""
    ranker, (_, prompts, _) = search.ranker, search.ranker.prompts(queries)
    model, width = ranker.bundle.model, search.beams(_BEAMS)

    def decode(positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        some = [prompts[position] for position in positions]
        candidates = search.candidates(queries.take(positions), model, some, _BEAMS)
        return candidates.sids.cpu().numpy(), candidates.scores.float().cpu().numpy()

    with evaluating(model):
        at_once = fitting_batch_size(model, ranker.trie, prompts, width)
        sids, scores = decode_batches(decode, prompts, width, at_once, "scoring validation examples")
    return torch.from_numpy(sids), torch.from_numpy(scores)
