"""Evaluation: a ranker's lists for the rows of a split, their metrics, and three floors beside them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.processes import is_main_process
from minionerec.core.refit import require_held_out
from minionerec.core.stage import Stage, Work
from minionerec.data.corpus import Corpus
from minionerec.decoding.decoder import Decode
from minionerec.evaluation.by_kind import format_measured, measure_lists
from minionerec.evaluation.config import EvalConfig
from minionerec.evaluation.shards import decode_in_shards
from minionerec.metrics.predictions import FILE, Predictions
from minionerec.metrics.published_json import write_published_json
from minionerec.metrics.ranking import Evaluation, evaluate_predictions
from minionerec.metrics.slices import Part
from minionerec.metrics.tables import format_metrics_table
from minionerec.rankers.allowed import Allowed
from minionerec.rankers.floors import make_floors
from minionerec.rankers.language import LanguageRanker, Search
from minionerec.rankers.lists import Rows, as_predictions, rank_rows
from minionerec.rankers.load import load_ranker, make_ranker
from minionerec.rankers.protocol import Ranker
from minionerec.rankers.sequential import SequentialRanker
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

JSON_FILE = "predictions.json"
METRICS_FILE = "metrics.json"
TABLE_FILE = "metrics.txt"
_SEARCH_NAMES = {"beam": "beam search", "exact": "exact search", "stock": "stock beam search"}


@dataclass(frozen=True)
class EvalResult:
    """Where an evaluation's predictions lie, and its table.

    Attributes:
        output: Predictions directory.
        table: Metrics beside the floors, as text.
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
class _Task:
    """What is evaluated.

    Attributes:
        corpus: Items and rows.
        rows: The rows of the split.
        ranker: Who ranks.
        name: What the tables call it.
        table: SIDs of the items; None where there are none.
    """

    corpus: Corpus
    rows: Rows
    ranker: Ranker
    name: str
    table: SidTable | None


@dataclass(frozen=True)
class _Answer:
    """What was recommended.

    Attributes:
        predictions: The lists.
        asked: For each row what the published form shows as input: a prompt, or the SIDs of the history.
        cut: Prompts that lost their first tokens; None where there are no prompts.
    """

    predictions: Predictions
    asked: Sequence[str]
    cut: int | None


def run_eval(config: EvalConfig) -> EvalResult:
    """Recommend for every row of a split and measure; does nothing if it is done, goes on where it was cut off.

    Under a distributed launch each process decodes its share of a checkpoint's prompts; the predictions are the same
    for any number of processes. Other rankers are asked by the first process alone.

    Writes `predictions.parquet`, `metrics.json` and `metrics.txt`; where items have SIDs `predictions.json` too (the
    published form).

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing, or the checkpoint was made with another SID table.
        ConfigError: If there are more beams than candidates, or an unfinished evaluation with other settings lies
            there.
        DataError: If a user's own ranker does not give what it should.
    """
    stage = Stage(config)
    if stage.current() is None:
        with stage.work() as work:
            with work.phase("load"):
                task = _load(config, stage.inputs)
            with work.phase("search"):
                answer = _answer(task, config, work)
            if is_main_process() and answer is not None:
                with work.phase("measure"):
                    lists = _with_floors(task, answer.predictions, config)
                    evaluations = _measure(task, lists, config)
                    parts = _by_kind(task, lists, config, stage.inputs)
                with work.finish(seed=config.seed, counts=_counts(task, answer, evaluations, config)) as place:
                    _write(place, task, answer, evaluations, parts, config)
    return EvalResult.load(stage.output)


def _load(config: EvalConfig, inputs: Mapping[str, Path]) -> _Task:
    """Corpus, rows, ranker and SIDs."""
    corpus = Corpus.load(inputs["corpus"])
    rows = Rows.of(corpus, config.split)
    item_ids = corpus.items["item_id"].tolist()
    table = SidTable.load_index(inputs["sids"], item_ids) if "sids" in inputs else None
    if config.ranker:
        task = _Task(corpus, rows, make_ranker(config.ranker, corpus), config.ranker, table)
    else:
        require_held_out(inputs["checkpoint"])
        search = Search(config.search, config.scores, config.score_end, config.batch_size)
        ranker = load_ranker(
            inputs["checkpoint"],
            corpus,
            corpus_path=inputs["corpus"],
            table=table,
            search=search,
            dtype=config.dtype,
        )
        name, table = _told(ranker, config, table)
        task = _Task(corpus, rows, ranker, name, table)
    known, what = (corpus.n_items, "items") if task.table is None else (task.table.n_unique, "distinct SIDs")
    if config.beams > known:
        raise ConfigError(
            f"beams is {config.beams}, but the catalogue has {known} {what}; "
            f"give --beams {known} or fewer, and ks to match."
        )
    return task


def _told(ranker: Ranker, config: EvalConfig, table: SidTable | None) -> tuple[str, SidTable | None]:
    """What the tables call a ranker that was trained here, and its SIDs."""
    if isinstance(ranker, LanguageRanker):
        return _SEARCH_NAMES[config.search], ranker.table
    return (ranker.name if isinstance(ranker, SequentialRanker) else config.checkpoint), table


