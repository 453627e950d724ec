"""Evaluation protocols as objects: how data are split, padded, ranked, measured, and when training stops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.core.paths import find_path
from minionerec.data.corpus import Corpus
from minionerec.data.filters import k_core, number_by_appearance
from minionerec.data.moments import UNKNOWN, row_moments
from minionerec.data.names import SPLITS
from minionerec.data.sequences import (
    Samples,
    Sequences,
    Side,
    Split,
    Windows,
    make_windows,
    ranges,
    sequences_from_source,
)
from minionerec.data.sources.user_items import read_user_items
from minionerec.data.windows import row_windows

logger = get_logger(__name__)

ROWS = "rows"


@dataclass
class Stopper:
    """Early stopping on one validation figure.

    Attributes:
        stop_after: Stop when this many epochs in a row were no improvement.
        ties: Whether an equal figure is an improvement.
        digits: Decimals that the figure is rounded to first; None for none.
        best: Best figure so far.
        worse: Epochs in a row without improvement.
    """

    stop_after: int
    ties: bool
    digits: int | None
    best: float = -np.inf
    worse: int = 0

    def update(self, value: float) -> bool:
        """Take the figure of one more epoch; whether it is an improvement."""
        value = value if self.digits is None else round(value, self.digits)
        improved = value > self.best or (self.ties and value == self.best)
        self.best, self.worse = (value, 0) if improved else (self.best, self.worse + 1)
        return improved

    @property
    def stop(self) -> bool:
        """Whether to stop now."""
        return self.worse >= self.stop_after


@dataclass(frozen=True)
class Protocol:
    """One way to split, rank, measure and stop.

    Attributes:
        name: Key in `PROTOCOLS`.
        title: What tables call it.
        padding: Side on which histories are padded.
        max_len: Most items of a history that models read.
        batch_size: Rows of a training step.
        seed: The published runs' seed.
        ks: Cut-offs of the metrics.
        mrr: Whether MRR is reported at every cut-off (else only at the largest).
        seen: What becomes of the scores of items in a row's history: "mask" (never recommended; padding neither),
            "zero" (set to 0.0, and padding may be recommended: the published way of protocol A) or "keep" (they
            compete; padding does not).
        monitor: Metric of the validation rows that decides on stopping and on the best epoch.
        stop_after: See `Stopper`.
        ties: See `Stopper`.
        digits: See `Stopper`.
        splitter: Makes the split, from the data, `max_len` and `padding`.
    """

    name: str
    title: str
    padding: Side
    max_len: int
    batch_size: int
    seed: int
    ks: tuple[int, ...]
    mrr: bool
    seen: str
    stop_after: int
    ties: bool
    digits: int | None
    splitter: Callable[[Sequences | Corpus, int, Side], Split]
    monitor: str = "NDCG@10"

    def split(self, data: Sequences | Corpus) -> Split:
        """Rows of the three splits.

        Args:
            data: Sequences of users for protocols A and B, a corpus for its own rows.

        Raises:
            DataError: If the data are of the other kind, or no user has enough items.
        """
        return self.splitter(data, self.max_len, self.padding)

    def stopper(self) -> Stopper:
        """A fresh early stopping."""
        return Stopper(self.stop_after, self.ties, self.digits)

    def with_changes(self, **changes: Any) -> "Protocol":
        """The same protocol with some attributes changed, e.g. `max_len` or `monitor`."""
        return replace(self, **changes)


def _sequences(data: Sequences | Corpus, fewest: int) -> tuple[Sequences, np.ndarray, dict[str, Any]]:
    """Check the data; the users that are long enough, and counts."""
    if not isinstance(data, Sequences):
        raise DataError(
            "this protocol splits sequences of users; give a 'user item item ...' file, or --protocol rows."
        )
    lengths = data.lengths
    if (lengths == 0).any():
        empty = data.users[int(np.flatnonzero(lengths == 0)[0])]
        raise DataError(f"user {empty!r} has no item. Leave the user out.")
    kept = np.flatnonzero(lengths >= fewest)
    short = len(lengths) - len(kept)
    if not len(kept):
        raise DataError(
            f"none of {len(lengths)} users has the {fewest} items that training, validation and test need; the longest "
            f"has {lengths.max(initial=0)}."
        )
    if short:
        first = data.users[int(np.flatnonzero(lengths < fewest)[0])]
        logger.warning(
            "%d of %d users have fewer than %d items and are left out (the first is %r).",
            short,
            len(lengths),
            fewest,
            first,
        )
    return data, kept, {**data.counts, "short_users": short}


def _finish(
    data: Sequences,
    kept: np.ndarray,
    train: Samples,
    ends: np.ndarray,
    windows: Windows,
    counts: dict[str, Any],
    rule: str,
) -> Split:
    """Validation and test rows of leave-last-two-out, for users whose sequences end at `ends`."""
    begins, flat, users = data.offsets[kept], data.items, np.arange(len(kept))

    def last(back: int) -> Samples:
        targets = flat[ends - back].astype(np.int64)
        return Samples(users, targets, flat, begins, ends - back, train.max_len, train.padding)

    return Split(
        train=train,
        valid=last(2),
        test=last(1),
        windows=windows,
        num_items=len(data.catalogue),
        user_names=[data.users[user] for user in kept],
        catalogue=data.catalogue,
        counts={
            **counts,
            "train": len(train),
            "valid": len(kept),
            "test": len(kept),
            "windows": len(windows),
            "split": rule,
        },
    )


def _rows_within(begins: np.ndarray, firsts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For users whose targets stand at `firsts` to `stops` (half open): user of each row, and its target's place."""
    return np.repeat(np.arange(len(begins)), stops - firsts), ranges(firsts, stops)


