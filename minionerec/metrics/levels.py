"""Hit rates level by level of the semantic ID."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from minionerec.core.errors import DataError
from minionerec.metrics.predictions import Predictions, length_of_lists
from minionerec.metrics.ranking import DEFAULT_KS, check_ks, distinct_sids
from minionerec.sid.table import split_sid

_UNPARSABLE = -2


@dataclass(frozen=True)
class LevelAnalysis:
    """Hit rates by level, over the examples whose target is an SID of `levels` levels or more.

    Attributes:
        ks: The cutoffs.
        levels: Number of levels compared, L.
        independent: float64 (len(ks), L + 1). Column l < L: share of examples in which any of the first K predictions
            has the target's code at level l, whatever the other levels. Last column: any is the whole SID.
        cumulative: float64 (len(ks), L). Column l: share of examples in which a single one of the first K predictions
            has the target's codes at levels 1 to l + 1.
        dropoff: L numbers at K = 1: cumulative accuracy of level 1, then of each further level divided by that of the
            level before it; None where that is zero.
        rows: Examples counted, the denominator.
        excluded: Examples left out because their target does not parse as an SID, or has fewer levels.
        unparsable: Predictions of the counted examples, within the largest K, that do not parse or have fewer levels.
            They never hit, and keep their rank in the list.
        looked_at: All predictions of the counted examples within the largest K.
    """

    ks: tuple[int, ...]
    levels: int
    independent: np.ndarray
    cumulative: np.ndarray
    dropoff: tuple[float | None, ...]
    rows: int
    excluded: int
    unparsable: int
    looked_at: int

    @property
    def transitions(self) -> list[str]:
        """Names of the drop-off's numbers: "l1", "l1_to_l2", "l2_to_l3"..."""
        return ["l1", *(f"l{level}_to_l{level + 1}" for level in range(1, self.levels))]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object with the keys independent, cumulative, dropoff and rows; numbers are not rounded."""
        return {
            "independent": {str(k): row for k, row in zip(self.ks, self.independent.tolist(), strict=True)},
            "cumulative": {str(k): row for k, row in zip(self.ks, self.cumulative.tolist(), strict=True)},
            "dropoff": dict(zip(self.transitions, self.dropoff, strict=True)),
            "rows": self.rows,
        }


def level_analysis(
    predictions: Predictions,
    ks: Sequence[int] | None = None,
    *,
    list_length: int | None = None,
    keep_duplicates: bool = False,
    where: str = "predictions",
) -> LevelAnalysis:
    """Compare predictions with targets level by level.

    As many levels as most targets have are compared (the larger number on a tie). Codes beyond, such as one that
    distinguishes colliding items, count for "exact" alone.

    Args:
        predictions: The ranked lists; only their SIDs are read.
        ks: Cutoffs; those of 1, 3, 5, 10, 20, 50 within `list_length` if None (at least K = 1).
        list_length: Number of requested candidates (beams); the longest list's if None.
        keep_duplicates: Whether a repeated SID takes a rank of its own. False suits lists in which items that share
            an SID follow one another; True takes lists as they are, as for a published JSON file.
        where: Name of the source in messages.

    Raises:
        ConfigError: If a K is larger than `list_length`.
        DataError: If no target parses as an SID.
    """
    lists = [list(row) for row in predictions.sids] if keep_duplicates else distinct_sids(predictions)
    list_length = length_of_lists(predictions) if list_length is None else list_length
    ordered = check_ks(ks, list_length) if ks is not None else tuple(k for k in DEFAULT_KS if k <= max(1, list_length))
    lists = [row[: ordered[-1]] for row in lists]
    parsed = {text: split_sid(text) or () for text in {*chain.from_iterable(lists), *predictions.target_sids}}
    depth = _depth([parsed[target] for target in predictions.target_sids], predictions, where)
    counted = [row for row, target in enumerate(predictions.target_sids) if len(parsed[target]) >= depth]
    code = _as_numbers(parsed, depth)
    found = np.full((len(counted), ordered[-1], depth + 1), -1, dtype=np.int32)  # (R, K, L + 1)
    for position, row in enumerate(counted):
        if lists[row]:
            found[position, : len(lists[row])] = [code[text] for text in lists[row]]
    wanted = np.array([code[predictions.target_sids[row]] for row in counted], dtype=np.int32)  # (R, L + 1)
    independent, cumulative, dropoff = _hit_rates(found == wanted[:, None, :], ordered)
    return LevelAnalysis(
        ks=ordered,
        levels=depth,
        independent=independent,
        cumulative=cumulative,
        dropoff=dropoff,
        rows=len(counted),
        excluded=len(predictions) - len(counted),
        unparsable=int((found[:, :, 0] == _UNPARSABLE).sum()),
        looked_at=int((found[:, :, 0] != -1).sum()),
    )


def _depth(targets: Sequence[tuple[str, ...]], predictions: Predictions, where: str) -> int:
    """Number of levels to compare: the most frequent one of targets, the larger on a tie."""
    lengths = Counter(len(target) for target in targets if target)
    if not lengths:
        shown = predictions.target_sids[0] if len(predictions) else "(no example)"
        raise DataError(
            f"{where}: no target parses as a semantic ID; the first is {shown!r}, expected e.g. '<a_12><b_7><c_201>'."
        )
    return max(lengths, key=lambda length: (lengths[length], length))


def _as_numbers(parsed: Mapping[str, tuple[str, ...]], depth: int) -> dict[str, tuple[int, ...]]:
    """Every SID as numbers: of its tokens at the first `depth` levels, then of the SID as a whole.

    Where a text does not parse, or has fewer levels, they are all -2, which matches nothing.
    """
    tokens = {token: number for number, token in enumerate(sorted({*chain.from_iterable(parsed.values())}))}
    names = {sid: number for number, sid in enumerate(sorted(set(parsed.values())))}
    return {
        text: (*(tokens[token] for token in sid[:depth]), names[sid])
        if len(sid) >= depth
        else (_UNPARSABLE,) * (depth + 1)
        for text, sid in parsed.items()
    }


def _hit_rates(same: np.ndarray, ks: Sequence[int]) -> tuple[np.ndarray, np.ndarray, tuple[float | None, ...]]:
    """Independent and cumulative hit rates, and the drop-off at K = 1.

    Args:
        same: bool (R, K, L + 1), where predictions agree with targets; the last column compares whole SIDs.
        ks: Cutoffs.
    """
    prefix = np.logical_and.accumulate(same[:, :, :-1], axis=2)  # (R, K, L)
    independent = np.stack([same[:, :k].any(axis=1).mean(axis=0) for k in ks])
    cumulative = np.stack([prefix[:, :k].any(axis=1).mean(axis=0) for k in ks])
    first = prefix[:, 0].sum(axis=0).tolist()
    kept = [after / before if before else None for before, after in pairwise(first)]
    return independent, cumulative, (first[0] / len(same), *kept)