def _answer(task: _Task, config: EvalConfig, work: Work) -> _Answer | None:
    """Ask the ranker; a checkpoint in every process, any other in the first alone (None in the others)."""
    rows, ranker = task.rows, task.ranker
    allowed = Allowed.leaving_out(rows.histories, rows.n_items) if config.seen == "mask" else None
    if isinstance(ranker, LanguageRanker):
        prompts = ranker.prompts(rows.histories)
        if prompts.cut:
            kept = ranker.bundle.max_prompt_length
            logger.info("%d of %d prompts were cut to their last %d tokens.", prompts.cut, len(rows), kept)

        def decode_all(distinct: Sequence[Sequence[int]], width: int, decode: Decode) -> tuple[np.ndarray, np.ndarray]:
            def batch_size() -> int:
                found = ranker.batch_size(distinct, width)
                logger.info("%s distinct prompts, %d at a time.", f"{len(distinct):,}", found)
                return found

            return decode_in_shards(
                work.folder,
                distinct,
                width,
                batch_size,
                decode,
                torch.device(ranker.bundle.model.device),
                clock=work,
            )

        ranking = ranker.rank_prompts(prompts, config.beams, allowed, decode_all)
        return _Answer(as_predictions(ranking, rows, task.table), prompts.texts, prompts.cut)
    if not is_main_process():
        return None
    predictions = rank_rows(ranker, rows, config.beams, table=task.table, allowed=allowed)
    sids = [""] * rows.n_items if task.table is None else task.table.sids
    return _Answer(predictions, [", ".join(sids[item] for item in history) for history in rows.histories], None)


def _with_floors(task: _Task, predictions: Predictions, config: EvalConfig) -> dict[str, Predictions]:
    """The ranker's lists, and those of the floors where what was seen may be recommended, as they do."""
    lists = {task.name: predictions}
    if config.seen == "keep":
        for name, floor in make_floors(task.corpus, task.table).items():
            lists[name] = rank_rows(floor, task.rows, config.beams, table=task.table)
    return lists


def _by_kind(
    task: _Task, lists: Mapping[str, Predictions], config: EvalConfig, inputs: Mapping[str, Path]
) -> list[Part] | None:
    """Metrics by kind of row, where they are wanted."""
    if not config.slices:
        return None
    return measure_lists(
        lists, task.corpus, config.split, inputs.get("times"), config.ks, config.seed, config.resamples
    )


def _measure(task: _Task, lists: Mapping[str, Predictions], config: EvalConfig) -> dict[str, Evaluation]:
    """Metrics of the ranker and the floors."""
    return {
        name: evaluate_predictions(
            found,
            config.ks,
            valid_sids=None if task.table is None else set(task.table.sids),
            n_items=task.corpus.n_items,
            width=config.beams,
            seed=config.seed,
            resamples=config.resamples,
        )
        for name, found in lists.items()
    }


def _counts(task: _Task, answer: _Answer, evaluations: Mapping[str, Evaluation], config: EvalConfig) -> dict[str, Any]:
    """What the manifest says of the predictions."""
    at_10 = evaluations[task.name].metrics("item" if task.table is None else "sid").get("NDCG@10")
    return {
        "rows": len(answer.predictions),
        "split": config.split,
        "beams": config.beams,
        "sid_table": None if task.table is None else task.table.fingerprint,
        "ndcg@10": at_10.mean if at_10 else None,
        "cut_prompts": answer.cut,
    }


def _write(
    place: Path,
    task: _Task,
    answer: _Answer,
    evaluations: Mapping[str, Evaluation],
    parts: Sequence[Part] | None,
    config: EvalConfig,
) -> None:
    """Write the files of the artefact."""
    metrics: dict[str, Any] = {
        "split": config.split,
        "split_rule": task.corpus.split,
        "beams": config.beams,
        "seen": config.seen,
        "scores": config.scores,
        "sid_table": None if task.table is None else task.table.fingerprint,
        "recommenders": {name: evaluation.to_json() for name, evaluation in evaluations.items()},
    }
    title = (
        f"{config.ranker or config.checkpoint} on {config.split} ({task.corpus.split}), {config.beams} beams, "
        "mean [95 % interval]"
    )
    levels = ["item"] if task.table is None else ["sid", "item"]
    tables = [format_metrics_table(evaluations, level, "" if number else title) for number, level in enumerate(levels)]
    if parts is not None:
        for name, entry in metrics["recommenders"].items():
            entry["slices"] = [part.to_json(name) for part in parts]
        tables.append(format_measured(parts, list(evaluations), config.ks))
    answer.predictions.to_frame().to_parquet(place / FILE, index=False)
    if task.table is not None:
        write_published_json(place / JSON_FILE, answer.predictions, answer.asked)
    (place / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    (place / TABLE_FILE).write_text("\n".join(tables) + "\n", encoding="utf-8")