def split_prefixes(data: Sequences | Corpus, max_len: int, padding: Side) -> Split:
    """Leave-last-two-out with prefix samples, the empty prefix among them (protocol A).

    The last item of a user is the test target, the one before it the validation target. Training takes the newest
    `max_len` of the others: each is a target once, with those before it among the newest as history; the oldest
    has an empty history. Older items serve neither as history nor as target in training.

    `Split.windows` is another recipe: all training items, not only the newest.
    """
    data, kept, counts = _sequences(data, 3)
    begins, ends = data.offsets[kept], data.offsets[kept + 1]
    firsts = np.maximum(begins, ends - 2 - max_len)
    users, places = _rows_within(begins, firsts, ends - 2)
    targets = data.items[places].astype(np.int64)
    train = Samples(users, targets, data.items, firsts[users], places, max_len, padding)
    windows = make_windows(data.items, begins, ends - 2, np.ones_like(begins), max_len, padding)
    return _finish(data, kept, train, ends, windows, counts, "last two out")


def split_sliding(data: Sequences | Corpus, max_len: int, padding: Side) -> Split:
    """5-core, then leave-last-two-out over sliding windows (protocol B).

    Users and items with fewer than 5 interactions are struck out until none is left. Each item of a user but the first
    is a target once, with the `max_len` items before it as history; the last is the test row, the one before it the
    validation row, the others are training rows.
    """
    data, _, _ = _sequences(data, 1)
    data = _five_core(data)
    data, kept, counts = _sequences(data, 4)
    begins, ends = data.offsets[kept], data.offsets[kept + 1]
    users, places = _rows_within(begins, begins + 1, ends - 2)
    targets = data.items[places].astype(np.int64)
    train = Samples(users, targets, data.items, begins[users], places, max_len, padding)
    windows = make_windows(data.items, begins, ends - 2, np.ones_like(begins), max_len, padding)
    return _finish(data, kept, train, ends, windows, counts, "5-core, last two out")


def _five_core(data: Sequences, least: int = 5) -> Sequences:
    """The data without users and items that have fewer than five interactions; the same object where none has."""
    users = np.repeat(np.arange(len(data.users)), data.lengths)
    kept = k_core(users, data.items - 1, least)
    if len(kept) == len(users) and len(np.unique(data.items)) == len(data.catalogue):
        return data
    if not len(kept):
        raise DataError(
            f"no user and item with {least} interactions each is left of {len(users)} interactions. "
            "Take another protocol, or more data."
        )
    items, old_items = number_by_appearance(data.items[kept] - 1)
    _, old_users = number_by_appearance(users[kept])
    lengths = np.bincount(users[kept], minlength=len(data.users))[old_users]
    left_out = {
        "users": len(data.users) - len(old_users),
        "items": len(data.catalogue) - len(old_items),
        "interactions": len(users) - len(kept),
    }
    logger.warning(
        "%d-core: %d users, %d items and %d interactions are left out.", least, *(left_out[name] for name in left_out)
    )
    return Sequences(
        items=(items + 1).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        users=[data.users[user] for user in old_users],
        catalogue=data.catalogue.iloc[old_items].reset_index(drop=True),
        counts={**data.counts, **{f"{name}_below_core": n for name, n in left_out.items()}},
    )


