"""Evaluation protocols as objects: how data are split, padded, ranked, measured, and when training stops."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.filters import k_core
from minionerec.data.rows import Side, SplitExamples, ranges
from minionerec.data.source import Source
from minionerec.data.sources.user_items import read_user_items

logger = get_logger(__name__)

ROWS = "rows"
CORE = 5
"""Fewest interactions of users and items in protocol B."""


@dataclass(frozen=True)
class Protocol:
    """One way to split, rank, measure and stop.

    Attributes:
        name: Key in `PROTOCOLS`.
        title: Its name in tables.
        padding: Side on which histories are padded.
        max_len: Most items of a history that models read.
        batch_size: Examples of a training step.
        seed: The published runs' seed.
        ks: Cutoffs of the metrics.
        mrr: Whether MRR is reported at every cutoff (else only at the largest).
        seen: Treatment of the scores of items in an example's history: "mask" (never recommended; padding neither),
            "zero" (set to 0.0, and padding may be recommended: the published way of protocol A) or "keep" (they
            compete; padding does not).
        stop_after: Training stops when this many epochs in a row were no improvement.
        ties: Whether an equal figure is an improvement.
        digits: Decimals that the figure is rounded to first; None for none.
        splitter: Makes a corpus of a source and `max_len`; None where the corpus has its own examples.
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
    splitter: Callable[[Source, int], Corpus] | None = None

    def split(self, source: Source) -> Corpus:
        """The examples of a source, by protocols A and B.

        Raises:
            DataError: If the protocol splits no source, or no user has enough items.
        """
        if self.splitter is None:
            raise DataError(
                "protocol rows takes the examples of a corpus; give the output of `minionerec prepare-data` as corpus."
            )
        return self.splitter(source, self.max_len)


def _by_user(source: Source) -> Source:
    """The interactions of a source user by user, of which each user's are in time order; its counts are its sizes.

    Raises:
        DataError: If a user has none.
    """
    order = np.argsort(source.users, kind="stable")
    without = np.flatnonzero(np.bincount(source.users, minlength=len(source.user_ids)) == 0)
    if len(without):
        raise DataError(f"user {str(source.user_ids[int(without[0])])!r} has no item. Leave the user out.")
    counts = {"users": len(source.user_ids), "items": len(source.items), "interactions": len(order)}
    users, items = source.users[order], source.item_index[order].astype(np.int32)
    return replace(source, users=users, item_index=items, times=None, counts=counts)


def _core(source: Source) -> Source:
    """The source without users and items that have fewer than five interactions.

    Raises:
        DataError: If none is left.
    """
    kept = k_core(source.users, source.item_index, CORE)
    if len(kept) == len(source.users) and len(np.unique(source.item_index)) == len(source.items):
        return source
    if not len(kept):
        raise DataError(
            f"no user and item with {CORE} interactions each is left of {len(source.users)} interactions. "
            "Take another protocol, or more data."
        )
    users, items = source.users[kept], source.item_index[kept]
    old_users, old_items = pd.unique(users), pd.unique(items)
    left_out = {
        "users": len(source.user_ids) - len(old_users),
        "items": len(source.items) - len(old_items),
        "interactions": len(source.users) - len(kept),
    }
    logger.warning(
        "%d-core: %d users, %d items and %d interactions are left out.",
        CORE,
        *(left_out[name] for name in left_out),
    )
    return replace(
        source,
        items=source.items.iloc[old_items].reset_index(drop=True),
        users=pd.factorize(users)[0],
        item_index=pd.factorize(items)[0].astype(np.int32),
        user_ids=source.user_ids.take(pa.array(old_users)),
        counts={**source.counts, **{f"{name}_below_core": n for name, n in left_out.items()}},
    )


