"""How well any recommender can do on the demo shop, whose probabilities are known."""

from typing import Any

import numpy as np

from minionerec.data.corpus import Corpus
from minionerec.data.demo.process import demo_probabilities

KS = (1, 3, 5, 10, 20, 50)
MARGIN = 0.5


def _at_each_k(ranks: np.ndarray) -> dict[str, float]:
    """HR@K and NDCG@K of target ranks counted from 0, (R,)."""
    values = {}
    for k in KS:
        hit = ranks < k
        values[f"hr@{k}"] = float(hit.mean())
        values[f"ndcg@{k}"] = float(np.where(hit, 1 / np.log2(ranks + 2.0), 0.0).mean())
    return values


def shop_ceiling(corpus: Corpus) -> dict[str, Any]:
    """What the best possible ranking may expect on the demo's test rows, and what popularity gets.

    Given the histories, the ranking by true probability has the largest expected value of every metric here. Its
    expected HR@K is the mean over rows of the sum of the K largest probabilities; NDCG@K discounts each by
    1 / log2(rank + 1).

    Args:
        corpus: The demo's corpus; its test rows are used, and its training targets for popularity.

    Returns:
        Metric such as "ndcg@10" → value, for: `ceiling`, the expectation; `sigma`, one standard deviation of what the
        same ranking gets when the targets are drawn anew; `drawn`, what it gets on the targets as they were drawn;
        `popularity`, what the most frequent training targets get on them; `must_reach`, popularity plus `margin` of
        the gap to the ceiling. All to six digits.
    """
    rows = corpus.rows("test")
    targets = rows.targets.astype(np.int64)
    probabilities = np.stack([demo_probabilities(history) for history in rows.histories])  # (R, N)
    order = np.argsort(-probabilities, axis=1, kind="stable")  # (R, N)
    ranked = np.take_along_axis(probabilities, order, axis=1)
    ceiling, sigma = {}, {}
    for k in KS:
        for name, gains in (("hr", np.ones(k)), ("ndcg", 1 / np.log2(np.arange(2, k + 2)))):
            mean = ranked[:, :k] @ gains  # (R,)
            variance = ranked[:, :k] @ gains**2 - mean**2
            ceiling[f"{name}@{k}"] = float(mean.mean())
            sigma[f"{name}@{k}"] = float(np.sqrt(variance.sum()) / len(rows))
    drawn = _at_each_k((order == targets[:, None]).argmax(axis=1))
    popularity = _at_each_k(np.argsort(np.argsort(-corpus.popularity(), kind="stable"))[targets])
    must_reach = {key: popularity[key] + MARGIN * (ceiling[key] - popularity[key]) for key in ceiling}
    tables = {"ceiling": ceiling, "sigma": sigma, "drawn": drawn, "popularity": popularity, "must_reach": must_reach}
    rounded = {name: {key: round(value, 6) for key, value in table.items()} for name, table in tables.items()}
    return {"rows": len(rows), "margin": MARGIN, **rounded}
