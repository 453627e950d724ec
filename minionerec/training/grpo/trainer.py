"""One step of GRPO: roll out, reward, compare, query the reference, and the loss of each slice.

Everything that a step needs is given when the trainer is made. What one part finds reaches the next as an argument:
`make_step` is the way from rows to what the loss takes, `slice_loss` the way from there to the loss.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig

from minionerec.core.errors import ArtefactError
from minionerec.core.log import get_logger
from minionerec.training.distillation import SoftTargets
from minionerec.training.grpo.figures import (
    Figures,
    completion_figures,
    reward_figures,
    rollout_figures,
    token_figures,
)
from minionerec.training.grpo.loss import (
    RolloutGroups,
    Scores,
    completion_scores,
    completions_of,
    make_groups,
    policy_loss,
)
from minionerec.training.grpo.rollouts import RollOut, Row
from minionerec.training.grpo.trl_adapter import StepTrainer, share_of_groups
from minionerec.training.rewards import (
    WeightedRewards,
    group_advantages,
    has_signal,
)
from minionerec.training.sampling import EpochSampler
from minionerec.training.trainer import RankingEvaluation, ValidationSet

logger = get_logger(__name__)

REFERENCE_FILE = "reference.safetensors"
_PROMPTS_AT_ONCE = 64  # prompts scored by the reference at a time, where it has no limit
TeacherQuery = Callable[[Sequence[Row], Sequence[list[int]]], SoftTargets]
"""Takes P rows and the token ids of their targets; gives a teacher's next codes for these tokens."""


@dataclass(frozen=True)
class Objective:
    """The training objective: rewards, loss and advantages.

    Attributes:
        rewards: Rewards with weights.
        loss: "grpo", "bnpo", "dapo" or "gspo", see `policy_loss`.
        keep_zero_variance: Whether groups without advantage are computed.
        terms: Terms of the loss with weights: policy (`policy_loss`), likelihood (`Scores.targets`).
        scaled: Whether advantages are divided by their group's standard deviation.
    """

    rewards: WeightedRewards
    loss: str = "grpo"
    keep_zero_variance: bool = False
    terms: Mapping[str, float] = field(default_factory=lambda: {"policy": 1.0})
    scaled: bool = True


