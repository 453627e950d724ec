"""Audit of order: whether the order within a timestamp reflects users' behaviour, or how a file is sorted.

Where several items of a user bear the same time, their order is the source file's. If that order agrees with the order
of item ids far more often than chance would have it, it is the order of a listing: a model that learns it is rewarded
for knowing how the file was written. So neighbouring pairs of users' sequences are counted: in how many the item id
rises, in ties and, as a control, in pairs of different timestamps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minionerec.data.corpus import Corpus, id_ranks
from minionerec.data.times import RowTimes

CHANCE = 0.5
"""Share of rising pairs when the order within a timestamp is a matter of chance."""
FAR = 0.1
"""A share is far from chance when it differs by more than this and its 95 % interval leaves chance out."""
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
        chance the share of large baskets varies less than the interval suggests.
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

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.share:.1%} of {self.pairs:,} (95 % interval {low:.1%} to {high:.1%})" if self.pairs else "no pair"
        )


@dataclass(frozen=True)
class OrderAudit:
    """Statistics of the order of neighbouring pairs in users' sequences.

    Attributes:
        pairs: Neighbouring pairs; of sources with times those of which both times are known.
        ties: Pairs within one second; None where there are no times.
        orders: Key compared → kind of pairs → how often it rises. "text": item ids as text; "number": as numbers,
            where all are digits; "file": positions in the source's file, where they are known. Kinds are "ties" and
            "others", or "all" where there are no times. Pairs of one item twice are in no order of ids. "others" are
            no more than a control: where those are sorted, pairs lead from the end of one list to the beginning of the
            next, and fall more often than by chance.
    """

    pairs: int = 0
    ties: int | None = None
    orders: Mapping[str, Mapping[str, Agreement]] = field(default_factory=dict)

    @property
    def agrees_with_ids(self) -> bool:
        """Whether the order within timestamps is far from chance by item ids, as text or as numbers."""
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
        """Summary lines: one of ties, one for each order."""
        if self.ties is None:
            lines = [f"neighbouring pairs: {self.pairs:,}; their times are unknown"]
            return lines + [f"  {_NAMES[name]} rise in {kinds['all']}" for name, kinds in self.orders.items()]
        share = f" ({self.ties / self.pairs:.1%})" if self.pairs else ""
        lines = [f"neighbouring pairs within one second: {self.ties:,} of {self.pairs:,}{share}"]
        if self.ties:
            lines += [
                f"  {_NAMES[name]} rise in {kinds['ties']}" + (f"; else in {kinds['others']}" if name != "file" else "")
                for name, kinds in self.orders.items()
            ]
        return lines

    def warning(self) -> str | None:
        """The warning where the order within timestamps is that of item ids; else None."""
        if not self.agrees_with_ids:
            return None
        name = next(name for name in ("text", "number") if self.orders.get(name, {}).get("ties", Agreement()).far)
        kinds = self.orders[name]
        between = f"; between seconds in {kinds['others']}" if kinds["others"].pairs else ""
        separately = ", or report examples within one second separately" if between else ""
        return (
            f"Within one second {_NAMES[name]} rise in {kinds['ties']}, by chance they would in {CHANCE:.0%}{between}. "
            "The order within a second is that of a listing, not of users' behaviour, and the next item partly depends "
            f"on how the file is sorted. Set ties to 'shuffle' or 'together'{separately}."
        )


_NAMES = {"text": "item ids as text", "number": "item ids as numbers", "file": "positions in the file"}


def audit_of_signs(signs: ArrayLike, timed: bool, orders: Sequence[str]) -> OrderAudit:
    """An audit of counted pairs.

    Args:
        signs: int (K, 5), a row for each kind of pairs: whether both have one timestamp (1 or 0); whether ids as text,
            ids as numbers and positions in the file rise (1), fall (-1) or are equal (0); and how many pairs there are.
        timed: Whether times are known.
        orders: Which of "text", "number" and "file" are known.

    Example:
        >>> audit_of_signs([(1, 1, 0, 1, 5), (1, -1, 0, 1, 2), (0, 1, 0, 1, 9)], True, ["text"]).orders["text"]["ties"]
        Agreement(pairs=7, rising=5)
    """
    found = np.array(signs, dtype=np.int64).reshape(-1, 5)
    tied, counts = found[:, 0] == 1, found[:, 4]
    kinds = {"ties": tied, "others": ~tied} if timed else {"all": counts > 0}
    agreements = {}
    for name, sign in zip(("text", "number", "file"), found.T[1:4], strict=True):
        if name in orders and (timed or name != "file"):
            agreements[name] = {
                kind: Agreement(int(counts[chosen & (sign != 0)].sum()), int(counts[chosen & (sign > 0)].sum()))
                for kind, chosen in kinds.items()
                if name != "file" or kind == "ties"
            }
    return OrderAudit(int(counts.sum()), int(counts[tied].sum()) if timed else None, agreements)


def audit_examples(corpus: Corpus, splits: Sequence[str], times: Mapping[str, RowTimes] | None = None) -> OrderAudit:
    """Audit the pairs (newest item of the history, target) of examples, such as those of a split without times.

        times = {split: corpus.rows(split).times for split in ("valid", "test")}
        audit = audit_examples(corpus, ["valid", "test"], times)
        audit.orders["text"]["ties"].share, audit.orders["text"]["others"].interval

    Args:
        corpus: The examples; an example without history is no pair.
        splits: Which of their splits.
        times: Split → times of its examples; only examples of which both times are known are counted. None to count all
            pairs without regard to time.

    Raises:
        DataError: If a split is unknown or empty.
    """
    ranks, parts = id_ranks(corpus.items["item_id"].tolist()), [np.zeros((0, 4), dtype=np.int8)]
    for split in splits:
        rows = corpus.rows(split)
        filled = rows.lengths > 0
        signs = np.zeros((len(rows), 4), dtype=np.int8)
        if times is not None:
            filled &= times[split].known
            signs[:, 0] = times[split].same
        for column, rank in enumerate(ranks.values(), start=1):
            signs[:, column] = np.sign(rank[rows.targets] - rank[rows.newest])
        parts.append(signs[filled])
    kinds, counts = np.unique(np.concatenate(parts), axis=0, return_counts=True)
    return audit_of_signs(np.column_stack([kinds, counts]), times is not None, list(ranks))
