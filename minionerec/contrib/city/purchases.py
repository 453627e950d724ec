"""The purchases of the users of a block: all random draws, one array operation for all users at a time."""

from dataclasses import dataclass

import numpy as np

from minionerec.contrib.city.people import SESSION, People, interactions_of, likes_of, tastes_of
from minionerec.contrib.city.sizes import AISLE
from minionerec.contrib.city.world import RANK_SHARES, generator, is_weekend, spread, taken_instead

FOLLOW, STAY, TASTE, FASHION = range(4)
"""The sources of a shelf."""
CONTINUES, BEGINS, FIRST = range(3)
"""The kinds of a purchase: within a session, the first of one, the first of a user."""
SHARES = np.array([[0.50, 0.25, 0.15, 0.10], [0.15, 0.10, 0.55, 0.20], [0.0, 0.0, 0.75, 0.25]])
"""float64 (3, 4): share of each source in each kind of purchase."""
PARTNER_SHARES = np.array([0.6, 0.3, 0.1])
"""Shares of the shelves that go with the newest item's."""
SAME_SHELF = 0.6
"""Share of the same shelf within the source `STAY`; otherwise it is a uniform shelf of the aisle."""
TASTE_SHARES = np.array([0.4, 0.3, 0.2, 0.1])
"""Shares of the shelves that a user likes."""
LOYAL = 0.7
"""Share of favourite styles among all purchases except those of fashion."""
STYLE_SHARES = np.array([0.7, 0.3])
"""Shares of the two favourite styles."""

_PURCHASES, _AGAIN = 2, 4  # streams of a block; see `minionerec.contrib.city.people`


def kinds_of(pauses: np.ndarray) -> np.ndarray:
    """Kind of each purchase (`CONTINUES`, `BEGINS`, `FIRST`) by the seconds since the one before, -1 where none was."""
    return np.where(pauses < 0, FIRST, np.where(pauses <= SESSION, CONTINUES, BEGINS))


