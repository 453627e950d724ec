"""Times of a column: numbers or dates, comparable, and all of one unit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.cells import texts_of
from minionerec.core.errors import DataError, shown
from minionerec.data.source import BadRows
from minionerec.data.units import (
    BEYOND,
    NANOSECOND,
    SECOND,
    SMALL,
    UNITS,
    date_form,
    looks_like,
    mixed_units,
    unit_numbers,
)

_LIMIT = 2**63 - 1
_OTHERS = {SMALL: "numbers too small to tell", BEYOND: "times after 2100"}
FEWEST = 3
"""Different numbers that must have the digits of dates before they are taken for such: one or two may by accident."""
_AFTER_2100 = "a time after 2100 in seconds, milli-, micro- and nanoseconds"
_NUMBER = "a number from -2**63 to 2**63"
_DATES = "a date from 1678 to 2261"
_DATE = "an ISO date from 1678 to 2261, such as 2018-11-05 or 2018-11-05T12:30:00"


def read_times(column: pd.Series, where: Callable[[int], str], bad: BadRows) -> tuple[np.ndarray, np.ndarray, int]:
    """The times of a whole column: `TimeColumn.read`, with the rows of other units than most among those refused.

    Returns:
        int64 or float64 (rows,), in one unit; bool (rows,), which are times; ticks in a second, taking numbers for
        seconds.

    Raises:
        DataError: As `TimeColumn`.
    """
    reader = TimeColumn(bad)
    times, right, units = reader.read(column, where)
    return times, right & ~np.isin(units, list(reader.other_units())), reader.ticks or NANOSECOND


@dataclass
class _Unit:
    """The times of a column that look like one unit: how many, the first of them, and their ends.

    `row` and `value` are the number and the value of the first, and `where` gives its position; `dates` is whether all
    are digits of dates, of which `different` holds some.
    """

    row: int
    where: Callable[[], str]
    value: Any
    count: int = 0
    least: float = np.inf
    most: float = -np.inf
    dates: bool = True
    different: set[float] = field(default_factory=set)

    def add(self, times: np.ndarray) -> None:
        """Count some more times."""
        self.count += len(times)
        self.least, self.most = min(self.least, float(times.min())), max(self.most, float(times.max()))
        self.dates = self.dates and date_form(times) is not None
        if self.dates and len(self.different) < FEWEST:
            self.different.update(np.unique(times)[:FEWEST].tolist())

    @property
    def text(self) -> str:
        return shown(str(self.value))


class TimeColumn:
    """Reads times that can be compared, part by part: numbers as they are, dates as nanoseconds since 1970 (UTC).

    The first row that is either decides: a number requires numbers everywhere, else ISO dates (2018-11-05,
    2018-11-05T12:30:00Z); without a zone they are taken as UTC.

    Args:
        bad: Counts rows that hold no time, one that no 64-bit number can hold, or a number of another unit (such as
            milliseconds, or days) than most.

    Attributes:
        ticks: Ticks in a second, taking numbers for seconds; None until a row decides.
    """

    def __init__(self, bad: BadRows) -> None:
        self.bad = bad
        self.ticks: int | None = None
        self._units: dict[int, _Unit] = {}
        self._rows = 0
        self._name = ""

    def read(self, column: pd.Series, location: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The times of a part.

        Args:
            column: Numbers, dates, or text of either.
            location: Gives the position, for messages, of the row of an index value.

        Returns:
            int64 or float64 (rows,); bool (rows,), which are times; int8 (rows,), the unit that each looks like.

        Raises:
            DataError: Naming the first row without a time, if `bad` does not allow it.
        """
        times, right, ticks, expected = parse_times(column, self.ticks)
        self._name = str(column.name)
        if not right.all():
            row, n = int(np.flatnonzero(~right)[0]), int((~right).sum())
            self.bad.add(
                "bad_time",
                f"{location(int(column.index[row]))}, column {self._name!r}: {shown(str(column.iloc[row]))} is not "
                f"{expected} ({n} such rows). Mend or drop them.",
                n,
            )
        if not right.any():
            return times, right, np.full(len(times), SMALL, np.int8)
        self.ticks = ticks
        times = exact(column, times, right)
        units = (unit_numbers(times) if ticks == SECOND else np.full(len(times), SMALL)).astype(np.int8)
        for unit in np.unique(units[right]).tolist():
            rows = np.flatnonzero(right & (units == unit))
            if unit not in self._units:
                first = int(rows[0])
                where = partial(location, int(column.index[first]))
                self._units[unit] = _Unit(self._rows + first, where, column.iloc[first])
            if ticks == SECOND:
                self._units[unit].add(times[rows])
        self._rows += len(times)
        return times, right, units

    def other_units(self) -> frozenset[int]:
        """The units of the rows that are of another unit than most, which are counted as bad.

        Raises:
            DataError: Naming the first of them, if `bad` does not allow them; or the first row, if most numbers are the
                digits of dates, or are after 2100 in the unit of their size.
        """
        units = self._units
        if self.ticks != SECOND or not units:
            return frozenset()
        others = [each.least for unit, each in units.items() if unit != SMALL]
        ends = (units[SMALL].most, min(others)) if SMALL in units and others else (0.0, 0.0)
        usual, strange = mixed_units({unit: each.count for unit, each in units.items()}, *ends)
        if strange:
            first = min((units[unit] for unit in strange), key=lambda each: each.row)
            n = sum(units[unit].count for unit in strange)
            self.bad.add(
                "bad_time",
                f"{first.where()}, column {self._name!r}: {first.text} looks like {looks_like(float(first.value))}, "
                f"but most rows like {_OTHERS.get(usual) or UNITS[usual][0]} ({n} such rows). Write all in one unit, "
                "or drop them.",
                n,
            )
        kept = [each for unit, each in units.items() if unit not in strange]
        dates = usual != SMALL and all(each.dates for each in kept)
        different = set[float]().union(*(each.different for each in kept))
        if usual == BEYOND or (dates and len(different) >= FEWEST):
            first = min(kept, key=lambda each: each.row)
            form = date_form(np.array([float(first.value)])) if dates else None
            what = f"a date written as {form}" if form else _AFTER_2100
            raise DataError(
                f"{first.where()}, column {self._name!r}: {first.text} looks like {what}, as most rows do. Write dates "
                "as 2018-01-31T12:30:00, or seconds since 1970."
            )
        return frozenset(strange)


