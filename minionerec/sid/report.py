"""Report of a table of codes: use of each level, reconstruction error, collisions, and further diagnostics."""

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
"""Items of the sample on which errors of vectors in a file are measured."""


@dataclass(frozen=True)
class LevelUse:
    """Use of the codes of one level.

    Attributes:
        level: Letter of the level, as in its tokens.
        items: Number of items with a code at this level.
        size: Codes in the codebook; None without a codebook.
        used: Number of codes with at least one item.
        dead: Number of codes without an item; None without a codebook.
        entropy_bits: Entropy of the code of a random item, in bits.
        perplexity: 2 ** entropy_bits: the number of equally used codes with the same entropy.
        largest: Items of the most used code.
        error: Share of the vectors' variance that the levels up to this one leave unexplained (squared distance of
            vectors and reconstruction, over squared distance of vectors and their mean); None without codebook.
        use: Items per code, from code 0 to the last one of the codebook (or the last one used).
    """

    level: str
    items: int
    size: int | None
    used: int
    dead: int | None
    entropy_bits: float
    perplexity: float
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
        vectors: float32 (N, D), the quantised vectors, for the error.
        codebooks: float32 (C_l, D) of the first levels, for sizes and errors.
        rows: int64 (R,), items of a sample; then `vectors` is (R, D), and errors are those of the sample.

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
                largest=int(use.max(initial=0)),
                error=error,
                use=tuple(use.tolist()),
            )
        )
    return levels


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
    """Build the content of `report.json`.

    Keys: `method`; `items`; `unique` (distinct SIDs); `levels` (list of `LevelUse` as objects, for the final codes);
    `collisions` (`Resolution` as an object); `counts` (the stage's counts: dimensions, empty and duplicate texts...);
    for vectors in a file also `error_rows`, the number of sampled items on which the levels' errors are measured.

    Args:
        method: Name of the method that made the codes.
        codes: int32 (N, L), the final codes.
        resolution: Result of resolving collisions.
        vectors: float32 (N, D), the quantised vectors, if available; a sample of those in a file is read.
        codebooks: Per level float32 (C_l, D), if available.
        counts: Further counts.
        seed: Seed of the sample.

    Returns:
        A JSON-ready mapping.
    """
    sample, sampled_vectors = None, vectors if isinstance(vectors, np.ndarray) else None
    if vectors is not None and sampled_vectors is None:
        sample = training_rows(len(vectors), ERROR_ROWS, seed)
        sampled_vectors = vectors[sample]
    return {
        "method": method,
        "items": resolution.after.items,
        "unique": resolution.after.unique,
        "levels": [asdict(use) for use in level_use(codes, vectors=sampled_vectors, codebooks=codebooks, rows=sample)],
        **({} if sample is None else {"error_rows": len(sample)}),
        "collisions": asdict(resolution),
        "counts": dict(counts or {}),
    }


