"""A second recommender beside a checkpoint that is searched, and how the two are mixed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.names import COMBINATIONS


class Assistant(Protocol):
    """What gives every candidate of a search a probability, from the histories and what is told of their moments.

    Attributes:
        name: What tables call it.
        tells_moments: Whether it can be told of what moment the next item is.
    """

    name: str
    tells_moments: bool

    def log_probs(self, histories: Sequence[np.ndarray], moments: Sequence[int] | None = None) -> torch.Tensor:
        """Log-probabilities of all candidates (SIDs, or titles) after each history.

        Args:
            histories: For each of B rows its item indices, int32, oldest first; may be empty.
            moments: Of what moment each next item is, places in `minionerec.data.moments.MOMENTS`, for those that were
                told moments in training; None: not told.

        Returns:
            float32 (B, S), by the candidates' numbers in the trie; each row's probabilities sum to 1.
        """
        ...


@dataclass(frozen=True)
class Mixing:
    """How a search is mixed with an assistant; see `minionerec.models.decoding.leaves`.

    Attributes:
        assistant: Who is mixed in.
        share: Weight of the checkpoint's log-probabilities; the assistant's have the rest.
        combine: "steps": both score every step of the search; "rerank": the checkpoint is searched alone, and its list
            is put in the order of the same weighted sum.

    Raises:
        ConfigError: If the weight is out of range, or there is no such way.
    """

    assistant: Assistant
    share: float
    combine: str = "steps"

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share is {self.share}; it must be from 0 to 1.")
        if self.combine not in COMBINATIONS:
            raise ConfigError(f"unknown combine {self.combine!r}; known: {', '.join(COMBINATIONS)}.")
