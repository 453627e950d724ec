"""Experts of a model: training counts that are multiplied into its probabilities by state-dependent weights.

The distributions of a model and of the experts are pooled log-linearly (Genest and Zidek, "Combining Probability
Distributions", 1986; a product of experts as in Hinton, 2002):

    log p(i) = sum over k of w_k(h) f_k(i, h) + a constant,    w(h) = x(h) W

f_0 is the model's log-probability, the others are logarithms of counts, or similarities of items; x(h) are features of
the history h. An item that was no target in training is called unsold. Since the model and the counts have no data on
it, it gets the mean probability, transitions and popularity of its most similar items, its neighbours. W is fitted on
held-out examples after the training of the model. Before that, and if it brings no gain, W selects the model alone.

The model may be any that gives log-probabilities of items, or of some of them. Without a model, the experts alone are
pooled.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from minionerec.models.nn.history import rows_of

EXPERTS = (
    "model",
    "model by neighbours",
    "transitions",
    "next transitions",
    "popularity",
    "newest popularity",
    "repeats",
    "seen",
    "seen before",
    "neighbours",
    "neighbours of unsold",
    "text",
    "text of unsold",
    "text of rare",
    "rare",
    "unsold",
    "unsold and seen",
    "EASE",
    "likeness to the newest",
    "likeness to the history",
)
"""The experts, in order: the model; log-ratio of the neighbours' to an unsold item's probability; transition counts,
and their log-ratio to counts with a steeper decay; popularity with a half-life of 10 % and of 1 % of the training
targets; repeat rate of an item of the history, whether it is in the history, and its decayed distance; similarity to
the most similar item of the history, and the same for unsold items; decayed sum of similarities of texts to the
history, and the same for unsold and for rare items; rarity of an item; whether it is unsold and not in the history, or
unsold and in it; decayed sum of weights of EASE (Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", 2019,
equation 8); cosine of the vectors of an item and of the newest item, and of an item and of the decayed history."""
FEATURES = (
    "bias",
    "log length",
    "full length",
    *(
        f"{what} of the {which}"
        for which in ("newest", "history")
        for what in ("sales", "trend", "recent trend", "cold")
    ),
)
"""Features of a history: x."""
ITEM_FEATURES = 4
DECAYS = (0.8, 0.3)
"""Decay per step of distance of the two transition counts, in counting and in scoring."""
REACH = 10
"""Largest distance, in items, of transitions."""
TEXT_DECAY = 0.6
"""Decay per step of distance in the sum of similarities of texts."""
LONG_DECAY, LONG_REACH = 0.9, 50
"""The same of EASE and of the vector of a history, and how many items back they read."""
NO_TRANSITION, NO_SALE, NO_NEIGHBOUR, NO_TEXT, NO_EASE = 1e-3, 0.2, 1e-5, 0.02, 0.01
"""Added to shares of transitions, counts of targets, probabilities of neighbours, similarities of texts and weights of
EASE, so that zeros have a logarithm."""


def mean_of_neighbours(
    values: torch.Tensor,
    unsold: torch.Tensor,
    offsets: torch.Tensor,
    neighbours: torch.Tensor,
    similarities: torch.Tensor,
) -> torch.Tensor:
    """Replace values of unsold items by the weighted mean over their sold neighbours, 0 without such a neighbour.

    Args:
        values: float (P, N).
        unsold: bool (N,).
        offsets: int64 (N + 1,), start of each item's neighbours.
        neighbours: int (M,), neighbours of all items.
        similarities: float32 (M,), weights of the neighbours.

    Returns:
        (P, N), of the dtype of `values`.
    """
    items = unsold.nonzero()[:, 0]
    owner, position = rows_of(offsets, items)
    other = neighbours[position].long()
    if not len(other):
        return values.index_fill(1, items, 0)
    weight = similarities[position].to(values.dtype) * ~unsold[other]
    totals = torch.zeros_like(weight[:1]).expand(len(items)).clone().index_add_(0, owner, weight)
    weight = weight / totals[owner].clamp(min=1e-12)
    begins = torch.searchsorted(owner, torch.arange(len(items), device=owner.device))
    means = nn.functional.embedding_bag(other, values.T, begins, mode="sum", per_sample_weights=weight)
    return values.index_copy(1, items, means.T)


@dataclass(frozen=True)
class ItemLikeness:
    """Similarities of items, from their texts and from who chose them.

    Attributes:
        by_all: (N, N), similarities of the most similar items of each item, by all data.
        by_text: (N, N), of the same pairs, by text alone.
        vectors: float32 (N, D), a vector of each item, of length 1 or 0; D is 0 where nothing is known of any item.
    """

    by_all: csr_array
    by_text: csr_array
    vectors: np.ndarray


def item_features(sales: np.ndarray, recent: np.ndarray, newest: np.ndarray) -> np.ndarray:
    """Features of items, float32 (N, 4), from the number of times each was a target, float (N,).

    Args:
        sales: Number of targets.
        recent: Decayed number of targets.
        newest: Number of targets with a faster decay.
    """
    trend, newest_trend = np.log((recent + 0.1) / (sales + 1)), np.log((newest + 0.05) / (sales + 1))
    return np.stack([np.log(sales + 1), trend, newest_trend, sales == 0], 1).astype(np.float32)


class Experts(nn.Module):
    """Log-linear pool of a model's log-probabilities and experts; see the module.

    Args:
        num_items: Number of items, N.
        num_transitions: Number of pairs of items with transition counts.
        num_neighbours: Number of stored similarities of items.
        num_ease: Number of stored weights of EASE of each item, K.
        width: Width of the items' vectors, D.

    Attributes:
        weights: float32 (features, experts), W.
        least: float32 (features,), minimum of each feature among the examples that W was fitted on, to which features
            are clamped.
        most: float32 (features,), maximum of each feature, likewise.
    """

    offsets: torch.Tensor
    followers: torch.Tensor
    counts: torch.Tensor
    rarity: torch.Tensor
    popularity: torch.Tensor
    repeats: torch.Tensor
    items: torch.Tensor
    text_offsets: torch.Tensor
    neighbours: torch.Tensor
    similarities: torch.Tensor
    ease_items: torch.Tensor
    ease_weights: torch.Tensor
    vectors: torch.Tensor
    weights: torch.Tensor
    least: torch.Tensor
    most: torch.Tensor

    def __init__(
        self, num_items: int, num_transitions: int, num_neighbours: int = 0, num_ease: int = 0, width: int = 0
    ):
        super().__init__()
        self.register_buffer("offsets", torch.zeros(num_items + 1, dtype=torch.int64))
        self.register_buffer("followers", torch.zeros(num_transitions, dtype=torch.int32))
        self.register_buffer("counts", torch.zeros(len(DECAYS), num_transitions))
        self.register_buffer("rarity", torch.ones(len(DECAYS), num_items))
        self.register_buffer("popularity", torch.zeros(2, num_items))
        self.register_buffer("repeats", torch.zeros(num_items))
        self.register_buffer("items", torch.zeros(num_items, ITEM_FEATURES))
        self.register_buffer("text_offsets", torch.zeros(num_items + 1, dtype=torch.int64))
        self.register_buffer("neighbours", torch.zeros(num_neighbours, dtype=torch.int32))
        self.register_buffer("similarities", torch.zeros(2, num_neighbours))
        self.register_buffer("ease_items", torch.zeros(num_items, num_ease, dtype=torch.int32))
        self.register_buffer("ease_weights", torch.zeros(num_items, num_ease))
        self.register_buffer("vectors", torch.zeros(num_items, width))
        self.register_buffer("weights", torch.zeros(len(FEATURES), len(EXPERTS)))
        self.register_buffer("least", torch.zeros(len(FEATURES)))
        self.register_buffer("most", torch.zeros(len(FEATURES)))
        self.turn_off()

    @classmethod
    def of(
        cls,
        transitions: Sequence[csr_array],
        popularity: np.ndarray,
        repeats: np.ndarray,
        items: np.ndarray,
        alike: ItemLikeness,
        ease: tuple[np.ndarray, np.ndarray],
    ) -> "Experts":
        """Create experts from counts of the training targets, with weights that select the model alone.

        Args:
            transitions: (N, N) each, decayed counts between items of the same pairs, one for each of `DECAYS`.
            popularity: float32 (2, N), decayed number of times that each item was a target, for both half-lives; for
                unsold items the mean of their neighbours.
            repeats: float32 (N,), logarithm of the repeat rate of an item in the history, relative to all items.
            items: float32 (N, 4), result of `item_features`.
            alike: Similarities of the items.
            ease: Weights of EASE, of each item in a history for others: which these are, int32 (N, K), and float32
                (N, K).
        """
        experts = cls(len(repeats), transitions[0].nnz, alike.by_all.nnz, ease[0].shape[1], alike.vectors.shape[1])
        for buffer, values in (
            (experts.offsets, transitions[0].indptr),
            (experts.followers, transitions[0].indices),
            (experts.counts, np.stack([table.data for table in transitions])),
            (experts.popularity, popularity),
            (experts.repeats, repeats),
            (experts.items, items),
            (experts.text_offsets, alike.by_all.indptr),
            (experts.neighbours, alike.by_all.indices),
            (experts.similarities, np.stack([alike.by_all.data, alike.by_text.data])),
            (experts.ease_items, ease[0]),
            (experts.ease_weights, ease[1]),
            (experts.vectors, alike.vectors),
        ):
            buffer.copy_(torch.from_numpy(values))
        owner = torch.arange(len(repeats)).repeat_interleave(experts.offsets.diff())
        totals = torch.zeros_like(experts.rarity).index_add(1, owner, experts.counts)
        experts.rarity.copy_((totals + 1).rsqrt())
        return experts

    @classmethod
    def from_state(cls, state: Mapping[str, torch.Tensor]) -> "Experts":
        """Create experts from the result of `state_dict`.

        Raises:
            KeyError: If a tensor is missing.
            RuntimeError: If a tensor is unknown, or of another shape than the others imply.
        """
        items, transitions, neighbours = (len(state[name]) for name in ("repeats", "followers", "neighbours"))
        experts = cls(items, transitions, neighbours, state["ease_items"].shape[-1], state["vectors"].shape[-1])
        experts.load_state_dict(state)
        return experts

    def turn_off(self) -> None:
        """Set weights that select the model alone."""
        self.weights.zero_()
        self.weights[0, 0] = 1

    @property
    def are_off(self) -> bool:
        """Whether the weights select the model alone."""
        return float(self.weights[0, 0]) == 1 and int(self.weights.count_nonzero()) == 1

    def with_weights(self, fitted: Mapping[str, Sequence[Any]]) -> "Experts":
        """The same counts, not copied, with other `weights`, `least` and `most`, each of a buffer's shape."""
        other = copy.copy(self)
        other._buffers = dict(self._buffers)
        for name in ("weights", "least", "most"):
            buffer = getattr(self, name)
            setattr(other, name, torch.tensor(fitted[name], dtype=buffer.dtype, device=buffer.device))
        return other

    def flaw(self) -> str | None:
        """Describe the first inconsistency of loaded counts; None if there is none."""
        for what, offsets, others in (
            ("counts", self.offsets, self.followers),
            ("similarities", self.text_offsets, self.neighbours),
        ):
            if offsets[0].item() != 0 or offsets[-1].item() != len(others) or bool((offsets.diff() < 0).any()):
                return f"the offsets of its experts do not split {len(others)} {what} by {len(self.repeats)} items"
        for items in (self.followers, self.neighbours, self.ease_items):
            if items.numel() and not 0 <= int(items.min()) <= int(items.max()) < len(self.repeats):
                return f"its experts name items beyond its {len(self.repeats)}"
        return None

    def features(self, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """Features of the history up to each position: float32 (P, features).

        Args:
            histories: int64 (B, T), items from 1, 0 is padding.
            row: int64 (P,), row of each position in `histories`.
            slot: int64 (P,), column of each position: the newest item that is read.
        """
        items = self._seen(histories, row, slot)
        known, length = (items > 0)[..., None], (items > 0).sum(1, keepdim=True)
        of_items = self.items[(items - 1).clamp(min=0)] * known  # (P, T, 4)
        newest = of_items.gather(1, slot[:, None, None].expand(-1, 1, ITEM_FEATURES))[:, 0]
        parts = [
            torch.ones_like(newest[:, :1]),
            torch.log(length + 1.0),
            (length >= REACH).float(),
            newest,
            of_items.sum(1) / length.clamp(min=1),
        ]
        return torch.cat(parts, 1)

    def terms(
        self,
        log_probs: torch.Tensor | None,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        older: torch.Tensor | None = None,
        scored: torch.Tensor | None = None,
    ) -> Iterator[torch.Tensor]:
        """Iterate over the experts' values for all items, f_k: float32 (P, N), in the order of `EXPERTS`.

        Args:
            log_probs: float32 (P, N), of the model; None without a model, whose terms are then 0.
            histories: See `features`.
            row: See `features`.
            slot: See `features`.
            older: int64 (B, O), items before each history, which count only as seen and by their distance: items from
                1, oldest first, padded with 0 on the left; none if None.
            scored: bool (P, N), the items that the model has scored, at least one in each row. The others get the
                lowest log-probability of these. All if None.
        """
        without_model = log_probs is None
        if log_probs is None:
            log_probs = torch.zeros(len(row), len(self.repeats), device=histories.device)
        elif scored is not None:
            lowest = log_probs.masked_fill(~scored, torch.inf).amin(1, keepdim=True)
            log_probs = torch.where(scored, log_probs, lowest)
        items = self._seen(histories, row, slot)
        past = items if older is None else torch.cat([older[row], items], 1)
        back = slot[:, None] - torch.arange(items.shape[1] - past.shape[1], items.shape[1], device=items.device)
        seen = self._spread(past, torch.ones_like(past, dtype=log_probs.dtype), log_probs)
        unsold, unseen = self.items[:, 3].to(log_probs.dtype), 1 - seen
        yield log_probs
        values = torch.cat([log_probs.exp(), *self._transitions(items, slot, log_probs)])
        similarity_table = self.text_offsets, self.neighbours, self.similarities[0]
        chances, *shares = mean_of_neighbours(values, self.items[:, 3] > 0, *similarity_table).split(len(log_probs))
        of_neighbours = log_probs if without_model else torch.log(chances + NO_NEIGHBOUR) - log_probs
        yield torch.where(unsold > 0, of_neighbours, 0)
        several, following = (torch.log(share * unseen + NO_TRANSITION) for share in shares)
        yield several
        yield following - several
        for popularity in self.popularity:
            yield torch.log(popularity * unseen + NO_SALE)
        yield self.repeats * seen
        yield seen
        yield self._spread(past, (DECAYS[0] ** back.clamp(min=0)).to(log_probs.dtype), log_probs)
        by_all, by_text = (likeness * unseen for likeness in self._likenesses(items, slot, log_probs))
        for likeness in (by_all, by_text):
            yield likeness
            yield likeness * unsold
        rare = (1 - unsold) / self.items[:, 0].to(log_probs.dtype).exp()  # 1 / (1 + times sold)
        yield by_text * rare
        yield unseen * rare
        yield unsold * unseen
        yield unsold * seen
        steps = torch.arange(min(LONG_REACH, past.shape[1]), device=past.device)
        column = slot[:, None] + past.shape[1] - items.shape[1] - steps
        newest = past.gather(1, column.clamp(min=0)) * (column >= 0)  # (P, S), from the newest item on
        decay = (LONG_DECAY**steps * (newest > 0)).to(log_probs.dtype)
        yield torch.log(self._ease(newest, decay, log_probs) * unseen + NO_EASE)
        for count in (1, len(steps)):
            yield self._cosines(newest[:, :count], decay[:, :count]) * unseen

    def forward(
        self,
        log_probs: torch.Tensor | None,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        older: torch.Tensor | None = None,
        scored: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Log-probabilities of the pool, float32 (P, N), minus infinity for items that are not scored; see `terms`."""
        if log_probs is not None and self.are_off:
            return log_probs if scored is None else log_probs.masked_fill(~scored, -torch.inf)
        features = self.features(histories, row, slot)
        weights = features.clamp(self.least, self.most) @ self.weights
        pooled = torch.zeros(len(row), len(self.repeats), device=histories.device)
        for position, term in enumerate(self.terms(log_probs, histories, row, slot, older, scored)):
            pooled += weights[:, position, None] * term
        if scored is not None:
            pooled = pooled.masked_fill(~scored, -torch.inf)
        return pooled.log_softmax(-1)

    @staticmethod
    def _seen(histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """The items up to each position, int64 (P, T), 0 after it."""
        return histories[row] * (torch.arange(histories.shape[1], device=histories.device) <= slot[:, None])

    @staticmethod
    def _spread(items: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Scatter values of items (P, T) to all items, with the maximum of repeats and 0 elsewhere: (P, N)."""
        scattered = torch.zeros(len(like), like.shape[1] + 1, dtype=like.dtype, device=like.device)
        return scattered.scatter_reduce_(1, items, values, "amax")[:, 1:]

    def _likenesses(self, items: torch.Tensor, slot: torch.Tensor, like: torch.Tensor) -> Iterator[torch.Tensor]:
        """Similarities of each item to those of the history: two float32 (P, N).

        The first is the similarity to the most similar item of the history, the second log(1 + s / `NO_TEXT`) of the
        sum s of similarities of texts with weights `TEXT_DECAY` to the power of the distance.
        """
        position, column = (items > 0).nonzero(as_tuple=True)
        owner, index = rows_of(self.text_offsets, items[position, column] - 1)
        cell = position[owner] * like.shape[1] + self.neighbours[index].long()
        by_all, by_text = self.similarities[:, index].to(like.dtype)
        zeros = torch.zeros(like.numel(), dtype=like.dtype, device=like.device)
        yield zeros.scatter_reduce(0, cell, by_all, "amax").view_as(like)
        weight = TEXT_DECAY ** (slot[position] - column).to(like.dtype)
        yield torch.log1p(zeros.index_add(0, cell, by_text * weight[owner]) / NO_TEXT).view_as(like)

    def _ease(self, items: torch.Tensor, decay: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Weights of EASE for each item, summed over items (P, S) with their decay: float32 (P, N)."""
        index = (items - 1).clamp(min=0)
        weights = self.ease_weights[index].to(like.dtype) * decay[..., None]
        return torch.zeros_like(like).scatter_add_(1, self.ease_items[index].long().flatten(1), weights.flatten(1))

    def _cosines(self, items: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        """Cosine of each item's vector and of the sum of those of items (P, S) with their decay: float32 (P, N)."""
        vectors = self.vectors[(items - 1).clamp(min=0)] * decay[..., None]
        return nn.functional.normalize(vectors.sum(1), dim=1) @ self.vectors.T

    def _transitions(self, items: torch.Tensor, slot: torch.Tensor, like: torch.Tensor) -> Iterator[torch.Tensor]:
        """Shares of items that followed the newest ones in training, by each of `DECAYS`: float32 (P, N)."""
        back = slot[:, None] - torch.arange(items.shape[1], device=items.device)
        position, column = ((items > 0) & (back >= 0) & (back < REACH)).nonzero(as_tuple=True)
        item, steps = items[position, column] - 1, back[position, column]
        owner, index = rows_of(self.offsets, item)
        cell = position[owner] * like.shape[1] + self.followers[index].long()
        for decay, rarity, counts in zip(DECAYS, self.rarity, self.counts, strict=True):
            weight = decay**steps * rarity[item]
            shares = torch.zeros(like.numel(), dtype=like.dtype, device=like.device)
            shares = shares.index_add_(0, cell, weight[owner] * counts[index]).view_as(like)
            yield shares / shares.sum(1, keepdim=True).clamp(min=1e-12)
