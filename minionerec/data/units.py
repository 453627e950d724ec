"""Units of numeric times, and which one a number looks like."""

from collections.abc import Mapping

import numpy as np

from minionerec.core.errors import DataError

SECOND, NANOSECOND = 1, 10**9
"""Ticks of a time in a second."""
UNITS = (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9))
"""Unit → its ticks in a second."""
SMALL, BEYOND = -1, -2
"""Values for numbers without a unit: too small for one, or after 2100 in that of their size."""
_FROM, _STEP = 1e8, 1e3
_LATEST = 4_102_444_800.0
"""Seconds from 1970 to 2100."""
_TWO = (("mm", 1, 12), ("dd", 1, 31), ("HH", 0, 23), ("MM", 0, 59), ("SS", 0, 60))
_YEARS = (("yyyy", 1970, 2100), ("yy", 0, 99))
DATE_FORMS = {
    year[0] + "".join(name for name, _, _ in _TWO[:fields]): (year, *_TWO[:fields])
    for year in _YEARS
    for fields in (2, 3, 4, 5)
    if (year[0] == "yyyy") or fields > 3
}
"""Digits of dates that a number may show, such as yyyymmddHHMM: name, least and most of each field."""


def unit_numbers(times: np.ndarray) -> np.ndarray:
    """The index in `UNITS` of the unit that each number looks like, or `SMALL` or `BEYOND`: int64 (M,).

    From 1973 to 2100 times of the four units lie in ranges of their own: seconds from 1e8 to 4.1e9, milliseconds from
    1e11 to 4.1e12, and so on. Smaller numbers, which may be days or a mere order, are `SMALL`; numbers in between,
    such as the digits of a date, is `BEYOND`.

    Example:
        >>> unit_numbers(np.array([5, 1_500_000_000, 1_500_000_000_000, 20_180_101_123_000])).tolist()
        [-1, 0, 1, -2]
    """
    times = np.asarray(times, float)
    starts = _FROM * _STEP ** np.arange(len(UNITS))
    ends = _LATEST * np.array([ticks for _, ticks in UNITS])
    found: np.ndarray = np.searchsorted(starts, times, "right") - 1
    return np.where((found >= 0) & (times > ends[found]), BEYOND, found)


def mixed_units(counts: Mapping[int, int], largest_small: float, least_other: float) -> tuple[int, set[int]]:
    """The unit that most numbers of a column look like, and those of which the others must be a mistake.

    Numbers that run on through 1e8 without a gap, as times from 1972 to 1974 do, are of one unit.

    Args:
        counts: Unit, or `SMALL` or `BEYOND` → how many, of those present.
        largest_small: The largest of the numbers that are `SMALL`.
        least_other: The smallest of the others.

    Example:
        >>> mixed_units({SMALL: 3, 0: 9}, 17_500.0, 1.5e9), mixed_units({SMALL: 3, 0: 9}, 9.9e7, 1.1e8)
        ((0, {-1}), (0, set()))
    """
    usual = max(counts, key=lambda unit: (counts[unit], unit >= 0, -unit))
    others = set(counts) - {usual}
    if {SMALL, 0} <= set(counts) and 2 * largest_small >= least_other and usual in (SMALL, 0):
        return max(usual, 0), others - {SMALL, 0}
    return usual, others


def looks_like(number: float) -> str:
    """The likely unit of a number, in words, for messages.

    Example:
        >>> looks_like(17_500), looks_like(20_180_101_123_000), looks_like(1_500_000_000_000)
        ('days since 1970', 'a date written as yyyymmddHHMMSS', 'milliseconds since 1970')
    """
    unit = int(unit_numbers(np.array(number)))
    if unit >= 0:
        return f"{UNITS[unit][0]} since 1970"
    if (form := date_form(np.array([number]))) is not None:
        return f"a date written as {form}"
    if unit == BEYOND:
        return "a time after 2100"
    for name, least, most in (("days", 1e3, 5e4), ("hours", 5e4, 1.2e6), ("minutes", 1.5e6, 6e7)):
        if least <= number <= most:
            return f"{name} since 1970"
    return "no time since 1973"


def date_form(times: np.ndarray) -> str | None:
    """The form of `DATE_FORMS` that the first number has, where all have one; None where not, or of no number.

    Args:
        times: int64 or float64 (M,).
    """
    form = next((form for form in DATE_FORMS if has_form(times[:1], form).any()), None)
    if form is None or not np.any([has_form(times, each) for each in DATE_FORMS], axis=0).all():
        return None
    return form


def has_form(times: np.ndarray, form: str) -> np.ndarray:
    """Which numbers have the digits of a form of `DATE_FORMS`: bool (M,)."""
    rest = times.astype(np.int64)
    found: np.ndarray = (rest == times) & (rest > 0)
    for _, least, most in reversed(DATE_FORMS[form][1:]):
        rest, part = np.divmod(rest, 100)
        found &= (part >= least) & (part <= most)
    _, least, most = DATE_FORMS[form][0]
    found &= (rest >= least) & (rest <= most)
    return found


def check_middle(middle: float, ticks: int, where: str) -> None:
    """Check, before a time window is applied, that times can be of the assumed unit.

    Args:
        middle: The median of the times, in ticks since 1970.
        ticks: Ticks in a second.
        where: The name of the interactions in messages.

    Raises:
        DataError: If it lies before 1971 or after 2100, and would not in another unit, which is named.
    """
    seconds = middle / ticks
    if 365 * 86_400 <= seconds <= _LATEST or (ticks == NANOSECOND and abs(seconds) <= 2.0**33):
        return
    taken = next(name for name, each in UNITS if each == ticks)
    likely = [name for name, each in UNITS if each != ticks and 365 * 86_400 <= middle / each <= _LATEST]
    if 1_000 <= middle <= 50_000:
        likely = ["days"]
    if likely:
        raise DataError(
            f"{where}: the times are taken for {taken} since 1970, but they look like {likely[0]}: the middle one is "
            f"{middle:.0f}. start and end are points in time: write the times as ISO dates or in {taken}, "
            "or leave both out."
        )
