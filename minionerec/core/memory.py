"""How the process gets its memory from the system."""

import ctypes
import sys

# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process use freed memory again instead of giving it back to the system and asking anew.

    By default glibc maps every large block freshly, and each of its pages is a fault when first written. A training
    step on a CPU allocates the same large tensors again and again, and those faults can cost more than its arithmetic.

    Returns:
        Whether the C library took the setting; False where it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))
