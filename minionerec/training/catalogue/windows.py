"""What a catalogue model trains on: windows of histories over SID numbers, with a loss at every target."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from minionerec.data.corpus import Corpus
from minionerec.data.moments import UNKNOWN, row_moments
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.rows import SplitRows
from minionerec.data.sequences import padded
from minionerec.data.windows import recency_weights, user_windows
from minionerec.sid.table import SidTable

Windows = dict[str, np.ndarray]


def collate(rows: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, torch.Tensor]:
    """A batch of windows, as wide as its longest: `weights` float32, everything else int64, all (B, T)."""
    columns = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    width = max(1, int((columns["histories"] > 0).sum(1).max()))
    return {name: values[:, :width] for name, values in columns.items()}


def sid_windows(corpus: Corpus, table: SidTable, recency: float, moments: bool = False) -> tuple[Windows, Windows]:
    """Training windows and validation rows over SID numbers from 1.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        recency: How fast the weight of targets falls with their age: exp(-recency · age), where a target's age is the
            share of the training rows that came after its own. Only a split by global time has its rows in the order
            of time; with any other all targets weigh 1.
        moments: Whether to say of each target at which moment it came.

    Returns:
        Twice `histories` and `labels`, int64 (W, max_history), 0 padding on the right and -100 where there is no loss
        (a loss at every item of a window, and at the last one of a validation row), and `weights`, float32, of mean 1
        over the labels; with `moments` also those, int8 (W, max_history), places in `minionerec.data.moments.MOMENTS`.
    """
    protocol = PROTOCOLS["rows"].with_changes(max_len=corpus.max_history)
    split = protocol.split(corpus)
    number = np.concatenate([[0], table.sid_numbers + 1])
    windows = {"histories": number[split.windows.histories], "labels": number[split.windows.targets]}
    valid = _last_targets(number[split.valid.histories], number[split.valid.targets])
    windows["labels"][windows["labels"] == 0] = -100
    windows["weights"] = np.ones(windows["labels"].shape, dtype=np.float32)
    ages = recency_weights(corpus, recency)
    for weights, window in zip(windows["weights"], user_windows(corpus), strict=True):
        weights[: len(window.rows) - 1] = ages[window.rows[1:]]
    if moments:
        untold = np.full(windows["labels"].shape, UNKNOWN, dtype=np.int8)
        windows["moments"] = untold if split.windows.moments is None else split.windows.moments
        _tell(valid, split.valid.moments)
    windows["weights"] /= windows["weights"][windows["labels"] > 0].mean()
    return windows, valid


def some_windows(windows: Windows, count: int, seed: int) -> Windows:
    """A fixed random sample of windows, in their order; all of them where there are no more, or `count` is -1."""
    size = len(windows["histories"])
    if not 0 <= count < size:
        return windows
    chosen = np.sort(np.random.default_rng(seed).choice(size, count, replace=False))
    return {name: values[chosen] for name, values in windows.items()}


def held_out_windows(rows: SplitRows, table: SidTable, max_history: int, moments: bool = False) -> Windows:
    """The second part of `sid_windows`, of rows by themselves."""
    number = np.concatenate([[0], table.sid_numbers + 1])
    flat, borders = rows.flat_histories()
    histories = padded(flat + 1, borders[:-1], borders[1:], max_history, "right")
    windows = _last_targets(number[histories], number[rows.targets.astype(np.int64) + 1])
    if moments:
        _tell(windows, row_moments(rows.times, len(rows)))
    return windows


def _last_targets(histories: np.ndarray, targets: np.ndarray) -> Windows:
    """Windows with a loss at the last item alone: the target, int64 (W,), behind each history, int64 (W, H)."""
    labels = np.full_like(histories, -100)
    labels[np.arange(len(labels)), np.maximum((histories > 0).sum(1) - 1, 0)] = targets
    return {"histories": histories, "labels": labels, "weights": np.ones(labels.shape, dtype=np.float32)}


def _tell(windows: Windows, moments: np.ndarray | None) -> None:
    """Give windows of one label each its moment, int8 (W,), at that label; None: nothing is known."""
    windows["moments"] = np.full(windows["labels"].shape, UNKNOWN, dtype=np.int8)
    if moments is not None:
        windows["moments"][np.arange(len(moments)), (windows["labels"] >= 0).argmax(1)] = moments
