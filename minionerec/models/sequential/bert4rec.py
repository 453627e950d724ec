"""BERT4Rec: items hidden from a transformer that sees both sides."""

from typing import cast

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    NORM_EPS,
    ItemEmbedding,
    TransformerLayer,
    by_length,
    check_heads,
    init_weights,
    item_mask,
)
from minionerec.models.nn.linear import Linear, linear
from minionerec.models.nn.padding import full_width, length_groups, readout_slots, slot_range
from minionerec.models.sequential.model import SequentialModel


class BERT4Rec(SequentialModel):
    """A bidirectional transformer trained to fill in items (Sun et al., "BERT4Rec", CIKM 2019).

    The mask is item V, behind the V rows of items and padding. Layers as in `SASRec`, without the causal mask; output
    as in eq. 7 of the paper, softmax(LN(gelu(W h + b)) Eᵀ + c) over the V rows. The published implementation departs
    from the paper:

    1. Training reads histories alone: the next item of a row is no target. So the last training item of each user is
       never predicted.
    2. A batch either masks each item with probability `mask_ratio`, or (with probability `newest_ratio`) the newest
       item of every row and nothing else; the paper mixes both in one set of samples.
    3. At most ⌊mask_ratio · max_len⌋ masked items of a row are scored, the newest ones; and slot 0 is masked like the
       others but never scored, since its number stands for "none". A row of one item gives nothing to learn in a batch
       of newest items.
    4. For a prediction the mask is put behind the history and then the first slot is dropped, however short the history
       is: its oldest item is always lost.
    5. The head has a norm, which eq. 7 has not, and the padding row is a class.

    Args:
        num_items: Number of items.
        max_len: Longest history.
        padding: Side of the padding.
        hidden_size: Width D.
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        hidden_dropout: Dropout behind the embedding and each part of a layer.
        attention_dropout: Dropout of attention weights.
        mask_ratio: Share of masked items.
        newest_ratio: Share of batches that mask the newest item alone.

    Raises:
        ConfigError: If `num_heads` does not divide `hidden_size`, a ratio lies outside [0, 1], or no item would be
            scored.
    """

    masks_padding = True
    learns_next = False

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "right",
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        hidden_dropout: float = 0.2,
        attention_dropout: float = 0.2,
        mask_ratio: float = 0.2,
        newest_ratio: float = 0.5,
    ):
        super().__init__(num_items, max_len, padding)
        check_heads(hidden_size, num_heads)
        for name, value in (("mask_ratio", mask_ratio), ("newest_ratio", newest_ratio)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; it is a share and must lie in [0, 1].")
        self.most_scored = int(mask_ratio * max_len)
        if not self.most_scored:
            raise ConfigError(f"mask_ratio {mask_ratio} of max_len {max_len} is less than one item; raise it.")
        self.mask_ratio, self.newest_ratio = mask_ratio, newest_ratio
        self.embedding = ItemEmbedding(num_items + 1, max_len, hidden_size, hidden_dropout, padding)
        self.layers = nn.ModuleList(
            TransformerLayer(hidden_size, num_heads, inner_size, hidden_dropout, attention_dropout)
            for _ in range(num_layers)
        )
        self.head = nn.Sequential(Linear(hidden_size, hidden_size), nn.GELU(), nn.LayerNorm(hidden_size, eps=NORM_EPS))
        self.bias = nn.Parameter(torch.zeros(num_items + 1))
        self.apply(init_weights)

    @property
    def mask_item(self) -> int:
        """Number of the mask, V."""
        return self.num_items + 1

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._newest_vectors, self.ask_next(histories), self.padding)

    def ask_next(self, histories: torch.Tensor) -> torch.Tensor:
        """Put the mask behind each history, and drop the first slot: int64 (B, L) to (B, max_len)."""
        histories = full_width(histories, self.max_len, self.padding)
        asked = nn.functional.pad(histories[:, 1:], (0, 1))
        return asked.scatter(1, readout_slots(histories, self.padding)[:, None], self.mask_item)

    def _newest_vectors(self, histories: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x, mask = self._before_last(histories)
        vectors: torch.Tensor = self.head(self.layers[-1](x, mask, readout_slots(histories, self.padding))[:, 0])
        return vectors

    def _before_last(self, histories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input of the last layer, and its mask."""
        x, mask = self.embedding(histories), item_mask(histories)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        return x, mask

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.embedding.items.weight[: self.mask_item]

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`; with a bias for each item."""
        return linear(vectors, self.item_matrix(), self.bias)

    def hide(self, histories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mask items of a batch at random.

        Args:
            histories: int64 (B, L).

        Returns:
            int64 (B, L), the histories with masks; int64 (B, L), the items to predict, 0 where there is none.
        """
        columns = torch.arange(histories.shape[1], device=histories.device)
        if float(torch.rand(())) < self.newest_ratio:
            hidden = columns == readout_slots(histories, self.padding)[:, None]
        else:
            hidden = torch.rand(histories.shape, device=histories.device) < self.mask_ratio
        hidden &= histories > 0
        from_end = hidden.flip(1).cumsum(1).flip(1)
        first = slot_range(histories.shape[1], self.max_len, self.padding).start
        scored = hidden & (from_end <= self.most_scored) & (columns + first > 0)
        return histories.masked_fill(hidden, self.mask_item), histories * scored

    def loss(
        self,
        histories: torch.Tensor,
        targets: torch.Tensor,
        users: torch.Tensor | None = None,
        moments: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean cross-entropy of the masked items that are scored; next items, and their moments, are not used."""
        given, wanted = self.hide(histories)
        last = cast(TransformerLayer, self.layers[-1])
        vectors, items = [], []
        for places, columns in length_groups(given, self.padding):
            x, mask = self._before_last(given[places, columns])
            here = wanted[places, columns]
            states = last.attention(x, mask)[here > 0]
            vectors.append(self.head(last.feed_forward(states)))
            items.append(here[here > 0])
        scored = torch.cat(vectors)
        return self.cross_entropy(scored, torch.cat(items)) if len(scored) else scored.sum()
