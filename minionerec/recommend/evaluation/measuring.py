"""Lists for the examples of a split, measured beside the baselines, and written: the end of every such stage."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json
from minionerec.data.corpus import Corpus
from minionerec.data.kinds import read_kinds
from minionerec.data.stored import StoredCorpus
from minionerec.metrics.predictions import FILE, GIVEN, Predictions
from minionerec.metrics.published_json import write_published_json
from minionerec.metrics.ranked import write_ranks
from minionerec.metrics.ranking import check_ks
from minionerec.metrics.results import USERS, Bootstrap, Evaluation, Recommender, Results, list_slices, metrics_at
from minionerec.metrics.tables import format_metrics_table, format_slices
from minionerec.recommend.evaluation.baseline_lists import write_baseline_lists
from minionerec.recommend.rankers.baselines import Chosen, chosen_baselines
from minionerec.recommend.rankers.candidates import CandidateGroups
from minionerec.recommend.rankers.lists import RankedSplit, rank_rows

JSON_FILE = "predictions.json"
METRICS_FILE = "metrics.json"
TABLE_FILE = "metrics.txt"


@dataclass(frozen=True)
class EvalResult:
    """Where an evaluation's predictions lie, and its table.

    Attributes:
        output: Predictions directory.
        table: Metrics beside the baselines, as text.
        metrics: Content of `metrics.json`.
    """

    output: Path
    table: str
    metrics: Mapping[str, Any]

    @classmethod
    def load(cls, output: Path) -> "EvalResult":
        """What a finished evaluation left."""
        table = (output / TABLE_FILE).read_text(encoding="utf-8").removesuffix("\n")
        return cls(output, table, read_json(output / METRICS_FILE))

    def lines(self) -> list[str]:
        """The table, and where the predictions lie."""
        return [self.table, f"predictions: {self.output}"]


@dataclass(frozen=True)
class Measuring:
    """What is measured, and how.

    Attributes:
        corpus: Items and examples.
        split: Name of the split.
        rows: Its examples.
        name: What the tables call the recommender.
        table: SIDs, or titles, that items share; None where there are none.
        width: Candidates of each list.
        ks: Cut-offs.
        baselines: Whether the baselines stand beside it.
        slices: Whether metrics are wanted by slice.
        times: File of times, where the corpus has none of its own.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.
    """

    corpus: Corpus | StoredCorpus
    split: str
    rows: RankedSplit
    name: str
    table: CandidateGroups | None
    width: int
    ks: Sequence[int]
    baselines: bool
    slices: bool
    times: Path | None
    resamples: int
    seed: int


@dataclass(frozen=True)
class Measured:
    """Lists with their metrics.

    Attributes:
        what: What was measured.
        results: The recommender, first, and the baselines.
        lists: Their lists.
        chosen: The constants of the baselines; None where none stand beside it.
        evaluations: Metrics of the recommender and of the baselines, by name.
    """

    what: Measuring
    results: Results
    lists: Mapping[str, Predictions]
    chosen: Chosen | None
    evaluations: Mapping[str, Evaluation]

    @property
    def predictions(self) -> Predictions:
        """The recommender's lists."""
        return self.lists[self.what.name]

    def _about(self) -> dict[str, Any]:
        """What the manifest and `metrics.json` both say of the lists."""
        table = self.what.table
        return {
            "split": self.what.split,
            "beams": self.what.width,
            "sid_table": None if table is None else table.fingerprint,
            GIVEN: list(self.predictions.given or ()),
        }

    def counts(self) -> dict[str, Any]:
        """What the manifest says of the predictions."""
        at_10 = self.evaluations[self.what.name].metrics(self.results.levels[0]).get("NDCG@10")
        return {"rows": len(self.predictions), **self._about(), "ndcg@10": at_10.mean if at_10 else None}

    def write(self, place: Path, asked: Sequence[str], title: str, about: Mapping[str, Any]) -> None:
        """Write the files of the artefact: the lists, the ranks of the targets, the metrics and their table.

        Args:
            place: Where to.
            asked: For each example what the published form shows as input: a prompt, or the SIDs of the history.
            title: Heading of the table.
            about: What `metrics.json` says of the search beside the number of beams.
        """
        what, results = self.what, self.results
        entries = {name: evaluation.to_json() for name, evaluation in self.evaluations.items()}
        unit = "SID" if what.table is None else what.table.unit
        tables = [
            format_metrics_table(self.evaluations, level, "" if number else title, unit)
            for number, level in enumerate(results.levels)
        ]
        if what.slices:
            for name, entry in entries.items():
                entry["slices"] = results.slices_json(name)
            tables.append(format_slices(results, f"NDCG@{10 if 10 in what.ks else max(what.ks)}"))
        self.predictions.to_frame().to_parquet(place / FILE, index=False)
        write_ranks(place, {what.split: results.recommenders[what.name].runs[0]})
        if self.chosen is not None:
            baselines = {name: found for name, found in self.lists.items() if name != what.name}
            write_baseline_lists(place, baselines, self.chosen)
            tables.append("\n".join(self.chosen.sentences()))
        if what.table is not None:
            write_published_json(place / JSON_FILE, self.predictions, asked)
        metrics: dict[str, Any] = {"split_rule": what.corpus.split, **self._about(), **about, "resampled": USERS}
        metrics |= {"recommenders": entries} | ({} if unit == "SID" else {"sid_means": unit})
        (place / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
        (place / TABLE_FILE).write_text("\n".join(tables) + "\n", encoding="utf-8")


def measure(what: Measuring, predictions: Predictions) -> Measured:
    """Measure lists, and those of the baselines for the same examples.

    Args:
        what: What is measured, and how.
        predictions: The lists for the examples of the split.
    """
    lists, chosen = {what.name: predictions}, None
    if what.baselines:
        chosen, rankers = chosen_baselines(what.corpus, what.table)
        for name, baseline in rankers.items():
            lists[name] = rank_rows(baseline, what.rows, what.width, table=what.table)
    metrics = metrics_at(check_ks(what.ks, what.width), False)
    slices = []
    if what.slices:
        slices = list_slices(read_kinds(what.corpus, what.rows, what.split, what.times))
    results = Results(
        {name: Recommender.from_lists(name, found, what.width) for name, found in lists.items()},
        ["item"] if what.table is None else ["sid", "item"],
        metrics,
        Bootstrap.of(what.seed, what.resamples, USERS, what.rows.users),
        slices,
        [name for name in metrics if not name.startswith("MRR")],
    )
    valid = None if what.table is None else set(what.table.sids)
    evaluations = {name: results.evaluation(name, valid, what.corpus.n_items) for name in lists}
    return Measured(what, results, lists, chosen, evaluations)