def corpus_windows(corpus: Corpus, max_len: int, padding: Side) -> Windows:
    """The training rows of a corpus as windows, items from 1 (`minionerec.data.windows.user_windows`).

    With `max_len` the corpus's longest history, window i is that function's window i.
    """
    found, _ = row_windows(corpus.rows("train"), corpus.max_history)
    cut = found.begins, found.ends, np.maximum(found.firsts, 1), max_len, padding
    windows = make_windows(found.items + 1, *cut)
    moments = _moments(corpus, "train")
    if moments is None:
        return windows
    # Moments are cut as items are; where there is no target there is a 0, which is UNKNOWN.
    of_items = np.where(found.rows < 0, UNKNOWN, moments[found.rows])
    return replace(windows, moments=make_windows(of_items, *cut).targets.astype(np.int8))


def _moments(corpus: Corpus, split: str) -> np.ndarray | None:
    """What each row of a split asks for, int8 (R,); None where the corpus has no times."""
    times = corpus.times_of(split)
    return None if times is None else row_moments(times, len(corpus.rows(split)))


def split_rows(data: Sequences | Corpus, max_len: int, padding: Side) -> Split:
    """The rows of a corpus as they are: each (history, target) row of its three splits.

    User number U - 1 stands for every user without a training row.
    """
    if not isinstance(data, Corpus):
        raise DataError(
            "protocol rows takes the rows of a corpus; give the output of `minionerec prepare-data` as corpus."
        )
    known: dict[str, int] = {}
    for user in data.rows("train").users:
        known.setdefault(user, len(known))

    def samples(split: str) -> Samples:
        rows = data.rows(split)
        flat, borders = rows.flat_histories()
        numbers = np.array([known.get(user, len(known)) for user in rows.user_ids], dtype=np.int64)
        users, targets = numbers[rows.user_numbers], rows.targets.astype(np.int64) + 1
        return Samples(users, targets, flat + 1, borders[:-1], borders[1:], max_len, padding, _moments(data, split))

    windows = corpus_windows(data, max_len, padding)
    made = {split: samples(split) for split in SPLITS}
    times = {split: found for split in SPLITS if (found := data.times_of(split)) is not None}
    counts: Mapping[str, Any] = {split: len(made[split]) for split in SPLITS}
    return Split(
        **made,
        windows=windows,
        num_items=data.n_items,
        user_names=[*known, ""],
        catalogue=data.items,
        counts={**counts, "windows": len(windows), "users": len(known), "items": data.n_items, "split": data.split},
        times=times or None,
    )


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="a",
            title="A: last two out, seen items masked",
            padding="left",
            max_len=50,
            batch_size=256,
            seed=42,
            ks=(5, 10, 20),
            mrr=False,
            seen="mask",
            stop_after=10,
            ties=False,
            digits=None,
            splitter=split_prefixes,
        ),
        Protocol(
            name="b",
            title="B: 5-core, last two out, seen items kept",
            padding="right",
            max_len=50,
            batch_size=128,
            seed=2026,
            ks=(1, 5, 10),
            mrr=True,
            seen="keep",
            stop_after=11,
            ties=True,
            digits=4,
            splitter=split_sliding,
        ),
        Protocol(
            name=ROWS,
            title="rows of the corpus, seen items kept",
            padding="right",
            max_len=10,
            batch_size=256,
            seed=42,
            ks=(1, 3, 5, 10, 20, 50),
            mrr=False,
            seen="keep",
            stop_after=10,
            ties=False,
            digits=None,
            splitter=split_rows,
        ),
    )
}
"""The protocols by name: A of WEARec and BSARec, B of RecBole, and the row protocol of a corpus."""


def read_split(corpus: str, protocol: Protocol, items: str = "") -> Split:
    """The rows that a protocol makes of the data in a corpus directory or a file of sequences.

    Args:
        corpus: Output of `minionerec prepare-data` for the protocol of rows; for the others a "user item item ..."
            file, which may begin with `$MINIONEREC_DATA`.
        protocol: How to split.
        items: JSON file of item id → title for a file of sequences; "" for none.

    Raises:
        DataError: If a file is malformed or too small, or is not what the protocol splits.
        ArtefactError: If the corpus is missing.
    """
    place = find_path(corpus)
    if place.is_dir() or protocol.name == ROWS:
        return protocol.split(Corpus.load(place))
    return protocol.split(sequences_from_source(read_user_items(place, find_path(items) if items else None)))
