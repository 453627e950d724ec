"""Titles and descriptions of the city's items, by a grammar over words of our own; each title is there once."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.data.city.sizes import SHELF
from minionerec.data.city.words import AISLES, FOLK, MOODS, PLACES, STYLES, SYLLABLES, TIMES
from minionerec.data.city.world import AISLE, DEPARTMENT, World

_MIX = 0x9E3779B97F4A7C15
_OF_DEPARTMENT = (PLACES, FOLK, TIMES, MOODS)
MOST_ITEMS = len(PLACES) * len(FOLK) * len(TIMES) * len(MOODS) * DEPARTMENT * SHELF
"""Items that can have titles of their own."""


def _words(words: Sequence[str], numbers: np.ndarray, *, lower: bool = False) -> pa.Array:
    """The words of some numbers."""
    return pa.array([word.lower() if lower else word for word in words]).take(pa.array(numbers))


def _joined(*parts: pa.Array | str, by: str = " ") -> pa.Array:
    return pc.binary_join_element_wise(*parts, by)


def _departments(departments: np.ndarray, most: int, *, lower: bool = False) -> pa.Array:
    """Names of departments, int64 (M,): a place and a folk, with a time and a mood where there are very many.

    Digits in base 32, each shifted by the one before, so that neighbours share no word and no two have the same name.
    """
    names: pa.Array | None = None
    shift = np.zeros(len(departments), dtype=np.int64)
    for power, words in enumerate(_OF_DEPARTMENT):
        if power > 1 and most < len(words) ** power:
            break
        digit = (departments // len(words) ** power + shift) % len(words)
        shift = shift + 7 * digit
        word = _words(words, digit, lower=lower)
        names = word if names is None else _joined(names, word)
    return names


def _brands(departments: np.ndarray, styles: np.ndarray) -> pa.Array:
    """Brands, by department and style: (M,) invented names of three parts; some are the same by chance."""
    mixed = (departments * SHELF + styles + 1).astype(np.uint64) * np.uint64(_MIX)
    parts = [_words(words, (mixed >> np.uint64(60 - 4 * place)).astype(np.int64) % 16)
             for place, words in enumerate(SYLLABLES)]  # fmt: skip
    return _joined(*parts, by="")


def items_table(world: World, begin: int, end: int) -> pa.Table:
    """Some rows of the items table.

    Args:
        world: The city.
        begin: First row.
        end: Row behind the last.

    Returns:
        Columns `item_id`, `title` and `description`, all strings.
    """
    rows = np.arange(begin, end)
    positions = world.positions(rows)
    shelves, styles = positions // SHELF, positions % SHELF
    departments, last = shelves // DEPARTMENT, (world.shelves - 1) // DEPARTMENT
    aisles, places = shelves // AISLE % len(AISLES), shelves % AISLE
    nouns = [noun for _, _, shelf in AISLES for noun in shelf]
    brand = _brands(departments, styles)
    noun = aisles * AISLE + places
    title = _joined(brand, _words(STYLES, styles), _words(nouns, noun), "for", _departments(departments, last))
    description = _joined(
        _words([f"{purpose}:" for _, purpose, _ in AISLES], aisles),
        _words(STYLES, styles, lower=True),
        _words(nouns, noun, lower=True),
        "by",
        brand,
        "for",
        _departments(departments, last, lower=True),
        _words([f"({aisle})." for aisle, _, _ in AISLES], aisles),
    )
    return pa.table({"item_id": ids("p", rows), "title": title, "description": description})


def ids(letter: str, numbers: np.ndarray) -> pa.Array:
    """Ids of items ("p7") or people ("u7")."""
    return _joined(letter, pc.cast(pa.array(numbers), pa.string()), by="")
