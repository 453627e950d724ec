"""The stage that trains a sequential recommender and measures it as its protocol says.

OUTPUT/model         kind "sequential_model": weights, description, history of the training
OUTPUT/predictions   kind "predictions": ranked lists of the test rows, ranks of validation and test, metrics

A recipe runs it with several seeds (`seeds`, docs/recipes.md), each in a folder seed-N; `compare` has mean and sd.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_json
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.machine import keep_freed_memory
from minionerec.data.moments import UNKNOWN
from minionerec.data.protocols import Protocol
from minionerec.data.sequences import Split
from minionerec.metrics.predictions import FILE as LISTS_FILE
from minionerec.metrics.predictions import GIVEN, SESSION_CONTEXT, Predictions
from minionerec.metrics.ranked import Ranked, write_ranks
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import estimate
from minionerec.models.nn.device import fix_order
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import check_hyper, load_sequential, save_sequential
from minionerec.sid.table import SidTable
from minionerec.training.sequential.config import SequentialConfig
from minionerec.training.sequential.given import ModelInputs, check_corpus, read_given
from minionerec.training.sequential.train import TrainSettings, fit

# What a trained recommender says of validation and test rows: ranks, metrics, lists.

MEASURED = ("valid", "test")


def rank_splits(
    model: SequentialModel, split: Split, seen: str, device: torch.device, table: SidTable | None = None
) -> dict[str, Ranked]:
    """Where the targets of validation and test rows stand in the ranking of the whole catalogue.

    Args:
        model: The model.
        split: The rows.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        table: SIDs of the items, for ranks among distinct SIDs too.
    """
    numbers = None if table is None else table.sid_numbers
    return {
        name: Ranked(
            users=split.users(name),
            targets=split.targets(name),
            ranks=rank_rows(model, split.rows(name), seen, device, numbers),
            width=None,
            given=given_to(model, split),
        )
        for name in MEASURED
    }


def given_to(model: SequentialModel, split: Split) -> tuple[str, ...]:
    """What a model is given of rows beyond their histories: the session context of some row, where it reads that."""
    known = (split.rows(name).moments for name in MEASURED)
    told = any(moments is not None and bool((moments != UNKNOWN).any()) for moments in known)
    return (SESSION_CONTEXT,) if told and model.moment_states is not None else ()


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
    model: SequentialModel,
    split: Split,
    name: str,
    seen: str,
    device: torch.device,
    length: int,
    table: SidTable | None = None,
) -> Predictions:
    """Ranked lists in the form that all recommenders share.

    Items stand in the order of their own scores, so items that share an SID need not follow one another.

    Args:
        model: The model.
        split: The rows.
        name: Which of its splits.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        length: Length of the lists.
        table: SIDs of the items; without it SIDs are "".
    """
    items, scores = top_items(model, split.rows(name), seen, device, length)
    items -= 1
    usable = np.isfinite(scores)
    sids = np.array(["", *(table.sids if table else [""] * split.num_items)], dtype=object)
    targets = split.targets(name)
    lists = [(row[ok], values[ok]) for row, values, ok in zip(items, scores, usable, strict=True)]
    return Predictions(
        users=split.users(name),
        targets=targets,
        target_sids=sids[targets + 1].tolist(),
        items=[row.tolist() for row, _ in lists],
        sids=[sids[row + 1].tolist() for row, _ in lists],
        scores=[values.tolist() for _, values in lists],
        given=given_to(model, split),
    )


logger = get_logger(__name__)

HISTORY_FILE, METRICS_FILE, STATE_FILE = "history.json", "metrics.json", "state.safetensors"
ROWS = "rows"
"""Folder of training rows on disk, in that of the unfinished run."""
Reader = Callable[[Path | None], ModelInputs]
"""Reads what is given, with training rows in a folder where they are streamed."""


@dataclass(frozen=True)
class SequentialResult:
    """What `run_sequential` made.

    Attributes:
        output: Directory of model and predictions.
        metrics: Content of `metrics.json`: split → level → metric → [mean, low, high].
        trained: Whether the model was trained now; else it stood already.
    """

    output: Path
    metrics: Mapping[str, Any]
    trained: bool

    def lines(self) -> list[str]:
        """Every metric with its 95 percent interval, and where things lie."""
        lines = []
        for split, levels in self.metrics.items():
            for level, metrics in levels.items():
                shown = (f"{name} {mean:.4f} [{low:.4f}, {high:.4f}]" for name, (mean, low, high) in metrics.items())
                lines.append(f"{split:<5} {level:<4} {'  '.join(shown)}")
        return [*lines, f"model and predictions: {self.output}"]


def pick_device(name: str) -> torch.device:
    """The device of a name; `auto` takes an accelerator where there is one.

    Raises:
        ConfigError: If there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {name!r} cannot be used ({str(error).splitlines()[0]}). Give --device cpu."
        ) from None


