"""Columns of interactions that are request features: which serve, and their codes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from minionerec.core.errors import ConfigError, shown, truncate
from minionerec.core.log import get_logger
from minionerec.data.contexts import OF_TIMES
from minionerec.data.names import CATEGORY, IGNORE, NUMBER, TAGS, TEXT, TIME, UNKNOWN
from minionerec.data.roles import column_role

log = get_logger(__name__)

MOST = 256
"""Values of a column at most."""
MANY = f"more than {MOST} values"
TRACKED = 4096
"""Different values, over all rows, from which on a column is not read further."""
DETERMINED = 0.95
"""Share of rows whose value is the most frequent one of their item, from which on the item determines the column."""
_NAME = re.compile(r"\w[\w .-]{0,59}")
_ROWS = 100_000  # rows by which the role of a column is inferred, about
_REASONS = {
    IGNORE: "one value",
    NUMBER: "numbers",
    TIME: "times",
    TAGS: "lists",
    TEXT: "texts that hardly recur",
}


@dataclass(frozen=True)
class ContextColumn:
    """A column of interactions that is a request feature.

    Attributes:
        column: Its name in the tables of an engine.
        values: Names of its values by code from 1, the most frequent first.
        codes: int16 (V + 1,), the code of each value of the source by number, and at the end that of no value.
    """

    column: str
    values: tuple[str, ...]
    codes: np.ndarray


def name_problem(name: str) -> str:
    """Why a column cannot be a request feature by its name; "" where it can."""
    if name in OF_TIMES:
        return "the name of a feature of times"
    return "" if _NAME.fullmatch(name) else "a name with other signs than letters, digits, spaces, _, . and -"


def values_problem(counts: Mapping[str, int], missing: int) -> str:
    """Why a column cannot be a request feature by its values; "" where it can.

    Args:
        counts: Value → rows.
        missing: Rows without a value.

    Example:
        >>> values_problem({"mobile": 5, "desktop": 4}, 0), values_problem({"1": 5, "2": 4}, 0)
        ('', 'numbers')
    """
    if not counts or (len(counts) == 1 and not missing):
        return _REASONS[IGNORE] if counts else "empty"
    rows = np.array(list(counts.values()), dtype=np.int64)
    sample = pd.Series(list(counts), dtype=object).repeat(-(-rows // -(-rows.sum() // _ROWS)))
    role = column_role(pd.concat([sample, pd.Series([None] * bool(missing), dtype=object)]))
    if role != CATEGORY:
        return _REASONS[role]
    return MANY if len(counts) > MOST else ""


def is_determined_by_items(rows: int, agreeing: int, share: float) -> bool:
    """Whether the item determines a column in nearly all rows, so that its value would give the target away.

    A value that nearly all rows have is that of most items too: then the items must tell half of the other rows.

    Args:
        rows: Rows of items that have several.
        agreeing: Those with the most frequent value of their item.
        share: Share of rows with the most frequent value of all.

    Example:
        >>> is_determined_by_items(100, 97, 0.4), is_determined_by_items(100, 97, 0.96)
        (True, False)
    """
    return agreeing >= DETERMINED * rows and rows - agreeing <= (1 - share) * rows / 2


def codes_of(column: str, values: Sequence[str], counts: Mapping[str, int]) -> ContextColumn:
    """The codes of a column.

    Args:
        column: Its name in the tables of an engine.
        values: Its values in the source, by number.
        counts: Value with a code → rows.
    """
    names = tuple(sorted(counts, key=lambda name: (-counts[name], name)))
    code_of = {name: code for code, name in enumerate(names, start=1)}
    codes = np.array([*(code_of.get(value, UNKNOWN) for value in values), UNKNOWN], dtype=np.int16)
    return ContextColumn(column, names, codes)


def report(where: str, kept: Collection[str], problems: Mapping[str, str], named: Collection[str]) -> None:
    """Log which columns of interactions are request features, and why others are not read.

    Args:
        where: The interactions.
        kept: Names of request features.
        problems: Name of any other column → the reason.
        named: Columns that must be request features.

    Raises:
        ConfigError: If one of `named` is none.
    """
    for name in named:
        if name in problems:
            raise ConfigError(
                f"context_columns names {shown(name)}, which is no request feature in {where}: {problems[name]}. "
                f"Name columns of 2 to {MOST} categories that are known before an item is chosen, or leave it out."
            )
    if kept:
        log.info("%s: request features: %s.", where, ", ".join(kept))
    if problems:
        reasons = ", ".join(f"{name} ({problem})" for name, problem in problems.items())
        log.info("%s: columns that are not read: %s.", where, truncate(reasons, 500))
