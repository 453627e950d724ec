"""The users of the city: preferences, and numbers and times of purchases."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np

from minionerec.contrib.city.sizes import AISLE, BANDS, BRANDS, DAY, DEPARTMENT, FEWEST, MOST_TIMES, RETURNS, SHELF
from minionerec.contrib.city.world import BEGAN, World, generator, power_law, spread, world_of

BLOCK, BLOCK_CHOICES = 8192, 1 << 19
"""Largest number of users of a block, and of its purchases on average."""
SESSION = 1800
"""Maximum seconds between two purchases of one session."""
FAVOURITES = power_law(SHELF, 1.0, 2.0)
"""float64 (20,): probability of each style to be a user's first favourite; the second is uniform among the others."""

BRAND_SETS = tuple(brands for size in (1, 2, 3) for brands in combinations(range(BRANDS), size))
"""What a user's favourite brands may be: one to three."""
TASTES = BANDS * len(BRAND_SETS)
"""Number of tastes, H. A taste is a price band and favourite brands, numbered as band times brand sets plus set."""
TASTE_CHANCES = np.tile([1 / sum(len(other) == len(brands) for other in BRAND_SETS) for brands in BRAND_SETS], BANDS)
"""float64 (H,): probability of each taste, equal for the bands, the numbers of brands, and the sets of one number."""
TASTE_CHANCES /= TASTE_CHANCES.sum()

_LIKES, _INTERACTIONS, _TASTES = 0, 1, 3  # streams of a block; 2, 4, 5 and 6 draw purchases and views
_BETWEEN = 3600.0
_PAUSE, _SHORTEST, _LONGEST = 120.0, 15.0, 1500.0
_STAY_LEAST, _STAY_MOST = 0.1, 0.6


@dataclass(frozen=True)
class Columns:
    """What price, brand and weekday change in a city with columns, each by a factor of at least 1.

    Attributes:
        price_factor: Of the weight of items in the user's price band.
        brand_factor: Of the weight of items of the user's favourite brands.
        weekend_factor: Of the weight of leisure shelves on Saturdays and Sundays.
    """

    price_factor: float
    brand_factor: float
    weekend_factor: float

    @cached_property
    def factors(self) -> np.ndarray:
        """Factor of each class of items (`World.classes`) for each taste: float64 (24, H)."""
        band, brand = np.divmod(np.arange(BANDS * BRANDS)[:, None], BRANDS)
        liked_band, brands = np.divmod(np.arange(TASTES), len(BRAND_SETS))
        liked = np.array([[brand in some for brand in range(BRANDS)] for some in BRAND_SETS])  # (sets, 8)
        in_band = np.where(band == liked_band, self.price_factor, 1.0)
        factors: np.ndarray = in_band * np.where(liked[brands, brand], self.brand_factor, 1.0)
        return factors


