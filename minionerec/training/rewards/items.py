"""Rewards that know more of items than their SIDs: what their texts say, and what a sequential model thinks of them."""

from collections.abc import Callable, Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.sid.table import SidTable
from minionerec.training.rewards.rollouts import Reward, Rollouts

Scorer = Callable[[Sequence[Sequence[int]]], np.ndarray]


def make_semantic(table: SidTable, vectors: np.ndarray) -> Reward:
    """Cosine between the vectors of a completion and of the target.

    An SID that several items share has the mean of their vectors, each scaled to length 1 before.

    Args:
        table: SIDs of the N items.
        vectors: float (N, D), row i = item index i; a vector of zeros has cosine 0 with everything.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    sums = np.zeros((table.n_unique, vectors.shape[1]))
    np.add.at(sums, table.sid_numbers, unit)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    unit = sums / np.where(lengths > 0, lengths, 1)  # (S, D)

    def semantic(rollouts: Rollouts) -> np.ndarray:
        found: np.ndarray = (unit[rollouts.sids] * unit[rollouts.targets][:, None]).sum(2)
        return found

    return semantic


def make_collaborative(table: SidTable, scorer: Scorer) -> Reward:
    """The score that a sequential model gives a completion after the row's history; no target is looked at.

    An SID that several items share has the best of their scores. Rows without a history get NaN: the reward does not
    apply to them.

    Args:
        table: SIDs of the N items.
        scorer: Takes B histories, item indices from the oldest on, and gives scores float (B, N); each distinct
            history of a batch is asked once.
    """

    def collaborative(rollouts: Rollouts) -> np.ndarray:
        distinct: dict[tuple[int, ...], int] = {}
        for history in rollouts.histories:
            if history is not None:
                distinct.setdefault(tuple(history), len(distinct))
        best = np.full((len(distinct), table.n_unique), -np.inf)
        if distinct:
            scores = np.asarray(scorer(list(distinct)))
            if scores.shape != (len(distinct), len(table)):
                raise DataError(
                    f"the model scores {scores.shape}; expected {len(distinct)} histories x {len(table)} items."
                )
            np.maximum.at(best.T, table.sid_numbers, scores.T)
        found = np.full(rollouts.sids.shape, np.nan)
        for row, history in enumerate(rollouts.histories):
            if history is not None:
                found[row] = best[distinct[tuple(history)], rollouts.sids[row]]
        return found

    return collaborative
