"""Vectors in files: reading in blocks, and checks of given vectors against the items."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from minionerec.core.artefacts import file_sha256, open_artefact, read_json
from minionerec.core.cells import frame_of, texts_of
from minionerec.core.errors import DataError, truncate
from minionerec.core.parquet import readable
from minionerec.sid.table import hashed_ids

LARGEST = 1e12
"""Largest absolute value of vectors; distances between larger values overflow float32."""

STREAMED_FROM = 1 << 30
"""Bytes of float32 vectors (N x D x 4) from which a `.npy` file is read in blocks by readers that support it."""

_BLOCK = 1 << 14  # rows
_READ = 1 << 17  # bytes read at once for requested rows


class VectorRows(Protocol):
    """Protocol of a table of float32 vectors (N, D), indexed by rows: an array, or a table in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and dimensions, (N, D)."""

    def __len__(self) -> int:
        """Number of rows, N."""

    def __getitem__(self, rows: Any) -> Any:
        """One row by its number, float32 (D,), or several by a slice or an integer array, float32 (n, D)."""


def _numpy_file(path: str | os.PathLike[str], mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """The array of a `.npy` file; arrays of Python objects are refused."""
    try:
        table = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Give a .npy file with one row per item.") from None
    except Exception as error:  # the header is a Python literal, whose parsing can raise many errors
        reason = truncate(str(error), 200)
        raise DataError(f"{path}: not a readable .npy file of numbers ({reason}). Write it with numpy.save.") from None
    if not isinstance(table, np.ndarray):
        raise DataError(f"{path}: holds several arrays; expected one .npy array with one row per item.")
    return table


class VectorFile:
    """Rows of a `.npy` file of numbers, converted to float32 and checked as they are read.

    The file is not memory-mapped, so blocks that were read free their memory when dropped. Several threads may read.

    Args:
        path: A file with a table (N, D) of float16, float32, float64 or whole numbers in C order.

    Raises:
        DataError: If the file is missing, no `.npy` file, has other content, or is shorter than its header states.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/v.npy", np.arange(6, dtype=np.float16).reshape(3, 2))
        ...     vectors = VectorFile(f"{folder}/v.npy")
        ...     vectors.shape, vectors[1:3].tolist(), vectors[np.array([2, 0])].tolist()
        ((3, 2), [[2.0, 3.0], [4.0, 5.0]], [[4.0, 5.0], [0.0, 1.0]])
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        table: Any = _numpy_file(path, "r")  # mapped to read its header alone
        misshapen = table.ndim != 2 or table.dtype.kind not in "fiu" or table.shape[1] == 0
        if misshapen or not table.flags.c_contiguous:
            what = f"{table.dtype} of shape {table.shape}" if misshapen else "columns one after another"
            raise DataError(f"{path}: holds {what}; expected numbers of shape (items, dimensions), row by row.")
        self.shape: tuple[int, int] = table.shape
        self.dtype: np.dtype[Any] = table.dtype
        self._start: int = table.offset
        self._row_bytes = table.shape[1] * table.dtype.itemsize

    def __len__(self) -> int:
        """Number of rows, N."""
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """One row by its number, float32 (D,); several by a slice without a step or an int array (n,), float32 (n, D).

        Raises:
            DataError: If a value is not finite or beyond `LARGEST`, naming row and column, or the file has shrunk.
            IndexError: If a row does not exist.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("slices of vectors in a file have no step.")
            vectors = np.empty((max(0, stop - start), self.shape[1]), dtype=np.float32)
            for first in range(start, stop, _BLOCK):
                last = min(first + _BLOCK, stop)
                vectors[first - start : last - start] = self._read(first, last)
            return vectors
        if np.ndim(rows) == 0:
            return self._picked(np.array([rows], dtype=np.int64)).reshape(-1)
        return self._picked(np.asarray(rows, dtype=np.int64))

    def _picked(self, rows: np.ndarray) -> np.ndarray:
        """Rows by their numbers, read in the order of the file, at most `_READ` bytes at once."""
        vectors = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        if not len(rows):
            return vectors
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}.")
        positions = np.argsort(rows, kind="stable")
        breaks = np.flatnonzero(np.diff(rows[positions] // max(1, _READ // self._row_bytes))) + 1
        for part in np.split(positions, breaks):
            first, last = int(rows[part[0]]), int(rows[part[-1]])
            vectors[part] = self._read(first, last + 1)[rows[part] - first]
        return vectors

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Rows from `start` to before `stop`, checked: float32."""
        count, offset = (stop - start) * self.shape[1], self._start + start * self._row_bytes
        raw = np.fromfile(self.path, self.dtype, count, offset=offset)
        if len(raw) < count:
            raise DataError(f"{self.path}: ends before row {stop}; it was longer when it was opened. Read it again.")
        return checked_values(raw.reshape(-1, self.shape[1]), str(self.path), start)