def purchases_of(people: People, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the purchases of the users of a block.

    The shelf of a purchase depends on that of the one before, so shelves are drawn purchase by purchase, for all users
    of the block at once; all the rest is drawn for the whole block at once.

    Args:
        people: The city and its users.
        block: Number of the block.

    Returns:
        M purchases, user after user, each in order of time, three times int64 (M,): number of the user in the city, row
        of the items table, seconds since 1970.
    """
    world, (counts, times, pauses) = people.world, interactions_of(people, block)
    order, widths = _by_step(counts)
    persons = np.repeat(np.arange(len(counts)), counts)[order]
    drawing = Drawing.of_block(people, block, persons, times[order], kinds_of(pauses[order]))
    chances = generator(world.seed, block, _PURCHASES).random((5, len(times)))
    again = generator(world.seed, block, _AGAIN)
    shelves, fashion = np.empty(len(times), dtype=np.int64), np.empty(len(times), dtype=bool)
    newest, begin = np.zeros(widths[0], dtype=np.int64), 0
    for width in widths:
        span = slice(begin, begin + width)
        shelves[span], fashion[span] = drawing.take(span).shelves(newest[:width], chances[:3, span], again)
        newest, begin = shelves[span], begin + width
    styles = drawing.styles(shelves, fashion, chances[3:], again)
    if not people.all_there:
        styles = _taken(people, shelves, styles, drawing.epochs, widths)
    positions = np.empty(len(times), dtype=np.int64)
    positions[order] = shelves * len(RANK_SHARES) + styles
    users = block * people.block + np.repeat(np.arange(len(counts)), counts)
    return users, world.rows(positions), times


@dataclass(frozen=True)
class Drawing:
    """R items to draw by the law, and what their shelves and styles depend on, but for the shelf before.

    In a city with columns an item is drawn as in one without, and kept with a probability in proportion to its factor;
    otherwise it is drawn again. First the shelf (with its source) is kept or not, then the style.

    Attributes:
        people: The city and its users.
        liked: int (R, 4), the liked shelves of the users.
        favourites: int (R, 2), their favourite styles.
        tastes: int64 (R,), their tastes; unused zeros without columns.
        epochs: int64 (R,), epochs of the purchases.
        kinds: int64 (R,), kinds of the purchases.
        weekend: bool (R,), whether they are at a weekend.
    """

    people: People
    liked: np.ndarray
    favourites: np.ndarray
    tastes: np.ndarray
    epochs: np.ndarray
    kinds: np.ndarray
    weekend: np.ndarray

    @classmethod
    def of_block(
        cls, people: People, block: int, persons: np.ndarray, times: np.ndarray, kinds: np.ndarray
    ) -> "Drawing":
        """The state of users of a block.

        Args:
            people: The city and its users.
            block: Number of the block.
            persons: int64 (R,), number of the user in the block for each item.
            times: int64 (R,), seconds since 1970.
            kinds: int64 (R,), kinds of the purchases.
        """
        liked, favourites = likes_of(people, block)
        tastes = np.zeros(len(liked), dtype=np.int64) if people.columns is None else tastes_of(people, block)
        epochs = people.world.epoch_of(times)
        return cls(people, liked[persons], favourites[persons], tastes[persons], epochs, kinds, is_weekend(times))

    def take(self, some: slice | np.ndarray) -> "Drawing":
        """The items at some positions."""
        state = (self.liked, self.favourites, self.tastes, self.epochs, self.kinds, self.weekend)
        return Drawing(self.people, *(values[some] for values in state))

    def shelves(
        self, before: np.ndarray, chances: np.ndarray, again: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw a shelf for each item.

        Args:
            before: int64 (R,), the shelf of the newest item; not read for a user's first purchase.
            chances: float64 (3, R), uniform in [0, 1): for the source, which of its shelves, and where in the city.
            again: Random numbers of all further tries.

        Returns:
            The shelves int64 (R,), and whether each is by fashion, bool (R,).
        """
        shelves, source = self._shelves(before, chances)
        if self.people.columns is not None:
            factor, rows = self.people.columns.weekend_factor, np.flatnonzero(self.weekend)
            while len(rows := rows[~self.people.world.leisure[shelves[rows]]]):
                rows = rows[again.random(len(rows)) >= 1 / factor]
                tried = again.random((3, len(rows)))
                shelves[rows], source[rows] = self.take(rows)._shelves(before[rows], tried)
        return shelves, source == FASHION

    def _shelves(self, before: np.ndarray, chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A first try of each shelf, int64 (R,), and its source, int64 (R,)."""
        world, source, which, where = self.people.world, _pick(SHARES, self.kinds, chances[0]), chances[1], chances[2]
        shelves = np.empty(len(source), dtype=np.int64)
        fashion, taste, follow, stay = (source == kind for kind in (FASHION, TASTE, FOLLOW, STAY))
        shelves[fashion] = world.fashionable(where[fashion], self.epochs[fashion])
        shelves[taste] = self.liked[taste, _position(TASTE_SHARES, which[taste])]
        shelves[follow] = world.partners[before[follow], _position(PARTNER_SHARES, which[follow])]
        any_of_aisle = spread(before[stay], AISLE, world.shelves, where[stay])
        shelves[stay] = np.where(which[stay] < SAME_SHELF, before[stay], any_of_aisle)
        return shelves, source

    def styles(
        self, shelves: np.ndarray, fashion: np.ndarray, chances: np.ndarray, again: np.random.Generator
    ) -> np.ndarray:
        """Draw a style for each item.

        Args:
            shelves: int64 (R,), the shelves.
            fashion: bool (R,), whether each is by fashion.
            chances: float64 (2, R), uniform in [0, 1): for whether it is a favourite, and for the rank otherwise.
            again: Random numbers of all further tries.

        Returns:
            int64 (R,), before unavailable items are replaced.
        """
        styles = self._styles(shelves, fashion, chances)
        if self.people.columns is not None:
            factors, rows = self.people.columns.factors, np.arange(len(styles))
            kept = factors / factors.max()
            while len(rows):
                classes = self.people.world.classes[shelves[rows], styles[rows]]
                rows = rows[again.random(len(rows)) >= kept[classes, self.tastes[rows]]]
                tried = again.random((2, len(rows)))
                styles[rows] = self.take(rows)._styles(shelves[rows], fashion[rows], tried)
        return styles

    def _styles(self, shelves: np.ndarray, fashion: np.ndarray, chances: np.ndarray) -> np.ndarray:
        """A first try of each style, int64 (R,): a favourite, or the one of the drawn rank."""
        which, rank = chances
        loyal = (which < LOYAL) & ~fashion
        second = which >= LOYAL * STYLE_SHARES[0]
        favourite = self.favourites[np.arange(len(which)), second.astype(np.int64)]
        return np.where(
            loyal, favourite, self.people.world.styles_of_ranks(shelves, _position(RANK_SHARES, rank), self.epochs)
        )


def _by_step(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order by step: first purchases of all users, then second ones, users with most first.

    Returns:
        Positions of the purchases in that order, int64 (M,); and the number of users with an n-th purchase, for each n,
        int64 (largest number of purchases,).
    """
    ranked = np.argsort(-counts, kind="stable")
    widths = np.cumsum(np.bincount(counts)[::-1])[::-1][1:]
    firsts = (np.cumsum(counts) - counts)[ranked]
    order = np.concatenate([firsts[:width] + step for step, width in enumerate(widths)])
    return order, widths


def _pick(shares: np.ndarray, kinds: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Sample an index from a row of shares by each chance: int64 (M,)."""
    limits = np.cumsum(shares, axis=1)[:, :-1]
    picked = np.zeros(len(chances), dtype=np.int64)
    for column in limits.T:
        picked += chances >= column[kinds]
    return picked


def _position(shares: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Sample a position of some shares by each chance: int64 (M,)."""
    return np.searchsorted(np.cumsum(shares)[:-1], chances, side="right")


def _taken(
    people: People, shelves: np.ndarray, styles: np.ndarray, epochs: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Style that is bought for each drawn style, int64 (M,), in the order of `_by_step`."""
    taken, begin = np.empty(len(shelves), dtype=np.int64), 0
    recent = np.full((widths[0], people.memory), -1, dtype=np.int64)  # positions
    for width in widths:
        span, recent = slice(begin, begin + width), recent[:width]
        there = free_styles(people.world.there(shelves[span], epochs[span]), shelves[span], recent)
        taken[span] = taken_instead(there)[np.arange(width), styles[span]]
        newest = shelves[span] * len(RANK_SHARES) + taken[span]
        recent = np.concatenate([newest[:, None], recent], axis=1)[:, : people.memory]
        begin += width
    return taken


def free_styles(there: np.ndarray, shelves: np.ndarray, recent: np.ndarray) -> np.ndarray:
    """Styles available to a user who does not buy the last items again, unless none is left.

    Args:
        there: bool (R, …, 20), the styles sold.
        shelves: int64 (R, …), shelves.
        recent: int64 (R, memory), positions of the last items, -1 for none.

    Returns:
        bool (R, …, 20).
    """
    free = there.copy()
    for last in recent.T:
        shape = (-1, *(1,) * (shelves.ndim - 1))
        same = (shelves == (last // len(RANK_SHARES)).reshape(shape)) & (last >= 0).reshape(shape)
        free &= ~(same[..., None] & (np.arange(len(RANK_SHARES)) == (last % len(RANK_SHARES)).reshape((*shape, 1))))
    return np.where(free.any(axis=-1, keepdims=True), free, there)
