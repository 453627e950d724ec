"""Windows of a corpus that is too large for memory: read shard by shard, kept as arrays on disk, counted by parts."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch.utils.data import Dataset

from minionerec.core.errors import DataError
from minionerec.data.chains import Chains
from minionerec.data.corpus import Corpus
from minionerec.data.moments import UNKNOWN, row_moments
from minionerec.data.rows import SplitRows
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import flat_windows, padded_windows
from minionerec.data.transitions import Transitions, count_transitions_in_parts
from minionerec.data.windows import recency_of
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.windows import Windows

_PART = 1 << 20  # windows that are counted at a time
_TYPES = {"histories": np.int32, "labels": np.int32, "weights": np.float32, "moments": np.int8}


class WindowRows(Dataset[dict[str, np.ndarray]]):
    """Windows as rows for a trainer; what lies on disk is read when it is asked for.

    Args:
        windows: The windows.
    """

    def __init__(self, windows: Windows):
        self.windows = windows

    def __len__(self) -> int:
        """How many windows."""
        return len(self.windows["histories"])

    def __getitem__(self, place: int) -> dict[str, np.ndarray]:
        """One window."""
        return {name: values[place] for name, values in self.windows.items()}


def collate_arrays(rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """As `minionerec.training.catalogue.windows.collate`, of arrays."""
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    width = max(1, int((columns["histories"] > 0).sum(1).max()))
    found = {name: torch.from_numpy(values[:, :width]) for name, values in columns.items()}
    return {name: values if name == "weights" else values.long() for name, values in found.items()}


def rows_held_out(stored: StoredCorpus) -> Corpus:
    """The same corpus without its rows but those of validation."""
    valid = stored.rows("valid", np.arange(stored.sizes["valid"]))
    nothing = SplitRows.none(valid.times is not None)
    return Corpus(stored.items, nothing, valid, nothing, stored.split, stored.max_history, stored.counts)


def chain_windows(chains: Chains, max_history: int, together: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The training rows of sequences as windows, those of `minionerec.data.windows.user_windows` in another order.

    Args:
        chains: Sequences.
        max_history: Most items that a history holds, H.
        together: Whether items of one time are one step.

    Returns:
        Histories and labels, int32 (W, H), items from 1, 0 padding on the right and where there is no loss; and the
        number of each label's row, int32 (W, H), -1 where there is none.
    """
    found = padded_windows(flat_windows(chains, max_history, together, {"train": 0}), max_history, "right")
    return found.histories, found.targets, found.rows


def read_windows(folder: Path) -> Windows:
    """What `write_windows` wrote: as of `sid_windows`, with `histories` and `labels` int32, in the files' order."""
    files = {name: folder / f"{name}.npy" for name in _TYPES}
    return {name: np.load(file, mmap_mode="r") for name, file in files.items() if file.is_file()}


def write_windows(stored: StoredCorpus, table: SidTable, recency: float, folder: Path, moments: bool = False) -> None:
    """Write training windows over SID numbers from 1, as arrays.

    Args:
        stored: The corpus.
        table: SIDs of its items.
        recency: See `minionerec.training.catalogue.windows.sid_windows`.
        folder: Where the arrays are written; it is made.
        moments: Whether to say of each target at which moment it came.

    Raises:
        DataError: If no training row has a history.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = stored.max_history
    count = sum(len(chain_windows(part, width, stored.together)[0]) for part in stored.chains())
    if not count:
        raise DataError(f"{stored.place}: no training row has a history, so there is nothing to train on.")
    made: dict[str, np.ndarray] = {
        name: open_memmap(folder / f"{name}.npy", "w+", kind, (count, width))
        for name, kind in _TYPES.items()
        if moments or name != "moments"
    }
    number = np.concatenate([[0], table.sid_numbers + 1]).astype(np.int32)
    ages = recency_of(stored.split, stored.sizes["train"], recency)
    begin, weight, labelled = 0, 0.0, 0
    for part in stored.chains():
        histories, labels, rows = chain_windows(part, width, stored.together)
        here, known = slice(begin, begin + len(histories)), rows >= 0
        weights = np.where(known, ages(rows), np.float32(1))
        made["histories"][here], made["weights"][here] = number[histories], weights
        made["labels"][here] = np.where(known, number[labels], -100)
        if moments:
            made["moments"][here] = _moments(part, rows, stored.together)
        begin, weight, labelled = (
            here.stop,
            weight + float(weights[known].sum(dtype=np.float64)),
            labelled + known.sum(),
        )
    mean = np.float32(weight / max(1, labelled))
    for some in parts_of(count):
        made["weights"][some] /= mean
    for values in made.values():
        cast(np.memmap, values).flush()


def _moments(chains: Chains, rows: np.ndarray, together: bool) -> np.ndarray:
    """The moments, int8, of training rows of some sequences, by their numbers; of -1 nothing is known."""
    numbers, own = chains.split_rows("train", 1, together)
    order = np.argsort(numbers)
    at = np.searchsorted(numbers[order], np.maximum(rows, 0)).clip(max=max(0, len(order) - 1))
    found: np.ndarray = np.where(rows >= 0, row_moments(own.times, len(own))[order][at], UNKNOWN)
    return found.astype(np.int8)


def parts_of(count: int) -> Iterator[slice]:
    """Slices of so many windows that a part fits into memory."""
    for number in range(math.ceil(count / _PART)):
        yield slice(number * _PART, min((number + 1) * _PART, count))


def target_counts(windows: Windows, size: int) -> np.ndarray:
    """How often each SID is a target of windows: int64 (size,), by number from 0."""
    found = np.zeros(size + 1, dtype=np.int64)
    for part in parts_of(len(windows["labels"])):
        found += np.bincount(np.maximum(windows["labels"][part], 0).ravel(), minlength=size + 1)
    return found[1:]


def seen_sids(windows: Windows, size: int) -> np.ndarray:
    """Which SIDs windows hold, as targets or in histories: bool (size,), by number from 0."""
    seen = target_counts(windows, size) > 0
    for part in parts_of(len(windows["histories"])):
        seen |= np.bincount(windows["histories"][part].ravel(), minlength=size + 1)[1:] > 0
    return seen


def window_transitions(windows: Windows, size: int, reach: int, decay: float, reverse: float) -> Transitions:
    """What followed what in windows; see `minionerec.data.transitions.count_transitions`."""
    parts = parts_of(len(windows["labels"]))
    counted = ((windows["histories"][part], np.maximum(windows["labels"][part], 0)) for part in parts)
    return count_transitions_in_parts(counted, size, reach, decay, reverse)
