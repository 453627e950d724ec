"""Made-up baskets: users who choose several items at one time, every choice another item."""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from minionerec.data.source import Source, item_table

interactions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=40)
"""(user, timestamp) of each interaction in the order of a file; its position there is its item."""
filled = interactions.map(lambda pairs: [(user, 5 * time) for user, time in pairs] + [(9, time) for time in range(40)])
"""The same with a user of one item at each of forty timestamps, so that hardly a split is empty."""


EVENLY = [(user, timestamp // 3) for timestamp in range(30) for user in range(3)]
"""Three users who choose three items at each of ten timestamps."""


def source_of(pairs, ticks=1):
    """A source whose i-th interaction is item i, chosen by a user at a timestamp."""
    names = sorted({user for user, _ in pairs})
    items, index = item_table([f"i{n:05d}" for n in range(len(pairs))]), np.arange(len(pairs), dtype=np.int32)
    users = np.array([names.index(user) for user, _ in pairs], dtype=np.int32)
    times = np.array([timestamp for _, timestamp in pairs], dtype=np.int64) * ticks
    return Source(items, users, index, times, pa.array([f"u{user}" for user in names]), "made up", ticks)
