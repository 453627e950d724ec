"""What the examples of data sets measure: one table in markdown, a column for each corpus.

    python studies/examples.py steam=runs/audit/steam games=runs/audit/games

Counts of the examples, the order of the source within one timestamp, and NDCG@10 by item of the baselines: over all
test examples, over those whose target has the time of the newest history item ("same time"), over later ones, and the
share of the first that the second brings. Constants are chosen on validation examples; intervals are by user.
"""

import argparse

import numpy as np

from minionerec.core.commands import run_command
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.ranking import item_ranks, ranking_metrics
from minionerec.metrics.statistics import bootstrap_interval
from minionerec.metrics.tables import markdown_table
from minionerec.recommend.rankers.baselines import make_baselines
from minionerec.recommend.rankers.lists import rank_rows
from minionerec.recommend.rankers.protocol import Ranker

CUTOFF, UNKNOWN = 10, "unknown"


def ndcg(ranker: Ranker, corpus: Corpus) -> np.ndarray:
    """NDCG@10 of each test example: float64 (R,)."""
    lists = rank_rows(ranker, corpus.rows("test"), CUTOFF, corpus.n_items)
    return ranking_metrics(item_ranks(lists), [CUTOFF])[f"NDCG@{CUTOFF}"]


def share_of_same(corpus: Corpus, split: str) -> str:
    """The share of a split's examples whose target has the time of the newest history item."""
    times = corpus.rows(split).times
    return f"{times.same.mean():.1%}" if times is not None and times.known.any() else UNKNOWN


def order_of_source(corpus: Corpus) -> dict[str, str]:
    """How many neighbouring pairs of the source have one timestamp, and how often the item id rises in them."""
    order = corpus.counts.get("order", {})
    found = {"pairs of one timestamp": UNKNOWN}
    if order.get("ties") is not None and order["pairs"]:
        found["pairs of one timestamp"] = f"{order['ties'] / order['pairs']:.1%} of {order['pairs']:,}"
    for name in ("text", "number"):
        for kind, counts in order.get(name, {}).items():
            rising = f"{counts['rising'] / counts['pairs']:.1%} of {counts['pairs']:,}" if counts["pairs"] else "none"
            found[f"item ids as {name} rise in {kind}"] = rising
    return found


def pair_keys(rows: SplitExamples, items: int) -> np.ndarray:
    """Each item of each history with the example's target, as one number: int64 (P,)."""
    lengths = [len(history) for history in rows.histories]
    return np.concatenate(list(rows.histories)).astype(np.int64) * items + np.repeat(rows.targets, lengths)


def reverse(keys: np.ndarray, items: int) -> np.ndarray:
    """The keys of the pairs with the two items exchanged."""
    return keys % items * items + keys // items


def counts_of(corpus: Corpus) -> dict[str, str]:
    """The size of a corpus, and how rare, how old and how close to training its test targets are."""
    test, train, popularity = corpus.test, corpus.train, corpus.popularity()
    targets = test.targets.astype(np.int64)
    bought = popularity + np.bincount(np.concatenate(list(train.histories)), minlength=corpus.n_items)
    repeats = np.mean([target in history for history, target in zip(test.histories, targets, strict=True)])
    seen, own = pair_keys(train, corpus.n_items), pair_keys(test, corpus.n_items)
    known = np.isin(own, seen) | np.isin(reverse(own, corpus.n_items), seen)
    lengths = [len(history) for history in test.histories]
    unseen = 1 - (np.bincount(np.repeat(np.arange(len(test)), lengths), known, len(test)) > 0).mean()
    quarters = np.percentile(lengths, [25, 50, 75]).astype(int)
    users = set(train.users) | set(corpus.valid.users) | set(test.users)
    return {
        "items, users": f"{corpus.n_items:,}, {len(users):,}",
        "examples: train, validation, test": ", ".join(f"{size:,}" for size in corpus.sizes.values()),
        "training examples an item": f"{len(train) / corpus.n_items:.1f}",
        "test targets with at most five training examples": f"{(popularity[targets] <= 5).mean():.1%}",
        "test targets with no training interaction": f"{(bought[targets] == 0).mean():.1%}",
        "test targets in the history": f"{repeats:.1%}",
        "test targets never with an item of the history in training": f"{unseen:.1%}",
        "length of test histories: quartiles": ", ".join(map(str, quarters)),
    }


def column_of(corpus: Corpus) -> dict[str, str]:
    """A column of the table: quantity to value."""
    column = counts_of(corpus) | order_of_source(corpus)
    column |= {f"{split} examples of the same time": share_of_same(corpus, split) for split in corpus.sizes}
    chosen, rankers = make_baselines(corpus)
    times, none = corpus.test.times, np.zeros(len(corpus.test), bool)
    same, later = (none, none) if times is None else (times.same, times.later)
    users = np.asarray(corpus.test.users)
    for name, ranker in rankers.items():
        values = ndcg(ranker, corpus)
        column[f"{name}: validation"] = f"{chosen.valid[name]:.4f}" if name in chosen.valid else ""
        parts = {"all": np.ones(len(values), bool), "same time": same, "later": later}
        for part, rows in parts.items():
            if rows.any():
                low, high = bootstrap_interval(values[rows], clusters=users[rows])
                column[f"{name}: {part}"] = f"{values[rows].mean():.4f} [{low:.4f}, {high:.4f}]"
        if (same | later).any():
            column[f"{name}: share of the same time"] = f"{values[same].sum() / values.sum():.0%}"
    return column


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", metavar="NAME=FOLDER", help="a column's name and its corpus")
    named = dict(word.split("=", 1) for word in parser.parse_args().corpora)
    columns = {name: column_of(Corpus.load(folder)) for name, folder in named.items()}
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    rows = [[key, *(column.get(key, "") for column in columns.values())] for key in keys]
    print(markdown_table(["", *columns], rows))


if __name__ == "__main__":
    run_command(main)
