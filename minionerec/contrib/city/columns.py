"""A city with columns: views before purchases, and the best prediction that a history with its columns allows.

*Price and brand.* An item has a price band and a brand, both uniform. A user has a *taste*, which is never shown: a
price band, and one to three brands. Within a shelf the weight of each item is multiplied by `price_factor` if it is in
the user's band, by `brand_factor` if its brand is one of the user's, and divided by the sum over the shelf.

*Weekday.* On Saturdays and Sundays the weight of each leisure shelf is multiplied by `weekend_factor`, and divided by
the sum over all shelves.

*Events.* Before a purchase the user has n views (`VIEWS`). With probability `SEEN` one of them, at a uniform place, is
of the item bought next; the others are items drawn by the law of that purchase. So given its views, a purchase is with
probability `SEEN` the item of one of them, each equally likely, and otherwise an item by the law. A view is followed by
a cart with probability .5 if the item is bought next, else .1 (`CARTS`). After the last purchase of a session there are
further views (`LATER`) by the law of a next purchase. The device says nothing.

So, for a taste h and the calendar, the probability of a history is a product over its views and purchases, and that of
each next item follows by Bayes' rule: a sum over all tastes weighted by their probabilities given the history. Nothing
is approximated. What a prediction knows in any case: the law, the user's favourite shelves and styles, the epoch, and
whether each purchase continues a session.
"""

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise

import numpy as np

from minionerec.contrib.city.law import PurchaseContexts, appeal_of, special_of
from minionerec.contrib.city.people import TASTE_CHANCES, TASTES, Columns, People, interactions_of
from minionerec.contrib.city.purchases import CONTINUES, FIRST, LOYAL, Drawing, kinds_of, purchases_of
from minionerec.contrib.city.sizes import SHELF
from minionerec.contrib.city.world import RANK_SHARES, WEEK, as_taken, generator, is_weekend, taken_instead

VIEWS = np.array([0.2, 0.3, 0.3, 0.2])
"""float64 (4,): probability of 0, 1, 2 and 3 views before a purchase."""
LATER = np.array([0.5, 0.25, 0.15, 0.1])
"""float64 (4,): probability of 0, 1, 2 and 3 views after the last purchase of a session."""
SEEN = 0.6
"""Probability that one of the views before a purchase, if there are any, is of the item bought next."""
CARTS = 0.1, 0.5
"""Probability that a view is followed by a cart: of an item that is not bought next, and of one that is."""
EVENTS = VIEW, CART, PURCHASE = "view", "cart", "purchase"
DEVICES = "phone", "computer", "tablet"
LACKING = NO_EVENTS, NO_PRICE_AND_BRAND, NO_WEEKDAY, NO_COLUMNS = "events", "price_and_brand", "weekday", "columns"
"""What a prediction may be without, as `Predictor.predictions` describes."""

_EVENTS, _DISPLAY = 5, 6  # streams of a block; see `minionerec.contrib.city.people`
_MAIN_DEVICE = 0.8
_STEP_LEAST, _STEP_MOST = 5, 60  # seconds between the events of a purchase
_ROWS = 4096  # views and purchases whose probabilities are computed at a time


@dataclass(frozen=True)
class Histories:
    """M views and purchases, user after user and each in order of time.

    Attributes:
        contexts: The state that each item was drawn in: for a view before a purchase that of the purchase, for a later
            view that after the purchase.
        items: int64 (M,), rows of the items table.
        bought: bool (M,), whether each is a purchase.
        views: int64 (M,), for a purchase the number of its views, which stand right before it; 0 for a view.
        carts: bool (M,), whether a view is followed by a cart.
    """

    contexts: PurchaseContexts
    items: np.ndarray
    bought: np.ndarray
    views: np.ndarray
    carts: np.ndarray

    def __len__(self) -> int:
        """Number of views and purchases, M."""
        return len(self.items)

    def take(self, positions: np.ndarray) -> "Histories":
        """The views and purchases at some positions."""
        contexts, *others = (getattr(self, field.name) for field in fields(self))
        return Histories(contexts.take(positions), *(values[positions] for values in others))

    def views_of(self, positions: np.ndarray, back: int) -> tuple[np.ndarray, np.ndarray]:
        """The views that are a number of places before some purchases and led to them.

        Args:
            positions: int64 (R,), positions of purchases.
            back: Places before the purchase, from 1.

        Returns:
            The numbers, from 0 to R - 1, of the purchases that have as many views, and the positions of those views.
        """
        some = np.flatnonzero(self.views[positions] >= back)
        return some, positions[some] - back


