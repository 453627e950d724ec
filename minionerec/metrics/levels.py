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
            has the target's code at level l, regardless of other levels. Last column: share of hits of the whole SID.
        cumulative: float64 (len(ks), L). Column l: share of examples in which a single one of the first K predictions
            has the target's codes at levels 1 to l + 1.
        dropoff: L numbers at K = 1: cumulative accuracy of level 1, then of each further level divided by that of the
            level before it; None where that is zero.
        rows: Number of counted examples, the denominator.
        excluded: Number of examples whose target does not parse as an SID or has fewer levels.
        unparsable: Number of predictions of the counted examples, within the largest K, that do not parse or have fewer
            levels. They never hit, and keep their rank.
        looked_at: Number of predictions of the counted examples within the largest K.
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
        list_length: Number of requested candidates (beams); the length of the longest list if None.
        keep_duplicates: Whether a repeated SID occupies a rank. Use False for lists of items in which items that share
            an SID are adjacent, True for lists as they are, such as a published JSON file.
        where: Name of the source in messages.

    Raises:
        ConfigError: If a K is larger than `list_length`.
        DataError: If no target parses as an SID.
    """
    lists = [list(example) for example in predictions.sids] if keep_duplicates else distinct_sids(predictions)
    list_length = length_of_lists(predictions) if list_length is None else list_length
    ordered = check_ks(ks, list_length) if ks is not None else tuple(k for k in DEFAULT_KS if k <= max(1, list_length))
    lists = [example[: ordered[-1]] for example in lists]
    parsed = {text: split_sid(text) or () for text in {*chain.from_iterable(lists), *predictions.target_sids}}
    depth = _depth([parsed[target] for target in predictions.target_sids], predictions, where)
    counted = [example for example, target in enumerate(predictions.target_sids) if len(parsed[target]) >= depth]
    numbers = _as_numbers(parsed, depth)
    predicted_numbers = np.full((len(counted), ordered[-1], depth + 1), -1, dtype=np.int32)  # (R, K, L + 1)
    for position, example in enumerate(counted):
        if lists[example]:
            predicted_numbers[position, : len(lists[example])] = [numbers[text] for text in lists[example]]
    target_numbers = np.array(
        [numbers[predictions.target_sids[example]] for example in counted], dtype=np.int32
    )  # (R, L + 1)
    independent, cumulative, dropoff = _hit_rates(predicted_numbers == target_numbers[:, None, :], ordered)
    return LevelAnalysis(
        ks=ordered,
        levels=depth,
        independent=independent,
        cumulative=cumulative,
        dropoff=dropoff,
        rows=len(counted),
        excluded=len(predictions) - len(counted),
        unparsable=int((predicted_numbers[:, :, 0] == _UNPARSABLE).sum()),
        looked_at=int((predicted_numbers[:, :, 0] != -1).sum()),
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
    """Encode SIDs as numbers: one for each token of the first `depth` levels, and one for the whole SID.

    All are -2, which matches nothing, for a text that does not parse or has fewer levels.
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
    ratios = [after / before if before else None for before, after in pairwise(first)]
    return independent, cumulative, (first[0] / len(same), *ratios)
