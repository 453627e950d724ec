"""Scores of the next item from repeats and item transitions of the history, added to a model's scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from minionerec.models.nn.layers import Linear
from minionerec.models.nn.rows import ColumnSubset


def rows_of(offsets: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of all entries of rows, int64 (R,), of a CSR matrix with `indptr` int64 (N + 1,).

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
    """Counts that the targets of windows, from given positions on, added to the transition counts of entries.

    Args:
        histories: int64 (K, L), windows; 0 is padding on the right.
        targets: int64 (K, L), counted targets; 0 or less for none.
        entries: int64 (K,), an item, from 1, of each window: the row of the counts.
        first: int64 (K,), the position of the first target that is considered.
        reach: Largest distance of counted pairs.
        decay: Decay per step of distance.
        reverse: Weight of pairs in the reverse direction.

    Returns:
        Two float32 (K, L): the counts of the target after each position as a follower of the entry, and of the item at
        each position as a follower of the entry in the reverse direction.
    """
    position = torch.arange(histories.shape[1], device=histories.device)
    back = position[None, :] - position[:, None]  # from a position to the one whose target counts
    weight = torch.where((back >= 0) & (back < reach), float(decay) ** back.clamp(min=0), 0.0)
    counts = (position >= first[:, None]) & (targets > 0)
    with torch.autocast(histories.device.type, enabled=False):  # a rounding error would leak the target
        after = (histories == entries[:, None]).float() @ weight
        before = ((targets == entries[:, None]) & counts).float() @ weight.T
    return after * counts, reverse * before * (histories > 0)


@dataclass(frozen=True)
class Entries:
    """Transition counts of the positions of a batch: E counts, summed into C cells of position and follower.

    Attributes:
        back: int64 (E,), distance of the count's item from the position's item.
        item: int64 (E,), item of the count, as an index in `totals`.
        count: float32 (E,).
        cell: int64 (E,), cell of the count.
        position: int64 (C,), position of each cell.
        follower: int64 (C,), follower of each cell, as a column of the scores, from 0.
        totals: float32 (N,), see `PairCounts`; or only those of the items of the counts.
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
    """Positions of a batch of histories whose next item is predicted, with inputs that depend on no weight.

    Attributes:
        row: int64 (P,), row of each position in the batch.
        slot: int64 (P,), column of each position.
        entries: Counts of the P positions; None without counts.
        contexts: int64 (P, F), codes of the request features of the next item; unknown if None.
        events: int64 (B, T), event of each item of the histories, from 1, 0 where unknown; all unknown if None.
    """

    row: torch.Tensor
    slot: torch.Tensor
    entries: Entries | None = None
    contexts: torch.Tensor | None = None
    events: torch.Tensor | None = None

    @property
    def known_contexts(self) -> torch.Tensor:
        """The contexts, int64 (P, F); one column of unknown codes, for all features, if none are given."""
        return torch.zeros_like(self.row)[:, None] if self.contexts is None else self.contexts


