"""One trainer for every sequential recommender: epochs over arrays, early stopping, and a resumable state."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.utils.parametrize import cached

from minionerec.core.artefacts import atomic_write
from minionerec.core.errors import ConfigError
from minionerec.core.log import NO_CLOCK, Clock, get_logger, progress
from minionerec.data.contexts import RequestFeature, context_codes, corpus_codes
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.data.order import block_order, default_buffer, in_batches
from minionerec.data.protocols import Protocol
from minionerec.data.rows import Side, SplitExamples, mapped
from minionerec.data.windows import Windows, mapped_windows
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.nn.context import hidden
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import check_items

logger = get_logger(__name__)
MONITOR = "NDCG@10"
"""Metric of the validation examples that decides on stopping and on the best epoch."""
_ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Progress:
    """Progress of a training.

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

    def improves(self, value: float, protocol: Protocol) -> bool:
        """Take the monitored figure of one more epoch; whether it is an improvement, as the protocol has it."""
        value = value if protocol.digits is None else round(value, protocol.digits)
        improved = value > self.best or (protocol.ties and value == self.best)
        self.best, self.worse = (value, 0) if improved else (self.best, self.worse + 1)
        return improved


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of one epoch, from which its order and all its draws follow, so that a resumed run draws the same."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 2)


WindowBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Histories, targets, users and contexts of a batch, on the model's device: int64, items from 1."""


