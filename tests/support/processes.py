"""A stage in several processes of one machine, as a launcher would start it, on CPUs with gloo."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.preloaded import python
from support.quick import quicken


def trainer_context() -> Any:
    """Children forked from a server that has imported the trainers once, and has done nothing else.

    It is itself forked from the server of imported packages.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_executable(python())
    context.set_forkserver_preload(["minionerec.pipeline.sft", "minionerec.pipeline.grpo"])
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
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true")
    quicken()
    run(config)


def keeping_weights(run: Callable[[Any], Any], config: Any) -> None:
    """Run a training stage, and keep the weights that this process has in the end as `OUTPUT.rankN`."""
    from transformers import Trainer

    train = Trainer.train

    def kept(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = train(self, *args, **kwargs)
        weights = self.accelerator.unwrap_model(self.model).state_dict()
        torch.save(weights, f"{config.output}.rank{os.environ['RANK']}")
        return done

    Trainer.train = kept  # type: ignore[method-assign]
    run(config)


def rows_apart(folder: str) -> None:
    """Train a table of which each process has gradients of rows of its own, and write what this process holds."""
    from pathlib import Path

    from minionerec.core.processes import process_rank, wait_for_everyone
    from minionerec.models.nn.rows import take_rows
    from minionerec.training.catalogue.row_adamw import RowAdamW, gathered, mean_of_rows

    wait_for_everyone()
    rank = process_rank()
    table = torch.nn.Parameter(torch.arange(36.0).view(12, 3) / 7)
    gradient = torch.sparse_coo_tensor(torch.tensor([[3, 3, 5 + rank]]), torch.ones(3, 3) * (1 + rank), (12, 3))
    means = [mean_of_rows(gradient, table), mean_of_rows(gradient if rank else None, table), mean_of_rows(None, table)]
    kept = {
        "gathered": [gathered(torch.arange(2 * rank)), gathered(torch.full((2, 2), float(rank)))],
        "means": [None if each is None else each.to_dense() for each in means],
    }
    optimizer = RowAdamW([table], lr=1e-2, weight_decay=0.1, tables=[table])
    chance = torch.Generator().manual_seed(rank)
    for _ in range(60):
        rows = torch.randint(12, (2,), generator=chance)
        optimizer.refresh([(table, rows)])
        (take_rows(table, rows) * torch.randn(2, 3, generator=chance)).sum().backward()
        optimizer.step()
    optimizer.settle()
    state = {name: value for name, value in optimizer.state[table].items() if isinstance(value, torch.Tensor)}
    torch.save({**kept, "table": table.detach(), **state}, Path(folder) / f"rank{rank}")
