"""The two MLPs: the published one, which concatenates a pair, and a Siamese one, which scores each item.

Both share the encoder: [item features; user vector] through blocks Linear - BatchNorm - activation - Dropout of widths
384, 256, 128, 64, 32. Deviations from the published training, none of which changes what a step expects to do:

1. The first layer is linear in item and user, so it is applied once per item and once per user and then added up.
2. An answer and its swapped copy are encoded together: the published code encodes the first places of all rows and
   copies in one call and the second places in another, so both calls see the same items. Here one call serves both; the
   running statistics of BatchNorm move as by two calls (momentum 0.19 = 1 - 0.9 ** 2), and copies share dropout masks.
3. Weights are seeded, and the best epoch's weights are really kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.preference.data import Comparisons
from minionerec.preference.linear import standardisation
from minionerec.preference.measures import cross_entropy
from minionerec.preference.model import About, FeatureModel
from minionerec.preference.splits import TRAIN, VALID

logger = get_logger(__name__)

WIDTHS = (384, 256, 128, 64, 32)
USER_WIDTH = 32
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.01),
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


class PairNetwork(nn.Module):
    """Encoder of an item as a user sees it, and a head per target.

    Args:
        width: Width of the item vectors, D.
        users: Number of users, U. User U is an unseen one, with the mean of the vectors of users in train.
        targets: Number of targets, T.
        siamese: Score each item and compare scores, instead of concatenating the pair.
        activation: Name of the activation.
        dropout: Share of units dropped after every block, the last too.
        embedding_std: Spread of the user vectors at the start.
        position_bias: Siamese: a pull of each user towards the first place. Without it P(a,b) + P(b,a) = 1.
    """

    def __init__(
        self,
        width: int,
        users: int,
        targets: int,
        *,
        siamese: bool = False,
        activation: str = "leaky_relu",
        dropout: float = 0.15,
        embedding_std: float = 1.0,
        position_bias: bool = False,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ConfigError(f"activation is {activation!r}; known: {', '.join(_ACTIVATIONS)}.")
        sizes = (width + USER_WIDTH, *WIDTHS)
        self.width, self.siamese, self.dropout = width, siamese, dropout
        self.activation = _ACTIVATIONS[activation]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size, momentum=0.19) for size in WIDTHS)
        self.user_vectors = nn.Parameter(torch.randn(users, USER_WIDTH) * embedding_std)
        self.known: torch.Tensor
        self.register_buffer("known", torch.ones(users, dtype=torch.bool))
        self.heads = nn.Linear(WIDTHS[-1] * (1 if siamese else 2), targets, bias=not siamese)
        self.bias = nn.Parameter(torch.zeros(users)) if siamese and position_bias else None

    def encode(self, items: torch.Tensor, item: torch.Tensor, user: torch.Tensor) -> torch.Tensor:
        """Codes float32 (S, 32) of `item` (S,) of the table `items` (N, D), as `user` (S,) sees them."""
        people = torch.cat([self.user_vectors, self.user_vectors[self.known].mean(0, keepdim=True)])
        first, rest = cast(nn.Linear, self.layers[0]), list(self.layers)[1:]
        x = functional.embedding(item, items @ first.weight[:, : self.width].T)
        x = x + functional.embedding(user, functional.linear(people, first.weight[:, self.width :], first.bias))
        for layer, norm in zip([None, *rest], self.norms, strict=True):
            x = x if layer is None else layer(x)
            x = functional.dropout(self.activation(norm(x)), self.dropout, self.training)
        return x

    def pair_logits(
        self, items: torch.Tensor, a: torch.Tensor, b: torch.Tensor, user: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (C, T) that a wins over b, and, unless the model is Siamese, the same with the two places swapped."""
        code = self.encode(items, torch.cat([a, b]), torch.cat([user, user]))
        first, second = code[: len(a)], code[len(a) :]
        if self.siamese:
            gap = self.heads(first) - self.heads(second)
            if self.bias is not None:
                gap = gap + torch.cat([self.bias, self.bias.new_zeros(1)])[user][:, None]
            return gap, None
        return self.heads(torch.cat([first, second], 1)), self.heads(torch.cat([second, first], 1))


class EarlyStopping:
    """Keep the best state, and say when to stop.

    A loss is an improvement if it is below the best by more than `min_delta`; gains too small to count neither move
    the best nor reset the count, however they add up. The state is copied, tensor by tensor: a shallow copy would
    go on changing with the model.
    """

    def __init__(self, patience: int, min_delta: float) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best_loss, self.best_epoch, self.waited = float("inf"), -1, 0
        self.best_state: dict[str, torch.Tensor] = {}

    def update(self, epoch: int, loss: float, model: nn.Module) -> bool:
        """Take in one epoch (counted from 0); True when `patience` epochs have passed without improvement.

        Raises:
            ConfigError: If the loss is not a number.
        """
        if not np.isfinite(loss):
            raise ConfigError(f"validation loss is {loss} after epoch {epoch}. Lower learning_rate or check features.")
        if loss < self.best_loss - self.min_delta:
            self.best_loss, self.best_epoch, self.waited = loss, epoch, 0
            self.best_state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        else:
            self.waited += 1
        return self.waited >= self.patience