def run_sequential(config: SequentialConfig) -> SequentialResult:
    """Train and measure; what stands already is kept, and an interrupted training is resumed after its last epoch.

    The output gets `model` (kind "sequential_model": `model.safetensors`, `model.json`, `history.json`) and
    `predictions` (kind "predictions": the test rows' ranked lists, `ranks.parquet` with every row's rank in validation
    and test, `metrics.json`).

    Args:
        config: Settings.

    Raises:
        ConfigError: If the model or a hyper-parameter is unknown, a setting does not fit it, or an unfinished run with
            other settings or inputs lies there.
        DataError: If the data are malformed or too small.
        ArtefactError: If an input is missing or was changed, or the output cannot be written.
    """
    keep_freed_memory()
    fix_order()
    check_hyper(config.model, config.hyper)
    check_corpus(config)
    protocol, device = config.resolved_protocol(), pick_device(config.device)
    # Rows on disk are those of the unfinished run's folder, which goes when the run is done.
    given: Reader = (
        partial(read_given, config, protocol) if config.stream else cache(lambda _: read_given(config, protocol))
    )
    trained = _train(config, protocol, given, device)
    _predict(config, protocol, given, device)
    metrics: Mapping[str, Any] = read_json(config.predictions_stage().output / METRICS_FILE)
    return SequentialResult(Path(config.output), metrics, trained)


def _train(config: SequentialConfig, protocol: Protocol, given: Reader, device: torch.device) -> bool:
    """Train, or resume an interrupted training; whether it had to be."""
    stage, seed = config.model_stage(), protocol.seed
    if stage.current() is not None:
        return False
    with stage.work() as work:
        started = time.perf_counter()
        with work.phase("load"):
            data = given(work.folder / ROWS if config.stream else None)
        model = data.build(config.model, protocol.max_len, seed)
        wanted = TrainSettings(
            epochs=config.epochs,
            batch_size=protocol.batch_size,
            learning_rate=config.learning_rate,
            beta2=config.beta2,
            weight_decay=config.weight_decay,
            all_positions=config.all_positions,
            seed=seed,
            shuffle_rows=config.shuffle_rows if config.stream else 0,
        )
        work.tell_batch(wanted.batch_size, 1, wanted.batch_size)
        done = fit(model, data.split, protocol, wanted, work.folder / STATE_FILE, device, work)
        counts = {
            **data.split.counts,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "recipe": "all positions" if config.all_positions else "one position a row",
            "epochs": done.epoch,
            "best_epoch": done.best_epoch,
        }
        with work.finish(seed=seed, counts=counts) as place:
            save_sequential(model, config.model, data.hyper, place)
            _write_json(place / HISTORY_FILE, done.history)
        logger.info("seed %d: %d epochs in %.0f s.", seed, done.epoch, time.perf_counter() - started)
    return True


def _predict(config: SequentialConfig, protocol: Protocol, given: Reader, device: torch.device) -> None:
    """Rank, list and measure with the trained model, as it lies on disk."""
    stage = config.predictions_stage()
    if stage.current() is not None:
        return
    with stage.work() as work:
        with work.phase("load"):
            data = given(None)
            model = load_sequential(config.model_stage().output).to(device)
        with work.phase("search"):
            ranked = rank_splits(model, data.split, protocol.seen, device, data.table)
            length = min(config.list_length, data.split.num_items)
            lists = list_predictions(model, data.split, "test", protocol.seen, device, length, data.table)
        with work.phase("measure"):
            metrics = measure(ranked, protocol, config.resamples)
        counts = {"rows": len(lists), "split": "test", "beams": length, GIVEN: list(lists.given or ())}
        with work.finish(seed=protocol.seed, counts=counts) as place:
            lists.to_frame().to_parquet(place / LISTS_FILE, index=False)
            write_ranks(place, ranked)
            _write_json(place / METRICS_FILE, metrics)


def _write_json(place: Path, content: Any) -> None:
    place.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