@dataclass(frozen=True)
class People:
    """The number of users and of their purchases, in a world.

    Attributes:
        world: The city.
        users: Number of users.
        mean: Purchases of a user, on average.
        returns: Share of a user's purchases, except the first, that begin a session.
        memory: Last items of a user that are not bought again; at most 19.
        columns: The factors of price, brand and weekday; None for a city without columns.
    """

    world: World
    users: int
    mean: int
    returns: float = RETURNS
    memory: int = 0
    columns: Columns | None = None

    @property
    def all_there(self) -> bool:
        """Whether every item is sold at every time."""
        return not self.world.late and not self.memory

    @cached_property
    def block(self) -> int:
        """Users of a block: fewer where each buys more, so that a block's size in memory is bounded."""
        return max(1, min(BLOCK, BLOCK_CHOICES // self.mean))

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.users // self.block)

    def size(self, block: int) -> int:
        """Users of one block."""
        return min(self.block, self.users - block * self.block)

    @property
    def most(self) -> int:
        """Largest number of purchases of one user."""
        return MOST_TIMES * self.mean


@lru_cache(maxsize=512)
def likes_of(people: People, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The preferences of the users of a block, their only state besides the last purchases.

    A process caches the last blocks.

    Returns:
        int32 (U, 4), liked shelves in order of preference, possibly with repeats; and int8 (U, 2), the two favourite
        styles.
    """
    world, n = people.world, people.size(block)
    rng = generator(world.seed, block, _LIKES)
    chances = rng.random((7, n))
    always = np.zeros(n, dtype=np.int64)  # home shelves are drawn by sales in the first epoch
    home = world.fashionable(chances[0], always)
    near = spread(home, AISLE, world.shelves, chances[1])
    around = spread(home, DEPARTMENT, world.shelves, chances[2])
    far = world.fashionable(chances[3], always)
    first = np.searchsorted(np.cumsum(FAVOURITES)[:-1], chances[4], side="right")
    second = (first + 1 + (chances[5] * (SHELF - 1)).astype(np.int64)) % SHELF
    shelves = np.stack([home, near, around, far], axis=1).astype(np.int32)
    return shelves, np.stack([first, second], axis=1).astype(np.int8)


def tastes_of(people: People, block: int) -> np.ndarray:
    """The taste of each user of a block of a city with columns: int64 (U,), from 0 to H - 1."""
    rng = generator(people.world.seed, block, _TASTES)
    tastes: np.ndarray = rng.choice(TASTES, people.size(block), p=TASTE_CHANCES)
    return tastes


def interactions_of(people: People, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times of the purchases of the users of a block.

    The number of purchases follows a gamma distribution of shape 2 around the mean. A user is active during a part of
    the city's days, in sessions that begin at random times, at least an hour after the previous session.

    Returns:
        Number of purchases of each user, int64 (U,); and for all M purchases, by user and time, seconds since 1970 and
        seconds since the user's previous purchase (-1 for the first), both int64 (M,).
    """
    world, n = people.world, people.size(block)
    rng = generator(world.seed, block, _INTERACTIONS)
    chances = 1 - rng.random((2, n))
    amount = FEWEST + (people.mean - FEWEST) * -0.5 * np.log(chances[0] * chances[1])
    counts = np.clip(np.rint(amount), FEWEST, people.most).astype(np.int64)
    ends = np.cumsum(counts)
    firsts, lasts = ends - counts, ends - 1
    total = int(ends[-1])
    begins = rng.random(total) < people.returns
    begins[firsts] = True
    within = np.minimum(_SHORTEST - _PAUSE * np.log(1 - rng.random(total)), _LONGEST)
    steps = np.where(begins, _BETWEEN, within)
    steps[firsts] = 0.0
    taken = _restarted(np.cumsum(steps), firsts, counts)
    waits = np.where(begins, -np.log(1 - rng.random(total)), 0.0)
    waits = _restarted(np.cumsum(waits), firsts, counts, inclusive=True)
    share, position, last_wait = rng.random((3, n))
    window = DAY * world.days
    length = np.maximum((_STAY_LEAST + (_STAY_MOST - _STAY_LEAST) * share) * window, taken[lasts])
    start = position * (window - length)
    scale = (length - taken[lasts]) / (waits[lasts] - np.log(1 - last_wait))
    times = BEGAN + (np.repeat(start, counts) + taken + waits * np.repeat(scale, counts)).astype(np.int64)
    pauses = np.empty_like(times)
    pauses[1:] = times[1:] - times[:-1]
    pauses[firsts] = -1
    return counts, times, pauses


def _restarted(sums: np.ndarray, firsts: np.ndarray, counts: np.ndarray, *, inclusive: bool = False) -> np.ndarray:
    """Running sums that restart with each user, from 0 or, if `inclusive`, from the first purchase's value."""
    before = np.where(firsts > 0, sums[firsts - 1], 0.0) if inclusive else sums[firsts]
    restarted: np.ndarray = sums - np.repeat(before, counts)
    return restarted


def people_of(
    items: int,
    users: int,
    mean: int,
    days: int,
    epoch_days: int,
    seed: int,
    late: float = 0.0,
    returns: float = RETURNS,
    memory: int = 0,
    *,
    columns: Columns | None = None,
) -> People:
    """The users of some settings."""
    return People(world_of(items, days, epoch_days, seed, late), users, mean, returns, memory, columns)
