"""The interface of every sequential recommender, and the causal encoder that several of them share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from scipy.sparse import csr_array
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from minionerec.core.errors import ConfigError
from minionerec.data.contexts import RequestFeature
from minionerec.data.names import UNKNOWN
from minionerec.data.rows import Side
from minionerec.models.nn.context import ContextStates
from minionerec.models.nn.layers import (
    INIT_STD,
    CausalLayer,
    Linear,
    by_length,
    causal_mask,
    length_groups,
    linear,
    readout_slots,
)


def check_share(name: str, value: float) -> None:
    """Check that a hyper-parameter is a share.

    Raises:
        ConfigError: If it is not.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}; it is a share and must lie in [0, 1].")


@dataclass(frozen=True)
class ModelData:
    """Properties of the data that a model is built from, and fixed inputs besides histories.

    Attributes:
        padding: Side on which histories are padded.
        num_users: Number of users.
        vectors: Given vectors of the items, float32 (N, F), row i of item i + 1, entries about 1; None without.
        transitions: Item transitions in the training windows; None without.
        digits: Digits of the items, int32 (N, M), row i of item i + 1; None without.
    """

    padding: Side = "right"
    num_users: int = 0
    vectors: torch.Tensor | None = None
    transitions: csr_array | None = None
    digits: torch.Tensor | None = None


class GivenVectors(nn.Module):
    """Adds a linear map of given vectors, such as those of texts or of columns, to learned vectors of items.

    It parametrises the weight of an item table (`torch.nn.utils.parametrize`), so an item has the same vector in
    histories and in scores, and one without a training example the vector that it is given.

    Args:
        rows: Rows of the item table, R.
        width: Width of the given vectors, F.
        hidden_size: Width of the item table, D.

    Attributes:
        given: float32 (R, F), the given vectors; zeros for padding.
    """

    given: torch.Tensor

    def __init__(self, rows: int, width: int, hidden_size: int):
        super().__init__()
        self.map = Linear(width, hidden_size, bias=False)
        nn.init.normal_(self.map.weight, std=INIT_STD)
        self.register_buffer("given", torch.zeros(rows, width))

    def forward(self, learned: torch.Tensor) -> torch.Tensor:
        """Vectors of all rows: float (R, D) to float (R, D)."""
        vectors: torch.Tensor = learned + self.map(self.given)
        return vectors


