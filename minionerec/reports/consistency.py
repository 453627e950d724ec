"""Figures of HR and NDCG that no ranking can have together.

With one target a row, the rows that are hit between k and K stand at ranks k + 1 to K, so each of them adds to NDCG
between 1 / log2(K + 1) and 1 / log2(k + 2). Published tables break this where a cell was mistyped.
"""

import math
from collections.abc import Collection, Mapping
from itertools import combinations

ROUNDING = 1.5e-4
"""What rounding each of the four figures of a pair to four digits may add up to, generously."""


def impossible_pairs(metrics: Mapping[str, float], tolerance: float = ROUNDING) -> list[tuple[int, int]]:
    """The cut-offs (k, K), k below K, between which NDCG grows by more or less than HR allows; k may be 0.

    Args:
        metrics: Metric name ("HR@10", "NDCG@10") to value; cut-offs that have one of the two alone are passed over.
        tolerance: By how much the bounds may be missed.

    Example:
        >>> impossible_pairs({"HR@3": 0.1024, "NDCG@3": 0.0991, "HR@5": 0.1213, "NDCG@5": 0.0989})
        [(3, 5)]
    """
    ks = sorted(int(name[3:]) for name in metrics if name.startswith("HR@") and f"NDCG@{name[3:]}" in metrics)
    hits = {0: 0.0, **{k: metrics[f"HR@{k}"] for k in ks}}
    gains = {0: 0.0, **{k: metrics[f"NDCG@{k}"] for k in ks}}
    found = []
    for k, larger in combinations(hits, 2):
        hit, gain = hits[larger] - hits[k], gains[larger] - gains[k]
        least, most = hit / math.log2(larger + 1), hit / math.log2(k + 2)
        if not least - tolerance <= gain <= most + tolerance:
            found.append((k, larger))
    return found


def doubtful_cells(metrics: Mapping[str, float], known: Collection[str] = ()) -> list[str]:
    """The NDCG cells without which the others fit together: those known to be wrong, then as few more as it takes.

    The cell that stands in the most impossible pairs is taken first; of equal ones that of the smaller K.

    Args:
        metrics: As for `impossible_pairs`.
        known: Cells that are known to be wrong.

    Example:
        >>> doubtful_cells({"HR@3": 0.1024, "NDCG@3": 0.0991, "HR@5": 0.1213, "NDCG@5": 0.0989})
        ['NDCG@3']
    """
    found = list(known)
    while pairs := impossible_pairs({name: value for name, value in metrics.items() if name not in found}):
        ends = [k for pair in pairs for k in pair if k > 0]
        found.append(f"NDCG@{max(sorted(set(ends)), key=ends.count)}")
    return found