def checked_values(values: np.ndarray, where: str, start: int = 0) -> np.ndarray:
    """Numbers (n, D) as float32, C-contiguous, after a check that they are finite and at most `LARGEST`.

    Args:
        values: The numbers.
        where: Name of the vectors in messages.
        start: Row of the first of them.
    """
    with np.errstate(over="ignore"):
        block = np.ascontiguousarray(values, dtype=np.float32)
    low, high = (float(block.min()), float(block.max())) if len(block) else (0.0, 0.0)  # NaN where a value is
    if low >= -LARGEST and high <= LARGEST:
        return block
    row, column = np.argwhere(~(np.abs(block) <= LARGEST))[0].tolist()
    if np.isfinite(block[row, column]):
        raise DataError(
            f"{where}: row {start + row} holds {block[row, column]:g}, but values are at most {LARGEST:g}, for "
            "distances are computed in float32. Scale the vectors."
        )
    raise DataError(
        f"{where}: row {start + row}, column {column} is {block[row, column]}. Every value must be a finite float32; "
        "mend or leave out this item."
    )


def blocks(vectors: VectorRows, size: int = _BLOCK) -> Iterator[tuple[slice, np.ndarray]]:
    """Iterate over slices of rows, each with a float32 copy of them."""
    for start in range(0, len(vectors), size):
        rows = slice(start, min(start + size, len(vectors)))
        yield rows, np.array(vectors[rows], dtype=np.float32, order="C")


