"""The city without its users: shelves, complementary shelves, appeal, and how it drifts."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from minionerec.contrib.city.sizes import AISLE, BANDS, BRANDS, DAY, DEPARTMENT, LEISURE, SHELF

YEAR = 365
"""Days after which seasons repeat."""
BEGAN = 1_704_067_200
"""When the city opens, seconds since 1970: a Monday."""
WEEK = 7
"""Days of a week, of which the last two are the weekend."""

_WORLD_STREAM = (1 << 64) - 1
_SHELF_POWER, _SHELF_OFFSET = 0.8, 2.0
_SEASON = 0.6
_CHEAPEST, _BAND_WIDTH = 5.0, 3.0  # lowest price of the lowest band, and the ratio of a band's limits


def generator(seed: int, block: int, stream: int) -> np.random.Generator:
    """Random numbers of one block of users (or of the world) for one purpose.

    Args:
        seed: Seed of the city.
        block: Number of the block.
        stream: Number of the purpose; streams of a block never meet, as the counter's highest word differs.
    """
    key = np.array([seed, block], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], dtype=np.uint64)))


def power_law(positions: int, power: float, offset: float) -> np.ndarray:
    """Shares that fall as (rank + offset) to a negative power, ranks from 0: float64 (ranks,), summing to one."""
    weights: np.ndarray = (np.arange(positions) + offset) ** -power
    weights /= weights.sum()
    return weights


RANK_SHARES = power_law(SHELF, 1.0, 2.0)
"""float64 (SHELF,): share of each rank in a shelf's sales, apart from favourite styles."""


