"""GRU4Rec: a recurrent network over items."""

import torch
from torch import nn

from minionerec.data.rows import Side
from minionerec.models.nn.dropout import Dropout
from minionerec.models.nn.layers import by_length
from minionerec.models.nn.linear import Linear
from minionerec.models.nn.padding import readout_slots, take_slots
from minionerec.models.sequential.model import SequentialModel


class GRU4Rec(SequentialModel):
    """A gated recurrent unit over items (Hidasi et al., "Session-based Recommendations with Recurrent Networks", 2016).

    Item vectors with dropout, a GRU without biases, a linear map back to the items' width, tied output. Where the
    published implementation of the tables departs from the paper:

    1. Items are read through dense vectors, not one-hot (as Tan et al. 2016), and scored with the same vectors.
    2. The loss is the full softmax over all V rows at the last position, not BPR or TOP1 over a session-parallel batch.
    3. There is a linear map, with bias, behind the GRU.

    With right padding the GRU stops at the newest item; with left padding it runs through the padding first. The
    forward pass of the WEARec code's variant is `embedding_size=64 hidden_size=64 num_layers=2 dropout=0.5`; it counts
    50 x 64 more parameters, a table of positions that nothing reads, and differs in loss and initialisation.

    Args:
        num_items: Number of items.
        max_len: Longest history.
        padding: Side of the padding.
        embedding_size: Width of the item vectors, D.
        hidden_size: Width of the GRU.
        num_layers: Layers of the GRU.
        dropout: Dropout of the item vectors.
    """

    causal = True

    def __init__(
        self,
        num_items: int,
        max_len: int,
        padding: Side = "right",
        embedding_size: int = 64,
        hidden_size: int = 128,
        num_layers: int = 1,
        dropout: float = 0.3,
    ):
        super().__init__(num_items, max_len, padding)
        self.masks_padding = padding == "right"
        self.items = nn.Embedding(num_items + 1, embedding_size, padding_idx=0)
        self.dropout = Dropout(dropout)
        self.gru = nn.GRU(embedding_size, hidden_size, num_layers, bias=False, batch_first=True)
        self.out = Linear(hidden_size, embedding_size)
        nn.init.xavier_normal_(self.items.weight)
        for weight in self.gru.parameters():
            nn.init.xavier_uniform_(weight)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        if not self.masks_padding:
            return self._last_vectors(histories)
        return by_length(lambda rows, places: self._last_vectors(rows), histories, self.padding)

    def _last_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.dropout(self.items(histories)))
        vectors: torch.Tensor = self.out(take_slots(states, readout_slots(histories, self.padding)))
        return vectors

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        vectors: torch.Tensor = self.out(self.gru(self.dropout(self.items(histories)))[0])
        return vectors

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight
