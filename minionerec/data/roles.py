"""What the columns of a table hold, inferred from their texts, and their codes: numbers that models read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.errors import ArtefactError, ConfigError, shown
from minionerec.data.names import CATEGORY, CODED, IGNORE, ITEM_COLUMNS, NUMBER, TAGS, TEXT, TIME

_SEPARATORS = r"\s*[|;,]\s*"
_OFTEN = 2  # rows that each value has on average, at least, in a column of categories
_PARTED = 0.1  # of the texts of a column of tags have a second part, at least
_SHARE = 0.98  # of the values of a column of numbers or times
MOST_VALUES = 256
"""Values of a column with a code of their own, at most: the most frequent."""
_FEWEST = 2  # rows with a value that has a code of its own
_BUCKETS = 8
_LARGEST = 1e150  # whose square is finite; numbers beyond it count as it
_FURTHEST = 3.0  # standard deviations from the mean, beyond which numbers are clipped


def column_role(texts: pd.Series) -> str:
    """The role of a column.

    Args:
        texts: A text for each row; None or "" where there is none.

    Returns:
        "number" or "time" where nearly all texts are numbers or ISO dates; "tags" where a tenth of the texts or more
        have parts between "|", ";" or ",", of which there are fewer than texts, each twice or more on average;
        "category" where each text stands in two rows or more on average; "text" otherwise; "ignore" where no row has a
        text, or all have the same.

    Example:
        >>> column_role(pd.Series(["Acme", "Bolt", "Acme", "Bolt", None]))
        'category'
    """
    filled = texts.dropna()
    filled = filled[filled != ""].astype(str)
    distinct = filled.nunique()
    if distinct == 0 or (distinct == 1 and len(filled) == len(texts)):
        return IGNORE
    if np.isfinite(_numbers(filled)).mean() >= _SHARE:
        return NUMBER
    if np.isfinite(_seconds(filled)).mean() >= _SHARE:
        return TIME
    parts = _tags(filled)
    often = parts.nunique() < distinct and _OFTEN * parts.nunique() <= len(parts)
    if often and len(parts) >= (1 + _PARTED) * len(filled):
        return TAGS
    return CATEGORY if _OFTEN * distinct <= len(filled) else TEXT


def column_roles(items: pd.DataFrame, given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The role of each further column of the items (those beside `minionerec.data.names.ITEM_COLUMNS`).

    Args:
        items: N items.
        given: Roles of some columns; those of the others are inferred (`column_role`).

    Raises:
        ConfigError: If the items lack a column whose role is given.
    """
    further = [str(name) for name in items.columns if name not in ITEM_COLUMNS]
    for name in given:
        if name not in further:
            known = ", ".join(further) or "none"
            raise ConfigError(
                f"roles names {shown(name)}, which the items do not have; their further columns: {known}."
            )
    return {name: given[name] if name in given else column_role(items[name]) for name in further}


def _numbers(texts: pd.Series) -> np.ndarray:
    numbers: np.ndarray = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), np.clip(numbers, -_LARGEST, _LARGEST), np.nan)


