"""Training objectives of a catalogue model: likelihood, exact or sampled, or a reward.

Rewards need no rollouts here, for the model's distribution over the whole catalogue is at hand at every position:

- `expected`: the loss is minus the reward that the model expects, E[r] = sum over SIDs of p(s) r(s). With a reward of
  1 for the target that is minus the target's probability (the rule reward of MiniOneRec; Williams, 1992, without
  sampling);
- `grpo`: the G most probable SIDs are a group, rewarded by rule and rank (`minionerec.training.rewards`); each
  one's
  advantage is its reward less the group's mean, over the group's standard deviation (Shao et al., "DeepSeekMath",
  2024, section 4.1), and the loss is minus the mean of advantage times log-probability: one step a group, whose
  probability ratio is 1.

Both add `beta` times the exact KL divergence from the starting checkpoint.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import EvalLoopOutput

from minionerec.core.processes import process_rank, world_size
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.sampled import Sample
from minionerec.models.nn.context import HIDDEN_SHARE, hidden
from minionerec.models.nn.rows import ColumnSubset, top_scores
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.row_adamw import RowAdamW
from minionerec.training.memory import Share
from minionerec.training.rewards import Rollouts, group_advantages, ranking
from minionerec.training.trainer import RankingEvaluation, StepInParts


class Sampler:
    """Draws the SIDs of a step: targets of its windows, and SIDs drawn uniformly, with replacement.

    The processes of a launch, whose generators begin alike, draw the uniform SIDs of all of them, and each takes its
    own.

    Args:
        counts: int64 (N,), how often each SID is a training target.
        negatives: SIDs drawn uniformly each step.

    Attributes:
        shares: float64 (N,), share of each SID in the training targets.
    """

    def __init__(self, counts: np.ndarray, negatives: int):
        self.negatives = negatives
        self.shares = torch.from_numpy(counts / counts.sum())

    def draw(self, labels: torch.Tensor) -> Sample:
        """The SIDs of a step, by the numbers from 1 of its targets, int64 (B, T), 0 or less where there is none."""
        self.shares = self.shares.to(labels.device)
        negatives = torch.randint(len(self.shares), (world_size(), self.negatives))[process_rank()]
        columns = ColumnSubset(torch.cat([labels[labels > 0] - 1, negatives.to(labels.device)]).unique())
        return columns, self._log_shares(labels, columns)

    def _log_shares(self, labels: torch.Tensor, columns: ColumnSubset) -> torch.Tensor:
        """For each window the logarithm of the probability that each SID is there: float32 (B, C)."""
        row, slot = (labels > 0).nonzero(as_tuple=True)
        own, numbers = labels[row, slot] - 1, columns.numbers
        counts = torch.bincount(row, minlength=len(labels)).double()[:, None]  # (B, 1), labels of each window
        total = max(1, len(own))
        shares = self.shares[numbers].clamp(max=1 - 1e-9)  # (C,), probability that another window's label is the SID
        not_drawn = self.negatives * float(np.log1p(-1 / max(len(self.shares), 2)))
        absent = (total - counts) * torch.log1p(-shares) + not_drawn  # (B, C), log-probability of not being there
        log_shares = torch.log(-torch.expm1(absent))
        log_shares[row, columns.find(own)] = 0.0
        return log_shares.float()


def expected_loss(log_probs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Minus the reward that the model expects at each position, where the target alone has one: float32 (P,).

    `log_probs` are of every SID, float32 (P, N); `wanted` are the targets' SID numbers, int64 (P,).
    """
    return -log_probs.gather(1, wanted[:, None])[:, 0].exp()


def grpo_loss(log_probs: torch.Tensor, wanted: torch.Tensor, generations: int, table: SidTable) -> torch.Tensor:
    """Minus the mean of advantage times log-probability in each position's group: float32 (P,); see `expected_loss`."""
    best, sids = top_scores(log_probs.detach(), generations)
    rollouts = Rollouts(sids.cpu().numpy(), wanted.cpu().numpy(), best.cpu().numpy(), [None] * len(wanted), table)
    advantages = torch.from_numpy(group_advantages(ranking(rollouts))).to(log_probs.device)
    return -(advantages * log_probs.gather(1, sids)).mean(1)


def sampled_tables(model: CatalogueModel) -> dict[str, torch.nn.Parameter]:
    """Name to parameter of the tables of which a sampled loss takes rows, in the order of the model."""
    none = torch.empty(0, dtype=torch.int64, device=model.device)
    tables = {id(table) for table, _ in model.row_tables(none, none)}
    return {name: each for name, each in model.named_parameters() if id(each) in tables}


def keep_from_torch(model: CatalogueModel) -> None:
    """Exclude tensors with a row for each SID from torch's synchronisation of processes at every step.

    The gradients of the tables are averaged by `RowAdamW`; buffers (text, counts) are the same everywhere and stay so.
    """
    names = [*sampled_tables(model), *(name for name, _ in model.named_buffers())]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


