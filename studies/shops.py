"""What the demo shop and public data have in common: how rare, how old and how foretold the next purchase is.

    python studies/shops.py --demo runs/demo/corpus --industrial runs/industrial/corpus --steam runs/steam/corpus

Each argument names a corpus; the answer is a table in markdown with a column for each. Counts and EASE are tuned here
on validation examples (at most 1,000 of them, drawn by chance), by item, and read once on the test examples.
"""

import sys
from itertools import product

import numpy as np
from scipy.sparse import csr_array

from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples

REACHES, DECAYS, SCORING = (1, 3, 10), (0.3, 0.6, 1.0), (0.1, 0.3, 0.6, 0.8)
REVERSE, POPULARITY, SEEN = (0.0, 0.3, 1.0), (0.02, 0.2), (True, False)
RIDGES, FADES = (3.0, 10.0, 30.0, 100.0, 300.0), (1.0, 0.8, 0.5)
DAY, TUNED = 86_400, 1000


def positions(rows: SplitExamples, reach: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each step back: which examples have such an item, and the item."""
    lengths = np.array([len(history) for history in rows.histories])
    found = []
    for back in range(1, reach + 1):
        held = np.flatnonzero(lengths >= back)
        found.append((held, np.array([rows.histories[row][-back] for row in held], dtype=np.int64)))
    return found


def weighted(rows: SplitExamples, items: int, reach: int, decay: float, weight: np.ndarray | None = None) -> csr_array:
    """Histories as vectors: (R, N), each step back worth `decay` times the step before."""
    parts = positions(rows, reach)
    row, item = (np.concatenate([part[position] for part in parts]) for position in (0, 1))
    values = np.concatenate([np.full(len(part[0]), decay**back) for back, part in enumerate(parts)])
    return csr_array((values if weight is None else values * weight[item], (row, item)), shape=(len(rows), items))


def tuned_on(corpus: Corpus) -> SplitExamples:
    """The validation examples that constants are chosen on."""
    order = np.random.default_rng(0).permutation(len(corpus.valid))
    return corpus.valid.take(np.sort(order[:TUNED]))


def ndcg(scores: np.ndarray, targets: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """NDCG@10 of each example, ties by popularity: float64 (R,)."""
    scores = scores + 1e-9 * tie / (tie.max() + 1)
    own = scores[np.arange(len(targets)), targets][:, None]
    ranks = (scores > own).sum(axis=1)
    return np.where(ranks < 10, 1 / np.log2(ranks + 2.0), 0.0)


def without_seen(scores: np.ndarray, seen: csr_array) -> np.ndarray:
    """Scores with the items of the histories after all others."""
    struck = scores.copy()
    struck[seen.nonzero()] = -1e6
    return struck


def tuned_counts(corpus: Corpus) -> tuple[str, np.ndarray]:
    """Transition counts with the constants that are best on validation: what they are, and NDCG@10 by test example."""
    n, popularity = corpus.n_items, corpus.popularity().astype(float)
    share = popularity / popularity.sum()
    steps = [csr_array((np.ones(len(row)), (item, corpus.train.targets[row])), shape=(n, n))
             for row, item in positions(corpus.train, max(REACHES))]  # fmt: skip
    best: tuple[float, tuple] = (-1.0, ())
    valid = tuned_on(corpus)
    seen = weighted(valid, n, corpus.max_history, 1.0)

    def scored(
        rows: SplitExamples, reach: int, decay: float, scoring: float, reverse: float, recent: float
    ) -> np.ndarray:
        forward = sum((step * decay**back for back, step in enumerate(steps[:reach])), start=csr_array((n, n)))
        counts = csr_array(forward + reverse * forward.T)
        rarity = 1 / np.sqrt(np.asarray(counts.sum(axis=1)).ravel() + 1)
        found: np.ndarray = (weighted(rows, n, reach, scoring, rarity) @ counts).toarray() + recent * 10 * share
        return found

    for constants in product(REACHES, DECAYS, SCORING, REVERSE, POPULARITY):
        if constants[0] == 1 and constants[1:3] != (DECAYS[0], SCORING[0]):
            continue  # one step back knows no decay
        found = scored(valid, *constants)
        for struck in SEEN:
            value = ndcg(without_seen(found, seen) if struck else found, valid.targets, popularity).mean()
            best = max(best, (float(value), (*constants, struck)))
    *constants, struck = best[1]
    found = scored(corpus.test, *constants)
    if struck:
        found = without_seen(found, weighted(corpus.test, n, corpus.max_history, 1.0))
    names = ("reach", "decay", "scoring", "reverse", "popularity", "seen struck")
    reported = ", ".join(f"{name} {value}" for name, value in zip(names, best[1], strict=True))
    return f"{reported}; validation {best[0]:.4f}", ndcg(found, corpus.test.targets, popularity)


def tuned_ease(corpus: Corpus) -> tuple[str, np.ndarray]:
    """EASE (Steck, "Embarrassingly shallow autoencoders for sparse data", 2019) with the best ridge on validation."""
    n, popularity = corpus.n_items, corpus.popularity().astype(float)
    users = np.unique(np.asarray(corpus.train.users), return_inverse=True)[1]
    pairs = [(users[row], item) for row, item in positions(corpus.train, corpus.max_history)]
    pairs.append((users, corpus.train.targets.astype(np.int64)))
    row, item = (np.concatenate([pair[position] for pair in pairs]) for position in (0, 1))
    held = csr_array((np.ones(len(row)), (row, item)), shape=(users.max() + 1, n))
    held.data[:] = 1.0
    gram = (held.T @ held).toarray()
    valid = tuned_on(corpus)
    seen = weighted(valid, n, corpus.max_history, 1.0)
    best: tuple[float, tuple] = (-1.0, ())
    for ridge in RIDGES:
        inverse = np.linalg.inv(gram + ridge * np.eye(n))
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0.0)
        for fade in FADES:
            found = weighted(valid, n, corpus.max_history, fade) @ weights
            for struck in SEEN:
                value = ndcg(without_seen(found, seen) if struck else found, valid.targets, popularity).mean()
                if value > best[0]:
                    best, kept = (float(value), (ridge, fade, struck)), weights
    _, fade, struck = best[1]
    found = weighted(corpus.test, n, corpus.max_history, fade) @ kept
    if struck:
        found = without_seen(found, weighted(corpus.test, n, corpus.max_history, 1.0))
    reported = ", ".join(
        f"{name} {value}" for name, value in zip(("ridge", "fade", "seen struck"), best[1], strict=True)
    )
    return f"{reported}; validation {best[0]:.4f}", ndcg(found, corpus.test.targets, popularity)


def described(corpus: Corpus) -> dict[str, str]:
    """A column of the table: what is counted to how much that is."""
    test, popularity = corpus.test, corpus.popularity()
    targets = test.targets.astype(np.int64)
    bought = popularity + np.bincount(np.concatenate(list(corpus.train.histories)), minlength=corpus.n_items)
    lengths = np.array([len(history) for history in test.histories])
    repeats = np.mean([target in history for history, target in zip(test.histories, targets, strict=True)])
    same_day = "unknown"
    if test.times is not None:
        known = lengths > 0
        same_day = f"{(test.times.time // DAY == test.times.previous // DAY)[known].mean():.3f}"
    quarters = np.percentile(lengths, [25, 50, 75]).astype(int)
    pairs = {(item, target) for rows in (corpus.train,) for history, target in
             zip(rows.histories, rows.targets, strict=True) for item in history.tolist()}  # fmt: skip
    unseen = np.mean([not any((item, target) in pairs or (target, item) in pairs for item in history.tolist())
                      for history, target in zip(test.histories, targets, strict=True)])  # fmt: skip
    column = {
        "items": f"{corpus.n_items:,}",
        "users": f"{len(set(corpus.train.users) | set(corpus.valid.users) | set(test.users)):,}",
        "examples: train, validation, test": ", ".join(f"{len(rows):,}" for rows in corpus.splits().values()),
        "training examples an item": f"{len(corpus.train) / corpus.n_items:.1f}",
        "test targets with at most five training examples": f"{(popularity[targets] <= 5).mean():.3f}",
        "test targets with none": f"{(bought[targets] == 0).mean():.3f}",
        "test targets on the day of the newest history item": same_day,
        "test targets that the history holds": f"{repeats:.3f}",
        "length of test histories: quartiles (at most ten)": ", ".join(map(str, quarters)),
        "test targets never seen with any item of the history": f"{unseen:.3f}",
    }
    popular = ndcg(np.tile(popularity.astype(float), (len(targets), 1)), targets, popularity).mean()
    column["popularity, NDCG@10"] = f"{popular:.4f}"
    for name, (reported, values) in {"transition counts": tuned_counts(corpus), "EASE": tuned_ease(corpus)}.items():
        print(f"{name}: {reported}", file=sys.stderr)
        column[f"tuned {name}, NDCG@10"] = f"{values.mean():.4f}"
        rare = popularity[targets] <= 5
        column[f"tuned {name}, rare targets"] = f"{values[rare].mean():.4f}"
    return column


def main() -> None:
    """Print the table."""
    words = sys.argv[1:]
    columns = {
        name[2:]: described(Corpus.load(position)) for name, position in zip(words[::2], words[1::2], strict=True)
    }
    print(f"| | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for key in next(iter(columns.values())):
        print(f"| {key} | {' | '.join(column[key] for column in columns.values())} |")


if __name__ == "__main__":
    main()
