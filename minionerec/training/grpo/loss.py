"""Last part of a step: the loss of GRPO and its relatives, and of the terms beside it, from log-probabilities.

GRPO: Shao et al., "DeepSeekMath" (2024), equation 3, with the KL term of its equation 4; bnpo and dapo take the mean
over tokens instead of completions (Yu et al., "DAPO", 2025, section 3.3); gspo takes one ratio a completion (Zheng et
al., "GSPO", 2025). The numbers are those of TRL's losses of these names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from minionerec.training.distillation import PathTargets, divergences
from minionerec.training.grpo.rollouts import Row
from minionerec.training.packing import LogitsOf, shared_prefix_scores
from minionerec.training.rewards import Rollouts

# Third part of a step: log-probabilities of the completions of those groups that matter, and of targets.
#
# Groups stay whole: a device computes whole groups at a time, in the order in which they were rolled out. A group whose
# rewards are all equal has no advantage, and is left out of the reference and policy passes; its share in every mean is
# kept, so that the gradient is that of the whole batch but for such groups' KL term.


@dataclass(frozen=True)
class RolloutGroups:
    """P groups: prompts with G completions each. A step's, or the share of them that is computed at a time.

    Attributes:
        prompts: Token ids of each prompt.
        completions: Token ids of the G completions of each prompt; empty after the last where a hint leaves fewer.
        mask: bool (P * G, C), where a completion has a token; completions are ordered by group.
        advantages: float32 (P * G,), or (P * G, C) where every token has its own.
        scored: bool (P,), the groups that are computed.
        tokens: Completion tokens behind hints of the whole step, over all devices.
        may_rest: Whether the model may be left alone where no group is scored: not where that is so in the whole step,
            for then the optimiser would miss most gradients.
        reference: float32 (P * G, C), log-probabilities under the reference model, 0 where there is no token or the
            group is not scored; None without a KL term.
        hints: int64 (P,), first tokens of the completions that were given and not chosen; None: of none any.
        targets: Token ids of each prompt's target as a completion, of scored groups and others; None where no term of
            the loss reads them.
        paths: A teacher's distributions before each code of the completions and, last, of the target; None without one.
    """

    prompts: Sequence[list[int]]
    completions: Sequence[Sequence[list[int]]]
    mask: torch.Tensor
    advantages: torch.Tensor
    scored: torch.Tensor
    tokens: int
    may_rest: bool
    reference: torch.Tensor | None = None
    hints: torch.Tensor | None = None
    targets: Sequence[list[int]] | None = None
    paths: PathTargets | None = None

    def __len__(self) -> int:
        """Number of groups, P."""
        return len(self.prompts)

    @property
    def scored_mask(self) -> torch.Tensor:
        """Where there is a token that is computed: bool (P * G, C)."""
        return self.mask & self.scored.repeat_interleave(len(self.mask) // len(self)).unsqueeze(1)

    @property
    def chosen(self) -> torch.Tensor:
        """Where there is a token that the policy chose, all but those of hints: bool (P * G, C)."""
        if self.hints is None:
            return self.mask
        columns = torch.arange(self.mask.shape[1], device=self.mask.device)
        given: torch.Tensor = self.hints.repeat_interleave(len(self.mask) // len(self)).unsqueeze(1)
        return self.mask & (columns >= given)

    @property
    def target_mask(self) -> torch.Tensor:
        """Where a target has a token: bool (P, T)."""
        lengths = torch.tensor([len(ids) for ids in self.targets or ()])
        return (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).to(self.mask.device)

    def branches(self) -> list[tuple[list[int], list[list[int]]]]:
        """Each prompt with what is scored behind it, completions and last the target; no tokens where nothing is."""
        found = []
        for position, used in enumerate(self.scored.tolist()):
            answers = list(self.completions[position]) if used else []
            answers += [] if self.targets is None else [self.targets[position]]
            found.append((self.prompts[position] if answers else [], answers))
        return found

    def parts(self, size: int) -> list["RolloutGroups"]:
        """The groups in order, so many at a time."""
        return [self.part(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def part(self, start: int, stop: int) -> "RolloutGroups":
        """Some groups."""
        size = len(self.mask) // len(self)
        rows = slice(start * size, stop * size)
        return replace(
            self,
            prompts=self.prompts[start:stop],
            completions=self.completions[start:stop],
            mask=self.mask[rows],
            advantages=self.advantages[rows],
            scored=self.scored[start:stop],
            reference=None if self.reference is None else self.reference[rows],
            hints=None if self.hints is None else self.hints[start:stop],
            targets=None if self.targets is None else self.targets[start:stop],
            paths=None if self.paths is None else replace(self.paths, index=self.paths.index[start:stop]),
        )


def completions_of(rollouts: Rollouts, rows: Sequence[Row], sid_tokens: Sequence[list[int]]) -> list[list[list[int]]]:
    """Token ids of each prompt's completions: the SID's, and the tail that the wording puts after it; none of no SID.

    Args:
        rollouts: The SIDs.
        rows: The prompts of the rollouts.
        sid_tokens: Token ids of each SID number.
    """
    found = zip(rollouts.sids.tolist(), rows, strict=True)
    return [[sid_tokens[sid] + row["tail"] if sid >= 0 else [] for sid in group] for group, row in found]


def make_groups(
    rows: Sequence[Row],
    completions: Sequence[Sequence[list[int]]],
    advantages: np.ndarray,
    scored: np.ndarray,
    tokens: int,
    device: torch.device,
    hints: np.ndarray | None = None,
    targets: Sequence[list[int]] | None = None,
) -> RolloutGroups:
    """The groups of a step on one device.

    Args:
        rows: P rows.
        completions: Token ids of the G completions of each.
        advantages: float32 (P, G), or (P, G, L) of each code.
        scored: bool (P,).
        tokens: Completion tokens behind hints of the step, over all devices.
        device: Device of the tensors.
        hints: int64 (P,), first tokens of the completions that were given; None: of none any.
        targets: Token ids of each target as a completion, where a term of the loss reads them.
    """
    lengths = torch.tensor([len(ids) for group in completions for ids in group])
    width = int(lengths.max())
    of_tokens = torch.from_numpy(advantages).flatten(0, 1)
    if of_tokens.ndim == 2:  # a tail has none
        of_tokens = torch.nn.functional.pad(of_tokens, (0, max(0, width - of_tokens.shape[1])))[:, :width]
    return RolloutGroups(
        prompts=[row["prompt"] for row in rows],
        completions=completions,
        mask=(torch.arange(width) < lengths.unsqueeze(1)).to(device),
        advantages=of_tokens.to(device),
        scored=torch.from_numpy(scored).to(device),
        tokens=tokens,
        may_rest=bool(scored.any()),
        hints=None if hints is None else torch.from_numpy(hints).to(device),
        targets=targets,
    )


@dataclass(frozen=True)
class Scores:
    """Scores of a slice's completions, with gradient; 0 where there is no token or the group is not scored.

    Attributes:
        logps: float32 (P * G, C), log-probabilities of tokens.
        entropies: float32 (P * G, C), entropies of the distributions that the tokens were drawn from, without gradient;
            None where they are not computed.
        targets: float32 (P, T), log-probabilities of the targets' tokens, of all groups; None where there are none.
        known: bool (P, G + 1, W), tokens of completions and, last, of the target before which a teacher has a
            distribution; None without a teacher, as both divergences.
        forward: float32 (P, G + 1, W), forward divergence from the teacher at each.
        reverse: float32 (P, G + 1, W), reverse divergence.
    """

    logps: torch.Tensor
    entropies: torch.Tensor | None
    targets: torch.Tensor | None = None
    known: torch.Tensor | None = None
    forward: torch.Tensor | None = None
    reverse: torch.Tensor | None = None


def completion_scores(model: Any, backbone: PreTrainedModel, groups: RolloutGroups) -> Scores:
    """Score the completions of the scored groups, and all targets, in one pass over each prompt.

    A target is one more branch behind its prompt, and costs nothing where it is among the completions.

    Args:
        model: The language model, or a distributed wrapper of it.
        backbone: The model itself, without wrapper.
        groups: The groups to score; with a teacher's distributions also targets.
    """
    found = [(prompt, answers) for prompt, answers in groups.branches() if answers]
    if not found:
        return _nothing(model, backbone, groups)
    layout, branches = _layout(groups), [answers for _, answers in found]
    logps, entropies, logits_of = shared_prefix_scores(model, backbone, [prompt for prompt, _ in found], branches)
    completions, targets = _laid_out(logps, layout, groups)
    drawn = None if entropies is None else _laid_out(entropies.detach(), layout, groups)[0]
    if groups.paths is None:
        return Scores(completions, drawn, targets)
    labels = torch.tensor([token for group in branches for ids in group for token in ids], device=logps.device)
    return Scores(completions, drawn, targets, *_from_teacher(logps, labels, logits_of, layout, groups.paths))


def _from_teacher(
    logps: torch.Tensor, labels: torch.Tensor, logits_of: LogitsOf, layout: torch.Tensor, paths: PathTargets
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where a teacher has a distribution, and both divergences from it, bool and float32 (P, G + 1, W).

    They are computed once for all tokens behind one prefix. The logarithm of the summed exponentials of all logits,
    which the fused head keeps to itself, is any token's logit less its log-probability.

    Args:
        logps: float32 (N,), log-probabilities of the tokens of the layout.
        labels: int64 (N,), these tokens.
        logits_of: Gives the logits of other tokens in place of them.
        layout: bool (P, G + 1, W), where there is a token.
        paths: The teacher's distributions.
    """
    width = layout.shape[2]
    index = torch.nn.functional.pad(paths.index, (0, max(0, width - paths.index.shape[2])), value=-1)[..., :width]
    known = layout & (index >= 0)
    of_tokens = index[layout]  # (N,)
    (positions,) = (of_tokens >= 0).nonzero(as_tuple=True)
    distinct, inverse = of_tokens[positions].unique(return_inverse=True)
    firsts = torch.full_like(distinct, len(logps)).scatter_reduce_(0, inverse, positions, "amin")
    tokens = paths.tokens[distinct]
    logits = logits_of(firsts, torch.cat([tokens.clamp(min=0), labels[firsts].unsqueeze(1)], 1))
    log_probs = logits[:, :-1] - logits[:, -1:] + logps[firsts].unsqueeze(1)
    forward, reverse = divergences(log_probs, tokens, paths.probabilities[distinct])
    empty = torch.zeros(layout.shape, device=logps.device)
    return known, empty.masked_scatter(known, forward[inverse]), empty.masked_scatter(known, reverse[inverse])


