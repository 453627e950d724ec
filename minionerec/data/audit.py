"""Whether the order of what came at one moment says what people did, or how a file is sorted.

Where several items of a user bear the same time, their order is the source file's. If that order agrees with the order
of item ids far more often than chance would have it, it is the order of a listing: a model that learns it is rewarded
for knowing how the file was written. So neighbouring pairs of users' sequences are counted: in how many the item id
rises, in ties and, as a control, in pairs of different moments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.data.splits import stable_order
from minionerec.data.times import RowTimes

CHANCE = 0.5
"""Share of rising pairs when the order within a moment is a matter of chance."""
FAR = 0.1
"""A share is far from chance when it differs by more than this and its 95 % interval leaves chance out."""
_BATCH = 1 << 20
_Z = 1.959964


@dataclass(frozen=True)
class Agreement:
    """How often an order rises.

    Attributes:
        pairs: Pairs of two different values.
        rising: Of these, pairs whose later value is the greater one.
    """

    pairs: int = 0
    rising: int = 0

    @property
    def share(self) -> float:
        """Rising pairs of all; NaN where there is none."""
        return self.rising / self.pairs if self.pairs else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share; from 0 to 1 where there is no pair.

        Pairs count as independent. Those of one shuffled basket are not: a rise is likelier after a fall, so that by
        chance the share of large baskets varies less than the interval says.
        """
        if not self.pairs:
            return 0.0, 1.0
        n, weight = self.pairs, _Z**2 / self.pairs
        middle = (self.share + weight / 2) / (1 + weight)
        half = _Z / (1 + weight) * (self.share * (1 - self.share) / n + weight / (4 * n)) ** 0.5
        return middle - half, middle + half

    @property
    def far(self) -> bool:
        """Whether the share is far from chance, upwards or downwards."""
        low, high = self.interval
        return not low <= CHANCE <= high and abs(self.share - CHANCE) > FAR

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(self.pairs + other.pairs, self.rising + other.rising)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.share:.1%} of {self.pairs:,} (95 % interval {low:.1%} to {high:.1%})" if self.pairs else "no pair"
        )


@dataclass(frozen=True)
class OrderAudit:
    """What neighbouring pairs of users' sequences say about their order.

    Attributes:
        pairs: Neighbouring pairs; of sources with times those of which both times are known.
        ties: Pairs of one moment; None where there are no times.
        orders: What is compared → kind of pairs → how often it rises. "text": item ids as text; "number": as numbers,
            where all are digits; "file": places in the source's file, where they are known. Kinds are "ties" and
            "others", or "all" where there are no times. Pairs of one item twice are in no order of ids. "others" are
            no more than a control: where moments are sorted, they lead from the end of one list to the beginning of the
            next, and fall more often than by chance.
    """

    pairs: int = 0
    ties: int | None = None
    orders: Mapping[str, Mapping[str, Agreement]] = field(default_factory=dict)

    def __add__(self, other: "OrderAudit") -> "OrderAudit":
        """Both together; of audits of the same item ids."""
        orders: dict[str, dict[str, Agreement]] = {}
        for part in (self, other):
            for name, kinds in part.orders.items():
                held = orders.setdefault(name, {})
                for kind, one in kinds.items():
                    held[kind] = held.get(kind, Agreement()) + one
        counted = [part.ties for part in (self, other) if part.ties is not None]
        return OrderAudit(self.pairs + other.pairs, sum(counted) if counted else None, orders)

    @property
    def agrees_with_ids(self) -> bool:
        """Whether the order within moments is far from chance by item ids, as text or as numbers."""
        return any(self.orders.get(name, {}).get("ties", Agreement()).far for name in ("text", "number"))

    def counts(self) -> dict[str, Any]:
        """The numbers as plain values, for a manifest: `pairs`, `ties`, and for each order its kinds."""
        found: dict[str, Any] = {"pairs": self.pairs}
        if self.ties is not None:
            found |= {"ties": self.ties, "chance": CHANCE}
        for name, kinds in self.orders.items():
            found[name] = {kind: {"pairs": one.pairs, "rising": one.rising} for kind, one in kinds.items()}
        return found

    def lines(self) -> list[str]:
        """What a person reads: one line of ties, one for each order."""
        if self.ties is None:
            said = [f"neighbouring pairs: {self.pairs:,}; their times are unknown"]
            return said + [f"  {_NAMES[name]} rise in {kinds['all']}" for name, kinds in self.orders.items()]
        share = f" ({self.ties / self.pairs:.1%})" if self.pairs else ""
        said = [f"neighbouring pairs of one moment: {self.ties:,} of {self.pairs:,}{share}"]
        if self.ties:
            said += [
                f"  {_NAMES[name]} rise in {kinds['ties']}" + (f"; else in {kinds['others']}" if name != "file" else "")
                for name, kinds in self.orders.items()
            ]
        return said

    def warning(self) -> str | None:
        """What to say where the order within moments is that of item ids; None where it is not."""
        if not self.agrees_with_ids:
            return None
        name = next(name for name in ("text", "number") if self.orders.get(name, {}).get("ties", Agreement()).far)
        kinds = self.orders[name]
        return (
            f"Within one moment {_NAMES[name]} rise in {kinds['ties']}, by chance they would in {CHANCE:.0%}; between "
            f"moments in {kinds['others']}. The order within a moment is that of a listing, not what people did, and "
            "the next item is partly a question of how the file is sorted. Set ties to 'shuffle' or 'together', or "
            "report rows of one moment apart."
        )


