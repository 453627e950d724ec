"""Constrained beam search that pays for each prompt once; every result is an SID of the catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.branches import (
    BrokenScores,
    SearchModel,
    check_scores,
    check_search,
    is_row_bound,
    open_branches,
)
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.names import SCORES
from minionerec.models.decoding.trie import Trie


@dataclass(frozen=True)
class BeamResult:
    """Ranked SIDs for a batch of prompts.

    Attributes:
        sids: int64 (B, K), SID numbers of the trie, best first; -1 where a prompt has fewer results than K.
        scores: float32 (B, K), summed log-probabilities (over the length, with a length penalty); minus infinity where
            there is no result.
    """

    sids: torch.Tensor
    scores: torch.Tensor


@torch.no_grad()
def beam_search(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    num_beams: int,
    normaliser: str = "full",
    guide: Guide | None = None,
    length_penalty: float = 0.0,
) -> BeamResult:
    """Rank SIDs by beam search over the trie.

    At each level the `num_beams` best running prefixes are extended by all their children; SIDs that are complete
    leave the beam and compete in a list of their own, as in stock beam search. No setting of any generation config has
    a say.

    Args:
        model: Causal language model in evaluation mode (Qwen2, Qwen3, Llama).
        prompts: B token id lists, none empty.
        trie: SIDs of the catalogue, on any device.
        num_beams: Beam width K.
        normaliser: "full" (as stock beam search scores) or "renormalised" (over all children, allowed by a guide or
            not).
        guide: What the prompts may get, and what is added to log-probabilities; made for this trie, B rows.
        length_penalty: Scores of complete SIDs are divided by their number of tokens to this power, as by stock beam
            search with `early_stopping="never"`; changes lists only where SIDs differ in length.

    Returns:
        Up to K distinct SIDs a prompt; fewer where the catalogue (or what the beam can reach) has fewer. Where all SIDs
        are of one length, only where fewer are allowed.

    Raises:
        ConfigError: If a setting is out of range, or the trie was built for another vocabulary.
        DataError: If a prompt is empty or foreign, or the model gives scores that are not numbers; the message names
            the prompt's row.
    """
    if num_beams < 1:
        raise ConfigError(f"num_beams is {num_beams}; it must be at least 1.")
    if normaliser not in SCORES:
        raise ConfigError(f"unknown scores {normaliser!r}; known: {', '.join(SCORES)}.")
    trie = check_search(model, prompts, trie)
    if not len(prompts):
        return BeamResult(torch.zeros(0, num_beams, dtype=torch.long), torch.zeros(0, num_beams))
    if (guide is not None and guide.nodes is not None) or is_row_bound(model):
        return _search(model, prompts, trie, num_beams, normaliser, guide or Guide(), length_penalty)
    place_of: dict[tuple[int, ...], int] = {}  # equal prompts are decoded once
    places = [place_of.setdefault(tuple(prompt), len(place_of)) for prompt in prompts]
    try:
        result = _search(model, list(place_of), trie, num_beams, normaliser, guide or Guide(), length_penalty)
    except BrokenScores as error:
        raise BrokenScores(places.index(error.row)) from None
    if len(place_of) == len(places):
        return result
    order = torch.tensor(places, device=result.sids.device)
    return BeamResult(result.sids[order], result.scores[order])


def _search(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    num_beams: int,
    normaliser: str,
    guide: Guide,
    length_penalty: float,
) -> BeamResult:
    """The search itself."""
    batch, device = len(prompts), model.device
    branches = open_branches(model, prompts, trie)
    hidden = branches.hidden.unsqueeze(1)  # (B, 1, D)
    nodes = torch.zeros(batch, 1, dtype=torch.long, device=device)  # running prefixes, -1 where there is none
    running = guide.start(batch, device)
    done_scores = torch.full((batch, 0), -torch.inf, device=device)
    done_sids = torch.full((batch, 0), -1, dtype=torch.long, device=device)
    for depth in range(trie.levels):
        children, present = trie.children(nodes)  # (B, K, W)
        width = children.shape[-1]
        scores = branches.scores(hidden, trie.tokens(children, depth + 1), present, normaliser)
        check_scores(scores)
        scores = guide.steps(scores, nodes, children, present)
        totals = (running.unsqueeze(-1) + scores).flatten(1)  # (B, K * W)
        flat_children = torch.where(present, children, -1).flatten(1)
        ends = trie.sid[flat_children.clamp(min=0)].long().masked_fill(flat_children < 0, -1)
        if depth + 1 < trie.levels:  # as in stock: what is worse than K others in its own step does not end
            ends = ends.masked_fill(totals < best(totals, num_beams)[0][:, -1:], -1)
        complete, ends = guide.ends(totals, ends, flat_children)
        if length_penalty:
            complete = complete / (depth + 1) ** length_penalty
        done_scores, order = best(torch.cat([done_scores, complete.masked_fill(ends < 0, -torch.inf)], 1), num_beams)
        done_sids = torch.cat([done_sids, ends], 1).gather(1, order)
        if depth + 1 == trie.levels:
            break
        inner = trie.first_child[flat_children.clamp(min=0) + 1] > trie.first_child[flat_children.clamp(min=0)]
        running, order = best(totals.masked_fill(~inner | (flat_children < 0), -torch.inf), num_beams)
        nodes = flat_children.gather(1, order).masked_fill(running == -torch.inf, -1)
        if (nodes < 0).all():
            break
        parents = order // width + branches.count - hidden.shape[1]  # slots of the level before
        if depth == 0:
            parents = torch.full_like(parents, -1)
        hidden = branches.run(trie.tokens(nodes.clamp(min=0), depth + 1), parents, depth)
    return BeamResult(done_sids.masked_fill(done_scores == -torch.inf, -1), done_scores)


def best(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `width` highest scores of each row, best first, and their places."""
    best = scores.topk(min(width, scores.shape[1]), dim=1)
    return best.values, best.indices
