"""The classic sequential recommenders: GRU4Rec, Caser, SASRec and BERT4Rec."""

from typing import Any, cast

import torch
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.models.nn.layers import (
    NORM_EPS,
    Dropout,
    FeedForward,
    ItemEmbedding,
    Linear,
    SelfAttention,
    TransformerLayer,
    by_length,
    check_heads,
    full_width,
    init_weights,
    item_mask,
    length_groups,
    linear,
    readout_slots,
    slot_range,
    take_slots,
)
from minionerec.models.sequential.model import CausalEncoder, ModelData, SequentialModel, check_share

# GRU4Rec: a recurrent network over items.


class GRU4Rec(SequentialModel):
    """A gated recurrent unit over items (Hidasi et al., "Session-based Recommendations with Recurrent Networks", 2016).

    Item vectors with dropout, a GRU without biases, a linear map back to the items' width, tied output. Where the
    published implementation of the tables departs from the paper:

    1. Items are read through dense vectors, not one-hot (as Tan et al. 2016), and scored with the same vectors.
    2. The loss is the full softmax over all V rows at the last position, not BPR or TOP1 over a session-parallel batch.
    3. There is a linear map, with bias, after the GRU.

    With right padding the GRU stops at the newest item; with left padding it runs through the padding first. The
    forward pass of the WEARec code's variant is `embedding_size=64 hidden_size=64 num_layers=2 dropout=0.5`; it counts
    50 x 64 more parameters, a table of positions that nothing reads, and differs in loss and initialisation.

    Args:
        embedding_size: Width of the item vectors, D.
        hidden_size: Width of the GRU.
        num_layers: Layers of the GRU.
        dropout: Dropout of the item vectors.
    """

    causal = True

    def __init__(
        self,
        *,
        embedding_size: int = 64,
        hidden_size: int = 128,
        num_layers: int = 1,
        dropout: float = 0.3,
        **sizes: Any,
    ):
        super().__init__(hidden_size=hidden_size, **sizes)
        self.masks_padding = self.padding == "right"
        self.items = nn.Embedding(self.num_items + 1, embedding_size, padding_idx=0)
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
        return by_length(lambda group, positions: self._last_vectors(group), histories, self.padding)

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


# Caser: convolutions over the image of the newest items.


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
    appear only after training, and where the vectors of the others learn the training examples by heart.

    Args:
        num_users: Number of users; the table has one row more. Without `personal` it has no meaning.
        vertical: Vertical filters.
        horizontal: Horizontal filters of each height.
        dropout: Dropout of the filters' outputs.
        penalty: Weight of the norms in the loss.
        personal: Whether users have vectors.
    """

    def __init__(
        self,
        *,
        num_users: int,
        vertical: int = 4,
        horizontal: int = 8,
        dropout: float = 0.4,
        penalty: float = 1e-4,
        personal: bool = True,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        hidden_size, max_len = self.hidden_size, self.max_len
        self.penalty = penalty
        self.needs_users = personal
        self.users = nn.Embedding(num_users + 1, hidden_size) if personal else None
        self.items = nn.Embedding(self.num_items + 1, hidden_size, padding_idx=0)
        self.vertical = Linear(max_len, vertical)  # initialised like a convolution of height L
        self.horizontal = nn.ModuleList(nn.Conv1d(hidden_size, horizontal, height + 1) for height in range(max_len))
        self.dropout = Dropout(dropout)
        self.inner = Linear(vertical * hidden_size + horizontal * max_len, hidden_size)
        self.outer = Linear((1 + personal) * hidden_size, hidden_size)
        for table in filter(None, (self.users, self.items)):
            nn.init.normal_(table.weight, std=1 / hidden_size)
        for layer in (self.inner, self.outer):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    @classmethod
    def data_hyper(cls, data: ModelData) -> dict[str, Any]:
        """See `SequentialModel`; and the number of users."""
        return {**super().data_hyper(data), "num_users": data.num_users}

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
        contexts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Cross-entropy over all V rows, plus the penalty on norms."""
        parts = [self.users, self.items, self.vertical, self.inner, self.outer, *self.horizontal]
        norms = torch.stack([part.weight.norm() for part in parts if part is not None])
        return super().loss(histories, targets, users, contexts) + self.penalty * norms.sum()


# SASRec: self-attention over the past.


def transformer_layers(
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    inner_size: int,
    hidden_dropout: float,
    attention_dropout: float,
) -> nn.ModuleList:
    """The post-norm layers of a transformer."""
    return nn.ModuleList(
        TransformerLayer(
            SelfAttention(hidden_size, num_heads, hidden_dropout, attention_dropout),
            FeedForward(hidden_size, inner_size, hidden_dropout),
        )
        for _ in range(num_layers)
    )