@dataclass(frozen=True)
class World:
    """The city without its users.

    Items are numbered twice: by *position* (shelf times 20 plus style, the order of the tree) and by *row* (the order
    of the items table, drawn by chance so that it carries no information).

    Attributes:
        items: Number of items, a multiple of 20.
        days: Days that the city is open.
        epoch_days: Days of an epoch; sales change from epoch to epoch.
        seed: Seed of everything.
        late: Share of the items, among those that become best sellers while the city is open, that are not sold before.
    """

    items: int
    days: int
    epoch_days: int
    seed: int
    late: float = 0.0

    @property
    def shelves(self) -> int:
        """Number of shelves, S."""
        return self.items // SHELF

    @property
    def epochs(self) -> int:
        """Number of epochs, E."""
        return -(-self.days // self.epoch_days)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Rows of the items table of positions, int32 of the same shape."""
        rows: np.ndarray = self._scatter[positions]
        return rows

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Positions of rows of the items table, int64 of the same shape."""
        positions: np.ndarray = self._gather[rows].astype(np.int64)
        return positions

    @cached_property
    def _scatter(self) -> np.ndarray:
        return generator(self.seed, _WORLD_STREAM, 1).permutation(self.items).astype(np.int32)

    @cached_property
    def _gather(self) -> np.ndarray:
        positions = np.empty(self.items, dtype=np.int32)
        positions[self._scatter] = np.arange(self.items, dtype=np.int32)
        return positions

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        """The static random draws: base appeal, phase and first rank of each shelf, and what goes with it."""
        rng, n = generator(self.seed, _WORLD_STREAM, 0), self.shelves
        appeal = power_law(n, _SHELF_POWER, _SHELF_OFFSET)[rng.permutation(n)]
        phase, turn = rng.random(n), rng.integers(0, SHELF, n)
        department, anywhere = spread(np.arange(n), DEPARTMENT, n, rng.random(n)), rng.integers(0, n, n)
        begin, size = around(np.arange(n), AISLE, n)
        following = begin + (np.arange(n) - begin + 1) % size
        return {
            "appeal": appeal,
            "phase": phase,
            "turn": turn.astype(np.int8),
            "partners": np.stack([following, department, anywhere], axis=1).astype(np.int32),
        }

    @property
    def partners(self) -> np.ndarray:
        """int32 (S, 3): the shelves that go with each, the likeliest first; two of them may be the same."""
        return self._drawn["partners"]

    def appeal(self, epoch: int) -> np.ndarray:
        """Appeal of each shelf in an epoch: float64 (S,), summing to one."""
        season = np.sin(2 * np.pi * (epoch * self.epoch_days / YEAR + self._drawn["phase"]))
        weights: np.ndarray = self._drawn["appeal"] * (1 + _SEASON * season)
        weights /= weights.sum()
        return weights

    @cached_property
    def _sums(self) -> np.ndarray:
        """Cumulative appeals of all epochs in one ascending array, float64 (E * S,): epoch e is in (e, e + 1]."""
        sums = np.empty((self.epochs, self.shelves))
        for epoch in range(self.epochs):
            np.cumsum(self.appeal(epoch), out=sums[epoch])
            sums[epoch] *= 1 / sums[epoch, -1]
            sums[epoch] += epoch
        return sums.reshape(-1)

    def fashionable(self, chances: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Shelves by their appeal.

        Args:
            chances: float64 (M,), uniform in [0, 1).
            epochs: int (M,).

        Returns:
            int32 (M,).
        """
        shelves = np.searchsorted(self._sums, epochs + chances, side="right") - epochs * self.shelves
        clipped: np.ndarray = np.clip(shelves, 0, self.shelves - 1)  # a sum may round up into the next epoch
        return clipped.astype(np.int32)

    def ranks(self, shelves: np.ndarray, styles: np.ndarray, epochs: np.ndarray | int) -> np.ndarray:
        """Rank on its shelf of each item, from 0, in an epoch: int64, shapes broadcast."""
        ranks: np.ndarray = (styles + self._drawn["turn"][shelves] + np.asarray(epochs, dtype=np.int64)) % SHELF
        return ranks

    def styles_of_ranks(self, shelves: np.ndarray, ranks: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """The inverse of `ranks`: the style of each rank."""
        styles: np.ndarray = (ranks - self._drawn["turn"][shelves] - np.asarray(epochs, dtype=np.int64)) % SHELF
        return styles

    @cached_property
    def begins(self) -> np.ndarray:
        """Epoch from which each item is sold, by shelf and style: int64 (S, 20).

        An item that is introduced later starts as the best seller of its shelf. One item of each shelf is always sold.
        """
        turn = self._drawn["turn"].astype(np.int64)
        best = -(np.arange(SHELF) + turn[:, None]) % SHELF  # the epoch in which it is the best seller
        late = generator(self.seed, _WORLD_STREAM, 2).random((self.shelves, SHELF)) < self.late
        begins: np.ndarray = np.where(late & (best < self.epochs), best, 0)
        return begins

    def there(self, shelves: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Whether each style of shelves is sold in epochs, with broadcast shapes: bool (…, 20)."""
        sold: np.ndarray = self.begins[shelves] <= np.asarray(epochs)[..., None]
        return sold

    @cached_property
    def classes(self) -> np.ndarray:
        """Price band and brand of each item, by shelf and style: int64 (S, 20), the band times 8 plus the brand."""
        shape = (self.shelves, SHELF)
        classes: np.ndarray = generator(self.seed, _WORLD_STREAM, 3).integers(0, BANDS * BRANDS, shape)
        return classes

    @cached_property
    def prices(self) -> np.ndarray:
        """Price of each item, by shelf and style: float64 (S, 20), from 5 to 15, 15 to 45 or 45 to 135 by its band."""
        exponents = self.classes // BRANDS + generator(self.seed, _WORLD_STREAM, 4).random(self.classes.shape)
        prices: np.ndarray = np.floor(_CHEAPEST * _BAND_WIDTH**exponents) + 0.9
        return prices

    @cached_property
    def leisure(self) -> np.ndarray:
        """Whether each shelf is visited more at weekends: bool (S,)."""
        leisure: np.ndarray = np.isin(np.arange(self.shelves) // AISLE % (DEPARTMENT // AISLE), LEISURE)
        return leisure

    def epoch_of(self, times: np.ndarray) -> np.ndarray:
        """Epoch of times in seconds since 1970, from 0: int64; times outside count for the nearest."""
        epochs: np.ndarray = (np.asarray(times, dtype=np.int64) - BEGAN) // (self.epoch_days * DAY)
        clipped: np.ndarray = np.clip(epochs, 0, self.epochs - 1)
        return clipped


def is_weekend(times: np.ndarray, shift: int = 0) -> np.ndarray:
    """Whether times are on a Saturday or Sunday: bool of the same shape.

    Args:
        times: Seconds since 1970.
        shift: Days by which the calendar is moved: with 1 the city opens on a Tuesday.
    """
    weekend: np.ndarray = ((np.asarray(times, dtype=np.int64) - BEGAN) // DAY + shift) % WEEK >= WEEK - 2
    return weekend


def around(shelves: np.ndarray, width: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """First shelf, and number of shelves, of the aisle (or department) of each shelf; the last may have fewer.

    Args:
        shelves: int (M,).
        width: Shelves of an aisle (or department).
        n: Number of all shelves.
    """
    begin = shelves // width * width
    return begin, np.minimum(width, n - begin)


def spread(shelves: np.ndarray, width: int, n: int, chances: np.ndarray) -> np.ndarray:
    """Sample a uniform shelf of the same aisle (or department): int64 (M,).

    Args:
        shelves: int (M,).
        width: Shelves of an aisle (or department).
        n: Number of all shelves.
        chances: float64 (M,), uniform in [0, 1).
    """
    begin, size = around(shelves, width, n)
    picked: np.ndarray = begin + (chances * size).astype(np.int64)
    return picked


def taken_instead(there: np.ndarray) -> np.ndarray:
    """The style that is bought for each drawn style: the same, or cyclically the next one that is sold.

    Args:
        there: bool (…, 20), at least one of each shelf.

    Returns:
        int64 (…, 20).
    """
    twice = np.concatenate([there, there], axis=-1)
    following = np.where(twice, np.arange(2 * SHELF), 2 * SHELF)
    taken: np.ndarray = np.minimum.accumulate(following[..., ::-1], axis=-1)[..., ::-1][..., :SHELF] % SHELF
    return taken


def as_taken(chances: np.ndarray, there: np.ndarray | None) -> np.ndarray:
    """Convert probabilities of drawn styles to probabilities of bought styles: float64 (…, 20).

    Args:
        chances: float64 (…, 20).
        there: bool (…, 20), the styles sold, at least one of each shelf; None for all.
    """
    if there is None:
        return chances
    taken, bought = np.broadcast_to(taken_instead(there), chances.shape), np.zeros_like(chances)
    for style in range(SHELF):
        bought += np.where(taken[..., style, None] == np.arange(SHELF), chances[..., style, None], 0.0)
    return bought


@lru_cache(maxsize=2)
def world_of(items: int, days: int, epoch_days: int, seed: int, late: float = 0.0) -> World:
    """The world of some settings; a process keeps the last two."""
    return World(items, days, epoch_days, seed, late)
