"""The stage that trains a sequential recommender and evaluates it by its protocol.

OUTPUT/model         kind "sequential_model": weights, description, history of the training
OUTPUT/predictions   kind "predictions": ranked lists of the test examples, ranks of validation and test, metrics

A recipe runs it with several seeds (`seeds`, docs/recipes.md), each in a folder seed-N; `compare` has mean and sd.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_json, write_json
from minionerec.core.device import fix_order
from minionerec.core.log import get_logger
from minionerec.core.machine import keep_freed_memory
from minionerec.core.stage import LAUNCH_FILE, Stage
from minionerec.core.stages import StageResult
from minionerec.data.protocols import Protocol
from minionerec.data.session import UNKNOWN
from minionerec.metrics.predictions import FILE as LISTS_FILE
from minionerec.metrics.predictions import GIVEN, SESSION_CONTEXT, Predictions
from minionerec.metrics.ranked import Ranked, write_ranks
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import estimate
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import check_hyper, load_sequential, save_sequential
from minionerec.sid.on_device import torch_device
from minionerec.training.sequential.config import SequentialConfig
from minionerec.training.sequential.given import ModelInputs, check_corpus, read_given
from minionerec.training.sequential.train import TrainingExamples, fit

# The ranks, metrics and lists of a trained recommender on validation and test examples.


def rank_splits(model: SequentialModel, data: ModelInputs, seen: str, device: torch.device) -> dict[str, Ranked]:
    """Ranks of the targets of validation and test examples among the whole catalogue.

    Args:
        model: The model.
        data: The examples, and SIDs of the items, for ranks among distinct SIDs too.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
    """
    numbers = None if data.table is None else data.table.sid_numbers
    return {
        name: Ranked(
            users=rows.users.tolist(),
            targets=rows.targets,
            ranks=rank_rows(model, rows, seen, device, numbers, **data.further_inputs(model, rows)),
            list_length=None,
            given=given_to(model, data),
        )
        for name, rows in data.held_out.items()
    }


def given_to(model: SequentialModel, data: ModelInputs) -> tuple[str, ...]:
    """What a model is given of rows beyond their histories: the session context of some row, where it reads that."""
    known = (data.further_inputs(model, rows)["contexts"] for rows in data.held_out.values())
    given = any(contexts is not None and bool((contexts != UNKNOWN).any()) for contexts in known)
    return (SESSION_CONTEXT,) if given else ()


def measure(ranked: Mapping[str, Ranked], protocol: Protocol, resamples: int) -> dict[str, Any]:
    """Metrics of several splits: split → level → metric → [mean, low, high], of 95 percent intervals by user."""
    metrics: dict[str, Any] = {}
    for name, found in ranked.items():
        metrics[name] = {}
        for level, ranks in found.ranks.items():
            values = ranking_metrics(ranks, protocol.ks, every_mrr=protocol.mrr)
            estimates = estimate(values, 0, resamples, found.users)
            metrics[name][level] = {metric: [e.mean, e.low, e.high] for metric, e in estimates.items()}
    return metrics


def list_predictions(
    model: SequentialModel, data: ModelInputs, name: str, seen: str, device: torch.device, length: int
) -> Predictions:
    """Ranked lists in the form that all recommenders share.

    Items are in the order of their own scores, so items that share an SID need not follow one another.

    Args:
        model: The model.
        data: The examples, and SIDs of the items; without them SIDs are "".
        name: Which of its splits.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        length: Length of the lists.
    """
    rows = data.held_out[name]
    items, scores = top_items(model, rows, seen, device, length, **data.further_inputs(model, rows))
    usable = np.isfinite(scores)
    return Predictions.of(
        rows,
        [row[ok].tolist() for row, ok in zip(items - 1, usable, strict=True)],
        [row[ok].tolist() for row, ok in zip(scores, usable, strict=True)],
        None if data.table is None else data.table.sids,
        given_to(model, data),
    )


logger = get_logger(__name__)

HISTORY_FILE, METRICS_FILE, STATE_FILE = "history.json", "metrics.json", "state.safetensors"
ROWS = "rows"
"""Folder of the training examples of a large corpus, in that of the unfinished run."""


def run_sequential(config: SequentialConfig) -> StageResult:
    """Train and measure; finished artefacts are kept, and an interrupted training is resumed after its last epoch.

    The output gets `model` (kind "sequential_model": `model.safetensors`, `model.json`, `history.json`) and
    `predictions` (kind "predictions": the test examples' ranked lists, `ranks.parquet` with every rank in validation
    and test, `metrics.json`).

    Args:
        config: Settings.

    Raises:
        ConfigError: If the model or a hyper-parameter is unknown, a setting does not fit it, or an unfinished run with
            other settings or inputs is there.
        DataError: If the data are malformed or too small.
        ArtefactError: If an input is missing or was changed, or the output cannot be written.
    """
    keep_freed_memory()
    fix_order()
    check_hyper(config.model, config.hyper)
    stage, protocol, device = config.model_stage(), config.resolved_protocol(), torch_device(config.device)
    check_corpus(stage.config)
    given = cache(lambda: read_given(stage.config, protocol))
    trained = _train(stage, protocol, given, device)
    _predict(config, protocol, given, device)
    metrics: Mapping[str, Any] = read_json(config.predictions_stage().output / METRICS_FILE)
    lines = []
    for split, levels in metrics.items():
        for level, found in levels.items():
            shown = (f"{name} {mean:.4f} [{low:.4f}, {high:.4f}]" for name, (mean, low, high) in found.items())
            lines.append(f"{split:<5} {level:<4} {'  '.join(shown)}")
    output = Path(config.output)
    return StageResult(output, [*lines, f"model and predictions: {output}"], metrics=metrics, up_to_date=not trained)


def _train(
    stage: Stage[SequentialConfig], protocol: Protocol, given: Callable[[], ModelInputs], device: torch.device
) -> bool:
    """Train, or resume an interrupted training; whether it had to be."""
    config, seed, launch = stage.config, protocol.seed, {"device": device.type}
    if stage.current() is not None:
        return False
    stage.check_launch(launch)
    with stage.work() as work:
        started = time.perf_counter()
        with work.phase("load"):
            data = given()
            model = data.build(config.model, protocol.max_len, seed)
            examples = TrainingExamples.of(
                data.corpus,
                protocol.max_len,
                protocol.padding,
                all_positions=config.all_positions,
                users=data.user_numbers(data.corpus.train) if model.needs_users else None,
                shuffled=config.shuffle_examples,
                folder=work.folder / ROWS,
            )
        work.inputs_read()
        work.log_batch(protocol.batch_size, 1, protocol.batch_size)

        def valid_ranks(model: SequentialModel) -> np.ndarray:
            rows = data.held_out["valid"]
            return rank_rows(model, rows, protocol.seen, device, **data.further_inputs(model, rows))["item"]

        write_json(work.folder / LAUNCH_FILE, launch)
        done = fit(model, examples, valid_ranks, protocol, config, work.folder / STATE_FILE, device, work)
        counts = {
            **data.counts,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "recipe": "all positions" if config.all_positions else "one position a row",
            "epochs": done.epoch,
            "best_epoch": done.best_epoch,
        }
        with work.finish(seed=seed, counts=counts) as path:
            save_sequential(model, config.model, data.hyper, path)
            write_json(path / HISTORY_FILE, done.history)
        logger.info("seed %d: %d epochs; this run took %.0f s.", seed, done.epoch, time.perf_counter() - started)
    return True


def _predict(
    config: SequentialConfig, protocol: Protocol, given: Callable[[], ModelInputs], device: torch.device
) -> None:
    """Rank, list and measure with the trained model, as saved."""
    stage = config.predictions_stage()
    if stage.current() is not None:
        return
    with stage.work() as work:
        with work.phase("load"):
            data = given()
            model = load_sequential(config.model_stage().output).to(device)
        with work.phase("search"):
            ranked = rank_splits(model, data, protocol.seen, device)
            length = min(config.list_length, data.corpus.n_items)
            lists = list_predictions(model, data, "test", protocol.seen, device, length)
        with work.phase("measure"):
            metrics = measure(ranked, protocol, config.resamples)
        counts = {"rows": len(lists), "split": "test", "beams": length, GIVEN: list(lists.given or ())}
        with work.finish(seed=protocol.seed, counts=counts) as folder:
            lists.to_frame().to_parquet(folder / LISTS_FILE, index=False)
            write_ranks(folder, ranked)
            write_json(folder / METRICS_FILE, metrics)
