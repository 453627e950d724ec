"""Machine, checkout and process memory for run records: cheap queries that never raise.

torch is queried only if a stage has imported it, because importing it is slow.
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

import psutil
from annotated_types import Ge, Lt

from minionerec.core.urls import without_query

_ROOT = Path(__file__).resolve().parents[2]
_GIT_TIMEOUT = 10  # seconds


Count = Annotated[int, Ge(0), Lt(2**63)]


@dataclass(frozen=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: Name that the driver reports.
        memory_bytes: Total memory.
    """

    name: str
    memory_bytes: Count


@dataclass(frozen=True)
class Machine:
    """The machine of a run.

    Attributes:
        processor: Name of the processor, or of its architecture if the system reports no name.
        cores: Logical cores that the process may use.
        threads: Threads of a computation.
        memory_bytes: Total memory; None if the system does not report it.
        gpus: Accelerators that the process sees, if it has used one of them; empty for a run on the CPU.
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
    return Machine(_processor(), cores, threads, psutil.virtual_memory().total, gpus)


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


def _torch() -> Any:
    """The module torch if it has been imported, else None."""
    module = sys.modules.get("torch")
    return module if hasattr(module, "get_num_threads") else None


def _used_cuda() -> Any:
    """`torch.cuda` if this process has computed with it, else None."""
    torch = _torch()
    return torch.cuda if torch and torch.cuda.is_initialized() else None


def peak_gpu_memory() -> int | None:
    """Peak bytes that torch has allocated on one GPU in this process; None without a GPU."""
    cuda = _used_cuda()
    return max(map(cuda.max_memory_allocated, range(cuda.device_count()))) if cuda else None


def peak_memory() -> int | None:
    """Peak resident bytes of this process, or of a child process that has ended if that is more.

    The system counts from the start of the process, so several stages in one process report the largest so far.
    """
    if os.name != "posix":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return max(_peak_of_program() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, children)


def _peak_of_program() -> int | None:
    """Peak of this program alone (Linux); `getrusage` includes the program that the process ran before `exec`."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("VmHWM:")), "")
    except OSError:
        return None
    size = line.split()[1:2]
    return int(size[0]) * 1024 if size and size[0].isdecimal() else None


def command_words() -> tuple[str, ...]:
    """The command line without queries of URLs and the program's folder, valid as UTF-8."""
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

    None for an installed package, even inside another repository, and if git reports no commit.
    """
    if not (_ROOT / ".git").exists():
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        completed = subprocess.run(
            words,
            cwd=_ROOT,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() or None


# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process reuse freed memory instead of returning it to the system and allocating it again.

    By default glibc maps every large block again, and the first write to each page is a page fault. A training step on
    a CPU allocates the same large tensors again and again, and the faults can cost more than its arithmetic.

    Returns:
        Whether the C library accepted the setting; False if it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))
