"""A process and its device: the memory that it may take, and sums in a fixed order."""

import os
from typing import Any

import psutil
import torch

from minionerec.core.processes import local_world_size

# How much memory a process may still take.


def free_memory(device: torch.device | None = None) -> int:
    """Bytes that this process may still take on a device; on a CPU its share among the processes of the machine.

    Args:
        device: The device; the current GPU where there is one, else the CPU, if None.
    """
    kind = device.type if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for later
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return int(psutil.virtual_memory().available) // local_world_size()


def memory_ended(error: Exception) -> bool:
    """Whether an error says that a device's memory did not suffice, so that less at a time may."""
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)


def free_device() -> None:
    """Collect what a failed computation left, and return the memory that torch keeps for later to the device."""
    from accelerate.utils.memory import clear_device_cache

    clear_device_cache(garbage_collection=True)


# Sums in a fixed order on a GPU, for runs that are to be repeated bit for bit.

VARIABLE = "MINIONEREC_DETERMINISTIC"


def fix_order() -> None:
    """Make torch sum in a fixed order on GPUs, if the environment sets MINIONEREC_DETERMINISTIC=1.

    A GPU adds the values of threads for one address (`index_add`, `scatter_add`) in order of arrival, so that
    two equal runs agree to rounding alone; a fixed order takes longer. What has no such order is an error of torch's.
    On a CPU the order is fixed anyway.
    """
    if os.environ.get(VARIABLE) != "1" or not torch.cuda.is_available():
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False  # nothing reads what was not written
