"""Trained sequential models as recommenders."""

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from minionerec.core.errors import ConfigError
from minionerec.data.sequences import Samples
from minionerec.recommenders.candidates import left_out, list_items
from minionerec.recommenders.protocol import Ranking
from minionerec.sequential.model import SequentialModel
from minionerec.sequential.rank import top_items


class SequentialRecommender:
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
        self.items = [[item] for item in range(model.num_items)]

    def recommend(
        self, histories: Sequence[np.ndarray], k: int, without: Sequence[Collection[int]] | None = None
    ) -> Ranking:
        """See `minionerec.recommenders.protocol.Recommender`; of equal scores the lower item index comes first."""
        gone = left_out(without, len(histories))
        wide = min(k + max(map(len, gone), default=0), self.model.num_items)
        device = next(self.model.parameters()).device
        found, scores = top_items(self.model, self._samples(histories), "keep", device, wide)
        lists: list[list[int]] = []
        values: list[list[float]] = []
        for row, items in enumerate((found - 1).tolist()):
            listed, places = list_items(items, self.items, k, gone[row])
            lists.append(listed)
            values.append([float(scores[row, place]) for place in places])
        return Ranking(lists, values)

    def _samples(self, histories: Sequence[np.ndarray]) -> Samples:
        """Histories as the model's rows; their targets are asked by nobody."""
        ends = np.fromiter(accumulate(map(len, histories)), dtype=np.int64, count=len(histories))
        flat = np.concatenate([np.zeros(0, np.int32), *histories]).astype(np.int32) + 1
        rows = len(histories)
        return Samples(
            users=np.zeros(rows, dtype=np.int64),
            targets=np.ones(rows, dtype=np.int64),
            flat=flat,
            begins=np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if rows else ends,
            ends=ends,
            max_len=self.model.max_len,
            padding=self.model.padding,
        )
