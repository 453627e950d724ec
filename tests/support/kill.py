"""Stages in child processes that end by SIGKILL at a chosen moment: after an optimiser step, or between two writes.

run = partial(stage_in_child, run_sft, folder)
totals = run(config_of_the_whole_run)                   # lives: {"step": 12, "write": 57}
for point in random_points(totals, 20, seed=0):
    run(config, point)                                  # dies there
    run(config)                                         # goes on to the end
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from support.processes import trainer_context
from support.quick import quicken

WRITING = os.O_WRONLY | os.O_RDWR
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")


class Point(NamedTuple):
    """A moment to die: as the optimiser has made its n-th "step", or before the n-th "write" below the folder."""

    kind: str
    number: int


def random_points(totals: Mapping[str, int], count: int, seed: int) -> list[Point]:
    """Moments drawn evenly from all steps and all writes of a whole run, half of each, none twice."""
    rng = np.random.default_rng(seed)
    points = []
    for kind, share in (("step", count // 2), ("write", count - count // 2)):
        points += [Point(kind, int(n)) for n in rng.permutation(totals[kind])[:share] + 1]
    return points


def stage_in_child(run: Callable[[Any], Any], folder: Path, config: Any, die: Point | None = None) -> dict[str, int]:
    """Run a stage in a process of its own, and let it die at a moment if one is given.

    Args:
        run: A stage's function, found by its name in its module.
        folder: Writes below it count.
        config: What the stage gets.
        die: When the process kills itself.

    Returns:
        How many steps and writes there were; empty where the process died as it should.
    """
    context = trainer_context()
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(run, folder, config, die, send))
    child.start()
    send.close()
    try:
        totals = receive.recv()
    except EOFError:
        totals = {}
    child.join()
    wanted = 0 if die is None else -signal.SIGKILL
    assert child.exitcode == wanted, f"exit status {child.exitcode}, expected {wanted}; died at {die}"
    return totals


def _child(run: Callable[[Any], Any], folder: Path, config: Any, die: Point | None, answer: Any) -> None:
    quicken()
    counts = counted(folder, die)
    run(config)
    answer.send(dict(counts))


def counted(folder: Path, die: Point | None, kill: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Count this process's steps and writes from now on, and let it die at a moment if one is given.

    Args:
        folder: Writes below it count.
        die: When the process kills itself.
        kill: What it does just before.

    Returns:
        The counts, which go on.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counts = {"step": 0, "write": 0}

    def count(kind: str) -> None:
        counts[kind] += 1
        if die == (kind, counts[kind]):
            kill()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, words: tuple[Any, ...]) -> None:
        writes = event in CHANGES or (event == "open" and isinstance(words[2], int) and words[2] & WRITING)
        # Relative names come from deletions of whole folders, which go from folder to folder.
        if writes and (str(words[0]).startswith(f"{folder}/") or (event == "os.remove" and words[-1] != -1)):
            count("write")

    register_optimizer_step_post_hook(lambda *_: count("step"))
    sys.addaudithook(watch)
    return counts
