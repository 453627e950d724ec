"""The purchases of the users of a block: all random draws, one array operation for all users at a time."""

import numpy as np

from minionerec.contrib.city.people import SESSION, People, interactions_of, likes_of
from minionerec.contrib.city.sizes import AISLE
from minionerec.contrib.city.world import RANK_SHARES, World, around, generator, taken_instead

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

_PURCHASES = 2  # the stream of a block; see `minionerec.contrib.city.people`


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
    liked, favourites = likes_of(people, block)
    rng = generator(world.seed, block, _PURCHASES)
    total = len(times)
    order, widths = _by_step(counts)
    person = np.repeat(np.arange(len(counts)), counts)[order]
    epochs = world.epoch_of(times[order])
    kinds = kinds_of(pauses[order])
    source = _pick(SHARES, kinds, rng.random(total))
    chances = rng.random((4, total))
    shelves = _shelves(world, liked, person, epochs, source, chances[0], chances[1], widths)
    styles = _styles(world, favourites, person, epochs, source == FASHION, shelves, chances[2], chances[3])
    if not people.all_there:
        styles = _taken(people, shelves, styles, epochs, widths)
    positions = np.empty(total, dtype=np.int64)
    positions[order] = shelves.astype(np.int64) * len(RANK_SHARES) + styles
    users = block * people.block + np.repeat(np.arange(len(counts)), counts)
    return users, world.rows(positions), times


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


def _shelves(
    world: World,
    liked: np.ndarray,
    person: np.ndarray,
    epochs: np.ndarray,
    source: np.ndarray,
    which: np.ndarray,
    where: np.ndarray,
    widths: np.ndarray,
) -> np.ndarray:
    """Shelf of each purchase, int64 (M,), in the order of `_by_step`."""
    same = np.zeros(len(source), dtype=np.int64)
    shelves = np.empty(len(source), dtype=np.int64)
    fashion, taste = source == FASHION, source == TASTE
    shelves[fashion] = world.fashionable(where[fashion], epochs[fashion])
    number = _pick(TASTE_SHARES[None], same[taste], which[taste])
    shelves[taste] = liked[person[taste], number]
    partner = _pick(PARTNER_SHARES[None], same, which)
    follows = source == FOLLOW
    aside = (source == STAY) & (which >= SAME_SHELF)
    free = fashion | taste
    newest, begin = np.empty(0, dtype=np.int64), 0
    for width in widths:
        span = slice(begin, begin + width)
        before = newest[:width]
        here = shelves[span]
        if begin:
            first, size = around(before, AISLE, world.shelves)
            moved = np.where(aside[span], first + (where[span] * size).astype(np.int64), before)
            moved = np.where(follows[span], world.partners[before, partner[span]], moved)
            here[:] = np.where(free[span], here, moved)
        newest, begin = here, begin + width
    return shelves


def _styles(
    world: World,
    favourites: np.ndarray,
    person: np.ndarray,
    epochs: np.ndarray,
    fashion: np.ndarray,
    shelves: np.ndarray,
    which: np.ndarray,
    rank: np.ndarray,
) -> np.ndarray:
    """Style of each purchase, int64 (M,): a favourite, or the one of the drawn rank."""
    loyal = (which < LOYAL) & ~fashion
    second = which >= LOYAL * STYLE_SHARES[0]
    favourite = favourites[person, second.astype(np.int64)]
    ranks = np.searchsorted(np.cumsum(RANK_SHARES)[:-1], rank, side="right")
    return np.where(loyal, favourite, world.styles_of_ranks(shelves, ranks, epochs))


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
