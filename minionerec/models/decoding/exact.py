"""The true best K SIDs of the whole catalogue under a model.

A prefix's score bounds the scores of all SIDs below it, for log-probabilities are never positive. So the search opens
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

# Rounding may lift a score a little over its prefix's.
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
        at_once: Prefixes opened at a time for each prompt. A small number opens the fewest prefixes, a large one makes
            the fewest passes through the model; the lists are the same.
        guide: Allowed SIDs of the prompts, and additions to log-probabilities; made for this trie, B rows.

    Returns:
        min(K, SIDs that are allowed) SIDs a prompt, best first, and the number of prefixes opened.

    Raises:
        ConfigError: If a setting is out of range, or the trie was built for another vocabulary.
        DataError: If a prompt is empty or foreign, or scores are not numbers; the message names the prompt's row.
    """
    if k < 1 or at_once < 1:
        raise ConfigError(f"k is {k} and at_once {at_once}; both must be at least 1.")
    if normaliser not in SCORES:
        raise ConfigError(f"unknown scores {normaliser!r}; known: {', '.join(SCORES)}.")
    trie = check_search(model, prompts, trie)
    guide = guide or Guide()
    known = model.sid_log_probs(prompts, trie) if isinstance(model, OpensBranches) else None
    if known is not None:
        return _best_known(known, k, guide)
    ranked = model.best_sids(prompts, trie, k, guide) if isinstance(model, OpensBranches) else None
    if ranked is not None:
        check_scores(ranked[0].unsqueeze(1))
        return _of_length(*ranked, k)
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
    """The best SIDs, found by opening prefixes best first; see `exact_search`."""
    batch, device = len(prompts), model.device
    branches = open_branches(model, prompts, trie)
    bounds = torch.tensor(trie.level_start[1:], device=device)
    opened = torch.ones(batch, dtype=torch.long, device=device)
    # The best complete SIDs so far, (B, K): scores, descending, minus infinity where there is none yet; and numbers.
    done_scores = torch.full((batch, k), -torch.inf, device=device)
    done_sids = torch.full((batch, k), -1, dtype=torch.long, device=device)
    # The prefixes opened now, at first the empty one: score, node, and the slot of their own token.
    scores = guide.start(batch, device)
    nodes = torch.zeros(batch, 1, dtype=torch.long, device=device)
    slots = torch.full_like(nodes, -1)
    # The prefixes not yet opened, (B, W): score, minus infinity where there is none, node, and their parent's slot.
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
        competing = torch.cat([done_scores, complete.masked_fill(sids < 0, -torch.inf)], 1)
        done_scores, order = top_scores(competing, k)
        done_sids = torch.cat([done_sids, sids], 1).gather(1, order)
        inner = present & (trie.first_child[children + 1] > trie.first_child[children])
        grown = totals.masked_fill(~inner, -torch.inf), children, slots.repeat_interleave(fan, dim=1)
        waiting = [torch.cat(parts, 1) for parts in zip(waiting, grown, strict=True)]
        hopeful = waiting[0] > done_scores[:, -1:] - _SLACK
        most = int(hopeful.sum(1).max())
        if most == 0:
            return BeamResult(done_sids.masked_fill(done_scores == -torch.inf, -1), done_scores, opened)
        best, order = top_scores(waiting[0].masked_fill(~hopeful, -torch.inf), most)
        split = [part.tensor_split([at_once], 1) for part in (best, *(part.gather(1, order) for part in waiting[1:]))]
        (scores, nodes, parents), waiting = (list(parts) for parts in zip(*split, strict=True))
        nodes = nodes.masked_fill(scores == -torch.inf, -1)
        opened = opened + (nodes >= 0).sum(1)
        safe = nodes.clamp(min=0)
        depth = (torch.bucketize(safe, bounds, right=True) - 1).clamp(min=0)
        slots = branches.count + torch.arange(nodes.shape[1], device=nodes.device).expand_as(nodes)
        hidden = branches.run(_tokens(trie, safe), parents.masked_fill(nodes < 0, -1), depth)


def _best_known(log_probs: torch.Tensor, k: int, guide: Guide) -> BeamResult:
    """The best SIDs from the log-probabilities of all, float32 (B, S); one prefix is opened."""
    check_scores(log_probs.unsqueeze(1))
    if guide.own is not None:
        log_probs = log_probs + guide.own
    if guide.sids is not None:
        log_probs = log_probs.masked_fill(~guide.sids, -torch.inf)
    return _of_length(*top_scores(log_probs, k), k)


def _of_length(scores: torch.Tensor, sids: torch.Tensor, k: int) -> BeamResult:
    """Lists of length K, (B, K), from lists of at most that length, for which one prefix was opened."""
    missing = k - scores.shape[1]
    scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    sids = torch.nn.functional.pad(sids, (0, missing), value=-1).masked_fill(scores == -torch.inf, -1)
    return BeamResult(sids, scores, torch.ones(len(scores), dtype=torch.long, device=scores.device))


def _tokens(trie: Trie, nodes: torch.Tensor) -> torch.Tensor:
    """Vocabulary ids of nodes of any depth; fillers (the root) get token 0."""
    return trie.tokens(nodes).clamp(min=0)
