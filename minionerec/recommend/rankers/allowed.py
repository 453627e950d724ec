"""What may be listed: masks over items that many rows share, and a few items that each row leaves out beside."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minionerec.core.errors import DataError

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Allowed:
    """Which items may be listed, for each of R rows.

    Attributes:
        n_items: Number of items, N.
        masks: bool (U, N), the masks that rows share.
        which: int64 (R,), the mask of each row; -1 allows everything.
        without: For each row int64 item indices, ascending, that must not be listed whatever its mask says.
    """

    n_items: int
    masks: np.ndarray
    which: np.ndarray
    without: Sequence[np.ndarray]

    def __post_init__(self) -> None:
        """Check shapes and indices.

        Raises:
            DataError: If they do not fit one another.
        """
        if self.masks.shape != (len(self.masks), self.n_items) or len(self.which) != len(self.without):
            raise DataError(
                f"masks have shape {self.masks.shape} for {self.n_items} items; {len(self.which)} rows have a mask and "
                f"{len(self.without)} have items left out."
            )
        if len(self.which) and not -1 <= self.which.min() <= self.which.max() < len(self.masks):
            raise DataError(f"row {int(np.argmax(self.which))} names mask {self.which.max()} of {len(self.masks)}.")
        for row, items in enumerate(self.without):
            if len(items) and not 0 <= items[0] <= items[-1] < self.n_items:
                raise DataError(f"row {row} leaves out items {items.tolist()}; items are 0 to {self.n_items - 1}.")

    @classmethod
    def leaving_out(cls, without: Sequence[Collection[int]], n_items: int) -> "Allowed":
        """Everything but some items of each row.

        Example:
            >>> allowed = Allowed.leaving_out([[2, 0], []], 3)
            >>> allowed.row(0).tolist(), allowed.row(1).tolist()
            ([False, True, False], [True, True, True])
        """
        which = np.full(len(without), -1, dtype=np.int64)
        return cls(n_items, np.zeros((0, n_items), dtype=bool), which, [_sorted(items) for items in without])

    @classmethod
    def of_masks(
        cls, masks: Sequence[np.ndarray | None], without: Sequence[Collection[int]], n_items: int
    ) -> "Allowed":
        """One mask, or None for everything, and items left out, for each row; equal masks are kept once.

        Args:
            masks: R masks, bool (N,).
            without: For each row item indices that must not be listed.
            n_items: Number of items, N.
        """
        kept: dict[bytes, int] = {}
        which = np.full(len(masks), -1, dtype=np.int64)
        rows: list[np.ndarray] = []
        for row, mask in enumerate(masks):
            if mask is None:
                continue
            key = np.packbits(mask).tobytes()
            if key not in kept:
                kept[key] = len(rows)
                rows.append(mask)
            which[row] = kept[key]
        stacked = np.stack(rows) if rows else np.zeros((0, n_items), dtype=bool)
        return cls(n_items, stacked, which, [_sorted(items) for items in without])

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.which)

    @cached_property
    def unrestricted(self) -> bool:
        """Whether every row allows everything."""
        return bool((self.which < 0).all()) and not any(map(len, self.without))

    def row(self, row: int) -> np.ndarray:
        """What one row allows: bool (N,), a copy."""
        if self.which[row] < 0:
            mask = np.ones(self.n_items, dtype=bool)
        else:
            mask = self.masks[self.which[row]].copy()
        mask[self.without[row]] = False
        return mask

    def rows(self, places: Sequence[int] | slice) -> np.ndarray:
        """What some rows allow: bool (B, N)."""
        chosen = range(len(self))[places] if isinstance(places, slice) else places
        return np.stack([self.row(row) for row in chosen]) if len(chosen) else np.zeros((0, self.n_items), dtype=bool)

    def key(self, row: int) -> tuple[int, bytes]:
        """Equal for rows that allow the same, by the same mask and the same items left out."""
        return int(self.which[row]), self.without[row].tobytes()


def _sorted(items: Collection[int]) -> np.ndarray:
    return np.unique(np.fromiter(items, dtype=np.int64, count=len(items))) if len(items) else _NOTHING
