"""Trained sequential models as rankers."""

from functools import cached_property

import numpy as np
import torch

from minionerec.core.errors import ConfigError
from minionerec.data.contexts import RequestFeature
from minionerec.data.rows import SplitExamples
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import masked_scores, top_items
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranking


class SequentialRanker:
    """A sequential model's ranking of all items; candidates are items.

    Args:
        model: The model, where it is to run.
        name: Its name, for messages.

    Raises:
        ConfigError: If the model needs the user, which a history does not have.
    """

    def __init__(self, model: SequentialModel, name: str):
        if model.needs_users:
            raise ConfigError(
                f"{name} has user embeddings and cannot recommend for a history alone. Use the "
                "predictions of its training."
            )
        self.model, self.name = model, name

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def context(self) -> frozenset[str]:
        """The names of `features`."""
        return frozenset(feature.name for feature in self.features)

    @property
    def features(self) -> tuple[RequestFeature, ...]:
        """The request features that the model was trained with."""
        return self.model.features

    def _codes(self, queries: Queries) -> np.ndarray:
        """The codes of queries, int16 (R, F)."""
        return queries.codes([feature.name for feature in self.features])

    @cached_property
    def item_vectors(self) -> np.ndarray:
        """The vectors that items are scored with, float32 (N, D)."""
        with torch.inference_mode():
            vectors: np.ndarray = self.model.item_matrix()[1 : self.model.num_items + 1].float().cpu().numpy()
        return vectors

    @torch.no_grad()
    def scores(self, queries: Queries) -> torch.Tensor:
        """Scores of all items for each query: float (B, N), on the model's device.

        Raises:
            ConfigError: If a score is not a number.
            DataError: If a history has an unknown item.
        """
        self.model.eval()
        rows, contexts = _rows(queries), self._codes(queries)
        chunks = masked_scores(self.model, rows, "keep", self.device, "scoring", contexts=contexts)
        return torch.cat([scores[:, 1:] for _, scores in chunks])

    def rank(self, queries: Queries, k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.recommend.rankers.protocol.Ranker`; of equal scores the lower item index comes first."""
        masks = None if allowed is None or allowed.unrestricted else allowed.rows
        cutoff, rows, contexts = min(k, self.model.num_items), _rows(queries), self._codes(queries)
        found, scores = top_items(self.model, rows, "keep", self.device, cutoff, masks, contexts=contexts)
        real = scores > -np.inf
        return Ranking(
            [(row[kept] - 1).tolist() for row, kept in zip(found, real, strict=True)],
            [row[kept].tolist() for row, kept in zip(scores, real, strict=True)],
        )


def _rows(queries: Queries) -> SplitExamples:
    """Queries as rows, whose users and targets are not read."""
    count = len(queries)
    return SplitExamples.of([""] * count, queries.histories, np.zeros(count, np.int32))
