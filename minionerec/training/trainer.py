"""What trainers share: validation by ranking at every evaluation, and what they log."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerState
from transformers.trainer_utils import EvalLoopOutput

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.records import NO_CLOCK, Clock
from minionerec.training.config import RunConfig
from minionerec.training.lora import plain_model
from minionerec.training.refit import StopAt
from minionerec.training.validation import ValidationSet, rank_validation

logger = get_logger(__name__)

# `train_loss` is the mean since the process began, so it differs where a run was cut off.
_VARYING = ("runtime", "per_second", "step_time", "flos", "num_tokens", "mfu", "train_loss")


class RankingEvaluation(Trainer):
    """A mix-in for trainers: every evaluation also ranks a validation set with the evaluator's decoder.

    Attributes:
        validation: What is ranked, set before training; nothing if None.
        measures_loss: Whether evaluations also measure the trainer's own loss.
        clock: Who counts the seconds of validation.
    """

    validation: ValidationSet | None = None
    measures_loss = True
    clock: Clock = NO_CLOCK

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """Train, or take the best weights (of a refit the last) of a run that had ended but for writing them down.

        The trainer's own `train` makes one more step from a checkpoint at which training had stopped.
        """
        if isinstance(resume_from_checkpoint, str):
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / "trainer_state.json"))
            ends = [call.step for call in self.callback_handler.callbacks if isinstance(call, StopAt)]
            if _has_ended(state, self.args) or any(state.global_step >= end for end in ends):
                self.state = state
                self._load_from_checkpoint(state.best_model_checkpoint or resume_from_checkpoint)
                return None
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run the trainer's own evaluation (where it measures a loss) and add the ranking metrics to it."""
        with self.clock.phase("validate"):
            return self._evaluated(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

    def _evaluated(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None,
        ignore_keys: list[str] | None,
        metric_key_prefix: str,
    ) -> EvalLoopOutput:
        if self.measures_loss:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        else:
            nothing = np.zeros(0)
            output = EvalLoopOutput(nothing, None, metrics={}, num_samples=len(dataloader.dataset))
        if self.validation is not None:
            model = plain_model(self.accelerator.unwrap_model(self.model))
            ranked = rank_validation(model, self.validation, self.accelerator)
            added = {f"{metric_key_prefix}_{name}": value for name, value in ranked.items()}
            output = output._replace(metrics={**(output.metrics or {}), **added})
        return output


def _has_ended(state: TrainerState, args: TrainingArguments) -> bool:
    """Whether a run has made all steps that it is asked for, or stopped early."""
    callbacks: Any = state.stateful_callbacks
    early = callbacks.get("EarlyStoppingCallback")
    if early and early["attributes"]["early_stopping_patience_counter"] >= early["args"]["early_stopping_patience"]:
        return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return (state.epoch or 0) >= args.num_train_epochs


def diverged(args: TrainingArguments, state: TrainerState, sign: str) -> ConfigError:
    """The error of a training whose weights are no numbers any more, or about to be none; `sign` says what shows it."""
    return ConfigError(
        f"training diverged by step {state.global_step}: {sign}. Lower learning_rate (it is {args.learning_rate:g}), "
        f"raise warmup (it is {args.warmup_steps:g}), and begin again with --restart true."
    )


class StopWhereDiverged(TrainerCallback):
    """Ends a run whose loss is no number with an error, instead of training on for nothing.

    Raises:
        ConfigError: When such a loss is logged.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Look at the newest figures."""
        for name in ("loss", "eval_loss"):
            value = (logs or {}).get(name)
            if value is not None and not math.isfinite(float(value)):
                raise diverged(args, state, f"its {name} is {float(value)}")


class LogLines(TrainerCallback):
    """One log line for each validation, and for every tenth of the training."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the newest figures."""
        if not state.is_world_process_zero or not logs:
            return
        names = ("loss", "eval_loss", "eval_ndcg@10", "eval_hr@10", "reward", "kl", "zero_variance", "hit@g")
        shown = [f"{name} {float(logs[name]):.4f}" for name in names if logs.get(name) is not None]
        if shown and ("eval_runtime" in logs or state.global_step % max(1, state.max_steps // 10) == 0):
            logger.info(
                "step %d/%d  epoch %.2f  %s", state.global_step, state.max_steps, state.epoch or 0, "  ".join(shown)
            )


def replace_printer(trainer: Trainer) -> None:
    """Put `LogLines` in the place of the trainer's own printing of dictionaries."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(LogLines())


def early_stopping(config: RunConfig) -> list[TrainerCallback]:
    """The callback that ends a run after `patience` validations without a better one, where it is asked for."""
    return [EarlyStoppingCallback(config.patience)] if config.patience else []


def training_log(history: Sequence[Mapping[str, Any]]) -> str:
    """The trainer's log as JSON text, without what differs between two runs of the same thing."""
    rows = [{key: value for key, value in row.items() if not any(word in key for word in _VARYING)} for row in history]
    rows = [row for row in rows if row.keys() > {"step", "epoch"}]
    return json.dumps(rows, indent=1, sort_keys=True) + "\n"
