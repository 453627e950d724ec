"""The rows of a corpus as windows of consecutive items, for training at all positions."""

from dataclasses import dataclass

import numpy as np

from minionerec.data.corpus import Corpus


@dataclass(frozen=True)
class Window:
    """Consecutive items of one user, and from which item on there is a loss.

    Attributes:
        items: int32 (n,), oldest first.
        first_target: Index in `items` of the first item that is a target here; the earlier ones are only read.
        rows: int64 (n,), the row of the split whose target each item is; -1 for items that are no row's.
    """

    items: np.ndarray
    first_target: int
    rows: np.ndarray


def user_windows(corpus: Corpus, split: str = "train") -> list[Window]:
    """The rows of one split as windows of at most `max_history` + 1 items, each row's target a target exactly once.

    A user's rows are joined where each history continues the row before. The first window begins with the user's
    first item; where a user has more items, later windows overlap by half a history, so that a target never sees less
    than half of `max_history` items that its row has. With at most `max_history` + 1 items a user is one window, and
    every target sees exactly the history of its row.

    Returns:
        Windows in the order of each user's first row.
    """
    rows = corpus.rows(split)
    chains: dict[str, list[tuple[list[int], list[int], int]]] = {}
    for row, (user, history, target) in enumerate(zip(rows["user"], rows["history"], rows["target"], strict=True)):
        open_chains = chains.setdefault(user, [])
        past = [int(item) for item in history]
        if (
            open_chains
            and past == open_chains[-1][0][-len(past) :]
            and (len(past) == len(open_chains[-1][0]) or len(past) == corpus.max_history)
        ):
            open_chains[-1][0].append(int(target))
            open_chains[-1][1].append(row)
        else:
            open_chains.append(([*past, int(target)], [-1] * len(past) + [row], len(past)))
    size = corpus.max_history + 1
    step = max(1, corpus.max_history // 2)
    windows = []
    for open_chains in chains.values():
        for items, numbers, first in open_chains:
            start, covered = 0, first
            while covered < len(items):
                end = min(start + size, len(items))
                own = np.array(numbers[start:end], dtype=np.int64)
                windows.append(Window(np.array(items[start:end], dtype=np.int32), covered - start, own))
                covered = end
                start = max(end - size + step, 0) if end < len(items) else end
    return windows
