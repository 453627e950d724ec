"""Where padding stands in a batch of histories, and how to do without most of it."""

import numpy as np
import torch
from torch import nn

from minionerec.data.rows import Side


def slot_range(width: int, max_len: int, padding: Side) -> slice:
    """Which of the `max_len` slots a batch stands at whose padding columns were cut off to `width`."""
    return slice(max_len - width, max_len) if padding == "left" else slice(0, width)


def full_width(histories: torch.Tensor, max_len: int, padding: Side) -> torch.Tensor:
    """Pad int64 (B, L) to (B, max_len), for models in which padding takes part."""
    missing = max_len - histories.shape[1]
    return nn.functional.pad(histories, (missing, 0) if padding == "left" else (0, missing))


def readout_slots(histories: torch.Tensor, padding: Side) -> torch.Tensor:
    """Column of each row's newest item, where the next one is predicted.

    Args:
        histories: int64 (B, L), 0 is padding.
        padding: Side of the padding.

    Returns:
        int64 (B,); the last column for left padding; for right padding 0 where a row holds no item.
    """
    rows, width = histories.shape
    if padding == "left":
        return torch.full((rows,), width - 1, device=histories.device)
    return ((histories > 0).sum(1) - 1).clamp_(min=0)


def take_slots(x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One slot of each row: (B, L, D) at int64 (B,) gives (B, D)."""
    return x[torch.arange(len(x), device=x.device), slots]


def length_groups(histories: torch.Tensor, padding: Side) -> list[tuple[torch.Tensor, slice]]:
    """Split a batch into at most three groups of similar length, so that few columns are padding.

    A row without any item counts as one of full length: where padding is masked as keys, all its keys are masked alike
    and the padding takes part.

    Args:
        histories: int64 (B, L).
        padding: Side of the padding.

    Returns:
        For each group the places of its rows in the batch, int64 (b,), and the columns that are not padding in all of
        them.
    """
    width = histories.shape[1]
    lengths = (histories > 0).sum(1)
    counted = torch.where(lengths == 0, width, lengths).cpu().numpy()
    groups, low = [], 0
    for high in _group_widths(counted, width):
        places = np.flatnonzero((counted > low) & (counted <= high))
        if len(places):
            groups.append((torch.from_numpy(places).to(histories.device), slot_range(high, width, padding)))
        low = high
    return groups


def _group_widths(lengths: np.ndarray, width: int) -> list[int]:
    """Ascending widths of at most three groups that make the fewest slots; the last is the longest row's."""
    counts = np.bincount(lengths, minlength=width + 1)
    longest = int(np.flatnonzero(counts)[-1])
    below = np.cumsum(counts)[: longest + 1]  # rows of at most that length
    widths = np.arange(longest + 1)
    middle = (below[None, :] - below[:, None]) * widths[None, :]  # slots between two cuts, at the wider one's width
    slots = (below * widths)[:, None] + middle + ((len(lengths) - below) * longest)[None, :]
    slots[widths[:, None] > widths[None, :]] = len(lengths) * width + 1
    low, high = np.unravel_index(np.argmin(slots), slots.shape)
    return sorted({int(low), int(high), longest} - {0})
