"""Trained sequential models as rankers."""

from collections.abc import Sequence

import numpy as np
import torch

from minionerec.core.errors import ConfigError
from minionerec.data.rows import SplitRows
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import masked_scores, top_items
from minionerec.recommend.rankers.allowed import Allowed
from minionerec.recommend.rankers.protocol import Ranking


class SequentialRanker:
    """A sequential model's ranking of all items; candidates are items.

    Args:
        model: The model, where it is to run.
        name: What it is called, for messages.

    Raises:
        ConfigError: If the model reads who the user is, which a history does not say.
    """

    def __init__(self, model: SequentialModel, name: str):
        if model.needs_users:
            raise ConfigError(
                f"{name} has a vector for each user of its training and cannot recommend for a history alone. Take the "
                "predictions that its training wrote."
            )
        self.model, self.name = model, name

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def tells_moments(self) -> bool:
        """Whether the model was told in training of what moment the next item is."""
        return self.model.moment_states is not None

    @torch.no_grad()
    def scores(self, histories: Sequence[np.ndarray], moments: Sequence[int] | None = None) -> torch.Tensor:
        """Scores of all items after each history: float (B, N), on the model's device.

        Args:
            histories: As in `rank`.
            moments: As in `rank`.

        Raises:
            ConfigError: If a score is not a number.
            DataError: If a history holds an item that the model does not know.
        """
        self.model.eval()
        told = None if moments is None else np.array(moments, dtype=np.int8)
        chunks = masked_scores(self.model, _rows(histories), "keep", self.device, "scoring", moments=told)
        return torch.cat([scores[:, 1:] for _, scores in chunks])

    def rank(
        self,
        histories: Sequence[np.ndarray],
        k: int,
        allowed: Allowed | None = None,
        moments: Sequence[int] | None = None,
    ) -> Ranking:
        """See `minionerec.recommend.rankers.protocol.Ranker`; of equal scores the lower item index comes first.

        `moments` are places in `minionerec.data.moments.MOMENTS`, all unknown if None; a model that was not told them
        in training makes nothing of them.
        """
        masks = None if allowed is None or allowed.unrestricted else allowed.rows
        width = min(k, self.model.num_items)
        told = None if moments is None else np.array(moments, dtype=np.int8)
        found, scores = top_items(self.model, _rows(histories), "keep", self.device, width, masks, moments=told)
        real = scores > -np.inf
        return Ranking(
            [(row[kept] - 1).tolist() for row, kept in zip(found, real, strict=True)],
            [row[kept].tolist() for row, kept in zip(scores, real, strict=True)],
        )


def _rows(histories: Sequence[np.ndarray]) -> SplitRows:
    """Histories as rows, whose users and targets are asked by nobody."""
    count = len(histories)
    return SplitRows.of([""] * count, histories, np.zeros(count, np.int32))
