"""What rounding may change: a bound from the type, the number of terms and the size of what is compared."""

from typing import Any

import numpy as np
import torch


def rounding(values: Any, terms: int = 256, dtype: torch.dtype = torch.float32, floor: float = 1.0) -> float:
    """Bound of the rounding errors of sums: `terms` units of rounding of the largest value, `floor` at least.

    A sum of n terms is wrong by at most n units of the sum of their sizes, in whatever order they are added; the layers
    of a network add their terms up. Log-probabilities come from logits, so that one near 0 is no more exact than those
    beside it.

    Args:
        values: What is compared, or its reference; what is not finite is left out.
        terms: How many terms are added up.
        dtype: Type in which they are.
        floor: Smallest size that counts; 0 for gradients, whose errors shrink with them.
    """
    sizes = np.abs(np.asarray(values, dtype=np.float64))
    return terms * torch.finfo(dtype).eps * max(floor, sizes[np.isfinite(sizes)].max(initial=0.0))


def assert_near(
    found: Any, wanted: Any, terms: int = 256, dtype: torch.dtype = torch.float32, floor: float = 1.0
) -> None:
    """Fail where values differ by more than `rounding` of the wanted ones."""
    ours, theirs = (
        (part.detach().cpu() if isinstance(part, torch.Tensor) else torch.as_tensor(np.asarray(part))).double()
        for part in (found, wanted)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=rounding(theirs, terms, dtype, floor))


def assert_best(listed: list[tuple[int, float]], scores: Any, k: int | None = None) -> None:
    """Fail where a list is not that of the best scores in their order; those apart by rounding may change places.

    Args:
        listed: Numbers and scores of a list.
        scores: Scores of all numbers, float64 (N,); minus infinity for what may not be listed.
        k: Length of the list, which is shorter where there are fewer.
    """
    scores = np.asarray(scores, dtype=np.float64)
    best = -np.sort(-scores[np.isfinite(scores)])[:k]
    numbers = [number for number, _ in listed]
    assert len(set(numbers)) == len(numbers) == len(best)
    assert_near([score for _, score in listed], best)
    assert_near(scores[numbers], best)