@dataclass(frozen=True)
class TrainingExamples:
    """Training examples of a model: single ones, or windows for training at all positions.

    Attributes:
        max_len: Most items of a history that the model reads, L.
        padding: Side of the padding.
        rows: The rows; None where there are windows.
        windows: The windows; None where there are rows.
        users: int64 (R,), the number of each row's user; None if not used.
        contexts: int16 (R, F), codes of the model's request features for each row's target; None without features.
    """

    max_len: int
    padding: Side
    rows: SplitExamples | None
    windows: Windows | None
    users: np.ndarray | None
    contexts: np.ndarray | None

    @classmethod
    def of(
        cls,
        corpus: Corpus,
        max_len: int,
        padding: Side,
        *,
        all_positions: bool = False,
        users: np.ndarray | None = None,
        features: Sequence[RequestFeature] = (),
        folder: Path | None = None,
    ) -> "TrainingExamples":
        """The training examples of a corpus, block by block, mapped from files.

        Args:
            corpus: The corpus.
            max_len: Most items of a history that the model reads.
            padding: Side of the padding.
            all_positions: Whether windows are wanted.
            users: See `TrainingExamples`.
            features: Request features that the model is conditioned on.
            folder: Folder of the arrays, written where they do not exist yet; a temporary one if None.

        Raises:
            ConfigError: If there is none.
        """
        if not corpus.sizes["train"]:
            raise ConfigError("there is no training example; take data with longer histories.")
        if all_positions:
            windows = mapped_windows(corpus.windows("train"), folder and folder / "windows", max_len, padding)
            if not len(windows[0]):
                raise ConfigError("there is no training example; take data with longer histories.")
            contexts = corpus_codes(corpus, features) if features else None
            return cls(max_len, padding, None, windows, None, contexts)
        parts = (rows for _, rows in corpus.batches("train"))
        rows = mapped(parts, folder and folder / "samples")
        contexts = None
        if features:
            contexts = np.concatenate([context_codes(features, part) for _, part in corpus.batches("train")])
        return cls(max_len, padding, rows, None, users, contexts)

    def __len__(self) -> int:
        """Number of rows, or windows."""
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.windows is None else len(self.windows[0])

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """Indices of the rows, or windows, of each batch of an epoch: int64 (at most `size`,).

        All are shuffled by torch's generator; or blocks of them (`minionerec.data.order.block_order`), by the seed.
        """
        buffer = default_buffer(len(self))
        if not buffer:
            return (part.numpy() for part in torch.randperm(len(self)).split(size))
        return in_batches(block_order(len(self), buffer, seed, epoch), size)

    def batch(self, chosen: np.ndarray, device: torch.device) -> WindowBatch:
        """A batch as the model takes it; some codes of request features are hidden, drawn by torch's generator.

        Args:
            chosen: Indices of its rows, or windows.
            device: Where the model is.
        """

        def on_device(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(device).long()

        users: torch.Tensor | None = None
        if self.rows is None:
            assert self.windows is not None
            histories, targets, rows = (values[chosen] for values in self.windows)
            contexts = None if self.contexts is None else np.where(rows[..., None] < 0, UNKNOWN, self.contexts[rows])
        else:
            part = self.rows.take(chosen)
            histories, targets = part.padded(self.max_len, self.padding), part.targets + 1
            contexts = None if self.contexts is None else self.contexts[chosen]
            users = None if self.users is None else on_device(self.users[chosen])
        target_items = on_device(targets)
        context = None if contexts is None else hidden(on_device(contexts), target_items)
        return on_device(histories), target_items, users, context


def make_optimizer(model: SequentialModel, learning_rate: float = 1e-3) -> torch.optim.Adam:
    """Adam in its fused form."""
    tensors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.Adam(tensors, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True)


def train_epoch(
    model: SequentialModel,
    examples: TrainingExamples,
    optimizer: torch.optim.Optimizer,
    protocol: Protocol,
    epoch: int,
) -> float:
    """One pass over the training examples or windows, in batches of the protocol's size; the last may be smaller.

    Torch's generator is seeded from the protocol's seed and the epoch.

    Returns:
        Mean loss of the batches.

    Raises:
        ConfigError: If the loss is no longer a number.
    """
    model.train()
    torch.manual_seed(epoch_seed(protocol.seed, epoch))
    device, steps = model.item_matrix().device, -(-len(examples) // protocol.batch_size)
    total = torch.zeros((), device=device)
    order = examples.batches(protocol.batch_size, protocol.seed, epoch)
    for chosen in progress(order, f"epoch {epoch}", total=steps, unit="step"):
        rows, targets, users, contexts = examples.batch(chosen, device)
        with cached():  # vectors of all items are computed once a step
            if examples.windows is not None:
                loss = model.sequence_loss(rows, targets, contexts)
            else:
                loss = model.loss(rows, targets, users, contexts)
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
    examples: TrainingExamples,
    valid: Callable[[SequentialModel], np.ndarray],
    protocol: Protocol,
    state_file: Path,
    device: torch.device,
    *,
    epochs: int = 200,
    learning_rate: float = 1e-3,
    clock: Clock = NO_CLOCK,
) -> Progress:
    """Train until the protocol's early stopping; the model ends with the weights of its best epoch.

    After every epoch the state is written to a file, and a run that finds one continues: the result is the same as
    without the break.

    Args:
        model: Freshly built.
        examples: Its training examples.
        valid: Gives the ranks of the validation examples' targets, int64 (R,).
        protocol: Batch size and seed, how to validate and when to stop.
        state_file: File of the state; its folder exists.
        device: Where to compute.
        epochs: Most epochs.
        learning_rate: Learning rate of Adam.
        clock: Who counts the seconds of training and validation, and hears of finished epochs.

    Returns:
        The finished training.

    Raises:
        ConfigError: If the model cannot be trained at all positions though requested, or training diverges.
        DataError: If an item is not in the model's table.
    """
    if examples.windows is not None and not model.causal:
        raise ConfigError(
            f"{type(model).__name__} sees items after a position, so it cannot be trained at all positions. "
            "Leave all_positions out."
        )
    rows = examples.rows
    if rows is not None and max(rows.items.max(initial=0), rows.targets.max(initial=0)) >= model.num_items:
        check_items(model, rows, rows.padded(model.max_len, model.padding))
    model.to(device)
    optimizer = make_optimizer(model, learning_rate)
    best_weights = {name: value.clone() for name, value in model.state_dict().items()}
    done = Progress(0, -1, -math.inf, 0, [])
    if state_file.is_file():
        done, best_weights = _read_state(state_file, model, optimizer)
        logger.info("Resuming after epoch %d.", done.epoch - 1)
    clock.reached(done.epoch)
    while done.epoch < epochs and done.worse < protocol.stop_after:
        with clock.phase("train"):
            loss = train_epoch(model, examples, optimizer, protocol, done.epoch)
        with clock.phase("validate"):
            ranked = ranking_metrics(valid(model), protocol.ks, every_mrr=protocol.mrr)
        figures = {name: float(values.mean()) for name, values in ranked.items()}
        if done.improves(figures[MONITOR], protocol):
            done.best_epoch = done.epoch
            best_weights = {name: value.clone() for name, value in model.state_dict().items()}
        logger.info("epoch %d  loss %.4f  valid %s %.4f", done.epoch, loss, MONITOR, figures[MONITOR])
        done.history.append({"epoch": done.epoch, "loss": loss, **figures})
        done.epoch += 1
        _write_state(state_file, model, optimizer, done, best_weights)
        clock.reached(done.epoch)
    model.load_state_dict(best_weights)
    return done


def _write_state(
    state_file: Path,
    model: SequentialModel,
    optimizer: torch.optim.Optimizer,
    done: Progress,
    best_weights: dict[str, torch.Tensor],
) -> None:
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best_weights.items()}
    for name, parameter in model.named_parameters():
        for key in _ADAM_STATE if parameter in optimizer.state else ():
            tensors[f"{key}/{name}"] = optimizer.state[parameter][key]
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_write(state_file) as fresh:
        save_file(tensors, fresh, metadata={"progress": json.dumps(asdict(done))})


def _read_state(
    state_file: Path, model: SequentialModel, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, torch.Tensor]]:
    with safe_open(state_file, "pt") as file:
        done = Progress(**json.loads(file.metadata()["progress"]))
        tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        parts.setdefault(kind, {})[rest] = value
    model.load_state_dict(parts["model"])
    for name, parameter in model.named_parameters():
        if name in parts.get("step", {}):
            optimizer.state[parameter] = {key: parts[key][name].to(parameter.device) for key in _ADAM_STATE}
    best = {name: value.to(next(model.parameters()).device) for name, value in parts["best"].items()}
    return done, best
