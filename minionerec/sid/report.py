"""Report of a table of codes: use of each level, reconstruction error, collisions before and after."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.log import progress
from minionerec.sid.collisions import CollisionCounts, Resolution, count_collisions
from minionerec.sid.embed.stored import VectorRows
from minionerec.sid.embed.texts import word_pattern
from minionerec.sid.kmeans import training_rows
from minionerec.sid.table import LEVELS

REPORT_FILE = "report.json"
ERROR_ROWS = 1 << 16
"""Items of the sample that errors are measured on where vectors are in a file."""


@dataclass(frozen=True)
class LevelUse:
    """How one level uses its codes.

    Attributes:
        level: Letter of the level, as in its tokens.
        items: Items that have a code at this level.
        size: Codes in the codebook; None where the codebook is not available.
        used: Codes that at least one item bears.
        dead: Codes of the codebook without an item; None where the codebook is not available.
        entropy_bits: Entropy of the code of a random item, in bits.
        perplexity: 2 ** entropy_bits: the number of equally used codes with the same entropy.
        gini: Gini coefficient of the items per code, 0 where all have the same number and near 1 where one has all;
            over the codebook where it is available, over the used codes otherwise.
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
        vectors: float32 (N, D), from which the codes were made, for the error.
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
    codes: np.ndarray,
    resolution: Resolution,
    *,
    vectors: VectorRows | None = None,
    codebooks: Sequence[np.ndarray] | None = None,
    counts: dict[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The content of `report.json`.

    Keys: `method`; `items`; `unique` (distinct SIDs); `levels` (list of `LevelUse` as objects, for the final codes);
    `collisions` (`Resolution` as an object);
    `counts` (the stage's counts: dimensions, empty and duplicate texts...); of vectors in a file
    `error_rows`, the number of items in a sample whose variance the levels' errors are of.

    Args:
        method: How the codes were made.
        codes: int32 (N, L), the final codes.
        resolution: How collisions were resolved.
        vectors: float32 (N, D), if the codes were made from available vectors. Of those in a file a sample is read.
        codebooks: Per level float32 (C_l, D), if available.
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
        "levels": [asdict(use) for use in level_use(codes, vectors=known, codebooks=codebooks, rows=rows)],
        **({} if rows is None else {"error_rows": len(rows)}),
        "collisions": asdict(resolution),
        "counts": dict(counts or {}),
    }


def read_sid_report(folder: Path) -> dict[str, Any]:
    """`report.json` of a folder of semantic IDs, with the keys of `sid_report`.

    Args:
        folder: The artefact's directory.

    Raises:
        ArtefactError: If it is missing, no JSON, or of another form.
    """
    from pydantic import TypeAdapter, ValidationError  # takes a tenth of a second

    path = folder / REPORT_FILE
    report: dict[str, Any] = read_json(path)
    try:
        TypeAdapter(_Content).validate_json(json.dumps(report), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ArtefactError(f"{path}: {f'{key!r}: ' if key else ''}{first['msg']}. Run build-sids again.") from None
    return report


@dataclass(frozen=True)
class _Content:
    method: str
    items: int
    levels: list[LevelUse]
    collisions: Resolution


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """A report as lines of text for the log.

    Args:
        report: Result of `sid_report`.

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
        cost = "" if not paid else f", squared distance added {paid:.4g}"
        lines.append(_collision_line("after", collisions["after"]))
        lines.append(f"collisions: {collisions['method']} changed {collisions['moved']} SIDs{cost}")
    return lines


_SHARED = 0.005  # share of items that share an SID; with .8 % of Industrial's items 7 % of its test examples had one
_USED = 0.05  # perplexity over codes; tables that a model was trained on have .12 and more
# Buyer purity of the first code over that of two random items: 1 for shuffled SIDs, 1.7 where TF-IDF fails.
_BUYERS = 2.0


_MISSING = {
    "empty_texts": ("have no text", "give them titles, or try with_interactions true"),
    "items_without_interactions": (
        "share no user with another item in training",
        "where items have texts, try an encoder of texts with with_interactions true",
    ),
}
"""Count of items without a vector → why they have none, and what to try."""


def advice(report: Mapping[str, Any], measures: "Diagnostics | None" = None) -> str:
    """One or two sentences: what is wrong with a table and what to try, or that nothing is.

    Thresholds are from the tables of docs/results/sids.md, some of which a recommender was trained on.

    Args:
        report: Result of `sid_report`.
        measures: Result of `diagnose`, where the table was measured against interactions.
    """
    found, after, levels = [], report["collisions"]["after"], report["levels"]
    fitted = any(use["size"] for use in levels)
    counts = report.get("counts", {})
    counted = _MISSING.keys() & counts.keys()
    if len(counted) == 1 and counts[key := counted.pop()]:  # with both, what lacks one may have a vector of the other
        why, ways = _MISSING[key]
        found.append(f"{counts[key]:,} items {why} and so have no vector, and their codes say nothing of them: {ways}")
    taken = report["collisions"]["method"]
    resolving = [name for name in ("relocate", "extra_token") if name != taken and (name != "relocate" or fitted)]
    if after["sharing_rate"] > _SHARED:
        found.append(
            f"{after['sharing_items']:,} items ({after['sharing_rate']:.1%}) share an SID, and a recommender cannot "
            f"rank one of them above another: try collisions {' or '.join(resolving)}"
        )
    few = [
        use["level"]
        for use in levels
        if use["size"] and use["size"] > 2 and use["perplexity"] < _USED * min(use["size"], use["items"])
    ]
    if few:
        other = "" if report["method"] == "balanced_kmeans" else "method balanced_kmeans, "
        found.append(
            f"the codes of level {', '.join(few)} hardly distinguish items: try {other}smaller codebook_sizes, or "
            "another encoder"
        )
    times = None
    if measures is not None and measures.prefixes[0].buyer_purity is not None and measures.buyer_chance:
        times = measures.prefixes[0].buyer_purity / measures.buyer_chance
    if measures is not None and times is not None and times < _BUYERS and measures.buyer_chance * _BUYERS <= 1:
        other = "" if "items_without_interactions" in counts else "with_interactions true, or "
        found.append(
            f"the same users interact with items of one first code hardly more often ({times:.1f} times) than with any "
            f"two items: try {other}another encoder"
        )
    if found:
        return f"Advice: {'; '.join(found)}."
    alike = ""
    if times is not None:
        alike = f", and two items of one first code are {times:.1f} times as alike in their users as any two"
    used = ", the levels are used" if fitted else ""
    return f"Advice: none. Nearly every item has an SID of its own{used}{alike}."


def _collision_line(name: str, values: Mapping[str, Any]) -> str:
    return (
        f"{name}: {values['unique']} unique SIDs of {values['items']} items; {values['sharing_items']} items "
        f"({values['sharing_rate']:.2%}) share theirs, largest bucket {values['largest_bucket']}, "
        f"(N - unique) / N = {values['surplus_rate']:.2%}"
    )


# Measures of a table of SIDs before any recommender is trained on it.

FOLDS = 5
STRENGTH = 100.0  # rows that the prior of a conditional distribution counts for
HITS = 10


@dataclass(frozen=True)
class PrefixMeasures:
    """Measures of the first l codes of an SID, for one l.

    Attributes:
        length: Codes in the prefix, l.
        prefixes: Distinct prefixes.
        grouped_items: Share of items that share their prefix with another item; the purities are means over them.
        variance_left: Share of the item vectors' variance within groups of equal prefix. Unlike the error of codebooks
            it compares tables of any origin on the same vectors; it is 0 where no item shares its prefix.
        word_purity: Mean cosine of an item's words with those of the other items of its prefix; None where no item
            shares its prefix.
        buyer_purity: The same for buyers: over items with a buyer in the training examples.
        next_hits: Share of training examples whose target has one of the 10 likeliest prefixes after the prefix of the
            history's last item, by counts from the other folds.
        popular_hits: The same with the 10 most frequent prefixes, whatever the history.
    """

    length: int
    prefixes: int
    grouped_items: float
    variance_left: float
    word_purity: float | None
    buyer_purity: float | None
    next_hits: float
    popular_hits: float


@dataclass(frozen=True)
class Diagnostics:
    """All measures of one table.

    Attributes:
        levels: Use of each level.
        collisions: Counts of shared SIDs.
        prefixes: Measures of prefixes of length 1 to L.
        bits_per_item: Bits to name the target of a training row, code by code and then among the items of the SID,
            given its history's last item: mean over rows of -log2 p by counts from the other folds (`next_item_bits`).
        popular_bits: The same without the history.
        word_chance: Mean cosine of the words of two random items: `word_purity` by chance.
        buyer_chance: The same for buyers.
    """

    levels: Sequence[LevelUse]
    collisions: CollisionCounts
    prefixes: Sequence[PrefixMeasures]
    bits_per_item: float
    popular_bits: float
    word_chance: float
    buyer_chance: float


@dataclass(frozen=True)
class Evidence:
    """The data that tables are measured on; the same for all of them.

    Attributes:
        vectors: float32 (N, D), a vector of each item.
        words: float32 (N, V), TF-IDF of each item's words, rows of length 1 or 0.
        buyers: float32 (N, U), who bought each item in the training examples, rows of length 1 or 0.
        last: int64 (R,), last item of the history of each training row that has one.
        target: int64 (R,), its target.
        fold: int64 (R,), 0 to 4; all rows of a user are in one fold.
    """

    vectors: np.ndarray
    words: csr_array
    buyers: csr_array
    last: np.ndarray
    target: np.ndarray
    fold: np.ndarray


def gather_evidence(
    vectors: np.ndarray,
    titles: Sequence[str],
    users: Sequence[str],
    histories: Sequence[np.ndarray],
    targets: np.ndarray,
) -> Evidence:
    """Prepare items and training examples for measuring tables.

    Args:
        vectors: float32 (N, D), row i = item i.
        titles: N texts.
        users: User of each training row.
        histories: Item indices of each row, oldest first.
        targets: int (R,), item index of each row's target.

    Raises:
        DataError: If no title holds a word, or no row has a history.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        words = TfidfVectorizer(token_pattern=word_pattern(titles), dtype=np.float32).fit_transform(titles)
    except ValueError:
        raise DataError(f"none of the {len(titles)} titles holds a word, so similar items cannot be found.") from None
    numbers = np.unique(np.asarray(users, dtype=str), return_inverse=True)[1]
    lengths = np.array([len(history) for history in histories])
    if not lengths.any():
        raise DataError(
            f"none of the {len(lengths)} training examples has a history, so no next item can be predicted."
        )
    seen = np.concatenate([*histories, targets]).astype(np.int64)
    buyer = np.concatenate([np.repeat(numbers, lengths), numbers])
    pairs = np.unique(np.stack([seen, buyer], axis=1), axis=0)
    bought = np.bincount(pairs[:, 0], minlength=len(titles))
    weights = (1 / np.sqrt(bought[pairs[:, 0]])).astype(np.float32)
    buyers = csr_array((weights, (pairs[:, 0], pairs[:, 1])), shape=(len(titles), int(numbers.max()) + 1))
    rows = np.flatnonzero(lengths > 0)
    last = np.array([histories[row][-1] for row in rows.tolist()], dtype=np.int64)
    target = np.asarray(targets, dtype=np.int64)[rows]
    return Evidence(vectors, csr_array(words), buyers, last, target, numbers[rows] % FOLDS)


def diagnose(codes: np.ndarray, evidence: Evidence, codebooks: Sequence[np.ndarray] | None = None) -> Diagnostics:
    """Measure one table.

    Args:
        codes: int (N, L), -1 at the end of shorter SIDs.
        evidence: What to judge by.
        codebooks: Per level float32 (C_l, D'), where they are available: their sizes show which codes are unused.

    Returns:
        The measures.
    """
    numbers = prefix_numbers(codes)
    prefixes = []
    for length, groups in enumerate(numbers, start=1):
        shared = np.bincount(groups)[groups] > 1
        popular, following = _hits(groups, evidence)
        prefixes.append(
            PrefixMeasures(
                length=length,
                prefixes=int(groups.max()) + 1,
                grouped_items=float(shared.mean()),
                variance_left=_variance_left(groups, evidence.vectors),
                word_purity=purity(groups, evidence.words),
                buyer_purity=purity(groups, evidence.buyers),
                next_hits=following,
                popular_hits=popular,
            )
        )
    one_group = np.zeros(len(codes), dtype=np.int64)
    return Diagnostics(
        levels=level_use(codes, codebooks=codebooks),
        collisions=count_collisions(codes),
        prefixes=prefixes,
        bits_per_item=next_item_bits(codes, evidence),
        popular_bits=next_item_bits(codes, evidence, use_history=False),
        word_chance=purity(one_group, evidence.words) or 0.0,
        buyer_chance=purity(one_group, evidence.buyers) or 0.0,
    )


def prefix_numbers(codes: np.ndarray) -> list[np.ndarray]:
    """Number of each item's prefix of length 1 to L: per length int64 (N,), 0 to the number of prefixes - 1.

    Example:
        >>> [numbers.tolist() for numbers in prefix_numbers(np.array([[5, 1], [5, 2], [3, 1]]))]
        [[1, 1, 0], [1, 2, 0]]
    """
    return [
        np.unique(codes[:, :length], axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        for length in range(1, codes.shape[1] + 1)
    ]


def purity(groups: np.ndarray, features: csr_array) -> float | None:
    """Mean over items of the mean cosine with the other items of their group.

    Args:
        groups: int64 (N,), group of each item.
        features: float (N, F), rows of length 1; rows of zeros are left out, and so are items alone in their group.

    Returns:
        The mean; None where every item is alone.

    Example:
        >>> purity(np.array([0, 0, 1]), csr_array(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])))
        0.0
    """
    filled = np.flatnonzero(np.diff(features.indptr) > 0)
    features, groups = features[filled], np.unique(groups[filled], return_inverse=True)[1]
    sizes = np.bincount(groups)
    member = csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(len(sizes), len(groups)))
    # The cosines of all pairs of a group, each item with itself included, are the square of the group's sum.
    squares = np.asarray((member @ features).power(2).sum(axis=1)).reshape(-1)
    many = sizes > 1
    if not many.any():
        return None
    pairs = squares[many] - sizes[many]  # an item with itself has cosine 1
    return float((pairs / (sizes[many] - 1)).sum() / sizes[many].sum())


def _variance_left(groups: np.ndarray, vectors: np.ndarray) -> float:
    sizes = np.bincount(groups)
    member = csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(len(sizes), len(groups)))
    means = (member @ vectors.astype(np.float64)) / sizes[:, None]
    total = float(((vectors - vectors.mean(axis=0)) ** 2).sum())
    return float(((vectors - means[groups]) ** 2).sum()) / total if total else 0.0


def _hits(groups: np.ndarray, evidence: Evidence) -> tuple[float, float]:
    """Share of examples whose target's group is among the 10 likeliest: without the history, and after the last item's.

    The likelihood of group q after p is (n(p, q) + 100 n(q) / n) / (n(p) + 100), with counts n from the other folds;
    ties go to the lower number.
    """
    last, target, size = groups[evidence.last], groups[evidence.target], int(groups.max()) + 1
    popular = following = 0
    for fold in progress(range(FOLDS), "predicting codes from transitions", unit="folds"):
        here = evidence.fold == fold
        if here.all() or not here.any():
            continue
        frequency = np.bincount(target[~here], minlength=size)
        prior = STRENGTH * frequency / frequency.sum()
        best = np.argsort(-frequency, kind="stable")[:HITS]
        popular += int(np.isin(target[here], best).sum())
        after = csr_array((np.ones(int((~here).sum())), (last[~here], target[~here])), shape=(size, size))
        pairs, rows = np.unique(np.stack([last[here], target[here]], axis=1), axis=0, return_counts=True)
        starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(pairs)]):
            p = int(pairs[start, 0])
            seen = after.indices[after.indptr[p] : after.indptr[p + 1]]
            candidates = np.union1d(seen, best)  # no other group can be among the ten
            scores = prior[candidates].copy()
            scores[np.searchsorted(candidates, seen)] += after.data[after.indptr[p] : after.indptr[p + 1]]
            top = candidates[np.argsort(-scores, kind="stable")[:HITS]]
            following += int(rows[start:end][np.isin(pairs[start:end, 1], top)].sum())
    rows_seen = len(target)
    return popular / rows_seen, following / rows_seen


