"""Scores of the next item from the history itself, added to a model's: repeats and item transitions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from minionerec.models.nn.layers import Linear
from minionerec.models.nn.rows import ColumnSubset


def rows_of(offsets: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of all entries of some rows of a sparse table by rows (`scipy.sparse.csr_array`).

    Args:
        offsets: int64 (N + 1,), `indptr` of the table.
        rows: int64 (R,).

    Returns:
        For each entry the index of its row in `rows`, and its index in the table; both int64 (E,).
    """
    first, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    owner = torch.arange(len(rows), device=rows.device).repeat_interleave(lengths)
    begin = torch.cumsum(lengths, 0) - lengths
    return owner, torch.arange(len(owner), device=rows.device) - begin[owner] + first[owner]


def own_counts(
    histories: torch.Tensor,
    targets: torch.Tensor,
    entries: torch.Tensor,
    first: torch.Tensor,
    reach: int,
    decay: float,
    reverse: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts that windows themselves added, by their targets from some position on.

    Args:
        histories: int64 (K, L), the window of each row; 0 is padding on the right.
        targets: int64 (K, L), as counted; 0 or less where there is none.
        entries: int64 (K,), the entry, from 1, whose row it is.
        first: int64 (K,), the position after which targets count.
        reach: As counted.
        decay: As counted.
        reverse: As counted.

    Returns:
        Twice float32 (K, L): what was added for the target after each position, which followed the entry; and for the
        item at each position, which the entry followed.
    """
    position = torch.arange(histories.shape[1], device=histories.device)
    back = position[None, :] - position[:, None]  # from a position to the one whose target counts
    weight = torch.where((back >= 0) & (back < reach), float(decay) ** back.clamp(min=0), 0.0)
    counts = (position >= first[:, None]) & (targets > 0)
    with torch.autocast(histories.device.type, enabled=False):  # what rounding left over would tell the answer
        after = (histories == entries[:, None]).float() @ weight
        before = ((targets == entries[:, None]) & counts).float() @ weight.T
    return after * counts, reverse * before * (histories > 0)


@dataclass(frozen=True)
class Entries:
    """Counts that bear on the positions of a batch: E counts, which add up to C cells of positions and followers.

    Attributes:
        back: int64 (E,), how many items before the position's own the item of the count is.
        item: int64 (E,), that item, from 0: its index in `totals`.
        count: float32 (E,).
        cell: int64 (E,), the cell that the count belongs to.
        position: int64 (C,), of each cell.
        follower: int64 (C,), the item that followed: its column in the scores, from 0.
        totals: float32 (N,), see `PairCounts`; or those of the items of the counts alone.
    """

    back: torch.Tensor
    item: torch.Tensor
    count: torch.Tensor
    cell: torch.Tensor
    position: torch.Tensor
    follower: torch.Tensor
    totals: torch.Tensor


@dataclass(frozen=True)
class ScoredPositions:
    """Positions of a batch of histories whose next item is predicted, and values that depend on no weight.

    Attributes:
        row: int64 (P,), the history of each position.
        slot: int64 (P,), its column.
        entries: Counts of the P positions; None without counts.
        contexts: int64 (P,), session context of the next item, indices into
            `minionerec.data.contexts.SESSION_CONTEXTS`; None: unknown.
    """

    row: torch.Tensor
    slot: torch.Tensor
    entries: Entries | None = None
    contexts: torch.Tensor | None = None

    @property
    def known_contexts(self) -> torch.Tensor:
        """The contexts, int64 (P,); unknown where none are given."""
        return torch.zeros_like(self.row) if self.contexts is None else self.contexts


class PairCounts(nn.Module):
    """How often an item followed another in training, as it was counted (`count_transitions`).

    Args:
        num_items: Number of items, N.
        num_transitions: Stored counts.
        reach: Items back that pairs were counted, and are looked up.
        decay: Weight of each further step back, as counted.
        reverse: Weight of a pair in the other direction, as counted.

    Attributes:
        totals: float32 (N,), summed counts of each item's row.
    """

    offsets: torch.Tensor
    followers: torch.Tensor
    counts: torch.Tensor
    totals: torch.Tensor

    def __init__(self, num_items: int, num_transitions: int, reach: int, decay: float, reverse: float):
        super().__init__()
        self.reach, self.decay, self.reverse = reach, decay, reverse
        self.register_buffer("offsets", torch.zeros(num_items + 1, dtype=torch.int64))
        self.register_buffer("followers", torch.zeros(num_transitions, dtype=torch.int32))
        self.register_buffer("counts", torch.zeros(num_transitions))
        self.register_buffer("totals", torch.zeros(num_items))

    def set(self, counted: csr_array) -> None:
        """Copy counts, as many as the module was built for."""
        self.offsets.copy_(torch.from_numpy(counted.indptr))
        self.followers.copy_(torch.from_numpy(counted.indices))
        self.counts.copy_(torch.from_numpy(counted.data))
        rows = np.repeat(np.arange(len(self.totals)), np.diff(counted.indptr))
        self.totals.copy_(torch.from_numpy(np.bincount(rows, counted.data, len(self.totals))))

    def flaw(self) -> str | None:
        """The error in counts that were read from a file; None if there is none."""
        offsets, followers = self.offsets, self.followers
        ends = offsets[0].item() == 0 and offsets[-1].item() == len(followers)
        if not ends or bool((offsets[1:] < offsets[:-1]).any()):
            return f"the offsets of its counts do not split {len(followers)} counts by {len(self.totals)} items"
        if len(followers) and not 0 <= int(followers.min()) <= int(followers.max()) < len(self.totals):
            return f"its counts name items beyond its {len(self.totals)}"
        return None

    @torch.no_grad()
    def positions(
        self, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor, labels: torch.Tensor | None = None
    ) -> ScoredPositions:
        """Look up the transitions of the items up to each position.

        Args:
            histories: int64 (B, T), items from 1, 0 is padding.
            row: int64 (P,).
            slot: int64 (P,).
            labels: int64 (B, T), the counted target after each column, 0 or less where there is none: what a
                position's own and later ones added to the counts is left out.
        """
        position, ago, item = self._after(histories, row, slot)
        owner, index = rows_of(self.offsets, item)
        found = [position[owner], ago[owner], item[owner], self.followers[index].long(), self.counts[index]]
        if labels is not None:
            for which, follower, count in self._own(histories, labels, position, item, row, slot):
                taken = (position[which], ago[which], item[which], follower, count)
                found = [torch.cat(parts) for parts in zip(found, taken, strict=True)]
        return ScoredPositions(row, slot, _entries(found, len(row), len(self.totals), self.totals))

    @torch.no_grad()
    def positions_at(
        self,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        columns: ColumnSubset,
        labels: torch.Tensor | None = None,
    ) -> ScoredPositions:
        """As `positions`, for the scores of some items alone; nothing here is as long as there are items.

        Args:
            histories: int64 (B, T), items from 1, 0 is padding.
            row: int64 (P,).
            slot: int64 (P,).
            columns: The items, C of N, whose scores are requested.
            labels: See `positions`.

        Returns:
            Positions whose entries name columns as followers, and have the totals of the items after them alone.
        """
        position, ago, item = self._after(histories, row, slot)
        distinct, which = item.unique(return_inverse=True)
        owner, index = rows_of(self.offsets, distinct)
        follower = columns.find(self.followers[index].long())
        kept = follower >= 0
        owner, follower, count = owner[kept], follower[kept], self.counts[index[kept]]
        offsets = nn.functional.pad(torch.bincount(owner, minlength=len(distinct)).cumsum(0), (1, 0))
        owner, index = rows_of(offsets, which)
        found = [position[owner], ago[owner], which[owner], follower[index], count[index]]
        if labels is not None:
            for own, numbers, count in self._own(histories, labels, position, item, row, slot):
                follower = columns.find(numbers)
                kept = follower >= 0
                own = own[kept]
                taken = (position[own], ago[own], which[own], follower[kept], count[kept])
                found = [torch.cat(parts) for parts in zip(found, taken, strict=True)]
        return ScoredPositions(row, slot, _entries(found, len(row), len(columns), self.totals[distinct]))

    def _after(
        self, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The items up to each position, as far as counts reach: position, how far back, item from 0; int64 (K,)."""
        number = torch.arange(len(row), device=row.device)
        back = torch.arange(min(self.reach, histories.shape[1]), device=row.device)
        position, ago = (part.flatten() for part in torch.meshgrid(number, back, indexing="ij"))
        kept = slot[position] >= ago
        position, ago = position[kept], ago[kept]
        item = histories[row[position], slot[position] - ago] - 1
        kept = item >= 0
        return position[kept], ago[kept], item[kept]

    def _own(
        self,
        histories: torch.Tensor,
        labels: torch.Tensor,
        position: torch.Tensor,
        item: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Counts that positions subtract, in either direction: which of the K items, follower from 0, -count."""
        windows, targets = histories[row[position]], labels[row[position]]  # (K, T)
        after, before = own_counts(windows, targets, item + 1, slot[position], self.reach, self.decay, self.reverse)
        for added, others in ((after, targets), (before, windows)):
            which, where = added.nonzero(as_tuple=True)
            yield which, others[which, where] - 1, -added[which, where]


def _entries(found: Sequence[torch.Tensor], positions: int, columns: int, totals: torch.Tensor) -> Entries:
    """Counts with the cells that they add up to.

    Args:
        found: Position, steps back, item (an index in `totals`), follower (a column) and count of each, all (E,).
        positions: Number of positions.
        columns: Number of columns.
        totals: float32, summed counts of each item's row.
    """
    position, ago, item, follower, count = found
    keys = position * columns + follower
    # One entry represents each cell: the one that was written last. Nothing is read that was not written.
    last = torch.empty(positions * columns, dtype=torch.int32, device=keys.device)
    number = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
    chosen = last.scatter_(0, keys, number)[keys]
    stands = chosen == number
    cell = (stands.cumsum(0) - 1)[chosen.long()]
    return Entries(ago, item, count, cell, position[stands], follower[stands], totals)


class HistoryScores(nn.Module):
    """Two additions to the scores of items, whose strength follows the model's state.

    1. A pointer: items of the history get an additional score that depends on the state and on how long ago they were,
       as in pointer networks (Vinyals et al., 2015), added to the scores instead of mixed into the probabilities.
    2. Counts: g log(1 + e^b A), where A is how often the item followed the history's items in training, weighted by
       distance and by how common those items are; g and b depend on the state.

    Args:
        width: Width D of the state.
        pointer: Most items back that the pointer reaches; 0 for no pointer.
        reach: Items back that counts are looked up; 0 for no counts.
        first: Column of item 1 in the scores; 1 where padding has a column before it.

    Attributes:
        distance: float (reach,); its softplus is the weight of each step back.
        commonness: float (1,); counts of an item are divided by their total to this power.
        gain: From the state to (g before its softplus, b).
    """

    def __init__(self, width: int, pointer: int, reach: int, first: int = 0):
        super().__init__()
        self.first = first
        self.pointer = Linear(width, pointer) if pointer else None
        if reach:
            self.distance = nn.Parameter(torch.zeros(reach))
            self.commonness = nn.Parameter(torch.zeros(1))
            self.gain = Linear(width, 2)

    def start_counts(self, decay: float) -> None:
        """Initialise the weights of distance as counted, a square root of commonness, and a small gain."""
        with torch.no_grad():
            steps = torch.arange(len(self.distance), dtype=torch.float32)
            self.distance.copy_(torch.log(torch.expm1(float(decay) ** steps)))
            self.commonness.fill_(0.5)
            self.gain.weight.zero_()
            self.gain.bias.copy_(torch.tensor([0.5, 2.0]))

    def forward(
        self,
        scores: torch.Tensor,
        state: torch.Tensor,
        histories: torch.Tensor,
        positions: ScoredPositions,
    ) -> torch.Tensor:
        """Add to scores.

        Args:
            scores: float (P, C); the pointer changes them in place where they are float32.
            state: float (P, D).
            histories: int64 (B, T), items from 1, 0 is padding.
            positions: The P positions.

        Returns:
            float32 (P, C).
        """
        scores = scores.float()
        if self.pointer is not None:
            back = positions.slot[:, None] - torch.arange(histories.shape[1], device=histories.device)  # (P, T)
            items = histories[positions.row]
            seen = (back >= 0) & (back < self.pointer.out_features) & (items > 0)
            extra = self.pointer(state).float().gather(1, back.clamp(0, self.pointer.out_features - 1))
            scores = scores.scatter_add_(1, (items - 1 + self.first).clamp(min=0), extra.masked_fill(~seen, 0.0))
        if positions.entries is not None:
            cells, extra = self._counts(state, positions.entries, scores.shape[1])
            scores = scores.flatten().index_add(0, cells, extra).view_as(scores)
        return scores

    def _counts(self, state: torch.Tensor, entries: Entries, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of cells among the flat scores, and gain times log(1 + e^b A) there; elsewhere A is 0."""
        rarity = (entries.totals + 1) ** -self.commonness  # (N,)
        steps = nn.functional.softplus(self.distance)
        weight = steps.index_select(0, entries.back) * rarity.index_select(0, entries.item) * entries.count
        found = weight.new_zeros(len(entries.position)).index_add(0, entries.cell, weight).clamp(min=0)
        gain = self.gain(state).float().index_select(0, entries.position)
        added = nn.functional.softplus(gain[:, 0]) * torch.log1p(found * gain[:, 1].exp())
        return entries.position * columns + entries.follower + self.first, added