def _leave_two_out(source: Source, fewest: int, most: int | None, begin: int, max_len: int, rule: str) -> Corpus:
    """The last item of each user is the test target, the one before it the validation target.

    Args:
        source: Interactions, user by user.
        fewest: Items that a user needs.
        most: Newest training items that are targets, and histories of training examples; None for all.
        begin: The first of them that is a target.
        max_len: Most items of a history that models read.
        rule: Name of the split.

    Raises:
        DataError: If no user has that many items.
    """
    lengths = np.bincount(source.users, minlength=len(source.user_ids))
    kept = np.flatnonzero(lengths >= fewest)
    short = len(lengths) - len(kept)
    if not len(kept):
        raise DataError(
            f"none of {len(lengths)} users has the {fewest} items that training, validation and test need; the "
            f"longest has {lengths.max(initial=0)}."
        )
    names = np.array([str(user) for user in source.user_ids.to_pylist()], dtype=object)
    if short:
        logger.warning(
            "%d of %d users have fewer than %d items and are left out (the first is %r).",
            short,
            len(lengths),
            fewest,
            names[int(np.flatnonzero(lengths < fewest)[0])],
        )
    ends = np.cumsum(lengths)[kept]
    begins = ends - lengths[kept]
    firsts = begins if most is None else np.maximum(begins, ends - 2 - most)
    owners = np.repeat(np.arange(len(kept)), ends - 2 - firsts - begin)
    positions = ranges(firsts + begin, ends - 2)

    def examples(users: np.ndarray, begins: np.ndarray, positions: np.ndarray) -> SplitExamples:
        items = source.item_index
        return SplitExamples(names[kept], users.astype(np.int32), items, begins, positions, items[positions])

    every = np.arange(len(kept))
    corpus = Corpus(
        source.items,
        examples(owners, firsts[owners], positions),
        examples(every, begins, ends - 2),
        examples(every, begins, ends - 1),
        split=rule,
        max_history=max_len,
        leaves_two_out=True,
    )
    sizes = {**corpus.sizes, "windows": sum(map(len, corpus.windows("train")))}
    return replace(corpus, counts={**source.counts, "short_users": short, **sizes, "split": rule})


def split_prefixes(source: Source, max_len: int) -> Corpus:
    """Leave-last-two-out with prefixes as examples, the empty prefix among them (protocol A).

    The last item of a user is the test target, the one before it the validation target. Training takes the newest
    `max_len` of the others: each is a target once, with those before it among the newest as history; the oldest
    has an empty history. Older items serve neither as history nor as target in training.

    `Corpus.windows` is another recipe: all training items, not only the newest.
    """
    return _leave_two_out(_by_user(source), 3, max_len, 0, max_len, "last two out")


def split_sliding(source: Source, max_len: int) -> Corpus:
    """5-core, then leave-last-two-out over sliding windows (protocol B).

    Users and items with fewer than 5 interactions are struck out until none is left. Each item of a user but the first
    is a target once, with the `max_len` items before it as history; the last is the test target, the one before it the
    validation target, the others are training targets.
    """
    return _leave_two_out(_core(_by_user(source)), 4, None, 1, max_len, "5-core, last two out")


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
            title="examples of the corpus, seen items kept",
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
        ),
    )
}
"""The protocols by name: A of WEARec and BSARec, B of RecBole, and the row protocol of a corpus."""


def read_examples(corpus: str, protocol: Protocol, items: str = "") -> Corpus:
    """A corpus, or the examples that a protocol makes of a file of sequences.

    Args:
        corpus: Output of `minionerec prepare-data` for the protocol of rows; for the others a "user item item ..."
            file.
        protocol: How to split.
        items: JSON file of item id → title for a file of sequences; "" for none.

    Raises:
        DataError: If a file is malformed or too small, or of a kind that the protocol does not split.
        ArtefactError: If the corpus is missing.
    """
    if protocol.splitter is None:
        return Corpus.load(corpus)
    if Path(corpus).is_dir():
        raise DataError(
            "this protocol splits sequences of users; give a 'user item item ...' file, or --protocol rows."
        )
    return protocol.split(read_user_items(corpus, items or None))
