"""What a table of codes looks like: use of each level, reconstruction error, collisions before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from minionerec.sid.collisions import CollisionCounts, Resolution
from minionerec.sid.embed.mapped import VectorRows
from minionerec.sid.residual_kmeans import training_rows
from minionerec.sid.table import LEVELS

REPORT_FILE = "report.json"
ERROR_ROWS = 1 << 16
"""Items of the sample that errors are measured on where vectors lie in a file."""


@dataclass(frozen=True)
class LevelUse:
    """How one level uses its codes.

    Attributes:
        level: Letter of the level, as in its tokens.
        items: Items that have a code at this level.
        size: Codes in the codebook; None where the codebook is not at hand.
        used: Codes that at least one item bears.
        dead: Codes of the codebook that no item bears; None where the codebook is not at hand.
        entropy_bits: Entropy of the code of a random item, in bits.
        perplexity: 2 ** entropy_bits: the number of equally used codes with the same entropy.
        gini: Gini coefficient of the items per code, 0 where all have the same number and near 1 where one has all;
            over the codebook where it is at hand, over the used codes otherwise.
        largest: Items on the most used code.
        error: Share of the vectors' variance that the levels up to this one leave unexplained (squared distance of
            vectors and reconstruction, over squared distance of vectors and their mean); None without codebook.
        use: Items per code, for codes 0 to the last one of the codebook (or the last one used).
    """

    level: str
    items: int
    size: int | None
    used: int
    dead: int | None
    entropy_bits: float
    perplexity: float
    gini: float
    largest: int
    error: float | None
    use: tuple[int, ...]


def level_use(
    codes: np.ndarray,
    *,
    vectors: np.ndarray | None = None,
    codebooks: Sequence[np.ndarray] | None = None,
    rows: np.ndarray | None = None,
) -> list[LevelUse]:
    """Use of each level of a table of codes.

    Args:
        codes: int (N, L), -1 at the end of shorter SIDs.
        vectors: float32 (N, D), what the codes were made from, for the error.
        codebooks: Float32 (C_l, D) for the first levels, for sizes and errors.
        rows: int64 (R,), items that `vectors` (R, D) are of, where they are a sample; then so are the errors.

    Returns:
        One entry per level.

    Example:
        >>> [(use.level, use.used, use.perplexity) for use in level_use(np.array([[0, 3], [1, 3]]))]
        [('a', 2, 2.0), ('b', 1, 1.0)]
    """
    codebooks = codebooks or []
    residuals = None if vectors is None else vectors.astype(np.float64)
    variance = 0.0 if residuals is None else float(((residuals - residuals.mean(axis=0)) ** 2).sum())
    levels = []
    for level, column in enumerate(codes.T):
        present = column[column >= 0]
        size = len(codebooks[level]) if level < len(codebooks) else None
        use = np.bincount(present, minlength=size or 0)
        shares = use[use > 0] / max(len(present), 1)
        entropy = abs(float((shares * np.log2(shares)).sum()))  # the sum is at most 0
        error = None
        if residuals is not None and size is not None:
            residuals = residuals - codebooks[level][column if rows is None else column[rows]]
            error = float((residuals**2).sum()) / variance if variance > 0 else 0.0
        levels.append(
            LevelUse(
                level=LEVELS[level],
                items=len(present),
                size=size,
                used=len(shares),
                dead=None if size is None else size - len(shares),
                entropy_bits=entropy,
                perplexity=float(2**entropy),
                gini=gini(use if size is not None else use[use > 0]),
                largest=int(use.max(initial=0)),
                error=error,
                use=tuple(use.tolist()),
            )
        )
    return levels


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of non-negative numbers, 0 if there are none or all are zero.

    Example:
        >>> gini(np.array([2, 2, 2])), gini(np.array([0, 0, 0, 6]))
        (0.0, 0.75)
    """
    ascending = np.sort(counts).astype(np.float64)
    total = ascending.sum()
    if total == 0:
        return 0.0
    weights = 2 * np.arange(1, len(ascending) + 1) - len(ascending) - 1
    return float((weights * ascending).sum() / (len(ascending) * total))


def sid_report(
    method: str,
    resolution: Resolution,
    *,
    vectors: VectorRows | None = None,
    codebooks: Sequence[np.ndarray] | None = None,
    counts: dict[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The content of `report.json`.

    Keys: `method`; `items`; `unique` (distinct SIDs); `levels` (list of `LevelUse` as objects, for the final codes);
    `collisions` with `method`, `moved`, `distance_paid`, and `before` and `after` (`CollisionCounts` as objects);
    `counts` (what the stage counted on its way: dimensions, empty and duplicate texts...); of vectors in a file
    `error_rows`, the number of items in a sample whose variance the levels' errors are of.

    Args:
        method: How the codes were made.
        resolution: Codes before and after collisions were resolved.
        vectors: float32 (N, D), if the codes were made from vectors at hand. Of those in a file a sample is read.
        codebooks: Per level float32 (C_l, D), if at hand.
        counts: Anything else that was counted.
        seed: Seed of the sample.

    Returns:
        A JSON-ready mapping.
    """
    rows, known = None, vectors if isinstance(vectors, np.ndarray) else None
    if vectors is not None and known is None:
        rows = training_rows(len(vectors), ERROR_ROWS, seed)
        known = vectors[rows]
    return {
        "method": method,
        "items": resolution.after.items,
        "unique": resolution.after.unique,
        "levels": [asdict(use) for use in level_use(resolution.codes, vectors=known, codebooks=codebooks, rows=rows)],
        **({} if rows is None else {"error_rows": len(rows)}),
        "collisions": {
            "method": resolution.method,
            "moved": resolution.moved,
            "distance_paid": resolution.distance_paid,
            "before": asdict(resolution.before),
            "after": asdict(resolution.after),
        },
        "counts": dict(counts or {}),
    }


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """A report as lines of text for the log.

    Args:
        report: What `sid_report` gives.

    Returns:
        One line per level, and one each for collisions before and after.
    """
    lines = []
    for use in report["levels"]:
        of = "" if use["size"] is None else f" of {use['size']}"
        error = "" if use["error"] is None else f", variance left {use['error']:.1%}"
        lines.append(
            f"level {use['level']}: {use['used']}{of} codes used, perplexity {use['perplexity']:.1f} "
            f"({use['entropy_bits']:.2f} bits), largest code {use['largest']} items{error}"
        )
    if "error_rows" in report:
        lines.append(f"variance left is that of a sample of {report['error_rows']:,} items")
    collisions = report["collisions"]
    same = collisions["before"] == collisions["after"]
    lines.append(_collision_line("SIDs" if same else "before", collisions["before"]))
    if not same:
        paid = collisions["distance_paid"]
        cost = "" if not paid else f", squared distance paid {paid:.4g}"
        lines.append(_collision_line("after", collisions["after"]))
        lines.append(f"collisions: {collisions['method']} changed {collisions['moved']} SIDs{cost}")
    return lines


def _collision_line(name: str, counts: dict[str, Any] | CollisionCounts) -> str:
    values = counts if isinstance(counts, dict) else asdict(counts)
    return (
        f"{name}: {values['unique']} unique SIDs of {values['items']} items; {values['sharing_items']} items "
        f"({values['sharing_rate']:.2%}) share theirs, largest bucket {values['largest_bucket']}, "
        f"(N - unique) / N = {values['surplus_rate']:.2%}"
    )
