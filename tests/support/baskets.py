"""Made-up baskets: users who choose several items at one time, every choice another item."""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from minionerec.data.source import Source, item_table

interactions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=40)
"""(user, timestamp) of each interaction in the order of a file; its position there is its item."""
filled = interactions.map(lambda pairs: [(user, 5 * time) for user, time in pairs] + [(9, time) for time in range(40)])
"""The same with a user of one item at each of forty timestamps, so that hardly a split is empty."""


def source_of(pairs, ticks=1):
    """A source whose i-th interaction is item i, chosen by a user at a timestamp."""
    names = sorted({user for user, _ in pairs})
    return Source(
        items=item_table([f"i{position:05d}" for position in range(len(pairs))]),
        users=np.array([names.index(user) for user, _ in pairs], dtype=np.int32),
        item_index=np.arange(len(pairs), dtype=np.int32),
        times=np.array([timestamp for _, timestamp in pairs], dtype=np.int64) * ticks,
        user_ids=pa.array([f"u{user}" for user in names]),
        where="made up",
        ticks=ticks,
    )


def steps_of(pairs):
    """User → their timestamps in order, each with its items in the order of the file."""
    found: dict[int, dict[int, list[int]]] = {}
    for item, (user, timestamp) in enumerate(pairs):
        found.setdefault(user, {}).setdefault(timestamp, []).append(item)
    return {user: sorted(steps.items()) for user, steps in found.items()}


def rows_by_hand(pairs, max_history):
    """Target → (time, history, time of its newest item): all items of a user's earlier timestamps, the newest kept."""
    rows = {}
    for steps in steps_of(pairs).values():
        past, before = [], None
        for timestamp, items in steps:
            for item in items if past else ():
                rows[item] = (timestamp, past[-max_history:], before)
            past, before = past + items, timestamp
    return rows
