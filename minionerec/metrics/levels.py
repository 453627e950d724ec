"""Where decoding goes wrong: hit rates level by level of the semantic ID."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.published_json import read_published_json, require_predictions
from minionerec.metrics.ranking import DEFAULT_KS, check_ks, distinct_sids, list_width
from minionerec.sid.table import split_sid

logger = get_logger(__name__)


@dataclass
class LevelsConfig:
    """Settings of the per-level analysis."""

    predictions: str | None = field(
        default=None, metadata={"help": "directory of predictions, or its parquet file (from scripts/eval_beam.py)"}
    )
    path: str | None = field(
        default=None,
        metadata={"help": "JSON file in the published form (input, output, predict); instead of --predictions"},
    )
    ks: list[int] | None = field(
        default=None,
        metadata={"help": "cut-offs K, in predictions; those of 1 3 5 10 20 50 that the lists can serve if not given"},
    )
    levels: int | None = field(
        default=None, metadata={"help": "levels that a semantic ID has; what most targets have if not given"}
    )
    json: bool = field(default=False, metadata={"help": "print nothing but one JSON object of unrounded numbers"})

    def __post_init__(self) -> None:
        """Check that exactly one input is given."""
        if (self.predictions is None) == (self.path is None):
            raise ConfigError(
                f"predictions is {self.predictions!r} and path is {self.path!r}: give exactly one of "
                "--predictions DIRECTORY and --path FILE.json."
            )
        if self.ks is not None:
            if not isinstance(self.ks, list):
                raise ConfigError(f"ks is {self.ks!r}; expected a list of whole numbers, such as [1, 5, 10].")
            self.ks = list(check_ks(self.ks))
        if self.levels is not None and self.levels < 1:
            raise ConfigError(f"levels is {self.levels}; a semantic ID has at least 1 level.")


@dataclass(frozen=True)
class LevelAnalysis:
    """Hit rates by level, over the rows whose target is an SID of `levels` levels or more.

    Attributes:
        ks: The cut-offs.
        levels: Number of levels compared, L.
        independent: float64 (len(ks), L + 1). Column l < L: share of rows in which any of the first K predictions has
            the target's code at level l, whatever stands at the other levels. Last column: any is the whole SID.
        cumulative: float64 (len(ks), L). Column l: share of rows in which a single one of the first K predictions has
            the target's codes at levels 1 to l + 1.
        dropoff: L numbers at K = 1: cumulative accuracy of level 1, then of each further level divided by that of the
            level before it; None where that is zero.
        rows: Rows counted, the denominator.
        excluded: Rows left out because their target does not parse as an SID, or has fewer levels.
        unparsable: Predictions of the counted rows, within the largest K, that do not parse or have fewer levels. They
            never hit, and keep their place in the list.
        looked_at: All predictions of the counted rows within the largest K.
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
    levels: int | None = None,
    width: int | None = None,
    keep_duplicates: bool = False,
    where: str = "predictions",
) -> LevelAnalysis:
    """Compare predictions with targets level by level.

    Args:
        predictions: The ranked lists; only their SIDs are read.
        ks: Cut-offs; those of 1, 3, 5, 10, 20, 50 within the width if None (at least K = 1).
        levels: Number of levels to compare, L; what most targets have if None (the larger on a tie). Codes beyond the
            L-th, such as one that tells colliding items apart, count for "exact" alone.
        width: Number of candidates that were asked for (beams); the longest list's if None.
        keep_duplicates: Whether a repeated SID takes a place of its own. False suits lists in which items that share
            an SID follow one another; True takes lists as they stand, as for a published JSON file.
        where: Name of the source in messages.

    Raises:
        ConfigError: If a K is larger than the width.
        DataError: If no target parses as an SID.
    """
    lists = [list(row) for row in predictions.sids] if keep_duplicates else distinct_sids(predictions)
    width = list_width(predictions) if width is None else width
    ordered = check_ks(ks, width) if ks is not None else tuple(k for k in DEFAULT_KS if k <= max(1, width))
    largest = ordered[-1]

    parsed: dict[str, tuple[str, ...]] = {}
    for text in {text for row in lists for text in row[:largest]} | set(predictions.target_sids):
        parsed[text] = split_sid(text) or ()
    lengths = Counter(len(parsed[target]) for target in predictions.target_sids if parsed[target])
    if not lengths:
        shown = predictions.target_sids[0] if len(predictions) else "(no row)"
        raise DataError(
            f"{where}: no target parses as a semantic ID; the first is {shown!r}, expected e.g. '<a_12><b_7><c_201>'."
        )
    depth = levels if levels is not None else max(lengths, key=lambda length: (lengths[length], length))
    counted = [row for row, target in enumerate(predictions.target_sids) if len(parsed[target]) >= depth]
    if not counted:
        raise DataError(
            f"{where}: no target has {depth} levels; the longest has {max(lengths)}. Give a smaller --levels."
        )

    # Tokens become numbers, and whole SIDs too; -1 (a list ends earlier) and -2 (does not parse) match nothing.
    numbers = {
        token: number for number, token in enumerate(sorted({token for tokens in parsed.values() for token in tokens}))
    }
    names = {tokens: number for number, tokens in enumerate(sorted(set(parsed.values())))}
    code = {
        text: (*(numbers[token] for token in tokens[:depth]), names[tokens])
        if len(tokens) >= depth
        else (-2,) * (depth + 1)
        for text, tokens in parsed.items()
    }
    found = np.full((len(counted), largest, depth + 1), -1, dtype=np.int32)  # (R, K, L + 1)
    for place, row in enumerate(counted):
        if lists[row]:
            found[place, : len(lists[row][:largest])] = [code[text] for text in lists[row][:largest]]
    wanted = np.array([code[predictions.target_sids[row]] for row in counted], dtype=np.int32)  # (R, L + 1)

    same = found == wanted[:, None, :]  # (R, K, L + 1)
    prefix = np.logical_and.accumulate(same[:, :, :depth], axis=2)  # (R, K, L)
    independent = np.stack([same[:, :k].any(axis=1).mean(axis=0) for k in ordered])
    cumulative = np.stack([prefix[:, :k].any(axis=1).mean(axis=0) for k in ordered])
    first = prefix[:, 0].sum(axis=0).tolist()
    kept = [after / before if before else None for before, after in pairwise(first)]
    return LevelAnalysis(
        ks=ordered,
        levels=depth,
        independent=independent,
        cumulative=cumulative,
        dropoff=(first[0] / len(counted), *kept),
        rows=len(counted),
        excluded=len(predictions) - len(counted),
        unparsable=int((found[:, :, 0] == -2).sum()),
        looked_at=int((found[:, :, 0] != -1).sum()),
    )


