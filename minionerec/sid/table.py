"""`SidTable`, the only owner of item ↔ code tuple ↔ token string."""

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import ClassVar

import numpy as np

from minionerec.core.artefacts import is_artefact, open_artefact, read_json, write_text_atomic
from minionerec.core.errors import DataError

LEVELS = (*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase))
"""Names of levels: a to z, then aa to zz."""
INDEX_FILE = "index.json"
LARGEST_CODE = 2**20 - 1
"""Codes of a level are 0 to this: tables of codes are made that wide."""

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
    """The token strings of one SID in text form, or None where the text is not exactly one SID.

    White space around the SID is ignored; levels must be those of `LEVELS` in order, and a code has one form alone:
    ASCII digits, no leading zeros.

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
        DataError: If shapes disagree, an item is there twice or has no code, a code is above `LARGEST_CODE`, or one is
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
        bad = np.flatnonzero(~present[:, 0] | (np.diff(present.astype(np.int8), axis=1) > 0).any(axis=1))
        if len(bad):
            raise DataError(f"item {item_ids[bad[0]]!r} has codes {codes[bad[0]].tolist()}: a level is missing.")
        self.codes = codes
        self.item_ids = tuple(str(item_id) for item_id in item_ids)
        if len(set(self.item_ids)) < len(self):
            twice = next(item_id for item_id, count in Counter(self.item_ids).items() if count > 1)
            raise DataError(f"item {twice!r} is there twice; give each item one SID.")

    def __len__(self) -> int:
        """Number of items, N."""
        return len(self.codes)

    @property
    def levels(self) -> int:
        """Most levels that an SID has, L."""
        return int(self.codes.shape[1])

    @cached_property
    def token_tuples(self) -> list[tuple[str, ...]]:
        """Token strings of each item's SID, in item order."""
        return [
            tuple(code_token(level, code) for level, code in enumerate(row) if code >= 0) for row in self.codes.tolist()
        ]

    @cached_property
    def sids(self) -> list[str]:
        """SID string of each item, in item order."""
        return ["".join(tokens) for tokens in self.token_tuples]

    @cached_property
    def tokens(self) -> list[str]:
        """All distinct token strings, in string order: the order in which vocabularies take them."""
        return sorted({token for tokens in self.token_tuples for token in tokens})

    @cached_property
    def _items_of(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for item, sid in enumerate(self.sids):
            found[sid].append(item)
        return dict(found)

    def items_of(self, sid: str) -> list[int]:
        """Item indices that bear an SID, ascending; empty where none does."""
        return list(self._items_of.get(sid, ()))

    @cached_property
    def sid_numbers(self) -> np.ndarray:
        """Number of each item's SID among the distinct SIDs in order of their codes, as in the trie: int64 (N,)."""
        return np.unique(self.codes, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def distinct_codes(self) -> np.ndarray:
        """Codes of each distinct SID in the order of `sid_numbers`: int32 (n_unique, L), -1 behind shorter SIDs."""
        return np.unique(self.codes, axis=0)

    @property
    def n_unique(self) -> int:
        """Number of distinct SIDs."""
        return len(self._items_of)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of item ids and codes: equal for equal tables, however stored."""
        content = json.dumps(self.item_ids).encode() + repr(self.codes.shape).encode() + self.codes.tobytes()
        return hashlib.sha256(content).hexdigest()

    def check_items(self, item_ids: Sequence[str], where: str) -> None:
        """Check that the table speaks of exactly these items in this order.

        Raises:
            DataError: Naming the first item that differs.
        """
        if len(item_ids) != len(self):
            raise DataError(
                f"{where}: {len(item_ids)} items, but the SID table has {len(self)}. Build SIDs for this corpus."
            )
        for place, (ours, theirs) in enumerate(zip(self.item_ids, item_ids, strict=True)):
            if ours != theirs:
                raise DataError(
                    f"{where}: item {place} is {theirs!r}, in the SID table {ours!r}. Build SIDs for this corpus."
                )

    def save_index(self, path: str | os.PathLike[str]) -> None:
        """Write the published form: a JSON object of item id → list of token strings, in item order."""
        content = {item_id: list(tokens) for item_id, tokens in zip(self.item_ids, self.token_tuples, strict=True)}
        write_text_atomic(path, json.dumps(content))

    @classmethod
    def load_index(cls, path: str | os.PathLike[str], item_ids: Sequence[str] | None = None) -> "SidTable":
        """Read the published form.

        Args:
            path: An `index.json` file, or a directory that holds one.
            item_ids: The corpus's items in item order; the file's own order if None.

        Raises:
            ArtefactError: If the file is missing or is not JSON, or the directory is a finished artefact of which a
                file was changed since it was written.
            DataError: If an item has no SID, or a list of tokens is not an SID; the message names file and item.
        """
        path = Path(path)
        if path.is_dir():
            if is_artefact(path):
                open_artefact(path)
            path = path / INDEX_FILE
        content = read_json(path)
        if not isinstance(content, dict):
            raise DataError(f"{path}: expected an object of item id → token strings, got {type(content).__name__}.")
        item_ids = list(content) if item_ids is None else [str(item_id) for item_id in item_ids]
        rows = []
        for item_id in item_ids:
            if item_id not in content:
                raise DataError(
                    f"{path}: item {item_id!r} has no SID. Build SIDs for this corpus (minionerec build-sids)."
                )
            rows.append(_codes_of(content[item_id], item_id, path))
        levels = max((len(row) for row in rows), default=0)
        codes = np.full((len(rows), levels), -1, dtype=np.int32)
        for place, row in enumerate(rows):
            codes[place, : len(row)] = row
        return cls(codes, item_ids)


def _codes_of(tokens: object, item_id: str, path: Path) -> list[int]:
    """Codes of one item's list of token strings.

    Raises:
        DataError: If it is not an SID, or a code is too large.
    """
    text = "".join(tokens) if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens) else ""
    parts = split_sid(text)
    if parts is None or len(parts) > len(LEVELS):
        raise DataError(f"{path}: item {item_id!r} has {tokens!r}, expected token strings such as ['<a_1>', '<b_2>'].")
    codes = [part[part.index("_") + 1 : -1] for part in parts]
    for part, code in zip(parts, codes, strict=True):
        if len(code) > len(str(LARGEST_CODE)) or int(code) > LARGEST_CODE:
            raise DataError(f"{path}: item {item_id!r} has the token {part[:40]!r}; codes are at most {LARGEST_CODE}.")
    return [int(code) for code in codes]
