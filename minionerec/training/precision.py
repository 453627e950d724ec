"""What the weights' dtype does to small steps, and where bfloat16 is computed."""

import torch
from transformers import Trainer

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.training.config import RunConfig

logger = get_logger(__name__)


def check_deepspeed_precision(config: RunConfig) -> None:
    """Check that a launch of DeepSpeed can compute as it is asked to.

    Raises:
        ConfigError: If it is to compute in bfloat16 and there is no GPU, which transformers does not do.
    """
    if config.mixed_bf16 and not torch.cuda.is_available():
        raise ConfigError(
            "mixed_bf16 is true, but DeepSpeed computes in bfloat16 on GPUs alone. Give --mixed_bf16 false --dtype "
            "float32, or launch without DeepSpeed."
        )


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
