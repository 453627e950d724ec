"""Codes for items that are encoded together: entropic optimal transport by Sinkhorn's iterations."""

import numpy as np

EPSILON = 0.003
"""Weight of the entropy, as a share of half the spread of costs: LC-Rec's."""

ITERATIONS = 50
"""Rescalings of rows and columns: LC-Rec's."""


def transport_plan(costs: np.ndarray, epsilon: float = EPSILON, iterations: int = ITERATIONS) -> np.ndarray:
    """How much of each item goes to each code, if every code is to get the same.

    Sinkhorn's iterations (Cuturi, "Sinkhorn distances", 2013) for the plan of least cost less epsilon times entropy,
    with costs centred and scaled to [-1, 1] as in LC-Rec (Zheng et al., "Adapting large language models by integrating
    collaborative semantics for recommendation", 2023): rows to 1 / B, then columns to 1 / K, in double precision.

    Args:
        costs: float (B, K), cost of each item at each code.
        epsilon: Weight of the entropy; 0.003 is about the least at which nothing underflows.
        iterations: How often rows and columns are rescaled; at least 1.

    Returns:
        float64 (B, K): columns sum to 1 / K, rows to nearly 1 / B.

    Example:
        >>> transport_plan(np.array([[0.0, 1.0], [0.2, 0.8]])).round(3).tolist()
        [[0.495, 0.0], [0.005, 0.5]]
    """
    costs = np.asarray(costs, dtype=np.float64)
    middle = (costs.max() + costs.min()) / 2
    plan: np.ndarray = np.exp(-(costs - middle) / (costs.max() - middle + 1e-5) / epsilon)
    items, codes = plan.shape
    for _ in range(iterations):
        plan /= plan.sum(axis=1, keepdims=True) * items
        plan /= plan.sum(axis=0, keepdims=True) * codes
    return plan


def encode_together(costs: np.ndarray) -> np.ndarray:
    """The code that gets most of each item under `transport_plan`, ties to the lower code: int64 (B,).

    Where items are far fewer than codes, the rule that every code is to get the same says which codes lie nearer to one
    item than to the others, not which is the nearest: items are told apart at a high price in distance.

    Args:
        costs: float (B, K), cost of each item at each code.

    Example:
        >>> encode_together(np.array([[0.1, 0.2, 5.0], [0.1, 0.3, 5.0]])).tolist()
        [1, 0]
    """
    codes: np.ndarray = transport_plan(costs).argmax(axis=1)
    return codes
