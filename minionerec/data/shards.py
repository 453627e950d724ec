"""Files of users' sequences: a corpus's examples on disk, a share of the users in each file.

The form is described in docs/decisions/shards.md. All that writes a corpus writes it through `ShardWriter`, so that the
same sequences give the same bytes, however they were made.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from minionerec.core.errors import ArtefactError
from minionerec.core.parquet import readable
from minionerec.data.chains import NO_INDEX, Chains
from minionerec.data.names import EVENTS, SPLITS
from minionerec.data.rows import StoredCodes

FOLDER = "sequences"
GROUP = 4096
"""Sequences in a row group, the unit that is read at a time."""
SHARD = 1 << 22
"""Interactions in a shard, about."""
REMEDY = "Run the stage that makes the corpus again (minionerec prepare-data)."
_LISTS = {
    "items": pa.int32(),
    "times": pa.int64(),
    "rows": pa.int32(),
    "splits": pa.int8(),
    "events": pa.int16(),
}
_OPTIONAL = ("times", "events")  # of a corpus all files have one, or none has
_CODES = pa.int16()


def count_shards(interactions: int) -> int:
    """How many files a corpus of so many interactions has."""
    return max(1, -(-interactions // SHARD))


def shard_of(users: Iterable[str], shards: int) -> np.ndarray:
    """The shard of each user: the first 32 bits of the MD5 of the id, modulo the number of shards; int64 (U,)."""
    digests = (hashlib.md5(user.encode(), usedforsecurity=False).digest()[:4] for user in users)
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.int64) % shards


def shard_files(folder: Path) -> list[Path]:
    """The files of sequences of a corpus's directory, in their order."""
    return sorted((folder / FOLDER).glob("*.parquet"))


def _schema(given: Collection[str], contexts: Iterable[str] = ()) -> pa.Schema:
    """The columns of a file that has those of `_OPTIONAL` that are given, and codes of some request features."""
    columns = {name: kind for name, kind in _LISTS.items() if name in given or name not in _OPTIONAL}
    columns |= {_column_of(name): _CODES for name in contexts}
    return pa.schema([("user", pa.string()), *((name, pa.list_(kind)) for name, kind in columns.items())])


def _column_of(name: str) -> str:
    """The column of the codes of a request feature."""
    return f"context {name}"


class ShardWriter:
    """Writes the sequences of one shard, in the given order: by user, as UTF-8 bytes.

        with ShardWriter(folder, 0, timed=True) as writer:
            writer.write(chains)

    Args:
        folder: The corpus's directory.
        number: Number of the shard.
        timed: Whether the sequences have times.
        events: Whether items have events.
        contexts: The columns of interactions that are request features.
    """

    def __init__(self, folder: Path, number: int, *, timed: bool, events: bool = False, contexts: Collection[str] = ()):
        self._held: list[pa.Table] = []
        self._contexts = contexts
        self._schema = _schema(["times"] * timed + ["events"] * events, contexts)
        (folder / FOLDER).mkdir(exist_ok=True)
        self._writer = pq.ParquetWriter(folder / FOLDER / f"{number:05d}.parquet", self._schema, compression="zstd")

    def write(self, chains: Chains) -> None:
        """Take more sequences, however many; they are written in groups of `GROUP`."""
        offsets = pa.array(chains.offsets, pa.int32())
        flat = {name: getattr(chains, name) for name in _LISTS if name in self._schema.names}
        flat |= {_column_of(name): chains.contexts[name].codes for name in self._contexts}
        lists = {
            name: pa.ListArray.from_arrays(offsets, pa.array(values, _LISTS.get(name, _CODES)))
            for name, values in flat.items()
        }
        self._held.append(pa.table({"user": pa.array(chains.users, pa.string()), **lists}, schema=self._schema))
        if sum(map(len, self._held)) >= GROUP:
            whole = pa.concat_tables(self._held)
            full = len(whole) // GROUP * GROUP
            for start in range(0, full, GROUP):
                self._write(whole.slice(start, GROUP))
            self._held = [whole.slice(full)]

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks(), row_group_size=GROUP)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        rest = pa.concat_tables(self._held) if self._held else self._schema.empty_table()
        if kind is None and len(rest):
            self._write(rest)
        self._writer.close()