@dataclass
class MlpModel(FeatureModel):
    """A trained network with the scaling of its features.

    Attributes:
        network: In evaluation mode.
        mean: float32 (D,).
        spread: float32 (D,).
        unit: Whether vectors are brought to length 1 first.
        best_epoch: Epoch of the kept weights, from 0.
        last_epoch: Last epoch trained.
        last_state: Weights after the last epoch.
        history: train_loss, val_loss, val_accuracy per epoch.
    """

    network: PairNetwork
    mean: np.ndarray
    spread: np.ndarray
    unit: bool
    best_epoch: int = -1
    last_epoch: int = -1
    last_state: dict[str, torch.Tensor] = field(default_factory=dict)
    history: dict[str, list[float]] = field(
        default_factory=lambda: {"train_loss": [], "val_loss": [], "val_accuracy": []}
    )

    def table(self, features: np.ndarray) -> torch.Tensor:
        """The features as the network wants them, float32 (N, D)."""
        if self.unit:
            features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        return torch.from_numpy(((features - self.mean) / self.spread).astype(np.float32))

    @property
    def adapts(self) -> bool:
        """It knows an unseen user as the mean of all."""
        return False

    def adapt(self, data: Comparisons, rows: np.ndarray) -> "MlpModel":
        """Itself."""
        return self

    def at_last_epoch(self) -> "MlpModel":
        """The model as it was after the last epoch, as the published report evaluates it."""
        from copy import deepcopy

        last = deepcopy(self)
        last.network.load_state_dict(self.last_state)
        return last

    def predict(self, data: Comparisons, user: np.ndarray | None = None, swap: bool = False) -> np.ndarray:
        """P(first item is chosen) for every row, float64 (R,); see `FeatureModel.predict`."""
        user = data.user if user is None else user
        place = np.where(user < 0, len(data.users), user)
        key = data.comparison * (len(data.users) + 1) + place  # one encoding for all targets of a comparison
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        a, b = (data.b, data.a) if swap else (data.a, data.b)
        items, out = self.table(data.features), []
        self.network.eval()
        with torch.no_grad():
            for rows in np.array_split(first, max(1, len(first) // 8192)):
                parts = (torch.from_numpy(column[rows]) for column in (a, b, place))
                out.append(torch.sigmoid(self.network.pair_logits(items, *parts)[0]).numpy())
        p: np.ndarray = np.concatenate(out)[number, data.target].astype(np.float64)
        return p

    def utilities(self, features: np.ndarray) -> np.ndarray | None:
        """Score of each item for each user and target, float64 (U + 1, T, N); None for a concatenating network."""
        if not self.network.siamese:
            return None
        items, users = self.table(features), len(self.network.user_vectors) + 1
        self.network.eval()
        with torch.no_grad():
            every = torch.arange(len(items))
            codes = (self.network.encode(items, every, torch.full_like(every, user)) for user in range(users))
            scores = [self.network.heads(code).T for code in codes]
        table: np.ndarray = torch.stack(scores).double().numpy()
        return table

    def about(self) -> About:
        """Its numbers and its epochs."""
        return About(
            parameters=sum(value.numel() for value in self.network.parameters()),
            best_epoch=self.best_epoch,
            last_epoch=self.last_epoch,
            history=self.history,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored."""
        state = {name: value.numpy() for name, value in self.network.state_dict().items()}
        return {"mean": self.mean, "spread": self.spread, **{f"network.{name}": value for name, value in state.items()}}


@dataclass(frozen=True)
class _Training:
    """What one network is trained on, and how its rows are dealt out.

    Attributes:
        model: The network in training.
        data: All rows.
        train: int64 (r,), rows to train on.
        optimiser: Moves the weights.
        items: float32 (N, D), the features as the network wants them.
        rng: Deals out the batches.
        full_batch: One step per target on all its rows instead of batches.
        batch_size: Comparisons of a batch.
    """

    model: MlpModel
    data: Comparisons
    train: np.ndarray
    optimiser: torch.optim.Optimizer
    items: torch.Tensor
    rng: np.random.Generator
    full_batch: bool
    batch_size: int

    def step(self, rows: np.ndarray) -> float:
        """One step on these rows; their mean CE in nats before it."""
        data, network = self.data, self.model.network
        _, first, number = np.unique(data.comparison[rows], return_index=True, return_inverse=True)
        parts = (torch.from_numpy(column[rows[first]]) for column in (data.a, data.b, data.user))
        at = (torch.from_numpy(number), torch.from_numpy(data.target[rows]))
        y = torch.from_numpy(data.y[rows]).float()
        logits, swapped = network.pair_logits(self.items, *parts)
        loss = functional.binary_cross_entropy_with_logits(logits[at], y)
        if swapped is not None:
            loss = (loss + functional.binary_cross_entropy_with_logits(swapped[at], 1 - y)) / 2
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        self.optimiser.step()
        return float(loss.detach())

    def batches(self) -> list[np.ndarray]:
        """The rows of each step of one epoch; a comparison's targets stay together."""
        data, train = self.data, self.train
        if self.full_batch:
            return [train[data.target[train] == t] for t in range(len(data.targets))]
        comparisons, number = np.unique(data.comparison[train], return_inverse=True)
        by_place = self.rng.permutation(len(comparisons))[number]
        order = np.argsort(by_place, kind="stable")
        count = max(1, round(len(comparisons) / self.batch_size))
        cuts = np.searchsorted(by_place[order], np.linspace(0, len(comparisons), count + 1)[1:-1])
        return [train[part] for part in np.split(order, cuts)]

    def epoch(self) -> float:
        """One epoch; the mean of its steps' CE in nats."""
        self.model.network.train()
        return float(np.mean([self.step(rows) for rows in self.batches()]))


@dataclass(frozen=True)
class _Validation:
    """The rows that say when to stop.

    Attributes:
        data: These rows.
        user: int64 (R,), their users; -1 for those not in train.
        monitor: "pooled" (mean over rows) or "macro_target" (mean of the targets' means).
    """

    data: Comparisons
    user: np.ndarray
    monitor: str

    def measure(self, model: MlpModel) -> tuple[float, float]:
        """CE in nats, as it is monitored, and accuracy over rows."""
        held, p = self.data, model.predict(self.data, self.user)
        ce = cross_entropy(held.y, p)
        groups = [ce[held.target == t].mean() for t in range(len(held.targets)) if (held.target == t).any()]
        loss = float(np.mean(groups) if self.monitor == "macro_target" else ce.mean())
        return loss, float(((p > 0.5) == (held.y == 1)).mean())


def train_mlp(
    data: Comparisons,
    folds: np.ndarray,
    *,
    siamese: bool,
    seed: int,
    full_batch: bool = False,
    batch_size: int = 1024,
    scale: str = "standardize",
    embedding_std: float = 0.1,
    activation: str = "leaky_relu",
    dropout: float = 0.15,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-3,
    monitor: str = "pooled",
    max_epochs: int = 200,
    patience: int = 10,
    min_delta: float = 1e-3,
    position_bias: bool = True,
) -> MlpModel:
    """Train one network; the arguments are those of `PreferenceConfig`.

    Raises:
        ConfigError: If the validation loss becomes NaN, or a target has fewer than two rows to train on.
    """
    torch.manual_seed(seed)
    train, valid = np.flatnonzero(folds == TRAIN), np.flatnonzero(folds == VALID)
    network = PairNetwork(
        data.features.shape[1],
        len(data.users),
        len(data.targets),
        siamese=siamese,
        activation=activation,
        dropout=dropout,
        embedding_std=embedding_std,
        position_bias=position_bias,
    )
    trained = np.unique(data.user[train])
    network.known[:] = torch.from_numpy(np.isin(np.arange(len(data.users)), trained))
    model = _untrained(network, data, train, scale)
    optimiser = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
    rng = np.random.default_rng([seed, 11])
    items = model.table(data.features)
    training = _Training(model, data, train, optimiser, items, rng, full_batch, batch_size)
    unseen = np.where(np.isin(data.user, trained), data.user, -1)
    validation = _Validation(data.take(valid), unseen[valid], monitor)
    if min(len(rows) for rows in training.batches()) < 2:
        raise ConfigError("a target has fewer than 2 rows to train on; BatchNorm needs more. Drop it from targets.")
    stopping = EarlyStopping(patience, min_delta)
    _fit(training, validation, stopping, max_epochs)
    return model


def _untrained(network: PairNetwork, data: Comparisons, train: np.ndarray, scale: str) -> MlpModel:
    mean, spread = standardisation(data, train) if scale == "standardize" else (np.float32(0), np.float32(1))
    full = np.zeros(data.features.shape[1], dtype=np.float32)
    return MlpModel(network, full + mean, full + spread, scale == "l2")


def _fit(training: _Training, validation: _Validation, stopping: EarlyStopping, max_epochs: int) -> None:
    """Train until validation says to stop; the model then has its best weights, and keeps its last."""
    model, network = training.model, training.model.network
    for epoch in range(max_epochs):
        train_loss = training.epoch()
        loss, accuracy = validation.measure(model)
        for name, value in zip(model.history, (train_loss, loss, accuracy), strict=True):
            model.history[name].append(value)
        model.last_epoch = epoch
        if stopping.update(epoch, loss, network):
            break
    model.last_state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    model.best_epoch = stopping.best_epoch
    network.load_state_dict(stopping.best_state)
    network.eval()