def histories_of(people: People, block: int) -> Histories:
    """Draw what the users of a block of a city with columns view and buy.

    Args:
        people: The city and its users.
        block: Number of the block.
    """
    users, items, times = purchases_of(people, block)
    items = items.astype(np.int64)
    _, _, pauses = interactions_of(people, block)
    kinds = kinds_of(pauses)
    previous = np.where(kinds == FIRST, -1, np.roll(items, 1))
    rng = generator(people.world.seed, block, _EVENTS)
    chances = rng.random((4, len(items)))
    before = np.searchsorted(np.cumsum(VIEWS)[:-1], chances[0], side="right")
    last = np.append(kinds[1:] != CONTINUES, True)  # of its session
    later = np.where(last, np.searchsorted(np.cumsum(LATER)[:-1], chances[1], side="right"), 0)

    purchase = np.repeat(np.arange(len(items)), before + 1 + later)
    begins = np.cumsum(before + 1 + later) - (before + 1 + later)
    step = np.arange(len(purchase)) - begins[purchase]
    bought, after = step == before[purchase], step > before[purchase]
    newest = np.where(after, items[purchase], previous[purchase])
    contexts = PurchaseContexts(users[purchase], newest, times[purchase], np.where(after, 0, pauses[purchase]))
    seen = np.flatnonzero((before > 0) & (chances[2] < SEEN))
    known = bought.copy()  # whether the item is that of the purchase, and not drawn here
    known[begins[seen] + (chances[3][seen] * before[seen]).astype(np.int64)] = True
    shown = items[purchase]
    shown[~known] = _drawn(people, block, contexts.take(~known), rng)
    same = ~after & (shown == items[purchase])
    carts = ~bought & (rng.random(len(purchase)) < np.where(same, CARTS[1], CARTS[0]))
    return Histories(contexts, shown, bought, np.where(bought, before[purchase], 0), carts)


def _drawn(people: People, block: int, contexts: PurchaseContexts, rng: np.random.Generator) -> np.ndarray:
    """Items drawn by the law: rows of the items table, int64 (R,)."""
    world, kinds = people.world, np.where(contexts.newest < 0, FIRST, kinds_of(contexts.pauses))
    drawing = Drawing.of_block(people, block, contexts.users - block * people.block, contexts.times, kinds)
    newest = world.positions(np.maximum(contexts.newest, 0)) // SHELF
    shelves, fashion = drawing.shelves(newest, rng.random((3, len(kinds))), rng)
    styles = drawing.styles(shelves, fashion, rng.random((2, len(kinds))), rng)
    if world.late:
        styles = taken_instead(world.there(shelves, drawing.epochs))[np.arange(len(styles)), styles]
    return world.rows(shelves * SHELF + styles).astype(np.int64)