class PairCounts(nn.Module):
    """Transition counts of the training examples (`count_transitions`).

    Args:
        num_items: Number of items, N.
        num_transitions: Number of stored counts.
        reach: Largest distance, in items, of pairs.
        decay: Decay per step of distance.
        reverse: Weight of pairs in the reverse direction.

    Attributes:
        totals: float32 (N,), sum of each item's row of counts.
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
        items = np.repeat(np.arange(len(self.totals)), np.diff(counted.indptr))
        self.totals.copy_(torch.from_numpy(np.bincount(items, counted.data, len(self.totals))))

    def flaw(self) -> str | None:
        """Describe the first inconsistency of loaded counts; None if there is none."""
        offsets, followers = self.offsets, self.followers
        ends = offsets[0].item() == 0 and offsets[-1].item() == len(followers)
        if not ends or bool((offsets[1:] < offsets[:-1]).any()):
            return f"the offsets of its counts do not split {len(followers)} counts by {len(self.totals)} items"
        if len(followers) and not 0 <= int(followers.min()) <= int(followers.max()) < len(self.totals):
            return f"its counts name items beyond its {len(self.totals)}"
        return None

    @torch.no_grad()
    def positions(
        self,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        labels: torch.Tensor | None = None,
        columns: ColumnSubset | None = None,
    ) -> ScoredPositions:
        """Look up the transitions of the items up to each position.

        Args:
            histories: int64 (B, T), items from 1, 0 is padding.
            row: int64 (P,).
            slot: int64 (P,).
            labels: int64 (B, T), the counted target after each column, 0 or less for none. If given, the counts that a
                position's own label and later ones added are excluded.
            columns: The C items whose scores are requested, which entries name as followers, with totals of the
                histories' items alone, so that no tensor's size depends on N; all if None.
        """
        position, ago, item = self._after(histories, row, slot)
        if columns is None:
            table_item, totals, width = item, self.totals, len(self.totals)
            owner, index = rows_of(self.offsets, item)
            follower, count = self.followers[index].long(), self.counts[index]
        else:
            distinct, table_item = item.unique(return_inverse=True)
            totals, width = self.totals[distinct], len(columns)
            owner, index = rows_of(self.offsets, distinct)
            follower = columns.find(self.followers[index].long())
            is_requested = follower >= 0
            owner, follower, count = owner[is_requested], follower[is_requested], self.counts[index[is_requested]]
            offsets = nn.functional.pad(torch.bincount(owner, minlength=len(distinct)).cumsum(0), (1, 0))
            owner, index = rows_of(offsets, table_item)
            follower, count = follower[index], count[index]
        entries = [position[owner], ago[owner], table_item[owner], follower, count]
        if labels is not None:
            for indices, follower, count in self._own_counts(histories, labels, position, item, row, slot):
                if columns is not None:
                    follower = columns.find(follower)
                    is_requested = follower >= 0
                    indices, follower, count = (part[is_requested] for part in (indices, follower, count))
                subtracted = (position[indices], ago[indices], table_item[indices], follower, count)
                entries = [torch.cat(parts) for parts in zip(entries, subtracted, strict=True)]
        return ScoredPositions(row, slot, _entries(entries, len(row), width, totals))

    def _after(
        self, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The items within reach of each position: position, distance, item from 0; three int64 (K,)."""
        number = torch.arange(len(row), device=row.device)
        back = torch.arange(min(self.reach, histories.shape[1]), device=row.device)
        position, ago = (part.flatten() for part in torch.meshgrid(number, back, indexing="ij"))
        is_valid = slot[position] >= ago
        position, ago = position[is_valid], ago[is_valid]
        item = histories[row[position], slot[position] - ago] - 1
        is_valid = item >= 0
        return position[is_valid], ago[is_valid], item[is_valid]

    def _own_counts(
        self,
        histories: torch.Tensor,
        labels: torch.Tensor,
        position: torch.Tensor,
        item: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Counts that positions subtract, for both directions: index among the K items, follower from 0, -count."""
        windows, targets = histories[row[position]], labels[row[position]]  # (K, T)
        after, before = own_counts(windows, targets, item + 1, slot[position], self.reach, self.decay, self.reverse)
        for added, others in ((after, targets), (before, windows)):
            which, where = added.nonzero(as_tuple=True)
            yield which, others[which, where] - 1, -added[which, where]


def _entries(entries: Sequence[torch.Tensor], positions: int, columns: int, totals: torch.Tensor) -> Entries:
    """Group counts into cells of equal position and follower.

    Args:
        entries: Position, distance, item (an index in `totals`), follower (a column) and count of each, all (E,).
        positions: Number of positions.
        columns: Number of columns.
        totals: float32, summed counts of each item's row.
    """
    position, ago, item, follower, count = entries
    keys = position * columns + follower
    # Each cell is represented by the entry that was written last. Only written elements are read.
    last = torch.empty(positions * columns, dtype=torch.int32, device=keys.device)
    number = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
    chosen = last.scatter_(0, keys, number)[keys]
    is_representative = chosen == number
    cell = (is_representative.cumsum(0) - 1)[chosen.long()]
    return Entries(ago, item, count, cell, position[is_representative], follower[is_representative], totals)


class HistoryScores(nn.Module):
    """State-dependent additions to the scores of items: a pointer and counts.

    1. A pointer: items of the history get an additional score that depends on the state and on their distance, as in
       pointer networks (Vinyals et al., 2015), but added to the scores instead of mixed into the probabilities.
    2. Counts: g log(1 + e^b A), where A is the number of times that the item followed the history's items in training,
       weighted by distance and by the frequency of those items; g and b depend on the state.

    Args:
        width: Width D of the state.
        pointer: Reach of the pointer in items; 0 for no pointer.
        reach: Reach of the counts in items; 0 for no counts.
        first: Column of item 1 in the scores; 1 if there is a column for padding.

    Attributes:
        distance: float (reach,); its softplus is the weight of each distance.
        commonness: float (1,); counts of an item are divided by their total to this power.
        gain: Linear map from the state to (g before its softplus, b).
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
        """Initialise the weights of distances from the decay, `commonness` to 0.5, and a small gain."""
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
        """Add to scores: float32 (P, C).

        Args:
            scores: float (P, C); modified in place by the pointer if float32.
            state: float (P, D).
            histories: int64 (B, T), items from 1, 0 is padding.
            positions: The P positions.
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
        """Indices of cells in the flattened scores, and g log(1 + e^b A) of each; A is 0 elsewhere."""
        rarity = (entries.totals + 1) ** -self.commonness  # (N,)
        steps = nn.functional.softplus(self.distance)
        weight = steps.index_select(0, entries.back) * rarity.index_select(0, entries.item) * entries.count
        summed = weight.new_zeros(len(entries.position)).index_add(0, entries.cell, weight).clamp(min=0)
        gain = self.gain(state).float().index_select(0, entries.position)
        added = nn.functional.softplus(gain[:, 0]) * torch.log1p(summed * gain[:, 1].exp())
        return entries.position * columns + entries.follower + self.first, added
