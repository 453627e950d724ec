"""The items of a catalogue: ids, titles, further columns, and filters on these."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.cells import EXACT, number_of, texts_of
from minionerec.core.errors import shown
from minionerec.data.corpus import Corpus
from minionerec.data.names import ITEM_COLUMNS
from minionerec.recommend.requests import RequestError
from minionerec.sid.embed.texts import WORD_OR_CHARACTER

CHOICE, NUMBER, SWITCH = "choice", "number", "switch"
_TRUTH = {"true": True, "false": False, "yes": True, "no": False}
_BOUNDS = ("at_least", "at_most")
_KEPT_MASKS = 256
NO_NUMBER, _LARGEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
"""Value of an item without a number in a column of int64, and the largest number of one."""
_WORD = re.compile(WORD_OR_CHARACTER)


@dataclass(frozen=True)
class Column:
    """One column of the items table.

    Attributes:
        kind: "choice" (texts), "number" or "switch" (true or false).
        values: N values in item order: object (str or None); float64 (NaN for none), or int64 (`NO_NUMBER` for none)
            where whole numbers are too large for float64; or object (bool or None).
    """

    kind: str
    values: np.ndarray

    @classmethod
    def of(cls, values: pd.Series) -> "Column":
        """A column from a table: numbers or truth values if every cell is one, else texts.

        A text is a number if it is how that number is written (`minionerec.core.cells.number_of`). Numbers that neither
        float64 nor int64 distinguishes are texts.

        Raises:
            ValueError: If a cell is no text; the message shows the first.
        """
        texts, wrong = texts_of(values)
        if wrong.any():
            raise ValueError(shown(values.iloc[int(np.flatnonzero(wrong)[0])]))
        cells = [cell if text.strip() else None for cell, text in zip(values.tolist(), texts, strict=True)]
        present = [cell for cell in cells if cell is not None]
        truths = [cell if isinstance(cell, bool) else _TRUTH.get(str(cell).strip().lower()) for cell in present]
        if present and None not in truths:
            filled = iter(truths)
            return cls(SWITCH, np.array([None if cell is None else next(filled) for cell in cells], dtype=object))
        numbers = [None if cell is None else number_of(cell) for cell in cells]
        if present and sum(number is not None for number in numbers) == len(present):
            found = _number_array(numbers)
            if found is not None:
                return cls(NUMBER, found)
        stripped = [None if cell is None else text.strip() for cell, text in zip(cells, texts, strict=True)]
        return cls(CHOICE, np.array(stripped, dtype=object))

    @cached_property
    def known(self) -> np.ndarray:
        """Which items have a number, in a column of numbers: bool (N,)."""
        return np.asarray(self.values != NO_NUMBER if self.values.dtype.kind == "i" else ~np.isnan(self.values))

    def at(self, item: int) -> Any:
        """The value of one item as JSON; None if missing."""
        value = self.values[item]
        if self.kind == NUMBER:
            return value.item() if self.known[item] else None
        return value

    @cached_property
    def choices(self) -> list[str]:
        """The distinct texts of a choice column, in order."""
        return sorted({value for value in self.values if value is not None})

    def holds(self, condition: Any, where: str) -> np.ndarray:
        """The items that meet a condition: bool (N,).

        Args:
            condition: See `minionerec.recommend.requests.Request.where`.
            where: The field's name, for messages.

        Raises:
            RequestError: If the condition does not fit the column.
        """
        if isinstance(condition, Mapping):
            return self._within(condition, where)
        if isinstance(condition, list | tuple | set | frozenset):
            met = np.zeros(len(self.values), dtype=bool)
            for index, value in enumerate(condition):
                met |= self._equals(value, f"{where}[{index}]")
            return met
        return self._equals(condition, where)

    def _equals(self, value: Any, where: str) -> np.ndarray:
        if self.kind == NUMBER:
            number = _real(value, where)
            same: np.ndarray = self._at_least(number) & self._at_most(number)
            return same
        expected = {CHOICE: str, SWITCH: bool}[self.kind]
        if not isinstance(value, expected):
            form = "a text" if expected is str else "true or false"
            raise RequestError(where, f"is {shown(value)}; expected {form}, or a list of them.")
        wanted = np.array(value, dtype=self.values.dtype)  # as text numpy would drop NUL characters at its end
        met: np.ndarray = np.asarray(self.values == wanted, dtype=bool)
        return met

    def _within(self, bounds: Mapping[str, Any], where: str) -> np.ndarray:
        if self.kind != NUMBER:
            raise RequestError(where, f"has bounds, but the column is not numeric; give {_wanted(self.kind)}.")
        met = self.known
        if not bounds:
            raise RequestError(where, "is empty; expected at_least, at_most or both.")
        for name, value in bounds.items():
            if name not in _BOUNDS:
                raise RequestError(f"{where}.{name}", "is unknown; expected at_least or at_most.")
            bound = _real(value, f"{where}.{name}")
            met = met & (self._at_least(bound) if name == "at_least" else self._at_most(bound))
        return met

    def _at_least(self, bound: int | float) -> np.ndarray:
        """Which numbers are at least a bound, compared exactly: bool (N,)."""
        if self.values.dtype.kind == "i":
            least = math.ceil(bound)
            return self.known & (self.values >= least) if least <= _LARGEST else np.zeros(len(self.values), dtype=bool)
        nearest = float(bound)
        met: np.ndarray = self.values >= (math.nextafter(nearest, math.inf) if nearest < bound else nearest)
        return met

    def _at_most(self, bound: int | float) -> np.ndarray:
        """Which numbers are at most a bound, compared exactly: bool (N,)."""
        if self.values.dtype.kind == "i":
            most = math.floor(bound)
            return self.known & (self.values <= most) if most > NO_NUMBER else np.zeros(len(self.values), dtype=bool)
        nearest = float(bound)
        met: np.ndarray = self.values <= (math.nextafter(nearest, -math.inf) if nearest > bound else nearest)
        return met


def _number_array(numbers: Sequence[int | float | None]) -> np.ndarray | None:
    """Numbers as `Column.values`; None where neither float64 nor int64 holds all of them exactly."""
    known = [number for number in numbers if number is not None]
    if all(isinstance(number, float) or abs(number) < EXACT for number in known):
        return np.array([math.nan if number is None else number for number in numbers], dtype=np.float64)
    if any(number != math.floor(number) or not NO_NUMBER < number <= _LARGEST for number in known):
        return None
    return np.array([NO_NUMBER if number is None else int(number) for number in numbers], dtype=np.int64)


def _wanted(kind: str) -> str:
    return {CHOICE: "a text or a list of texts", SWITCH: "true or false"}[kind]


def _real(value: Any, where: str) -> int | float:
    """A finite number, as Python's.

    Raises:
        RequestError: If it is not one.
    """
    number = None if isinstance(value, str) else number_of(value)
    if number is None or (isinstance(number, int) and abs(number) > sys.float_info.max):
        raise RequestError(where, f"is {shown(value)}; expected a number.")
    return number


class CatalogueItems:
    """The items of a catalogue.

    Args:
        ids: The N ids, in item order.
        titles: Their titles.
        columns: Further columns by name.

    Example:
        >>> items = CatalogueItems(["a", "b"], ["Blue pen", "Red ink"], {"price": Column.of(pd.Series(["2", "9.5"]))})
        >>> items.index("b"), items.search("re"), items.mask({"price": {"at_most": 5}}).tolist()
        (1, [1], [True, False])
    """

    def __init__(self, ids: Sequence[str], titles: Sequence[str], columns: Mapping[str, Column]):
        self.ids, self.titles, self.columns = list(ids), list(titles), dict(columns)
        self._masks: dict[str, np.ndarray] = {}
        self._index = {item_id: index for index, item_id in enumerate(self.ids)}

    @classmethod
    def of(cls, corpus: Corpus) -> "CatalogueItems":
        """The items of a corpus, with all their columns."""
        names = [name for name in corpus.items.columns if name not in ITEM_COLUMNS]
        ids, titles = (corpus.items[name].astype(str).tolist() for name in ("item_id", "title"))
        return cls(ids, titles, {name: Column.of(corpus.items[name]) for name in names})

    def __len__(self) -> int:
        """Number of items, N."""
        return len(self.ids)

    def index(self, item_id: str) -> int | None:
        """The item index of an id; None if unknown."""
        return self._index.get(item_id)

    def column(self, name: str, field: str) -> Column:
        """A column.

        Args:
            name: Its name.
            field: The field that names it, for messages.

        Raises:
            RequestError: If there is no such column.
        """
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise RequestError(field, f"is not a column of the items; columns: {known}.")
        return self.columns[name]

    def mask(self, where: Mapping[str, Any]) -> np.ndarray:
        """The items that meet all conditions: bool (N,), read-only; recent results are cached.

        Args:
            where: See `minionerec.recommend.requests.Request.where`.

        Raises:
            RequestError: If there is no such column, or a condition does not fit it.
        """
        key = repr(sorted(where.items(), key=lambda part: str(part[0])))
        if key in self._masks:
            return self._masks[key]
        met = np.ones(len(self), dtype=bool)
        for name, condition in where.items():
            met &= self.column(name, f"where.{name}").holds(condition, f"where.{name}")
        if len(self._masks) >= _KEPT_MASKS:
            self._masks.clear()
        met.flags.writeable = False
        self._masks[key] = met
        return met

    def search(self, query: str, limit: int = 20) -> list[int]:
        """Items whose title has a word that begins with each word of a query, or whose id is the query.

        Of scripts without spaces between words a title must have each character of the query.

        Args:
            query: Words, in any case.
            limit: Maximum number of items.

        Returns:
            Item indices: the one with this id first, then titles with more whole words, then those that contain the
            query as it is, then shorter titles.
        """
        text = query.strip().lower()
        words, exact = _WORD.findall(text), self.index(query.strip())
        found: list[tuple[int, bool, int, int]] = []
        if words:
            for item, title in enumerate(self._words):
                whole = sum(word in title for word in words)
                if all(any(own.startswith(word) for own in title) for word in words):
                    found.append((-whole, text not in self.titles[item].lower(), len(self.titles[item]), item))
        ranked = [item for *_, item in sorted(found) if item != exact]
        return ([] if exact is None else [exact])[:limit] + ranked[: limit - (exact is not None)]

    @cached_property
    def _words(self) -> list[frozenset[str]]:
        return [frozenset(_WORD.findall(title.lower())) for title in self.titles]