def events_of(people: People, block: int) -> dict[str, np.ndarray]:
    """The interactions of the users of a block of a city with columns, user after user and each in order of time.

    Returns:
        `users`, `items` and `times`, int64 (L,), as of `purchases_of`; `events` and `devices`, int64 (L,), positions
        in `EVENTS` and `DEVICES`. No user has two at one time.
    """
    histories = histories_of(people, block)
    rows = np.repeat(np.arange(len(histories)), 1 + histories.carts)
    follows = np.append(False, rows[1:] == rows[:-1])  # a cart
    bought = histories.bought[rows]
    ends = np.flatnonzero(bought)
    contexts = histories.contexts.take(rows)
    starts = np.append(True, (np.diff(contexts.users) != 0) | (np.diff(contexts.times) != 0))
    purchase = np.cumsum(starts) - 1  # the number of the purchase that each interaction stands around
    offsets = np.arange(len(rows)) - ends[purchase]  # before it and after it
    rng = generator(people.world.seed, block, _DISPLAY)
    steps = rng.integers(_STEP_LEAST, _STEP_MOST + 1, len(ends))
    pauses = contexts.pauses[ends]
    room = pauses // (1 + ends - np.flatnonzero(starts))
    steps = np.where(pauses < 0, steps, np.minimum(steps, room))

    sessions = np.cumsum(kinds_of(pauses) != CONTINUES) - 1
    usual = rng.integers(0, len(DEVICES), people.size(block))
    chances = rng.random((2, sessions[-1] + 1))
    users = contexts.users[ends] - block * people.block
    other = (chances[1] * len(DEVICES)).astype(np.int64)[sessions]
    devices = np.where(chances[0][sessions] < _MAIN_DEVICE, usual[users], other)
    return {
        "users": contexts.users,
        "items": histories.items[rows],
        "times": contexts.times + offsets * steps[purchase],
        "events": np.where(bought, 2, np.where(follows, 1, 0)),
        "devices": devices[purchase],
    }


def _columns_of(people: People) -> Columns:
    if people.columns is None:
        raise ValueError("the city has no columns")
    return people.columns


def _by_shelf(people: People, shelves: np.ndarray, values: np.ndarray, *, back: bool = False) -> np.ndarray:
    """Multiply by the factors of the items of a shelf, the same for all values of that shelf.

    Args:
        people: A city with columns.
        shelves: int64 (R,).
        values: float64 (R, A, 20), of items, or (R, A, H), of tastes, if `back`.
        back: Whether to sum over tastes and not over items.

    Returns:
        float64 (R, A, H), or (R, A, 20) if `back`.
    """
    result = np.empty((*values.shape[:-1], SHELF if back else TASTES))
    order = np.argsort(shelves, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(shelves[order])) + 1).tolist(), len(order)]
    for begin, end in pairwise(bounds):
        some = order[begin:end]
        if len(some):
            factors = _columns_of(people).factors[people.world.classes[shelves[some[0]]]]  # (20, H)
            result[some] = values[some] @ (factors.T if back else factors)
    return result


@lru_cache(maxsize=4)
def _by_fashion(people: People, epoch: int) -> np.ndarray:
    """Probability of every item by fashion for each taste in an epoch, by position: float64 (H, N)."""
    world = people.world
    selling = RANK_SHARES[world.ranks(np.arange(world.shelves)[:, None], np.arange(SHELF), epoch)]
    chances = selling[:, :, None] * _columns_of(people).factors[world.classes]  # (S, 20, H)
    chances *= world.appeal(epoch)[:, None, None] / chances.sum(axis=1, keepdims=True)
    return np.ascontiguousarray(chances.reshape(world.items, TASTES).T)


