"""The interface of every sequential recommender, and the causal encoder that several of them share."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import nn

from minionerec.core.errors import ConfigError
from minionerec.data.contexts import UNKNOWN
from minionerec.data.rows import Side
from minionerec.models.nn.layers import (
    INIT_STD,
    CausalLayer,
    by_length,
    causal_mask,
    length_groups,
    linear,
    readout_slots,
)
from minionerec.models.nn.session import SessionStates


def check_share(name: str, value: float) -> None:
    """Check that a hyper-parameter is a share.

    Raises:
        ConfigError: If it is not.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}; it is a share and must lie in [0, 1].")


@dataclass(frozen=True)
class ModelData:
    """Facts of the data that a model is built from, and fixed inputs that it may read besides histories.

    Attributes:
        padding: Side on which histories are padded.
        num_users: Number of users.
        text: Text vectors of the items, float32 (N, T), row i of item i + 1; None without.
        transitions: Item transitions in the training windows; None without.
        digits: Digits of the items, int32 (N, M), row i of item i + 1; None without.
    """

    padding: Side = "right"
    num_users: int = 0
    text: torch.Tensor | None = None
    transitions: csr_array | None = None
    digits: torch.Tensor | None = None


class SequentialModel(nn.Module):
    """A recommender that gives a vector for a history of items, and ranks items by their product with it (`scores`).

    Items are numbered 1 to `num_items`; 0 is padding. A batch of histories is int64 (B, L), L at most `max_len`, oldest
    item first, padded on the side `padding`. Trailing (or leading) columns that are padding in every row may be dropped
    by a model where that leaves its result unchanged, and only there.

    A model takes these and its own hyper-parameters by name, and passes on those that it has in common with its base.

    Args:
        num_items: Number of items N.
        max_len: Longest history that the model reads; one in which padding takes part fills shorter batches up to it.
        padding: Side on which histories are padded.
        hidden_size: Width D.

    Raises:
        ConfigError: If there is no item, a history has no room, or a hyper-parameter is out of its range.

    Attributes:
        num_items: Number of items N; tables of items have V = N + 1 rows.
        causal: Whether the state at a position depends on no later position, so that the model may be trained at all
            positions of a sequence at once (`position_vectors`).
        masks_padding: Whether a row's vectors stay the same when columns are dropped that are padding in it, so that
            training at all positions may go by groups of similar length.
        needs_users: Whether `user_vectors` reads `users`.
        reads_text: Whether the model reads text vectors of the items (`set_text`) where there are any.
        reads_digits: Whether the model needs digits of the items (`set_digits`).
        learns_next: Whether `loss` is that of the next items, so that it may be conditioned on session contexts.
        label_smoothing: Share of the target's probability that the losses spread over all V rows.
        session_states: Scale and shift of vectors by session context; None in a model that is not conditioned on it.
    """

    causal = False
    masks_padding = False
    needs_users = False
    reads_text = False
    reads_digits = False
    learns_next = True

    def __init__(self, *, num_items: int, max_len: int, padding: Side = "right", hidden_size: int = 64):
        for name, size in (("num_items", num_items), ("max_len", max_len)):
            if size < 1:
                raise ConfigError(f"{name} is {size}; it must be at least 1.")
        super().__init__()
        self.num_items, self.max_len, self.padding, self.hidden_size = num_items, max_len, padding, hidden_size
        self.label_smoothing = 0.0
        self.session_states: SessionStates | None = None

    @classmethod
    def data_hyper(cls, data: ModelData) -> dict[str, Any]:
        """Hyper-parameters that the data determine, so that users cannot choose them.

        Args:
            data: The data.

        Returns:
            Name → value; the names are the same for all data.
        """
        return {"padding": data.padding}

    def flaw(self) -> str | None:
        """The error in buffers that were read from a file; None if there is none."""
        return None

    def condition_on_session(self) -> None:
        """Condition the model on the session context of the next item; at first it makes no difference.

        Raises:
            ConfigError: If its loss is not that of the next items.
        """
        if not self.learns_next:
            raise ConfigError(
                f"{type(self).__name__} learns to fill in items of histories, not the next ones, so it cannot be "
                "conditioned on their session context. Leave session_context out."
            )
        with torch.no_grad():
            width = self.item_matrix().shape[1]
        self.session_states = SessionStates(width)

    def set_text(self, vectors: torch.Tensor) -> None:
        """Give the items fixed text vectors, where the model reads them.

        Args:
            vectors: float32 (N, T), row i of item i + 1.

        Raises:
            ConfigError: If the model reads none, or they do not fit it.
        """
        raise ConfigError(f"{type(self).__name__} reads no text vectors; leave vectors out.")

    def set_transitions(self, counted: csr_array) -> None:
        """Give the model transition counts of training, where it reads them.

        Raises:
            ConfigError: If the model reads none, or was built for another number of them.
        """
        raise ConfigError(f"{type(self).__name__} reads no counts of pairs.")

    def set_digits(self, digits: torch.Tensor) -> None:
        """Give the items their digits, where the model reads them.

        Args:
            digits: int (N, M), row i of item i + 1.

        Raises:
            ConfigError: If the model reads none, or they do not fit it.
        """
        raise ConfigError(f"{type(self).__name__} reads no digits; leave digits out.")

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """Vector of each history, at the position where the next item is predicted.

        Args:
            histories: int64 (B, L).
            users: int64 (B,), number of each row's user from 0; only where `needs_users`.

        Returns:
            float (B, D).
        """
        raise NotImplementedError

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """Vectors at every position, for training at all positions; only where `causal`.

        Args:
            histories: int64 (B, L).

        Returns:
            float (B, L, D); values at padding have no meaning.
        """
        raise NotImplementedError

    def item_matrix(self) -> torch.Tensor:
        """Vectors that items are scored with: float (V, D), row 0 for padding."""
        raise NotImplementedError

    def conditioned(self, vectors: torch.Tensor, contexts: torch.Tensor | None) -> torch.Tensor:
        """Vectors as they are scored with, by the session contexts of the next items.

        Args:
            vectors: float (K, D), of `user_vectors` or `position_vectors`.
            contexts: int64 (K,), indices into `minionerec.data.contexts.SESSION_CONTEXTS`; all unknown if None. A model
                that is not conditioned on them ignores them.

        Returns:
            float (K, D).
        """
        if self.session_states is None:
            return vectors
        if contexts is None:
            contexts = torch.full((len(vectors),), UNKNOWN, device=vectors.device)
        conditioned: torch.Tensor = self.session_states(vectors, contexts)
        return conditioned

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Scores of all rows of the item table.

        Args:
            vectors: float (..., D), of `user_vectors` or `position_vectors`, after `conditioned`.

        Returns:
            float (..., V).
        """
        return linear(vectors, self.item_matrix())

    def scores(
        self, histories: torch.Tensor, users: torch.Tensor | None = None, contexts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores of all rows of the item table after each history, by which items are ranked.

        Args:
            histories: int64 (B, L).
            users: int64 (B,), only where `needs_users`.
            contexts: int64 (B,), see `conditioned`.

        Returns:
            float (B, V).
        """
        return self.logits(self.conditioned(self.user_vectors(histories, users), contexts))

    def loss(
        self,
        histories: torch.Tensor,
        targets: torch.Tensor,
        users: torch.Tensor | None = None,
        contexts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Training loss of a batch: mean cross-entropy over all V rows, if the model does not define another.

        Args:
            histories: int64 (B, L).
            targets: int64 (B,), the next item of each row.
            users: int64 (B,), only where `needs_users`.
            contexts: int64 (B,), see `conditioned`.

        Returns:
            float, scalar.
        """
        return self.cross_entropy(self.conditioned(self.user_vectors(histories, users), contexts), targets)

    def sequence_loss(
        self, histories: torch.Tensor, targets: torch.Tensor, contexts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Training loss at all positions: mean cross-entropy over those that have a target.

        Args:
            histories: int64 (B, L).
            targets: int64 (B, L), the item after each position; 0 where there is none.
            contexts: int64 (B, L), of each target, see `conditioned`.

        Returns:
            float, scalar.
        """
        vectors, row, slot = self.target_vectors(histories, targets, contexts)
        return self.cross_entropy(vectors, targets[row, slot])

    def target_vectors(
        self, histories: torch.Tensor, targets: torch.Tensor, contexts: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Vectors at the positions that have a target, after `conditioned`: float (K, D), and their rows and columns.

        Args:
            histories: int64 (B, L).
            targets: int64 (B, L), the item after each position; 0 where there is none.
            contexts: int64 (B, L), of each target.

        Returns:
            float (K, D), int64 (K,), int64 (K,).
        """
        every = torch.arange(len(histories), device=histories.device), slice(0, histories.shape[1])
        vectors, rows, slots = [], [], []
        for positions, columns in length_groups(histories, self.padding) if self.masks_padding else [every]:
            row, slot = (targets[positions, columns] > 0).nonzero(as_tuple=True)
            vectors.append(self.position_vectors(histories[positions, columns])[row, slot])
            rows.append(positions[row])
            slots.append(slot + columns.start)
        row, slot = torch.cat(rows), torch.cat(slots)
        return self.conditioned(torch.cat(vectors), None if contexts is None else contexts[row, slot]), row, slot

    def cross_entropy(self, vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over all V rows: float (K, D) and int64 (K,) to a scalar."""
        return nn.functional.cross_entropy(self.logits(vectors), targets, label_smoothing=self.label_smoothing)


class CausalEncoder(SequentialModel):
    """Causal layers, and a norm after them, over a model's input vectors.

    Attributes:
        layers: Causal layers.
        norm: The map of the last state; the identity where layers end with a norm.
    """

    causal = True
    masks_padding = True
    layers: nn.ModuleList
    norm: nn.Module

    def embed(self, histories: torch.Tensor) -> torch.Tensor:
        """Input of the first layer: int64 (B, L) to float (B, L, D)."""
        raise NotImplementedError

    def scale_residual_maps(self) -> None:
        """Draw the maps that end in residual connections so that their sum does not grow with the number of layers."""
        for layer in self.modules():
            if isinstance(layer, CausalLayer):
                for part in (layer.out, layer.outer):
                    nn.init.normal_(part.weight, std=INIT_STD / math.sqrt(2 * len(self.layers)))

    def user_vectors(self, histories: torch.Tensor, users: torch.Tensor | None = None) -> torch.Tensor:
        """See `SequentialModel`."""
        return by_length(self._last_vectors, histories, self.padding)

    def _last_vectors(self, histories: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, mask = self.embed(histories), causal_mask(histories)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        vectors: torch.Tensor = self.norm(self.layers[-1](x, mask, readout_slots(histories, self.padding))[:, 0])
        return vectors

    def position_vectors(self, histories: torch.Tensor) -> torch.Tensor:
        """See `SequentialModel`."""
        x, mask = self.embed(histories), causal_mask(histories)
        for layer in self.layers:
            x = layer(x, mask)
        vectors: torch.Tensor = self.norm(x)
        return vectors
