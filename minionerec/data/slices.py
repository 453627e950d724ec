"""Slices of examples, by their history, their target, training and times."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from minionerec.data.contexts import SESSION, share_in_session
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples, ranges

RARE = 5  # training targets of a rare item at most
NOT_FOLLOWED = "did not"
SAME, LATER = "same time", "later"
IN_SESSION = "at most half an hour"
FOLLOWED, REVERSED = "target followed the newest item in training", "newest item followed the target in training"
VIEWED, NOT_VIEWED = "target was viewed in this history", "was not"
WHOSE: Mapping[tuple[str, str], str] = {
    ("time", SAME): "whose target has the time of the newest history item",
    ("time", LATER): "whose target came later than the newest history item",
    ("session", IN_SESSION): "whose target came at most half an hour after the newest history item",
    ("session", LATER): "whose target came more than half an hour after the newest history item",
    ("pair", FOLLOWED): "whose target directly followed the newest history item in training",
    ("pair", NOT_FOLLOWED): "whose target never directly followed the newest history item in training",
    ("reverse", REVERSED): "whose newest history item directly followed the target in training",
    ("reverse", NOT_FOLLOWED): "whose newest history item never directly followed the target in training",
    ("repeat", "target is in the history"): "whose target is in the history",
    ("repeat", "is not"): "whose target is not in the history",
    ("viewed", VIEWED): "whose target is in the history by another event, such as a view",
    ("viewed", NOT_VIEWED): "whose target is in the history by no other event",
    ("target", "cold"): "whose target is no target in training",
    ("target", "rare"): f"whose target is that of at most {RARE} training examples",
    ("target", "frequent"): f"whose target is that of more than {RARE} training examples",
    ("history", "none"): "without a history",
    ("history", "1-2"): "with a history of 1 or 2 items",
    ("history", "3-5"): "with a history of 3 to 5 items",
    ("history", "6-9"): "with a history of 6 to 9 items",
    ("history", "10 and more"): "with a history of 10 items or more",
    ("user", "in training"): "of users who are in training",
    ("user", "new"): "of users who are not in training",
}
"""Group and slice to the continuation of a sentence after "examples"; slices in the order of tables."""


def example_slices(data: Corpus, rows: SplitExamples, split: str) -> dict[str, dict[str, np.ndarray]]:
    """The examples of each slice.

    Args:
        data: The corpus, where training is looked up.
        rows: The R examples of the split; where the times of none are known the group `time` is left out.
        split: Its name. Of "train" only those groups that do not look training up, where each example would find
            itself.

    Returns:
        Group to slice to bool (R,); the slices of a group (`WHOSE` explains them) partition the examples for which they
        are known. An example without history is in no slice of `pair` and `reverse`, one of unknown times of none of
        `time` and `session`. The group `session` is there where times tell sessions (`share_in_session`), `viewed`
        where interactions have events.
    """
    lengths, targets = rows.lengths, rows.targets.astype(np.int64)
    groups: dict[str, dict[str, np.ndarray]] = {}
    if rows.times is not None and rows.times.known.any():
        groups["time"] = {SAME: rows.times.same, LATER: rows.times.later}
        if share_in_session(rows.times.time, rows.times.previous) is not None:
            soon = rows.times.known & (rows.times.time - rows.times.previous <= SESSION)
            groups["session"] = {IN_SESSION: soon, LATER: rows.times.known & ~soon}
    if split != "train":
        some, size, newest = lengths > 0, data.n_items, rows.newest.astype(np.int64)
        keys = np.concatenate([newest * size + targets, targets * size + newest])
        met, known = _met(data, keys, rows.users.tolist())
        followed, turned = np.split(met, 2)
        groups["pair"] = {FOLLOWED: some & followed, NOT_FOLLOWED: some & ~followed}
        groups["reverse"] = {REVERSED: some & turned, NOT_FOLLOWED: some & ~turned}
    positions, owners = ranges(rows.begins, rows.ends), np.repeat(np.arange(len(rows)), lengths)
    is_target = rows.items[positions] == targets[owners]
    repeated = np.bincount(owners[is_target], minlength=len(rows)) > 0
    groups["repeat"] = {"target is in the history": repeated, "is not": ~repeated}
    if rows.events is not None:
        is_other = is_target & (rows.events.of_items[positions] != rows.events.of_targets[owners])
        viewed = np.bincount(owners[is_other], minlength=len(rows)) > 0
        groups["viewed"] = {VIEWED: viewed, NOT_VIEWED: ~viewed}
    if split != "train":
        often = data.popularity()[targets]
        groups["target"] = {"cold": often == 0, "rare": (often > 0) & (often <= RARE), "frequent": often > RARE}
    groups["history"] = {kind: within(lengths) for kind, within in _LENGTHS.items()}
    if split != "train":
        trained = np.array([user in known for user in rows.users], dtype=bool)
        groups["user"] = {"in training": trained, "new": ~trained}
    return groups


def _met(data: Corpus, keys: np.ndarray, users: Sequence[str]) -> tuple[np.ndarray, set[str]]:
    """The pairs and users of training.

    Args:
        data: The corpus.
        keys: int64 (K,), pairs of items, earlier · N + later.
        users: Users.

    Returns:
        Pairs next to each other in training, bool (K,); and those of the users that have an example there.
    """
    wanted, wanted_users = np.unique(keys), set(users)
    met, known = np.zeros(len(wanted), dtype=bool), set[str]()
    for rows, pairs in _neighbours(data):
        positions = np.minimum(np.searchsorted(wanted, pairs), len(wanted) - 1)
        met[positions[wanted[positions] == pairs]] = True
        known.update(wanted_users.intersection(rows.user_ids[np.unique(rows.user_numbers)]))
    found: np.ndarray = met[np.searchsorted(wanted, keys)]
    return found, known


_LENGTHS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda lengths: lengths == 0,
    "1-2": lambda lengths: (lengths >= 1) & (lengths <= 2),
    "3-5": lambda lengths: (lengths >= 3) & (lengths <= 5),
    "6-9": lambda lengths: (lengths >= 6) & (lengths <= 9),
    "10 and more": lambda lengths: lengths >= 10,
}


def _neighbours(data: Corpus) -> Iterator[tuple[SplitExamples, np.ndarray]]:
    """Training examples, some at a time, and the pairs of items next to each other in them, unsorted: int64."""
    for _, rows in data.batches("train"):
        whole = data.valid if data.leaves_two_out else rows
        some = np.flatnonzero(whole.ends > whole.begins)
        inside, _ = replace(whole, ends=np.maximum(whole.begins, whole.ends - 1)).held()  # all but newest items
        items = whole.items.astype(np.int64)
        found = [items[inside] * data.n_items + items[inside + 1]]
        if not data.leaves_two_out:
            found.append(items[rows.ends[some] - 1] * data.n_items + rows.targets[some])
        yield rows, np.concatenate(found)
