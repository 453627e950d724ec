"""Item transitions: weighted counts of ordered pairs, sparse, from which each example can leave out its own pairs."""

from collections.abc import Iterable
from copy import copy

import numpy as np
from scipy.sparse import coo_array, csr_array, get_index_dtype

from minionerec.data.corpus import Corpus
from minionerec.data.rows import Side, ranges
from minionerec.data.windows import padded_windows

_BLOCK = 1 << 16  # entries whose pairs are added up together


def count_transitions(
    parts: Iterable[tuple[np.ndarray, ...]],
    size: int,
    reach: int,
    decay: float,
    reverse: float,
    sources: np.ndarray | None = None,
) -> csr_array:
    """Count which entry was a target after which, nearer pairs more; memory is that of a part, and of all pairs.

    A target counts 1 for the item right before it, `decay` for the one before that, and so on `reach` items back; the
    same pair counts `reverse` times as much the other way round.

    Args:
        parts: Some windows each: histories, int (W, L), entries from 1, 0 is padding (on the right); targets, int
            (W, L), the entry after each position, 0 where there is none; and the targets' weights, float (W, L), unless
            all are 1.
        size: Number of entries, N.
        reach: How many items back a pair counts.
        decay: Weight of each further step back.
        reverse: Weight of the other direction.
        sources: Only pairs that begin with these entries are counted, bool (size,); all if None.

    Returns:
        float32 (N, N), rows the entries before (numbered from 0) and columns, ascending, the targets.

    Example:
        >>> count_transitions([(np.array([[1, 2]]), np.array([[2, 3]]))], 3, 2, 0.5, 0.0).toarray().tolist()
        [[0.0, 1.0, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    shapes = [(min(_BLOCK, size - first), size) for first in range(0, size, _BLOCK)]
    sums = [(csr_array(shape, dtype=np.float64), csr_array(shape, dtype=np.float64)) for shape in shapes]
    for histories, targets, *weights in parts:
        table = _table(histories, targets, size, reach, decay, reverse, sources, *weights)
        for number, (whole, new) in enumerate(sums):
            own = table if len(sums) == 1 else table[number * _BLOCK : number * _BLOCK + whole.shape[0]]
            sums[number] = _added(whole, new, own)
    found = []
    while sums:  # each is freed as it is converted
        whole, new = sums.pop(0)
        table = whole + new
        table.sort_indices()
        found.append((np.diff(table.indptr), table.indices.astype(np.int32), table.data.astype(np.float32)))
    lengths, followers, counts = (np.concatenate(column) for column in zip(*found, strict=True))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(get_index_dtype(maxval=len(counts)))
    return csr_array((counts, followers, offsets), shape=(size, size))


def training_transitions(
    corpus: Corpus,
    width: int,
    reach: int,
    decay: float,
    reverse: float,
    padding: Side = "right",
    numbers: np.ndarray | None = None,
) -> csr_array:
    """`count_transitions` of the training windows of a corpus, and of no other example.

    Args:
        corpus: The corpus.
        width: Longest history of a window.
        reach: How many items back a pair counts.
        decay: Weight of each further step back.
        reverse: Weight of the other direction.
        padding: Side of the windows' padding, which changes no count but the order of summation.
        numbers: int64 (N,), the entry of each item, such as its SID number; its own index if None.
    """
    own = np.arange(corpus.n_items) if numbers is None else numbers
    entry = np.concatenate([[0], own + 1]).astype(np.int32)
    padded = (padded_windows(part, width, padding) for part in corpus.windows("train"))
    parts = ((entry[histories], entry[targets]) for histories, targets, _ in padded)
    return count_transitions(parts, int(entry.max()), reach, decay, reverse)


class TransitionPairs:
    """Pairs of entries with their distances, from which counts of any constants are made at once.

    `count_transitions` with other constants sorts the same pairs again; here they are sorted once.

    Args:
        parts: Histories and targets as of `count_transitions`, and the age of each target, float (W, L).
        size: Number of entries, N.
        reach: How many items back pairs are kept.
        sources: Only pairs that begin with these entries are kept, bool (size,).
    """

    def __init__(
        self, parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], size: int, reach: int, sources: np.ndarray
    ):
        found: list[tuple[np.ndarray, ...]] = []
        for histories, targets, ages in parts:
            for step in range(min(reach, histories.shape[1])):
                before, after = histories[:, : histories.shape[1] - step], targets[:, step:]
                kept = (before > 0) & (after > 0)
                pair, age = (before[kept] - 1, after[kept] - 1), ages[:, step:][kept].astype(np.float32)
                for back, (source, follower) in enumerate((pair, pair[::-1])):
                    wanted = sources[source]
                    steps = np.full(int(wanted.sum()), 2 * step + back, dtype=np.int8)
                    found.append((source[wanted], follower[wanted], steps, age[wanted]))
        columns = zip(*found, strict=True) if found else ((np.zeros(0, np.int64),) for _ in range(4))
        source, follower, steps, ages = (np.concatenate(list(column)) for column in columns)
        order = np.argsort(source.astype(np.int64) * size + follower, kind="stable")
        source, follower = source[order], follower[order]
        first = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(follower, prepend=-1) != 0))
        self.size, self._steps, self._ages, self._firsts = size, steps[order], ages[order], first
        self._followers = follower[first].astype(np.int32)
        self._offsets = np.append(0, np.cumsum(np.bincount(source[first], minlength=size)))
        self._newness: dict[float, np.ndarray] = {}

    def only(self, sources: np.ndarray) -> "TransitionPairs":
        """Those of them that begin with some entries, bool (size,)."""
        found = copy(self)
        entries = np.flatnonzero(np.repeat(sources, np.diff(self._offsets)))
        ends = np.append(self._firsts[1:], len(self._steps))
        positions = ranges(self._firsts[entries], ends[entries])
        found._steps, found._ages, found._newness = self._steps[positions], self._ages[positions], {}
        found._followers = self._followers[entries]
        found._firsts = np.append(0, np.cumsum(ends[entries] - self._firsts[entries]))[:-1]
        found._offsets = np.append(0, np.cumsum(np.where(sources, np.diff(self._offsets), 0)))
        return found

    def counts(self, reach: int, decay: float, reverse: float, half_life: float | None) -> csr_array:
        """The counts of `count_transitions`, a target of age `half_life` counting half: float32 (N, N).

        Args:
            reach: How many items back a pair counts; at most that of the pairs.
            decay: Weight of each further step back.
            reverse: Weight of the other direction.
            half_life: In the unit of the ages; None where targets of any age count the same.
        """
        steps = np.arange(2 * reach) // 2
        weights = np.zeros(1 << 7)
        weights[: 2 * reach] = np.where(np.arange(2 * reach) % 2 == 0, 1.0, reverse) * float(decay) ** steps
        values = weights[self._steps]
        if half_life is not None:
            if half_life not in self._newness:
                self._newness[half_life] = 0.5 ** (self._ages / half_life)
            values = values * self._newness[half_life]
        data = np.add.reduceat(values, self._firsts) if len(self._firsts) else np.zeros(0)
        found = csr_array(
            (data.astype(np.float32), self._followers.copy(), self._offsets.copy()), shape=(self.size, self.size)
        )
        found.eliminate_zeros()
        return found


def _added(whole: csr_array, new: csr_array, table: csr_array) -> tuple[csr_array, csr_array]:
    """Counts so far, which are the sum of both, with those of a part: adding takes as much memory again."""
    new = new + table
    if new.nnz > whole.nnz // 4:  # adding to all that was counted costs as much as that is large
        return whole + new, csr_array(whole.shape, dtype=np.float64)
    return whole, new


def _table(
    histories: np.ndarray,
    targets: np.ndarray,
    size: int,
    reach: int,
    decay: float,
    reverse: float,
    sources: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> csr_array:
    """The counts as a sparse matrix, a row an entry; of the rows `sources` alone, bool (size,), where it is given."""
    forth: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    back: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for step in range(min(reach, histories.shape[1])):
        before, after = histories[:, : histories.shape[1] - step], targets[:, step:]
        kept = (before > 0) & (after > 0)
        pair = before[kept] - 1, after[kept] - 1
        of_target = np.ones(len(pair[0])) if weights is None else weights[:, step:][kept]
        for found, (source, follower), weight in ((forth, pair, 1.0), (back, pair[::-1], reverse)):
            wanted = slice(None) if sources is None else sources[source]
            if weight and decay**step:
                found.append((source[wanted], follower[wanted], weight * decay**step * of_target[wanted]))
    source, follower, count = (np.concatenate(column) for column in zip(*forth, *back, strict=True))
    table = coo_array((count, (source, follower)), shape=(size, size)).tocsr()
    table.sum_duplicates()
    return table
