"""The protocol of rows over a corpus that stays on disk: training rows and windows in files, the others a sample."""

from pathlib import Path
from typing import Any

import numpy as np

from minionerec.data.columns import ColumnWriter, are_finished, open_columns
from minionerec.data.protocols import Protocol
from minionerec.data.rows import SplitRows
from minionerec.data.sequences import Samples, Side, Split, Windows
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import disk_windows, sampled_rows

_COLUMNS = {"flat": "int32", "begins": "int64", "ends": "int64", "targets": "int64"}
_MEASURED = ("valid", "test")


def disk_samples(stored: StoredCorpus, split: str, folder: Path, max_len: int, padding: Side) -> Samples:
    """The rows of one split on disk, in the order of the files; written where they are not yet.

    All are of user 0: whose they are is not kept.

    Args:
        stored: The corpus.
        split: Which rows.
        folder: Where the arrays lie; the caller's alone.
        max_len: Most items of a history that a model reads.
        padding: Side of the padding.
    """
    if not are_finished(folder):
        _write_samples(stored, split, folder)
    found = dict(open_columns(folder).arrays)
    users = np.broadcast_to(np.int64(0), len(found["targets"]))
    return Samples(users=users, **found, max_len=max_len, padding=padding)


def _write_samples(stored: StoredCorpus, split: str, folder: Path) -> None:
    with ColumnWriter(folder, _COLUMNS) as writer:
        done = int(writer.state.get("groups", 0))
        for group, chains in enumerate(stored.chains()):
            if group < done:
                continue
            _, rows = chains.split_rows(split, stored.max_history, stored.together)
            start = writer.size("flat")
            writer.append("flat", rows.items + 1)
            writer.append("begins", rows.begins + start)
            writer.append("ends", rows.ends + start)
            writer.append("targets", rows.targets + 1)
            writer.commit({"groups": group + 1})
        writer.finish()


def stored_split(
    stored: StoredCorpus,
    protocol: Protocol,
    eval_rows: int,
    seed: int,
    folder: Path | None = None,
    *,
    samples: bool = True,
    windows: bool = True,
) -> Split:
    """What the protocol of rows makes of a corpus (`minionerec.data.protocols.split_rows`), on disk.

    Args:
        stored: The corpus.
        protocol: Says how long histories are, and how they are padded.
        eval_rows: Rows of validation and of test, a fixed random sample; -1 for all. These are in memory.
        seed: Seed of the sample.
        folder: Where training rows and windows lie, and are written where they do not yet; None for none of them.
        samples: Whether training rows are wanted.
        windows: Whether windows are wanted.
    """
    known: dict[str, int] = {}

    def in_memory(rows: SplitRows) -> Samples:
        flat, borders = rows.flat_histories()
        numbers = np.array([known.setdefault(user, len(known)) for user in rows.users], dtype=np.int64)
        targets = rows.targets.astype(np.int64) + 1
        return Samples(numbers, targets, flat + 1, borders[:-1], borders[1:], protocol.max_len, protocol.padding)

    kept = {split: sampled_rows(stored, split, eval_rows, seed) for split in _MEASURED}
    made = {split: in_memory(rows) for split, rows in kept.items()}
    nothing = np.zeros((0, protocol.max_len), dtype=np.int32)
    train, found = in_memory(SplitRows.none()), Windows(nothing, nothing)
    if folder is not None and samples:
        train = disk_samples(stored, "train", folder / "samples", protocol.max_len, protocol.padding)
    if folder is not None and windows:
        found = disk_windows(stored, "train", folder / "windows", protocol.max_len, protocol.padding)
    counts: dict[str, Any] = {"train": stored.sizes["train"], **{split: len(rows) for split, rows in kept.items()}}
    times = {split: rows.times for split, rows in kept.items() if rows.times is not None}
    return Split(
        train=train,
        **made,
        windows=found,
        num_items=stored.n_items,
        user_names=[*known, ""],
        catalogue=stored.items,
        counts={**counts, "items": stored.n_items, "split": stored.split},
        times=times if len(times) == len(kept) else None,
    )
