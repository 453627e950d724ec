"""Training windows of a catalogue model: histories of SID numbers, with a loss at every target."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from scipy.sparse import csr_array

from minionerec.core.errors import DataError
from minionerec.data.contexts import RequestFeature, context_codes, corpus_codes
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.data.rows import SplitExamples
from minionerec.data.transitions import count_transitions
from minionerec.data.windows import FlatWindows, padded_events, padded_windows, recency_of
from minionerec.sid.table import SidTable

SidWindows = dict[str, np.ndarray]
"""Columns of windows: see `read_windows`."""
_PART = 1 << 20  # windows that are counted at a time
_TYPES = {
    "histories": np.int32,
    "labels": np.int32,
    "weights": np.float32,
    "contexts": np.int16,
    "events": np.int16,
}


def collate(rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """A batch of windows, as wide as its longest: `weights` float32, else int64; (B, T), `contexts` (B, T, F)."""
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    width = max(1, int((columns["histories"] > 0).sum(1).max()))
    found = {name: torch.from_numpy(values[:, :width]) for name, values in columns.items()}
    return {name: values if name == "weights" else values.long() for name, values in found.items()}


def window_items(row: dict[str, np.ndarray]) -> int:
    """Number of items of a window."""
    return int(np.count_nonzero(row["histories"]))


def write_windows(
    corpus: Corpus,
    table: SidTable,
    recency: float,
    folder: Path,
    features: Sequence[RequestFeature] = (),
    events: bool = False,
) -> None:
    """Write the training windows of a corpus over SID numbers from 1, as arrays (`read_windows`).

    Args:
        corpus: The corpus.
        table: SIDs of its items.
        recency: How fast the weight of targets falls with their age: exp(-recency · age), where a target's age is the
            share of the training examples after its own. Only a split by global time has its examples in the
            order of time; with any other all targets weigh 1.
        folder: Where the arrays are written; it is made.
        features: Request features whose codes are given for each target.
        events: Whether to give the event of each item of the histories.

    Raises:
        DataError: If no training example has a history.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = corpus.max_history
    count = sum(len(padded_windows(found, width, "right")[0]) for found in corpus.windows("train"))
    if not count:
        raise DataError("no training example has a history, so there is nothing to train on.")
    made: SidWindows = {
        name: open_memmap(folder / f"{name}.npy", "w+", kind, (count, width, *[len(features)] * (name == "contexts")))
        for name, kind in _TYPES.items()
        if {"contexts": bool(features), "events": events}.get(name, True)
    }
    codes = corpus_codes(corpus, features) if features else None
    begin, means, sizes = 0, [], []
    for found, histories, labels, weights, rows in _weighed_windows(corpus, table.sid_numbers, recency):
        here, known = slice(begin, begin + len(rows)), rows >= 0
        made["histories"][here], made["labels"][here], made["weights"][here] = histories, labels, weights
        if codes is not None:
            made["contexts"][here] = np.where(known[..., None], codes[rows], UNKNOWN)
        if known.any():
            means.append(weights[known].mean())
            sizes.append(int(known.sum()))
        if events:
            made["events"][here] = padded_events(found, width, "right")
        begin = here.stop
    mean = np.float32(np.average(np.asarray(means, dtype=np.float64), weights=sizes)) if sizes else np.float32(1)
    for some in parts_of(count):
        made["weights"][some] /= mean
    for values in made.values():
        if isinstance(values, np.memmap):
            values.flush()


