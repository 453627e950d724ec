"""`SidTable`: the mapping between items, code tuples and token strings."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from minionerec.core.artefacts import is_artefact, open_artefact, read_json, write_text_atomic
from minionerec.core.errors import DataError
from minionerec.core.parquet import readable
from minionerec.data.rows import LazySequence

_MAX_KEY = 2**62


def row_keys(codes: np.ndarray) -> np.ndarray:
    """Integer keys of rows of codes: equal for equal rows, and in the lexicographic order of the rows; -1 is first.

    Args:
        codes: int (N, L), at least -1.

    Returns:
        int64 (N,).

    Example:
        >>> row_keys(np.array([[1, 0], [0, 2], [0, -1], [1, 0]])).argsort(kind="stable").tolist()
        [2, 1, 0, 3]
    """
    keys = np.zeros(len(codes), dtype=np.int64)
    bound = 1  # exclusive upper bound of the keys
    for column in codes.T:
        width = int(column.max(initial=-1)) + 2
        if bound > _MAX_KEY // width:
            distinct, keys = np.unique(keys, return_inverse=True)
            bound = len(distinct)
        keys *= width
        keys += column
        keys += 1
        bound *= width
    return keys


def group_sizes(codes: np.ndarray) -> np.ndarray:
    """Multiplicity of each distinct row, in lexicographic order of the rows: int64 (G,)."""
    sizes: np.ndarray = np.unique(row_keys(codes), return_counts=True)[1]
    return sizes


def by_column(codes: np.ndarray) -> list[np.ndarray]:
    """The columns of a matrix as contiguous arrays."""
    return [np.ascontiguousarray(column) for column in codes.T]


def prefix_span(columns: Sequence[np.ndarray], prefix: Sequence[int]) -> tuple[int, int]:
    """Positions [first, last) of the rows that begin with a prefix, in a sorted table of codes.

    Args:
        columns: Columns of the table (`by_column`), int32 (G,) each.
        prefix: The codes of the first levels.
    """
    first, last = 0, len(columns[0])
    for column, code in zip(columns, prefix, strict=False):
        part, value = column[first:last], column.dtype.type(code)
        first, last = first + int(part.searchsorted(value)), first + int(part.searchsorted(value, side="right"))
    return first, last


CODES_FILE = "codes.parquet"
LARGE = 1 << 20
"""Items beyond which a table is written as `codes.parquet`, and its ids and token strings are created on access."""
_BLOCK = 1 << 16
_REMEDY = "Build the SIDs again (minionerec build-sids)."


class ItemIds(LazySequence[str]):
    """Item ids in one arrow array, each converted to `str` on access.

    Args:
        ids: Strings in a list, other `ItemIds`, or a pandas or arrow column.
    """

    def __init__(self, ids: Any):
        given: Any = ids.column if isinstance(ids, ItemIds) else ids.array if isinstance(ids, pd.Series) else ids
        column: Any = given if isinstance(given, pa.ChunkedArray | pa.Array) else pa.array(given)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        self.column: pa.ChunkedArray = pa.chunked_array(
            [chunk.cast(pa.large_string()) for chunk in chunks], pa.large_string()
        )
        super().__init__(len(self.column), lambda start, stop: self.column.slice(start, stop - start).to_pylist())

    def same(self, other: "ItemIds") -> bool:
        """Whether both hold the same ids in the same order."""
        return len(self) == len(other) and bool(pc.all(pc.equal(self.column, other.column)).as_py() is not False)

    def twice(self) -> str | None:
        """An id that occurs more than once; None if all differ."""
        if pc.count_distinct(self.column).as_py() == len(self):
            return None
        counted = pc.value_counts(self.column)
        return str(counted.filter(pc.greater(counted.field("counts"), 1))[0]["values"].as_py())

    def positions_of(self, other: "ItemIds") -> np.ndarray:
        """Index of each id of `other`: int64 (n,), -1 if it is missing."""
        indices = pc.fill_null(pc.index_in(other.column, value_set=self.column.combine_chunks()), -1)
        positions: np.ndarray = indices.to_numpy().astype(np.int64)
        return positions


def ids_of(items: pd.DataFrame) -> Sequence[str]:
    """The ids of items in order: a list, or `ItemIds` for more than `LARGE`."""
    column = items["item_id"].astype(str)
    return ItemIds(column) if len(column) > LARGE else column.tolist()


def hashed_ids(item_ids: Sequence[str]) -> "hashlib._Hash":
    """Hash object (SHA-256) that was fed the ids as a JSON list."""
    digest = hashlib.sha256(b"[")
    for start in range(0, len(item_ids), _BLOCK):
        digest.update((", " * (start > 0) + json.dumps(item_ids[start : start + _BLOCK])[1:-1]).encode())
    digest.update(b"]")
    return digest


def read_codes(path: Path) -> tuple[ItemIds, np.ndarray]:
    """Read a `codes.parquet` of `SidTable.save_index`.

    Returns:
        The N item ids, and their codes, int32 (N, L).

    Raises:
        ArtefactError: If the file cannot be read or has other columns, gaps, or codes below -1.
    """
    with readable(path, remedy=_REMEDY):
        file = pq.ParquetFile(path)
        names, types = file.schema_arrow.names, file.schema_arrow.types
        width = len(names) - 1
        text = bool(names) and (pa.types.is_large_string(types[0]) or pa.types.is_string(types[0]))
        fits = names == ["item_id", *LEVELS[:width]] and text and all(kind == pa.int32() for kind in types[1:])
        if not fits or width < 1:
            raise ValueError(f"it has columns {', '.join(names)[:100]}; expected item_id, text, and a, b, ..., int32")
        ids = file.read(columns=["item_id"])["item_id"]
        codes = np.empty((len(ids), width), dtype=np.int32)
        for level, name in enumerate(names[1:]):
            column = file.read(columns=[name])[name]
            if column.null_count:
                raise ValueError(f"column {name!r} has missing values")
            codes[:, level] = column.to_numpy()
        if ids.null_count or codes.min(initial=0) < -1:
            raise ValueError("it has items without an id" if ids.null_count else "it has codes below -1")
        ids.validate(full=True)
    return ItemIds(ids), codes


LEVELS = (*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase))
"""Names of levels: a to z, then aa to zz."""
INDEX_FILE = "index.json"
LARGEST_CODE = 2**20 - 1
"""Largest code of a level; arrays over codes are allocated up to this size."""

_TOKEN = re.compile(r"<([a-z]{1,2})_(0|[1-9][0-9]*)>")
_SID = re.compile(r"(?:<[a-z]{1,2}_(?:0|[1-9][0-9]*)>)+")


def code_token(level: int, code: int) -> str:
    """Token string of one code.

    Example:
        >>> code_token(0, 12)
        '<a_12>'
    """
    return f"<{LEVELS[level]}_{code}>"


def split_sid(text: str) -> tuple[str, ...] | None:
    """Split an SID in text form into its token strings; None if the text is not exactly one SID.

    White space around the SID is ignored. Levels must be those of `LEVELS` in order; codes are ASCII digits without
    leading zeros.

    Example:
        >>> split_sid("<a_12><b_7><c_201>")
        ('<a_12>', '<b_7>', '<c_201>')
        >>> split_sid("<b_7><a_12>") is None
        True
    """
    text = text.strip()
    if not _SID.fullmatch(text):
        return None
    matches = list(_TOKEN.finditer(text))
    if any(match[1] != level for match, level in zip(matches, LEVELS, strict=False)):
        return None
    return tuple(match[0] for match in matches)


class SidTable:
    """Semantic IDs of all items of one corpus.

    Args:
        codes: int (N, L), row i = item index i; -1 fills the end of SIDs shorter than L.
        item_ids: The N original item ids, in item order.

    Raises:
        DataError: If shapes disagree, an item occurs twice or has no code, a code is above `LARGEST_CODE`, or one is
            missing in the middle of an SID.

    Example:
        >>> table = SidTable(np.array([[0, 1], [0, 2]]), ["x", "y"])
        >>> table.sids, table.items_of("<a_0><b_2>")
        (['<a_0><b_1>', '<a_0><b_2>'], [1])
    """

    unit: ClassVar[str] = "SID"

    def __init__(self, codes: np.ndarray, item_ids: Sequence[str]):
        codes = np.asarray(codes)
        if len(item_ids) == 0:
            raise DataError("the SID table is empty; it needs at least one item.")
        if codes.size and codes.max() > LARGEST_CODE:
            raise DataError(f"the SID table holds the code {codes.max()}; codes are at most {LARGEST_CODE}.")
        codes = np.ascontiguousarray(codes, dtype=np.int32)
        if codes.ndim != 2 or len(codes) != len(item_ids) or not 1 <= codes.shape[1] <= len(LEVELS):
            raise DataError(f"codes have shape {codes.shape}; expected ({len(item_ids)}, 1 to {len(LEVELS)} levels).")
        present = codes >= 0
        invalid = np.flatnonzero(~present[:, 0] | (np.diff(present.astype(np.int8), axis=1) > 0).any(axis=1))
        if len(invalid):
            raise DataError(
                f"item {item_ids[invalid[0]]!r} has codes {codes[invalid[0]].tolist()}: a level is missing."
            )
        self.codes = codes
        self.item_ids: Sequence[str] = _stored_ids(item_ids)
        duplicate = _duplicate(self.item_ids)
        if duplicate is not None:
            raise DataError(f"item {duplicate!r} occurs twice; give each item one SID.")

    def __len__(self) -> int:
        """Number of items, N."""
        return len(self.codes)

    @property
    def levels(self) -> int:
        """Number of levels of the longest SID, L."""
        return int(self.codes.shape[1])

    def _tokens_between(self, start: int, stop: int) -> list[tuple[str, ...]]:
        sids = self.codes[start:stop].tolist()
        return [tuple(code_token(level, code) for level, code in enumerate(sid) if code >= 0) for sid in sids]

    @cached_property
    def token_tuples(self) -> Sequence[tuple[str, ...]]:
        """Token strings of each item's SID, in item order: a list, or computed on access beyond `LARGE` items."""
        tokens = LazySequence(len(self), self._tokens_between)
        return tokens if len(self) > LARGE else list(tokens)

    @cached_property
    def sids(self) -> Sequence[str]:
        """SID string of each item, in item order: a list, or computed on access beyond `LARGE` items."""
        sids = LazySequence(
            len(self), lambda start, stop: ["".join(tokens) for tokens in self.token_tuples[start:stop]]
        )
        return sids if len(self) > LARGE else list(sids)

    @cached_property
    def tokens(self) -> list[str]:
        """All distinct token strings in string order, which is their order in vocabularies."""
        used = (np.unique(column[column >= 0]).tolist() for column in self.codes.T)
        return sorted(code_token(level, code) for level, codes in enumerate(used) for code in codes)

    def items_of(self, sid: str) -> list[int]:
        """Indices of the items with an SID, ascending; empty if there are none."""
        parts = split_sid(sid)
        if parts is None or len(parts) > self.levels or sid != "".join(parts):
            return []
        codes = [_code_of(part) for part in parts]
        prefix = codes + [-1] * (self.levels - len(codes))
        first, last = prefix_span(self._columns, prefix) if max(codes) <= LARGEST_CODE else (0, 0)
        if first == last:
            return []
        order, starts = self._by_number
        items: list[int] = order[starts[first] : starts[first + 1]].tolist()
        return items

    @cached_property
    def _columns(self) -> list[np.ndarray]:
        return by_column(self.distinct_codes)

    @cached_property
    def _by_number(self) -> tuple[np.ndarray, np.ndarray]:
        """Items in the order of their SIDs' numbers, and the start of each number's span."""
        order = np.argsort(self.sid_numbers, kind="stable")
        return order, np.concatenate([[0], np.cumsum(np.bincount(self.sid_numbers))])

    @cached_property
    def _distinct(self) -> tuple[np.ndarray, np.ndarray]:
        _, first, numbers = np.unique(row_keys(self.codes), return_index=True, return_inverse=True)
        return np.ascontiguousarray(self.codes[first]), numbers.reshape(-1).astype(np.int64, copy=False)

    @property
    def sid_numbers(self) -> np.ndarray:
        """Number of each item's SID among the distinct SIDs in order of their codes, as in the trie: int64 (N,)."""
        return self._distinct[1]

    @property
    def distinct_codes(self) -> np.ndarray:
        """Codes of each distinct SID in the order of `sid_numbers`: int32 (n_unique, L), -1 after shorter SIDs."""
        return self._distinct[0]

    @property
    def n_unique(self) -> int:
        """Number of distinct SIDs."""
        return len(self.distinct_codes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of item ids and codes: equal for equal tables, however stored."""
        digest = hashed_ids(self.item_ids)
        digest.update(repr(self.codes.shape).encode())
        digest.update(self.codes.data)
        return digest.hexdigest()

    def check_items(self, item_ids: Sequence[str], where: str) -> None:
        """Check that the table has exactly these items in this order.

        Raises:
            DataError: Naming the first item that differs.
        """
        if len(item_ids) != len(self):
            raise DataError(
                f"{where}: {len(item_ids)} items, but the SID table has {len(self)}. Build SIDs for this corpus."
            )
        if isinstance(self.item_ids, ItemIds) and self.item_ids.same(ItemIds(item_ids)):
            return
        for item, (own_id, given_id) in enumerate(zip(self.item_ids, item_ids, strict=True)):
            if own_id != given_id:
                raise DataError(
                    f"{where}: item {item} is {given_id!r}, in the SID table {own_id!r}. Build SIDs for this corpus."
                )

    def save_index(self, path: str | os.PathLike[str]) -> None:
        """Write the published form: a JSON object of item id → list of token strings, in item order.

        More than `LARGE` items are written as `codes.parquet` in the same folder instead: column `item_id`, and an
        int32 column named after each level, -1 after the end of an SID.

        Args:
            path: Path of `index.json`.
        """
        if isinstance(self.item_ids, ItemIds):
            columns = {"item_id": self.item_ids.column, **dict(zip(LEVELS, self.codes.T, strict=False))}
            file = Path(path).with_name(CODES_FILE)
            pq.write_table(pa.table(columns), file, compression="zstd", row_group_size=_BLOCK)
            return
        content = {item_id: list(tokens) for item_id, tokens in zip(self.item_ids, self.token_tuples, strict=True)}
        write_text_atomic(path, json.dumps(content))

    @classmethod
    def load_index(cls, path: str | os.PathLike[str], item_ids: Sequence[str] | None = None) -> "SidTable":
        """Read the published form, or `codes.parquet`.

        Args:
            path: An `index.json` or `codes.parquet` file, or a directory that holds one; if an `index.json` does not
                exist, `codes.parquet` in the same folder is read.
            item_ids: Items of the corpus in item order; the order of the file if None.

        Raises:
            ArtefactError: If the file is missing or cannot be read, or the directory is an artefact that was changed.
            DataError: If an item has no SID, or a list of tokens is not an SID; the message names file and item.
        """
        path = Path(path)
        if path.is_dir():
            if is_artefact(path):
                open_artefact(path)
            path = path / INDEX_FILE
        path = index_path(path)
        if path.suffix == ".parquet":
            return cls._from_codes(path, item_ids)
        content = read_json(path)
        if not isinstance(content, dict):
            raise DataError(f"{path}: expected an object of item id → token strings, got {type(content).__name__}.")
        item_ids = list(content) if item_ids is None else [str(item_id) for item_id in item_ids]
        sids = []
        for item_id in item_ids:
            if item_id not in content:
                raise _without_sid(path, item_id)
            sids.append(_codes_of(content[item_id], item_id, path))
        levels = max((len(sid) for sid in sids), default=0)
        codes = np.full((len(sids), levels), -1, dtype=np.int32)
        for item, sid in enumerate(sids):
            codes[item, : len(sid)] = sid
        return cls(codes, item_ids)

    @classmethod
    def _from_codes(cls, path: Path, item_ids: Sequence[str] | None) -> "SidTable":
        ids, codes = read_codes(path)
        requested_ids = ids if item_ids is None else ItemIds(item_ids)
        if requested_ids is not ids and not ids.same(requested_ids):
            positions = ids.positions_of(requested_ids)
            if (positions < 0).any():
                raise _without_sid(path, requested_ids[int((positions < 0).argmax())])
            codes = codes[positions]
            used = (codes >= 0).any(axis=0)
            codes = codes[:, : int(used.sum())]
        return cls(codes, requested_ids)


def index_path(path: Path) -> Path:
    """The path of an `index.json`, or of the `codes.parquet` in the same folder if only that exists."""
    codes = path.with_name(CODES_FILE)
    return codes if path.name == INDEX_FILE and not path.is_file() and codes.is_file() else path


def index_size(path: Path) -> int:
    """Number of items of a valid `index.json` or `codes.parquet`."""
    return len(read_codes(path)[0]) if path.suffix == ".parquet" else len(read_json(path))


def _without_sid(path: Path, item_id: str) -> DataError:
    return DataError(f"{path}: item {item_id!r} has no SID. Build SIDs for this corpus (minionerec build-sids).")


def _stored_ids(item_ids: Sequence[str]) -> Sequence[str]:
    """Item ids as `SidTable` stores them."""
    if len(item_ids) > LARGE:
        return item_ids if isinstance(item_ids, ItemIds) else ItemIds([str(item_id) for item_id in item_ids])
    return tuple(str(item_id) for item_id in item_ids)


def _duplicate(item_ids: Sequence[str]) -> str | None:
    """An id that occurs twice; None if all differ."""
    if isinstance(item_ids, ItemIds):
        return item_ids.twice()
    if len(set(item_ids)) == len(item_ids):
        return None
    return next(item_id for item_id, count in Counter(item_ids).items() if count > 1)


def _code_of(token: str) -> int:
    """The code of a token; `LARGEST_CODE` + 1 if it has more digits than the largest code."""
    digits = token[token.index("_") + 1 : -1]
    return int(digits) if len(digits) <= len(str(LARGEST_CODE)) else LARGEST_CODE + 1


def _codes_of(tokens: object, item_id: str, path: Path) -> list[int]:
    """Codes of one item's list of token strings.

    Raises:
        DataError: If the tokens are no SID, or a code is too large.
    """
    text = "".join(tokens) if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens) else ""
    parts = split_sid(text)
    if parts is None or len(parts) > len(LEVELS):
        raise DataError(f"{path}: item {item_id!r} has {tokens!r}, expected token strings such as ['<a_1>', '<b_2>'].")
    codes = [_code_of(part) for part in parts]
    for part, code in zip(parts, codes, strict=True):
        if code > LARGEST_CODE:
            raise DataError(f"{path}: item {item_id!r} has the token {part[:40]!r}; codes are at most {LARGEST_CODE}.")
    return codes
