"""Windows of items, and what followed what in them, counted one pair at a time."""

from collections import defaultdict

import numpy as np
from hypothesis import strategies as st

SIZE = 5


def windows(*rows):
    """Histories and targets of windows that have a target at every position: int64 (W, L), 0 behind the end."""
    width = max(len(row) for row in rows) - 1
    histories, targets = np.zeros((2, len(rows), width), dtype=np.int64)
    for position, row in enumerate(rows):
        histories[position, : len(row) - 1], targets[position, : len(row) - 1] = row[:-1], row[1:]
    return histories, targets


def counted(histories, targets, reach, decay, reverse):
    """The definition: every pair of a target and an item before it, one at a time."""
    found = defaultdict(float)
    for items, wanted in zip(histories.tolist(), targets.tolist(), strict=True):
        for position, target in enumerate(wanted):
            for back in range(min(reach, position + 1)):
                item = items[position - back]
                if target and item:
                    found[item - 1, target - 1] += decay**back
                    found[target - 1, item - 1] += reverse * decay**back
    return {pair: count for pair, count in found.items() if count}


@st.composite
def some_windows(draw):
    """A few windows of items up to `SIZE`, with gaps among their targets, as validation rows have."""
    rows = draw(st.lists(st.lists(st.integers(1, SIZE), min_size=2, max_size=7), min_size=1, max_size=6))
    histories, targets = windows(*rows)
    hidden = draw(st.lists(st.booleans(), min_size=targets.size, max_size=targets.size))
    return histories, np.where(np.reshape(hidden, targets.shape), 0, targets)
