"""Times of a column: numbers or dates, comparable, and all of one unit."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from minionerec.core.cells import texts_of
from minionerec.core.errors import DataError, shown
from minionerec.data.names import TIME_UNITS
from minionerec.data.source import BadRows
from minionerec.data.units import (
    BEYOND,
    NANOSECOND,
    SECOND,
    SMALL,
    UNITS,
    are_digits_of_dates,
    looks_like,
    unit_numbers,
)

_LIMIT = 2**63 - 1
_FIRST, _AFTER = (int(np.datetime64(year, "s").astype(np.int64)) for year in ("1678", "2262"))
"""Seconds since 1970 of the dates that 64 bits of nanoseconds hold, rounded to whole years."""
_NUMBER = "a number from -2**63 to 2**63"
_DATES = "a date from 1678 to 2261"
_DATE = "an ISO date from 1678 to 2261, such as 2018-11-05 or 2018-11-05T12:30:00"


class TimeColumn:
    """Reads times that can be compared, part by part: numbers as they are, dates as nanoseconds since 1970 (UTC).

    The first row that is either decides: a number requires numbers everywhere, else ISO dates (2018-11-05,
    2018-11-05T12:30:00Z); without a zone they are taken as UTC. The unit of numbers is one for the whole column.

    Args:
        bad: Counts rows that hold no time, or one that no 64-bit number can hold.
        time_unit: Unit of numbers, a key of `TIME_UNITS`; by their magnitude if None.
        remedy: What else to do where it does not follow from the magnitude.
    """

    def __init__(self, bad: BadRows, time_unit: str | None = None, remedy: str = "") -> None:
        self._bad, self._unit, self._remedy = bad, time_unit, remedy
        self._kind: int | None = None  # SECOND for numbers, NANOSECOND for dates
        self._name, self._dates = "", True
        self._ends: list[tuple[float, str, str]] = []  # least and greatest number, its text and its position

    def read(self, column: pd.Series, location: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
        """Read the times of a part.

        Args:
            column: Numbers, dates, or text of either.
            location: Gives the position, for messages, of the row of an index value.

        Returns:
            int64 or float64 (rows,); bool (rows,), which are times.

        Raises:
            DataError: Naming the first row without a time, if `bad` does not allow it.
        """
        times, right, kind, expected = parse_times(column, self._kind)
        self._name = str(column.name)
        if kind == SECOND and self._unit is not None:
            ticks = TIME_UNITS[self._unit]
            right = right & (times >= _FIRST * ticks) & (times / ticks < _AFTER)
            expected = f"a number that is a time from 1678 to 2261 in {self._unit}"
        if not right.all():
            row, n = int(np.flatnonzero(~right)[0]), int((~right).sum())
            self._bad.add(
                "bad_time",
                f"{location(int(column.index[row]))}, column {self._name!r}: {shown(str(column.iloc[row]))} is not "
                f"{expected} ({n} such rows). Correct or drop them.",
                n,
            )
        if right.any():
            self._kind = kind
            times = _exact(column, times, right)
            if kind == SECOND and self._unit is None:
                self._note_ends(column, times, np.flatnonzero(right), location)
        return times, right

    def _note_ends(
        self, column: pd.Series, times: np.ndarray, rows: np.ndarray, location: Callable[[int], str]
    ) -> None:
        numbers = times[rows]
        self._dates = self._dates and are_digits_of_dates(numbers)
        for row in rows[[int(numbers.argmin()), int(numbers.argmax())]].tolist():
            self._ends.append((float(times[row]), str(column.iloc[row]), location(int(column.index[row]))))
        self._ends = [chosen(self._ends, key=lambda end: end[0]) for chosen in (min, max)]

    def ticks(self) -> int | None:
        """Ticks in a second, once all parts are read; None where numbers are too small to be times since 1973.

        Raises:
            DataError: If the unit of numbers is not given and does not follow from their magnitude.
        """
        if self._kind != SECOND:
            return self._kind or NANOSECOND
        if self._unit is not None:
            return TIME_UNITS[self._unit]
        (least, text, where), (most, other, there) = self._ends
        first, last = unit_numbers(np.array([least, most])).tolist()
        if first != last:
            reason = f"looks like {looks_like(least)}, but {shown(other)} ({there}) like {looks_like(most)}"
        elif first == BEYOND:
            reason = "is no time from 1973 to 2100 in seconds, milli-, micro- or nanoseconds"
        elif first != SMALL and self._dates:
            reason = f"looks like {looks_like(least)}, but may be the digits of a date, as all rows"
        else:
            return None if first == SMALL else UNITS[first][1]
        raise DataError(
            f"{where}, column {self._name!r}: {shown(text)} {reason}. Write all times as 2018-01-31T12:30:00 or as "
            f"numbers of one unit since 1970{self._remedy}."
        )


def read_times(column: pd.Series, location: Callable[[int], str], bad: BadRows) -> tuple[np.ndarray, np.ndarray, int]:
    """Read the times of a whole column, see `TimeColumn`.

    Returns:
        int64 or float64 (rows,), in one unit; bool (rows,), which are times; ticks in a second, 1 for an order.

    Raises:
        DataError: As `TimeColumn`.
    """
    reader = TimeColumn(bad)
    times, right = reader.read(column, location)
    return times, right, reader.ticks() or SECOND


def parse_times(column: pd.Series, ticks: int | None = None) -> tuple[np.ndarray, np.ndarray, int, str]:
    """Parse the times of a column, see `TimeColumn`.

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


def _exact(column: pd.Series, times: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The same times, selected rows exact where all of these are whole numbers and only others made doubles."""
    if times.dtype.kind != "f" or chosen.all() or not chosen.any() or pd.api.types.is_float_dtype(column.dtype):
        return times
    numbers, fits = _numbers(pd.to_numeric(_plain(column[chosen]), errors="coerce"))
    if numbers.dtype.kind != "i" or not fits.all():
        return times
    whole = np.zeros(len(times), dtype=np.int64)
    whole[chosen] = numbers
    return whole
