"""The processes of a distributed launch (torchrun, accelerate), with GPUs or without."""

import os
from contextlib import AbstractContextManager
from typing import Any

import torch


def process_arguments() -> dict[str, Any]:
    """What trainers are told about the processes of a launch; nothing where there is a GPU.

    Without a GPU, accelerate looks for the other processes only if it is told to use the CPU. It does not start
    DeepSpeed then; so DeepSpeed is told the backend instead, and finds the CPU by itself.

    Returns:
        `use_cpu` and `ddp_backend`, as `TrainingArguments` takes them.
    """
    if torch.cuda.is_available():
        return {}
    told: dict[str, Any] = {"use_cpu": os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") != "true"}
    return told | {"ddp_backend": "gloo"} if "LOCAL_RANK" in os.environ else told


def main_process_first() -> AbstractContextManager[None]:
    """A block that the first process goes through while the others wait for it.

    It joins the processes into a group, which the trainer then finds ready.
    """
    from accelerate import PartialState

    told = process_arguments()
    return PartialState(cpu=told.get("use_cpu", False), backend=told.get("ddp_backend")).main_process_first()
