"""How examples become optimiser steps: which of them an epoch sees, and the arithmetic of batches."""

import math
from dataclasses import dataclass

import numpy as np

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.processes import world_size
from minionerec.training.config import RefittableConfig, RunConfig

logger = get_logger(__name__)


def accumulation_steps(total: int, per_device: int, processes: int, what: str) -> int:
    """Micro-batches an optimiser step.

    Args:
        total: Examples (or prompts) an optimiser step, over all devices.
        per_device: Those a device computes at a time.
        processes: Number of devices.
        what: The two settings' names, for the message.

    Raises:
        ConfigError: If they do not divide.
    """
    at_once = per_device * processes
    if total < 1 or per_device < 1 or total % at_once:
        raise ConfigError(
            f"{what}: {total} is no multiple of {per_device} x {processes} device(s) = {at_once}; change one of them."
        )
    return total // at_once


@dataclass(frozen=True)
class StepPlan:
    """How examples become optimiser steps.

    Attributes:
        accumulation: Micro-batches an optimiser step.
        steps_per_epoch: Optimiser steps an epoch; a last incomplete one counts.
        eval_steps: Optimiser steps between two validations.
        per_device: Examples (or prompts) a device computes at a time.
        total: Those of an optimiser step, over all devices.
    """

    accumulation: int
    steps_per_epoch: int
    eval_steps: int
    per_device: int
    total: int


def plan_steps(config: RunConfig, count: int, total: int, per_device: int, what: str, noun: str) -> StepPlan:
    """Derive and log the arithmetic of batches, for the number of processes of this launch.

    Args:
        config: The stage's settings.
        count: Examples an epoch.
        total: Examples an optimiser step, over all devices.
        per_device: Examples a device computes at a time.
        what: The names of these two settings.
        noun: What an example is called.

    Raises:
        ConfigError: If the settings do not divide.
    """
    processes = world_size()
    accumulation = accumulation_steps(total, per_device, processes, what)
    steps = math.ceil(count / total)
    plan = StepPlan(accumulation, steps, max(1, math.ceil(steps / config.evals_per_epoch)), per_device, total)
    kept = "a checkpoint" if isinstance(config, RefittableConfig) and config.refit else "validation"
    logger.info(
        "A step is %d %s = %d a device x %d device(s) x %d; %d steps an epoch, %g epochs, %s every %d steps.",
        total,
        noun,
        per_device,
        processes,
        accumulation,
        steps,
        config.epochs,
        kept,
        plan.eval_steps,
    )
    return plan


def choose_examples(count: int, weight: float, seed: int) -> np.ndarray:
    """Which of a task's examples an epoch sees, for a task weight: each floor(weight) times, and a random rest.

    Returns:
        int64 indices, ascending.

    Example:
        >>> choose_examples(4, 1.0, 0).tolist(), len(choose_examples(4, 2.5, 0))
        ([0, 1, 2, 3], 10)
    """
    whole = np.tile(np.arange(count), int(weight))
    rest = round((weight - int(weight)) * count)
    drawn = np.random.default_rng(seed).permutation(count)[:rest]
    return np.sort(np.concatenate([whole, drawn]))