class CatalogueTrainer(RankingEvaluation, StepInParts, Trainer):
    """The trainer of transformers on histories, with validation by ranking and, besides likelihood, rewards.

    The SIDs of a step of the sampled likelihood are drawn once, however many parts it is computed in.

    Attributes:
        objective: "likelihood", "expected" or "grpo".
        generations: Group size of "grpo".
        table: The SIDs of the catalogue.
        beta: Weight of the KL divergence from the reference.
        reference: The starting model, where `beta` is above 0.
        sampler: Draws the SIDs of a step of the sampled likelihood; None where all are scored.
    """

    smaller = "Give --loss sampled, a corpus with a shorter max_history, or a smaller model."
    objective: str = "likelihood"
    generations: int = 16
    table: SidTable
    beta: float = 0.0
    reference: CatalogueModel | None = None
    sampler: Sampler | None = None

    def create_optimizer(self, model: Any = None) -> Any:
        """The trainer's own; of the sampled loss one that leaves rows alone that a step does not read."""
        if self.sampler is None or self.optimizer is not None:
            return super().create_optimizer(model)
        self.optimizer_cls_and_kwargs = (
            RowAdamW,
            {
                "lr": self.args.learning_rate,
                "betas": (self.args.adam_beta1, self.args.adam_beta2),
                "eps": self.args.adam_epsilon,
                "tables": sampled_tables(cast(CatalogueModel, self.model)).values(),
            },
        )
        optimizer = cast(RowAdamW, super().create_optimizer())
        self.add_callback(SettleRows(optimizer))
        return optimizer

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The objective's loss; in evaluation the likelihood's."""
        inputs = {**inputs, "leave_out": model.training}
        if self.sampler is not None and model.training and "sample" not in inputs:
            inputs["sample"] = self._sampled(inputs)
        if model.training and "contexts" in inputs:  # before the reference is queried, which is given the same
            inputs["contexts"] = hidden(inputs["contexts"], inputs["labels"])
        if model.training and "events" in inputs:  # so that the model also works without them
            events = inputs["events"]
            inputs["events"] = events * (torch.rand(len(events), 1, device=events.device) >= HIDDEN_SHARE)
        if self.objective == "likelihood" or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        log_probs = model(**inputs, distribution=True).logits
        labelled = inputs["labels"] > 0
        wanted, weights = inputs["labels"][labelled] - 1, inputs["weights"][labelled]
        if self.objective == "expected":
            loss = expected_loss(log_probs, wanted)
        else:
            loss = grpo_loss(log_probs, wanted, self.generations, self.table)
        if self.reference is not None:
            with torch.no_grad():
                before = self.reference(**inputs, distribution=True).logits
            loss = loss + self.beta * (log_probs.exp() * (log_probs - before)).sum(1)
        loss = (weights * loss).sum()
        if num_items_in_batch is None:
            return loss / max(1, len(wanted))
        return loss * self.accelerator.num_processes / num_items_in_batch

    def share_of(self, inputs: dict[str, Any]) -> Share:
        """The windows of a step, with the SIDs that are drawn for all of them."""
        share = super().share_of(inputs)
        if self.sampler is not None and cast(torch.nn.Module, self.model).training:
            share.make = partial(_with_sample, share.make, self._sampled(inputs))
        return share

    def forget_step(self) -> None:
        """Drop the gradients of rows that the optimiser has taken over, of a step that is computed again."""
        if self.sampler is not None:
            self._rows().zero_grad()

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """See `RankingEvaluation`; where SIDs are very many their vectors are computed once for all rows."""
        model = cast(CatalogueModel, self.accelerator.unwrap_model(self.model))
        if not model.by_blocks:
            return super().evaluation_loop(*args, **kwargs)
        model.freeze()
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            for tower in model.each_tower():
                tower.thaw()

    def _sampled(self, inputs: dict[str, Any]) -> Sample:
        """The SIDs of this step, whose rows are brought up to date."""
        histories = inputs["histories"]
        sample = cast(Sampler, self.sampler).draw(inputs["labels"])
        columns = sample[0].numbers
        rows = torch.cat([columns, histories[histories > 0] - 1]).unique()
        model = cast(CatalogueModel, self.accelerator.unwrap_model(self.model))
        self._rows().refresh(model.row_tables(rows, columns))
        return sample

    def _rows(self) -> RowAdamW:
        """The optimiser, without accelerate's wrapper."""
        return cast(RowAdamW, getattr(self.optimizer, "optimizer", self.optimizer))


def _with_sample(make: Callable[[slice], dict[str, Any]], sample: Sample, part: slice) -> dict[str, Any]:
    """Some windows of a step, with their part of its sample."""
    found, (columns, log_shares) = make(part), sample
    return {**found, "sample": (columns, log_shares[found["rows"]])}


class SettleRows(TrainerCallback):
    """Brings all rows of an optimiser up to date before weights are evaluated or written."""

    def __init__(self, optimizer: RowAdamW):
        self.optimizer = optimizer

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End of a step; `control` holds what follows it."""
        if control.should_evaluate or control.should_save or control.should_training_stop:
            self.optimizer.settle()
