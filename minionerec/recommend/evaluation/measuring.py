"""Evaluating the lists of a split along with the baselines, and writing the results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import write_json
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import FILE, GIVEN, Predictions, baselines_lack
from minionerec.metrics.published_json import write_published_json
from minionerec.metrics.ranked import write_ranks
from minionerec.metrics.ranking import check_ks
from minionerec.metrics.results import (
    FEWEST,
    Bootstrap,
    Evaluation,
    RecommenderResults,
    Results,
    metrics_at,
)
from minionerec.metrics.tables import format_metrics_table
from minionerec.recommend.evaluation.baseline_lists import write_baseline_lists
from minionerec.recommend.rankers.baselines import Chosen, make_baselines
from minionerec.recommend.rankers.candidates import CandidateGroups
from minionerec.recommend.rankers.lists import rank_rows

logger = get_logger(__name__)

JSON_FILE = "predictions.json"
METRICS_FILE = "metrics.json"
TABLE_FILE = "metrics.txt"
SEED = 0
"""Seed of the bootstrap."""


@dataclass(frozen=True)
class Measured:
    """Lists with their metrics.

    Attributes:
        corpus: Items and examples.
        split: Name of the split.
        name: Name of the recommender in tables.
        table: SIDs, or titles, that items share; None where there are none.
        list_length: List length in candidates.
        results: The recommender, first, and the baselines.
        lists: Their lists.
        chosen: The constants of the baselines; None without baselines.
        evaluations: Metrics of the recommender and of the baselines, by name.
    """

    corpus: Corpus
    split: str
    name: str
    table: CandidateGroups | None
    list_length: int
    results: Results
    lists: Mapping[str, Predictions]
    chosen: Chosen | None
    evaluations: Mapping[str, Evaluation]

    @property
    def predictions(self) -> Predictions:
        """The recommender's lists."""
        return self.lists[self.name]

    def _about(self) -> dict[str, Any]:
        """Fields of both the manifest and `metrics.json`."""
        return {
            "split": self.split,
            "beams": self.list_length,
            "sid_table": None if self.table is None else self.table.fingerprint,
            GIVEN: list(self.predictions.given or ()),
        }

    def counts(self) -> dict[str, Any]:
        """Counts for the manifest."""
        at_10 = self.evaluations[self.name].metrics(self.results.levels[0]).get("NDCG@10")
        return {"rows": len(self.predictions), **self._about(), "ndcg@10": at_10.mean if at_10 else None}

    def write(self, folder: Path, inputs: Sequence[str], title: str, about: Mapping[str, Any]) -> None:
        """Write the files of the artefact: the lists, the ranks of the targets, the metrics and their table.

        Args:
            folder: The folder.
            inputs: The input of each example in the published form: a prompt, or the SIDs of the history.
            title: Heading of the table.
            about: Fields of `metrics.json` about the search.
        """
        table, results = self.table, self.results
        entries = {name: evaluation.to_json() for name, evaluation in self.evaluations.items()}
        unit = "SID" if table is None else table.unit
        tables = [
            format_metrics_table(self.evaluations, level, "" if number else title, unit)
            for number, level in enumerate(results.levels)
        ]
        self.predictions.to_frame().to_parquet(folder / FILE, index=False)
        write_ranks(folder, {self.split: results.recommenders[self.name].runs[0]})
        if self.chosen is not None:
            baselines = {name: found for name, found in self.lists.items() if name != self.name}
            write_baseline_lists(folder, baselines, self.chosen)
            lacking = [baselines_lack(self.predictions.given)] if self.predictions.given else []
            tables.append("\n".join([*self.chosen.sentences(), *lacking]))
        if table is not None:
            write_published_json(folder / JSON_FILE, self.predictions, inputs)
        metrics: dict[str, Any] = {"split_rule": self.corpus.split, **self._about(), **about, "resampled": "users"}
        metrics |= {"recommenders": entries} | ({} if unit == "SID" else {"sid_means": unit})
        write_json(folder / METRICS_FILE, metrics)
        (folder / TABLE_FILE).write_text("\n\n".join(tables) + "\n", encoding="utf-8")


def measure(
    corpus: Corpus,
    split: str,
    rows: SplitExamples,
    predictions: Predictions,
    name: str,
    table: CandidateGroups | None,
    list_length: int,
    *,
    ks: Sequence[int],
    resamples: int,
    baselines: bool = True,
) -> Measured:
    """Compute the metrics of lists, and of the baselines on the same examples.

    Args:
        corpus: Items and examples.
        split: Name of the split.
        rows: The examples of the split.
        predictions: Their lists.
        name: Name of the recommender in tables.
        table: SIDs, or titles, that items share; None where there are none.
        list_length: List length in candidates.
        ks: Cutoffs, in candidates.
        resamples: Bootstrap resamples of users for the intervals.
        baselines: Whether baselines are evaluated too.
    """
    lists, chosen = {name: predictions}, None
    if baselines:
        chosen, rankers = make_baselines(corpus, table)
        for other, baseline in rankers.items():
            lists[other] = rank_rows(baseline, rows, list_length, corpus.n_items, table=table)
    metrics = metrics_at(check_ks(ks, list_length), False)
    results = Results(
        {other: RecommenderResults.from_lists(other, found, list_length) for other, found in lists.items()},
        ["item"] if table is None else ["sid", "item"],
        metrics,
        Bootstrap(SEED, resamples, rows.users.tolist()),
        [],
        [metric for metric in metrics if not metric.startswith("MRR")],
    )
    if results.bootstrap.units < FEWEST:
        logger.warning(
            "The %s examples are of %d users, too few for intervals by user: these may be far too narrow.",
            split,
            results.bootstrap.units,
        )
    valid = None if table is None else set(table.sids)
    evaluations = {other: results.evaluation(other, valid, corpus.n_items) for other in lists}
    return Measured(corpus, split, name, table, list_length, results, lists, chosen, evaluations)
