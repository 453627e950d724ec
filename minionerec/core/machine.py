"""Machine, checkout and process memory for run records: cheap to query, never an error.

torch is queried only where a stage has loaded it, so that stages without it stay quick.
"""

import ctypes
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Lt

from minionerec.core.urls import without_query

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 10  # seconds for git


Count = Annotated[int, Ge(0), Lt(2**63)]


@dataclass(frozen=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: As its driver reports it.
        memory_bytes: All of its memory.
    """

    name: str
    memory_bytes: Count


@dataclass(frozen=True)
class Machine:
    """The machine of a run.

    Attributes:
        processor: Name of the processor; that of its architecture where the system reports none.
        cores: Logical cores that the process may use.
        threads: Threads that it computes with.
        memory_bytes: All memory of the machine; None where the system does not report it.
        gpus: Accelerators that the process sees and has used one of; empty for a run on the CPU.
    """

    processor: str
    cores: Count
    threads: Count
    memory_bytes: Count | None
    gpus: tuple[Gpu, ...]


def this_machine() -> Machine:
    """The current machine; accelerators are listed once something has been computed on one."""
    cores = usable_cores()
    torch = _torch()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    threads = torch.get_num_threads() if torch else int(limit) if limit.isdecimal() and int(limit) else cores
    cuda = _used_cuda()
    cards = map(cuda.get_device_properties, range(cuda.device_count())) if cuda else ()
    gpus = tuple(Gpu(card.name, card.total_memory) for card in cards)
    return Machine(_processor(), cores, threads, memory(), gpus)


def usable_cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            named = next((line for line in file if line.startswith("model name")), "")
    except OSError:
        named = ""
    return named.partition(":")[2].strip() or platform.processor() or platform.machine() or "unknown"


def memory() -> int | None:
    """Bytes of memory of this machine; None where it is not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _torch() -> Any:
    """Torch where it is loaded already, else None."""
    found = sys.modules.get("torch")
    return found if hasattr(found, "get_num_threads") else None


def _used_cuda() -> Any:
    """`torch.cuda` where this process has computed with it, else None."""
    torch = _torch()
    return torch.cuda if torch and torch.cuda.is_initialized() else None


def peak_gpu_memory() -> int | None:
    """Most bytes that this process has had allocated on one GPU, as torch counts them; None without."""
    cuda = _used_cuda()
    return max(map(cuda.max_memory_allocated, range(cuda.device_count()))) if cuda else None


def peak_memory() -> int | None:
    """Most bytes that this process has had resident, or one that it started and that has ended if that is more.

    The system counts from the start of the process, so several stages in one process report the largest so far.
    """
    if os.name != "posix":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return max(_own_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, children)


def _own_peak() -> int | None:
    """Linux: the peak of this program alone; `getrusage` includes that of the program that became it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("VmHWM:")), "")
    except OSError:
        return None
    size = line.split()[1:2]
    return int(size[0]) * 1024 if size and size[0].isdecimal() else None


def command_words() -> tuple[str, ...]:
    """The command line as it was typed, without queries of URLs and the program's folder, readable as UTF-8."""
    program, *words = getattr(sys, "argv", None) or [""]
    name = Path(program).name
    if name == "__main__.py":
        first = ["python", "-m", Path(program).parent.name]
    elif program.startswith("minionerec "):  # the command gives itself this name
        first = program.split(" ")
    else:
        first = ["python", program] if name.endswith(".py") else [name or "python"]
    return tuple(without_query(word.encode("utf-8", "backslashreplace").decode()) for word in [*first, *words])


@cache
def source_commit() -> str | None:
    """Commit of the checkout that this package runs from, 40 hex digits, followed by "-dirty" where it was changed.

    None for an installed package, whatever repository its environment is in, and where git reports none.
    """
    if not (_ROOT / ".git").exists():
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            words,
            cwd=_ROOT,
            env={**plain, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process reuse freed memory instead of returning it to the system and allocating it again.

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
