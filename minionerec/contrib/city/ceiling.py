"""The stage that computes the best metrics any recommender can expect on examples of a generated city."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.contrib.city.columns import LACKING, Histories, Predictor, histories_of
from minionerec.contrib.city.config import CeilingConfig
from minionerec.contrib.city.law import PurchaseContexts, likeliest, probability_of
from minionerec.contrib.city.make import city_people
from minionerec.contrib.city.people import People
from minionerec.contrib.city.sizes import PARQUET
from minionerec.contrib.city.text import ids, numbers_of
from minionerec.core.artefacts import open_artefact, write_json
from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import progress
from minionerec.core.values import in_words
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult

FILE, ROWS = "ceiling.json", "rows.parquet"
AT_ONCE = 4096
"""Examples whose lists are in memory at a time; in a city with columns, views and purchases of whole users, about."""
LARGEST = 1 << 23
"""Probabilities in memory at a time in a city with columns: examples times items."""
_NORMAL = 1.959964
_DIGITS = 6


def run_city_ceiling(config: CeilingConfig) -> StageResult:
    """Rank by the true probabilities for every example of a split, and write the expected metrics.

    Raises:
        ConfigError: If the corpus is not all of this city, its ties were moved, it has other targets than purchases, or
            a cutoff is too large.
        ArtefactError: If something cannot be read or written.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"])
    with stage.work() as work:
        with work.phase("load"):
            city = open_artefact(stage.config.city, "city")
            corpus = Corpus.load(stage.config.corpus)
            people, form = city_people(city["settings"]), city["settings"].get("form", PARQUET)
            check_corpus(corpus, city["counts"], form, where=config.corpus, city=config.city)
            if max(config.ks) > corpus.n_items:
                raise ConfigError(
                    f"ks is {in_words(config.ks)}, but there are {corpus.n_items} items. Give smaller ks."
                )
            if corpus.max_history < people.memory:
                raise ConfigError(
                    f"{config.corpus}: max_history is {corpus.max_history}, but the next purchase depends on the last "
                    f"{people.memory} items. Prepare it with max_history {people.memory} or more."
                )
            if not corpus.sizes[config.split]:
                raise DataError(f"{config.corpus}: split {config.split!r} holds no example. Choose another split.")
        with work.phase("rank"):
            lacking: Mapping[str, Totals] = {}
            if people.columns is None:
                totals = totals_of(corpus, people, config.split, config.ks, form)
            else:
                totals, lacking = totals_with_columns(corpus, people, config.split, config.ks, form, config.corpus)
        content = {"split": corpus.split, **totals.content()}
        counts = {"rows": totals.rows, **content["ceiling"]}
        if lacking:
            content["without"] = {name: other.content() for name, other in lacking.items()}
            counts["without"] = {name: other["ceiling"] for name, other in content["without"].items()}
        with work.finish(counts=counts) as folder:
            write_json(folder / FILE, content)
            pq.write_table(totals.table(), folder / ROWS, compression="zstd")
    return _result(stage.output, counts)


def _result(output: Path, counts: Mapping[str, Any]) -> StageResult:
    k = 10 if "ndcg@10" in counts else max(int(name[5:]) for name in counts if name.startswith("ndcg@"))

    def metrics(ceiling: Mapping[str, float]) -> str:
        return f"NDCG@{k} {ceiling[f'ndcg@{k}']:.4f}, HR@{k} {ceiling[f'hr@{k}']:.4f}"

    lacking = [
        f"without {name.replace('_', ' ')}: {metrics(other)}" for name, other in counts.get("without", {}).items()
    ]
    summary = f"no recommender can expect more than {metrics(counts)}"
    return StageResult(output, [summary, *lacking, f"ceiling: {output / FILE}"], counts)


def check_corpus(corpus: Corpus, counts: Mapping[str, Any], form: str, where: str, city: str) -> None:
    """Check that a corpus is all of a city, so that the newest item of a history is the last purchase.

    Args:
        corpus: The corpus.
        counts: The city's counts of items, interactions and, with columns, purchases, of which the corpus may be made.
        form: Form of the city's ids.
        where: Name of the corpus in messages.
        city: Name of the city in messages.

    Raises:
        ConfigError: Naming the difference.
    """
    if corpus.counts.get("ties", "keep") != "keep":
        raise ConfigError(
            f"{where}: was made with ties {corpus.counts['ties']!r}, so that the newest item may not be the last "
            "purchase. Prepare it with ties 'keep'."
        )
    sizes = {"items": corpus.n_items, "interactions": corpus.counts.get("interactions")}
    for name, value in sizes.items():
        if value != counts[name] and (name == "items" or value != counts.get("purchases")):
            raise ConfigError(
                f"{where}: has {value} {name}, but {city} has {counts[name]}. Prepare the corpus from all of this city "
                "(source 'tables', without core, start or end)."
            )
    item_ids = pa.Table.from_pandas(corpus.items[["item_id"]], preserve_index=False)["item_id"].cast(pa.string())
    expected = pa.chunked_array([ids("p", np.arange(corpus.n_items), form)])
    if not item_ids.equals(expected):
        raise ConfigError(f"{where}: was not made from {city}: its items differ. Prepare it from there.")


