"""The stage that trains a sequential recommender with several seeds and measures it as its protocol says."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.memory import keep_freed_memory
from minionerec.data.moments import UNKNOWN
from minionerec.data.protocols import Protocol
from minionerec.data.sequences import Split
from minionerec.metrics.predictions import FILE as LISTS_FILE
from minionerec.metrics.predictions import GIVEN, SESSION_CONTEXT, Predictions
from minionerec.metrics.ranked import Ranked, write_ranks
from minionerec.metrics.ranking import estimate, ranking_metrics
from minionerec.models.nn.order import fix_order
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import check_hyper
from minionerec.models.sequential.saved import load_sequential, save_sequential
from minionerec.sid.table import SidTable
from minionerec.training.sequential.config import SequentialConfig
from minionerec.training.sequential.given import Given, check_corpus, read_given
from minionerec.training.sequential.seeds import SeedRun, resolve_protocol, seed_runs, summary_stage
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

HISTORY_FILE, METRICS_FILE, SUMMARY_FILE, STATE_FILE = (
    "history.json",
    "metrics.json",
    "summary.json",
    "state.safetensors",
)
ROWS = "rows"
"""Folder of training rows on disk, in that of the unfinished run."""
Reader = Callable[[Path | None], Given]
"""Reads what is given, with training rows in a folder where they are streamed."""


@dataclass(frozen=True)
class SequentialResult:
    """What `run_sequential` made.

    Attributes:
        output: Directory of all seeds.
        summary: Content of `summary.json`.
        trained: Number of seeds that were trained now; the others stood already.
    """

    output: Path
    summary: Mapping[str, Any]
    trained: int

    def lines(self) -> list[str]:
        """Mean and sample standard deviation of every metric, and where things lie."""
        lines = []
        for split, levels in self.summary["mean_sd"].items():
            for level, metrics in levels.items():
                shown = (
                    f"{name} {mean:.4f}" + ("" if sd is None else f" ± {sd:.4f}")
                    for name, (mean, sd) in metrics.items()
                )
                lines.append(f"{split:<5} {level:<4} {'  '.join(shown)}")
        return [*lines, f"models and predictions: {self.output}"]


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
    """Train and measure with every seed; what stands already is kept, and what was cut off goes on.

    Each seed gets a folder with `model` (kind "sequential_model": `model.safetensors`, `model.json`, `history.json`)
    and `predictions` (kind "predictions": the test rows' ranked lists, `ranks.parquet` with every row's rank in
    validation and test, `metrics.json`). `summary` (kind "sequential_summary") has all seeds' metrics, their mean and
    sd, in `summary.json`.

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
    protocol, device = resolve_protocol(config), pick_device(config.device)
    # Rows on disk are those of a seed's folder, which goes when the seed is done.
    given: Reader = (
        partial(read_given, config, protocol) if config.stream else cache(lambda _: read_given(config, protocol))
    )
    runs = seed_runs(config, protocol)
    trained = 0
    for run in runs:
        trained += _train(run, given, device)
        _predict(run, given, device)
    return SequentialResult(Path(config.output), _summarise(config, runs), trained)


def _train(run: SeedRun, given: Reader, device: torch.device) -> bool:
    """Train one seed, going on where a run was cut off; whether it had to be."""
    config, stage = run.config, run.model
    if stage.current() is not None:
        return False
    with stage.work() as work:
        started = time.perf_counter()
        with work.phase("load"):
            data = given(work.folder / ROWS if config.stream else None)
        model = data.build(config.model, run.protocol.max_len, run.seed)
        wanted = TrainSettings(
            epochs=config.epochs,
            batch_size=run.protocol.batch_size,
            learning_rate=config.learning_rate,
            beta2=config.beta2,
            weight_decay=config.weight_decay,
            all_positions=config.all_positions,
            seed=run.seed,
            shuffle_rows=config.shuffle_rows if config.stream else 0,
        )
        work.tell_batch(wanted.batch_size, 1, wanted.batch_size)
        done = fit(model, data.split, run.protocol, wanted, work.folder / STATE_FILE, device, work)
        counts = {
            **data.split.counts,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "recipe": "all positions" if config.all_positions else "one position a row",
            "epochs": done.epoch,
            "best_epoch": done.best_epoch,
        }
        with work.finish(seed=run.seed, counts=counts) as place:
            save_sequential(model, config.model, data.hyper, place)
            _write_json(place / HISTORY_FILE, done.history)
        logger.info("seed %d: %d epochs in %.0f s.", run.seed, done.epoch, time.perf_counter() - started)
    return True


def _predict(run: SeedRun, given: Reader, device: torch.device) -> None:
    """Rank, list and measure with the trained model of one seed, as it lies on disk."""
    config, protocol, stage = run.config, run.protocol, run.predictions
    if stage.current() is not None:
        return
    with stage.work() as work:
        with work.phase("load"):
            data = given(None)
            model = load_sequential(run.model.output).to(device)
        with work.phase("search"):
            ranked = rank_splits(model, data.split, protocol.seen, device, data.table)
            length = min(config.list_length, data.split.num_items)
            lists = list_predictions(model, data.split, "test", protocol.seen, device, length, data.table)
        with work.phase("measure"):
            metrics = measure(ranked, protocol, config.resamples)
        counts = {"rows": len(lists), "split": "test", "beams": length, GIVEN: list(lists.given or ())}
        with work.finish(seed=run.seed, counts=counts) as place:
            lists.to_frame().to_parquet(place / LISTS_FILE, index=False)
            write_ranks(place, ranked)
            _write_json(place / METRICS_FILE, metrics)


def _summarise(config: SequentialConfig, runs: list[SeedRun]) -> Mapping[str, Any]:
    """The summary of all seeds, written where it does not stand yet."""
    stage = summary_stage(config, runs)
    if stage.current(say=False) is None:
        with stage.work() as work, work.finish() as place:
            _write_json(place / SUMMARY_FILE, summarise(runs))
    summary: Mapping[str, Any] = read_json(stage.output / SUMMARY_FILE)
    return summary


def summarise(runs: list[SeedRun]) -> dict[str, Any]:
    """Metrics of finished seeds, their mean and sample standard deviation (None for one seed)."""
    seeds: dict[str, Any] = {}
    for run in runs:
        counts = read_manifest(run.model.output)["counts"]
        metrics = read_json(run.predictions.output / METRICS_FILE)
        means = {
            split: {level: {name: value[0] for name, value in found.items()} for level, found in levels.items()}
            for split, levels in metrics.items()
        }
        about = {name: counts[name] for name in ("parameters", "recipe", "epochs", "best_epoch")}
        seeds[str(run.seed)] = {**about, **means}
    everything = list(seeds.values())

    def over_seeds(split: str, level: str, name: str) -> list[float | None]:
        values = [found[split][level][name] for found in everything]
        return [float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None]

    first = everything[0]
    return {
        "seeds": seeds,
        "mean_sd": {
            split: {
                level: {name: over_seeds(split, level, name) for name in found} for level, found in first[split].items()
            }
            for split in ("valid", "test")
        },
    }


def _write_json(place: Path, content: Any) -> None:
    place.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
