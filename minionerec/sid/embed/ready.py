"""Ready vectors: files of any origin and artefacts of the embed stage, checked against the items that they are for."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.artefacts import file_sha256, open_artefact, read_json
from minionerec.core.errors import DataError, cut
from minionerec.sid.embed.mapped import LARGEST as LARGEST
from minionerec.sid.embed.mapped import VectorFile

VECTORS_FILE = "vectors.npy"
ITEMS_FILE = "items.json"
_IDS = 1 << 16  # at once


def check_vectors(vectors: np.ndarray, n_items: int, where: str) -> np.ndarray:
    """Check that vectors are a finite table with one row per item.

    Args:
        vectors: Any array.
        n_items: Number of items, N.
        where: What to call the vectors in messages, e.g. the file's path.

    Returns:
        float32 (N, D).

    Raises:
        DataError: On another number of axes or rows, a type that is not numeric, or a value that is not finite or is
            beyond `LARGEST`.
    """
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or vectors.shape[1] == 0:
        raise DataError(
            f"{where}: holds {vectors.dtype} of shape {vectors.shape}; expected numbers of shape ({n_items}, width)."
        )
    _check_rows(len(vectors), n_items, where)
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(vectors))
    if len(bad):
        row, column = bad[0].tolist()
        rows = len(np.unique(bad[:, 0]))
        raise DataError(
            f"{where}: row {row}, column {column} is {vectors[row, column]} ({rows} such rows of {n_items}). "
            "Every value must be a finite float32; mend or leave out these items."
        )
    largest = float(max(-vectors.min(), vectors.max())) if vectors.size else 0.0
    if largest > LARGEST:
        row = int(np.abs(vectors).max(axis=1).argmax())
        raise DataError(
            f"{where}: row {row} holds {largest:g}, but values are at most {LARGEST:g}, for distances are computed in "
            "float32. Scale the vectors."
        )
    return vectors


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
    try:
        vectors = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Give a .npy file with one row per item.") from None
    except Exception as error:  # its header is a Python literal, which can fail in every way that those can
        said = cut(str(error), 200)
        raise DataError(f"{path}: not a readable .npy file of numbers ({said}). Write it with numpy.save.") from None
    if not isinstance(vectors, np.ndarray):
        raise DataError(f"{path}: holds several arrays; expected one .npy array with one row per item.")
    return check_vectors(vectors, n_items, str(path))


def load_vector_table(path: str | os.PathLike[str], item_ids: Sequence[str]) -> np.ndarray:
    """Read a parquet file with columns `item_id` and `vector` (lists of numbers), one row an item, in any order.

    Rows of other items are passed over.

    Args:
        path: The file.
        item_ids: N item ids.

    Returns:
        float32 (N, D), row i of the i-th item.

    Raises:
        DataError: If the file cannot be read or lacks a column, an item is missing or comes twice, or vectors differ
            in length or are not finite.
    """
    try:
        table = pq.ParquetFile(path).read(columns=["item_id", "vector"]).to_pandas(ignore_metadata=True)
        if sorted(table.columns) != ["item_id", "vector"]:
            raise ValueError(f"it has {', '.join(table.columns) or 'neither'} of the two columns")
        ids = pd.Index(table["item_id"].astype(str))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: cannot be read ({cut(str(error), 200)}). Write it with columns item_id and vector."
        ) from None
    if ids.has_duplicates:
        raise DataError(f"{path}: item {ids[ids.duplicated()][0]!r} has two rows. Keep one row an item.")
    places = ids.get_indexer(pd.Index(item_ids))
    lost = np.flatnonzero(places < 0)
    if len(lost):
        raise DataError(
            f"{path}: has no row for item {item_ids[lost[0]]!r} ({len(lost)} such of {len(item_ids)}). "
            "Add their vectors."
        )
    chosen = table["vector"].iloc[places]
    try:
        vectors = np.stack([np.asarray(vector, dtype=np.float64) for vector in chosen])
    except (ValueError, TypeError):
        raise DataError(f"{path}: column 'vector' must hold lists of numbers, all of one length.") from None
    return check_vectors(vectors, len(item_ids), str(path))


def load_vector_artefact(path: str | os.PathLike[str], item_ids: Sequence[str]) -> np.ndarray:
    """Read the output of `run_embed` and check that it speaks of these items in this order.

    Raises:
        ArtefactError: If `path` is not a finished artefact of kind "vectors".
        DataError: If the items differ (the message names the first), or as in `load_vectors`.
    """
    open_artefact(path, "vectors")
    _check_items(Path(path), item_ids)
    return load_vectors(Path(path) / VECTORS_FILE, len(item_ids))


def open_vector_artefact(path: str | os.PathLike[str], item_ids: pd.Series) -> VectorFile:
    """As `load_vector_artefact`, but the vectors stay in their file.

    Args:
        path: The artefact.
        item_ids: N item ids; that they are those of the artefact is seen by the bytes of its list.

    Raises:
        ArtefactError: As there.
        DataError: As there, or as in `open_vectors`.
    """
    open_artefact(path, "vectors")
    if file_sha256(Path(path) / ITEMS_FILE) != _digest(item_ids):
        _check_items(Path(path), item_ids.astype(str).tolist())
    return open_vectors(Path(path) / VECTORS_FILE, len(item_ids))


def _digest(item_ids: pd.Series) -> str:
    """SHA-256 of `items.json` for these items."""
    digest = hashlib.sha256(b"[")
    for start in range(0, len(item_ids), _IDS):
        part = json.dumps(item_ids.iloc[start : start + _IDS].astype(str).tolist())[1:-1]
        digest.update((", " * (start > 0) + part).encode())
    digest.update(b"]\n")
    return digest.hexdigest()


def _check_items(path: Path, item_ids: Sequence[str]) -> None:
    ours = read_json(path / ITEMS_FILE)
    if ours != list(item_ids):
        pairs = zip(ours, item_ids, strict=False)
        place = next((i for i, (mine, other) in enumerate(pairs) if mine != other), min(len(ours), len(item_ids)))
        raise DataError(
            f"{path}: its {len(ours)} vectors are not those of the corpus's {len(item_ids)} items; they first differ "
            f"at item {place}. Make the vectors from this corpus."
        )
