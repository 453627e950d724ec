"""Evaluation: a ranker's lists for the examples of a split, with metrics and baselines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_json, require_unseen
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.processes import is_main_process
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions, labelled
from minionerec.models.decoding.decoder import Decode
from minionerec.models.decoding.shards import decode_in_shards
from minionerec.pipeline.config.evaluation import EvalConfig
from minionerec.pipeline.stage import Stage, Work
from minionerec.pipeline.stages import StageResult
from minionerec.recommend.evaluation.measuring import METRICS_FILE, TABLE_FILE, measure
from minionerec.recommend.rankers.candidates import CandidateGroups
from minionerec.recommend.rankers.language import LanguageRanker, Search, TitleRanker
from minionerec.recommend.rankers.lists import rank_rows, split_queries
from minionerec.recommend.rankers.load import load_assistant, load_ranker, make_ranker
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker, context_used, features_used
from minionerec.recommend.rankers.sequential import SequentialRanker
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

_SEARCH_NAMES = {"beam": "beam search", "exact": "exact search"}


def run_eval(config: EvalConfig) -> StageResult:
    """Recommend for all examples of a split and compute metrics; does nothing if up to date, resumes if interrupted.

    Under a distributed launch each process decodes its share of a checkpoint's prompts; the predictions are the same
    for any number of processes. Other rankers run in the first process only.

    Writes `predictions.parquet`, `metrics.json` and `metrics.txt`; where items have SIDs `predictions.json` too (the
    published form).

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing, or the checkpoint was made with another SID table.
        ConfigError: If there are more beams than candidates, or there is an unfinished evaluation with other
            settings.
        DataError: If a user's own ranker returns invalid lists.
    """
    stage = Stage(config)
    if stage.current() is not None:
        return measured(stage.output, up_to_date=True)
    local = stage.config
    with stage.work() as work:
        with work.phase("load"):
            corpus = Corpus.load(local.corpus)
            sids = SidTable.load_index(local.sids, corpus.items["item_id"].tolist()) if local.sids else None
            if local.ranker:
                ranker, name = make_ranker(local.ranker, corpus), local.ranker
            else:
                ranker = _load_ranker(local, corpus, sids)
                name = _name(ranker, local.search, local.checkpoint)
            table: CandidateGroups | None = sids
            if isinstance(ranker, LanguageRanker) and not local.ranker:
                table = ranker.table
            _check_beams(local.beams, corpus.n_items, table)
            rows = corpus.rows(local.split)
            queries = split_queries(rows, features_used(ranker, corpus), context_used(ranker), given=local.context)
            work.inputs_read(last=False)
        with work.phase("search"):
            allowed = Allowed.leaving_out(rows.seen, corpus.n_items) if local.seen == "mask" else None
            answer = _answer(rows, queries, corpus.n_items, ranker, table, local.beams, allowed, work)
        if is_main_process() and answer is not None:
            predictions, inputs, counted = answer
            with work.phase("measure"):
                found = measure(
                    corpus,
                    local.split,
                    rows,
                    predictions,
                    name,
                    table,
                    local.beams,
                    ks=local.ks,
                    resamples=local.resamples,
                    baselines=local.baselines and local.seen == "keep",  # they may recommend seen items
                )
            with work.finish(counts={**found.counts(), **counted}) as folder:
                title = (
                    f"{labelled(config.ranker or config.checkpoint, predictions.given or ())} on "
                    f"{config.split} ({corpus.split}), {config.beams} beams, mean [95 % interval by user]"
                )
                found.write(folder, inputs, title, {"seen": config.seen, "scores": config.scores})
    return measured(stage.output, up_to_date=False)


def _load_ranker(config: EvalConfig, corpus: Corpus, sids: SidTable | None) -> Ranker:
    """The model of the settings, with its assistant if they name one.

    Raises:
        ArtefactError: If it, or its assistant, was trained on the examples to evaluate.
        ConfigError: If it has no search that an assistant could join, or experts.
    """
    require_unseen(config.checkpoint, config.split)
    search = Search(
        config.search,
        config.scores,
        config.score_end,
        config.batch_size,
        length_penalty=config.length_penalty,
    )
    ranker = load_ranker(
        config.checkpoint,
        corpus,
        corpus_path=config.corpus,
        table=sids,
        search=search,
        dtype=config.dtype,
        experts=config.experts,
    )
    if not config.assistant:
        return ranker
    if not isinstance(ranker, LanguageRanker):
        raise ConfigError(
            f"assistant is {config.assistant!r}, but {config.checkpoint} is not a checkpoint, so nothing is searched; "
            "leave it out."
        )
    if ranker.experts is not None:
        raise ConfigError(
            f"assistant is {config.assistant!r}, but {config.checkpoint} has experts, which were fitted to it alone. "
            "Set experts to false, or leave the assistant out."
        )
    require_unseen(config.assistant, config.split)
    assistant = load_assistant(config.assistant, ranker, corpus, corpus_path=config.corpus, dtype=config.dtype)
    if config.share < 1:
        ranker.assistant, ranker.share, ranker.combine = assistant, config.share, config.combine
    return ranker


def measured(output: Path, up_to_date: bool) -> StageResult:
    """The result of a finished evaluation: the first of its tables and the content of `metrics.json`."""
    table = (output / TABLE_FILE).read_text(encoding="utf-8").split("\n\n")[0]
    lines = [*table.splitlines(), f"Lists and all metrics: {output}"]
    return StageResult(output, lines, metrics=read_json(output / METRICS_FILE), up_to_date=up_to_date)


def _name(ranker: Ranker, method: str, otherwise: str) -> str:
    """A trained ranker's name in tables: its search, its model, or `otherwise`."""
    if isinstance(ranker, LanguageRanker):
        name = _SEARCH_NAMES[method]
        if isinstance(ranker, TitleRanker):
            name += " over titles"
        if ranker.experts is not None:
            name += " with experts"
        if ranker.assistant is not None:
            name += f"{' with' if ranker.combine == 'steps' else ', reordered with'} {ranker.assistant.name}"
        return name
    return ranker.name if isinstance(ranker, SequentialRanker) else otherwise


