"""The gap of requests in two values, and corpora in which it decides the next item."""

from pathlib import Path

import numpy as np

from minionerec.data.contexts import RequestFeature
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.data.times import RowTimes
from support.training import N_ITEMS, chain_items

LATER_ON = 7
"""The item that is chosen whenever somebody comes back later."""


SAME, LATER = 1, 2
GAP = RequestFeature("gap", ("same", "later"), (0,), 0)
"""The gap where the order of times alone is known."""


def gap_codes(rows: SplitExamples) -> np.ndarray:
    """The code of each example: int16 (R,)."""
    return GAP.of_examples(rows)


def make_gap_corpus(folder: Path, users: int = 60, timed: bool = True, seed: int = 0) -> Corpus:
    """A corpus in place of that of `support.training.make_inputs`: item i + 1 follows item i at once, and later one.

    Args:
        folder: Where the corpus is written; the SIDs of `make_inputs` fit.
        users: Users of eight items, the last two of each held out.
        timed: Whether it has times.
        seed: Seed of what each user does.
    """
    rng = np.random.default_rng(seed)
    split: dict[str, list[tuple[str, np.ndarray, int]]] = {"train": [], "valid": [], "test": []}
    times: dict[str, list[tuple[int, int]]] = {name: [] for name in split}
    for user in range(users):
        chain, timestamps = [int(rng.integers(N_ITEMS))], [100 * user]
        for position in range(1, 8):
            later = int(rng.integers(2))
            chain.append(LATER_ON if later else (chain[-1] + 1) % N_ITEMS)
            timestamps.append(timestamps[-1] + later)
            name = {6: "valid", 7: "test"}.get(position, "train")
            split[name].append((f"u{user}", np.array(chain[:position], dtype=np.int32), chain[position]))
            times[name].append((timestamps[position], timestamps[position - 1]))
    tables = {
        name: SplitExamples.of(*zip(*rows, strict=True), RowTimes(*np.array(times[name]).T.copy()) if timed else None)
        for name, rows in split.items()
    }
    items = chain_items().assign(description="")
    corpus = Corpus(items, **tables, split="leave-last-out", max_history=10)
    corpus.save(folder, config={}, inputs={})
    return corpus
