"""Three rankers that need no training: whatever learns must beat them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from scipy.sparse import csr_array

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import corpus_windows
from minionerec.data.sequences import Split, Windows
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import windows_in_parts
from minionerec.data.transitions import count_transitions_in_parts
from minionerec.rankers.allowed import Allowed
from minionerec.rankers.candidates import CandidateMasks, Groups, list_items, ranked_items
from minionerec.rankers.protocol import Ranker, Ranking

POPULARITY, LAST_ITEM, FOLLOWED = "popularity", "same as last item", "what followed"
"""Names of the floors, in tables and in files."""

_ROWS_AT_ONCE = 1024
_PART = 1 << 18  # windows that are counted at a time
_REACH, _DECAY, _REVERSE = 10, 0.6, 0.3


@dataclass(frozen=True)
class TrainingRows:
    """What floors are counted from: training rows alone.

    Attributes:
        popularity: int64 (N,), how often each item is a training target.
        windows: Training targets with what came before them, items from 1; of a corpus on disk the corpus.
        numbers: int64 (N,), candidate of each item: the number of its SID, or its own where there are no SIDs.
        what: What the candidates are, for messages.
    """

    popularity: np.ndarray
    windows: Windows | StoredCorpus
    numbers: np.ndarray
    what: str

    @classmethod
    def of(cls, data: Corpus | StoredCorpus | Split, table: Groups | None = None) -> "TrainingRows":
        """The training rows of a corpus, or of the split that a protocol made.

        Args:
            data: The data; a corpus on disk is read a part at a time.
            table: SIDs of the same items; without them every item is a candidate of its own.
        """
        if isinstance(data, Corpus):
            windows: Windows | StoredCorpus = corpus_windows(data, data.max_history, "right")
        else:
            windows = data if isinstance(data, StoredCorpus) else data.windows
        popularity = data.popularity()
        if table is None:
            return cls(popularity, windows, np.arange(len(popularity)), "items")
        return cls(popularity, windows, table.sid_numbers, f"distinct {table.unit}s")

    @property
    def are_many(self) -> bool:
        """Whether all pairs of them would be too many to keep."""
        return isinstance(self.windows, StoredCorpus) or len(self.windows) > _PART

    def parts(self) -> Iterator[Windows]:
        """The windows, at most about `_PART` of them at a time."""
        if isinstance(self.windows, StoredCorpus):
            yield from windows_in_parts(self.windows, "train", _PART)
            return
        for start in range(0, max(1, len(self.windows)), _PART):
            part = slice(start, start + _PART)
            yield Windows(self.windows.histories[part], self.windows.targets[part])

    @cached_property
    def popular_items(self) -> list[int]:
        """All items by how often they are a training target, ties by item index."""
        order: list[int] = np.argsort(-self.popularity, kind="stable").tolist()
        return order

    def check_k(self, k: int) -> None:
        """Check the number of candidates that lists are to hold.

        Raises:
            ConfigError: If there are fewer.
        """
        known = int(self.numbers.max()) + 1
        if not 1 <= k <= known:
            raise ConfigError(f"k is {k}; expected 1 to {known}, the number of {self.what}. Give a smaller K.")

    def first_candidates(self, items: Iterable[int], k: int, allowed: np.ndarray | None) -> list[int]:
        """Distinct items in order, those that are allowed, until they bear `k` distinct candidates."""
        chosen: dict[int, None] = {}
        seen: set[int] = set()
        for item in items:
            if allowed is not None and not allowed[item]:
                continue
            number = int(self.numbers[item])
            if number not in seen and len(seen) == k:
                break
            seen.add(number)
            chosen[item] = None
        return list(chosen)


def by_place(lists: Sequence[Sequence[int]]) -> Ranking:
    """Lists whose scores say the place and nothing else."""
    return Ranking(lists, [[-float(place) for place in range(1, len(row) + 1)] for row in lists])


@dataclass(frozen=True)
class Popularity:
    """The same list for everybody: the items that are most often a training target, ties by item index.

    Attributes:
        rows: What it is counted from.
    """

    rows: TrainingRows

    def rank(self, histories: Sequence[np.ndarray], k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.rankers.protocol.Ranker`.

        Raises:
            ConfigError: If there are fewer than `k` candidates.
        """
        self.rows.check_k(k)
        popular = self.rows.popular_items
        if allowed is None:
            return by_place([self.rows.first_candidates(popular, k, None)] * len(histories))
        return by_place([self.rows.first_candidates(popular, k, allowed.row(row)) for row in range(len(histories))])


@dataclass(frozen=True)
class SameAsLastItem:
    """Each user's history, most recent first, then the popular items.

    Attributes:
        rows: What popularity is counted from.
    """

    rows: TrainingRows

    def rank(self, histories: Sequence[np.ndarray], k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.rankers.protocol.Ranker`.

        Raises:
            ConfigError: If there are fewer than `k` candidates.
        """
        self.rows.check_k(k)
        popular = self.rows.popular_items
        lists = [
            self.rows.first_candidates(
                chain(reversed(np.asarray(history).tolist()), popular), k, None if allowed is None else allowed.row(row)
            )
            for row, history in enumerate(histories)
        ]
        return by_place(lists)


class WhatFollowed:
    """Candidates by how often they came after those of the history, then the popular ones.

    A pair of training items counts 1, times 0.6 for each item between them, up to ten items back, and 0.3 of that in
    the other direction. A history's items count 1, times 0.6 for each step back, and each is divided by the square root
    of how often it was counted. Of equal scores the candidate with the more popular items comes first.

    Of more than `_PART` windows only those pairs are counted, anew for each question, that begin with an item which is
    asked about: all pairs of a hundred million choices would not fit into memory.

    Args:
        rows: What pairs and popularity are counted from.
    """

    def __init__(self, rows: TrainingRows):
        self.rows = rows
        self.size = size = int(rows.numbers.max()) + 1
        self.followed = None if rows.are_many else self._counted()
        self.popularity = np.bincount(rows.numbers, rows.popularity, size)
        self.by_popularity = np.argsort(-self.popularity, kind="stable")
        self.behind = ranked_items(rows.numbers, rows.popularity)
        self.masks = CandidateMasks(rows.numbers)

    def rank(self, histories: Sequence[np.ndarray], k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.rankers.protocol.Ranker`.

        Raises:
            ConfigError: If there are fewer than `k` candidates.
        """
        self.rows.check_k(k)
        newest = [self.rows.numbers[np.asarray(history, dtype=np.int64)[::-1][:_REACH]] for history in histories]
        followed = self._counted(newest) if self.followed is None else self.followed
        rarity = 1 / np.sqrt(np.asarray(followed.sum(1)).ravel() + 1)
        lists: list[list[int]] = []
        for start in range(0, len(newest), _ROWS_AT_ONCE):
            scores = _asked(newest[start : start + _ROWS_AT_ONCE], rarity) @ followed
            for row, (first, end) in enumerate(pairwise(scores.indptr), start):
                mask = None if allowed is None else allowed.row(row)
                ranked = self._ranked(scores.indices[first:end], scores.data[first:end], k, mask)
                lists.append(list_items(ranked.tolist(), self.behind, k, mask)[0])
        return by_place(lists)

    def _counted(self, asked: Sequence[np.ndarray] | None = None) -> csr_array:
        """What followed what: (candidates, candidates); of the candidates in histories alone, where they are given."""
        sources = None
        if asked is not None:
            sources = np.zeros(self.size, dtype=bool)
            sources[np.concatenate([*asked, np.zeros(0, np.int64)])] = True
        of_item = np.concatenate([[0], self.rows.numbers + 1]).astype(np.int32)  # by item from 1; 0 is padding
        taken = ((of_item[part.histories], of_item[part.targets]) for part in self.rows.parts())
        pairs = count_transitions_in_parts(taken, self.size, _REACH, _DECAY, _REVERSE, sources)
        return csr_array((pairs.counts, pairs.followers, pairs.offsets), shape=(self.size, self.size))

    def _ranked(self, found: np.ndarray, values: np.ndarray, width: int, mask: np.ndarray | None) -> np.ndarray:
        """The best candidates of a row with items that are allowed, filled up with popular ones: int64 (width,)."""
        popular = self.by_popularity
        if mask is not None:
            listed = self.masks(mask[None])[0]
            found, values, popular = found[listed[found]], values[listed[found]], popular[listed[popular]]
        if len(found) > width:  # sorting tens of thousands for twenty takes most of the time
            near = values >= np.partition(values, -width)[-width]
            found, values = found[near], values[near]
        best = found[np.lexsort((found, -self.popularity[found], -values))[:width]]
        popular = popular[: width + len(best)]
        return np.concatenate([best, popular[~np.isin(popular, best)]])[:width]


def _asked(newest: Sequence[np.ndarray], rarity: np.ndarray) -> csr_array:
    """What each candidate of histories counts: (rows, candidates)."""
    lengths = np.array([len(history) for history in newest])
    known = np.concatenate([*newest, np.zeros(0, np.int64)])
    back = np.concatenate([*(np.arange(length) for length in lengths), np.zeros(0, np.int64)])
    row = np.repeat(np.arange(len(newest)), lengths)
    return csr_array((_DECAY**back * rarity[known], (row, known)), shape=(len(newest), len(rarity)))


def make_floors(data: Corpus | StoredCorpus | Split, table: Groups | None = None) -> dict[str, Ranker]:
    """The three floors by name.

    Args:
        data: A corpus, or the split that a protocol made: its training rows are counted.
        table: SIDs of the same items; with them lists hold distinct SIDs, without them items.
    """
    rows = TrainingRows.of(data, table)
    return {POPULARITY: Popularity(rows), LAST_ITEM: SameAsLastItem(rows), FOLLOWED: WhatFollowed(rows)}