def _layout(groups: RolloutGroups) -> torch.Tensor:
    """Where there is a token that is computed, targets behind completions: bool (P, G + 1, W), or (P, G, W)."""
    completions: torch.Tensor = groups.scored_mask.unflatten(0, (len(groups), -1))
    if groups.targets is None:
        return completions
    targets = groups.target_mask.unsqueeze(1)
    width = max(completions.shape[2], targets.shape[2])
    parts = [torch.nn.functional.pad(part, (0, width - part.shape[2])) for part in (completions, targets)]
    return torch.cat(parts, 1)


def _laid_out(
    values: torch.Tensor, layout: torch.Tensor, groups: RolloutGroups
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values of the tokens of a layout, float32 (N,), as those of completions (P * G, C) and of targets (P, T)."""
    whole = torch.zeros(layout.shape, device=values.device).masked_scatter(layout, values)
    if groups.targets is None:
        return whole.flatten(0, 1), None
    longest = max(map(len, groups.targets))
    return whole[:, :-1, : groups.mask.shape[1]].flatten(0, 1), whole[:, -1, :longest]


def _nothing(model: Any, backbone: PreTrainedModel, groups: RolloutGroups) -> Scores:
    """Zeros that one can go backwards from, where no group is scored."""
    if groups.may_rest and model is backbone:
        smallest = min(backbone.parameters(), key=torch.numel)
        nothing = torch.zeros(groups.mask.shape, device=smallest.device) + 0.0 * smallest.sum().float()
        return Scores(nothing, nothing.detach())
    # A distributed model waits for every process: take part with a token of no weight.
    prompt, completion = groups.prompts[0][:1], groups.completions[0][0][:1]
    logps, entropies, _ = shared_prefix_scores(model, backbone, [prompt], [[completion]])
    nothing = logps.sum() * 0.0 + torch.zeros(groups.mask.shape, device=logps.device)
    return Scores(nothing, None if entropies is None else nothing.detach())


CLIP = 0.2  # ratios are clipped to 1 - CLIP and 1 + CLIP


@dataclass(frozen=True)
class LossTerms:
    """A loss and its terms.

    Attributes:
        loss: Scalar with gradient, divided by the slices of the step.
        ratio: float32 (R, C), of each token's probability to the one it was rolled out with; (R, 1) of a completion's.
        kl: float32 (R, C), each token's estimate of the divergence from the reference; None without a KL term.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    kl: torch.Tensor | None


def policy_loss(
    logps: torch.Tensor,
    groups: RolloutGroups,
    *,
    kind: str = "grpo",
    beta: float = 0.0,
    slices: float = 1,
    processes: int = 1,
) -> LossTerms:
    """The loss of one slice of a step.

    There is one update a rollout, so every ratio is 1 and clipping does not act; the ratio is there for its gradient.

    Args:
        logps: float32 (R, C), log-probabilities of the completions' tokens, 0 where there is none or the group is not
            scored.
        groups: Advantages, mask, hints and the reference's log-probabilities; a hint's tokens have no part in the loss.
        kind: "grpo" (mean over each completion, then over completions), "bnpo" (mean over the slice's tokens), "dapo"
            (mean over the step's tokens) or "gspo" (as grpo, with one ratio a completion).
        beta: Weight of the KL term.
        slices: Slices of the step on each device: how often the slice's completions (of bnpo, its tokens) would make up
            the device's.
        processes: Devices.
    """
    mask, advantages = groups.chosen.float(), groups.advantages.view(len(groups.mask), -1)
    lengths = mask.sum(-1).clamp(min=1.0)
    log_ratio = logps - logps.detach()
    if kind == "gspo":
        log_ratio = ((log_ratio * mask).sum(-1) / lengths).unsqueeze(-1)
    ratio = log_ratio.exp()
    kl = None
    if groups.reference is not None:
        kl = (groups.reference - logps).exp() - (groups.reference - logps) - 1
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    if kl is not None:
        losses = losses + beta * kl
    if kind == "dapo":
        return LossTerms((losses * mask).sum() / (groups.tokens / processes), ratio.detach(), kl)
    if kind == "bnpo":
        loss = (losses * mask).sum() / mask.sum().clamp(min=1.0)
    else:
        loss = ((losses * mask).sum(-1) / lengths).mean()
    return LossTerms(loss / slices, ratio.detach(), kl)


# Terms beside the policy's, of the same pass: likelihood of the target and of what of it was given as a hint, and
# divergences from a teacher.


def prompt_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of each row, then over the rows of each prompt; a row without a token counts as 0.

    Args:
        values: float32 (P, W), or (P, R, W).
        mask: bool, of the same shape, the tokens.

    Returns:
        float32 (P,).
    """
    weights = mask.float()
    means: torch.Tensor = (values * weights).sum(-1) / weights.sum(-1).clamp(min=1.0)
    return means.view(len(means), -1).mean(1)


def term_losses(scores: Scores, groups: RolloutGroups) -> dict[str, torch.Tensor]:
    """Terms of the loss of one slice beside the policy's, those that its scores allow, float32 (P,) of its prompts.

    Returns:
        `likelihood`: negative log-likelihood of the target, the mean over its tokens; `hints`: of the tokens that were
        given as a hint; `teacher`: forward divergence from the teacher, the mean over the target's codes; `forward_kl`,
        `reverse_kl`: divergences from it, the mean over each completion's codes, then over completions. A prompt
        without hint, or of which no teacher is queried, counts as 0.
    """
    if scores.targets is None:
        return {}
    columns = torch.arange(scores.targets.shape[1], device=scores.targets.device)
    given = groups.scored.new_zeros(len(groups), dtype=torch.long) if groups.hints is None else groups.hints
    found = {
        "likelihood": prompt_means(-scores.targets, groups.target_mask),
        "hints": prompt_means(-scores.targets, columns < given.unsqueeze(1)),
    }
    if scores.known is not None and scores.forward is not None and scores.reverse is not None:
        found["teacher"] = prompt_means(scores.forward[:, -1], scores.known[:, -1])
        found["forward_kl"] = prompt_means(scores.forward[:, :-1], scores.known[:, :-1])
        found["reverse_kl"] = prompt_means(scores.reverse[:, :-1], scores.known[:, :-1])
    return found
