"""Times of a column: numbers or dates, within what can be compared, and all of one unit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

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
NUMBER = "a number from -2**63 to 2**63"
DATE = "a date from 1678 to 2261"
_DATE = "an ISO date from 1678 to 2261, such as 2018-11-05 or 2018-11-05T12:30:00"


def read_times(
    column: pd.Series, path: Path, place: Callable[[int], str], bad: BadRows
) -> tuple[np.ndarray, np.ndarray, int]:
    """Times that can be compared: numbers as they are, dates as nanoseconds since 1970 (UTC).

    The first row that is either decides: a number asks for numbers everywhere, else ISO dates (2018-11-05,
    2018-11-05T12:30:00Z); without a zone they are taken as UTC.

    Args:
        column: Numbers, dates, or text of either.
        path: The file, for messages.
        place: Says where a person finds the row of an index value of the column.
        bad: Counts rows that hold no time, one that no 64-bit number can hold, or a number of another unit (such as
            milliseconds, or days) than most.

    Returns:
        int64 or float64 (rows,), in one unit; bool (rows,), which are times; ticks in a second, taking numbers for
        seconds.

    Raises:
        DataError: Naming the first bad row, if `bad` does not allow it; or the first row, if most numbers are the
            digits of dates, or lie after 2100 in the unit of their size.
    """
    times, right, ticks = read_times_of_part(column, place, bad)
    if ticks == SECOND:
        right = right & ~_of_another_unit(column, times, right, place, bad)
        if times.dtype.kind == "f" and right.any() and not right.all():
            times = _whole_where_possible(column, times, right)
    return times, right, NANOSECOND if ticks is None else ticks


def read_times_of_part(
    column: pd.Series, place: Callable[[int], str], bad: BadRows, ticks: int | None = None
) -> tuple[np.ndarray, np.ndarray, int | None]:
    """The same of a part of a column, which cannot tell what unit most numbers are of: that is not looked at.

    Args:
        column: As in `read_times`.
        place: As in `read_times`.
        bad: As in `read_times`.
        ticks: What the parts before gave; None where there are none, or none says.

    Returns:
        As `read_times`; ticks are None where no row of this part or of those before says.
    """
    times, right, found, expected = _parsed(column, ticks)
    if not right.all():
        row, n = int(np.flatnonzero(~right)[0]), int((~right).sum())
        refuse_time(place(int(column.index[row])), column, row, expected, n, bad)
    if times.dtype.kind == "f" and right.any() and not right.all():
        times = _whole_where_possible(column, times, right)
    return times, right, found if right.any() else ticks


def refuse_time(place: str, column: pd.Series, row: int, expected: str, n: int, bad: BadRows) -> None:
    """Count n rows that hold no time; `row` of a column is the first of them."""
    bad.add(
        "bad_time",
        f"{place}, column {column.name!r}: {shown(str(column.iloc[row]))} is not {expected} ({n} such rows). Mend or "
        "drop them.",
        n,
    )


def refuse_unit(place: str, column: pd.Series, row: int, usual: int, n: int, bad: BadRows) -> None:
    """Count n rows of another unit than most; `row` of a column is the first of them."""
    most, value = _OTHERS.get(usual) or UNITS[usual][0], column.iloc[row]
    bad.add(
        "bad_time",
        f"{place}, column {column.name!r}: {shown(str(value))} looks like {looks_like(float(value))}, but "
        f"most rows like {most} ({n} such rows). Write all in one unit, or drop them.",
        n,
    )


def all_dates(place: str, column: pd.Series, row: int, form: str | None) -> DataError:
    """What to say of a column whose times are all the digits of dates, or behind 2100; `row` is the first."""
    what = f"a date written as {form}" if form else "a time after 2100 in seconds, milli-, micro- and nanoseconds"
    return DataError(
        f"{place}, column {column.name!r}: {shown(str(column.iloc[row]))} looks like {what}, as most rows do. Write "
        "dates as 2018-01-31T12:30:00, or seconds since 1970."
    )


def _parsed(column: pd.Series, ticks: int | None) -> tuple[np.ndarray, np.ndarray, int, str]:
    """Times, which rows hold one, ticks of a second, and what was expected of the others."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        times, right = _nanoseconds(column)
        return times, right, NANOSECOND, DATE
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        times, right = _numbers(column)
        return times, right, SECOND, NUMBER
    text = _plain(column)
    numbers, is_number = _numbers(pd.to_numeric(text, errors="coerce"))
    if ticks == SECOND:
        return numbers, is_number, SECOND, "a number, as in the rows before"
    if ticks is None and len(text) and is_number[0]:
        return numbers, is_number, SECOND, "a number, as in the first row"
    dates = pd.to_datetime(text.where(text.str.match(r"\d{4}-")), errors="coerce", format="ISO8601", utc=True)
    times, is_date = _nanoseconds(dates)
    if ticks is None and is_number.any() and (not is_date.any() or is_number.argmax() < is_date.argmax()):
        return numbers, is_number, SECOND, "a number"
    return times, is_date, NANOSECOND, _DATE if ticks or (len(text) and is_date[0]) else f"a number or {_DATE}"


def _plain(column: pd.Series) -> pd.Series:
    """Texts without white space around them, "" for what is missing or no scalar."""
    if column.dtype == object:
        column = column.map(lambda value: value if np.isscalar(value) or hasattr(value, "as_tuple") else str(value))
        column = column.map(lambda value: repr(value) if isinstance(value, bytes | bool | np.bool_) else value)
    return column.astype(object).where(column.notna(), "").astype("str").str.strip()


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


def _of_another_unit(
    column: pd.Series, times: np.ndarray, right: np.ndarray, place: Callable[[int], str], bad: BadRows
) -> np.ndarray:
    """Which numbers look like another unit than most: counted as bad."""
    if not right.any():
        return ~right
    units = unit_numbers(times)
    kinds, numbers = np.unique(units[right], return_counts=True)
    small, other = times[right & (units == SMALL)], times[right & (units != SMALL)]
    ends = (float(small.max()), float(other.min())) if len(small) and len(other) else (0.0, 0.0)
    usual, others = mixed_units(dict(zip(kinds.tolist(), numbers.tolist(), strict=True)), *ends)
    strange: np.ndarray = right & np.isin(units, list(others))
    if strange.any():
        row, n = int(np.flatnonzero(strange)[0]), int(strange.sum())
        refuse_unit(place(int(column.index[row])), column, row, usual, n, bad)
    kept = np.flatnonzero(right & ~strange)
    form = None if usual == SMALL else date_form(times[kept])
    if usual == BEYOND or (form is not None and len(np.unique(times[kept])) >= FEWEST):
        row = int(kept[0])
        raise all_dates(place(int(column.index[row])), column, row, form)
    return strange


def _whole_where_possible(column: pd.Series, times: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The same times, whole numbers exact where only a bad row made them floats."""
    exact, fits = _numbers(pd.to_numeric(_plain(column[right]), errors="coerce"))
    if exact.dtype.kind != "i" or not fits.all():
        return times
    whole = np.zeros(len(times), dtype=np.int64)
    whole[right] = exact
    return whole
