"""Free memory of a device, batches that shrink when memory runs out, and deterministic sums on GPUs."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import psutil
import torch

from minionerec.core.log import get_logger
from minionerec.core.processes import local_world_size

logger = get_logger(__name__)


def free_memory(device: torch.device | None = None) -> int:
    """Bytes that this process may still allocate on a device.

    On a CPU, the free memory is divided by the number of processes of the launch on this machine.

    Args:
        device: The device; if None, the current GPU if there is one, else the CPU.
    """
    kind = device.type if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return int(psutil.virtual_memory().available) // local_world_size()


def memory_ended(error: Exception) -> bool:
    """Whether an error is an out-of-memory error of a device, so that smaller batches may help."""
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)


def free_device() -> None:
    """Collect garbage and empty torch's memory cache, after a failed computation."""
    from accelerate.utils.memory import clear_device_cache

    clear_device_cache(garbage_collection=True)


def fitting_count(item_bytes: int, device: torch.device, limit: int, memory: int | None = None) -> int:
    """Number of items that fit into half of the memory, rounded down to a power of two so that noise rarely changes it.

    Args:
        item_bytes: Bytes of one item.
        device: Device whose memory is used.
        limit: Largest count; a power of two.
        memory: Available bytes; the free memory of the device if None.

    Returns:
        A count from 1 to `limit`.
    """
    memory = free_memory(device) if memory is None else memory
    return int(2 ** int(np.log2(min(max(1, memory // 2 // item_bytes), limit))))


Result = TypeVar("Result")


def fitting_parts(
    compute: Callable[[Sequence[int]], Result], batches: Iterable[Sequence[int]], unit: str = "prompts"
) -> Iterator[tuple[Sequence[int], Result]]:
    """Compute a function of batches, in smaller parts once a batch has run out of memory.

    Args:
        compute: Function of positions; the result of a position does not depend on the others, up to rounding.
        batches: Positions of each batch.
        unit: Plural noun for the positions in the warning.

    Yields:
        Positions that were computed together, and their result, in the order of the batches.
    """
    limit = 0  # positions at a time; 0: the whole batch
    for batch in batches:
        done = 0
        while done < len(batch):
            part = batch[done : done + (limit or len(batch))]
            try:
                result = compute(part)
            except RuntimeError as error:
                if len(part) == 1 or not memory_ended(error):
                    raise
            else:
                yield part, result
                done += len(part)
                continue
            # Outside the except block nothing references the tensors of the failed computation.
            limit = (len(part) + 1) // 2
            free_device()
            logger.warning("Out of memory: continuing with batches of %d %s.", limit, unit)


VARIABLE = "MINIONEREC_DETERMINISTIC"


def fix_order() -> None:
    """Make torch sum in a fixed order on GPUs, if the environment sets MINIONEREC_DETERMINISTIC=1.

    By default, a GPU adds the values of threads for one address (`index_add`, `scatter_add`) in order of arrival, so
    equal runs agree only up to rounding. A fixed order is slower, and torch raises an error for operations without
    one. On a CPU the order is always fixed.
    """
    if os.environ.get(VARIABLE) != "1" or not torch.cuda.is_available():
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False  # uninitialised memory is never read