class SequentialModel(nn.Module):
    """Base class of recommenders that score items by the product of their vectors with a vector of the history.

    Items are numbered 1 to `num_items`; 0 is padding. A batch of histories is int64 (B, L), L at most `max_len`, oldest
    item first, padded on the side `padding`. A model may drop columns that are padding in every row only if that does
    not change its result.

    A subclass takes its hyper-parameters as keyword arguments and passes on those below.

    Args:
        num_items: Number of items N.
        max_len: Maximum length of a history; a model whose result depends on padding pads shorter batches to it.
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
        reads_digits: Whether the model needs digits of the items (`set_digits`).
        learns_next: Whether `loss` predicts the next items, so that the model can be conditioned on request features.
        label_smoothing: Share of the target's probability that the losses spread over all V rows.
        vector_width: Width of the given vectors of items that are added to learned ones; 0 without.
        features: The request features that the model is conditioned on; none at first.
        context_states: Scale and shift of vectors by their codes; None without features.
    """

    causal = False
    masks_padding = False
    needs_users = False
    reads_digits = False
    learns_next = True

    def __init__(self, *, num_items: int, max_len: int, padding: Side = "right", hidden_size: int = 64):
        for name, size in (("num_items", num_items), ("max_len", max_len)):
            if size < 1:
                raise ConfigError(f"{name} is {size}; it must be at least 1.")
        super().__init__()
        self.num_items, self.max_len, self.padding, self.hidden_size = num_items, max_len, padding, hidden_size
        self.label_smoothing = 0.0
        self.vector_width = 0
        self.features: tuple[RequestFeature, ...] = ()
        self.context_states: ContextStates | None = None

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
        """Describe the first inconsistency of loaded buffers; None if there is none."""
        return None

    def condition_on(self, features: Sequence[RequestFeature]) -> None:
        """Condition the model on request features of the next item, initially without effect.

        Args:
            features: F features, at least one.

        Raises:
            ConfigError: If the loss does not predict the next items.
        """
        if not self.learns_next:
            raise ConfigError(
                f"{type(self).__name__} learns to fill in items of histories, not the next ones, so it cannot be "
                "conditioned on their request features. Leave context out."
            )
        with torch.no_grad():
            width = self.item_matrix().shape[1]
        self.features = tuple(features)
        self.context_states = ContextStates([feature.size for feature in features], width)

    def item_table(self) -> nn.Embedding:
        """The table of learned vectors of items, row 0 for padding.

        Raises:
            ConfigError: If the model has none.
        """
        table = getattr(getattr(self, "embedding", self), "items", None)
        if not isinstance(table, nn.Embedding):
            raise ConfigError(f"{type(self).__name__} has no table of items; leave vectors and item_columns out.")
        return table

    def read_vectors(self, width: int) -> None:
        """Make room for given vectors, whose linear map is added to learned vectors of items; zeros until they are set.

        Args:
            width: Width of the given vectors.

        Raises:
            ConfigError: If the model has no table of items.
        """
        table = self.item_table()
        added = GivenVectors(table.num_embeddings, width, table.embedding_dim)
        register_parametrization(table, "weight", added.to(table.weight.device))
        self.vector_width = width

    def set_vectors(self, vectors: torch.Tensor) -> None:
        """Set the given vectors of the items, after `read_vectors`.

        Args:
            vectors: float32 (N, F), row i of item i + 1.

        Raises:
            ConfigError: If the shape differs.
        """
        if tuple(vectors.shape) != (self.num_items, self.vector_width):
            raise ConfigError(
                f"the items' vectors have shape {tuple(vectors.shape)}; expected "
                f"{(self.num_items, self.vector_width)} (num_items, width)."
            )
        self.given_vectors[1 : self.num_items + 1] = vectors

    @property
    def given_vectors(self) -> torch.Tensor:
        """Given vectors of the rows of the item table, float32 (R, F), row 0 for padding; after `read_vectors`."""
        (added,) = cast(Any, self.item_table()).parametrizations.weight
        return cast(GivenVectors, added).given

    def set_transitions(self, counted: csr_array) -> None:
        """Set transition counts of the training examples.

        Raises:
            ConfigError: If the model reads no counts, or was built for another number of them.
        """
        raise ConfigError(f"{type(self).__name__} reads no counts of pairs.")

    def set_digits(self, digits: torch.Tensor) -> None:
        """Set the items' digits.

        Args:
            digits: int (N, M), row i of item i + 1.

        Raises:
            ConfigError: If the model reads no digits, or their shape differs.
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
        """Vectors with which items are scored: float (V, D), row 0 for padding."""
        raise NotImplementedError

    def conditioned(self, vectors: torch.Tensor, contexts: torch.Tensor | None) -> torch.Tensor:
        """Condition vectors on the request features of the next items, before scoring.

        Args:
            vectors: float (K, D), from `user_vectors` or `position_vectors`.
            contexts: int64 (K, F), codes of the model's `features`; all unknown if None. A model that has none ignores
                them.

        Returns:
            float (K, D).
        """
        if self.context_states is None:
            return vectors
        if contexts is None:
            contexts = torch.full((len(vectors), 1), UNKNOWN, device=vectors.device)
        conditioned: torch.Tensor = self.context_states(vectors, contexts)
        return conditioned

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        """Scores of all rows of the item table.

        Args:
            vectors: float (..., D), from `user_vectors` or `position_vectors`, after `conditioned`.

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
            contexts: int64 (B, F), see `conditioned`.

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
            contexts: int64 (B, F), see `conditioned`.

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
            contexts: int64 (B, L, F), of each target, see `conditioned`.

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
            contexts: int64 (B, L, F), of each target.

        Returns:
            float (K, D), int64 (K,), int64 (K,).
        """
        whole_batch = torch.arange(len(histories), device=histories.device), slice(0, histories.shape[1])
        vectors, rows, slots = [], [], []
        for positions, columns in length_groups(histories, self.padding) if self.masks_padding else [whole_batch]:
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
    """Base class of models with causal layers and a final norm over input vectors.

    Attributes:
        layers: Causal layers.
        norm: Final norm; the identity if layers end with a norm.
    """

    causal = True
    masks_padding = True
    layers: nn.ModuleList
    norm: nn.Module

    def embed(self, histories: torch.Tensor) -> torch.Tensor:
        """Input of the first layer: int64 (B, L) to float (B, L, D)."""
        raise NotImplementedError

    def scale_residual_maps(self) -> None:
        """Initialise the maps before residual connections so that their sum does not grow with the number of layers."""
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