def next_item_bits(codes: np.ndarray, evidence: Evidence, use_history: bool = True) -> float:
    """Bits to encode a training example's target given the last item of its history, by counts from the other folds.

    The table is read as the recommender reads it, code by code. With the target's earlier codes s, the next code c has
    probability

        p_0(c | s) = (n(s, c) + 100 / children(s)) / (n(s) + 100)
        p_k(c | s, h_k) = (n(h_k, s, c) + 100 p_(k-1)(c | s, h_(k-1))) / (n(h_k, s) + 100),   k = 1 ... L

    where n counts rows of the other folds, h_k is the prefix of length k of the history's last item, and children(s)
    is how many codes follow s in the table. Items that share an SID are distinguished with log2 of their number.

    Args:
        codes: int (N, L), -1 at the end of shorter SIDs.
        evidence: What to judge by.
        use_history: Continue to p_L; otherwise stay with p_0.

    Returns:
        Mean over rows, in bits. A table in random order with all SIDs distinct would need log2 N without counts.
    """
    numbers = prefix_numbers(codes)
    last, target, fold = evidence.last, evidence.target, evidence.fold
    bits = np.log2(np.bincount(numbers[-1])[numbers[-1]][target])
    before = np.zeros(len(codes), dtype=np.int64)
    contexts = [before, *(numbers if use_history else [])]
    for groups in numbers:
        parents = np.zeros(int(groups.max()) + 1, dtype=np.int64)
        parents[groups] = before
        chance = 1 / np.bincount(parents)[before[target]]
        for context in contexts:
            position = context[last] * (int(before.max()) + 1) + before[target]
            followed = _elsewhere(position * len(parents) + groups[target], fold)
            chance = (followed + STRENGTH * chance) / (_elsewhere(position, fold) + STRENGTH)
        bits -= np.log2(chance)
        before = groups
    return float(bits.mean())


def _elsewhere(keys: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """How often the key of each example occurs in other folds."""
    number = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    here = number * FOLDS + fold
    elsewhere: np.ndarray = np.bincount(number)[number] - np.bincount(here)[here]
    return elsewhere