def read_sid_report(folder: Path) -> dict[str, Any]:
    """Read `report.json` of a folder of semantic IDs, with the keys of `sid_report`.

    Args:
        folder: The artefact's directory.

    Raises:
        ArtefactError: If the file is missing, no JSON, or lacks a key.
    """
    from pydantic import TypeAdapter, ValidationError  # slow to import

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
    """Format a report as lines of text for the log.

    Args:
        report: Result of `sid_report`.

    Returns:
        A line per level, and lines for collisions before and after.
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
        increase = collisions["distance_paid"]
        cost = "" if not increase else f", squared distance added {increase:.4g}"
        lines.append(_collision_line("after", collisions["after"]))
        lines.append(f"collisions: {collisions['method']} changed {collisions['moved']} SIDs{cost}")
    return lines


_MAX_SHARING_RATE = 0.005  # at .8 %, 7 % of the test examples of Industrial have a target that shares its SID
_MIN_CODE_USE = 0.05  # perplexity over codes; tables that a model was trained on have .12 and more
# Buyer purity of the first code over that of two random items: 1 for shuffled SIDs, 1.7 for an encoder that fails.
_MIN_BUYER_RATIO = 2.0
_MISSING = {
    "empty_texts": ("have no text", "give them titles, or try with_interactions true"),
    "items_without_interactions": (
        "share no user with another item in training",
        "where items have texts, try an encoder of texts with with_interactions true",
    ),
}
"""Name of a count of items without a vector → the reason, and the remedy."""


def advice(report: Mapping[str, Any], measures: "Diagnostics | None" = None) -> str:
    """Describe the problems of a table with remedies in one or two sentences, or say that there are none.

    Thresholds are derived from the tables of docs/results/sids.md, on some of which a recommender was trained.

    Args:
        report: Result of `sid_report`.
        measures: Result of `diagnose`; None if the table was not compared with interactions.
    """
    problems, after, levels = [], report["collisions"]["after"], report["levels"]
    fitted = any(use["size"] for use in levels)
    counts = report.get("counts", {})
    counted = _MISSING.keys() & counts.keys()
    if len(counted) == 1 and counts[key := counted.pop()]:  # with both counts, an item may have one of the two vectors
        reason, remedy = _MISSING[key]
        problems.append(
            f"{counts[key]:,} items {reason} and so have no vector, and their codes say nothing of them: {remedy}"
        )
    method = report["collisions"]["method"]
    alternatives = [name for name in ("relocate", "extra_token") if name != method and (name != "relocate" or fitted)]
    if after["sharing_rate"] > _MAX_SHARING_RATE:
        problems.append(
            f"{after['sharing_items']:,} items ({after['sharing_rate']:.1%}) share an SID, and a recommender cannot "
            f"rank one of them above another: try collisions {' or '.join(alternatives)}"
        )
    poor_levels = [
        use["level"]
        for use in levels
        if use["size"] and use["size"] > 2 and use["perplexity"] < _MIN_CODE_USE * min(use["size"], use["items"])
    ]
    if poor_levels:
        other = "" if report["method"] == "balanced_kmeans" else "method balanced_kmeans, "
        problems.append(
            f"the codes of level {', '.join(poor_levels)} hardly distinguish items: try {other}smaller codebook_sizes, "
            "or another encoder"
        )
    buyer_purity = None if measures is None else measures.prefixes[0].buyer_purity
    chance = 0.0 if measures is None else measures.buyer_chance
    ratio = buyer_purity / chance if buyer_purity is not None and chance else None
    if ratio is not None and ratio < _MIN_BUYER_RATIO and chance * _MIN_BUYER_RATIO <= 1:
        other = "" if "items_without_interactions" in counts else "with_interactions true, or "
        problems.append(
            f"the same users interact with items of one first code hardly more often ({ratio:.1f} times) than with any "
            f"two items: try {other}another encoder"
        )
    if problems:
        return f"Advice: {'; '.join(problems)}."
    similarity = ""
    if ratio is not None:
        similarity = f", and two items of one first code are {ratio:.1f} times as alike in their users as any two"
    used = ", the levels are used" if fitted else ""
    return f"Advice: none. Nearly every item has an SID of its own{used}{similarity}."


def _collision_line(name: str, values: Mapping[str, Any]) -> str:
    return (
        f"{name}: {values['unique']} unique SIDs of {values['items']} items; {values['sharing_items']} items "
        f"({values['sharing_rate']:.2%}) share theirs, largest bucket {values['largest_bucket']}, "
        f"(N - unique) / N = {values['surplus_rate']:.2%}"
    )


# Diagnostics of a table of SIDs before a recommender is trained on it.

FOLDS = 5
STRENGTH = 100.0  # weight of the prior of a conditional distribution, in examples
HITS = 10


@dataclass(frozen=True)
class PrefixMeasures:
    """Measures of the first l codes of an SID, for one l.

    Attributes:
        length: Codes in the prefix, l.
        prefixes: Number of distinct prefixes.
        grouped_items: Share of items that share their prefix with another item; the purities are means over them.
        variance_left: Share of the item vectors' variance within groups of equal prefix. Unlike the error of codebooks,
            it compares tables of any origin on the same vectors; 0 if no item shares its prefix.
        word_purity: Mean cosine of an item's words with those of the other items of its prefix; None if no item shares
            its prefix.
        buyer_purity: Mean cosine of an item's buyers with those of the other items of its prefix, over items with a
            buyer in the training examples.
        next_hits: Share of training examples whose target has one of the 10 likeliest prefixes after the prefix of the
            history's last item, by counts from the other folds.
        popular_hits: Share of training examples whose target has one of the 10 most frequent prefixes.
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
        bits_per_item: Mean bits to encode the target of a training example given the last item of its history
            (`next_item_bits`).
        popular_bits: Mean bits without the history.
        word_chance: Mean cosine of the words of two random items: `word_purity` by chance.
        buyer_chance: Mean cosine of the buyers of two random items: `buyer_purity` by chance.
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
    """Data on which tables are compared, for `diagnose`.

    Attributes:
        vectors: float32 (N, D), vector of each item.
        words: float32 (N, V), TF-IDF of each item's words, rows of length 1 or 0.
        buyers: float32 (N, U), users of each item in the training examples, rows of length 1 or 0.
        last: int64 (R,), last item of the history of each training example that has one.
        target: int64 (R,), target of each of these examples.
        fold: int64 (R,), 0 to 4; all examples of a user are in one fold.
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
    """Prepare items and training examples for `diagnose`.

    Args:
        vectors: float32 (N, D), row i = item i.
        titles: N texts.
        users: User of each training example.
        histories: Item indices of each example, oldest first.
        targets: int (R,), item index of each example's target.

    Raises:
        DataError: If no title holds a word, or no example has a history.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        words = TfidfVectorizer(token_pattern=word_pattern(titles), dtype=np.float32).fit_transform(titles)
    except ValueError:
        raise DataError(f"none of the {len(titles)} titles holds a word, so similar items cannot be found.") from None
    user_numbers = np.unique(np.asarray(users, dtype=str), return_inverse=True)[1]
    lengths = np.array([len(history) for history in histories])
    if not lengths.any():
        raise DataError(
            f"none of the {len(lengths)} training examples has a history, so no next item can be predicted."
        )
    seen = np.concatenate([*histories, targets]).astype(np.int64)
    buyer = np.concatenate([np.repeat(user_numbers, lengths), user_numbers])
    pairs = np.unique(np.stack([seen, buyer], axis=1), axis=0)
    bought = np.bincount(pairs[:, 0], minlength=len(titles))
    weights = (1 / np.sqrt(bought[pairs[:, 0]])).astype(np.float32)
    buyers = csr_array((weights, (pairs[:, 0], pairs[:, 1])), shape=(len(titles), int(user_numbers.max()) + 1))
    with_history = np.flatnonzero(lengths > 0)
    last = np.array([histories[row][-1] for row in with_history.tolist()], dtype=np.int64)
    target = np.asarray(targets, dtype=np.int64)[with_history]
    return Evidence(vectors, csr_array(words), buyers, last, target, user_numbers[with_history] % FOLDS)


