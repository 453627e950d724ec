"""Rewards that know more of items than their SIDs: what their texts say, and what a sequential model thinks of them."""

from collections.abc import Callable, Sequence

import numpy as np

from minionerec.core.errors import DataError
from minionerec.rewards.ranking import Reward, clean
from minionerec.sid.table import SidTable

Scorer = Callable[[Sequence[Sequence[int]]], np.ndarray]


def _number_of(text: str, numbers: dict[str, int]) -> int:
    number = numbers.get(clean(text))
    if number is None:
        raise DataError(f"the completion {text!r} is no SID of the catalogue; this reward knows its items alone.")
    return number


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
    numbers = dict(zip(table.sids, table.sid_numbers.tolist(), strict=True))

    def semantic(completions: Sequence[str], target_sid: Sequence[str], **columns: object) -> list[float | None]:
        mine = unit[[_number_of(text, numbers) for text in completions]]
        wanted = unit[[_number_of(text, numbers) for text in target_sid]]
        return (mine * wanted).sum(1).tolist()

    return semantic


def make_collaborative(table: SidTable, scorer: Scorer) -> Reward:
    """The score that a sequential model gives a completion after the row's history; no target is looked at.

    An SID that several items share has the best of their scores. Rows without a history get None: the reward does not
    apply to them.

    Args:
        table: SIDs of the N items.
        scorer: Takes B histories, item indices from the oldest on, and gives scores float (B, N); each distinct
            history of a batch is asked once.
    """
    numbers = dict(zip(table.sids, table.sid_numbers.tolist(), strict=True))

    def collaborative(
        completions: Sequence[str], history: Sequence[Sequence[int] | None], **columns: object
    ) -> list[float | None]:
        rows: dict[tuple[int, ...], int] = {}
        for items in history:
            if items is not None:
                rows.setdefault(tuple(items), len(rows))
        best = np.full((len(rows), table.n_unique), -np.inf)
        if rows:
            scores = np.asarray(scorer(list(rows)))
            if scores.shape != (len(rows), len(table)):
                raise DataError(
                    f"the model scores {scores.shape}; expected {len(rows)} histories x {len(table)} items."
                )
            np.maximum.at(best.T, table.sid_numbers, scores.T)
        return [
            None if items is None else float(best[rows[tuple(items)], _number_of(text, numbers)])
            for text, items in zip(completions, history, strict=True)
        ]

    return collaborative
