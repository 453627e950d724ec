"""What lists of ten are worth, and what re-ranking gives at the same HR@10: two tables in markdown.

    python studies/list_rewards.py --corpus runs/demo/corpus --value price
        --label department --city data/demo/shop.yaml --start runs/demo/sft_valid --runs value=runs/demo/value_valid

Predictions of one split (`eval-beam`), those of the starting checkpoint and those of others; with several starts, one a
seed, each name comes once for each, in their order, and figures are means over seeds. Of the first ten items of
each list: HR@10; value@10, the value of the target where it is found, in units of the catalogue's mean; distinct
labels; the share of rare items (`minionerec.training.rewards.is_rare`). With `--city`, the settings of a generated
shop, HR@10 and value@10 are exact: sums of the true purchase probabilities, not of the purchases that were drawn.

Beside them stand lists made from the start's own without training: ordered by log-probability + weight x log(value);
greedily, with a weight taken off the log-probability of each label that is in the list already; and drawn without
replacement at a temperature. The second table compares each checkpoint with each of these at equal HR@10: with the
mixture of two weights that has the same HR@10 and the most of what is measured. Intervals are paired, by user.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from minionerec.contrib.city.ceiling import contexts_of
from minionerec.contrib.city.law import probability_of
from minionerec.contrib.city.make import city_people
from minionerec.contrib.city.sizes import PARQUET
from minionerec.core.commands import run_command
from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.statistics import bootstrap_interval, paired_differences
from minionerec.metrics.tables import markdown_table
from minionerec.metrics.values import (
    CUTOFF,
    HR,
    VALUE,
    VALUE_WEIGHTS,
    Metrics,
    at_equal_hr,
    best_items,
    by_value,
    distinct_lists,
    item_values,
)
from minionerec.training.rewards import is_rare

LABEL_WEIGHTS = (0, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 20)
TEMPERATURES = (0, 0.1, 0.2, 0.3, 0.5, 0.75, 1)
LABELS, RARE = "labels@10", "rare@10"


@dataclass(frozen=True)
class Candidates:
    """The items of R lists, as arrays.

    Attributes:
        items: int64 (R, K), the best first; -1 after the end of a shorter list.
        scores: float64 (R, K), log-probabilities; minus infinity there.
    """

    items: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, predictions: Predictions) -> "Candidates":
        """Those of predictions, each item once."""
        return cls(*distinct_lists(predictions))

    def best(self, scores: np.ndarray) -> np.ndarray:
        """The ten best by other scores, (R, K): int64 (R, 10); equal ones in their own order."""
        return best_items(self.items, scores)

    def by_label(self, labels: np.ndarray, weight: float) -> np.ndarray:
        """One after another, the best of log-probability - weight where the label is in the list; int64 (R, 10)."""
        own, rows = labels[self.items], np.arange(len(self.items))
        left, used = np.where(self.items >= 0, self.scores, -np.inf), np.zeros(self.items.shape)
        found = np.full((len(rows), CUTOFF), -1, dtype=np.int64)
        for rank in range(min(CUTOFF, self.items.shape[1])):
            pick = (left - weight * used).argmax(1)
            found[:, rank] = np.where(np.isfinite(left[rows, pick]), self.items[rows, pick], -1)
            used = np.maximum(used, own == own[rows, pick][:, None])
            left[rows, pick] = -np.inf
        return found

    def sampled(self, temperature: float, seed: int = 0) -> np.ndarray:
        """Drawn without replacement in proportion to probability ^ (1 / temperature); int64 (R, 10)."""
        noise = np.random.default_rng(seed).gumbel(size=self.items.shape)
        return self.best(self.scores + temperature * noise)


@dataclass(frozen=True)
class Shop:
    """What lists are measured by.

    Attributes:
        targets: int64 (R,).
        users: The user of each example.
        values: float64 (N,), of mean 1.
        labels: int64 (N,).
        rare: bool (N,).
        probabilities: float64 (R, N), true purchase probabilities; the targets are counted if None.
    """

    targets: np.ndarray
    users: Sequence[str]
    values: np.ndarray
    labels: np.ndarray
    rare: np.ndarray
    probabilities: np.ndarray | None = None

    def metrics(self, lists: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics of each list: float64 (R,) each, of int64 (R, 10)."""
        there = lists >= 0
        bought = (lists == self.targets[:, None]).astype(float)
        if self.probabilities is not None:
            bought = np.take_along_axis(self.probabilities, np.maximum(lists, 0), 1) * there
        labels = np.sort(np.where(there, self.labels[lists], -1), axis=1)
        distinct = (np.diff(labels, axis=1, prepend=-1) > 0).sum(1).astype(float)
        rare = (self.rare[lists] & there).sum(1) / np.maximum(there.sum(1), 1)
        return {HR: bought.sum(1), VALUE: (bought * self.values[lists]).sum(1), LABELS: distinct, RARE: rare}


def true_probabilities(city: str, corpus: Corpus, split: str) -> np.ndarray:
    """The true probability of each item at each example of a split of a generated shop: float64 (R, N)."""
    settings = yaml.safe_load(Path(city).read_text(encoding="utf-8"))
    people, form, rows = city_people(settings), settings.get("form", PARQUET), corpus.rows(split)
    contexts = contexts_of(rows, form, people.memory)
    columns = [probability_of(people, contexts, np.full(len(rows), item)) for item in range(corpus.n_items)]
    return np.stack(columns, axis=1)