def is_large(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a `.npy` file that `VectorFile` can read and that is large enough to be read in blocks."""
    try:
        shape = VectorFile(path).shape
    except DataError:
        return False
    return 4 * shape[0] * shape[1] >= STREAMED_FROM


def save_vectors(path: str | os.PathLike[str], vectors: VectorRows) -> None:
    """Write vectors as `numpy.save` does; vectors in a file in blocks, as float16 if they are, else as float32."""
    if isinstance(vectors, np.ndarray):
        np.save(path, vectors, allow_pickle=False)
        return
    dtype = np.dtype(np.float16 if getattr(vectors, "dtype", None) == np.float16 else np.float32)
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": vectors.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _, block in blocks(vectors):
            file.write(block.astype(dtype, copy=False).tobytes())


# Files of any origin and artefacts of the embed stage, checked against the items.

VECTORS_FILE = "vectors.npy"
ITEMS_FILE = "items.json"


def check_vectors(vectors: np.ndarray, n_items: int, where: str) -> np.ndarray:
    """Check that vectors are a finite table with one row per item.

    Args:
        vectors: Any array.
        n_items: Number of items, N.
        where: Name of the vectors in messages, e.g. the file's path.

    Returns:
        float32 (N, D).

    Raises:
        DataError: On another number of axes or rows, a type that is not numeric, or a value that is not finite or is
            beyond `LARGEST`.
    """
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or vectors.shape[1] == 0:
        raise DataError(
            f"{where}: holds {vectors.dtype} of shape {vectors.shape}; "
            f"expected numbers of shape ({n_items}, dimensions)."
        )
    _check_rows(len(vectors), n_items, where)
    return checked_values(vectors, where)


def _check_rows(rows: int, n_items: int, where: str) -> None:
    if rows != n_items:
        raise DataError(
            f"{where}: {rows} rows for {n_items} items. Row i must be the vector of item i of the corpus; "
            "make the vectors from this corpus."
        )


def open_vectors(path: str | os.PathLike[str], n_items: int) -> VectorFile:
    """Open a `.npy` file with one row per item, in item order, without reading it.

    Raises:
        DataError: As `VectorFile`, or on another number of rows.
    """
    vectors = VectorFile(path)
    _check_rows(len(vectors), n_items, str(path))
    return vectors


def load_vectors(path: str | os.PathLike[str], n_items: int) -> np.ndarray:
    """Read a `.npy` file with one row per item, in item order.

    Args:
        path: The file; arrays of Python objects are refused.
        n_items: Number of items, N.

    Returns:
        float32 (N, D).

    Raises:
        DataError: If the file is missing or no `.npy`, or as in `check_vectors`; the message names file and row.
    """
    return check_vectors(_numpy_file(path), n_items, str(path))


def load_vector_table(path: str | os.PathLike[str], item_ids: Sequence[str]) -> np.ndarray:
    """Read a parquet file with columns `item_id` and `vector` (lists of numbers), one row an item, in any order.

    Rows of other items are ignored.

    Args:
        path: The file.
        item_ids: N item ids.

    Returns:
        float32 (N, D), row i of the i-th item.

    Raises:
        DataError: If the file cannot be read or lacks a column, an item is missing or occurs twice, or vectors differ
            in length or are not finite.
    """
    with readable(path, error=DataError, remedy="Write it with columns item_id and vector."):
        table = frame_of(pq.ParquetFile(path).read(columns=["item_id", "vector"]))
        if sorted(table.columns) != ["item_id", "vector"]:
            raise ValueError(f"it has {', '.join(table.columns) or 'neither'} of the two columns")
        ids = pd.Index(texts_of(table["item_id"], lists=False)[0])
    if ids.has_duplicates:
        raise DataError(f"{path}: item {ids[ids.duplicated()][0]!r} has two rows. Keep one row an item.")
    positions = ids.get_indexer(pd.Index(item_ids))
    missing = np.flatnonzero(positions < 0)
    if len(missing):
        raise DataError(
            f"{path}: has no row for item {item_ids[missing[0]]!r} ({len(missing)} such of {len(item_ids)}). "
            "Add their vectors."
        )
    chosen = table["vector"].iloc[positions]
    try:
        vectors = np.stack([np.asarray(vector, dtype=np.float64) for vector in chosen])
    except (ValueError, TypeError):
        raise DataError(f"{path}: column 'vector' must hold lists of numbers, all of one length.") from None
    return check_vectors(vectors, len(item_ids), str(path))


def vector_file(path: Path, item_ids: Sequence[str]) -> Path:
    """The `.npy` file at a path: a file as given, or that of an output of `run_embed` for these items in this order.

    Args:
        path: The file or the artefact.
        item_ids: N item ids; compared with those of the artefact by hash.

    Raises:
        ArtefactError: If `path` is neither a file nor a finished artefact of kind "vectors".
        DataError: If the items differ; the message names the first.
    """
    if path.is_file():
        return path
    open_artefact(path, "vectors")
    digest = hashed_ids(item_ids)
    digest.update(b"\n")
    if file_sha256(path / ITEMS_FILE) == digest.hexdigest():
        return path / VECTORS_FILE
    stored_ids = read_json(path / ITEMS_FILE)
    if stored_ids != list(item_ids):
        pairs = zip(stored_ids, item_ids, strict=False)
        shorter = min(len(stored_ids), len(item_ids))
        where = next((i for i, (stored, item) in enumerate(pairs) if stored != item), shorter)
        raise DataError(
            f"{path}: its {len(stored_ids)} vectors are not those of the corpus's {len(item_ids)} items; they first "
            f"differ at item {where}. Make the vectors from this corpus."
        )
    return path / VECTORS_FILE
