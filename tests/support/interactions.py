"""Interactions drawn at random, and a corpus's rows in plain form."""

import numpy as np

from minionerec.data.names import SPLITS

ITEMS = [(f"B{i}", f"Thing {i}", f"What {i} does") for i in range(8)]
DAY = 86_400


def random_interactions(n=160, n_users=12, n_items=8, seed=0):
    """Reviews in no order of time, with many ties, as (user, item, seconds)."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, n_users, n), rng.zipf(1.5, n) % n_items
    times = rng.integers(0, 40, n) * DAY + 1_475_280_000
    return [(f"R{u}", f"B{i}", int(t)) for u, i, t in zip(users, items, times, strict=True)]


def corpus_rows(corpus):
    ids = corpus.items["item_id"].to_numpy(object)
    return [
        (user, ids[history].tolist(), ids[target]) for split in SPLITS for user, history, target in corpus.rows(split)
    ]