def by_seed(
    runs: Sequence[Metrics], curves: Sequence[Sequence[Metrics]], metric: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """A metric of S seeds' runs, each beside the most that its own start's curve gives at its HR@10.

    Args:
        runs: Metrics of each seed's run.
        curves: Metrics of each weight, of each seed's start.
        metric: Which of them.

    Returns:
        float64 (S, R) of the runs and of the curves (`at_equal_hr`); of how many seeds the HR@10 lies beyond the curve.
    """
    found = [at_equal_hr(run[HR].mean(), curve, metric) for run, curve in zip(runs, curves, strict=True)]
    plain = np.stack([values for values, _ in found])
    return np.stack([run[metric] for run in runs]), plain, sum(not inside for _, inside in found)


def load_shop(given: argparse.Namespace, starts: Sequence[Predictions]) -> Shop:
    """What the lists are measured by.

    Raises:
        DataError: If a column is missing or is no number from 0, or the examples are not those of the split.
    """
    corpus = Corpus.load(given.corpus)
    columns = corpus.items.set_index("item_id", drop=False)
    for name in (given.value, given.label):
        if name not in columns:
            raise DataError(f"{given.corpus}: its items have no column {name!r}; they have {', '.join(columns)}.")
    values = item_values(columns[given.value])
    targets = np.asarray(corpus.rows(given.split).targets, dtype=np.int64)
    for folder, start in zip(given.start, starts, strict=True):
        if not np.array_equal(start.targets, targets):
            raise DataError(f"{folder}: its examples are not those of split {given.split!r} of {given.corpus}.")
    return Shop(
        targets,
        starts[0].users,
        values / values.mean(),
        pd.factorize(columns[given.label].fillna(""))[0],
        is_rare(corpus.popularity()),
        true_probabilities(given.city, corpus, given.split) if given.city else None,
    )


def spread(values: Sequence[float]) -> str:
    """The mean of several seeds and their standard deviation, or the value of one."""
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def curves_of(candidates: Candidates, shop: Shop) -> dict[str, list[tuple[str, Metrics]]]:
    """Metrics of the start's lists re-ranked and sampled: name to (weight, metrics) of each."""
    own = candidates.items, candidates.scores, shop.values
    return {
        "by value": [(f"{w:g}", shop.metrics(by_value(*own, w))) for w in VALUE_WEIGHTS],
        "by label": [(f"{w:g}", shop.metrics(candidates.by_label(shop.labels, w))) for w in LABEL_WEIGHTS],
        "sampled": [(f"{t:g}", shop.metrics(candidates.sampled(t))) for t in TEMPERATURES],
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="the corpus")
    parser.add_argument("--value", required=True, help="column of numbers, such as a price")
    parser.add_argument("--label", required=True, help="column of labels, such as a brand")
    parser.add_argument("--city", help="settings of the generated shop (make-city), for exact figures")
    parser.add_argument("--split", default="valid", help="split of the predictions")
    parser.add_argument("--start", required=True, nargs="+", help="predictions of the start, with 50 beams, by seed")
    parser.add_argument(
        "--runs", nargs="+", default=[], metavar="NAME=FOLDER", help="others; a name again is its next seed"
    )
    given = parser.parse_args()
    starts = [Predictions.load(folder) for folder in given.start]
    shop, candidates = load_shop(given, starts), [Candidates.of(start) for start in starts]
    curves = [curves_of(own, shop) for own in candidates]
    runs: dict[str, list[Metrics]] = {}
    for name, folder in (word.split("=", 1) for word in given.runs):
        predictions = Predictions.load(folder)
        if not np.array_equal(predictions.targets, shop.targets):
            raise DataError(f"{folder}: its examples are not those of {given.start[0]}.")
        own = Candidates.of(predictions)
        runs.setdefault(name, []).append(shop.metrics(own.best(own.scores)))
    for name, each in runs.items():
        if len(each) != len(starts):
            raise DataError(f"{name} has {len(each)} seeds and the start {len(starts)}; give one run of each start.")
    names = (HR, VALUE, LABELS, RARE)
    rows: list[tuple[str, list[Metrics]]] = [
        ("start", [shop.metrics(own.best(own.scores)) for own in candidates]),
        *runs.items(),
    ]
    for kind, curve in curves[0].items():
        for point, (weight, _) in enumerate(curve):
            rows.append((f"{kind}, {weight}", [own[kind][point][1] for own in curves]))
    cells = [[name, *(spread([own[metric].mean() for own in each]) for metric in names)] for name, each in rows]
    print(markdown_table(["lists", *names], cells), end="\n\n")
    cells = []
    for name, each in runs.items():
        for kind, metric in (("by value", VALUE), ("by label", LABELS), ("sampled", VALUE), ("sampled", LABELS)):
            its, plain, beyond = by_seed(each, [[own for _, own in curve[kind]] for curve in curves], metric)
            gap = paired_differences({"": its}, {"": plain}, clusters=shop.users)[""]
            low, high = bootstrap_interval(np.mean([own[HR] for own in each], axis=0), clusters=shop.users)
            share = 100 / plain.mean()
            cells.append(
                [
                    f"{name}: {metric} against {kind}" + f" ({beyond} beyond the curve: its end)" * (beyond > 0),
                    f"{np.mean([own[HR] for own in each]):.4f} [{low:.4f}, {high:.4f}]",
                    f"{its.mean():.4f}",
                    f"{plain.mean():.4f}",
                    f"{gap.difference * share:+.1f} % [{gap.low * share:+.1f}, {gap.high * share:+.1f}]",
                    ", ".join(f"{100 * (a.mean() / b.mean() - 1):+.1f}" for a, b in zip(its, plain, strict=True)),
                    f"{gap.p:.4f}",
                ]
            )
    headers = ["checkpoint", HR, "its", "without training", "difference", "by seed, %", "p"]
    print(markdown_table(headers, cells))


if __name__ == "__main__":
    run_command(main)
