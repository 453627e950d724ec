"""Filters of interactions and items: pure functions of arrays and text."""

from datetime import UTC, datetime

import numpy as np

from minionerec.core.errors import ConfigError


def parse_time(text: str) -> float:
    """Seconds since 1970 of an ISO month, date or time: the first second of it, in UTC where it names no zone.

    Raises:
        ConfigError: If it is neither.

    Example:
        >>> parse_time("2016-10"), parse_time("2016-10-01T02:00:00+02:00")
        (1475280000.0, 1475280000.0)
    """
    try:
        time = datetime.fromisoformat(f"{text}-01" if len(text) == len("2016-10") else text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time; give an ISO month, date or time such as 2016-10-01.") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def year_before(seconds: float) -> float:
    """The same time one calendar year earlier, in UTC (28 February for the 29th)."""
    time = datetime.fromtimestamp(seconds, UTC)
    day = 28 if (time.month, time.day) == (2, 29) else time.day
    return time.replace(year=time.year - 1, day=day).timestamp()


def k_core(users: np.ndarray, items: np.ndarray, k: int) -> np.ndarray:
    """The largest set of interactions in which every user and every item has at least k of them.

    Users and items below k are struck out in rounds, both by the counts of the same round, until none is left. The
    result does not depend on the order of the interactions: a union of sets in which each has k is such a set too.

    Args:
        users: int (M,), user of each interaction, numbers from 0.
        items: int (M,), item of each interaction, numbers from 0.
        k: Fewest interactions; repeated ones of one user and item count each. 0 and 1 keep everything.

    Returns:
        int64, ascending: positions of the interactions that stay.

    Example:
        >>> k_core(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 1]), 2).tolist()
        [0, 1, 2, 3]
    """
    kept = np.arange(len(users))
    while len(kept):
        stays = (np.bincount(users) >= k)[users] & (np.bincount(items) >= k)[items]
        if stays.all():
            break
        kept, users, items = kept[stays], users[stays], items[stays]
    return kept
