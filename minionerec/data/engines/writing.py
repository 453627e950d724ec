"""From an engine's sorted interactions to the files of a corpus, a part at a time."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.data.chains import Chains
from minionerec.data.shards import ShardWriter


def write_interactions(place: Path, batches: Iterable[pa.RecordBatch], shards: int, *, timed: bool) -> None:
    """Write the files of sequences of a corpus.

    Args:
        place: The corpus's directory.
        batches: Interactions as `EngineCorpus.interactions` gives them.
        shards: How many files.
        timed: Whether they have times.
    """
    parts, held = _by_shard(batches, timed), None
    for number in range(shards):
        with ShardWriter(place, number, timed=timed) as writer:
            while (held := held or next(parts, None)) is not None and held[0] == number:
                writer.write(held[1])
                held = None


def _by_shard(batches: Iterable[pa.RecordBatch], timed: bool) -> Iterator[tuple[int, Chains]]:
    """Shard and whole sequences of it, again and again."""
    rest: pa.Table | None = None
    for batch in batches:
        table = pa.Table.from_batches([batch]) if rest is None else pa.concat_tables([rest, batch_table(batch, rest)])
        table = table.combine_chunks()
        begins = _begins(table)
        if len(begins) > 1:
            yield from _chains(table.slice(0, begins[-1]), begins[:-1], timed)
        rest = table.slice(begins[-1]) if len(begins) else rest
    if rest is not None and len(rest):
        rest = rest.combine_chunks()
        yield from _chains(rest, _begins(rest), timed)


def batch_table(batch: pa.RecordBatch, like: pa.Table) -> pa.Table:
    """A part as a table with the columns of another."""
    return pa.Table.from_batches([batch]).cast(like.schema)


def _begins(table: pa.Table) -> np.ndarray:
    """Where each user's interactions begin: int64, ascending."""
    if not len(table):
        return np.zeros(0, np.int64)
    person = table["person"].combine_chunks()
    other = pc.not_equal(person[1:], person[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(other) + 1])


def _chains(table: pa.Table, begins: np.ndarray, timed: bool) -> Iterator[tuple[int, Chains]]:
    """The sequences of a part, shard by shard."""
    shards = table["shard"].to_numpy()[begins]
    users = table["person"].take(pa.array(begins)).to_numpy()
    offsets = np.append(begins, len(table))
    names = {"item": np.int32, "moment": np.int64, "number": np.int32, "cut": np.int8}
    items, times, rows, splits = (table[name].to_numpy().astype(kind) for name, kind in names.items())
    whole = Chains(users, offsets, items, times if timed else None, rows, splits)
    for number in np.unique(shards):
        yield int(number), whole.take(np.flatnonzero(shards == number))
