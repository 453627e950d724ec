"""Rows that the processes of a launch tell one another: as many as each has, in the order of the processes."""

import torch
from torch import distributed

from minionerec.core.processes import world_size


def gathered(values: torch.Tensor) -> torch.Tensor:
    """What all processes have, one behind the other, the same in each of them; with one process what is given.

    Every process must call it as often as the others, with values of one dtype and shape but for the first dimension.

    Args:
        values: (R, ...), R differs from process to process and may be 0.
    """
    world = world_size()
    if world == 1:
        return values
    size = torch.tensor([len(values)], device=values.device)
    sizes = [torch.empty_like(size) for _ in range(world)]
    distributed.all_gather(sizes, size)
    counts = [int(each) for each in sizes]
    room = values.new_zeros((max(counts), *values.shape[1:]))
    room[: len(values)] = values
    found = [torch.empty_like(room) for _ in range(world)]
    distributed.all_gather(found, room)
    return torch.cat([each[:count] for each, count in zip(found, counts, strict=True)])


def mean_of_rows(gradient: torch.Tensor | None, table: torch.Tensor) -> torch.Tensor | None:
    """The mean over all processes of the sparse gradients of a table; with one process the gradient itself.

    Args:
        gradient: Of (N, ...), sparse in its first dimension; None where a process has none.
        table: The table.

    Returns:
        A sparse tensor, the same in each process; None where no process has a gradient.
    """
    world = world_size()
    if world == 1:
        return gradient
    if gradient is None:
        rows, values = torch.empty(0, dtype=torch.int64, device=table.device), table.new_empty((0, *table.shape[1:]))
    else:
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    rows, values = gathered(rows), gathered(values)
    if not len(rows):
        return None
    return torch.sparse_coo_tensor(rows[None], values / world, table.shape, check_invariants=False).coalesce()
