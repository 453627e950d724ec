"""Orders of examples on disk: blocks shuffled, and examples shuffled within a few blocks.

    examples on disk 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11        blocks of three
    blocks drawn     9 10 11 | 3 4 5 || 0 1 2 | 6 7 8       a buffer of two blocks
    examples drawn   4 10 9 3 11 5 || 7 0 2 8 1 6

A reader needs a buffer of examples at a time, and reads each part of the disk once per epoch.
"""

from collections.abc import Iterable, Iterator

import numpy as np

MOST_SHUFFLED = 1 << 22
"""As many examples are all shuffled together."""
SHUFFLED = 65_536
"""As many of more examples are."""


def default_buffer(count: int) -> int:
    """Examples that are shuffled together of so many; 0 for all."""
    return SHUFFLED if count > MOST_SHUFFLED else 0


def block_order(
    count: int, buffer: int, seed: int, epoch: int, process: int = 0, processes: int = 1
) -> Iterator[np.ndarray]:
    """One process's share of an epoch: examples, a buffer at a time, in an order that follows from the arguments alone.

    The blocks are distributed in one order for all, of which each process takes a part of equal length (up to one
    example): no example is in two parts, and none is missing.

    Args:
        count: Number of examples.
        buffer: Examples that are shuffled together; a block is a sixteenth of it.
        seed: Seed of the order.
        epoch: Which epoch, from 0.
        process: Whose part, from 0.
        processes: How many parts there are.

    Yields:
        int64, at most about `buffer` examples.

    Example:
        >>> sorted(np.concatenate(list(block_order(100, 32, 0, 0, 1, 2))).tolist()) == list(range(100))
        False
        >>> parts = [np.concatenate(list(block_order(100, 32, 0, 0, process, 2))) for process in range(2)]
        >>> sorted(np.concatenate(parts).tolist()) == list(range(100))
        True
    """
    size = max(1, buffer // 16)
    blocks = -(-count // size)
    order = np.random.default_rng([seed, epoch]).permutation(blocks)
    lengths = np.full(blocks, size, dtype=np.int64)
    lengths[order == blocks - 1] = count - (blocks - 1) * size
    ends = np.cumsum(lengths)
    low, high = process * count // processes, (process + 1) * count // processes
    for number, start in enumerate(range(low, high, buffer)):
        positions = np.arange(start, min(start + buffer, high))
        block = np.searchsorted(ends, positions, side="right")
        rows = order[block] * size + positions - (ends[block] - lengths[block])
        yield np.random.default_rng([seed, epoch, process, number]).permutation(rows)


def in_batches(chunks: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The examples of chunks, int64, in the same order in batches of one size; last what is left, if any."""
    held = np.zeros(0, dtype=np.int64)
    for chunk in chunks:
        held = np.concatenate([held, chunk])
        whole = len(held) // size * size
        yield from held[:whole].reshape(-1, size)
        held = held[whole:]
    if len(held):
        yield held