_NAMES = {"text": "item ids as text", "number": "item ids as numbers", "file": "places in the file"}


def audit_pairs(
    earlier: np.ndarray,
    later: np.ndarray,
    item_ids: Sequence[str],
    same: np.ndarray | None = None,
    places: tuple[np.ndarray, np.ndarray] | None = None,
) -> OrderAudit:
    """Count how often item ids rise in pairs of items.

    Args:
        earlier: int (P,), item index of the earlier item of each pair.
        later: int (P,), of the later one.
        item_ids: N ids.
        same: bool (P,), whether both are of one moment; None where there are no times.
        places: int (P,) twice, where the source's file has the two; None where unknown.

    Example:
        >>> found = audit_pairs(np.array([0, 1, 2]), np.array([1, 2, 0]), ["9", "10", "x"], np.array([1, 1, 0], bool))
        >>> found.ties, found.orders["text"]["ties"]
        (2, Agreement(pairs=2, rising=1))
    """
    return _audit(earlier, later, id_ranks(item_ids), same, places)


def _audit(
    earlier: np.ndarray,
    later: np.ndarray,
    ranks: Mapping[str, np.ndarray],
    same: np.ndarray | None,
    places: tuple[np.ndarray, np.ndarray] | None,
) -> OrderAudit:
    kinds = {"all": np.ones(len(earlier), dtype=bool)} if same is None else {"ties": same, "others": ~same}
    values = {name: (rank[earlier], rank[later]) for name, rank in ranks.items()}
    orders = {name: {kind: _rises(*pair, chosen) for kind, chosen in kinds.items()} for name, pair in values.items()}
    if places is not None and same is not None:
        orders["file"] = {"ties": _rises(*places, same)}
    return OrderAudit(len(earlier), None if same is None else int(same.sum()), orders)


def _rises(before: np.ndarray, after: np.ndarray, chosen: np.ndarray) -> Agreement:
    return Agreement(int((chosen & (before != after)).sum()), int((chosen & (before < after)).sum()))


def id_ranks(item_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Place of each item in the order of ids as text, and as numbers where all are digits; equal numbers share one."""
    orders: dict[str, list[Any]] = {"text": list(item_ids)}
    if item_ids and all(one.isascii() and one.isdigit() for one in item_ids):
        plain = [one.lstrip("0") for one in item_ids]
        orders["number"] = [(len(digits), digits) for digits in plain]
    ranks = {}
    for name, keys in orders.items():
        number = {key: place for place, key in enumerate(sorted(set(keys)))}
        ranks[name] = np.array([number[key] for key in keys], dtype=np.int32)
    return ranks


def audit_visits(
    users: np.ndarray,
    items: np.ndarray,
    item_ids: Sequence[str],
    moments: np.ndarray | None = None,
    places: np.ndarray | None = None,
) -> OrderAudit:
    """Audit the neighbouring pairs of all users' sequences, in parts of bounded memory.

    Args:
        users: int (M,), user of each interaction, in the order in which they happened.
        items: int (M,), item index of each.
        item_ids: N ids.
        moments: int64 (M,), when each happened; None where unknown.
        places: int64 (M,), where the source's file has it; None where unknown.
    """
    order, ranks = stable_order(users), id_ranks(item_ids)
    found = OrderAudit()
    for start in range(0, max(1, len(order) - 1), _BATCH):
        before, after = order[start : start + _BATCH], order[start + 1 : start + 1 + _BATCH]
        before = before[: len(after)]
        own = users[before] == users[after]
        before, after = before[own], after[own]
        same = None if moments is None else moments[before] == moments[after]
        where = None if places is None else (places[before], places[after])
        found += _audit(items[before], items[after], ranks, same, where)
    return found


def audit_rows(
    corpus: Corpus, splits: Sequence[str], times: Mapping[str, RowTimes] | None = None, item_ids: Sequence[str] = ()
) -> OrderAudit:
    """Audit the pairs (newest item of the history, target) of rows, such as those of a split that came without times.

        times = {split: row_times(corpus, split, Path("times.csv")) for split in ("valid", "test")}
        audit = audit_rows(corpus, ["valid", "test"], times)
        audit.orders["text"]["ties"].share, audit.orders["text"]["others"].interval

    Args:
        corpus: The rows; a row without history is no pair.
        splits: Which of their splits.
        times: Split → times of its rows; only rows of which both times are known are counted. None to count all pairs
            without regard to time.
        item_ids: N ids to compare, item by item; those of the corpus where none are given. The published items are
            numbered in the order of their first appearance: the shop's own ids say more.

    Raises:
        DataError: If a split is unknown or empty, or the ids are not one an item.
    """
    ids = list(item_ids) or corpus.items["item_id"].tolist()
    if len(ids) != corpus.n_items:
        raise DataError(f"there are {len(ids)} ids for {corpus.n_items} items. Give one an item, in their order.")
    found, ranks = OrderAudit(), id_ranks(ids)
    for split in splits:
        rows = corpus.rows(split)
        filled = rows.lengths > 0
        if times is not None:
            filled &= times[split].known
        same = None if times is None else times[split].same[filled]
        found += _audit(rows.newest[filled], rows.targets[filled], ranks, same, None)
    return found
