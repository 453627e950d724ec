"""SIDs that targets are to be preferred to: all of a row different, and never the target's own.

What a row gets follows from seed, epoch and its place alone, so that a resumed run has it too, on any
number of devices.
"""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from minionerec.core.processes import process_rank, wait_for_everyone, world_size

NegativesOf = Callable[[int], np.ndarray]
"""Takes an epoch, from 0; gives SID numbers int64 (R, N)."""
Search = Callable[[Sequence[Sequence[int]], int], np.ndarray]
"""Takes P prompts and a width K; gives the K best SID numbers of each, int64 (P, K), the best first."""


def draw_negatives(targets: np.ndarray, weights: np.ndarray, count: int, key: Sequence[int]) -> np.ndarray:
    """Draw SIDs without replacement, each draw in proportion to the weights of those that are left.

    A draw that hits the target or an earlier one is made again. Each has a stream of its own, of which a row takes the
    number at its place, so that no row depends on another.

    Args:
        targets: int64 (R,), SID number of each row's target.
        weights: float (S,), above 0, of each SID.
        count: SIDs a row (N), fewer than S.
        key: Seed and epoch.

    Returns:
        int64 (R, N).
    """
    bounds = np.cumsum(weights)
    taken = np.empty((len(targets), 1 + count), dtype=np.int64)
    taken[:, 0] = targets
    for slot in range(1, 1 + count):
        left = np.arange(len(targets))
        attempt = 0
        while len(left):
            numbers = np.random.default_rng([*key, slot, attempt]).random(len(targets))[left]
            taken[left, slot] = np.searchsorted(bounds[:-1], numbers * bounds[-1], side="right")
            left = left[(taken[left, :slot] == taken[left, slot, None]).any(1)]
            attempt += 1
    return taken[:, 1:]


def drawn(targets: np.ndarray, weights: np.ndarray, count: int, seed: int) -> NegativesOf:
    """Negatives that are drawn anew in every epoch; the arguments are those of `draw_negatives`."""

    @lru_cache(maxsize=1)
    def of_epoch(epoch: int) -> np.ndarray:
        return draw_negatives(targets, weights, count, (seed, epoch))

    return of_epoch


def beams(
    prompts: Sequence[Sequence[int]], targets: np.ndarray, count: int, search: Search, folder: Path
) -> NegativesOf:
    """The best SIDs of a search but for the target's, the same in every epoch.

    They are searched once and kept with the run; each process of a launch searches its share.

    Args:
        prompts: Token ids of each of R rows.
        targets: int64 (R,), SID number of each row's target.
        count: SIDs a row (N).
        search: The search of the model that training begins with.
        folder: Where they are kept.
    """
    world = world_size()
    files = [folder / f"beams-{rank}-of-{world}.npy" for rank in range(world)]
    own = slice(process_rank(), None, world)
    shape = (len(targets[own]), count)
    if not _is_whole(files[process_rank()], shape):
        found = search(prompts[own], count + 1)  # (R', N + 1)
        missed = found != targets[own, None]
        missed[missed.all(1), -1] = False  # the target is not among them: leave out the last
        _write(files[process_rank()], found[missed].reshape(shape))
    wait_for_everyone()
    negatives = np.empty((len(targets), count), dtype=np.int64)
    for rank, file in enumerate(files):
        negatives[rank::world] = np.load(file, allow_pickle=False)
    return lambda epoch: negatives


def _is_whole(file: Path, shape: tuple[int, int]) -> bool:
    try:
        return bool(np.load(file, allow_pickle=False).shape == shape)
    except (OSError, ValueError, EOFError):
        return False


def _write(file: Path, negatives: np.ndarray) -> None:
    fresh = file.with_suffix(".fresh.npy")
    np.save(fresh, negatives, allow_pickle=False)
    os.replace(fresh, file)
