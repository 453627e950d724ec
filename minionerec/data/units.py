"""Units of times that are numbers, and which one a number looks like."""

import numpy as np

from minionerec.core.errors import DataError

SECOND, NANOSECOND = 1, 10**9
"""Ticks of a time in a second."""
UNITS = (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9))
"""Unit → its ticks in a second."""
_FROM, _STEP = 1e8, 1e3
_LATEST = 4_102_444_800.0
"""Seconds from 1970 to 2100."""


def unit_numbers(times: np.ndarray) -> np.ndarray:
    """The place in `UNITS` of the unit that each number looks like: int64 (M,).

    From 1973 on times of the four units lie in ranges of their own: seconds from 1e8 to 1e11, milliseconds to 1e14,
    microseconds to 1e17. Smaller numbers, which may be days or a mere order, get -1.

    Example:
        >>> unit_numbers(np.array([5, 1_500_000_000, 1_500_000_000_000])).tolist()
        [-1, 0, 1]
    """
    found: np.ndarray = np.searchsorted(unit_borders(), np.asarray(times, float), "right") - 1
    return found


def unit_borders() -> list[float]:
    """The smallest number that looks like each of `UNITS`."""
    return [_FROM * _STEP**unit for unit in range(len(UNITS))]


def check_unit(times: np.ndarray, ticks: int, where: str) -> None:
    """Check, before a window is laid over times, that they can be of the unit that they are taken for.

    Args:
        times: int64 or float64 (M,), in ticks since 1970.
        ticks: Ticks in a second.
        where: What to call them in messages.

    Raises:
        DataError: If the middle one lies before 1971 or behind 2100, and would not in another unit, which is named.
    """
    if len(times):
        check_middle(float(np.median(times)), ticks, where)


def check_middle(middle: float, ticks: int, where: str) -> None:
    """The same of the middle time alone."""
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
            f"{middle:.0f}. start and end mean moments: write the times as ISO dates or in {taken}, or leave both out."
        )
