"""Two recommenders that need no training: whatever learns must beat them."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

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
