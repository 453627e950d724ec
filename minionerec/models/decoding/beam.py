"""Constrained beam search that runs each prompt once, and sampling without replacement by the same search."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.branches import (
    BrokenScores,
    SearchModel,
    broken_rows,
    check_rows,
    check_search,
    is_row_bound,
    open_branches,
)
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.names import SCORES
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.rows import top_scores

# Whether to use a fixed fan-out per level and sort whole rows of scores, which avoids GPU syncs. On a CPU, sizes that
# depend on the data are faster.
_FIXED_WIDTH = {"cpu": False}


@dataclass(frozen=True)
class BeamResult:
    """Ranked SIDs for a batch of prompts.

    Attributes:
        sids: int64 (B, K), SID numbers of the trie, best first; -1 after the end of shorter lists.
        scores: float32 (B, K), summed log-probabilities (divided by a power of the length, with a length penalty);
            minus infinity for no result.
        opened: int64 (B,), number of prefixes whose children exact search has scored, including the empty one; None
            for other searches.
    """

    sids: torch.Tensor
    scores: torch.Tensor
    opened: torch.Tensor | None = None


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

    At each level the `num_beams` best running prefixes are extended by all their children; complete SIDs leave the beam
    and compete in a separate list, as in stock beam search. Generation configs are ignored.

    Args:
        model: The model to search, in evaluation mode: a causal language model (Qwen2, Qwen3, Llama), or an
            `OpensBranches` (the catalogue model, an encoder-decoder, a mixture).
        prompts: B token id lists, none empty.
        trie: SIDs of the catalogue, on any device.
        num_beams: Number of beams, K.
        normaliser: "full" (as in stock beam search) or "renormalised" (over all children, allowed by the guide or not).
        guide: Allowed SIDs of the prompts, and additions to log-probabilities; made for this trie, B rows.
        length_penalty: Power of the number of tokens by which scores of complete SIDs are divided, as in stock beam
            search with `early_stopping="never"`; has no effect if all SIDs are of one length.

    Returns:
        Up to K distinct SIDs per prompt. Lists are shorter if fewer SIDs are allowed, or, with SIDs of several lengths,
        if the beam reaches fewer.

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

    def search(batch: Sequence[Sequence[int]]) -> BeamResult:
        return _search(
            model, batch, trie, num_beams, normaliser=normaliser, guide=guide or Guide(), length_penalty=length_penalty
        )

    if (guide is not None and guide.nodes is not None) or is_row_bound(model):
        return search(prompts)
    index_of: dict[tuple[int, ...], int] = {}  # equal prompts are decoded once
    distinct = [index_of.setdefault(tuple(prompt), len(index_of)) for prompt in prompts]
    try:
        result = search(list(index_of))
    except BrokenScores as error:
        raise BrokenScores(distinct.index(error.row)) from None
    if len(index_of) == len(distinct):
        return result
    order = torch.tensor(distinct, device=result.sids.device)
    return BeamResult(result.sids[order], result.scores[order])


def _search(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    num_beams: int,
    *,
    normaliser: str,
    guide: Guide,
    length_penalty: float,
) -> BeamResult:
    """Beam search with checked arguments."""
    batch, device = len(prompts), model.device
    branches = open_branches(model, prompts, trie)
    hidden = branches.hidden.unsqueeze(1)  # (B, 1, D)
    nodes = torch.zeros(batch, 1, dtype=torch.long, device=device)  # running prefixes, -1 for none
    running = guide.start(batch, device)
    done_scores = torch.full((batch, 0), -torch.inf, device=device)
    done_sids = torch.full((batch, 0), -1, dtype=torch.long, device=device)
    broken: list[torch.Tensor] = []
    for depth in range(trie.levels):
        children, present = _children(trie, nodes, depth)
        width = children.shape[-1]
        scores = branches.scores(hidden, trie.tokens(children, depth + 1), present, normaliser)
        broken.append(broken_rows(scores))
        scores = guide.steps(scores, nodes, children, present)
        totals = (running.unsqueeze(-1) + scores).flatten(1)  # (B, K * W)
        flat_children = torch.where(present, children, -1).flatten(1)
        missing = flat_children < 0
        safe = flat_children.clamp(min=0)
        last = depth + 1 == trie.levels
        if last or not trie.even:  # SIDs of equal length end only at the last level
            ends = trie.sid[safe].long().masked_fill(missing, -1)
            if not last:  # as in stock beam search, only the K best candidates of a step may end
                ends = ends.masked_fill(totals < _top_scores(totals, num_beams)[0][:, -1:], -1)
            complete, ends = guide.ends(totals, ends, flat_children)
            if length_penalty:
                complete = complete / (depth + 1) ** length_penalty
            done_scores, order = _top_scores(
                torch.cat([done_scores, complete.masked_fill(ends < 0, -torch.inf)], 1), num_beams
            )
            done_sids = torch.cat([done_sids, ends], 1).gather(1, order)
        if last:
            break
        if not trie.even:  # prefixes without children are dropped
            missing = missing | (trie.first_child[safe + 1] == trie.first_child[safe])
        running, order = _top_scores(totals.masked_fill(missing, -torch.inf), num_beams)
        nodes = flat_children.gather(1, order).masked_fill(running == -torch.inf, -1)
        if not (trie.even and guide.nodes is None) and (nodes < 0).all():
            break
        parents = order // width + branches.count - hidden.shape[1]  # slots of the level before
        if depth == 0:
            parents = torch.full_like(parents, -1)
        hidden = branches.run(trie.tokens(nodes.clamp(min=0), depth + 1), parents, depth)
    check_rows(broken)  # once at the end, to avoid a GPU sync per level
    return BeamResult(done_sids.masked_fill(done_scores == -torch.inf, -1), done_scores)


def _children(trie: Trie, nodes: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Children of prefixes (B, K) of one depth; see `Trie.children`."""
    return trie.children(nodes, trie.widths[depth] if _FIXED_WIDTH.get(nodes.device.type, True) else 0)