class SidGrpoTrainer(RankingEvaluation, StepTrainer):
    """GRPO on ranked SIDs, with shared-prefix scoring and validation by ranking.

    Args:
        model: The policy.
        args: TRL's settings.
        rows: Training prompts.
        tokenizer: The model's tokenizer.
        roll_out: Answers prompts.
        objective: Rewards, advantages and loss.
        sid_tokens: Token ids of each SID number.
        validation: Prompts ranked at each validation; none if None.
        teacher: Queried in each step, for the term likelihood; none if None.
        callbacks: In addition to the trainer's own.
        order: The order of rows, by blocks; that of `sample_steps` if None.
    """

    measures_loss = False
    objective: Objective

    def __init__(
        self,
        model: PreTrainedModel,
        args: GRPOConfig,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        *,
        roll_out: RollOut,
        objective: Objective,
        sid_tokens: Sequence[list[int]],
        validation: ValidationSet | None = None,
        teacher: TeacherQuery | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        order: EpochSampler | None = None,
    ):
        super().__init__(model, args, rows, tokenizer, callbacks, order)
        self.roll_out, self.objective, self.sid_tokens = roll_out, objective, sid_tokens
        self.validation, self.teacher = validation, teacher
        self.by_process = order is not None or objective.loss == "bnpo"  # a mean over the tokens of a device
        self.figures = Figures(self.accelerator)
        self.ends = {tokenizer.pad_token_id, *self.eos_token_ids}

    def make_step(self, rows: Sequence[Sequence[Row]]) -> list[RolloutGroups]:
        """Roll out the rows of a step, reward and compare them, and query the reference for groups that are scored."""
        every = [row for part in rows for row in part]
        with self.accelerator.autocast(), self.as_written():
            rollouts = self.roll_out(self.accelerator.unwrap_model(self.model), every)
        found = self.objective.rewards.values(rollouts)  # (F, P, G)
        rewards = self.objective.rewards.total(found)  # (P, G)
        signal = has_signal(rewards)  # (P,)
        completions = completions_of(rollouts, every, self.sid_tokens)
        terms, targets = self.objective.terms, None
        if "likelihood" in terms:
            targets = [self.sid_tokens[row["target"]] + row["tail"] for row in every]
        groups = make_groups(
            every,
            completions,
            advantages=group_advantages(rewards, self.objective.scaled),
            scored=(signal | self.objective.keep_zero_variance) & ("policy" in terms),
            tokens=int(self._sum(sum(len(ids) for group in completions for ids in group))),
            device=self.accelerator.device,
            targets=targets,
            soft=None if self.teacher is None or targets is None else self.teacher(every, targets),
        )
        self.figures.add(rollout_figures(rollouts, self.accelerator))
        self.figures.add(reward_figures(self.objective.rewards, found, self.accelerator))
        self.figures.add(completion_figures(completions, self.ends, self.accelerator))
        self.figures.add({"zero_variance": 1 - self._sum(signal.mean()) / self.accelerator.num_processes})
        if self.args.beta:
            groups = replace(groups, reference=self.reference_logps(groups, len(rows)))
        return groups.parts(len(rows[0]))

    def _sum(self, value: float) -> float:
        """A number summed over all devices."""
        total: torch.Tensor = self.accelerator.reduce(torch.tensor(float(value), device=self.accelerator.device), "sum")
        return total.item()

    def reference_logps(self, groups: RolloutGroups, slices: int) -> torch.Tensor:
        """Log-probabilities of a step's completions under the reference model, float32 (P * G, C).

        Without gradient there is room for more prompts at a time than in the policy pass; with a limit they are
        computed in parts too.
        """

        @torch.no_grad()
        def scored(parts: Iterable[dict[str, Any]], _count: int) -> torch.Tensor:
            return torch.cat([self.score(self.ref_model, part["groups"]).logps for part in parts])

        groups = replace(groups, targets=None, soft=None)
        if self.limit is not None:
            return self.in_parts(share_of_groups(groups), scored, gradients=False)
        parts = groups.parts(max(_PROMPTS_AT_ONCE, len(groups) // slices))
        return scored(({"groups": part} for part in parts), len(parts))

    def score(self, model: Any, groups: RolloutGroups) -> Scores:
        """Log-probabilities and entropies of the completions, see `completion_scores`."""
        with self.accelerator.autocast():
            return completion_scores(model, self.accelerator.unwrap_model(model), groups)

    def forget_step(self) -> None:
        """Drop the figures of a step that is computed again."""
        self.figures.forget_step()

    def slice_loss(self, model: Any, groups: RolloutGroups, whole: RolloutGroups | None) -> torch.Tensor:
        """The loss of one slice; where a group is not scored, both log-probabilities are 0, and so are loss and KL."""
        scores, weights = self.score(model, groups), self.objective.terms
        slices: float = self.args.gradient_accumulation_steps
        of_policy = slices
        if whole is not None:
            slices = of_policy = len(whole) / len(groups)
            if self.objective.loss == "bnpo":  # a mean over tokens
                of_policy = whole.own_tokens / groups.own_tokens
        loss, ratio, kl = policy_loss(
            scores.logps,
            groups,
            kind=self.objective.loss,
            beta=self.args.beta,
            slices=of_policy,
            processes=self.accelerator.num_processes,
        )
        self.figures.add_tokens(token_figures(ratio, kl, scores.entropies, groups))
        loss = loss * weights.get("policy", 0.0)
        if scores.targets is not None:
            loss = loss + weights["likelihood"] * scores.targets.mean() / slices
            self.figures.add_tokens({"loss/likelihood": scores.targets.detach()})
        if self.accelerator.sync_gradients:  # the last slice
            self.figures.end_step()
        return loss

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log the figures of the steps since the last log, besides the trainer's own."""
        logs.update(self.figures.take())
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the reference model too, which syncing changes during a run; before the checkpoint counts as whole."""
        super().save_model(output_dir, _internal_call)
        if self.args.sync_ref_model and output_dir is not None and self.args.should_save:
            save_model(self.accelerator.unwrap_model(self.ref_model), str(Path(output_dir) / REFERENCE_FILE))

    def set_reference(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Measure the KL term against these weights."""
        self.accelerator.unwrap_model(self.ref_model).load_state_dict(weights)

    def restore_reference(self, checkpoint: str) -> None:
        """Load the reference model of the checkpoint that training resumes from.

        Raises:
            ArtefactError: If the checkpoint has none.
        """
        path = Path(checkpoint) / REFERENCE_FILE
        if not path.is_file():
            raise ArtefactError(
                f"{path}: the reference of the unfinished run is missing. Delete its folder to begin again."
            )
        reference = self.accelerator.unwrap_model(self.ref_model)
        load_model(reference, path, device=str(reference.device))
