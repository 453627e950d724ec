"""The items of a catalogue: ids, titles, further columns, and filters on these."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.errors import shown
from minionerec.data.corpus import Corpus
from minionerec.data.sources.tables import item_columns
from minionerec.recommend.requests import RequestError
from minionerec.sid.embed.texts import WORD_OR_CHARACTER

CHOICE, NUMBER, SWITCH = "choice", "number", "switch"
_TRUTH = {"true": True, "false": False, "yes": True, "no": False}
_BOUNDS = ("at_least", "at_most")
_KEPT_MASKS = 256
_WORD = re.compile(WORD_OR_CHARACTER)


@dataclass(frozen=True)
class Column:
    """One column of the items table.

    Attributes:
        kind: "choice" (texts), "number" or "switch" (true or false).
        values: N values in item order: object (str or None), float64 (NaN for none), or object (bool or None).
    """

    kind: str
    values: np.ndarray

    @classmethod
    def of(cls, values: pd.Series) -> "Column":
        """A column from a table: numbers or booleans if every cell is one, else texts."""
        cells = [None if _empty(cell) else cell for cell in values.tolist()]
        present = [cell for cell in cells if cell is not None]
        truths = [cell if isinstance(cell, bool) else _TRUTH.get(str(cell).strip().lower()) for cell in present]
        if present and None not in truths:
            filled = iter(truths)
            return cls(SWITCH, np.array([None if cell is None else next(filled) for cell in cells], dtype=object))
        numbers = [_number(cell) for cell in present]
        if present and None not in numbers:
            found = iter(numbers)
            return cls(
                NUMBER, np.array([math.nan if cell is None else next(found) for cell in cells], dtype=np.float64)
            )
        texts = [None if cell is None else str(cell).strip() for cell in cells]
        return cls(CHOICE, np.array(texts, dtype=object))

    def at(self, item: int) -> Any:
        """The value of one item as JSON; None if missing."""
        value = self.values[item]
        if self.kind == NUMBER:
            return None if math.isnan(value) else float(value)
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
        expected = {CHOICE: str, SWITCH: bool}.get(self.kind)
        if expected is not None and not isinstance(value, expected):
            form = "a text" if expected is str else "true or false"
            raise RequestError(where, f"is {shown(value)}; expected {form}, or a list of them.")
        if self.kind == NUMBER:
            value = _real(value, where)
        wanted = np.array(value, dtype=self.values.dtype)  # as text numpy would drop NUL characters at its end
        met: np.ndarray = np.asarray(self.values == wanted, dtype=bool)
        return met

    def _within(self, bounds: Mapping[str, Any], where: str) -> np.ndarray:
        if self.kind != NUMBER:
            raise RequestError(where, f"has bounds, but the column is not numeric; give {_wanted(self.kind)}.")
        met: np.ndarray = ~np.isnan(self.values)
        if not bounds:
            raise RequestError(where, "is empty; expected at_least, at_most or both.")
        for name, value in bounds.items():
            if name not in _BOUNDS:
                raise RequestError(f"{where}.{name}", "is unknown; expected at_least or at_most.")
            bound = _real(value, f"{where}.{name}")
            met = met & (self.values >= bound if name == "at_least" else self.values <= bound)
        return met


def _wanted(kind: str) -> str:
    return {CHOICE: "a text or a list of texts", SWITCH: "true or false"}[kind]


def _empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell)) or str(cell).strip() == "" or cell is pd.NA


def _number(cell: Any) -> float | None:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _real(value: Any, where: str) -> float:
    """A finite number.

    Raises:
        RequestError: If it is not one.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise RequestError(where, f"is {shown(value)}; expected a number.")


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
    def of(cls, corpus: Corpus, table: str | os.PathLike[str] | None = None) -> "CatalogueItems":
        """The items of a corpus, with further columns of a table.

        Args:
            corpus: The corpus.
            table: csv, tsv or parquet with a column item_id and any others. Of the columns of the corpus, titles are
                read for items that have none there; others are ignored.

        Raises:
            DataError: If the table cannot be read, has no item_id, or names an item twice.
        """
        ids = corpus.items["item_id"].astype(str).tolist()
        titles = corpus.items["title"].astype(str).tolist()
        columns: dict[str, Column] = {}
        if table is not None:
            rows = item_columns(Path(table), ids)
            if "title" in rows.columns:
                titles = [own or title for own, title in zip(titles, rows.pop("title").fillna(""), strict=True)]
            columns = {str(name): Column.of(rows[name]) for name in rows.columns}
        return cls(ids, titles, columns)

    def __len__(self) -> int:
        """Number of items, N."""
        return len(self.ids)

    def index(self, item_id: str) -> int | None:
        """The item index of an id; None if unknown."""
        return self._index.get(item_id)

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
            if name not in self.columns:
                known = ", ".join(self.columns) or "none"
                raise RequestError(f"where.{name}", f"is not a column of the items table; columns: {known}.")
            met &= self.columns[name].holds(condition, f"where.{name}")
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
