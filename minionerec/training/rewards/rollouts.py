"""What rewards are functions of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minionerec.sid.table import SidTable


@dataclass(frozen=True)
class Rollouts:
    """The completions of some prompts: G distinct SIDs each, and what is known about the row behind the prompt.

    Attributes:
        sids: int64 (P, G), SID numbers (`SidTable.sid_numbers`), the most probable first.
        targets: int64 (P,), SID number of each row's target.
        scores: float32 (P, G), log-probabilities of the SIDs under the policy that proposed them.
        histories: For each row its item indices, oldest first; None where the prompt is about an item, not a user.
        table: The SIDs of the catalogue.
    """

    sids: np.ndarray
    targets: np.ndarray
    scores: np.ndarray
    histories: Sequence[Sequence[int] | None]
    table: SidTable

    @property
    def hits(self) -> np.ndarray:
        """Which completions are the target: bool (P, G)."""
        found: np.ndarray = self.sids == self.targets[:, None]
        return found

    @property
    def codes(self) -> np.ndarray:
        """Codes of the completions: int32 (P, G, L), -1 behind the end of an SID shorter than L."""
        found: np.ndarray = self.table.distinct_codes[self.sids]
        return found


Reward = Callable[[Rollouts], np.ndarray]
"""A reward: takes rollouts, gives float (P, G); NaN where it does not apply to a row."""
