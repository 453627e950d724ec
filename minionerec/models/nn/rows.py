"""Rows of large tables: taken with a gradient of these rows alone, and found by their numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class _TakeRows(torch.autograd.Function):
    """Rows of a table; the table's gradient is sparse."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """From (N, ...) at int64 (R,) to (R, ...)."""
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The table's gradient, a sparse tensor whose rows may repeat."""
        (rows,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], gradient, ctx.shape, check_invariants=False), None


take_rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _TakeRows.apply
"""Rows int64 (R,) of a table (N, ...): (R, ...).

The gradient of the table is a sparse tensor of R rows, so that nothing in a step is as long as the table.
"""


@dataclass(frozen=True)
class ColumnSubset:
    """Some of N numbers, in ascending order: the columns of a part of a wide matrix.

    Attributes:
        numbers: int64 (C,), ascending, none twice.
        first: The first of them where they follow one another without a gap; None where they need not.
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
        """The column of each number.

        Args:
            numbers: int64 (...), any.

        Returns:
            int64 (...), -1 where it is none of the columns.

        Example:
            >>> ColumnSubset(torch.tensor([2, 5, 7])).find(torch.tensor([5, 6, 2, -1])).tolist()
            [1, -1, 0, -1]
        """
        if self.first is not None:
            position = numbers - self.first
            return position.masked_fill((position < 0) | (position >= len(self)), -1)
        position = torch.searchsorted(self.numbers, numbers.contiguous()).clamp(max=len(self) - 1)
        return position.masked_fill(self.numbers[position] != numbers, -1)