class SASRec(CausalEncoder):
    """A causal post-norm transformer over items (Kang & McAuley, "Self-Attentive Sequential Recommendation", 2018).

    Embedding of §III-A, self-attention of §III-B (eq. 2 to 4), tied output of §III-D (eq. 6). Where the published
    implementations that produced the tables depart from the paper:

    1. Norms are after the residual connections (post-norm), not before the layers.
    2. The position-wise network is four times as wide as the model and has a GELU; the paper's keeps the width, with a
       ReLU.
    3. Attention has an output projection and biases.
    4. The loss is the full softmax over all V rows of the item table, the padding row included, at the last position
       alone; the paper has binary cross-entropy with one negative at all positions (`sequence_loss` is the full
       softmax at all positions).
    5. Item vectors are not multiplied by √D.

    Args:
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        attention_dropout: Dropout of attention weights.
        hidden_dropout: Dropout after the embedding and each part of a layer.
    """

    def __init__(
        self,
        *,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        attention_dropout: float = 0.5,
        hidden_dropout: float = 0.5,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        hidden_size = self.hidden_size
        check_heads(hidden_size, num_heads)
        self.embedding = ItemEmbedding(self.num_items, self.max_len, hidden_size, hidden_dropout, self.padding)
        self.layers = transformer_layers(
            num_layers, hidden_size, num_heads, inner_size, hidden_dropout, attention_dropout
        )
        self.norm = nn.Identity()  # every layer ends with one
        self.apply(init_weights)

    def embed(self, histories: torch.Tensor) -> torch.Tensor:
        """See `CausalEncoder`."""
        x: torch.Tensor = self.embedding(histories)
        return x

    def item_matrix(self) -> torch.Tensor:
        """See `SequentialModel`."""
        return self.embedding.items.weight


# BERT4Rec: items hidden from a transformer that sees both sides.


class BERT4Rec(SequentialModel):
    """A bidirectional transformer trained to fill in items (Sun et al., "BERT4Rec", CIKM 2019).

    The mask is item V, after the V rows of items and padding. Layers as in `SASRec`, without the causal mask; output
    as in eq. 7 of the paper, softmax(LN(gelu(W h + b)) Eᵀ + c) over the V rows. The published implementation departs
    from the paper:

    1. Training reads histories alone: the next item of a row is no target. So the last training item of each user is
       never predicted.
    2. A batch either masks each item with probability `mask_ratio`, or (with probability `newest_ratio`) the newest
       item of every row and nothing else; the paper mixes both in one set of samples.
    3. At most ⌊mask_ratio · max_len⌋ masked items of a row are scored, the newest ones; and slot 0 is masked like the
       others but never scored, since its number stands for "none". An example of one item adds nothing in a batch
       of newest items.
    4. For a prediction the mask is put after the history and then the first slot is dropped, however short the history
       is: its oldest item is always lost.
    5. The head has a norm, which eq. 7 has not, and the padding row is a class.

    Args:
        num_layers: Layers.
        num_heads: Attention heads; D must be a multiple.
        inner_size: Width of the position-wise network.
        attention_dropout: Dropout of attention weights.
        hidden_dropout: Dropout after the embedding and each part of a layer.
        mask_ratio: Share of masked items.
        newest_ratio: Share of batches that mask the newest item alone.
    """

    masks_padding = True
    learns_next = False

    def __init__(
        self,
        *,
        num_layers: int = 2,
        num_heads: int = 2,
        inner_size: int = 256,
        attention_dropout: float = 0.2,
        hidden_dropout: float = 0.2,
        mask_ratio: float = 0.2,
        newest_ratio: float = 0.5,
        **sizes: Any,
    ):
        super().__init__(**sizes)
        hidden_size = self.hidden_size
        check_heads(hidden_size, num_heads)
        check_share("mask_ratio", mask_ratio)
        check_share("newest_ratio", newest_ratio)
        self.most_scored = int(mask_ratio * self.max_len)  # masked items of a row
        if not self.most_scored:
            raise ConfigError(f"mask_ratio {mask_ratio} of max_len {self.max_len} is less than one item; raise it.")
        self.mask_ratio, self.newest_ratio = mask_ratio, newest_ratio
        self.embedding = ItemEmbedding(self.num_items + 1, self.max_len, hidden_size, hidden_dropout, self.padding)
        self.layers = transformer_layers(
            num_layers, hidden_size, num_heads, inner_size, hidden_dropout, attention_dropout
        )
        self.head = nn.Sequential(Linear(hidden_size, hidden_size), nn.GELU(), nn.LayerNorm(hidden_size, eps=NORM_EPS))
        self.bias = nn.Parameter(torch.zeros(self.num_items + 1))
        self.apply(init_weights)

    @property
    def mask_item(self) -> int:
        """Number of the mask, V."""
        return self.num_items + 1

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._newest_vectors, self.mask_next(histories), self.padding)

    def mask_next(self, histories: torch.Tensor) -> torch.Tensor:
        """Put the mask after each history, and drop the first slot: int64 (B, L) to (B, max_len)."""
        histories = full_width(histories, self.max_len, self.padding)
        shifted = nn.functional.pad(histories[:, 1:], (0, 1))
        return shifted.scatter(1, readout_slots(histories, self.padding)[:, None], self.mask_item)

    def _newest_vectors(self, histories: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, mask = self._before_last(histories)
        vectors: torch.Tensor = self.head(self.layers[-1](x, mask, readout_slots(histories, self.padding))[:, 0])
        return vectors

    def _before_last(self, histories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and mask of the last layer."""
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
            int64 (B, L), the histories with masks; int64 (B, L), the items to predict, 0 for none.
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
        contexts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean cross-entropy of the masked items that are scored; next items and request features are not used."""
        masked, hidden_items = self.hide(histories)
        last = cast(TransformerLayer, self.layers[-1])
        vectors, items = [], []
        for positions, columns in length_groups(masked, self.padding):
            x, mask = self._before_last(masked[positions, columns])
            here = hidden_items[positions, columns]
            states = last.attention(x, mask)[here > 0]
            vectors.append(self.head(last.feed_forward(states)))
            items.append(here[here > 0])
        scored = torch.cat(vectors)
        return self.cross_entropy(scored, torch.cat(items)) if len(scored) else scored.sum()
