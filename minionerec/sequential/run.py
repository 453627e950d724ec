"""The stage that trains a sequential recommender with several seeds and measures it as its protocol says."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file

from minionerec.core.artefacts import (
    input_record,
    is_current,
    read_json,
    read_manifest,
    to_plain,
    write_artefact,
    write_text_atomic,
)
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import get_logger
from minionerec.core.memory import keep_freed_memory
from minionerec.data.corpus import Corpus
from minionerec.data.prepare import data_path
from minionerec.data.protocols import PROTOCOLS, Protocol
from minionerec.data.sequences import Samples, Split, sequences_from_source
from minionerec.data.sources.user_items import read_user_items
from minionerec.data.transitions import Transitions, count_transitions
from minionerec.embed.vectors import EncoderConfig, encoder_inputs, make_vectors
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranking import estimate, ranking_metrics
from minionerec.sequential.config import SequentialConfig
from minionerec.sequential.model import SequentialModel
from minionerec.sequential.models import build_model, hyper_parameters
from minionerec.sequential.rank import rank_rows, top_items
from minionerec.sequential.train import Progress, TrainSettings, fit
from minionerec.sid.table import SidTable

logger = get_logger(__name__)

KIND = "sequential_model"
WEIGHTS_FILE, MODEL_FILE = "model.safetensors", "model.json"
METRICS_FILE, RANKS_FILE, HISTORY_FILE, SUMMARY_FILE = "metrics.json", "ranks.parquet", "history.json", "summary.json"
_NOT_PART_OF_RESULT = ("output", "seeds", "seed", "device")
_SET_BY_DATA = ("padding", "num_users", "text_width", "num_transitions")


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


def parse_hyper(name: str, words: list[str]) -> dict[str, Any]:
    """Hyper-parameters of a model from "name=value" words, each of its default's type.

    Raises:
        ConfigError: If a name is unknown, or set by the data, or a value does not fit.

    Example:
        >>> parse_hyper("sasrec", ["hidden_size=32", "hidden_dropout=0.1"])
        {'hidden_size': 32, 'hidden_dropout': 0.1}
    """
    known = {key: value for key, value in hyper_parameters(name).items() if key not in _SET_BY_DATA}
    found: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in known:
            raise ConfigError(f"hyper: model {name} has no hyper-parameter {key!r}; known: {', '.join(known)}.")
        kind = type(known[key])
        try:
            found[key] = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise ConfigError(f"hyper: {word!r}; expected {key}=VALUE with a value like {known[key]!r}.") from None
    return found


def resolve_protocol(config: SequentialConfig) -> Protocol:
    """The protocol with what the settings change in it."""
    wanted = {"max_len": config.max_len, "stop_after": config.stop_after, "seen": config.seen,
              "monitor": config.monitor, "batch_size": config.batch_size, "seed": config.seed}  # fmt: skip
    return PROTOCOLS[config.protocol].with_changes(**{name: value for name, value in wanted.items() if value})


def read_data(config: SequentialConfig, protocol: Protocol) -> Split:
    """The split of the configured data.

    Raises:
        DataError: If a file is malformed or too small.
        ArtefactError: If the corpus is missing.
    """
    if protocol.name == "rows":
        return protocol.split(Corpus.load(config.data))
    items = data_path(config.items) if config.items else None
    return protocol.split(sequences_from_source(read_user_items(data_path(config.data), items)))


def read_text(config: SequentialConfig, split: Split) -> torch.Tensor | None:
    """Text vectors of the items, float32 (N, T); None where none are asked for."""
    if not config.vectors:
        return None
    if "text_width" not in hyper_parameters(config.model):
        raise ConfigError(f"vectors is {config.vectors!r}, but model {config.model} reads no text; leave vectors out.")
    none = pd.DataFrame()
    items = Corpus(split.catalogue, none, none, none, split="", max_history=0)
    settings = EncoderConfig(encoder=config.vectors, dimensions=config.vector_width)
    return torch.from_numpy(make_vectors(items, settings, {}))


def read_transitions(hyper: Mapping[str, Any], split: Split) -> Transitions | None:
    """What followed what in the training windows; None where the hyper-parameters ask for no counts."""
    if not hyper.get("reach"):
        return None
    windows = split.windows
    return count_transitions(
        windows.histories, windows.targets, split.num_items, hyper["reach"], hyper["decay"], hyper["reverse"]
    )


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

    Each seed gets a folder with `model` (kind "sequential_model": `model.safetensors`, `model.json`, `metrics.json`,
    `ranks.parquet` with every row's rank in validation and test, `history.json`) and `predictions` (kind
    "predictions": the test rows' ranked lists). `summary.json` has all seeds' metrics, their mean and sd.

    Args:
        config: Settings.

    Raises:
        ConfigError: If the model or a hyper-parameter is unknown, or a setting does not fit it.
        DataError: If the data are malformed or too small.
        ArtefactError: If an input is missing or the output cannot be written.
    """
    keep_freed_memory()
    protocol = resolve_protocol(config)
    hyper = parse_hyper(config.model, config.hyper)
    device = pick_device(config.device)
    named = {name: getattr(config, name) for name in ("data", "items", "sids")}
    inputs: dict[str, str | Path] = {name: data_path(path) for name, path in named.items() if path}
    inputs |= encoder_inputs(config.vectors) if config.vectors else {}
    if protocol.name == "rows":
        read_manifest(config.data, "corpus")
    split = read_data(config, protocol)
    text = read_text(config, split)
    known = hyper_parameters(config.model)
    counted = read_transitions({**known, **hyper}, split)
    table = SidTable.load_index(config.sids, split.catalogue["item_id"].tolist()) if config.sids else None
    given = {"padding": protocol.padding, "num_users": len(split.user_names),
             "text_width": 0 if text is None else text.shape[1],
             "num_transitions": 0 if counted is None else len(counted.counts)}  # fmt: skip
    hyper |= {name: value for name, value in given.items() if name in known}
    logger.info("%s: %s", protocol.title, "  ".join(f"{name} {value}" for name, value in split.counts.items()))
    output = Path(config.output)
    folders, trained = [], 0
    for seed in range(protocol.seed, protocol.seed + config.seeds):
        folder = output / f"seed-{seed}"
        folders.append(folder)
        settings = {**{k: v for k, v in to_plain(config).items() if k not in _NOT_PART_OF_RESULT}, "seed": seed,
                    "resolved": {**{k: v for k, v in asdict(protocol).items() if k != "splitter"}, "hyper": hyper,
                                 "seed": seed}}  # fmt: skip
        if is_current(folder / "model", KIND, settings, inputs) and (folder / "predictions").is_dir():
            logger.info("%s is up to date.", folder)
            continue
        started = time.perf_counter()
        torch.manual_seed(seed)
        model = build_model(config.model, num_items=split.num_items, max_len=protocol.max_len, **hyper)
        if text is not None:
            model.set_text(text)  # type: ignore[operator]
        if counted is not None:
            model.set_transitions(counted)  # type: ignore[operator]
        done = _train(model, split, protocol, config, seed, folder, settings, inputs, device)
        _write(model, hyper, split, protocol, config, seed, folder, settings, inputs, device, done, table)
        trained += 1
        logger.info("seed %d: %d epochs in %.0f s.", seed, done.epoch, time.perf_counter() - started)
    summary = summarise(folders)
    write_text_atomic(output / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
    return SequentialResult(output, summary, trained)


def _train(
    model: SequentialModel,
    split: Split,
    protocol: Protocol,
    config: SequentialConfig,
    seed: int,
    folder: Path,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str | Path],
    device: torch.device,
) -> Progress:
    """Train one seed in `folder/partial`, going on where a run with the same settings and inputs was cut off.

    Raises:
        ConfigError: If an unfinished run with other settings or inputs lies there.
    """
    partial = folder / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    record = to_plain({"settings": settings, "inputs": {n: e["sha256"] for n, e in input_record(inputs).items()}})
    state, asked = partial / "state.safetensors", partial / "settings.json"
    if state.is_file() and read_json(asked) != record:
        before = read_json(asked)["settings"]
        changed = (name for name, value in record["settings"].items() if before.get(name) != value)
        names = ", ".join(name for name in changed if name != "resolved") or "its data or a resolved setting"
        raise ConfigError(
            f"{partial}: holds an unfinished run that differs in {names}. "
            "Go on with the old settings, choose another output, or delete that folder."
        )
    write_text_atomic(asked, json.dumps(record, indent=1) + "\n")
    wanted = TrainSettings(
        epochs=config.epochs,
        batch_size=protocol.batch_size,
        learning_rate=config.learning_rate,
        beta2=config.beta2,
        weight_decay=config.weight_decay,
        all_positions=config.all_positions,
        seed=seed,
    )
    return fit(model, split, protocol, wanted, state, device)


