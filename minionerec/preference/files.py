"""The two files of a preference study: vectors of items, and the table of comparisons, every row of it or an error."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from minionerec.core.errors import DataError, cut, shown
from minionerec.data.files import parse_json, plain_text, repeated_keys
from minionerec.data.source import BadRows, read_lines
from minionerec.data.sources.tables import column_of, read_table
from minionerec.data.sources.tangles import drop_swallowing
from minionerec.data.sources.times import read_times
from minionerec.embed.ready import check_vectors

KEYS = ("comparison_id", "user_id", "item_a", "item_b")
TIME = "timestamp"
KINDS = (".csv", ".parquet", ".jsonl")


def require_files(comparisons: str | Path, features: str | Path) -> None:
    """Check that both files are there.

    Raises:
        DataError: Naming the one that is not.
    """
    for path, what in (
        (Path(features), "--features an npz or parquet file"),
        (Path(comparisons), "--comparisons a csv, parquet or jsonl file"),
    ):
        if not path.is_file():
            raise DataError(f"{path}: no such file. Give {what}.")


def read_features(path: str | Path) -> tuple[list[str], np.ndarray]:
    """Item ids and their vectors, float32 (N, D).

    Raises:
        DataError: If the file is missing or a pickle, ids repeat, or vectors differ in width or hold what is no finite
            number.
    """
    path = Path(path)
    readers = {".npz": _from_arrays, ".parquet": _from_columns}
    if path.suffix not in readers:
        raise DataError(f"{path}: features must be .npz or .parquet (pickles are not read). Convert the file.")
    try:
        items, rows = readers[path.suffix](path)
        widths = [np.size(row) for row in rows]
        if not rows or len(items) != len(rows) or len(set(items)) < len(items):
            raise DataError(f"{path}: {len(rows)} vectors for {len(set(items))} distinct items; expected one each.")
        broken = next((item for item in items if not plain_text(item)), None)
        if broken is not None:
            raise DataError(f"{path}: the item id {shown(broken)} holds half of a character. Mend it.")
        for item, row, width in zip(items, rows, widths, strict=True):
            if width != widths[0]:
                raise DataError(
                    f"{path}: item {shown(item)} has {width} numbers, item {shown(items[0])} has {widths[0]}. Mend it."
                )
            if not np.isfinite(row).all():
                raise DataError(
                    f"{path}: item {shown(item)} has NaN or infinity among its features. Remove or mend it."
                )
        return items, check_vectors(np.stack(rows), len(items), str(path))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # headers and nested values can fail in every way
        raise DataError(
            f"{path}: expected item_id and features (npz, no objects) or item_id and vector (parquet): "
            f"{cut(str(error), 200)}."
        ) from None


def _from_arrays(path: Path) -> tuple[list[str], list[np.ndarray]]:
    with np.load(path, allow_pickle=False) as arrays:
        ids = np.ascontiguousarray(arrays["item_id"].astype(str).ravel())
        # numpy checks no letter, and a text of what is none breaks whatever reads it.
        if ids.size and int(ids.view(np.uint32).max()) > sys.maxunicode:
            raise ValueError("item_id holds what are no characters")
        return ids.tolist(), list(arrays["features"])


def _from_columns(path: Path) -> tuple[list[str], list[np.ndarray]]:
    table = pq.ParquetFile(path).read(columns=["item_id", "vector"]).to_pandas(ignore_metadata=True)
    if sorted(table.columns) != ["item_id", "vector"]:
        raise ValueError(f"it has {', '.join(table.columns) or 'neither'} of the two columns")
    return table["item_id"].astype(str).tolist(), [np.asarray(row, dtype=np.float64) for row in table["vector"]]


def read_answers(path: Path, targets: Sequence[str], items: Collection[str]) -> tuple[pd.DataFrame, dict[str, int]]:
    """The table of comparisons, `KEYS` and targets as texts, rows from 0.

    Args:
        path: csv, parquet or jsonl.
        targets: Columns of answers.
        items: Ids of the items that have features.

    Returns:
        The table; `lines_inside_cells` where quoted cells span lines.

    Raises:
        DataError: If the file is missing or cannot be read, a column is missing or there twice, a line is no object, or
            a quote swallows lines.
    """
    if path.suffix not in KINDS:
        raise DataError(f"{path}: expected .csv, .parquet or .jsonl. Convert the file.")
    table = _json_lines(path) if path.suffix == ".jsonl" else read_table(path)
    for name in (*KEYS, *targets, *([TIME] if TIME in table.columns else [])):
        column_of(table, path, name, "targets" if name in targets else None)
    known = dict.fromkeys(("item_a", "item_b"), items)
    table, lines = drop_swallowing(table, path, (*KEYS, *targets), TIME, BadRows(), known=known)
    try:
        texts = {
            name: pd.Series([_text(value) for value in table[name]], index=table.index, dtype="str")
            for name in dict.fromkeys((*KEYS, *targets))
        }
    except UnicodeError:
        raise DataError(f"{path}: not every text is UTF-8. Save the texts as UTF-8.") from None
    return table.assign(**texts), {"lines_inside_cells": lines} if lines else {}


def _json_lines(path: Path) -> pd.DataFrame:
    records = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            if not isinstance(record, dict):
                raise ValueError(f"a JSON {type(record).__name__}, expected an object")
            if twice := repeated_keys(record):
                raise ValueError(f"the key {shown(min(twice))} is there twice")
            if "\\u" in line and not plain_text(json.dumps(record, ensure_ascii=False)):
                raise ValueError("half of a character")
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {cut(str(error), 200)}. Mend or drop the line.") from None
        records.append(record)
    names = dict.fromkeys(name for record in records for name in record)
    return pd.DataFrame({name: pd.Series([record.get(name) for record in records], dtype=object) for name in names})


def _text(value: Any) -> str:
    """A cell as text: missing is "", whole floats lose their point (a column with gaps turns 2 into 2.0)."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def answer_times(table: pd.DataFrame, path: Path) -> np.ndarray | None:
    """When each comparison was made, in an order that can be compared: float64 (rows,); None where nothing says it.

    Raises:
        DataError: If a time is neither a number nor an ISO date, or of another unit than most.
    """
    if TIME not in table:
        return None
    times, _, _ = read_times(table[TIME], path, lambda row: f"{path}, row {row + 1}", BadRows())
    return times.astype(np.float64)
