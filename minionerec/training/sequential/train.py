"""One trainer for every sequential recommender: epochs over arrays, early stopping, and a state that can go on."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger, progress
from minionerec.core.records import NO_CLOCK, Clock
from minionerec.data.order import block_order
from minionerec.data.protocols import Protocol
from minionerec.data.sequences import Split
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.nn.moments import hidden
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import check_items, rank_rows

logger = get_logger(__name__)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class TrainSettings:
    """How to optimise.

    Attributes:
        epochs: Most epochs.
        batch_size: Rows (or windows) a step; the last, smaller batch of an epoch counts too.
        learning_rate: Of AdamW.
        beta2: Second beta of AdamW; the first is 0.9.
        weight_decay: Decoupled, of tensors with two or more axes. With 0 AdamW is Adam.
        all_positions: Train on windows, with a loss at every position, instead of rows.
        seed: Seed of order and dropout.
        shuffle_rows: Rows (or windows) that are shuffled together, of rows that lie on disk; 0: all, in memory.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    beta2: float
    weight_decay: float
    all_positions: bool
    seed: int
    shuffle_rows: int = 0


@dataclass
class Progress:
    """How far a training has come.

    Attributes:
        epoch: Epochs that are done.
        best_epoch: Epoch of the best validation figure, from 0; -1 before the first.
        best: Best figure.
        worse: Epochs in a row without improvement.
        history: Loss and validation figures of each epoch.
    """

    epoch: int
    best_epoch: int
    best: float
    worse: int
    history: list[dict[str, float]]


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of one epoch, from which its order and all its draws follow, so that a resumed run draws the same."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 2)


def batches(count: int, size: int) -> Iterator[torch.Tensor]:
    """Places of the rows of each batch of an epoch, in an order drawn from torch's generator: int64 (at most size,)."""
    yield from torch.randperm(count).split(size)


def block_batches(count: int, settings: TrainSettings, epoch: int) -> Iterator[np.ndarray]:
    """Places of the rows of each batch of an epoch, by blocks: int64 (at most the batch size,)."""
    held = np.zeros(0, dtype=np.int64)
    for chunk in block_order(count, settings.shuffle_rows, settings.seed, epoch):
        held = np.concatenate([held, chunk])
        whole = len(held) // settings.batch_size * settings.batch_size
        yield from held[:whole].reshape(-1, settings.batch_size)
        held = held[whole:]
    if len(held):
        yield held


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Histories, targets, users and moments of a batch, on the model's device."""


def _from_memory(model: SequentialModel, split: Split, settings: TrainSettings) -> Iterator[Batch]:
    """The batches of an epoch, of rows that lie on the device as a whole."""
    device = model.item_matrix().device
    source = split.windows if settings.all_positions else split.train
    told = None if model.moment_states is None or source.moments is None else torch.from_numpy(source.moments)
    told = None if told is None else told.to(device)
    if settings.all_positions:
        histories, targets = (torch.from_numpy(part) for part in (split.windows.histories, split.windows.targets))
        users = None
    else:
        histories, targets = torch.from_numpy(split.train.histories), torch.from_numpy(split.train.targets)
        users = torch.from_numpy(split.train.users).to(device) if model.needs_users else None
    histories, targets = histories.to(device), targets.to(device)
    for places in batches(len(histories), settings.batch_size):
        places = places.to(device)
        rows, wanted = histories.index_select(0, places).long(), targets.index_select(0, places).long()
        moments = None if told is None else hidden(told.index_select(0, places).long(), wanted)
        yield rows, wanted, None if users is None else users.index_select(0, places), moments


def _from_disk(model: SequentialModel, split: Split, settings: TrainSettings, epoch: int) -> Iterator[Batch]:
    """The batches of an epoch, of rows that are read as they are needed."""
    device = model.item_matrix().device
    source = split.windows if settings.all_positions else split.train
    for places in block_batches(len(source), settings, epoch):
        if settings.all_positions:
            histories, targets = split.windows.histories[places], split.windows.targets[places]
        else:
            rows = split.train.take(places)
            histories, targets = rows.histories, rows.targets
        yield torch.from_numpy(histories).to(device).long(), torch.from_numpy(targets).to(device).long(), None, None


