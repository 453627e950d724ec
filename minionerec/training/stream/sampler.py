"""The order in which a trainer's processes read rows from disk."""

from collections.abc import Iterable, Iterator

import numpy as np
from torch.utils.data import Sampler

from minionerec.data.order import block_order


class BlockSampler(Sampler[int]):
    """Rows of an epoch by blocks (`minionerec.data.order.block_order`), so that a resumed run has the same order.

    Accelerate deals out the batches of a sampler to the processes in turn. So the shares of the processes are laid
    into each other, a batch each, and what a process gets is its own share, of which it alone reads the blocks:

        share of process 0   a b c d e f g         given   a b c | p q r | d e f | s t u | g v
        share of process 1   p q r s t u v

    What is left at the end, at most a batch a process, is dealt out as it comes.

    Args:
        count: Number of rows.
        buffer: Rows that are shuffled together.
        processes: Processes of the launch.
        size: Rows of a process's batch.
        seed: Seed of the order.

    Attributes:
        epoch: The epoch whose order is given, from 0.
    """

    def __init__(self, count: int, buffer: int, processes: int, size: int, seed: int):
        self.count, self.buffer, self.processes, self.size, self.seed = count, buffer, processes, size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch, from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """All rows."""
        return self.count

    def __iter__(self) -> Iterator[int]:
        """The rows of an epoch."""
        shares = [
            _batches(block_order(self.count, self.buffer, self.seed, self.epoch, process, self.processes), self.size)
            for process in range(self.processes)
        ]
        whole = self.count // self.processes // self.size
        for _ in range(whole):
            for share in shares:
                yield from next(share)
        for share in shares:
            for batch in share:
                yield from batch


def _batches(chunks: Iterable[np.ndarray], size: int) -> Iterator[list[int]]:
    """The same rows in batches of one size, and what is left."""
    held = np.zeros(0, np.int64)
    for chunk in chunks:
        held = np.concatenate([held, chunk])
        whole = len(held) // size * size
        for start in range(0, whole, size):
            yield held[start : start + size].tolist()
        held = held[whole:]
    yield held.tolist()