def write_shards(folder: Path, chains: Chains) -> None:
    """Write sequences, of any order, as the files of a corpus."""
    count = count_shards(len(chains.items))
    shards = shard_of(chains.users.tolist(), count)
    names = pa.array(chains.users, pa.string())
    order = pc.sort_indices(names).to_numpy() if len(names) else np.zeros(0, np.int64)
    order = order[np.lexsort((np.arange(len(order)), shards[order]))]
    for number in range(count):
        given = {"timed": chains.times is not None, "events": chains.events is not None}
        with ShardWriter(folder, number, **given, contexts=chains.contexts) as writer:
            own = order[shards[order] == number]
            for start in range(0, len(own), GROUP):
                writer.write(chains.take(own[start : start + GROUP]))


def read_shard(
    path: Path, n_items: int, contexts: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[Chains]:
    """The sequences of one file, a row group at a time.

    Args:
        path: The file.
        n_items: Number of items, N.
        contexts: Each column of interactions that is a request feature, and the names of its values.

    Raises:
        ArtefactError: If the file cannot be read, or holds no sequences of a corpus of `n_items` items.
    """
    with readable(path, remedy=REMEDY), pq.ParquetFile(path) as file:
        given = _check_schema(path, file.schema_arrow, contexts)
        for group in range(file.num_row_groups):
            yield _chains(path, file.read_row_group(group), n_items, given, contexts)


def has_times(path: Path) -> bool:
    """Whether the sequences of a file have times.

    Raises:
        ArtefactError: As `read_shard`.
    """
    with readable(path, remedy=REMEDY), pq.ParquetFile(path) as file:
        return "times" in _check_schema(path, file.schema_arrow)


def _check_schema(path: Path, schema: pa.Schema, contexts: Collection[str] = ()) -> list[str]:
    """Check the columns of a file of sequences; which of `_OPTIONAL` it has."""
    given = [name for name in _OPTIONAL if name in schema.names]
    for name in _schema(given, contexts).names:
        positions = schema.get_all_field_indices(name)
        if len(positions) != 1:
            raise ArtefactError(f"{path}: has {len(positions)} columns {name!r}; expected one. {REMEDY}")
        found = schema.field(positions[0]).type
        fits = types.is_string(found) if name == "user" else found == pa.list_(_LISTS.get(name, _CODES))
        if not fits:
            what = "texts" if name == "user" else f"lists of {_LISTS.get(name, _CODES)}"
            raise ArtefactError(f"{path}: column {name!r} holds {str(found)[:60]}; expected {what}. {REMEDY}")
    return given


def _chains(
    path: Path, table: pa.Table, n_items: int, given: Collection[str], contexts: Mapping[str, Sequence[str]]
) -> Chains:
    table = table.combine_chunks()
    table.validate(full=True)
    columns = {name: table[name].combine_chunks() for name in _schema(given, contexts).names}
    values = {name: column.flatten() for name, column in columns.items() if name != "user"}
    for name, column in columns.items():
        if column.null_count or (name in values and values[name].null_count):
            raise ArtefactError(f"{path}: column {name!r} has missing values. {REMEDY}")
    borders = {name: columns[name].offsets.to_numpy().astype(np.int64) for name in values}
    offsets = borders["items"] - borders["items"][0]
    for name, found in borders.items():
        if not np.array_equal(found - found[0], offsets):
            raise ArtefactError(f"{path}: column {name!r} has lists of other lengths than 'items'. {REMEDY}")
    flat = {name: column.to_numpy() for name, column in values.items()}
    spans = {
        "items": (0, n_items - 1),
        "rows": (NO_INDEX, np.iinfo(np.int32).max),
        "splits": (NO_INDEX, len(SPLITS) - 1),
        "events": (NO_INDEX, EVENTS - 1),
        **{_column_of(name): (0, len(values_of)) for name, values_of in contexts.items()},
    }
    for name, (low, high) in spans.items():
        if name not in flat:
            continue
        wrong = np.flatnonzero((flat[name] < low) | (flat[name] > high))
        if len(wrong):
            raise ArtefactError(
                f"{path}: column {name!r} holds {flat[name][wrong[0]]}; expected {low} to {high}. {REMEDY}"
            )
    if ((flat["rows"] == NO_INDEX) != (flat["splits"] == NO_INDEX)).any():
        raise ArtefactError(f"{path}: 'rows' and 'splits' disagree on which positions are targets. {REMEDY}")
    users = columns["user"].to_numpy(zero_copy_only=False)
    codes = {name: StoredCodes(flat[_column_of(name)], tuple(values_of)) for name, values_of in contexts.items()}
    targets = flat["rows"], flat["splits"]
    return Chains(users, offsets, flat["items"], flat.get("times"), *targets, flat.get("events"), codes)
