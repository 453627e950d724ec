"""The stage that trains a sequential recommender and evaluates it by its protocol.

OUTPUT/model         kind "sequential_model": weights, description, history of the training
OUTPUT/predictions   kind "predictions": ranked lists of the test examples, ranks of validation and test, metrics

A recipe runs it with several seeds (docs/how-to/recipes.md), each in a folder seed-N; a report has mean and sd.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_json, read_manifest, write_json
from minionerec.core.device import fix_order
from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.core.machine import keep_freed_memory
from minionerec.data.contexts import chosen_features
from minionerec.data.corpus import Corpus
from minionerec.data.protocols import ROWS, Protocol, read_examples
from minionerec.data.roles import encode_columns, fit_columns
from minionerec.metrics.predictions import FILE as LISTS_FILE
from minionerec.metrics.predictions import GIVEN
from minionerec.metrics.ranked import write_ranks
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import rank_rows
from minionerec.models.sequential.registry import check_hyper, load_sequential, model_class, save_sequential
from minionerec.pipeline.config.sequential import SequentialConfig
from minionerec.pipeline.stage import LAUNCH_FILE, Stage
from minionerec.pipeline.stages import StageResult
from minionerec.sid.embed.encoder import VectorSource
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.on_device import torch_device
from minionerec.sid.table import SidTable
from minionerec.training.sequential.inputs import ModelInputs, make_inputs
from minionerec.training.sequential.measuring import list_predictions, measure, rank_splits
from minionerec.training.sequential.train import TrainingExamples, fit

logger = get_logger(__name__)

HISTORY_FILE, METRICS_FILE, STATE_FILE = "history.json", "metrics.json", "state.safetensors"
EXAMPLES = "rows"
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
    stage, protocol, device = config.model_stage(), config.resolved_protocol(), torch_device("auto")
    settings = stage.config
    _check_corpus(settings.corpus, settings.protocol)

    @cache
    def inputs() -> ModelInputs:
        _check_digits(settings.model, settings.digits)
        corpus = read_examples(settings.corpus, protocol, settings.items)
        item_ids = corpus.items["item_id"].tolist()
        return make_inputs(
            settings.model,
            settings.hyper,
            corpus,
            protocol,
            vectors=_vectors(corpus, settings.vectors, settings.vector_width, settings.item_columns),
            digits=_read_digits(settings.digits, item_ids) if settings.digits else None,
            table=SidTable.load_index(settings.sids, item_ids) if settings.sids else None,
            context=chosen_features(corpus, settings.context),
        )

    if training := stage.current() is None:
        _train(
            stage,
            settings.model,
            protocol,
            inputs,
            device,
            all_positions=settings.all_positions,
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
        )
    predictions = config.predictions_stage()
    _predict(predictions, stage.output, protocol, inputs, device, config.list_length, config.resamples)
    metrics: Mapping[str, Any] = read_json(predictions.output / METRICS_FILE)
    lines = []
    for split, levels in metrics.items():
        for level, estimates in levels.items():
            shown = (f"{name} {mean:.4f} [{low:.4f}, {high:.4f}]" for name, (mean, low, high) in estimates.items())
            lines.append(f"{split:<5} {level:<4} {'  '.join(shown)}")
    output = Path(config.output)
    return StageResult(output, [*lines, f"model and predictions: {output}"], metrics=metrics, up_to_date=not training)


def _check_corpus(corpus: str, protocol: str) -> None:
    """Check that there is a corpus, or a file of sequences, as the protocol of this name takes it.

    Raises:
        DataError: If there is no such file.
        ArtefactError: If there is no such corpus.
    """
    folder = Path(corpus)
    if protocol == ROWS or folder.is_dir():
        read_manifest(folder, "corpus")
    elif not folder.is_file():
        raise DataError(f"{folder}: no such file. Give --corpus a file of 'user item item ...' lines.")


def _vectors(corpus: Corpus, encoder: str, width: int, item_columns: Sequence[str]) -> torch.Tensor | None:
    """Given vectors of the items, float32 (N, F), of an encoder and of columns; None without both.

    Vectors of an encoder have length about 1, so they are multiplied by the square root of their width.
    """
    parts = []
    if encoder:
        vectors = torch.from_numpy(make_vectors(corpus, VectorSource(encoder=encoder, dimensions=width), {}))
        parts.append(vectors * math.sqrt(vectors.shape[1]))
    if item_columns:
        columns = fit_columns(corpus.items, corpus.roles, item_columns, corpus.popularity() > 0)
        parts.append(torch.from_numpy(encode_columns(corpus.items, columns)))
    return torch.cat(parts, 1) if parts else None


def _check_digits(model: str, digits: str) -> None:
    """Check that a model takes the digits that the settings name.

    Raises:
        ConfigError: If it does not, or reads digits and there are none.
    """
    kind = model_class(model)
    if bool(digits) != kind.reads_digits:
        raise ConfigError(
            f"model {model} reads the items' digits; give digits (minionerec build-sids --method opq)."
            if kind.reads_digits
            else f"digits is {digits!r}, but model {model} reads none; leave digits out."
        )


def _read_digits(path: str, item_ids: Sequence[str]) -> torch.Tensor:
    """Codes of the items, int32 (N, M), of which each must have all.

    Raises:
        DataError: If an item has no SID, or one of fewer levels than another.
    """
    codes = SidTable.load_index(path, item_ids).codes
    short = np.flatnonzero((codes < 0).any(axis=1))
    if len(short):
        raise DataError(
            f"{path}: item {item_ids[short[0]]!r} has {(codes[short[0]] >= 0).sum()} digits, others have "
            f"{codes.shape[1]}. Build SIDs with collisions keep."
        )
    return torch.from_numpy(codes)


def _train(
    stage: Stage[Any],
    name: str,
    protocol: Protocol,
    inputs: Callable[[], ModelInputs],
    device: torch.device,
    *,
    all_positions: bool,
    epochs: int,
    learning_rate: float,
) -> None:
    """Train the model of this name, or resume an interrupted training."""
    seed, launch = protocol.seed, {"device": device.type}
    stage.check_launch(launch)
    with stage.work() as work:
        started = time.perf_counter()
        with work.phase("load"):
            data = inputs()
            model = data.build(name, protocol.max_len, seed)
            examples = TrainingExamples.of(
                data.corpus,
                protocol.max_len,
                protocol.padding,
                all_positions=all_positions,
                users=data.training_users() if model.needs_users else None,
                features=data.context,
                folder=work.folder / EXAMPLES,
            )
        work.inputs_read()
        work.log_batch(protocol.batch_size, 1, protocol.batch_size)

        def valid_ranks(model: SequentialModel) -> np.ndarray:
            rows = data.held_out["valid"]
            return rank_rows(model, rows, protocol.seen, device, **data.further_inputs(model, rows))["item"]

        write_json(work.folder / LAUNCH_FILE, launch)
        done = fit(
            model,
            examples,
            valid_ranks,
            protocol,
            work.folder / STATE_FILE,
            device,
            epochs=epochs,
            learning_rate=learning_rate,
            clock=work,
        )
        counts = {
            **data.counts,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "recipe": "all positions" if all_positions else "one position a row",
            "epochs": done.epoch,
            "best_epoch": done.best_epoch,
        }
        with work.finish(seed=seed, counts=counts) as path:
            save_sequential(model, name, data.hyper, path)
            write_json(path / HISTORY_FILE, done.history)
        logger.info("seed %d: %d epochs; this run took %.0f s.", seed, done.epoch, time.perf_counter() - started)


def _predict(
    stage: Stage[Any],
    trained: Path,
    protocol: Protocol,
    inputs: Callable[[], ModelInputs],
    device: torch.device,
    list_length: int,
    resamples: int,
) -> None:
    """Rank, list and measure with the trained model, as saved."""
    if stage.current() is not None:
        return
    with stage.work() as work:
        with work.phase("load"):
            data = inputs()
            model = load_sequential(trained).to(device)
        with work.phase("search"):
            ranked = rank_splits(model, data, protocol.seen, device)
            length = min(list_length, data.corpus.n_items)
            lists = list_predictions(model, data, "test", protocol.seen, device, length)
        with work.phase("measure"):
            metrics = measure(ranked, protocol, resamples)
        counts = {"rows": len(lists), "split": "test", "beams": length, GIVEN: list(lists.given or ())}
        with work.finish(seed=protocol.seed, counts=counts) as folder:
            lists.to_frame().to_parquet(folder / LISTS_FILE, index=False)
            write_ranks(folder, ranked)
            write_json(folder / METRICS_FILE, metrics)
