"""The flat arrays of a trie, made from a code table by sorting: no node is ever an object."""

from dataclasses import dataclass

import numpy as np

from minionerec.core.errors import DataError


@dataclass(frozen=True)
class TrieArrays:
    """A trie as arrays; see `minionerec.models.decoding.trie.Trie`, which looks things up in them.

    Attributes:
        first_child: int32 (M + 1,).
        code: int32 (M,).
        sid: int32 (M,).
        code_tokens: int64 (L, C).
        level_start: L + 2 numbers.
    """

    first_child: np.ndarray
    code: np.ndarray
    sid: np.ndarray
    code_tokens: np.ndarray
    level_start: tuple[int, ...]


def build_arrays(codes: np.ndarray, token_ids: np.ndarray) -> TrieArrays:
    """The trie of a code table.

    Args:
        codes: int (N, L), one row an item, -1 filling the end of shorter SIDs; rows may repeat.
        token_ids: int64 (L, C), vocabulary id of each code.

    Raises:
        DataError: If there is no SID, a row has a gap, or a code has no vocabulary id.
    """
    if codes.ndim != 2 or 0 in codes.shape:
        raise DataError(f"cannot build a trie over codes of shape {codes.shape}; it needs at least one SID.")
    columns = _sorted_distinct(codes)
    n, levels = len(columns[0]), len(columns)
    code_tokens = np.full((levels, token_ids.shape[1]), -1, dtype=np.int64)
    code_tokens[: len(token_ids)] = token_ids[:levels]
    deepest = np.zeros(n, dtype=np.int32)  # deepest node so far on each SID's path
    changed = np.zeros(n, dtype=bool)  # whether an SID's path so far differs from that of the SID before it
    changed[0] = True
    level_codes, child_counts, level_start = [np.array([-1], np.int32)], [], [0, 1]
    for level, column in enumerate(columns):
        changed[1:] |= column[1:] != column[:-1]
        alive = column >= 0
        fresh = changed & alive  # the first SID of each node of this level
        _check_tokens(column[fresh], code_tokens[level], level)
        level_codes.append(column[fresh])
        parents = deepest[fresh] - level_start[-2]
        child_counts.append(np.bincount(parents, minlength=level_start[-1] - level_start[-2]))
        numbers = np.cumsum(fresh, dtype=np.int32)
        level_start.append(level_start[-1] + int(numbers[-1]))
        numbers += level_start[-2] - 1
        np.copyto(deepest, numbers, where=alive)
    total, inner = level_start[-1], level_start[-2]
    first_child = np.full(total + 1, total, dtype=np.int32)
    first_child[0] = 1
    np.cumsum(np.concatenate(child_counts), out=first_child[1 : inner + 1])
    first_child[1 : inner + 1] += 1
    sid = np.full(total, -1, dtype=np.int32)
    sid[deepest] = np.arange(n, dtype=np.int32)
    return TrieArrays(first_child, np.concatenate(level_codes), sid, code_tokens, tuple(level_start))


def _check_tokens(codes: np.ndarray, tokens: np.ndarray, level: int) -> None:
    """Raise where a code of one level has no vocabulary id."""
    known = np.zeros(max(len(tokens), int(codes.max()) + 1), dtype=bool)
    known[: len(tokens)] = tokens >= 0
    missing = ~known[codes]
    if missing.any():
        raise DataError(f"code {codes[missing][0]} of level {level + 1} has no token in the vocabulary.")


def _sorted_distinct(codes: np.ndarray) -> list[np.ndarray]:
    """The distinct rows in lexicographic order, as one int32 array a level; levels that no row reaches are left out.

    Rows are packed into as few 63-bit words as hold them and the words are sorted: for one word that is a plain sort
    of integers.
    """
    levels = codes.shape[1]
    if codes.min() < 0:
        codes = np.maximum(codes, -1)
        gap = codes[:, 0] < 0
        for level in range(1, levels):
            gap |= (codes[:, level] >= 0) & (codes[:, level - 1] < 0)
        if gap.any():
            row = int(np.flatnonzero(gap)[0])
            raise DataError(f"row {row} of the codes is {codes[row].tolist()}: a level is missing.")
    highest = codes.max(0)
    while highest[levels - 1] < 0:
        levels -= 1
    words: list[np.ndarray] = []
    members: list[list[int]] = []  # levels in each word
    room = 0
    for level in range(levels):
        radix = int(highest[level]) + 2
        if room < radix:
            words.append(np.zeros(len(codes), dtype=np.int64))
            members.append([])
            room = 2**63 - 1
        words[-1] *= radix
        words[-1] += codes[:, level]
        words[-1] += 1
        members[-1].append(level)
        room //= radix
    if len(words) == 1:
        words[0].sort()
    else:
        order = np.lexsort(words[::-1])
        words = [word[order] for word in words]
    keep = np.zeros(len(codes), dtype=bool)
    keep[0] = True
    for word in words:
        keep[1:] |= word[1:] != word[:-1]
    columns: dict[int, np.ndarray] = {}
    while words:
        word, inside = words.pop()[keep], members.pop()
        for level in reversed(inside):
            radix = int(highest[level]) + 2
            rest = word // radix
            columns[level] = (word - rest * radix - 1).astype(np.int32)
            word = rest
    return [columns[level] for level in range(levels)]