def _top_scores(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return top_scores(scores, count, wait=not _FIXED_WIDTH.get(scores.device.type, True))


# Sampling SIDs without replacement, by stochastic beam search over the trie.
#
# Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them" (ICML 2019), Algorithm 1: every SID gets its
# log-probability plus a Gumbel variable, and the K largest are a sample without replacement; a prefix's value is the
# largest of the SIDs below it, drawn from the top down, so that only K prefixes a level are run. Deviation: the sampled
# distribution is constrained, each step's softmax being over the trie's children.


@torch.no_grad()
def sample_search(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    k: int,
    generator: torch.Generator | None = None,
) -> BeamResult:
    """Draw K distinct SIDs for each prompt.

    The first is a plain sample of the constrained policy; each further one is sampled from the remaining SIDs,
    renormalised.

    Args:
        model: Causal language model in evaluation mode.
        prompts: B token id lists, none empty; equal prompts draw independently.
        trie: SIDs of the catalogue; none may be a prefix of another (see `Trie.with_tail`).
        k: Number of SIDs to draw.
        generator: Source of randomness, on the CPU; torch's own if None.

    Returns:
        The SIDs in the order in which they were drawn; scores are float64, the log-probability of each under the
        sampled distribution (constrained).

    Raises:
        ConfigError: If a setting is out of range, or the trie cannot be sampled from.
        DataError: If a prompt is empty or foreign, or scores are not numbers; the message names the prompt's row.
    """
    if k < 1:
        raise ConfigError(f"k is {k}; it must be at least 1.")
    if trie.mixed_ends:
        raise ConfigError(
            "some SIDs begin other SIDs, so a step has no probability of ending there; sample over "
            "trie.with_tail([end token])."
        )
    return _draw(model, prompts, check_search(model, prompts, trie), k, generator)


def _draw(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    k: int,
    generator: torch.Generator | None,
) -> BeamResult:
    """Sampling with checked arguments."""
    batch, device = len(prompts), model.device
    branches = open_branches(model, prompts, trie)
    hidden = branches.hidden.unsqueeze(1)
    nodes = torch.zeros(batch, 1, dtype=torch.long, device=device)
    sids = torch.full((batch, 1), -1, dtype=torch.long, device=device)
    log_probs = torch.zeros(batch, 1, dtype=torch.float64, device=device)
    keys = _gumbel((batch, 1), generator, device)
    broken: list[torch.Tensor] = []
    for depth in range(trie.levels):
        complete = sids >= 0
        children, present = _children(trie, nodes.masked_fill(complete, -1), depth)
        fan = children.shape[-1]
        tokens = trie.tokens(children, depth + 1)
        steps = branches.scores(hidden, tokens, present, "renormalised")
        broken.append(broken_rows(steps))
        below = (log_probs.unsqueeze(-1) + steps).masked_fill(~present, -torch.inf)
        perturbed = _with_maximum(below + _gumbel(below.shape, generator, device), keys.unsqueeze(-1))
        # Complete SIDs keep competing with their keys.
        pool = torch.cat([keys.masked_fill(~complete, -torch.inf), perturbed.flatten(1)], 1)
        positions = nodes.shape[1]
        keys, order = _top_scores(pool, k)
        log_probs = torch.cat([log_probs, below.flatten(1)], 1).gather(1, order)
        pool_nodes = torch.cat([nodes, children.flatten(1)], 1)
        nodes = pool_nodes.gather(1, order).masked_fill(keys == -torch.inf, -1)
        sids = trie.sid[nodes.clamp(min=0)].long().masked_fill(nodes < 0, -1)
        unfinished = (nodes >= 0) & (sids < 0)
        if depth + 1 == trie.levels or not (trie.even or unfinished.any()):
            break
        parents = (order - positions).clamp(min=0) // fan + branches.count - positions
        if depth == 0:
            parents = torch.full_like(parents, -1)
        tokens = trie.tokens(nodes.masked_fill(~unfinished, 0), depth + 1)
        hidden = branches.run(tokens, parents.masked_fill(~unfinished, -1), depth)
    check_rows(broken)
    return BeamResult(sids, log_probs.masked_fill(sids < 0, -torch.inf))


def _gumbel(shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> torch.Tensor:
    """Standard Gumbel variables, float64, the same on every device."""
    uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
    smallest = torch.finfo(torch.float64).tiny
    return -(-uniform.clamp(smallest, 1 - 1e-16).log()).log().to(device)


def _with_maximum(values: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
    """Gumbel variables, float64 (..., W), conditioned on their maximum (..., 1) (Kool et al., Appendix B.3).

    Minus infinity is no value, in arguments and results.
    """
    top = values.amax(-1, keepdim=True)
    gap = (values - top).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    log1mexp = torch.where(gap > -0.693, (-torch.expm1(gap)).log(), torch.log1p(-gap.exp()))
    shift = maximum - values + log1mexp
    conditioned = maximum - shift.clamp(min=0) - torch.log1p(torch.exp(-shift.abs()))
    conditioned = torch.where(gap == 0, maximum.expand_as(conditioned), conditioned)
    return conditioned.masked_fill(values == -torch.inf, -torch.inf)
