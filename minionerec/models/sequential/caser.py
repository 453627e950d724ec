"""Caser: convolutions over the image of the newest items."""

import torch
from torch import nn

from minionerec.data.rows import Side
from minionerec.models.nn.dropout import Dropout
from minionerec.models.nn.linear import Linear
from minionerec.models.sequential.model import SequentialModel


class Caser(SequentialModel):
    """Convolutional sequence embedding (Tang & Wang, "Personalized Top-N Sequential Recommendation", 2018).

    The image of a history is its L item vectors, padding included. Vertical filters L x 1 (eq. 6) and horizontal ones
    h x D of all heights h = 1..L with ReLU and max-pooling over time (eq. 3 to 5), dropout, z = ReLU(W [o, õ] + b)
    (eq. 8), then h = ReLU(W' [z, user vector] + b'), scored against the item vectors. Where the published
    implementation departs from the paper:

    1. Input and output item vectors are one table, so the user vector goes through a second linear map, whose ReLU
       leaves no negative part (eq. 9 scores [z, P_u] itself).
    2. The loss is the full softmax over all V rows for the next item; the paper has binary cross-entropy with three
       negatives and T targets.
    3. The penalty is 1e-4 times the norms (not squared) of both tables, the vertical filters and both maps, and of
       each horizontal filter bank, on top of the loss.

    Without `personal` there are no user vectors, and h = ReLU(W' z + b'): for data many of whose users
    appear only after training, and where the vectors of the others learn the training rows by heart.

    Args:
        num_items: Number of items.
        max_len: Longest history, L.
        num_users: Number of users; the table has one row more. Without `personal` it has no meaning.
        padding: Side of the padding.
        hidden_size: Width D of item and user vectors.
        vertical: Vertical filters.
        horizontal: Horizontal filters of each height.
        dropout: Dropout of the filters' outputs.
        penalty: Weight of the norms in the loss.
        personal: Whether users have vectors.
    """

    def __init__(
        self,
        num_items: int,
        max_len: int,
        num_users: int,
        padding: Side = "right",
        hidden_size: int = 64,
        vertical: int = 4,
        horizontal: int = 8,
        dropout: float = 0.4,
        penalty: float = 1e-4,
        personal: bool = True,
    ):
        super().__init__(num_items, max_len, padding)
        self.penalty = penalty
        self.needs_users = personal
        self.users = nn.Embedding(num_users + 1, hidden_size) if personal else None
        self.items = nn.Embedding(num_items + 1, hidden_size, padding_idx=0)
        self.vertical = Linear(max_len, vertical)  # in the law of a convolution of height L
        self.horizontal = nn.ModuleList(nn.Conv1d(hidden_size, horizontal, height + 1) for height in range(max_len))
        self.dropout = Dropout(dropout)
        self.inner = Linear(vertical * hidden_size + horizontal * max_len, hidden_size)
        self.outer = Linear((1 + personal) * hidden_size, hidden_size)
        for table in filter(None, (self.users, self.items)):
            nn.init.normal_(table.weight, std=1 / hidden_size)
        for linear in (self.inner, self.outer):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`; a history shorter than `max_len` columns is an error of the caller."""
        image = self.items(histories).transpose(1, 2).contiguous()  # (B, D, L)
        across = self.vertical(image).transpose(1, 2).flatten(1)  # (B, vertical * D), filter by filter
        along = [filters(image).relu().amax(-1) for filters in self.horizontal]  # L times (B, horizontal)
        z = self.inner(self.dropout(torch.cat([across, *along], 1))).relu()
        vectors: torch.Tensor = self.outer(z if self.users is None else torch.cat([z, self.users(users)], 1)).relu()
        return vectors

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.items.weight

    def loss(
        self,
        histories: torch.Tensor,
        targets: torch.Tensor,
        users: torch.Tensor | None = None,
        moments: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Cross-entropy over all V rows, plus the penalty on norms."""
        parts = [self.users, self.items, self.vertical, self.inner, self.outer, *self.horizontal]
        norms = torch.stack([part.weight.norm() for part in parts if part is not None])
        return super().loss(histories, targets, users, moments) + self.penalty * norms.sum()
