"""Three recommenders that need no training: whatever learns must beat them."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.sid.table import SidTable


def popularity_order(corpus: Corpus) -> np.ndarray:
    """All items by how often they are a training target, ties by item index: int64 (N,)."""
    return np.argsort(-corpus.popularity(), kind="stable")


def _first_candidates(items: Iterable[int], sids: list[str], k: int) -> list[int]:
    """Distinct items in order until they bear `k` distinct SIDs."""
    chosen: dict[int, None] = {}
    seen: set[str] = set()
    for item in items:
        if sids[item] not in seen and len(seen) == k:
            break
        seen.add(sids[item])
        chosen[item] = None
    return list(chosen)


def _predictions(table: SidTable, rows: pd.DataFrame, lists: list[list[int]]) -> Predictions:
    targets = rows["target"].to_numpy(np.int32)
    sids = table.sids
    return Predictions(
        users=rows["user"].tolist(),
        targets=targets,
        target_sids=[sids[target] for target in targets],
        items=lists,
        sids=[[sids[item] for item in row] for row in lists],
        scores=[[-float(place) for place in range(1, len(row) + 1)] for row in lists],
    )


def _check_k(k: int, table: SidTable) -> None:
    if not 1 <= k <= table.n_unique:
        raise ConfigError(
            f"k is {k}; expected 1 to {table.n_unique}, the number of distinct semantic IDs. Give a smaller K."
        )


def popularity_predictions(corpus: Corpus, table: SidTable, rows: pd.DataFrame, k: int) -> Predictions:
    """The same list for everybody: the items that are most often a training target, ties by item index.

    Args:
        corpus: Where popularity is counted (training rows alone).
        table: Semantic IDs of the corpus's items.
        rows: R rows of a split, with `user`, `history` and `target`.
        k: Number of distinct SIDs in each list; a list is longer than `k` where items share one.

    Raises:
        ConfigError: If there are fewer than `k` distinct SIDs.
    """
    _check_k(k, table)
    popular = _first_candidates(popularity_order(corpus).tolist(), table.sids, k)
    return _predictions(table, rows, [list(popular) for _ in range(len(rows))])


def last_item_predictions(corpus: Corpus, table: SidTable, rows: pd.DataFrame, k: int) -> Predictions:
    """The floor "same as last item": each user's history, most recent first, then the popular items.

    Args:
        corpus: Where popularity is counted (training rows alone).
        table: Semantic IDs of the corpus's items.
        rows: R rows of a split, with `user`, `history` and `target`.
        k: Number of distinct SIDs in each list; a list is longer than `k` where items share one.

    Raises:
        ConfigError: If there are fewer than `k` distinct SIDs.
    """
    _check_k(k, table)
    popular = popularity_order(corpus).tolist()

    def order(history: np.ndarray) -> Iterator[int]:
        yield from reversed(np.asarray(history).tolist())
        yield from popular

    return _predictions(table, rows, [_first_candidates(order(h), table.sids, k) for h in rows["history"]])


_ROWS_AT_ONCE = 1024
_DECAY, _REVERSE = 0.6, 0.3


def transition_predictions(corpus: Corpus, table: SidTable, rows: pd.DataFrame, k: int) -> Predictions:
    """The floor "what followed": SIDs by how often they came after those of the history, then the popular ones.

    A pair of training items counts 1, times 0.6 for each item between them, up to ten items back, and 0.3 of that in
    the other direction. A history's items count 1, times 0.6 for each step back, and each is divided by the square root
    of how often it was counted. Of equal scores the SID with the more popular items comes first.

    Args:
        corpus: Where pairs and popularity are counted (training rows alone).
        table: Semantic IDs of the corpus's items.
        rows: R rows of a split, with `user`, `history` and `target`.
        k: Number of distinct SIDs in each list; a list is longer than `k` where items share one.

    Raises:
        ConfigError: If there are fewer than `k` distinct SIDs.
    """
    # Imported late: torch comes along, for which a stage's --help need not wait.
    from minionerec.data.protocols import corpus_windows
    from minionerec.data.transitions import count_transitions

    _check_k(k, table)
    number, size = table.sid_numbers, table.n_unique
    windows = corpus_windows(corpus, corpus.max_history, "right")
    sid_of = np.concatenate([[0], number + 1])  # by item from 1; 0 is padding
    reach = 10
    pairs = count_transitions(sid_of[windows.histories], sid_of[windows.targets], size, reach, _DECAY, _REVERSE)
    followed = csr_array((pairs.counts, pairs.followers, pairs.offsets), shape=(size, size))
    rarity = 1 / np.sqrt(np.asarray(followed.sum(1)).ravel() + 1)
    popularity = np.bincount(number, corpus.popularity(), size)
    behind = ranked_items(table, corpus.popularity())
    by_popularity = np.argsort(-popularity, kind="stable")
    lists: list[list[int]] = []
    newest = [number[np.asarray(history)[::-1][:reach]] for history in rows["history"]]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = newest[start : start + _ROWS_AT_ONCE]
        lengths = np.array([len(history) for history in part])
        sids = np.concatenate([*part, np.zeros(0, np.int64)])
        back = np.concatenate([*(np.arange(length) for length in lengths), np.zeros(0, np.int64)])
        row = np.repeat(np.arange(len(part)), lengths)
        asked = csr_array((_DECAY**back * rarity[sids], (row, sids)), shape=(len(part), size))
        scores = asked @ followed
        for first, end in pairwise(scores.indptr):
            found, values = scores.indices[first:end], scores.data[first:end]
            best = found[np.lexsort((found, -popularity[found], -values))[:k]]
            popular = by_popularity[: k + len(best)]
            filled = np.concatenate([best, popular[~np.isin(popular, best)]])[:k]
            lists.append([item for sid in filled.tolist() for item in behind[sid]])
    return _predictions(table, rows, lists)


def ranked_items(table: SidTable, popularity: np.ndarray) -> list[list[int]]:
    """Items behind each distinct SID, the more popular first, then the lower item index.

    Args:
        table: SIDs.
        popularity: int64 (N,).

    Returns:
        One list for each SID number of the trie (distinct SIDs in order of their codes).
    """
    numbers = table.sid_numbers
    lists: list[list[int]] = [[] for _ in range(int(numbers.max()) + 1)]
    for item in np.lexsort((np.arange(len(table)), -popularity)):
        lists[numbers[item]].append(int(item))
    return lists
