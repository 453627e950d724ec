"""The probability of every next purchase, given the state of the city: exact, for all items or for the likeliest.

The state includes what the user likes. A city with columns has `minionerec.contrib.city.columns` for it.
"""

from dataclasses import dataclass

import numpy as np

from minionerec.contrib.city.people import People, likes_of
from minionerec.contrib.city.purchases import (
    BEGINS,
    CONTINUES,
    FASHION,
    FIRST,
    FOLLOW,
    LOYAL,
    PARTNER_SHARES,
    SAME_SHELF,
    SHARES,
    STAY,
    STYLE_SHARES,
    TASTE,
    TASTE_SHARES,
    free_styles,
    kinds_of,
)
from minionerec.contrib.city.sizes import AISLE, SHELF
from minionerec.contrib.city.world import RANK_SHARES, World, around, as_taken

__all__ = [
    "BEGINS",
    "CONTINUES",
    "FIRST",
    "PurchaseContexts",
    "Special",
    "appeal_of",
    "likeliest",
    "probabilities",
    "probability_of",
    "special_of",
]


@dataclass(frozen=True)
class PurchaseContexts:
    """R purchases to come, and the state they depend on.

    Attributes:
        users: int64 (R,), numbers of the users.
        newest: int64 (R,), row of the items table that each user bought last; -1 for none.
        times: int64 (R,), seconds since 1970 of the purchase.
        pauses: int64 (R,), seconds since the previous purchase; -1 for none.
        recent: int64 (R, memory), rows of the last items, which are not bought again, the newest first; -1 for none.
            None if users may buy everything again.
    """

    users: np.ndarray
    newest: np.ndarray
    times: np.ndarray
    pauses: np.ndarray
    recent: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of purchases, R."""
        return len(self.users)

    def take(self, positions: np.ndarray) -> "PurchaseContexts":
        """The purchases at some positions."""
        recent = None if self.recent is None else self.recent[positions]
        return PurchaseContexts(
            self.users[positions], self.newest[positions], self.times[positions], self.pauses[positions], recent
        )


@dataclass(frozen=True)
class Special:
    """The shelves that have another source than fashion, and the state that their items depend on.

    Attributes:
        shelves: int64 (R, C), C = 3 + 8 + 4, and those of the last items; of equal shelves of a row the first counts.
        shares: float64 (R, C), share of each shelf in the purchase; 0 for a repeated shelf.
        real: bool (R, C), False for a repeated shelf.
        styles: float64 (R, 20), share of each style among loyal purchases.
        fashion: float64 (R,), share of fashion.
        epochs: int64 (R,), epoch of the purchase.
        there: bool (R, C, 20), the items that may be bought; None for all.
    """

    shelves: np.ndarray
    shares: np.ndarray
    real: np.ndarray
    styles: np.ndarray
    fashion: np.ndarray
    epochs: np.ndarray
    there: np.ndarray | None


def _likes(people: People, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Liked shelves int64 (R, 4) and favourite styles int64 (R, 2) of some users."""
    shelves, styles = np.empty((len(users), 4), np.int64), np.empty((len(users), 2), np.int64)
    order = np.argsort(users, kind="stable")
    blocks, begins = np.unique(users[order] // people.block, return_index=True)
    for block, positions in zip(blocks.tolist(), np.split(order, begins[1:]), strict=True):
        inside = users[positions] - block * people.block
        shelves[positions], styles[positions] = (likes[inside] for likes in likes_of(people, block))
    return shelves, styles


def special_of(people: People, contexts: PurchaseContexts) -> Special:
    """The special shelves of R purchases, without the factors of a city with columns."""
    world, n = people.world, len(contexts)
    kinds = np.where(contexts.newest < 0, FIRST, kinds_of(contexts.pauses))
    weights = SHARES[kinds]  # (R, 4)
    shelf = world.positions(np.maximum(contexts.newest, 0)) // SHELF
    liked, styles = _likes(people, contexts.users)
    begin, size = around(shelf, AISLE, world.shelves)
    aisle = begin[:, None] + np.arange(AISLE)
    inside = np.arange(AISLE) < size[:, None]
    staying = SAME_SHELF * (aisle == shelf[:, None]) + (1 - SAME_SHELF) * inside / size[:, None]
    shelves = np.concatenate([world.partners[shelf], np.where(inside, aisle, shelf[:, None]), liked], axis=1)
    shares = np.concatenate(
        [
            weights[:, FOLLOW, None] * PARTNER_SHARES,
            weights[:, STAY, None] * np.where(inside, staying, 0.0),
            weights[:, TASTE, None] * TASTE_SHARES,
        ],
        axis=1,
    )
    epochs, there = world.epoch_of(contexts.times), None
    if not people.all_there:
        recent = _recent(people, contexts)
        shelves = np.concatenate([shelves, np.maximum(recent // SHELF, 0)], axis=1)
        shares = np.concatenate([shares, np.zeros(recent.shape)], axis=1)
        there = free_styles(world.there(shelves, epochs[:, None]), shelves, recent)
    same = shelves[:, :, None] == shelves[:, None, :]  # (R, C, C)
    real = ~np.tril(same, -1).any(axis=2)
    summed = np.where(real, (same * shares[:, None, :]).sum(axis=2), 0.0)
    loyal = np.zeros((n, SHELF))
    np.add.at(loyal, (np.arange(n)[:, None], styles), STYLE_SHARES)
    return Special(shelves, summed, real, loyal, weights[:, FASHION], epochs, there)


def _recent(people: People, contexts: PurchaseContexts) -> np.ndarray:
    """Positions of the last items, int64 (R, memory), -1 for none.

    Raises:
        ValueError: If the contexts lack them.
    """
    if not people.memory:
        return np.empty((len(contexts), 0), dtype=np.int64)
    if contexts.recent is None or contexts.recent.shape[1] != people.memory:
        raise ValueError(f"contexts.recent must hold the last {people.memory} items of each purchase")
    return np.where(contexts.recent < 0, -1, people.world.positions(np.maximum(contexts.recent, 0)))


def appeal_of(world: World, epochs: np.ndarray, shelves: np.ndarray) -> np.ndarray:
    """Appeal of shelves (R, C) in the epochs (R,) of their rows: float64 (R, C)."""
    appeal = np.empty(shelves.shape)
    for epoch in np.unique(epochs).tolist():
        in_epoch = epochs == epoch
        appeal[in_epoch] = world.appeal(epoch)[shelves[in_epoch]]
    return appeal


def _of_shelves(world: World, special: Special) -> np.ndarray:
    """Probability of every item of the special shelves: float64 (R, C, 20)."""
    ranks = world.ranks(special.shelves[:, :, None], np.arange(SHELF), special.epochs[:, None, None])
    selling = RANK_SHARES[ranks]  # (R, C, 20)
    chosen = special.shares[:, :, None] * (LOYAL * special.styles[:, None, :] + (1 - LOYAL) * selling)
    fashion = special.fashion[:, None] * appeal_of(world, special.epochs, special.shelves)
    return as_taken(chosen + fashion[:, :, None] * selling, special.there)


def probabilities(people: People, contexts: PurchaseContexts) -> np.ndarray:
    """The exact distribution of each next purchase over all items, given what the user likes.

    Args:
        people: The city and its users.
        contexts: The purchases.

    Returns:
        float64 (R, N), column i is row i of the items table; each row sums to one.
    """
    world = people.world
    special = special_of(people, contexts)
    purchases = np.arange(len(contexts))
    ranks = world.ranks(np.arange(world.shelves)[:, None], np.arange(SHELF), special.epochs[:, None, None])
    fashion = np.stack([world.appeal(epoch) for epoch in special.epochs.tolist()])[:, :, None] * RANK_SHARES[ranks]
    chances = special.fashion[:, None, None] * fashion  # (R, S, 20)
    if not people.all_there:
        chances = as_taken(chances, world.there(np.arange(world.shelves), special.epochs[:, None]))
    of_shelves, real = _of_shelves(world, special), special.real
    row, position = np.nonzero(real)
    chances[row, special.shelves[row, position]] = of_shelves[row, position]
    table = np.empty((len(purchases), world.items))
    table[:, world.rows(np.arange(world.items))] = chances.reshape(len(purchases), -1)
    return table


def probability_of(people: People, contexts: PurchaseContexts, items: np.ndarray) -> np.ndarray:
    """The exact probability of one item for each purchase: float64 (R,).

    Args:
        people: The city and its users.
        contexts: The purchases.
        items: int64 (R,), rows of the items table.
    """
    world, special = people.world, special_of(people, contexts)
    positions = world.positions(items)
    shelf, style = positions // SHELF, positions % SHELF
    share = (special.shares * (special.shelves == shelf[:, None])).sum(axis=1)
    selling = RANK_SHARES[world.ranks(shelf[:, None], np.arange(SHELF), special.epochs[:, None])]  # (R, 20)
    fashion = special.fashion * appeal_of(world, special.epochs, shelf[:, None])[:, 0]
    style_shares = share[:, None] * (LOYAL * special.styles + (1 - LOYAL) * selling) + fashion[:, None] * selling
    there = None
    if not people.all_there:
        there = free_styles(world.there(shelf, special.epochs), shelf, _recent(people, contexts))
    probability: np.ndarray = as_taken(style_shares, there)[np.arange(len(items)), style]
    return probability


def likeliest(people: People, contexts: PurchaseContexts, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The most probable items of each purchase, without computing the probabilities of all items.

    An item outside the special shelves is bought only by fashion, so the best of them are among the first items of
    fashion, as many as leave k when those of special shelves are removed.

    Args:
        people: The city and its users.
        contexts: The purchases.
        k: Items of a list, at most N.

    Returns:
        Rows of the items table int64 (R, k), the most probable first, and their probabilities float64 (R, k).
    """
    world, special = people.world, special_of(people, contexts)
    inside = np.where(special.real[:, :, None], _of_shelves(world, special), -1.0).reshape(len(contexts), -1)
    positions = (special.shelves[:, :, None] * SHELF + np.arange(SHELF)).reshape(len(contexts), -1)
    best_positions = np.empty((len(contexts), k), dtype=np.int64)
    chances = np.empty((len(contexts), k))
    for epoch in np.unique(special.epochs).tolist():
        in_epoch = np.flatnonzero(special.epochs == epoch)
        first, shares = _first_of_fashion(world, epoch, k + inside.shape[1])
        is_special = (first // SHELF == special.shelves[in_epoch][:, :, None]).any(axis=1)  # (rows, first)
        outside = np.where(is_special, -1.0, special.fashion[in_epoch, None] * shares)
        values = np.concatenate([inside[in_epoch], outside], axis=1)
        items = np.concatenate([positions[in_epoch], np.broadcast_to(first, outside.shape)], axis=1)
        best = np.argpartition(-values, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(values, best, 1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, 1)
        best_positions[in_epoch], chances[in_epoch] = (
            np.take_along_axis(items, best, 1),
            np.take_along_axis(values, best, 1),
        )
    return world.rows(best_positions), chances


def _first_of_fashion(world: World, epoch: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The items most probable by fashion, at most `count`: positions int64 and shares float64, best first."""
    appeal = world.appeal(epoch)
    shelves = np.argsort(-appeal, kind="stable")
    if not world.late:
        shelves = shelves[:count]  # each has its first rank before those of later shelves
    ranks = world.ranks(shelves[:, None], np.arange(SHELF), epoch)
    there = world.there(shelves, np.array(epoch)) if world.late else None
    shares = as_taken(appeal[shelves, None] * RANK_SHARES[ranks], there).reshape(-1)
    positions = (shelves[:, None] * SHELF + np.arange(SHELF)).reshape(-1)
    order = np.argsort(-shares, kind="stable")[:count]
    return positions[order], shares[order]
