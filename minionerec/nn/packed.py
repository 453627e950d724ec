"""A batch of histories without its padding: one token after another, laid out as a grid for attention alone."""

from dataclasses import dataclass

import torch

from minionerec.data.sequences import Side
from minionerec.nn.layers import attend, causal_mask
from minionerec.nn.padding import length_groups, readout_slots


@dataclass(frozen=True)
class Grid:
    """Rows of similar length, padded to the longest of them.

    Attributes:
        rows: Number of rows, b.
        width: Length of the longest, w.
        places: int64 (n,), where each token of these rows stands among the b w places.
        mask: float (b, 1, w, w), `causal_mask` of the rows.
    """

    rows: int
    width: int
    places: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Packed:
    """The N items of a batch of histories, grid by grid and row by row.

    Maps of single tokens need no padding and run over (N, D); only attention lays its grids out. A row without any item
    keeps all its padding as tokens, because there every key is masked alike and the padding takes part.

    Attributes:
        places: int64 (N,), where each token stands among the B L places of the batch.
        grids: At most three.
        newest: int64 (B,), number of the token at which each row is read.
    """

    places: torch.Tensor
    grids: list[Grid]
    newest: torch.Tensor

    @classmethod
    def of(cls, histories: torch.Tensor, padding: Side) -> "Packed":
        """Pack int64 (B, L)."""
        batch, length = histories.shape
        kept = (histories > 0) | (histories == 0).all(1, keepdim=True)
        every = torch.arange(batch * length, device=histories.device).view(batch, length)
        grids, parts = [], []
        for places, columns in length_groups(histories, padding):
            rows = histories[places, columns]
            inside = kept[places, columns].flatten().nonzero()[:, 0]
            grids.append(Grid(rows.shape[0], rows.shape[1], inside, causal_mask(rows)))
            parts.append(every[places, columns].flatten()[inside])
        tokens = torch.cat(parts)
        numbers = torch.empty_like(every).flatten()
        numbers[tokens] = torch.arange(len(tokens), device=tokens.device)
        return cls(tokens, grids, numbers[every[:, 0] + readout_slots(histories, padding)])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of every token within its row.

        Args:
            q: float (N, H, d).
            k: float (N, H, d).
            v: float (N, H, d).

        Returns:
            float (N, H, d).
        """
        sizes = [len(grid.places) for grid in self.grids]
        given = torch.stack((q, k, v), 1)  # (N, 3, H, d)
        contexts = []
        for grid, part in zip(self.grids, given.split(sizes), strict=True):
            cells = part.new_zeros(grid.rows * grid.width, *part.shape[1:]).index_copy(0, grid.places, part)
            laid = cells.unflatten(0, (grid.rows, grid.width)).transpose(1, 3)  # (b, H, 3, w, d)
            context = attend(laid[:, :, 0], laid[:, :, 1], laid[:, :, 2], grid.mask).transpose(1, 2)
            contexts.append(context.flatten(0, 1).index_select(0, grid.places))
        return torch.cat(contexts)
