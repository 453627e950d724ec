"""Rows of large tables: look-up with sparse gradients, subsets of columns, and top scores."""

from dataclasses import dataclass

import torch
from torch import nn


def take_rows(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Look up rows int64 (R,) of a table (N,) or (N, D): (R,) or (R, D).

    The gradient of the table is a sparse tensor of R rows, which may repeat.
    """
    if table.ndim == 1:
        return table.gather(0, rows, sparse_grad=True)
    return nn.functional.embedding(rows, table, sparse=True)


@dataclass(frozen=True)
class ColumnSubset:
    """Ascending subset of N column numbers.

    Attributes:
        numbers: int64 (C,), strictly ascending.
        first: The first number if the numbers are known to be consecutive; else None.
    """

    numbers: torch.Tensor
    first: int | None = None

    @classmethod
    def between(cls, begin: int, end: int, device: torch.device | str) -> "ColumnSubset":
        """All numbers from `begin` to `end` - 1."""
        return cls(torch.arange(begin, end, device=device), begin)

    def __len__(self) -> int:
        """Number of columns, C."""
        return len(self.numbers)

    def find(self, numbers: torch.Tensor) -> torch.Tensor:
        """The column of each number, int64 (...), -1 for numbers that are not in the subset.

        Example:
            >>> ColumnSubset(torch.tensor([2, 5, 7])).find(torch.tensor([5, 6, 2, -1])).tolist()
            [1, -1, 0, -1]
        """
        if self.first is not None:
            position = numbers - self.first
            return position.masked_fill((position < 0) | (position >= len(self)), -1)
        position = torch.searchsorted(self.numbers, numbers.contiguous()).clamp(max=len(self) - 1)
        return position.masked_fill(self.numbers[position] != numbers, -1)


def top_scores(scores: torch.Tensor, count: int, wait: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest scores of each row, best first, and their columns; ties go to the lower column.

    `torch.topk` does not define the order of ties.

    Args:
        scores: float (B, W).
        count: Number of scores, K; at most W are returned.
        wait: Whether to sort only rows with ties, which needs a GPU sync, rather than all rows.

    Returns:
        (B, K) of the dtype of `scores`, and int64 (B, K).

    Example:
        >>> top_scores(torch.tensor([[1.0, 3.0, 1.0, 3.0]]), 3)[1].tolist()
        [[1, 3, 0]]
    """
    count = min(count, scores.shape[1])
    if not wait:
        best, columns = scores.sort(dim=1, descending=True, stable=True)
        return best[:, :count], columns[:, :count]
    best, columns = scores.topk(count, dim=1)
    least = best[:, -1:]
    tied = (((scores >= least).sum(1, keepdim=True) > count) & (least > -torch.inf)).any(1).nonzero()[:, 0]
    if len(tied):
        columns[tied] = scores[tied].sort(dim=1, descending=True, stable=True).indices[:, :count]
    columns = columns.sort(1).values
    best, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return best, columns.gather(1, order)