def _weighed_windows(
    corpus: Corpus, numbers: np.ndarray, recency: float
) -> Iterator[tuple[FlatWindows, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Iterate over the training windows of a corpus, some at a time; arguments as of `corpus_parts`.

    Returns:
        The windows; histories and labels, int32 (W, H), as in `read_windows`; weights, float32 (W, H), at most 1; and
            the numbers of the training examples, int64 (W, H), -1 for none.
    """
    number = np.concatenate([[0], numbers + 1]).astype(np.int32)
    ages = recency_of(corpus.split, corpus.sizes["train"], recency)
    for found in corpus.windows("train"):
        histories, targets, rows = padded_windows(found, corpus.max_history, "right")
        known = rows >= 0
        yield (
            found,
            number[histories],
            np.where(known, number[targets], -100),
            np.where(known, ages(rows), np.float32(1)),
            rows,
        )


def corpus_parts(
    corpus: Corpus, numbers: np.ndarray, recency: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Iterate over histories, labels and weights of the training windows of a corpus, without writing them.

    Args:
        corpus: The corpus.
        numbers: int64 (I,), the SID of each item, from 0.
        recency: See `write_windows`.

    Returns:
        Arrays as in `read_windows`, some windows at a time; the weights are of mean 1 where every training example has
        a history.
    """
    mean = 1.0
    if recency and "global time" in corpus.split:
        mean = -math.expm1(-recency) / recency
    for _, histories, labels, weights, _ in _weighed_windows(corpus, numbers, recency):
        yield histories, labels, weights / np.float32(mean)


def read_windows(folder: Path) -> SidWindows:
    """Map the files of `write_windows`.

    Returns:
        `histories` and `labels`, int32 (W, H), 0 padding on the right and -100 where there is no loss, and `weights`,
        float32, of mean 1 over the labels; where requested `contexts`, int16 (W, H, F), codes of request features, and
        `events`, int16 (W, H), numbers of events from 1, 0 where unknown.
        There is a loss at every target of a window.
    """
    files = {name: folder / f"{name}.npy" for name in _TYPES}
    return {name: np.load(file, mmap_mode="r") for name, file in files.items() if file.is_file()}


def some_rows(size: int, count: int, seed: int) -> np.ndarray:
    """A fixed random sample of rows, int64, ascending; all of them where there are no more, or `count` is -1."""
    if not 0 <= count < size:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, count, replace=False))


def held_out_windows(
    rows: SplitExamples,
    numbers: np.ndarray,
    max_history: int,
    features: Sequence[RequestFeature] = (),
    events: bool = False,
) -> SidWindows:
    """Validation examples as windows (`read_windows`) with a loss at the last item alone.

    Args:
        rows: The examples.
        numbers: int64 (I,), the SID of each item, from 0.
        max_history: Most items that a history holds, H.
        features: Request features whose codes are given for each target.
        events: Whether to give the event of each item of the histories.
    """
    number = np.concatenate([[0], numbers + 1]).astype(np.int32)
    histories = number[rows.padded(max_history, "right")]
    last = np.maximum((histories > 0).sum(1) - 1, 0)
    labels, each = np.full_like(histories, -100), np.arange(len(rows))
    labels[each, last] = number[rows.targets.astype(np.int64) + 1]
    windows = {"histories": histories, "labels": labels, "weights": np.ones(labels.shape, dtype=np.float32)}
    if features:
        windows["contexts"] = np.full((*labels.shape, len(features)), UNKNOWN, dtype=np.int16)
        windows["contexts"][each, last] = context_codes(features, rows)
    if events:
        windows["events"] = rows.padded_events(max_history, "right").astype(np.int16)
    return windows


def older_sids(rows: SplitExamples, numbers: np.ndarray, max_history: int) -> np.ndarray:
    """What the user of each example had before the window of `max_history` items that a model reads.

    Returns:
        object (R,), of each an int32 array of numbers from 1, oldest first.
    """
    number, found = (numbers + 1).astype(np.int32), np.empty(len(rows), dtype=object)
    begins = np.maximum(rows.begins, rows.ends - max_history)
    for row, (first, begin) in enumerate(zip(rows.firsts.tolist(), begins.tolist(), strict=True)):
        found[row] = number[rows.items[first:begin]]
    return found


def parts_of(count: int) -> Iterator[slice]:
    """Slices of so many windows that a part fits into memory."""
    for number in range(math.ceil(count / _PART)):
        yield slice(number * _PART, min((number + 1) * _PART, count))


def window_parts(windows: SidWindows) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Iterate over histories, labels and weights of windows, some at a time."""
    for part in parts_of(len(windows["labels"])):
        histories, labels, weights = (np.asarray(windows[name][part]) for name in ("histories", "labels", "weights"))
        yield histories, labels, weights


def target_counts(windows: SidWindows, size: int) -> np.ndarray:
    """How often each SID is a target of windows: int64 (size,), by number from 0."""
    found = np.zeros(size + 1, dtype=np.int64)
    for part in parts_of(len(windows["labels"])):
        found += np.bincount(np.maximum(windows["labels"][part], 0).ravel(), minlength=size + 1)
    return found[1:]


def window_transitions(windows: SidWindows, size: int, reach: int, decay: float, reverse: float) -> csr_array:
    """Item transitions of windows; see `minionerec.data.transitions.count_transitions`."""
    parts = parts_of(len(windows["labels"]))
    counted = ((windows["histories"][part], np.maximum(windows["labels"][part], 0)) for part in parts)
    return count_transitions(counted, size, reach, decay, reverse)
