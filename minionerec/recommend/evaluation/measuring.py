"""Lists for the rows of a split, measured beside the baselines and written: what every stage of predictions ends in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json
from minionerec.data.corpus import Corpus
from minionerec.data.kinds import read_kinds
from minionerec.metrics.predictions import FILE, GIVEN, Predictions
from minionerec.metrics.published_json import write_published_json
from minionerec.metrics.ranking import Evaluation, evaluate_predictions, item_ranks, ranking_metrics, sid_ranks
from minionerec.metrics.slices import SliceResult, format_parts, list_kinds, measure_kinds
from minionerec.metrics.tables import format_metrics_table
from minionerec.recommend.evaluation.baseline_lists import write_baseline_lists
from minionerec.recommend.rankers.baselines import Chosen, chosen_baselines
from minionerec.recommend.rankers.candidates import CandidateGroups
from minionerec.recommend.rankers.lists import RankedSplit, rank_rows

# The metrics of an evaluation by kind of row.


def measure_lists(
    lists: Mapping[str, Predictions],
    corpus: Corpus,
    split: str,
    times: Path | None,
    ks: Sequence[int],
    seed: int,
    resamples: int,
) -> list[SliceResult]:
    """HR and NDCG of several recommenders' lists by kind of row, by SID where they have SIDs; intervals by user.

    Args:
        lists: Recommender to its lists for the rows of the split.
        corpus: Whose rows they are.
        split: Which.
        times: File of times, where the corpus has none of its own.
        ks: Cut-offs.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.
    """
    values = {}
    for name, found in lists.items():
        ranks = sid_ranks(found) if any(found.target_sids) else item_ranks(found)
        per_row = ranking_metrics(ranks, ks)
        values[name] = {metric: of[None] for metric, of in per_row.items() if not metric.startswith("MRR")}
    rows = RankedSplit.of(corpus, split)
    kinds = read_kinds(corpus, rows, split, times)
    return measure_kinds(list_kinds(kinds), values, seed, resamples, rows.users)


def format_measured(parts: Sequence[SliceResult], names: Sequence[str], ks: Sequence[int]) -> str:
    """The table of NDCG by kind of row, at 10 or else the largest cut-off."""
    return format_parts(parts, f"NDCG@{10 if 10 in ks else max(ks)}", names)


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
        corpus: Items and rows.
        split: Name of the split.
        rows: Its rows.
        name: What the tables call the recommender.
        table: SIDs, or titles, that items share; None where there are none.
        width: Candidates of each list.
        ks: Cut-offs.
        baselines: Whether the baselines stand beside it.
        slices: Whether metrics are wanted by kind of row.
        times: File of times, where the corpus has none of its own.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.
    """

    corpus: Corpus
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
        predictions: The lists.
        baselines: Those of the baselines, by name; empty where none stand beside it.
        chosen: The constants of the baselines; None where none stand beside it.
        evaluations: Metrics of the recommender and of the baselines, by name.
        parts: Metrics by kind of row; None where they were not wanted.
    """

    what: Measuring
    predictions: Predictions
    baselines: Mapping[str, Predictions]
    chosen: Chosen | None
    evaluations: Mapping[str, Evaluation]
    parts: Sequence[SliceResult] | None

    @property
    def sid_table(self) -> str | None:
        """Fingerprint of the SIDs."""
        return None if self.what.table is None else self.what.table.fingerprint

    def counts(self) -> dict[str, Any]:
        """What the manifest says of the predictions."""
        level = "item" if self.what.table is None else "sid"
        at_10 = self.evaluations[self.what.name].metrics(level).get("NDCG@10")
        return {
            "rows": len(self.predictions),
            "split": self.what.split,
            "beams": self.what.width,
            "sid_table": self.sid_table,
            GIVEN: list(self.predictions.given or ()),
            "ndcg@10": at_10.mean if at_10 else None,
        }

    def write(self, place: Path, asked: Sequence[str], title: str, about: Mapping[str, Any]) -> None:
        """Write the files of the artefact.

        Args:
            place: Where to.
            asked: For each row what the published form shows as input: a prompt, or the SIDs of the history.
            title: Heading of the table.
            about: What `metrics.json` says of the search beside the number of beams.
        """
        metrics: dict[str, Any] = {
            "split": self.what.split,
            "split_rule": self.what.corpus.split,
            "beams": self.what.width,
            **about,
            "sid_table": self.sid_table,
            GIVEN: list(self.predictions.given or ()),
            "resampled": "users",
            "recommenders": {name: evaluation.to_json() for name, evaluation in self.evaluations.items()},
        }
        table = self.what.table
        levels = ["item"] if table is None else ["sid", "item"]
        tables = [
            format_metrics_table(
                self.evaluations, level, "" if number else title, "SID" if table is None else table.unit
            )
            for number, level in enumerate(levels)
        ]
        if table is not None and table.unit != "SID":
            metrics["sid_means"] = table.unit
        if self.parts is not None:
            for name, entry in metrics["recommenders"].items():
                entry["slices"] = [part.to_json(name) for part in self.parts]
            tables.append(format_measured(self.parts, list(self.evaluations), self.what.ks))
        self.predictions.to_frame().to_parquet(place / FILE, index=False)
        if self.chosen is not None:
            write_baseline_lists(place, self.baselines, self.chosen)
            tables.append("\n".join(self.chosen.sentences()))
        if self.what.table is not None:
            write_published_json(place / JSON_FILE, self.predictions, asked)
        (place / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
        (place / TABLE_FILE).write_text("\n".join(tables) + "\n", encoding="utf-8")


def measure(what: Measuring, predictions: Predictions) -> Measured:
    """Measure lists, and those of the baselines for the same rows.

    Args:
        what: What is measured, and how.
        predictions: The lists for the rows of the split.
    """
    baselines, chosen = {}, None
    if what.baselines:
        chosen, rankers = chosen_baselines(what.corpus, what.table)
        for name, baseline in rankers.items():
            baselines[name] = rank_rows(baseline, what.rows, what.width, table=what.table)
    lists = {what.name: predictions, **baselines}
    evaluations = {
        name: evaluate_predictions(
            found,
            what.ks,
            valid_sids=None if what.table is None else set(what.table.sids),
            n_items=what.corpus.n_items,
            width=what.width,
            seed=what.seed,
            resamples=what.resamples,
        )
        for name, found in lists.items()
    }
    parts = None
    if what.slices:
        parts = measure_lists(lists, what.corpus, what.split, what.times, what.ks, what.seed, what.resamples)
    return Measured(what, predictions, baselines, chosen, evaluations, parts)