def make_optimizer(model: SequentialModel, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW in its fused form; tensors with one axis have no weight decay."""
    tensors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in tensors if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in tensors if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.beta2), eps=1e-8, fused=True)


def train_epoch(
    model: SequentialModel, split: Split, optimizer: torch.optim.Optimizer, settings: TrainSettings, epoch: int
) -> float:
    """One pass over the training rows or windows.

    Torch's generator is set anew from seed and epoch.

    Returns:
        Mean loss of the batches.

    Raises:
        ConfigError: If the loss is no longer a number.
    """
    model.train()
    torch.manual_seed(epoch_seed(settings.seed, epoch))
    count = len(split.windows if settings.all_positions else split.train)
    steps = -(-count // settings.batch_size)
    if settings.shuffle_rows:
        found = _from_disk(model, split, settings, epoch)
    else:
        found = _from_memory(model, split, settings)
    total = torch.zeros((), device=model.item_matrix().device)
    for rows, wanted, users, told in progress(found, f"epoch {epoch}", total=steps, unit="step"):
        if settings.all_positions:
            loss = model.sequence_loss(rows, wanted, told)
        else:
            loss = model.loss(rows, wanted, users, told)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    mean = float(total) / steps
    if not math.isfinite(mean):
        raise ConfigError(f"the loss of epoch {epoch} is {mean}: training diverged. Lower learning_rate.")
    return mean


def fit(
    model: SequentialModel,
    split: Split,
    protocol: Protocol,
    settings: TrainSettings,
    place: Path,
    device: torch.device,
    clock: Clock = NO_CLOCK,
) -> Progress:
    """Train until the protocol says stop; the model ends with the weights of its best epoch.

    After every epoch the state is written to `place` in one file, and a run that finds one there goes on from it: the
    result is the same as without the break.

    Args:
        model: Freshly built.
        split: The data.
        protocol: How to validate and when to stop.
        settings: How to optimise.
        place: File of the state; its folder exists.
        device: Where to compute.
        clock: Who counts the seconds of training and validation, and hears of finished epochs.

    Returns:
        The finished training.

    Raises:
        ConfigError: If the model cannot be trained at all positions though asked to, there is no row, or training
            diverges.
        DataError: If an item is not in the model's table.
    """
    _check(model, split, settings)
    model.to(device)
    optimizer = make_optimizer(model, settings)
    best_weights = {name: value.clone() for name, value in model.state_dict().items()}
    done = Progress(0, -1, -math.inf, 0, [])
    if place.is_file():
        done, best_weights = _read_state(place, model, optimizer)
        logger.info("Going on after epoch %d.", done.epoch - 1)
    clock.reached(done.epoch)
    stopper = protocol.stopper()
    stopper.best, stopper.worse = done.best, done.worse
    while done.epoch < settings.epochs and not stopper.stop:
        with clock.phase("train"):
            loss = train_epoch(model, split, optimizer, settings, done.epoch)
        with clock.phase("validate"):
            figures = _validate(model, split, protocol, device)
        if stopper.update(figures[protocol.monitor]):
            done.best_epoch = done.epoch
            best_weights = {name: value.clone() for name, value in model.state_dict().items()}
        logger.info("epoch %d  loss %.4f  valid %s %.4f", done.epoch, loss, protocol.monitor, figures[protocol.monitor])
        done.history.append({"epoch": done.epoch, "loss": loss, **figures})
        done.epoch, done.best, done.worse = done.epoch + 1, stopper.best, stopper.worse
        _write_state(place, model, optimizer, done, best_weights)
        clock.reached(done.epoch)
    model.load_state_dict(best_weights)
    return done


def _check(model: SequentialModel, split: Split, settings: TrainSettings) -> None:
    """Check that a model can be trained on some data in the way that is asked for."""
    if settings.all_positions and not model.causal:
        raise ConfigError(
            f"{type(model).__name__} sees items after a position, so it cannot be trained at all positions. "
            "Leave all_positions out."
        )
    if not len(split.windows if settings.all_positions else split.train):
        raise ConfigError("there is no training row; take data with longer histories.")
    if not settings.shuffle_rows:  # those on disk were checked as they were written
        check_items(model, split.train)


def _validate(model: SequentialModel, split: Split, protocol: Protocol, device: torch.device) -> dict[str, float]:
    """Mean metrics of the validation rows."""
    ranks = rank_rows(model, split.valid, protocol.seen, device)["item"]
    metrics = ranking_metrics(ranks, protocol.ks, every_mrr=protocol.mrr)
    return {name: float(values.mean()) for name, values in metrics.items()}


def _write_state(
    place: Path,
    model: SequentialModel,
    optimizer: torch.optim.Optimizer,
    done: Progress,
    best_weights: dict[str, torch.Tensor],
) -> None:
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best_weights.items()}
    for name, parameter in model.named_parameters():
        for moment in _MOMENTS if parameter in optimizer.state else ():
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment]
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    fresh = place.with_name(f".{place.name}.writing")
    save_file(tensors, fresh, metadata={"progress": json.dumps(asdict(done))})
    os.replace(fresh, place)


def _read_state(
    place: Path, model: SequentialModel, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, torch.Tensor]]:
    with safe_open(place, "pt") as file:
        done = Progress(**json.loads(file.metadata()["progress"]))
        tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        parts.setdefault(kind, {})[rest] = value
    model.load_state_dict(parts["model"])
    for name, parameter in model.named_parameters():
        if name in parts.get("step", {}):
            optimizer.state[parameter] = {moment: parts[moment][name].to(parameter.device) for moment in _MOMENTS}
    best = {name: value.to(next(model.parameters()).device) for name, value in parts["best"].items()}
    return done, best
