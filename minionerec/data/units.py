"""Units of times that are numbers: which one a number looks like by its magnitude."""

import numpy as np

SECOND, NANOSECOND = 1, 10**9
"""Ticks of a time in a second."""
UNITS = (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9))
"""Unit → its ticks in a second."""
SMALL, BEYOND = -1, -2
"""Values for numbers without a unit: too small for one, or after 2100 in that of their size."""
_FROM, _STEP = 1e8, 1e3
_LATEST = 4_102_444_800.0
"""Seconds from 1970 to 2100."""
_DATE = ((1, 12), (1, 31), (0, 23), (0, 59), (0, 60))
"""Least and greatest month, day, hour, minute and second."""
_DATES = ((1970, 2100, 3), (1970, 2100, 4), (0, 99, 4), (0, 99, 5))
"""First year, last year and number of fields after it: yyyymmddHH, yyyymmddHHMM, yymmddHHMM, yymmddHHMMSS."""


def unit_numbers(times: np.ndarray) -> np.ndarray:
    """The index in `UNITS` of the unit that each number looks like, or `SMALL` or `BEYOND`: int64 (M,).

    From 1973 to 2100 times of the four units lie in ranges of their own: seconds from 1e8 to 4.1e9, milliseconds from
    1e11 to 4.1e12, and so on. Smaller numbers, which may be days or a mere order, are `SMALL`; numbers in between,
    such as the digits of a date, are `BEYOND`.

    Example:
        >>> unit_numbers(np.array([5, 1_500_000_000, 1_500_000_000_000, 20_180_101_123_000])).tolist()
        [-1, 0, 1, -2]
    """
    times = np.asarray(times, float)
    starts = _FROM * _STEP ** np.arange(len(UNITS))
    ends = _LATEST * np.array([ticks for _, ticks in UNITS])
    units: np.ndarray = np.searchsorted(starts, times, "right") - 1
    return np.where((units >= 0) & (times > ends[units]), BEYOND, units)


def looks_like(number: float) -> str:
    """The likely unit of a number, in words, for messages.

    Example:
        >>> looks_like(1_500_000_000_000), looks_like(17_500)
        ('milliseconds since 1970', 'no time from 1973 to 2100')
    """
    unit = int(unit_numbers(np.array(number)))
    return f"{UNITS[unit][0]} since 1970" if unit >= 0 else "no time from 1973 to 2100"


def are_digits_of_dates(times: np.ndarray) -> bool:
    """Whether all numbers could be dates written as yyyymmddHH, yyyymmddHHMM, yymmddHHMM or yymmddHHMMSS.

    As seconds or milliseconds such numbers are times too, of other dates. Longer ones are times of no unit, shorter
    ones keep their order.

    Args:
        times: int64 or float64 (M,).

    Example:
        >>> are_digits_of_dates(np.array([2018013107, 2018013123])), are_digits_of_dates(np.array([1_517_382_764]))
        (True, False)
    """
    fit = np.zeros(len(times), dtype=bool)
    for first, last, fields in _DATES:
        rest = times.astype(np.int64)
        fits = rest == times
        for least, most in reversed(_DATE[:fields]):
            rest, part = np.divmod(rest, 100)
            fits &= (part >= least) & (part <= most)
        fit |= fits & (rest >= first) & (rest <= last)
    return bool(fit.all())
