"""The interface of rankers, from queries to ranked items with scores; all rankers can be evaluated and served."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from minionerec.core.errors import DataError
from minionerec.data.contexts import GAP, RequestFeature, chosen_features
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Queries:
    """A batch of queries: histories and request features.

    A ranker reads the features it was trained with and ignores the rest.

    Attributes:
        histories: For each of R queries its item indices, int32, oldest first; may be empty.
        context: Name of a request feature → int16 (R,), its codes (`minionerec.data.contexts.RequestFeature`) by the
            ranker that is asked; features that are not named are unknown. After an empty history the gap is unknown
            whatever is given.
        seen: For each query all items that the user had, int32, oldest first, of which the history may be the newest
            alone; the histories if None.
        events: For each query the event of each of these items, int16, numbers of the corpus's `event_names`, -1 where
            unknown; None: unknown for all.

    Example:
        >>> queries = Queries([np.array([3, 1]), np.array([])], {"gap": np.array([1, 2], np.int16)})
        >>> queries.context["gap"].tolist(), len(queries.take([1, 0, 0]))
        ([1, 0], 3)
    """

    histories: Sequence[np.ndarray]
    context: Mapping[str, np.ndarray] = field(default_factory=dict)
    seen: Sequence[np.ndarray] = None  # type: ignore[assignment]
    events: Sequence[np.ndarray] | None = None

    def __post_init__(self) -> None:
        """Check lengths.

        Raises:
            DataError: If a field has not one value for each history.
        """
        if self.seen is None:
            object.__setattr__(self, "seen", self.histories)
        for name, values in {"seen": self.seen, "events": self.events, **self.context}.items():
            if values is not None and len(values) != len(self):
                raise DataError(f"{name} has {len(values)} values for {len(self)} histories; give one for each.")
        if GAP in self.context:
            empty = [len(history) == 0 for history in self.histories]
            gaps = np.where(empty, UNKNOWN, self.context[GAP]).astype(np.int16)
            object.__setattr__(self, "context", {**self.context, GAP: gaps})

    def __len__(self) -> int:
        """Number of queries, R."""
        return len(self.histories)

    def take(self, rows: Sequence[int] | np.ndarray) -> "Queries":
        """Some of the queries, in the order of `rows`."""
        chosen = np.asarray(rows, dtype=np.int64)
        return Queries(
            [self.histories[row] for row in rows],
            {name: codes[chosen] for name, codes in self.context.items()},
            seen=[self.seen[row] for row in rows],
            events=None if self.events is None else [self.events[row] for row in rows],
        )

    def without_items(self, items: Sequence[int]) -> "Queries":
        """The first query, and for each of some items the same without it, wherever it occurs."""
        found = self.take([0] * (1 + len(items)))
        histories, seen = (
            [past[0], *(own[own != item] for own, item in zip(past[1:], items, strict=True))]
            for past in (found.histories, found.seen)
        )
        events = found.events
        if events is not None:
            parts = zip(events[1:], found.seen[1:], items, strict=True)
            events = [events[0], *(of[past != item] for of, past, item in parts)]
        return replace(found, histories=histories, seen=seen, events=events)

    @classmethod
    def joined(cls, parts: Sequence["Queries"]) -> "Queries":
        """Several batches as one; a feature that one of them lacks is unknown there."""
        names = dict.fromkeys(name for part in parts for name in part.context)
        events = None
        if any(part.events is not None for part in parts):
            events = [of for part in parts for of in part.known_events]
        return cls(
            [history for part in parts for history in part.histories],
            {name: np.concatenate([part.codes([name])[:, 0] for part in parts]) for name in names},
            [past for part in parts for past in part.seen],
            events,
        )

    def codes(self, names: Sequence[str]) -> np.ndarray:
        """Codes of request features, unknown where they are not named: int16 (R, F), in the order of `names`."""
        codes = np.full((len(self), len(names)), UNKNOWN, dtype=np.int16)
        for column, name in enumerate(names):
            if name in self.context:
                codes[:, column] = self.context[name]
        return codes

    @property
    def known_events(self) -> Sequence[np.ndarray]:
        """`events`, with -1 throughout where they are None."""
        return [np.full(len(past), -1, np.int16) for past in self.seen] if self.events is None else self.events

    @property
    def history_events(self) -> Sequence[np.ndarray | None]:
        """For each query the events of its history; None where they are unknown."""
        if self.events is None:
            return [None] * len(self)
        parts = zip(self.events, self.histories, strict=True)
        return [events[len(events) - len(history) :] for events, history in parts]

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the request features known for some queries; and "events"."""
        known = [name for name, codes in self.context.items() if (codes != UNKNOWN).any()]
        return (*known, *["events"] * (self.events is not None))

    def key(self, row: int) -> tuple[object, ...]:
        """A key that is equal for queries that are the same to a ranker."""
        items = tuple(self.histories[row].tolist()), tuple(self.seen[row].tolist())
        events = None if self.events is None else tuple(self.events[row].tolist())
        return *items, events, *((name, int(codes[row])) for name, codes in sorted(self.context.items()))


def context_used(ranker: object) -> frozenset[str]:
    """The request features, and "events", that a ranker reads, by its attribute `context`; none without it."""
    names: frozenset[str] = getattr(ranker, "context", frozenset())
    return names


def features_used(ranker: object, corpus: Corpus) -> tuple[RequestFeature, ...]:
    """The request features that a ranker reads, by its attribute `features`; else those of a corpus that it names.

    Raises:
        ConfigError: If the corpus does not have one that it names.
    """
    features: tuple[RequestFeature, ...] | None = getattr(ranker, "features", None)
    if features is None:
        features = chosen_features(corpus, sorted(context_used(ranker) - {"events"}))
    return features


