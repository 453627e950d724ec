"""What all trainers are told alike."""

import sys
from pathlib import Path
from typing import Any

import torch

from minionerec.core.processes import trainer_processes
from minionerec.training.config import LanguageRunConfig, RunConfig
from minionerec.training.plan import StepPlan
from minionerec.training.trackers import tracker_arguments


def trainer_arguments(config: RunConfig, plan: StepPlan, select_by: str, folder: Path) -> dict[str, Any]:
    """Arguments of every trainer: optimisation, validation, the best checkpoint, seeds, quiet.

    Args:
        config: The stage's settings.
        plan: The arithmetic of batches.
        select_by: Best checkpoint: lowest "loss" or highest "ndcg".
        folder: Where the trainer keeps its checkpoints.
    """
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "gradient_accumulation_steps": plan.accumulation,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": {"constant": "constant_with_warmup"}.get(config.schedule, config.schedule),
        "warmup_steps": config.warmup,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "bf16": config.mixed_bf16,
        **trainer_processes(),
        "activation_checkpointing": isinstance(config, LanguageRunConfig) and config.gradient_checkpointing,
        "eval_strategy": "steps",
        "eval_steps": plan.eval_steps,
        "save_strategy": "steps",
        "save_steps": plan.eval_steps,
        "save_total_limit": 2,  # with 1, the trainer ends by deleting the last checkpoint where another is the best
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss" if select_by == "loss" else "eval_ndcg@10",
        "greater_is_better": select_by == "ndcg",
        "restore_callback_states_from_checkpoint": True,
        "seed": config.seed,
        "data_seed": config.seed,
        "disable_tqdm": not sys.stderr.isatty(),
        "logging_nan_inf_filter": False,  # it would write the mean of earlier losses for one that is no number
        **tracker_arguments(config),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
