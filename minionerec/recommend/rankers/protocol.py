"""What a ranker is: histories in, ranked items with scores out. Whatever fulfils it is evaluated and served."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from minionerec.recommend.rankers.allowed import Allowed


@dataclass(frozen=True)
class Ranking:
    """Ranked items for some histories.

    Attributes:
        items: For each history its item indices, best first, none twice.
        scores: Parallel to `items`, higher is better.
    """

    items: Sequence[Sequence[int]]
    scores: Sequence[Sequence[float]]


@runtime_checkable
class Ranker(Protocol):
    """Ranks the items of one corpus.

    A user's own is named by the dotted path of a function that takes a `Corpus` and gives an object of this kind.
    """

    def rank(self, histories: Sequence[np.ndarray], k: int, allowed: Allowed | None = None) -> Ranking:
        """The best items after each history.

        Args:
            histories: For each row its item indices, int32, oldest first; may be empty.
            k: Candidates of each list: items, or distinct SIDs of a ranker that ranks SIDs, whose lists are longer
                where items share one.
            allowed: What may be listed, row by row; everything if None.

        Returns:
            Lists of at most `k` candidates; shorter only where fewer are allowed.
        """
        ...