def run_levels(config: LevelsConfig) -> LevelAnalysis:
    """Analyse a predictions artefact or a published JSON file; what was left out is logged.

    Raises:
        ConfigError: If a K is larger than the lists.
        DataError: If the input is missing or malformed, or an entry of the JSON file has fewer predictions than the
            largest K.
    """
    if config.path is not None:
        where = config.path
        predictions = read_published_json(where)
        longest = max(len(row) for row in predictions.sids)
        largest = max(config.ks) if config.ks else max((k for k in DEFAULT_KS if k <= longest), default=1)
        require_predictions(predictions.sids, largest, where)
    else:
        where = str(config.predictions)
        if not Path(where).exists():
            raise DataError(
                f"{where}: no such file or directory. Run scripts/eval_beam.py first, or give --path FILE.json."
            )
        predictions = Predictions.load(where)
    analysis = level_analysis(
        predictions,
        config.ks,
        levels=config.levels,
        width=list_width(predictions, config.predictions),
        keep_duplicates=config.path is not None,
        where=where,
    )
    if analysis.excluded:
        logger.warning(
            "%s: %d of %d rows left out: their target is not a semantic ID of %d levels.",
            *(where, analysis.excluded, len(predictions), analysis.levels),
        )
    if analysis.unparsable:
        logger.warning(
            "%s: %d of %d predictions are no semantic ID of %d levels; they count as misses and keep their rank.",
            *(where, analysis.unparsable, analysis.looked_at, analysis.levels),
        )
    return analysis
