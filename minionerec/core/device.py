"""A process and its device: the memory that it may take, work in parts that it holds, and sums in a fixed order."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import psutil
import torch

from minionerec.core.log import get_logger
from minionerec.core.processes import local_world_size

logger = get_logger(__name__)

# How much memory a process may still take, and what it holds.


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


def fitting_count(each: int, device: torch.device, most: int, memory: int | None = None) -> int:
    """How many of something fit into half of a memory: a power of two, so that little noise does not change it.

    Args:
        each: Bytes that one takes.
        device: Where.
        most: More would not be faster; a power of two.
        memory: Bytes; what is free on the device, if None.

    Returns:
        From 1 to `most`.
    """
    memory = free_memory(device) if memory is None else memory
    return int(2 ** int(np.log2(min(max(1, memory // 2 // each), most))))


Result = TypeVar("Result")


def fitting_parts(
    compute: Callable[[Sequence[int]], Result], batches: Iterable[Sequence[int]], unit: str = "prompts"
) -> Iterator[tuple[Sequence[int], Result]]:
    """Compute something for batches, in parts of them once memory has ended with a whole one.

    Args:
        compute: Computes the results of some positions, which are the same up to rounding in any company.
        batches: Positions of each batch.
        unit: What the positions are those of, in a warning.

    Yields:
        Positions that were computed together, and their results, in the order of the batches.
    """
    most = 0  # at a time; 0: as many as a batch has
    for batch in batches:
        done = 0
        while done < len(batch):
            part = batch[done : done + (most or len(batch))]
            try:
                found = compute(part)
            except RuntimeError as error:
                if len(part) == 1 or not memory_ended(error):
                    raise
            else:
                yield part, found
                done += len(part)
                continue
            # Here nothing holds the tensors of the failed computation any more.
            most = (len(part) + 1) // 2
            free_device()
            logger.warning("Memory ended: from here on %d %s are computed at a time.", most, unit)


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
