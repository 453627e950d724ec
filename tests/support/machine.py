"""Commands in processes of their own on a machine that fails: no space, no leave, a clock that jumps."""

import ctypes
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.processes import trainer_context
from support.small_shop import Outcome, command

OVERRIDES = (1, 2, 3)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER of capabilities(7)
Machine = Mapping[str, Any]


def on_machine(folder: Path, words: tuple[str, ...], **machine: Any) -> Outcome:
    """How a command ends in a process of its own.

    Args:
        folder: Where it runs.
        words: Its words.
        machine: `largest_file` in bytes, `plain_user` (permissions of files hold for root, too), `clock` (seconds that
            each look at it adds).
    """
    return started(folder, words, **machine)()


def started(folder: Path, words: tuple[str, ...], **machine: Any) -> Callable[[], Outcome]:
    """The same, begun and not waited for; what comes back waits."""
    context = trainer_context()
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(folder, words, machine, send))
    child.start()
    send.close()

    def wait() -> Outcome:
        try:
            found: Outcome = receive.recv()
        finally:
            child.join(120)
        return found

    return wait


def _child(folder: Path, words: tuple[str, ...], machine: Machine, answer: Any) -> None:
    if "largest_file" in machine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (machine["largest_file"], resource.RLIM_INFINITY))
    if machine.get("plain_user"):
        _obey_permissions()
    if "clock" in machine:
        _jump(machine["clock"])
    answer.send(command(folder, *words))


def _obey_permissions() -> None:
    """Give up the rights by which root reads and writes whatever it likes."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, held) == 0
    for number in OVERRIDES:
        for kind in range(3):
            held[kind] &= ~(1 << number)
    assert libc.capset(header, held) == 0


def _jump(step: float) -> None:
    """Let every look at the wall clock be a jump."""
    now, looks = time.time, [0]

    def jumped() -> float:
        looks[0] += 1
        return now() + step * looks[0]

    time.time = jumped
    time.time_ns = lambda: int(jumped() * 1e9)


def run_words(given: tuple[Path, tuple[str, ...]]) -> None:
    """Run a command, which must end well; for `support.kill`."""
    done = command(*[given[0], *given[1]])
    assert done.status == 0, done
