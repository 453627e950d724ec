"""Tables of codes with millions of items: item ids without an object an item, and `codes.parquet`."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from minionerec.core.errors import ArtefactError

T = TypeVar("T")
CODES_FILE = "codes.parquet"
LARGE = 1 << 20
"""Items beyond which a table is written as `codes.parquet`, and its ids and token strings are made when asked for."""
_BLOCK = 1 << 16
_REMEDY = "Build the SIDs again (minionerec build-sids)."


class LazySequence(Sequence[T]):
    """A sequence whose entries are made when they are asked for.

    Args:
        size: Number of entries.
        block: Makes those from one place to before another.

    Example:
        >>> squares = LazySequence(4, lambda start, stop: [i * i for i in range(start, stop)])
        >>> squares[3], squares[1:3], list(squares), len(squares)
        (9, [1, 4], [0, 1, 4, 9], 4)
    """

    def __init__(self, size: int, block: Callable[[int, int], list[T]]):
        self._size, self._block = size, block

    def __len__(self) -> int:
        """Number of entries."""
        return self._size

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        """One entry, or a list of some."""
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._block(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        found = place + len(self) if place < 0 else int(place)
        if not 0 <= found < len(self):
            raise IndexError(f"entry {place} of {len(self)}.")
        return self._block(found, found + 1)[0]

    def __iter__(self) -> Iterator[T]:
        """All entries, some thousands made at a time."""
        starts = range(0, len(self), _BLOCK)
        return chain.from_iterable(self._block(start, min(start + _BLOCK, len(self))) for start in starts)


class ItemIds(LazySequence[str]):
    """Item ids in one array of text, each a `str` only while somebody looks at it.

    Args:
        ids: Strings: a list, other `ItemIds`, a pandas or an arrow column.
    """

    def __init__(self, ids: Any):
        given: Any = ids.column if isinstance(ids, ItemIds) else ids.array if isinstance(ids, pd.Series) else ids
        column: Any = given if _is_arrow(given) else pa.array(given)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        self.column: pa.ChunkedArray = pa.chunked_array(
            [chunk.cast(pa.large_string()) for chunk in chunks], pa.large_string()
        )
        super().__init__(len(self.column), lambda start, stop: self.column.slice(start, stop - start).to_pylist())

    def same(self, other: "ItemIds") -> bool:
        """Whether both hold the same ids in the same order."""
        return len(self) == len(other) and bool(pc.all(pc.equal(self.column, other.column)).as_py() is not False)

    def twice(self) -> str | None:
        """An id that is there more than once; None where all differ."""
        if pc.count_distinct(self.column).as_py() == len(self):
            return None
        counted = pc.value_counts(self.column)
        return str(counted.filter(pc.greater(counted.field("counts"), 1))[0]["values"].as_py())

    def places_of(self, wanted: "ItemIds") -> np.ndarray:
        """Where each of some ids is in this one: int64 (n,), -1 where it is not."""
        found = pc.fill_null(pc.index_in(wanted.column, value_set=self.column.combine_chunks()), -1)
        places: np.ndarray = found.to_numpy().astype(np.int64)
        return places


def _is_arrow(ids: Any) -> bool:
    return isinstance(ids, pa.ChunkedArray | pa.Array)


def ids_of(items: pd.DataFrame) -> Sequence[str]:
    """The ids of items, in their order: a list, or `ItemIds` of more than `LARGE`."""
    column = items["item_id"].astype(str)
    return ItemIds(column) if len(column) > LARGE else column.tolist()


def write_codes(path: str | os.PathLike[str], item_ids: ItemIds, codes: np.ndarray, levels: Sequence[str]) -> None:
    """Write `codes.parquet`: column `item_id` and, for each level, a column of its name, int32, -1 where there is none.

    Args:
        path: The file.
        item_ids: N ids.
        codes: int32 (N, L).
        levels: Names of the L levels.
    """
    columns = {"item_id": item_ids.column, **{name: codes[:, level] for level, name in enumerate(levels)}}
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=_BLOCK)


def read_codes(path: str | os.PathLike[str], levels: Sequence[str]) -> tuple[ItemIds, np.ndarray]:
    """Read what `write_codes` wrote.

    Args:
        path: The file.
        levels: Names that levels may have, in their order.

    Returns:
        N item ids, and codes, int32 (N, L).

    Raises:
        ArtefactError: If the file cannot be read or has other columns, gaps, or codes below -1.
    """
    try:
        file = pq.ParquetFile(path)
        names, types = file.schema_arrow.names, file.schema_arrow.types
        width = len(names) - 1
        text = bool(names) and (pa.types.is_large_string(types[0]) or pa.types.is_string(types[0]))
        fits = names == ["item_id", *levels[:width]] and text and all(kind == pa.int32() for kind in types[1:])
        if not fits or width < 1:
            raise ValueError(f"it has columns {', '.join(names)[:100]}; expected item_id, text, and a, b, ..., int32")
        ids = file.read(columns=["item_id"])["item_id"]
        codes = np.empty((len(ids), width), dtype=np.int32)
        for level, name in enumerate(names[1:]):
            column = file.read(columns=[name])[name]
            if column.null_count:
                raise ValueError(f"column {name!r} has gaps")
            codes[:, level] = column.to_numpy()
        if ids.null_count or codes.min(initial=0) < -1:
            raise ValueError("it has items without an id" if ids.null_count else "it has codes below -1")
        ids.validate(full=True)
        return ItemIds(ids), codes
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file.") from None
    except (OSError, ValueError, TypeError, KeyError, MemoryError, pa.ArrowException) as error:
        said = " ".join(str(error).split())[:200].rstrip(".")
        raise ArtefactError(f"{path}: cannot be read as a table of codes ({said}). {_REMEDY}") from None