_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Allowed:
    """The items that may be listed, for each of R queries.

    Attributes:
        n_items: Number of items, N.
        masks: bool (U, N), the masks that rows share.
        which: int64 (R,), the mask of each row; -1 allows everything.
        without: For each row int64 item indices, ascending, that must not be listed regardless of its mask.
    """

    n_items: int
    masks: np.ndarray
    which: np.ndarray
    without: Sequence[np.ndarray]

    def __post_init__(self) -> None:
        """Check shapes and indices.

        Raises:
            DataError: If they do not match.
        """
        if self.masks.shape != (len(self.masks), self.n_items) or len(self.which) != len(self.without):
            raise DataError(
                f"masks have shape {self.masks.shape} for {self.n_items} items; {len(self.which)} rows have a mask and "
                f"{len(self.without)} have items left out."
            )
        if len(self.which) and not -1 <= self.which.min() <= self.which.max() < len(self.masks):
            raise DataError(f"row {int(np.argmax(self.which))} names mask {self.which.max()} of {len(self.masks)}.")
        for row, items in enumerate(self.without):
            if len(items) and not 0 <= items[0] <= items[-1] < self.n_items:
                raise DataError(f"row {row} leaves out items {items.tolist()}; items are 0 to {self.n_items - 1}.")

    @classmethod
    def leaving_out(cls, without: Sequence[Collection[int]], n_items: int) -> "Allowed":
        """All items except some of each row.

        Example:
            >>> allowed = Allowed.leaving_out([[2, 0], []], 3)
            >>> allowed.row(0).tolist(), allowed.row(1).tolist()
            ([False, True, False], [True, True, True])
        """
        which = np.full(len(without), -1, dtype=np.int64)
        return cls(n_items, np.zeros((0, n_items), dtype=bool), which, [_sorted(items) for items in without])

    @classmethod
    def of_masks(
        cls, masks: Sequence[np.ndarray | None], without: Sequence[Collection[int]], n_items: int
    ) -> "Allowed":
        """One mask, or None for everything, and items left out, for each row; equal masks are kept once.

        Args:
            masks: R masks, bool (N,).
            without: For each row item indices that must not be listed.
            n_items: Number of items, N.
        """
        kept: dict[bytes, int] = {}
        which = np.full(len(masks), -1, dtype=np.int64)
        rows: list[np.ndarray] = []
        for row, mask in enumerate(masks):
            if mask is None:
                continue
            key = np.packbits(mask).tobytes()
            if key not in kept:
                kept[key] = len(rows)
                rows.append(mask)
            which[row] = kept[key]
        stacked = np.stack(rows) if rows else np.zeros((0, n_items), dtype=bool)
        return cls(n_items, stacked, which, [_sorted(items) for items in without])

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.which)

    @cached_property
    def unrestricted(self) -> bool:
        """Whether every row allows everything."""
        return bool((self.which < 0).all()) and not any(map(len, self.without))

    def row(self, row: int) -> np.ndarray:
        """The items allowed for one row: bool (N,), a copy."""
        if self.which[row] < 0:
            mask = np.ones(self.n_items, dtype=bool)
        else:
            mask = self.masks[self.which[row]].copy()
        mask[self.without[row]] = False
        return mask

    def rows(self, rows: Sequence[int] | slice) -> np.ndarray:
        """The items allowed for some rows: bool (B, N)."""
        selected = range(len(self))[rows] if isinstance(rows, slice) else rows
        return (
            np.stack([self.row(row) for row in selected]) if len(selected) else np.zeros((0, self.n_items), dtype=bool)
        )

    def key(self, row: int) -> tuple[int, bytes]:
        """A key that is equal for rows with the same mask and the same excluded items."""
        return int(self.which[row]), self.without[row].tobytes()


def _sorted(items: Collection[int]) -> np.ndarray:
    return np.unique(np.fromiter(items, dtype=np.int64, count=len(items))) if len(items) else _NOTHING


@dataclass(frozen=True)
class Ranking:
    """Ranked items for some queries.

    Attributes:
        items: For each query its item indices, best first, without duplicates.
        scores: Parallel to `items`, higher is better.
    """

    items: Sequence[Sequence[int]]
    scores: Sequence[Sequence[float]]


@runtime_checkable
class Ranker(Protocol):
    """A ranker of the items of one corpus.

    A user's own ranker is given by the dotted path of a function that takes a `Corpus` and returns such an object. A
    ranker that reads more of a query than its history declares it: `context`, a frozenset of names of request features,
    and "events". The codes of the features are those of the corpus, unless the ranker has `features`
    (`minionerec.data.contexts.RequestFeature`).
    """

    def rank(self, queries: Queries, k: int, allowed: Allowed | None = None) -> Ranking:
        """The best items for each query.

        Args:
            queries: R queries.
            k: Candidates of each list: items, or distinct SIDs of a ranker that ranks SIDs, whose lists are longer
                where items share one.
            allowed: Items that may be listed, per query; all if None.

        Returns:
            Lists of at most `k` candidates; shorter only where fewer are allowed.
        """
        ...


@dataclass(frozen=True)
class Assistant:
    """A second recommender mixed into a search, by the probabilities of all candidates for each query.

    Attributes:
        name: Its name in tables.
        context: See `Ranker`.
        features: Request features that it reads.
        log_probs: From B queries to the log-probabilities of all candidates (SIDs, or titles), float32 (B, S), by their
            numbers in the trie; each row's probabilities sum to 1.
    """

    name: str
    context: frozenset[str]
    features: tuple[RequestFeature, ...]
    log_probs: "Callable[[Queries], torch.Tensor]"
