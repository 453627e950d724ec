"""What is asked of a recommender, and what it answers: the user's own item ids on both sides."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minionerec.core.errors import DataError

UNKNOWN = ("skip", "refuse")


class RequestError(DataError):
    """A request cannot be answered as it stands.

    Attributes:
        field: What is wrong with it, such as "k", "history[3]" or "where.price".
        message: Why, and what is expected, without the field's name.
    """

    def __init__(self, field: str, message: str):
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True)
class Request:
    """One question.

    Attributes:
        history: The items chosen so far by their ids, oldest first; may be empty.
        k: Length of the list.
        exclude_seen: Whether items of the history may not be listed.
        only: The items that may be listed; all if None.
        without: Items that may not.
        where: Conditions on columns of the items table, all of which must hold: a value ({"department": "Tea"}), a list
            of which one must hold ({"department": ["Tea", "Ink"]}), or bounds ({"price": {"at_least": 1, "at_most":
            20}}). An item without a value in the column meets none.
        unknown: "skip" leaves ids that are of no item out and names them in the answer; "refuse" raises.
        moment: When the next item is wanted, for models that were told so in training: "same", at the moment of the
            history's newest item, as the corpus has moments (the visit goes on); "later" (somebody comes back);
            "unknown" says nothing, which every model understands. Behind an empty history nothing is said either.
    """

    history: Sequence[str] = ()
    k: int = 10
    exclude_seen: bool = False
    only: Collection[str] | None = None
    without: Collection[str] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    unknown: str = "skip"
    moment: str = "unknown"


class Recommended(NamedTuple):
    """One item of a list.

    Attributes:
        item_id: Its id.
        title: Its title.
        sid: Its semantic ID; None where the model has none.
        score: What it was ranked by: the log-probability of its semantic ID (and the lift of new items, where the
            checkpoint has one); of a sequential recommender its own score, of a user's own ranker what that says.
        probability: Of its semantic ID, which other items may share; None where scores are no log-probabilities.
    """

    item_id: str
    title: str
    sid: str | None
    score: float
    probability: float | None


@dataclass(frozen=True)
class Answer:
    """One list.

    Attributes:
        items: The best items that may be listed, best first: k of them, or all where fewer may be listed.
        unknown: Ids of the history, of `only` and of `without` that are of no item, in that order, each once.
    """

    items: tuple[Recommended, ...]
    unknown: tuple[str, ...]
