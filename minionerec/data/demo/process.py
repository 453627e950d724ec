"""How customers of the demo shop choose, and all purchases drawn from that."""

import math
import random
from collections.abc import Sequence
from functools import cache

import numpy as np

from minionerec.data.demo.catalogue import N_COLLECTIONS, N_DEPARTMENTS, N_ITEMS, N_LINES, item_number

SEED = 12  # an unremarkable draw: on its test rows the true ranking scores within one sigma of what it may expect
N_USERS = 2_000
SHORTEST, LONGEST = 3, 14
MEMORY = 10
FOLLOW, TASTE, FASHION = 0.50, 0.35, 0.15
NEXT_LINE, NEXT_COLLECTION, LINE_AFTER_NEXT = 0.62, 0.26, 0.12
FADE = 0.85
LOYALTY = 3.0
APPEAL = (1.0, 0.8, 0.65, 0.5, 0.4)
START, SPAN = 1_704_067_200, 365 * 86_400
MEAN_GAP = 9 * 86_400


@cache
def _process() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow matrix (N, N), appeal within the department (N,), appeal in the whole shop (N,): each a distribution."""
    follow = np.zeros((N_ITEMS, N_ITEMS))
    appeal = np.zeros(N_ITEMS)
    for department in range(N_DEPARTMENTS):
        for line in range(N_LINES):
            for collection in range(N_COLLECTIONS):
                item = item_number(department, line, collection)
                following = item_number(department + (line == N_LINES - 1), line + 1, collection)
                follow[item, following] += NEXT_LINE
                follow[item, item_number(department, line, collection + 1)] += NEXT_COLLECTION
                follow[item, item_number(department, line + 2, collection)] += LINE_AFTER_NEXT
                # Which line and which collection appeal most differs from department to department.
                appeal[item] = (
                    APPEAL[(line + 2 * department) % N_LINES] * APPEAL[(collection + 3 * department) % N_COLLECTIONS]
                )
    within = appeal / appeal[: N_LINES * N_COLLECTIONS].sum()  # each department has the same sum
    shares = np.array([1 / (5 + rank) for rank in range(N_DEPARTMENTS)])
    overall = within * np.repeat(shares / shares.sum(), N_LINES * N_COLLECTIONS)
    for table in (follow, within, overall):
        table.flags.writeable = False
    return follow, within, overall


def demo_probabilities(history: Sequence[int] | np.ndarray) -> np.ndarray:
    """The true distribution of the next purchase.

    Args:
        history: Item indices, oldest first; only the last ten matter. Empty for a customer's first purchase.

    Returns:
        float64 (N,), summing to one.

    Example:
        >>> chances = demo_probabilities([0])
        >>> len(chances), int(chances.argmax()) == item_number(0, 1, 0), round(float(chances.sum()), 9)
        (300, True, 1.0)
    """
    follow, within, overall = _process()
    recent = np.asarray(history, dtype=np.int64)[-MEMORY:]
    if len(recent) == 0:
        return overall.copy()
    departments = recent // (N_LINES * N_COLLECTIONS)
    weights = np.zeros(N_DEPARTMENTS)
    np.add.at(weights, departments, FADE ** np.arange(len(recent) - 1, -1, -1.0))
    loyal = np.ones((N_DEPARTMENTS, 1, N_COLLECTIONS))
    loyal[departments, 0, recent % N_COLLECTIONS] = LOYALTY
    taste = within.reshape(N_DEPARTMENTS, N_LINES, N_COLLECTIONS) * loyal  # (departments, lines, collections)
    taste *= (weights / weights.sum() / taste.sum(axis=(1, 2)))[:, None, None]
    chances: np.ndarray = FOLLOW * follow[recent[-1]] + TASTE * taste.reshape(-1) + FASHION * overall
    return chances


def generate_shop(seed: int = SEED, n_users: int = N_USERS) -> list[tuple[int, int, int]]:
    """Draw all purchases.

    How many purchases a customer makes (3 to 14, each as likely) and when says nothing of what is bought. Only
    `random.Random.random` is drawn from, whose numbers Python promises never to change.

    Args:
        seed: Seed of the whole shop.
        n_users: Number of customers.

    Returns:
        (user number from 0, item index, seconds since 1970 UTC), sorted by time, then user.
    """
    rng = random.Random(seed)
    purchases = []
    for user in range(n_users):
        time = START + rng.random() * SPAN
        history: list[int] = []
        for _ in range(SHORTEST + int(rng.random() * (LONGEST - SHORTEST + 1))):
            sums = np.cumsum(demo_probabilities(history))
            item = min(int(np.searchsorted(sums, rng.random() * sums[-1], side="right")), N_ITEMS - 1)
            purchases.append((user, item, int(time)))
            history.append(item)
            time += 60 - MEAN_GAP * math.log(1.0 - rng.random())
    return sorted(purchases, key=lambda purchase: (purchase[2], purchase[0]))
