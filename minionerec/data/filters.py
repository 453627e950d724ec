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


def number_by_appearance(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number values from 0 in the order in which they first appear.

    Args:
        codes: int (M,), values from 0.

    Returns:
        int32 (M,) new numbers, and int64 (distinct,) the old value of each new number.

    Example:
        >>> [array.tolist() for array in number_by_appearance(np.array([7, 2, 7, 9]))]
        [[0, 1, 0, 2], [7, 2, 9]]
    """
    first = np.full(int(codes.max(initial=-1)) + 1, len(codes), dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # the earliest position is written last
    old = np.flatnonzero(first < len(codes))
    old = old[np.argsort(first[old], kind="stable")]
    new = np.empty(len(first), dtype=np.int32)
    new[old] = np.arange(len(old))
    return new[codes], old
