"""Filters of interactions and items: pure functions of arrays and text."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from minionerec.core.errors import ConfigError, shown

if TYPE_CHECKING:
    import pandas as pd

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with a value, such as `rating >= 4` or `event != return`.

    Attributes:
        column: Name of the column.
        comparison: One of >=, <=, ==, !=, > and <.
        value: The value as it was written, without quotes.
        number: The value as a number; None where it is a text.
    """

    column: str
    comparison: str
    value: str
    number: float | None

    def __str__(self) -> str:
        return f"{self.column} {self.comparison} {self.value}"

    @property
    def of_numbers(self) -> bool:
        """Whether only numbers can be compared."""
        return self.comparison not in ("==", "!=")

    def holds(self, texts: "pd.Series") -> tuple[np.ndarray, np.ndarray]:
        """Compare cells, as texts without white space around them; a missing one ("") meets no condition but !=.

        Returns:
            bool (rows,), which meet the condition; bool (rows,), which would have to be numbers and are not.
        """
        import pandas as pd

        compare, filled = _COMPARISONS[self.comparison], (texts != "").to_numpy()
        same = np.asarray(compare(texts, self.value), dtype=bool) if not self.of_numbers else np.zeros(len(texts), bool)
        if self.number is None:
            return same, np.zeros(len(texts), dtype=bool)
        numbers = pd.to_numeric(texts.where(filled), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        known = ~np.isnan(numbers)
        met = np.where(known, compare(numbers, self.number), same)
        return met.astype(bool), filled & ~known if self.of_numbers else np.zeros(len(texts), dtype=bool)


def parse_conditions(text: str) -> list[Condition]:
    """The conditions of a text, which are joined by "and".

    Raises:
        ConfigError: If it is no such text.

    Example:
        >>> [str(condition) for condition in parse_conditions("rating >= 4 and event != 'return'")]
        ['rating >= 4', 'event != return']
    """
    conditions = []
    for part in re.split(r"\s+and\s+", text.strip()) if text.strip() else []:
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"where is {shown(text)}; expected comparisons of a column with a value, such as 'rating >= 4' or "
                f"'rating >= 4 and event == purchase', with one of {', '.join(_COMPARISONS)}."
            )
        column, comparison, value = match.groups()
        column, value = (one[1:-1] if len(one) > 1 and one[0] == one[-1] in "'\"" else one for one in (column, value))
        try:
            number = float(value)
        except ValueError:
            number = None
        condition = Condition(column, comparison, value, None if number is None or np.isnan(number) else number)
        if condition.of_numbers and condition.number is None:
            raise ConfigError(
                f"where is {shown(text)}: {comparison} compares numbers, and {value!r} is none. Give a number, or "
                "compare with == or !=."
            )
        conditions.append(condition)
    return conditions


def parse_time(text: str) -> float:
    """Seconds since 1970 of an ISO month, date or time: the first second of it, in UTC where it names no zone.

    Raises:
        ConfigError: If it is neither.

    Example:
        >>> parse_time("2016-10"), parse_time("2016-10-01T02:00:00+02:00")
        (1475280000.0, 1475280000.0)
    """
    try:
        time = datetime.fromisoformat(f"{text}-01" if len(text) == len("2016-10") else text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time; give an ISO month, date or time such as 2016-10-01.") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def k_core(users: np.ndarray, items: np.ndarray, k: int) -> np.ndarray:
    """The largest set of interactions in which every user and every item has at least k of them.

    Users and items below k are struck out in rounds, both by the counts of the same round, until none is left. The
    result does not depend on the order of the interactions: a union of sets in which each has k is such a set too.

    Args:
        users: int (M,), user of each interaction, numbers from 0.
        items: int (M,), item of each interaction, numbers from 0.
        k: Fewest interactions; repeated ones of one user and item count each. 0 and 1 keep everything.

    Returns:
        int64, ascending: positions of the interactions that stay.

    Example:
        >>> k_core(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 1]), 2).tolist()
        [0, 1, 2, 3]
    """
    kept = np.arange(len(users))
    while len(kept):
        stays = (np.bincount(users) >= k)[users] & (np.bincount(items) >= k)[items]
        if stays.all():
            break
        kept, users, items = kept[stays], users[stays], items[stays]
    return kept