def chances_of(people: People, contexts: PurchaseContexts, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The probability of one item for each context and taste.

    Args:
        people: A city with columns and its users.
        contexts: The states of the items.
        items: int64 (M,), rows of the items table.

    Returns:
        float64 (M, H), on other days than weekends; and float64 (M,), by what it is multiplied at a weekend.

    Raises:
        ValueError: If the city has no columns.
    """
    world, factor = people.world, _columns_of(people).weekend_factor
    chances, gains = np.empty((len(items), TASTES)), np.empty(len(items))
    appeals = np.array([world.appeal(epoch)[world.leisure].sum() for epoch in range(world.epochs)])
    for begin in range(0, len(items), _ROWS):
        span = np.arange(begin, min(begin + _ROWS, len(items)))
        part = contexts.take(span)
        special = special_of(people, part)
        positions = world.positions(items[span])
        shelf, style = positions // SHELF, positions % SHELF
        selling = RANK_SHARES[world.ranks(shelf[:, None], np.arange(SHELF), special.epochs[:, None])]  # (R, 20)
        chosen = LOYAL * special.styles + (1 - LOYAL) * selling
        gives = np.arange(SHELF) == style[:, None]  # the drawn styles in whose place the item is taken
        if world.late:
            gives = taken_instead(world.there(shelf, special.epochs)) == style[:, None]
        weights = np.stack([chosen * gives, chosen, selling * gives, selling], axis=1)
        sums = _by_shelf(people, shelf, weights)  # (R, 4, H)
        share = (special.shares * (special.shelves == shelf[:, None])).sum(axis=1)
        fashion = special.fashion * appeal_of(world, special.epochs, shelf[:, None])[:, 0]
        chances[span] = share[:, None] * sums[:, 0] / sums[:, 1] + fashion[:, None] * sums[:, 2] / sums[:, 3]
        leisure = (special.shares * world.leisure[special.shelves]).sum(axis=1)
        leisure += special.fashion * appeals[special.epochs]
        gains[span] = np.where(world.leisure[shelf], factor, 1.0) / (1 + (factor - 1) * leisure)
    return chances, gains


def distribution(people: People, contexts: PurchaseContexts, tastes: np.ndarray, weekend: np.ndarray) -> np.ndarray:
    """The probability of every item by the law, for weights of the tastes.

    Args:
        people: A city with columns and its users.
        contexts: The states of R purchases; their weekday is not read.
        tastes: float64 (R, H), weights of the tastes.
        weekend: bool (R,), whether each is at a weekend.

    Returns:
        float64 (R, N), column i is row i of the items table; each row sums to the sum of its weights.

    Raises:
        ValueError: If the city has no columns.
    """
    world, factor = people.world, _columns_of(people).weekend_factor
    special = special_of(people, contexts)
    chances: np.ndarray = np.empty((len(contexts), world.items))
    for epoch in np.unique(special.epochs).tolist():
        some = np.flatnonzero(special.epochs == epoch)
        chances[some] = special.fashion[some, None] * (tastes[some] @ _by_fashion(people, epoch))
    chances = chances.reshape(len(contexts), world.shelves, SHELF)
    row, column = np.nonzero(special.real & (special.shares > 0))
    shelves = special.shelves[row, column]
    selling = RANK_SHARES[world.ranks(shelves[:, None], np.arange(SHELF), special.epochs[row, None])]
    chosen = LOYAL * special.styles[row] + (1 - LOYAL) * selling  # (P, 20)
    sums = _by_shelf(people, shelves, chosen[:, None])[:, 0]  # (P, H)
    mixed = _by_shelf(people, shelves, (tastes[row] / sums)[:, None], back=True)[:, 0]  # (P, 20)
    chances[row, shelves] += special.shares[row, column, None] * chosen * mixed
    if world.late:
        there = world.there(np.arange(world.shelves), special.epochs[:, None])
        lacking = ~there.all(axis=2)
        chances[lacking] = as_taken(chances[lacking], there[lacking])
    chances[weekend] *= np.where(world.leisure, factor, 1.0)[:, None]
    chances = chances.reshape(len(contexts), world.items)
    chances[weekend] *= (tastes[weekend].sum(axis=1) / chances[weekend].sum(axis=1))[:, None]
    table = np.empty_like(chances)
    table[:, world.rows(np.arange(world.items))] = chances
    return table


class Predictor:
    """What histories tell of tastes and of the calendar, and the predictions that follow.

    Args:
        people: A city with columns and its users.
        histories: All views and purchases of some users, whose numbers ascend.

    Raises:
        ValueError: If the city has no columns.
    """

    def __init__(self, people: People, histories: Histories):
        self.people, self.histories = people, histories
        self._chances, self._gains = chances_of(people, histories.contexts, histories.items)
        self._logs = np.log(self._chances)
        self._first = np.searchsorted(histories.contexts.users, histories.contexts.users)
        self._shown = np.zeros(len(histories))  # share of a purchase's views that are of its item
        purchases = np.flatnonzero(histories.bought)
        for back in range(1, len(VIEWS)):
            some, views = histories.views_of(purchases, back)
            same = histories.items[views] == histories.items[purchases[some]]
            self._shown[purchases[some]] += same / histories.views[purchases[some]]

    def tastes(self, positions: np.ndarray, without: str = "") -> tuple[np.ndarray, np.ndarray]:
        """The probability of each taste and of the weekend, given a history and the views before a purchase.

        Args:
            positions: int64 (R,), positions of purchases.
            without: What is not known, as of `predictions`.

        Returns:
            Joint probabilities, two times float64 (R, H): of a taste and that the purchase is not at a weekend, and of
            a taste and that it is. Together they sum to one in each row.
        """
        begins, times = self._first[positions], self.histories.contexts.times
        if without == NO_PRICE_AND_BRAND:
            begins = positions - self.histories.views[positions]
        weekend = [is_weekend(times, shift) for shift in range(WEEK if without in (NO_WEEKDAY, NO_COLUMNS) else 1)]
        logs = np.log(TASTE_CHANCES) + np.stack([self._evidence(begins, positions, one, without) for one in weekend])
        joint = np.exp(logs - logs.max(axis=(0, 2), keepdims=True))  # (F, R, H)
        joint /= joint.sum(axis=(0, 2), keepdims=True)
        flags = np.stack(weekend)[:, positions, None]
        return (joint * ~flags).sum(axis=0), (joint * flags).sum(axis=0)

    def _evidence(self, begins: np.ndarray, ends: np.ndarray, weekend: np.ndarray, without: str) -> np.ndarray:
        """Logarithm of the probability of what is between positions, up to a constant: float64 (R, H), or (R, 1)."""
        gains = np.where(weekend, self._gains, 1.0)[:, None]
        logs = np.log(gains) if without == NO_COLUMNS else self._logs + np.log(gains)
        if without in (NO_EVENTS, NO_COLUMNS):
            logs = np.where(self.histories.bought[:, None], logs, 0.0)
        else:
            shown = np.flatnonzero(self._shown)
            drawn = (1 - SEEN) * self._chances[shown] * gains[shown]
            logs[shown] = np.log(drawn + SEEN * self._shown[shown, None]) - np.log(1 - SEEN)
        sums = np.concatenate([np.zeros((1, logs.shape[1])), np.cumsum(logs, axis=0)])
        evidence: np.ndarray = sums[ends] - sums[begins]
        return evidence

    def predictions(self, positions: np.ndarray, without: str = "") -> np.ndarray:
        """The probability of every item to be bought, given what is known before a purchase.

        Args:
            positions: int64 (R,), positions of purchases.
            without: "" if the whole history is known, with the price and brand of each item, the views and carts up to
                the purchase, and its weekday. "events": without all views and carts. "price_and_brand": of past views
                and purchases the shelves alone are known, from which nothing follows for the taste, but the items of
                the views before this purchase. "weekday": the days of all times are known but for the day of the week
                on which the city opened, any of seven alike. "columns": without all of them, which leaves the shelves
                of past purchases.

        Returns:
            float64 (R, N), column i is row i of the items table; each row sums to one.
        """
        histories = self.histories
        contexts = histories.contexts.take(positions)
        chances = np.zeros((len(positions), self.people.world.items))
        for weekend, tastes in enumerate(self.tastes(positions, without)):
            if len(some := np.flatnonzero(tastes.any(axis=1))):
                flags = np.full(len(some), bool(weekend))
                chances[some] += distribution(self.people, contexts.take(some), tastes[some], flags)
        if without in (NO_EVENTS, NO_COLUMNS):
            return chances
        views = histories.views[positions]
        chances[views > 0] *= 1 - SEEN
        for back in range(1, len(VIEWS)):
            some, at = histories.views_of(positions, back)
            chances[some, histories.items[at]] += SEEN / views[some]
        for back in range(1, len(VIEWS)):
            some, at = histories.views_of(positions, back)
            other, bought = CARTS
            ratio = np.where(histories.carts[at], bought / other, (1 - bought) / (1 - other))
            chances[some, histories.items[at]] *= ratio
        chances /= chances.sum(axis=1, keepdims=True)
        return chances
