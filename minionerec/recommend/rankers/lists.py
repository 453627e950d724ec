"""A ranker's lists for the examples of a split, as `Predictions`."""

from collections.abc import Collection, Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.contexts import RequestFeature, context_codes
from minionerec.data.names import UNKNOWN
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions
from minionerec.recommend.rankers.candidates import CandidateGroups
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker, Ranking

logger = get_logger(__name__)


def split_queries(
    rows: SplitExamples, features: Sequence[RequestFeature] = (), used: Collection[str] = (), *, given: bool = True
) -> Queries:
    """The queries of examples, with the request features that a service would know.

    Args:
        rows: The examples.
        features: Request features that the ranker reads; see `minionerec.recommend.rankers.protocol.features_used`.
        used: What else it reads; see `minionerec.recommend.rankers.protocol.context_used`.
        given: Whether request features are given; if not, they are unknown for all.
    """
    context = {}
    if features and given:
        codes = context_codes(features, rows)
        context = {feature.name: codes[:, column] for column, feature in enumerate(features)}
        known = [f"{name} of {np.count_nonzero(values != UNKNOWN)}" for name, values in context.items()]
        logger.info("Known of %d examples: %s.", len(rows), ", ".join(known))
    events = rows.seen_events.tolist() if "events" in used and rows.events is not None else None
    return Queries(rows.histories.tolist(), context, rows.seen.tolist(), events)


def rank_rows(
    ranker: Ranker,
    rows: SplitExamples,
    k: int,
    n_items: int,
    *,
    table: CandidateGroups | None = None,
    allowed: Allowed | None = None,
    queries: Queries | None = None,
) -> Predictions:
    """Rank items with a ranker for the examples of a split.

    Args:
        ranker: The ranker.
        rows: R examples.
        k: Candidates of each list.
        n_items: Number of items, N.
        table: SIDs of the items; without it SIDs are "".
        allowed: Items that may be listed, per example; all if None.
        queries: The queries (`split_queries`); the histories alone if None.

    Raises:
        DataError: If the lists violate the contract of `Ranker`; the message gives the row.
    """
    queries = split_queries(rows) if queries is None else queries
    ranking = ranker.rank(queries, k, allowed)
    check_ranking(ranking, len(rows), k, n_items, table, allowed)
    sids = None if table is None else table.sids
    return Predictions.of(rows, ranking.items, ranking.scores, sids, queries.given)


def check_ranking(
    ranking: Ranking,
    rows: int,
    k: int,
    n_items: int,
    table: CandidateGroups | None = None,
    allowed: Allowed | None = None,
) -> None:
    """Check lists against the contract of `Ranker`.

    Args:
        ranking: The lists.
        rows: Number of queries.
        k: List length in candidates.
        n_items: Number of items, N.
        table: SIDs, whose items may make lists longer than `k`.
        allowed: Items that may be listed; all if None.

    Raises:
        DataError: If a list is invalid, with the first row and the reason.
    """
    if len(ranking.items) != rows or len(ranking.scores) != rows:
        raise DataError(
            f"the ranker returned {len(ranking.items)} lists and {len(ranking.scores)} lists of scores for {rows} "
            "histories; expected one of each for every history."
        )
    for row, (items, scores) in enumerate(zip(ranking.items, ranking.scores, strict=True)):
        wrong = _wrong_with(items, scores, n_items)
        if not wrong and len(items) > k and (table is None or len({table.sids[item] for item in items}) > k):
            wrong = f"it has {len(items)} items, but k is {k} candidates"
        if not wrong and allowed is not None:
            mask = allowed.row(row)
            listed = [item for item in items if not mask[item]]
            wrong = f"item {min(listed)} is listed, but not allowed" if listed else ""
        if wrong:
            raise DataError(f"the ranker's list for row {row} (from 0) is invalid: {wrong}.")


def _wrong_with(items: Sequence[int], scores: Sequence[float], n_items: int) -> str:
    """The error of a single list; "" for none."""
    if len(items) != len(scores):
        return f"it has {len(items)} items and {len(scores)} scores"
    for item in items:
        if not 0 <= item < n_items:
            return f"item {item} is not one of the {n_items} items (0 to {n_items - 1})"
    if len(set(items)) < len(items):
        return "an item is listed twice"
    falling = np.diff(np.asarray(scores, dtype=np.float64))
    if not (falling <= 0).all():
        index = int(np.flatnonzero(~(falling <= 0))[0])
        return f"score {scores[index + 1]} follows {scores[index]}; scores must not increase"
    return ""
