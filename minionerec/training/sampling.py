"""The order in which training examples are seen: from the seed and the epoch, the same for any number of processes."""

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import BatchSampler, Sampler

from minionerec.data.order import block_order, in_batches

NO_LABEL = -100
"""The label without a loss, as transformers and torch know it."""


class EpochSampler(Sampler[int]):
    """Examples in an order that follows from the epoch, so that a resumed run has it too.

    Attributes:
        count: Number of examples of an epoch.
        order: From an epoch, counted from 0, to its examples.
        epoch: The epoch whose order is given, from 0.
    """

    def __init__(self, count: int, order: Callable[[int], Iterator[int]]):
        self.count, self.order, self.epoch = count, order, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch, from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Examples of an epoch."""
        return self.count

    def __iter__(self) -> Iterator[int]:
        """The examples of the epoch."""
        return self.order(self.epoch)


def shuffled_examples(count: int, seed: int) -> EpochSampler:
    """All examples in a random order, another one in each epoch, the same for any number of processes."""

    def order(epoch: int) -> Iterator[int]:
        yield from torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist()

    return EpochSampler(count, order)


class DealtBatches(Sampler[list[int]]):
    """Batches for accelerate, which deals them out to the processes in turn: as many for each, empty ones at the end.

        five examples, two a batch, for two processes    0 1 | 2 3 || 4 | (none)

    Accelerate would fill up its own with examples of the first batches, which would then count twice.
    """

    def __init__(self, sampler: EpochSampler, size: int, processes: int):
        self.sampler, self.size, self.processes = sampler, size, processes

    def __len__(self) -> int:
        """Batches of all processes, the empty ones among them."""
        return -(-len(self.sampler) // (self.size * self.processes)) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch."""
        batches = BatchSampler(self.sampler, self.size, drop_last=False)
        yield from batches
        yield from ([] for _ in range(len(self) - len(batches)))


def sample_blocks(count: int, buffer: int, processes: int, size: int, seed: int) -> EpochSampler:
    """Examples by blocks (`minionerec.data.order.block_order`), `buffer` of which are shuffled together.

    Accelerate deals out the batches of a sampler to the processes in turn. So the shares of the processes are
    interleaved, a batch of `size` each, and what a process gets is its own share, of which it alone reads the blocks:

        share of process 0   a b c d e f g         given   a b c | p q r | d e f | s t u | g v
        share of process 1   p q r s t u v

    What is left at the end, at most a batch a process, is dealt out in order.
    """

    def order(epoch: int) -> Iterator[int]:
        shares = [
            in_batches(block_order(count, buffer, seed, epoch, process, processes), size)
            for process in range(processes)
        ]
        for _ in range(count // processes // size):
            for share in shares:
                yield from next(share).tolist()
        for share in shares:
            for batch in share:
                yield from batch.tolist()

    return EpochSampler(count, order)
