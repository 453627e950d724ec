"""What a catalogue model trains on: windows of histories over SID numbers, with a loss at every target."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from minionerec.data.corpus import Corpus
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.windows import recency_weights, user_windows
from minionerec.sid.table import SidTable

Windows = dict[str, np.ndarray]


def collate(rows: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, torch.Tensor]:
    """A batch of windows, as wide as its longest: `histories` and `labels` int64, `weights` float32, all (B, T)."""
    columns = {name: torch.tensor([row[name] for row in rows]) for name in ("histories", "labels", "weights")}
    width = max(1, int((columns["histories"] > 0).sum(1).max()))
    return {name: values[:, :width] for name, values in columns.items()}


def sid_windows(corpus: Corpus, table: SidTable, recency: float) -> tuple[Windows, Windows]:
    """Training windows and validation rows over SID numbers from 1.

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        recency: How fast the weight of targets falls with their age: exp(-recency · age), where a target's age is the
            share of the training rows that came after its own. Only a split by global time has its rows in the order
            of time; with any other all targets weigh 1.

    Returns:
        Twice `histories` and `labels`, int64 (W, max_history), 0 padding on the right and -100 where there is no loss
        (a loss at every item of a window, and at the last one of a validation row), and `weights`, float32, of mean 1
        over the labels.
    """
    protocol = PROTOCOLS["rows"].with_changes(max_len=corpus.max_history)
    split = protocol.split(corpus)
    number = np.concatenate([[0], table.sid_numbers + 1])
    windows = {"histories": number[split.windows.histories], "labels": number[split.windows.targets]}
    histories = number[split.valid.histories]
    labels = np.zeros_like(histories)
    labels[np.arange(len(labels)), np.maximum((histories > 0).sum(1) - 1, 0)] = number[split.valid.targets]
    valid = {"histories": histories, "labels": labels}
    for part in (windows, valid):
        part["labels"][part["labels"] == 0] = -100
        part["weights"] = np.ones(part["labels"].shape, dtype=np.float32)
    ages = recency_weights(corpus, recency)
    for weights, window in zip(windows["weights"], user_windows(corpus), strict=True):
        weights[: len(window.rows) - 1] = ages[window.rows[1:]]
    windows["weights"] /= windows["weights"][windows["labels"] > 0].mean()
    return windows, valid
