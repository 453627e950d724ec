"""What the weights' dtype does to small steps."""

import torch
from transformers import Trainer

from minionerec.core.log import get_logger
from minionerec.training.config import RunConfig

logger = get_logger(__name__)


def warn_of_rounding(trainer: Trainer, config: RunConfig) -> None:
    """Warn where the weights have no float32 copy, and so round most of a small step to nothing."""
    dtype = trainer.accelerator.unwrap_model(trainer.model).dtype
    if dtype != torch.float32 and not trainer.is_deepspeed_enabled:
        logger.warning(
            "The weights are %s without a float32 copy: at learning rate %g most of a step rounds to nothing. "
            "Give --dtype float32 (with --mixed_bf16 true to compute in bfloat16), or launch with ZeRO-2.",
            dtype,
            config.learning_rate,
        )
