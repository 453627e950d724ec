"""What followed what: weighted counts of ordered pairs, kept sparse, with each row able to leave its own pairs out."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array


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
    sources, followers, counts = [], [], []
    for back in range(min(reach, histories.shape[1])):
        before, after = histories[:, : histories.shape[1] - back], targets[:, back:]
        kept = (before > 0) & (after > 0)
        sources.append(before[kept] - 1)
        followers.append(after[kept] - 1)
        counts.append(np.full(int(kept.sum()), decay**back))
    source, follower, count = (np.concatenate(part) for part in (sources, followers, counts))
    if reverse:
        source, follower = np.concatenate([source, follower]), np.concatenate([follower, source])
        count = np.concatenate([count, reverse * count])
    table = coo_array((count, (source, follower)), shape=(size, size)).tocsr()
    table.sum_duplicates()
    return Transitions(table.indptr.astype(np.int64), table.indices.astype(np.int32), table.data.astype(np.float32))


def rows_of(offsets: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of all entries of some rows of a table in the form of `Transitions`.

    Args:
        offsets: int64 (N + 1,).
        rows: int64 (R,).

    Returns:
        For each entry the place of its row in `rows`, and its place in the table; both int64 (E,).
    """
    first, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    owner = torch.arange(len(rows), device=rows.device).repeat_interleave(lengths)
    begin = torch.cumsum(lengths, 0) - lengths
    return owner, torch.arange(len(owner), device=rows.device) - begin[owner] + first[owner]


def own_counts(
    histories: torch.Tensor,
    targets: torch.Tensor,
    entries: torch.Tensor,
    first: torch.Tensor,
    reach: int,
    decay: float,
    reverse: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What windows themselves added to rows of the counts, by their targets from some position on.

    Args:
        histories: int64 (K, L), the window of each row; 0 is padding on the right.
        targets: int64 (K, L), as counted; 0 or less where there is none.
        entries: int64 (K,), the entry, from 1, whose row it is.
        first: int64 (K,), the position behind which targets count.
        reach: As counted.
        decay: As counted.
        reverse: As counted.

    Returns:
        Twice float32 (K, L): what was added for the target behind each position, which followed the entry; and for the
        item at each position, which the entry followed.
    """
    place = torch.arange(histories.shape[1], device=histories.device)
    back = place[None, :] - place[:, None]  # from a position to the one whose target counts
    weight = torch.where((back >= 0) & (back < reach), float(decay) ** back.clamp(min=0), 0.0)
    counts = (place >= first[:, None]) & (targets > 0)
    with torch.autocast(histories.device.type, enabled=False):  # what rounding left over would tell the answer
        after = (histories == entries[:, None]).float() @ weight
        before = ((targets == entries[:, None]) & counts).float() @ weight.T
    return after * counts, reverse * before * (histories > 0)
