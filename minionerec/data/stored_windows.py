"""Windows of consecutive items of a corpus that stays on disk: a row group at a time, as arrays on disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minionerec.data.chains import Chains
from minionerec.data.columns import ColumnWriter, are_finished, open_columns
from minionerec.data.names import SPLITS
from minionerec.data.rows import SplitRows
from minionerec.data.sequences import Side, Windows, cut_windows, make_windows, ranges
from minionerec.data.stored import StoredCorpus
from minionerec.data.windows import FlatWindows

_COLUMNS = {"histories": "int32", "targets": "int32", "rows": "int32"}


@dataclass(frozen=True)
class StoredWindows(Windows):
    """Windows whose arrays are mapped from files.

    Attributes:
        rows: int32 (W, L), the number of the row whose target each target is; -1 where there is no target.
    """

    rows: np.ndarray


def numbered_from(stored: StoredCorpus, splits: Sequence[str]) -> dict[str, int]:
    """What is added to the numbers of each split's rows so that those of all are numbered through."""
    before = np.cumsum([0, *(stored.sizes[split] for split in splits)]).tolist()
    return dict(zip(splits, before, strict=False))


def flat_windows(chains: Chains, max_history: int, together: bool, numbered: Mapping[str, int]) -> FlatWindows:
    """The rows of some splits as windows of at most `max_history` + 1 items, each row's target a target exactly once.

    They are those of `minionerec.data.windows.user_windows`, which finds by their items what rows belong together; here
    it is their places that say it.

    Args:
        chains: Sequences.
        max_history: Most items that a history holds.
        together: Whether items of one time are one step.
        numbered: Split → what its rows are numbered from (`numbered_from`); of the splits that are wanted.
    """
    numbers, owners, begins, ends, places = _targets(chains, max_history, together, numbered)
    alone = ends == places  # no earlier target of its step
    goes_on = np.zeros(len(places), dtype=bool)
    goes_on[1:] = (np.diff(places) == 1) & (np.diff(owners) == 0) & alone[1:] & alone[:-1]
    heads = np.flatnonzero(~goes_on)
    lasts = np.append(heads[1:], len(places)) - 1
    read = ends[heads] - begins[heads]
    lengths = read + places[lasts] + 1 - places[heads]
    edges = [
        np.stack(pair, axis=1).ravel() for pair in ((begins[heads], places[heads]), (ends[heads], places[lasts] + 1))
    ]
    taken = ranges(edges[0], edges[1])
    stops = np.cumsum(lengths)
    rows = np.full(len(taken), -1, dtype=np.int64)
    rows[ranges(stops - lengths + read, stops)] = numbers
    found = cut_windows(stops - lengths, stops, read, max_history)
    return FlatWindows(chains.items[taken].astype(np.int32), rows, *found)


def _targets(
    chains: Chains, max_history: int, together: bool, numbered: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Number, sequence, begin and end of the history, and place of every row that is wanted, by place: int64 (R,)."""
    parts = []
    for split, start in numbered.items():
        found, rows = chains.split_rows(split, max_history, together)
        places = np.flatnonzero(chains.splits == SPLITS.index(split))
        parts.append(np.stack([found + start, rows.user_numbers, rows.begins, rows.ends, places]))
    every = np.concatenate(parts, axis=1)
    numbers, owners, begins, ends, places = every[:, np.argsort(every[-1], kind="stable")]
    return numbers, owners, begins, ends, places


def padded_windows(found: FlatWindows, width: int, padding: Side) -> StoredWindows:
    """Windows as rows of equal width, items from 1, with the number of each target's row."""
    firsts = np.maximum(found.firsts, 1)
    windows = make_windows(found.items + 1, found.begins, found.ends, firsts, width, padding)
    # Numbers from 1 are cut as items are; they stand where there is a target, which is never 0.
    numbers = make_windows(found.rows + 1, found.begins, found.ends, firsts, width, padding).targets - 1
    return StoredWindows(windows.histories, windows.targets, np.where(windows.targets > 0, numbers, -1))


def windows_in_parts(stored: StoredCorpus, split: str, most: int) -> Iterator[StoredWindows]:
    """The rows of one split as windows (`disk_windows`) of the corpus's histories, padded on the right, some at a time.

    Args:
        stored: The corpus.
        split: Which rows.
        most: No row group is read where there are as many windows already.
    """
    held: list[StoredWindows] = []
    for chains in stored.chains():
        found = flat_windows(chains, stored.max_history, stored.together, {split: 0})
        held.append(padded_windows(found, stored.max_history, "right"))
        if sum(map(len, held)) >= most:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(parts: Sequence[StoredWindows]) -> StoredWindows:
    return StoredWindows(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("histories", "targets", "rows")}
    )


def disk_windows(
    stored: StoredCorpus, split: str, folder: Path, max_len: int | None = None, padding: Side = "right"
) -> StoredWindows:
    """The rows of one split as windows on disk, made once: those of `minionerec.data.protocols.corpus_windows`.

    The windows come in the order of the files, each user's in another than there. A run that was killed goes on with
    the row group at which it was.

    Args:
        stored: The corpus.
        split: Which rows.
        folder: Where the arrays lie; the caller's alone.
        max_len: Longest history; the corpus's if None.
        padding: Side of the padding.

    Returns:
        int32 (W, L), items from 1.
    """
    width = stored.max_history if max_len is None else max_len
    if not are_finished(folder):
        _write_windows(stored, split, folder, width, padding)
    arrays = {name: values.reshape(-1, width) for name, values in open_columns(folder).arrays.items()}
    return StoredWindows(**arrays)


def _write_windows(stored: StoredCorpus, split: str, folder: Path, width: int, padding: Side) -> None:
    with ColumnWriter(folder, _COLUMNS) as writer:
        done = int(writer.state.get("groups", 0))
        for group, chains in enumerate(stored.chains()):
            if group < done:
                continue
            found = flat_windows(chains, stored.max_history, stored.together, {split: 0})
            windows = padded_windows(found, width, padding)
            writer.append("histories", windows.histories)
            writer.append("targets", windows.targets)
            writer.append("rows", windows.rows)
            writer.commit({"groups": group + 1})
        writer.finish()


def sampled_rows(stored: StoredCorpus, split: str, count: int, seed: int) -> SplitRows:
    """A fixed random sample of the rows of one split, in their own order; all of them where there are no more.

    Args:
        stored: The corpus.
        split: Which rows.
        count: How many; -1 for all.
        seed: Seed of the sample.
    """
    size = stored.sizes[split]
    if count < 0 or count >= size:
        return stored.rows(split, np.arange(size))
    drawn = np.random.default_rng(seed).choice(size, count, replace=False, shuffle=False)
    return stored.rows(split, np.sort(drawn))