def _seconds(texts: pd.Series) -> np.ndarray:
    dates = texts.where(texts.str.match(r"\d{4}-\d", na=False))
    times = pd.to_datetime(dates, errors="coerce", format="ISO8601", utc=True)
    seconds: np.ndarray = (times - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(np.float64)
    return seconds


def _tags(texts: pd.Series) -> pd.Series:
    """The parts of each text, with the index of its row."""
    parts = texts.str.split(_SEPARATORS, regex=True).explode()
    return parts[parts.notna() & (parts != "")]


@dataclass(frozen=True)
class ColumnCode:
    """How the texts of a column become numbers.

    A text without a code, such as a value that is rare or unknown, is "other"; "other" and "missing" have a code where
    some of the rows that the codes are fitted to are so, and else are zeros.

    Attributes:
        name: Name of the column.
        role: One of `CODED`.
        values: Values with a code, of columns of categories or tags, the most frequent first.
        edges: Borders of the buckets of numbers (of times: seconds since 1970), ascending.
        mean: Mean of the numbers.
        scale: Standard deviation of the numbers, above 0.
        other: Whether "other" has a code.
        missing: Whether "missing" has a code.

    Example:
        >>> brand = ColumnCode.fit("brand", "category", pd.Series(["Acme", "Acme", "Bolt", "Bolt", None]))
        >>> brand.encode(pd.Series(["Bolt", "Cord", None])).tolist()
        [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    name: str
    role: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    other: bool = False
    missing: bool = False

    @classmethod
    def fit(cls, name: str, role: str, texts: pd.Series) -> "ColumnCode":
        """Choose the codes of a column by some of its rows.

        Args:
            name: Name of the column.
            role: One of `CODED`.
            texts: The texts of these rows; None or "" where there is none.
        """
        filled = texts[texts.notna() & (texts != "")].astype(str)
        missing = len(filled) < len(texts)
        if role in (NUMBER, TIME):
            numbers = _numbers(filled) if role == NUMBER else _seconds(filled)
            numbers, missing = numbers[np.isfinite(numbers)], not np.isfinite(numbers).all() or missing
            if not len(numbers):
                return cls(name, role, missing=missing)
            edges = np.unique(np.quantile(numbers, np.arange(1, _BUCKETS) / _BUCKETS)).tolist()
            scale = float(numbers.std()) or 1.0
            return cls(name, role, edges=tuple(edges), mean=float(numbers.mean()), scale=scale, missing=missing)
        parts = _tags(filled) if role == TAGS else filled
        counts = parts.value_counts()
        counts = counts[counts >= _FEWEST]
        ordered = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
        values = tuple(str(value) for value, _ in ordered[:MOST_VALUES])
        return cls(name, role, values, other=not parts.isin(values).all(), missing=missing)

    @classmethod
    def read(cls, stored: Mapping[str, Any], where: str) -> "ColumnCode":
        """The codes that `stored` gave.

        Args:
            stored: From JSON.
            where: What holds it, with which the message begins.

        Raises:
            ArtefactError: If it describes no codes.
        """
        try:
            code = cls(**{**stored, "values": tuple(stored["values"]), "edges": tuple(stored["edges"])})
            fits = code.role in CODED and all(isinstance(value, str) for value in (code.name, *code.values))
            fits = fits and bool(np.isfinite([*code.edges, code.mean, code.scale]).all()) and code.scale > 0
        except (TypeError, KeyError, ValueError):
            fits = False
        if not fits:
            raise ArtefactError(f"{where}: {shown(stored)} describes no column of items")
        return code

    def stored(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def width(self) -> int:
        """Numbers of a row, F."""
        numeric = self.role in (NUMBER, TIME)
        own = 1 + len(self.edges) + 1 if numeric else len(self.values)
        return own + self.other + self.missing

    def encode(self, texts: pd.Series) -> np.ndarray:
        """The numbers of some rows.

        A number is its distance from the mean in standard deviations, clipped at 3, and 1 at its bucket; a category 1
        at its value; of T tags each has 1 / sqrt(T).

        Args:
            texts: N texts; None or "" where there is none.

        Returns:
            float32 (N, F).
        """
        texts = texts.reset_index(drop=True)
        filled = texts[texts.notna() & (texts != "")].astype(str)
        codes = np.zeros((len(texts), self.width), dtype=np.float32)
        is_missing = np.ones(len(texts), dtype=bool)
        if self.role in (NUMBER, TIME):
            numbers = _numbers(filled) if self.role == NUMBER else _seconds(filled)
            finite = np.isfinite(numbers)
            rows, numbers = filled.index.to_numpy()[finite], numbers[finite]
            codes[rows, 0] = np.clip((numbers - self.mean) / self.scale, -_FURTHEST, _FURTHEST)
            codes[rows, 1 + np.searchsorted(self.edges, numbers, side="right")] = 1
            is_missing[rows] = False
        else:
            parts = _tags(filled) if self.role == TAGS else filled
            numbers_of = {value: number for number, value in enumerate(self.values)}
            rows, found = parts.index.to_numpy(), parts.map(numbers_of).to_numpy(np.float64, na_value=np.nan)
            known = np.isfinite(found)
            codes[rows[known], found[known].astype(np.int64)] = 1
            if self.other:
                codes[rows[~known], len(self.values)] = 1
            codes /= np.sqrt(np.maximum(codes.sum(1, keepdims=True), 1))
            is_missing[rows] = False
        if self.missing:
            codes[is_missing, -1] = 1
        return codes


def fit_columns(
    items: pd.DataFrame, roles: Mapping[str, str], names: Sequence[str], trained: np.ndarray
) -> list[ColumnCode]:
    """Choose the codes of some columns of the items.

    Args:
        items: N items.
        roles: The role of each further column.
        names: Columns.
        trained: bool (N,), the items whose rows decide; all decide where it is False throughout.

    Raises:
        ConfigError: If there is no such column, or its role has no codes.
    """
    rows = items[trained] if trained.any() else items
    for name in names:
        if name not in roles:
            known = ", ".join(roles) or "none"
            raise ConfigError(
                f"item_columns names {shown(name)}, which the corpus does not have; its further columns: {known}."
            )
        if roles[name] not in CODED:
            raise ConfigError(
                f"item_columns names {shown(name)}, whose role is {roles[name]!r}; models read {', '.join(CODED)}. "
                f"Prepare the corpus with --roles {name}=category (or tags, number, time), or leave it out."
            )
    return [ColumnCode.fit(name, roles[name], rows[name]) for name in names]


def encode_columns(items: pd.DataFrame, columns: Sequence[ColumnCode]) -> np.ndarray:
    """The codes of all items, column after column: float32 (N, F); in a column that `items` lacks all are missing."""
    absent = pd.Series([None] * len(items), dtype=object)
    parts = [column.encode(items.get(column.name, absent)) for column in columns]
    return np.concatenate([np.zeros((len(items), 0), np.float32), *parts], axis=1)