def contexts_of(examples: SplitExamples, form: str = PARQUET, memory: int = 0) -> PurchaseContexts:
    """The inputs of the law for the targets of some examples.

    The last `memory` items of a history are not bought again.

    Raises:
        ConfigError: If the examples have no times.
    """
    if examples.times is None:
        raise ConfigError("the corpus has no times, but the city's purchases depend on them. Prepare it from the city.")
    newest = examples.newest.astype(np.int64)
    pauses = np.where(newest < 0, -1, examples.times.time - examples.times.previous)
    recent = None
    if memory:
        recent = np.full((len(examples), memory), -1, dtype=np.int64)
        for row, history in enumerate(examples.histories):
            last = history[-memory:][::-1]
            recent[row, : len(last)] = last
    return PurchaseContexts(numbers_of(examples.users, form), newest, examples.times.time, pauses, recent)


class Totals:
    """Metrics of the ranking by true probabilities on R examples, summed part by part.

    Args:
        ks: Cutoffs, ascending.
        rows: Number of examples, R.

    Attributes:
        probability: float64 (R,), probability of each example's target.
        rank: int32 (R,), rank of the target from 1; 0 if it is after the largest cutoff.
    """

    def __init__(self, ks: Sequence[int], rows: int):
        self.ks, self.rows = ks, rows
        self.probability, self.rank = np.empty(rows), np.zeros(rows, dtype=np.int32)
        self._gains = {
            f"{name}@{k}": gains
            for k in ks
            for name, gains in (("hr", np.ones(k)), ("ndcg", 1 / np.log2(np.arange(2, k + 2))))
        }
        self._mean, self._variance, self._drawn = (dict.fromkeys(self._gains, 0.0) for _ in range(3))

    def add(
        self,
        numbers: np.ndarray,
        targets: np.ndarray,
        probability: np.ndarray,
        lists: np.ndarray,
        chances: np.ndarray,
    ) -> None:
        """Add some examples.

        Args:
            numbers: int64 (M,), their numbers.
            targets: int64 (M,), the items bought, as rows of the items table.
            probability: float64 (M,), the probability of each target.
            lists: int64 (M, K), the most probable items of each, the first of them first.
            chances: float64 (M, K), their probabilities.
        """
        self.probability[numbers] = probability
        hits = lists == targets[:, None]
        hit_rows = np.flatnonzero(hits.any(axis=1))
        position = hits[hit_rows].argmax(axis=1)
        self.rank[numbers[hit_rows]] = position + 1
        for name, gains in self._gains.items():
            expected = chances[:, : len(gains)] @ gains
            self._mean[name] += float(expected.sum())
            self._variance[name] += float((chances[:, : len(gains)] @ gains**2 - expected**2).sum())
            self._drawn[name] += float(gains[position[position < len(gains)]].sum())

    def content(self) -> dict[str, Any]:
        """Content of `ceiling.json`.

        Returns:
            `rows`; `ceiling`, the expected metrics; `sigma`, one standard deviation of the same ranking's
            metrics over redrawn targets; `low` and `high`, between which that lies in 95 % of cases; `drawn`, what it
            gets on the targets as they were drawn; `nats`, the mean of -ln of the targets' probabilities, below which
            no model's loss can fall in expectation.
        """
        mean = {name: total / self.rows for name, total in self._mean.items()}
        sigma = {name: math.sqrt(total) / self.rows for name, total in self._variance.items()}
        low = {name: mean[name] - _NORMAL * sigma[name] for name in mean}
        high = {name: mean[name] + _NORMAL * sigma[name] for name in mean}
        drawn = {name: total / self.rows for name, total in self._drawn.items()}
        tables = {"ceiling": mean, "sigma": sigma, "low": low, "high": high, "drawn": drawn}
        rounded = {name: {key: round(value, _DIGITS) for key, value in table.items()} for name, table in tables.items()}
        return {"rows": self.rows, **rounded, "nats": round(float(-np.log(self.probability).mean()), _DIGITS)}

    def table(self) -> pa.Table:
        """A row per example: its number, its target's probability, and its target's rank (0: after all cutoffs)."""
        return pa.table(
            {
                "row": pa.array(np.arange(self.rows), pa.int64()),
                "probability": pa.array(self.probability, pa.float64()),
                "rank": pa.array(self.rank, pa.int32()),
            }
        )