def diagnose(codes: np.ndarray, evidence: Evidence, codebooks: Sequence[np.ndarray] | None = None) -> Diagnostics:
    """Measure one table.

    Args:
        codes: int (N, L), -1 at the end of shorter SIDs.
        evidence: Result of `gather_evidence`.
        codebooks: Per level float32 (C_l, D'), if available, for the number of unused codes.

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
        features: float (N, F), rows of length 1; rows of zeros and items alone in their group are left out.

    Returns:
        The mean; None if every item is alone.

    Example:
        >>> purity(np.array([0, 0, 1]), csr_array(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])))
        0.0
    """
    filled = np.flatnonzero(np.diff(features.indptr) > 0)
    features, groups = features[filled], np.unique(groups[filled], return_inverse=True)[1]
    sizes = np.bincount(groups)
    member = csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(len(sizes), len(groups)))
    # The sum of the cosines of all pairs of a group, including each item with itself, is the square of the group's sum.
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
    """Share of examples whose target's group is in the top 10: by frequency, and after the group of the last item.

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
        pairs, pair_counts = np.unique(np.stack([last[here], target[here]], axis=1), axis=0, return_counts=True)
        starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(pairs)]):
            p = int(pairs[start, 0])
            seen = after.indices[after.indptr[p] : after.indptr[p + 1]]
            candidates = np.union1d(seen, best)  # no other group can be in the top 10
            scores = prior[candidates].copy()
            scores[np.searchsorted(candidates, seen)] += after.data[after.indptr[p] : after.indptr[p + 1]]
            top = candidates[np.argsort(-scores, kind="stable")[:HITS]]
            following += int(pair_counts[start:end][np.isin(pairs[start:end, 1], top)].sum())
    return popular / len(target), following / len(target)


def next_item_bits(codes: np.ndarray, evidence: Evidence, use_history: bool = True) -> float:
    """Bits to encode a training example's target given the last item of its history, by counts from the other folds.

    Targets are encoded code by code, as a recommender generates them. After the target's earlier codes s, the next code
    c has probability

        p_0(c | s) = (n(s, c) + 100 / children(s)) / (n(s) + 100)
        p_k(c | s, h_k) = (n(h_k, s, c) + 100 p_(k-1)(c | s, h_(k-1))) / (n(h_k, s) + 100),   k = 1 ... L

    where n counts examples of the other folds, h_k is the prefix of length k of the history's last item, and
    children(s) is the number of codes that follow s in the table. Items that share an SID add log2 of their number.

    Args:
        codes: int (N, L), -1 at the end of shorter SIDs.
        evidence: Result of `gather_evidence`.
        use_history: Whether to use p_L rather than p_0.

    Returns:
        Mean over examples, in bits. Without counts, distinct SIDs in random order need log2 N bits.
    """
    numbers = prefix_numbers(codes)
    last, target, fold = evidence.last, evidence.target, evidence.fold
    bits = np.log2(np.bincount(numbers[-1])[numbers[-1]][target])
    before = np.zeros(len(codes), dtype=np.int64)
    contexts = [before, *(numbers if use_history else [])]
    for groups in numbers:
        parents = np.zeros(int(groups.max()) + 1, dtype=np.int64)
        parents[groups] = before
        probability = 1 / np.bincount(parents)[before[target]]
        for context in contexts:
            position = context[last] * (int(before.max()) + 1) + before[target]
            count = _count_in_other_folds(position * len(parents) + groups[target], fold)
            probability = (count + STRENGTH * probability) / (_count_in_other_folds(position, fold) + STRENGTH)
        bits -= np.log2(probability)
        before = groups
    return float(bits.mean())


def _count_in_other_folds(keys: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Number of examples of other folds with the same key, for each example."""
    number = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    here = number * FOLDS + fold
    counts: np.ndarray = np.bincount(number)[number] - np.bincount(here)[here]
    return counts
