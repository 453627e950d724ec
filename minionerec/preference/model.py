"""What the stage asks of a fitted preference model, whatever kind it is of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from minionerec.preference.data import Comparisons


@dataclass(frozen=True)
class About:
    """What a model says about itself.

    Attributes:
        parameters: Numbers that were fitted.
        chosen: Settings chosen on validation, and the table of what was tried.
        best_epoch: Epoch of the weights that were kept, from 0; None without epochs.
        last_epoch: Last epoch trained.
        history: Values per epoch, by name.
        basis_penalty: Penalty under which an unseen user's weights are fitted; None where they are not.
    """

    parameters: int = 0
    chosen: Mapping[str, Any] = field(default_factory=dict)
    best_epoch: int | None = None
    last_epoch: int | None = None
    history: Mapping[str, list[float]] = field(default_factory=dict)
    basis_penalty: float | None = None


class PreferenceModel(Protocol):
    """A fitted model."""

    @property
    def serves_unseen(self) -> bool:
        """Whether it has something to say about a user without answers in train."""
        ...

    @property
    def adapts(self) -> bool:
        """Whether a few answers of such a user change what it says."""
        ...

    def probabilities(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """P(first item is chosen), float64 (r,).

        Args:
            data: All rows.
            rows: int64 (r,), those asked for.
            user: int64 (r,), whom to predict for; -1 for an unseen user.
        """
        ...

    def swapped(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray | None:
        """P(second item is chosen) when it is shown first, float64 (r,); None where places mean nothing."""
        ...

    def adapt(self, data: Comparisons, rows: np.ndarray) -> "PreferenceModel":
        """This model for the unseen user who gave the answers `rows`, int64 (k,); itself where it does not adapt."""
        ...

    def at_last_epoch(self) -> "PreferenceModel | None":
        """The model as it was after its last epoch; None without epochs."""
        ...

    def utilities(self, features: np.ndarray) -> np.ndarray | None:
        """Score of each item for each user and target, float64 (U + 1, T, N); None where items have no scores."""
        ...

    def about(self) -> About:
        """What it says about itself."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored; nothing for a model that is not."""
        ...


class FeatureModel(ABC):
    """A model that predicts from the items' features, for any rows."""

    @property
    def serves_unseen(self) -> bool:
        """It has what is common to all users."""
        return True

    @abstractmethod
    def predict(self, data: Comparisons, user: np.ndarray | None = None, swap: bool = False) -> np.ndarray:
        """P(first item is chosen) for every row, float64 (R,).

        Args:
            data: The rows.
            user: int64 (R,), users to predict for, -1 for an unseen one; those of `data` if None.
            swap: Show the two items the other way round, and give the probability of the one now first.
        """

    def probabilities(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """See `PreferenceModel.probabilities`."""
        return self.predict(data.take(rows), user)

    def swapped(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray | None:
        """See `PreferenceModel.swapped`."""
        return self.predict(data.take(rows), user, swap=True)


@dataclass(frozen=True)
class Lookup:
    """A floor: probabilities made for every row of the data at once.

    Attributes:
        p: float64 (R,).
    """

    p: np.ndarray

    @property
    def serves_unseen(self) -> bool:
        """It knows the rows of the data alone."""
        return False

    @property
    def adapts(self) -> bool:
        """It learns nothing."""
        return False

    def probabilities(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """Those made before; the users are the rows' own."""
        found: np.ndarray = self.p[rows]
        return found

    def swapped(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray | None:
        """None: it was not asked about swapped places."""
        return None

    def adapt(self, data: Comparisons, rows: np.ndarray) -> "Lookup":
        """Itself."""
        return self

    def at_last_epoch(self) -> None:
        """None: there are no epochs."""

    def utilities(self, features: np.ndarray) -> None:
        """None: it knows no items."""

    def about(self) -> About:
        """Nothing was fitted."""
        return About()

    def arrays(self) -> dict[str, np.ndarray]:
        """Nothing is stored."""
        return {}