def _check_beams(beams: int, n_items: int, table: CandidateGroups | None) -> None:
    """Check that there are as many candidates as beams."""
    known, noun = (n_items, "items") if table is None else (table.n_unique, f"distinct {table.unit}s")
    if beams > known:
        raise ConfigError(
            f"beams is {beams}, but the catalogue has {known} {noun}; give --beams {known} or fewer, and ks to match."
        )


def _answer(
    rows: SplitExamples,
    queries: Queries,
    n_items: int,
    ranker: Ranker,
    table: CandidateGroups | None,
    beams: int,
    allowed: Allowed | None,
    work: Work,
) -> tuple[Predictions, Sequence[str], dict[str, Any]] | None:
    """Query the ranker; a checkpoint in every process, any other only in the first (None in the others).

    Returns:
        The lists; the input of each example in the published form: a prompt, or the SIDs of the history; and counts for
        the manifest, `truncated_prompts` None without prompts.
    """
    codes = queries.codes(list(queries.context))
    known = {"rows_with_context": int((codes != UNKNOWN).any(1).sum())} if queries.context else {}
    if isinstance(ranker, LanguageRanker):
        texts, prompts, truncated = ranker.prompts(queries)
        if truncated:
            kept = ranker.bundle.max_prompt_length
            logger.info("%d of %d prompts were truncated to their last %d tokens.", truncated, len(rows), kept)

        def decode_all(distinct: Sequence[Sequence[int]], k: int, decode: Decode) -> tuple[np.ndarray, np.ndarray]:
            def batch_size() -> int:
                found = ranker.batch_size(distinct, k)
                logger.info("%s distinct prompts, %d at a time.", f"{len(distinct):,}", found)
                return found

            return decode_in_shards(
                work.folder,
                distinct,
                k,
                batch_size,
                decode,
                torch.device(ranker.bundle.model.device),
                clock=work,
            )

        ranking = ranker.rank_prompts(queries, prompts, beams, allowed, decode_all)
        lists = Predictions.of(
            rows, ranking.items, ranking.scores, None if table is None else table.sids, queries.given
        )
        empty = {} if ranker.assistant is None else {"empty_histories": int((rows.lengths == 0).sum())}
        return lists, texts, {"truncated_prompts": truncated, **empty, **known}
    if not is_main_process():
        return None
    predictions = rank_rows(ranker, rows, beams, n_items, table=table, allowed=allowed, queries=queries)
    sids = [""] * n_items if table is None else table.sids
    inputs = [", ".join(sids[item] for item in history) for history in rows.histories]
    return predictions, inputs, {"truncated_prompts": None, **known}
