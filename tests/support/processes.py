"""A stage in several processes of one machine, as a launcher would start it, on CPUs with gloo."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch


def trainer_context() -> Any:
    """Children forked from a server that has imported the trainers once, and has done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["minionerec.training.sft", "minionerec.training.grpo.stage"])
    return context


def stage_in_processes(run: Callable[[Any], Any], config: Any, world: int) -> None:
    """Run a stage in `world` processes that know of each other; every one must end well.

    Args:
        run: A stage's function, found by its name in its module.
        config: What each of them gets.
        world: Number of processes.
    """
    if torch.cuda.is_available() and torch.cuda.device_count() < world:
        pytest.skip(f"wants {world} GPUs, or none: MINIONEREC_TEST_DEVICE")
    context = trainer_context()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = [context.Process(target=_child, args=(run, config, rank, world, port)) for rank in range(world)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * world


def _child(run: Callable[[Any], Any], config: Any, rank: int, world: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU="true",
    )
    run(config)
