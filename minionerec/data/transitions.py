"""What followed what: weighted counts of ordered pairs, kept sparse, with each row able to leave its own pairs out."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array


@dataclass(frozen=True)
class Transitions:
    """Weighted counts of what came after what, row by row.

    Attributes:
        offsets: int64 (N + 1,); what came after entry i lies in places offsets[i] to offsets[i + 1] - 1.
        followers: int32 (E,), numbers from 0, ascending within a row.
        counts: float32 (E,).
    """

    offsets: np.ndarray
    followers: np.ndarray
    counts: np.ndarray


def count_transitions(
    histories: np.ndarray, targets: np.ndarray, size: int, reach: int, decay: float, reverse: float
) -> Transitions:
    """Count which entry was a target after which, nearer pairs more.

    A target counts 1 for the item right before it, `decay` for the one before that, and so on `reach` items back; the
    same pair counts `reverse` times as much the other way round.

    Args:
        histories: int (W, L), entries from 1, 0 is padding (on the right).
        targets: int (W, L), the entry after each position; 0 where there is none.
        size: Number of entries, N.
        reach: How many items back a pair counts.
        decay: Weight of each further step back.
        reverse: Weight of the other direction.

    Example:
        >>> found = count_transitions(np.array([[1, 2]]), np.array([[2, 3]]), 3, 2, 0.5, 0.0)
        >>> found.offsets.tolist(), found.followers.tolist(), found.counts.tolist()
        ([0, 2, 3, 3], [1, 2, 2], [1.0, 0.5, 1.0])
    """
    return _transitions(_table(histories, targets, size, reach, decay, reverse))


def count_transitions_in_parts(
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
    size: int,
    reach: int,
    decay: float,
    reverse: float,
    sources: np.ndarray | None = None,
) -> Transitions:
    """`count_transitions` of windows that come in parts: memory is that of a part, and of all pairs that were counted.

    Args:
        parts: Histories and targets of some windows each.
        size: Number of entries, N.
        reach: How many items back a pair counts.
        decay: Weight of each further step back.
        reverse: Weight of the other direction.
        sources: Only pairs that begin with these entries are counted, bool (size,); all if None.
    """
    whole = csr_array((size, size), dtype=np.float64)
    held = csr_array((size, size), dtype=np.float64)
    for histories, targets in parts:
        held = held + _table(histories, targets, size, reach, decay, reverse, sources)
        if held.nnz > whole.nnz // 4:  # adding to all that was counted costs as much as that is large
            whole, held = whole + held, csr_array((size, size), dtype=np.float64)
    return _transitions(whole + held)


def _table(
    histories: np.ndarray,
    targets: np.ndarray,
    size: int,
    reach: int,
    decay: float,
    reverse: float,
    sources: np.ndarray | None = None,
) -> csr_array:
    """The counts as a sparse matrix, a row an entry; of the rows `sources` alone, bool (size,), where it is given."""
    forth: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    back: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for step in range(min(reach, histories.shape[1])):
        before, after = histories[:, : histories.shape[1] - step], targets[:, step:]
        kept = (before > 0) & (after > 0)
        pair = before[kept] - 1, after[kept] - 1
        for found, (source, follower), weight in ((forth, pair, 1.0), (back, pair[::-1], reverse)):
            wanted = slice(None) if sources is None else sources[source]
            if weight:
                taken = source[wanted]
                found.append((taken, follower[wanted], np.full(len(taken), weight * decay**step)))
    source, follower, count = (np.concatenate(column) for column in zip(*forth, *back, strict=True))
    table = coo_array((count, (source, follower)), shape=(size, size)).tocsr()
    table.sum_duplicates()
    return table


def _transitions(table: csr_array) -> Transitions:
    table.sort_indices()
    return Transitions(table.indptr.astype(np.int64), table.indices.astype(np.int32), table.data.astype(np.float32))