def totals_of(corpus: Corpus, people: People, split: str, ks: Sequence[int], form: str = PARQUET) -> Totals:
    """Compute the totals over all examples of a split of a corpus that is all of the city, in batches."""
    totals = Totals(sorted(set(ks)), corpus.sizes[split])
    for numbers, examples in progress(corpus.batches(split), "ranking examples", unit="batch"):
        contexts, targets = contexts_of(examples, form, people.memory), examples.targets.astype(np.int64)
        for begin in range(0, len(examples), AT_ONCE):
            some = np.arange(begin, min(begin + AT_ONCE, len(examples)))
            part, bought = contexts.take(some), targets[some]
            lists, chances = likeliest(people, part, totals.ks[-1])
            totals.add(numbers[some], bought, probability_of(people, part, bought), lists, chances)
    return totals


def totals_with_columns(
    corpus: Corpus, people: People, split: str, ks: Sequence[int], form: str, where: str
) -> tuple[Totals, dict[str, Totals]]:
    """Compute the totals over all examples of a split of a city with columns, for every kind of predictor.

    Histories are drawn again from the city, so that it is the same whether the corpus has its views or purchases alone.

    The corpus is all of the city, or all of its purchases; messages call it `where`.

    Returns:
        Totals where the columns are known, and for each of `minionerec.contrib.city.columns.LACKING` where it is not.

    Raises:
        ConfigError: If an example is no purchase of the city.
    """
    totals = {name: Totals(sorted(set(ks)), corpus.sizes[split]) for name in ("", *LACKING)}
    for numbers, examples in progress(corpus.batches(split), "ranking examples", unit="batch"):
        users, times = numbers_of(examples.users, form), contexts_of(examples, form).times
        blocks = users // people.block
        for block in np.unique(blocks).tolist():
            of_block = np.flatnonzero(blocks == block)
            histories = histories_of(people, block)
            found = _purchases_at(histories, users[of_block], times[of_block])
            wrong = (found < 0) | (histories.items[found] != examples.targets[of_block])
            if wrong.any():
                raise ConfigError(
                    f"{where}: {split} example {numbers[of_block[wrong.argmax()]]} is no purchase of the city. Prepare "
                    "the corpus with targets [purchase], or with where 'event == purchase'."
                )
            _add_block(totals, people, histories, numbers[of_block], found)
    known = totals.pop("")
    return known, totals


def _purchases_at(histories: Histories, users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Positions of the purchases of some users at some times, int64 (R,); -1 for none."""
    purchases = np.flatnonzero(histories.bought)
    contexts = histories.contexts.take(purchases)
    known = dict(
        zip(zip(contexts.users.tolist(), contexts.times.tolist(), strict=True), purchases.tolist(), strict=True)
    )
    return np.array([known.get(key, -1) for key in zip(users.tolist(), times.tolist(), strict=True)])


def _add_block(
    totals: Mapping[str, Totals], people: People, histories: Histories, numbers: np.ndarray, purchases: np.ndarray
) -> None:
    """Add examples with the given numbers, which are the purchases at some positions of the histories."""
    users = histories.contexts.users
    needed = np.isin(users, users[purchases])
    users, positions = users[needed], np.cumsum(needed)[purchases] - 1
    histories = histories.take(np.flatnonzero(needed))
    order = np.argsort(positions)
    firsts, ends = (np.searchsorted(users, users[positions[order]], side) for side in ("left", "right"))
    begin = 0
    while begin < len(order):
        limit = max(firsts[begin] + AT_ONCE, ends[begin])  # whole users
        count = min(np.searchsorted(ends[begin:], limit, side="right"), max(1, LARGEST // people.world.items))
        some = order[begin : begin + count]
        part = np.arange(firsts[begin], positions[some[-1]] + 1)
        predictor = Predictor(people, histories.take(part))
        targets = histories.items[positions[some]]
        for name, total in totals.items():
            table = predictor.predictions(positions[some] - firsts[begin], name)
            lists = np.argpartition(-table, total.ks[-1] - 1, axis=1)[:, : total.ks[-1]]
            chances = np.take_along_axis(table, lists, 1)
            ranked = np.argsort(-chances, axis=1, kind="stable")
            lists, chances = (np.take_along_axis(values, ranked, 1) for values in (lists, chances))
            total.add(numbers[some], targets, table[np.arange(count), targets], lists, chances)
        begin += count
