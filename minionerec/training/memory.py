"""How much of a step a device computes at a time: as many tokens as its memory holds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

# Tokens that a device computes at a time at most. On a CPU more are no faster; a GPU is busy long before so many.
MOST_TOKENS = {"cpu": 2**12, "cuda": 2**16}


@dataclass
class TokenLimit:
    """How many tokens of a step a device computes at a time.

    Attributes:
        tokens: The limit.
        checkpointing: Whether blocks are computed again in the backward pass; None of a model that cannot.
        start: The limit to begin with.
    """

    tokens: int
    checkpointing: bool | None
    start: int = field(init=False)

    def __post_init__(self) -> None:
        """Note the limit to begin with."""
        self.start = self.tokens

    def lower(self, indivisible: bool) -> bool:
        """Lower the limit after an out-of-memory error: half as many tokens, or checkpointing.

        `indivisible` says that every example was computed by itself. False if nothing was left to give up.
        """
        if not indivisible:
            self.tokens = max(1, self.tokens // 2)
        elif self.checkpointing is False:
            self.tokens, self.checkpointing = self.start, True
        else:
            return False
        return True


class Share:
    """A device's share of a step: examples that can be computed in parts.

    Args:
        tokens: Tokens of each example, in an order in which neighbours are computed together.
        make: Makes the inputs of the loss of some neighbours.
    """

    def __init__(self, tokens: Sequence[int], make: Callable[[slice], dict[str, Any]]):
        self.borders, self.make = np.cumsum([0, *tokens]), make  # tokens before each example, and of all

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.borders) - 1

    def count(self, tokens: int) -> int:
        """Parts of about so many tokens each at most."""
        return max(1, min(len(self), -(-int(self.borders[-1]) // tokens)))

    def split(self, count: int) -> Iterator[dict[str, Any]]:
        """So many parts of about as many tokens each, made one by one as they are asked for; none is empty.

        Example:
            >>> list(Share([5, 1, 1, 1, 2], lambda part: {"of": part}).split(2))
            [{'of': slice(0, 1, None)}, {'of': slice(1, 5, None)}]
        """
        least = np.arange(1, count)
        ideal = self.borders[-1] * least / count
        after = np.searchsorted(self.borders[1:], ideal) + 1
        nearest = after - (self.borders[after] - ideal > ideal - self.borders[after - 1])
        starts = np.clip(np.maximum.accumulate(nearest - least) + least, least, len(self) - count + least)
        return (self.make(slice(start, end)) for start, end in pairwise([0, *starts.tolist(), len(self)]))


def collate_shares(
    rows: list[Any], collate: Callable[[list[Any]], dict[str, torch.Tensor]], tokens: Callable[[Any], int]
) -> dict[str, Any]:
    """Collate rows that are padded to the longest as a device's share of a step.

    Rows of similar length are computed together; if all are computed at a time they keep their order. For the memory of
    a part, each row is counted as long as the longest.

    Returns:
        The columns of all rows, and `share`, whose parts have columns too, and `rows`, which they are: int64 (B',).
    """
    whole, sizes = collate(rows), [tokens(row) for row in rows]
    order = sorted(range(len(rows)), key=sizes.__getitem__)

    def make(part: slice) -> dict[str, torch.Tensor]:
        if part.stop - part.start == len(rows):
            return {**whole, "rows": torch.arange(len(rows))}
        return {**collate([rows[row] for row in order[part]]), "rows": torch.tensor(order[part])}

    return {**whole, "share": Share([max(sizes)] * len(rows), make)}