def parse_times(column: pd.Series, ticks: int | None = None) -> tuple[np.ndarray, np.ndarray, int, str]:
    """The times of a column, see `TimeColumn`.

    Args:
        column: Numbers, dates, or text of either.
        ticks: Ticks in a second, which follow from the rows before; None where there are none.

    Returns:
        int64 or float64 (rows,); bool (rows,), which are times; ticks in a second, taking numbers for seconds; the
        expected form of the others.
    """
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        times, right = _nanoseconds(column)
        return times, right, NANOSECOND, _DATES
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        times, right = _numbers(column)
        return times, right, SECOND, _NUMBER
    text = _plain(column)
    numbers, is_number = _numbers(pd.to_numeric(text, errors="coerce"))
    if ticks == SECOND:
        return numbers, is_number, SECOND, "a number, as in the rows before"
    if ticks is None and len(text) and is_number[0]:
        return numbers, is_number, SECOND, "a number, as in the first row"
    if (named := text.str.endswith(("UTC", "GMT"))).any():  # as warehouses write zones
        text = text.where(~named, text.str.slice(0, -3).str.rstrip() + "Z")
    dates = pd.to_datetime(text.where(text.str.match(r"\d{4}-")), errors="coerce", format="ISO8601", utc=True)
    times, is_date = _nanoseconds(dates)
    if ticks is None and is_number.any() and (not is_date.any() or is_number.argmax() < is_date.argmax()):
        return numbers, is_number, SECOND, "a number"
    return times, is_date, NANOSECOND, _DATE if ticks or (len(text) and is_date[0]) else f"a number or {_DATE}"


def _plain(column: pd.Series) -> pd.Series:
    """Texts without white space around them, "" for what is missing or no scalar."""
    return texts_of(column, lists=False)[0].str.strip()


def _numbers(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as int64 where all are whole and fit, else float64, and which of them can be compared."""
    if pd.api.types.is_integer_dtype(column.dtype) and not column.hasnans:
        values = column.to_numpy()
        if values.dtype == object or values.dtype.kind == "u":
            right = np.asarray(values <= _LIMIT, dtype=bool)
            return np.where(right, values, 0).astype(np.int64), right
        return values.astype(np.int64), np.ones(len(values), dtype=bool)
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        return values, np.abs(values) < 2.0**63


def _nanoseconds(dates: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Dates as int64 nanoseconds since 1970, and which of them are dates that fit."""
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    values = dates.to_numpy()
    right = ~np.isnat(values)
    low, high = (np.datetime64(text).astype(values.dtype) for text in ("1678-01-01", "2262-01-01"))
    right &= (values >= low) & (values < high)
    return np.where(right, values, np.datetime64(0, "ns")).astype("datetime64[ns]").astype(np.int64), right


def exact(column: pd.Series, times: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The same times, selected rows exact where all of these are whole numbers and only others made doubles."""
    if times.dtype.kind != "f" or chosen.all() or not chosen.any() or pd.api.types.is_float_dtype(column.dtype):
        return times
    numbers, fits = _numbers(pd.to_numeric(_plain(column[chosen]), errors="coerce"))
    if numbers.dtype.kind != "i" or not fits.all():
        return times
    whole = np.zeros(len(times), dtype=np.int64)
    whole[chosen] = numbers
    return whole