def _write(
    model: SequentialModel,
    hyper: Mapping[str, Any],
    split: Split,
    protocol: Protocol,
    config: SequentialConfig,
    seed: int,
    folder: Path,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str | Path],
    device: torch.device,
    done: Progress,
    table: SidTable | None,
) -> None:
    """Measure the best epoch's weights on validation and test, and write the two artefacts of one seed."""
    numbers = None if table is None else table.sid_numbers
    samples = {"valid": split.valid, "test": split.test}
    ranks = {name: rank_rows(model, rows, protocol.seen, device, numbers) for name, rows in samples.items()}
    metrics = {
        name: {
            level: estimate(ranking_metrics(found, protocol.ks, every_mrr=protocol.mrr), 0, config.resamples)
            for level, found in levels.items()
        }
        for name, levels in ranks.items()
    }
    about = {"model": config.model, "num_items": split.num_items, "max_len": protocol.max_len, "hyper": dict(hyper)}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    recipe = "all positions" if config.all_positions else "one position a row"
    counts = {**split.counts, "parameters": parameters, "recipe": recipe, "epochs": done.epoch,
              "best_epoch": done.best_epoch}  # fmt: skip
    with write_artefact(folder / "model", KIND, config=settings, inputs=inputs, seed=seed, counts=counts) as place:
        save_file({name: value.cpu().contiguous() for name, value in model.state_dict().items()}, place / WEIGHTS_FILE)
        (place / MODEL_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        plain = {
            name: {
                level: {metric: [e.mean, e.low, e.high] for metric, e in found.items()}
                for level, found in levels.items()
            }
            for name, levels in metrics.items()
        }
        (place / METRICS_FILE).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        (place / HISTORY_FILE).write_text(json.dumps(done.history, indent=1) + "\n", encoding="utf-8")
        frames = [_rank_frame(name, samples[name], split, found) for name, found in ranks.items()]
        pd.concat(frames).to_parquet(place / RANKS_FILE, index=False)
    length = min(config.list_length, split.num_items)
    predictions = list_predictions(model, split, split.test, protocol.seen, device, length, table)
    counts = {"rows": len(predictions), "split": "test", "beams": length}
    predictions.save(folder / "predictions", config=settings, inputs=inputs, seed=seed, counts=counts)
    for file in (folder / "partial").iterdir():
        file.unlink()
    (folder / "partial").rmdir()


def _rank_frame(name: str, samples: Samples, split: Split, ranks: Mapping[str, np.ndarray]) -> pd.DataFrame:
    columns = {f"{level}_rank": values.astype(np.int32) for level, values in ranks.items()}
    users = np.asarray(split.user_names, dtype=object)[samples.users]
    return pd.DataFrame({"split": name, "user": users, "target": (samples.targets - 1).astype(np.int32), **columns})


def list_predictions(
    model: SequentialModel,
    split: Split,
    samples: Samples,
    seen: str,
    device: torch.device,
    length: int,
    table: SidTable | None = None,
) -> Predictions:
    """Ranked lists in the form that all recommenders share.

    Items stand in the order of their own scores, so items that share an SID need not follow one another.

    Args:
        model: The model.
        split: For names.
        samples: R rows of it.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        length: Length of the lists.
        table: SIDs of the items; without it SIDs are "".
    """
    items, scores = top_items(model, samples, seen, device, length)
    items -= 1
    usable = np.isfinite(scores)
    sids = np.array(["", *(table.sids if table else [""] * split.num_items)], dtype=object)
    targets = samples.targets - 1
    lists = [(row[ok], values[ok]) for row, values, ok in zip(items, scores, usable, strict=True)]
    return Predictions(
        users=[split.user_names[user] for user in samples.users],
        targets=targets.astype(np.int32),
        target_sids=sids[targets + 1].tolist(),
        items=[row.tolist() for row, _ in lists],
        sids=[sids[row + 1].tolist() for row, _ in lists],
        scores=[values.tolist() for _, values in lists],
    )


def load_model(path: str | Path) -> SequentialModel:
    """A trained recommender, in evaluation mode.

    Args:
        path: The `model` folder of a seed.

    Raises:
        ArtefactError: If it is none, or its weights do not fit its description.
    """
    read_manifest(path, KIND)
    about = read_json(Path(path) / MODEL_FILE)
    model = build_model(about["model"], num_items=about["num_items"], max_len=about["max_len"], **about["hyper"])
    try:
        model.load_state_dict(load_file(Path(path) / WEIGHTS_FILE))
    except RuntimeError as error:
        raise ArtefactError(f"{path}: {WEIGHTS_FILE} does not fit {MODEL_FILE} ({error}). Train it again.") from None
    return model.eval()


def summarise(folders: list[Path]) -> dict[str, Any]:
    """Metrics of several seeds, their mean and sample standard deviation (None for one seed)."""
    seeds: dict[str, Any] = {}
    for folder in folders:
        manifest = read_manifest(folder / "model", KIND)
        metrics = read_json(folder / "model" / METRICS_FILE)
        means = {
            split: {level: {name: value[0] for name, value in found.items()} for level, found in levels.items()}
            for split, levels in metrics.items()
        }
        about = {name: manifest["counts"][name] for name in ("parameters", "recipe", "epochs", "best_epoch")}
        seeds[str(manifest["seed"])] = {**about, **means}
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
