"""How much memory a process may still take."""

import psutil
import torch

from minionerec.core.processes import local_world_size


def free_memory(device: torch.device | None = None) -> int:
    """Bytes that this process may still take on a device; on a CPU its share among the processes of the machine.

    Args:
        device: The device; the current GPU where there is one, else the CPU, if None.
    """
    kind = device.type if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available) // local_world_size()
