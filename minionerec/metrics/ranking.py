"""Ranking metrics from `Predictions`: HR@K, NDCG@K, MRR@K, invalid predictions, catalogue coverage.

Every example has one relevant item, the target. There are two readings of a hit:

* SID-level: the target's SID. Items that share an SID are one candidate.
* item-level: the target item, in the list that ranks the items of a shared SID by popularity and id.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from minionerec.core.errors import ConfigError

if TYPE_CHECKING:
    from minionerec.metrics.predictions import Predictions

DEFAULT_KS = (1, 3, 5, 10, 20, 50)


def distinct_sids(predictions: "Predictions") -> list[list[str]]:
    """Distinct SIDs of each example, best first."""
    return [list(dict.fromkeys(row)) for row in predictions.sids]


def sid_ranks(predictions: "Predictions") -> np.ndarray:
    """Rank of each target's SID among the distinct SIDs of its list.

    Returns:
        int64 (R,), from 1; 0 if the list lacks the SID, or the target has none.

    Example:
        >>> from minionerec.metrics.predictions import Predictions
        >>> sids = ["<a_0>", "<a_0>", "<a_2>"]
        >>> predictions = Predictions(["u"], np.array([2]), ["<a_2>"], [[0, 1, 2]], [sids], [[3, 2, 1]])
        >>> sid_ranks(predictions).tolist(), item_ranks(predictions).tolist()
        ([2], [3])
    """
    ranks = np.zeros(len(predictions), dtype=np.int64)
    for row, (target, sids) in enumerate(zip(predictions.target_sids, predictions.sids, strict=True)):
        if target and target in sids:
            ranks[row] = len(set(sids[: list(sids).index(target)])) + 1
    return ranks


def item_ranks(predictions: "Predictions") -> np.ndarray:
    """Rank of each target item among the distinct items of its list: see `ranks_in`."""
    return ranks_in(predictions.items, np.asarray(predictions.targets))


def ranks_in(lists: Sequence[Sequence[int]], targets: np.ndarray) -> np.ndarray:
    """Rank of each target among the distinct entries of its list.

    Args:
        lists: R lists, best first; entries that are no item (-1) occupy a rank.
        targets: int (R,); -1 if unknown.

    Returns:
        int64 (R,), from 1; 0 if the list lacks the target, or the target is unknown.
    """
    ranks = np.zeros(len(lists), dtype=np.int64)
    for row, (target, items) in enumerate(zip(targets.tolist(), lists, strict=True)):
        if target >= 0 and target in items:
            before = list(items)[: list(items).index(target)]
            known = [item for item in before if item >= 0]
            ranks[row] = len(before) - len(known) + len(set(known)) + 1
    return ranks


def check_ks(ks: Sequence[int], list_length: int | None = None) -> tuple[int, ...]:
    """Check cutoffs and sort them.

    Args:
        ks: Cutoffs.
        list_length: Number of candidates in the lists (beams); not checked if None.

    Raises:
        ConfigError: If there is no cutoff, one is below 1, or one exceeds `list_length`.
    """
    if not ks or any(isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 for k in ks):
        numbers = " ".join(map(str, ks)) or "empty"
        raise ConfigError(f"ks is {numbers}; expected whole numbers from 1, such as 1 5 10.")
    ordered = tuple(sorted({int(k) for k in ks}))
    if list_length is not None and ordered[-1] > list_length:
        raise ConfigError(
            f"K = {ordered[-1]} is larger than the lists, which hold {list_length} candidates (beams). "
            f"Give a K of at most {list_length}, or predict with at least {ordered[-1]} beams."
        )
    return ordered


def ranking_metrics(ranks: np.ndarray, ks: Sequence[int], every_mrr: bool = False) -> dict[str, np.ndarray]:
    """Per-example values of HR@K and NDCG@K at every K, and MRR at the largest K (or at every K).

    Args:
        ranks: int (R,), rank of the relevant item from 1; 0 if it is absent.
        ks: Cutoffs.
        every_mrr: Whether to compute MRR at every K, smaller ones last.

    Returns:
        Metric name → float64 (R,). For 1 <= rank <= K, HR@K is 1, NDCG@K 1 / log2(1 + rank) (the ideal gain is 1) and
        MRR@K 1 / rank; otherwise all are 0. The order is HR by K, NDCG by K, MRR.

    Raises:
        ConfigError: If `ks` is empty or holds a number below 1.

    Example:
        >>> {name: values.tolist() for name, values in ranking_metrics(np.array([1, 3, 0]), [1, 3]).items()}
        {'HR@1': [1.0, 0.0, 0.0], 'HR@3': [1.0, 1.0, 0.0], 'NDCG@1': [1.0, 0.0, 0.0], 'NDCG@3': [1.0, 0.5, 0.0], 'MRR@3': [1.0, 0.3333333333333333, 0.0]}
    """  # noqa: E501
    ordered = check_ks(ks)
    ranks = np.asarray(ranks, dtype=np.int64)
    safe = np.maximum(ranks, 1).astype(np.float64)
    hits = {k: ((ranks >= 1) & (ranks <= k)).astype(np.float64) for k in ordered}
    values = {f"HR@{k}": hit for k, hit in hits.items()}
    values.update({f"NDCG@{k}": hit / np.log2(1 + safe) for k, hit in hits.items()})
    for k in [ordered[-1], *(ordered[:-1] if every_mrr else ())]:
        values[f"MRR@{k}"] = hits[k] / safe
    return values


def coverage(predictions: "Predictions", k: int, n_items: int) -> float:
    """Share of the catalogue among the first `k` items of at least one list.

    Args:
        predictions: The ranked lists.
        k: Number of items of each list that count.
        n_items: Size of the catalogue, N.
    """
    return len({item for row in predictions.items for item in row[:k] if item >= 0}) / n_items


def invalid_count(predictions: "Predictions", valid_sids: Collection[str], stop_at_hit: bool = False) -> int:
    """Number of predictions whose SID belongs to no item.

    Args:
        predictions: The ranked lists.
        valid_sids: The SIDs of the catalogue.
        stop_at_hit: Whether to ignore entries after an example's first hit, as the published system does, for
            comparison with its numbers.
    """
    valid = set(valid_sids)
    count = 0
    for target, sids in zip(predictions.target_sids, predictions.sids, strict=True):
        counted = sids[: list(sids).index(target)] if stop_at_hit and target and target in sids else sids
        count += sum(sid not in valid for sid in counted)
    return count
