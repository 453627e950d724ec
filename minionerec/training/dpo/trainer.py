"""Softmax preference optimisation on SIDs: the trainer of transformers with a loss of its own."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from minionerec.core.errors import MinioneRecError
from minionerec.training.dpo.loss import ratio_figures, softmax_preference_loss
from minionerec.training.dpo.negatives import NegativesOf
from minionerec.training.grpo.figures import Figures
from minionerec.training.grpo.rows import Row
from minionerec.training.shared_prefix import shared_prefix_logps
from minionerec.training.trainer import RankingEvaluation
from minionerec.training.validation import ValidationSet

# How far the first loss may be from log(1 + N): rounding, which half precision has more of.
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.05


def completion_sums(
    model: Any, backbone: PreTrainedModel, prompts: Sequence[list[int]], completions: Sequence[Sequence[list[int]]]
) -> torch.Tensor:
    """Log-probabilities of whole completions, with gradient: float32 (P, C).

    Args:
        model: Causal language model with TRL's fused head, or a distributed wrapper of one.
        backbone: The model itself, without wrapper.
        prompts: Token ids of P prompts.
        completions: Token ids of the C completions of each.
    """
    logps, _ = shared_prefix_logps(model, backbone, prompts, completions)
    lengths = torch.tensor([len(ids) for group in completions for ids in group], device=logps.device)
    mask = torch.arange(int(lengths.max()), device=logps.device) < lengths.unsqueeze(1)  # (P * C, T)
    return logps.new_zeros(mask.shape).masked_scatter(mask, logps).sum(1).view(len(prompts), -1)


class SidDpoTrainer(RankingEvaluation, Trainer):
    """S-DPO: targets are to gain probability over negatives, measured from where the frozen reference puts both.

    Args:
        model: The policy.
        args: The trainer's settings; batch sizes count prompts.
        rows: What is trained on; as many as fill whole steps.
        tokenizer: The model's tokenizer.
        reference: The reference; it is put on the trainer's device and never trained.
        negatives: SID numbers of each row's negatives.
        beta: Scale of log-ratios.
        sid_tokens: Token ids of each SID number.
        steps_per_epoch: Optimiser steps an epoch.
        validation: What is ranked at each validation; nothing if None.
        callbacks: Beside the trainer's own.
    """

    measures_loss = False

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        *,
        reference: PreTrainedModel,
        negatives: NegativesOf,
        beta: float,
        sid_tokens: Sequence[list[int]],
        steps_per_epoch: int,
        validation: ValidationSet | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ):
        for scored in (model, reference):
            disable_dropout_in_model(scored)
            add_fused_lm_head(scored)
        super().__init__(
            model=model,
            args=args,
            data_collator=lambda examples: {"rows": torch.tensor([example["row"] for example in examples])},
            train_dataset=Dataset.from_dict({"row": range(len(rows))}),
            eval_dataset=Dataset.from_dict({"row": [0]}),  # validation ranks rows of its own
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )
        self.rows, self.negatives, self.beta, self.sid_tokens = rows, negatives, beta, sid_tokens
        self.steps_per_epoch, self.validation = steps_per_epoch, validation
        frozen: Any = reference.eval().requires_grad_(False)
        self.reference: PreTrainedModel = frozen.to(args.device)
        self.figures = Figures(self.accelerator)
        self._checked = False

    def completions(self, places: Sequence[int], negatives: np.ndarray) -> list[list[list[int]]]:
        """Token ids of the 1 + N completions of rows, the target's first.

        Args:
            places: P rows.
            negatives: int64 (P, N), SID numbers.
        """
        rows = [self.rows[place] for place in places]
        return [
            [self.sid_tokens[sid] + row["tail"] for sid in (row["target"], *others)]
            for row, others in zip(rows, negatives.tolist(), strict=True)
        ]

    def log_ratios(self, model: Any, places: Sequence[int]) -> torch.Tensor:
        """Log-ratios of rows' targets and negatives in the epoch at work: float32 (P, 1 + N), the target's first."""
        epoch = self.state.global_step // self.steps_per_epoch
        prompts = [self.rows[place]["prompt"] for place in places]
        completions = self.completions(places, self.negatives(epoch)[places])
        with self.accelerator.autocast():
            policy = completion_sums(model, self.accelerator.unwrap_model(model), prompts, completions)
            with torch.no_grad():
                reference = completion_sums(self.reference, self.reference, prompts, completions)
        return policy - reference

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean loss of the prompts of one slice."""
        ratios = self.log_ratios(model, inputs["rows"].tolist())
        loss = softmax_preference_loss(ratios, self.beta).mean()
        if not self._checked and self.state.global_step == 0:
            self._check_start(loss.item(), ratios.shape[1])
        self._checked = True
        self.figures.add_tokens(ratio_figures(ratios))
        if self.accelerator.sync_gradients:  # the last slice
            self.figures.end_step()
        return loss

    def _check_start(self, loss: float, completions: int) -> None:
        """Check that before the first step the policy is the reference, for both are the same checkpoint.

        Raises:
            MinioneRecError: If the loss is not that of equal log-ratios.
        """
        wanted = math.log(completions)
        half = self.accelerator.mixed_precision != "no" or self.reference.dtype != torch.float32
        tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        if not abs(loss - wanted) <= tolerance:
            raise MinioneRecError(
                f"the first loss is {loss:.4f}, but policy and reference are one checkpoint, so it must be "
                f"log(1 + {completions - 1}) = {wanted:.4f} within {tolerance:g}: the model computes otherwise in "
                "training than in evaluation (dropout in its config.json, or other precision). Set its dropout to 0, "
                "or dtype to float32."
            )

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log what the steps since the last time told, beside the trainer's own numbers."""
        logs.update(self.figures.take())
        super().log(logs, start_time)
