"""Exact search: the K best SIDs of the whole catalogue under a model.

A prefix's score bounds the scores of all SIDs below it, since log-probabilities are not positive. The search opens
prefixes best first, some at a time, and stops when no unopened prefix beats the K-th best complete SID.
"""

from collections.abc import Sequence

import torch

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.beam import BeamResult
from minionerec.models.decoding.branches import (
    OpensBranches,
    SearchModel,
    check_scores,
    check_search,
    open_branches,
)
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.names import SCORES
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.rows import top_scores

# Rounding may raise a score slightly above its prefix's.
_SLACK = 1e-5


@torch.no_grad()
def exact_search(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    k: int,
    normaliser: str = "full",
    at_once: int = 32,
    guide: Guide | None = None,
) -> BeamResult:
    """Rank the best K SIDs of the whole catalogue.

    Args:
        model: Causal language model in evaluation mode.
        prompts: B token id lists, none empty.
        trie: SIDs of the catalogue.
        k: Length of the lists.
        normaliser: "full" or "renormalised", see `beam_search`.
        at_once: Prefixes opened at a time for each prompt. Smaller numbers open fewer prefixes, larger numbers need
            fewer forward passes; the lists are the same.
        guide: Allowed SIDs of the prompts, and additions to log-probabilities; made for this trie, B rows.

    Returns:
        min(K, number of allowed SIDs) SIDs per prompt, best first, and the number of prefixes opened.

    Raises:
        ConfigError: If a setting is out of range, or the trie was built for another vocabulary.
        DataError: If a prompt is empty or has unknown tokens, or scores are NaN; the message names the prompt's row.
    """
    if k < 1 or at_once < 1:
        raise ConfigError(f"k is {k} and at_once {at_once}; both must be at least 1.")
    if normaliser not in SCORES:
        raise ConfigError(f"unknown scores {normaliser!r}; known: {', '.join(SCORES)}.")
    trie = check_search(model, prompts, trie)
    guide = guide or Guide()
    log_probs = model.sid_log_probs(prompts, trie) if isinstance(model, OpensBranches) else None
    if log_probs is not None:
        return _best_known(log_probs, k, guide)
    ranked = model.best_sids(prompts, trie, k, guide) if isinstance(model, OpensBranches) else None
    if ranked is not None:
        check_scores(ranked[0].unsqueeze(1))
        return _padded_result(*ranked, k)
    return _best_searched(model, prompts, trie, k, normaliser=normaliser, at_once=at_once, guide=guide)


def _best_searched(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    k: int,
    *,
    normaliser: str,
    at_once: int,
    guide: Guide,
) -> BeamResult:
    """Best-first search; see `exact_search`."""
    batch, device = len(prompts), model.device
    branches = open_branches(model, prompts, trie)
    bounds = torch.tensor(trie.level_start[1:], device=device)
    opened = torch.ones(batch, dtype=torch.long, device=device)
    # The best complete SIDs so far, (B, K): scores, descending, minus infinity for none; and numbers.
    done_scores = torch.full((batch, k), -torch.inf, device=device)
    done_sids = torch.full((batch, k), -1, dtype=torch.long, device=device)
    # The prefixes opened in this step, at first the empty one: score, node, and slot of the last token.
    scores = guide.start(batch, device)
    nodes = torch.zeros(batch, 1, dtype=torch.long, device=device)
    slots = torch.full_like(nodes, -1)
    # The unopened prefixes, (B, W): score, minus infinity for none; node; and the parent's slot.
    waiting = [torch.full((batch, 0), -torch.inf, device=device), nodes[:, :0], nodes[:, :0]]
    hidden = branches.hidden.unsqueeze(1)
    while True:
        children, present = trie.children(nodes)  # (B, K, W)
        fan = children.shape[-1]
        steps = branches.scores(hidden, _tokens(trie, children), present, normaliser)
        check_scores(steps)
        totals = (scores.unsqueeze(-1) + guide.steps(steps, nodes, children, present)).flatten(1)
        children, present = children.flatten(1), present.flatten(1)
        complete, sids = guide.ends(totals, trie.sid[children].long().masked_fill(~present, -1), children)
        candidates = torch.cat([done_scores, complete.masked_fill(sids < 0, -torch.inf)], 1)
        done_scores, order = top_scores(candidates, k)
        done_sids = torch.cat([done_sids, sids], 1).gather(1, order)
        inner = present & (trie.first_child[children + 1] > trie.first_child[children])
        grown = totals.masked_fill(~inner, -torch.inf), children, slots.repeat_interleave(fan, dim=1)
        waiting = [torch.cat(parts, 1) for parts in zip(waiting, grown, strict=True)]
        hopeful = waiting[0] > done_scores[:, -1:] - _SLACK
        count = int(hopeful.sum(1).max())
        if count == 0:
            return BeamResult(done_sids.masked_fill(done_scores == -torch.inf, -1), done_scores, opened)
        best, order = top_scores(waiting[0].masked_fill(~hopeful, -torch.inf), count)
        split = [part.tensor_split([at_once], 1) for part in (best, *(part.gather(1, order) for part in waiting[1:]))]
        (scores, nodes, parents), waiting = (list(parts) for parts in zip(*split, strict=True))
        nodes = nodes.masked_fill(scores == -torch.inf, -1)
        opened = opened + (nodes >= 0).sum(1)
        safe = nodes.clamp(min=0)
        depth = (torch.bucketize(safe, bounds, right=True) - 1).clamp(min=0)
        slots = branches.count + torch.arange(nodes.shape[1], device=nodes.device).expand_as(nodes)
        hidden = branches.run(_tokens(trie, safe), parents.masked_fill(nodes < 0, -1), depth)


def _best_known(log_probs: torch.Tensor, k: int, guide: Guide) -> BeamResult:
    """The best SIDs from the log-probabilities of all SIDs, float32 (B, S)."""
    check_scores(log_probs.unsqueeze(1))
    if guide.sid_bonus is not None:
        log_probs = log_probs + guide.sid_bonus
    if guide.sids is not None:
        log_probs = log_probs.masked_fill(~guide.sids, -torch.inf)
    return _padded_result(*top_scores(log_probs, k), k)


def _padded_result(scores: torch.Tensor, sids: torch.Tensor, k: int) -> BeamResult:
    """Pad lists to length K, (B, K); one prefix was opened for each prompt."""
    missing = k - scores.shape[1]
    scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    sids = torch.nn.functional.pad(sids, (0, missing), value=-1).masked_fill(scores == -torch.inf, -1)
    return BeamResult(sids, scores, torch.ones(len(scores), dtype=torch.long, device=scores.device))


def _tokens(trie: Trie, nodes: torch.Tensor) -> torch.Tensor:
    """Vocabulary ids of nodes of any depth; fillers (the root) get token 0."""
    return trie.tokens(nodes).clamp(min=0)
