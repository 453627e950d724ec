"""The models by name: baselines without features, Bradley-Terry models on features, and two MLPs.

Bradley-Terry: P(a) = sigmoid(w . (z_a - z_b) + beta), z the features' leading principal components, each standardised,
their number chosen on validation; beta a user's bias towards the first position. The weights are sums of blocks,
w = w0 + a_user + b_target + c_user,target, each under its own L2 penalty (a Gaussian prior); leaving blocks out gives
the simpler models. `bt_lowrank` instead holds w = V c with few columns in V.

MLPs: the published one, which concatenates a pair, and a Siamese one, which scores each item. Both share the encoder:
[item features; user vector] through blocks Linear - BatchNorm - activation - Dropout of widths 384, 256, 128, 64, 32.
Deviations from the published training, none of which changes what a step expects to do:

1. The first layer is linear in item and user, so it is applied once per item and once per user and then added up.
2. An answer and its swapped copy are encoded together: the published code encodes the first items of all rows and
   copies in one call and the second items in another, so both calls see the same items. Here one call serves both; the
   running statistics of BatchNorm move as by two calls (momentum 0.19 = 1 - 0.9 ** 2), and copies share dropout masks.
3. Weights are seeded, and the best epoch's weights are kept.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import nn
from torch.nn import functional

from minionerec.contrib.preference.config import PreferenceConfig
from minionerec.contrib.preference.data import TRAIN, VALID, Comparisons
from minionerec.contrib.preference.measures import agreement, cross_entropy
from minionerec.core.artefacts import read_json, read_manifest, write_json
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.log import progress
from minionerec.models.nn.layers import fill_weights

COMPONENTS = (32, 64, 128)
PENALTIES = (100.0, 300.0, 1000.0, 3000.0)
POOLING = (1.0, 0.3, 3.0)
RANKS = (3, 8)
STRENGTHS = (0.03, 0.1, 0.3)
BIAS_PENALTY = 10.0
PRIOR = 2.0
WIDTHS = (384, 256, 128, 64, 32)
USER_WIDTH = 32
DROPOUT = 0.15
"""Share of units dropped after every block."""
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-3
"""Settings of AdamW, on all parameters."""
MIN_DELTA = 1e-3
"""Fall of the validation CE, in nats, that counts as an improvement."""
ARRAYS, ABOUT = "model.safetensors", "model.json"
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.01),
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


class PreferenceModel:
    """Base class of fitted models; optional methods have defaults here.

    Attributes:
        chosen: Settings chosen on validation, and the table of all that were tried.
        settings: Settings of the training.
        parameters: Numbers that were fitted.
        history: Values per epoch, by name.
        best_epoch: Epoch of the weights that were kept, from 0; None without epochs.
        last_epoch: Last epoch trained.
        last: The model after its last epoch; None without epochs.
    """

    chosen: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    parameters: int = 0
    history: Mapping[str, list[float]] = {}
    best_epoch: int | None = None
    last_epoch: int | None = None
    last: "PreferenceModel | None" = None

    def predict(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """P(first item is chosen), float64 (r,).

        Args:
            data: All rows.
            rows: int64 (r,), the rows to predict.
            user: int64 (r,), user of each prediction; -1 for an unseen user.
        """
        raise NotImplementedError

    def predict_swapped(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray | None:
        """P(second item is chosen) when the items are swapped, float64 (r,); None where it is not defined."""
        return self.predict(replace(data, a=data.b, b=data.a), rows, user)

    def adapt(self, data: Comparisons, rows: np.ndarray) -> "PreferenceModel | None":
        """Fit the unseen user to the answers `rows`, int64 (k,); None where the model does not adapt."""
        return None

    def utilities(self, features: np.ndarray) -> np.ndarray | None:
        """Score of each item for each user and target, float64 (U + 1, T, N); None where items have no scores."""
        return None

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are stored; none for a model that is not."""
        return {}


@dataclass
class Lookup(PreferenceModel):
    """A baseline without features: probabilities p, float64 (R,), of every row of the data."""

    p: np.ndarray

    def predict(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """The stored probabilities; the users are those of the rows."""
        p: np.ndarray = self.p[rows]
        return p

    def predict_swapped(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> None:
        """Return None: a lookup has no probabilities of swapped items."""


def majority(data: Comparisons, folds: np.ndarray) -> np.ndarray:
    """P(first item) as the share of first items that this user chose for this target in train, shrunk to one half.

    Returns:
        float64 (R,), for every row.
    """
    train, cell = folds == TRAIN, data.user * len(data.targets) + data.target
    size = len(data.users) * len(data.targets)
    ones, count = np.bincount(cell[train], data.y[train], size), np.bincount(cell[train], minlength=size)
    p: np.ndarray = ((ones + PRIOR / 2) / (count + PRIOR))[cell]
    return p


def agreeing_user(data: Comparisons, folds: np.ndarray) -> np.ndarray:
    """The answer in train of the user who agrees most with this one, as probable as they agree.

    Agreement is counted on train, shrunk to one half. Of the users who answered this pair and target, the one is taken
    whose agreement is farthest from one half (constant disagreement is as good); if there are none, `majority`.

    Returns:
        float64 (R,), for every row.
    """
    train = np.flatnonzero(folds == TRAIN)
    low_first = data.a < data.b
    low = np.where(low_first, data.y, 1 - data.y)  # for the lower-numbered item
    key = data.pair * len(data.targets) + data.target
    share, n = agreement(data.take(train))
    trust = (np.nan_to_num(share, nan=0.5) * n + PRIOR / 2) / (n + PRIOR)
    np.fill_diagonal(trust, 0.5)
    answers = np.full((len(data.users), int(key.max()) + 1), np.nan)
    answers[data.user[train], key[train]] = low[train]
    p, best = majority(data, folds), np.zeros(len(data))
    for other in range(len(data.users)):
        answer, agree = answers[other, key], trust[data.user, other]
        better = ~np.isnan(answer) & (np.abs(agree - 0.5) > best) & (data.user != other)
        first = np.where(low_first, answer, 1 - answer)
        p = np.where(better, np.where(first == 1, agree, 1 - agree), p)
        best = np.where(better, np.abs(agree - 0.5), best)
    return p


def standardisation(data: Comparisons, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, float32 (D,), over the items that occur in these rows."""
    seen = data.features[np.unique([data.a[rows], data.b[rows]])]
    spread = seen.std(axis=0)
    return seen.mean(axis=0), np.where(spread > 1e-8, spread, 1).astype(np.float32)


def principal_components(data: Comparisons, rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean, float32 (D,), and float32 (D, r), from centred features to unit variance, over the items of these rows.

    Args:
        data: Holds the features.
        rows: int64 (r,).
        count: Number of components; fewer where the features have fewer.
    """
    seen = data.features[np.unique([data.a[rows], data.b[rows]])].astype(np.float64)
    mean = seen.mean(axis=0)
    variance, axes = np.linalg.eigh((seen - mean).T @ (seen - mean) / len(seen))
    leading = np.flatnonzero(variance > 1e-10 * variance[-1])[::-1][:count]
    return mean.astype(np.float32), (axes[:, leading] / np.sqrt(variance[leading])).astype(np.float32)


@dataclass
class LinearModel(PreferenceModel):
    """A fitted Bradley-Terry model.

    Attributes:
        mean: float32 (D,), subtracted from the features.
        projection: float32 (D, r), to standardised principal components.
        weights: float64 (U + 1, T, r); the last user is one not seen in training.
        bias: float64 (U + 1,), towards the first position; 0 for the unseen user.
        basis: float64 (r, B), directions in which an unseen user may differ.
        basis_penalty: float64 (), L2 penalty on those differences.
        chosen: Settings chosen on validation, and the table of all that were tried.
    """

    mean: np.ndarray
    projection: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    basis: np.ndarray
    basis_penalty: np.ndarray
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count parameters."""
        self.parameters = self.weights[:-1].size + self.bias[:-1].size

    def _components(self, features: np.ndarray) -> np.ndarray:
        components: np.ndarray = ((features - self.mean) @ self.projection).astype(np.float64)
        return components

    def utilities(self, features: np.ndarray) -> np.ndarray:
        """Score of each item for each user and target, float64 (U + 1, T, N)."""
        scores: np.ndarray = self.weights @ self._components(features).T
        return scores

    def predict(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """See `PreferenceModel.predict`."""
        score, target = self.utilities(data.features), data.target[rows]
        gap = score[user, target, data.a[rows]] - score[user, target, data.b[rows]]
        p: np.ndarray = expit(gap + self.bias[user])
        return p

    def adapt(self, data: Comparisons, rows: np.ndarray) -> "LinearModel | None":
        """See `PreferenceModel.adapt`; only the unseen user's weights change, alike for all targets.

        A model without weights that users share, from which a new one could differ, does not adapt.
        """
        if not self.weights[-1].any():
            return None
        components = self._components(data.features)
        gaps = components[data.a[rows]] - components[data.b[rows]]
        offset = torch.from_numpy((gaps * self.weights[-1][data.target[rows]]).sum(1))
        design, y = torch.from_numpy(gaps @ self.basis), torch.from_numpy(data.y[rows])
        penalty = float(self.basis_penalty)
        step = _minimise(lambda x: _ce(offset + design @ x, y) + penalty / 2 * x @ x, np.zeros(design.shape[1]))
        weights = self.weights.copy()
        weights[-1] += self.basis @ step
        return replace(self, weights=weights)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are stored."""
        names = ("mean", "projection", "weights", "bias", "basis")
        arrays = {name: getattr(self, name).astype(np.float32) for name in names}
        return arrays | {"basis_penalty": self.basis_penalty}


def _ce(logit: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(logit, y, reduction="sum")


def _minimise(
    loss: Callable[[torch.Tensor], torch.Tensor], start: np.ndarray, steps: int = 200, tolerance: float = 1e-7
) -> np.ndarray:
    """The minimum of a loss of one float64 vector by L-BFGS, float64."""

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(x, requires_grad=True)
        height = loss(at)
        (gradient,) = torch.autograd.grad(height, at)
        return height.item(), gradient.numpy()

    options = {"maxiter": steps, "ftol": tolerance}
    minimum: np.ndarray = minimize(value, start, jac=True, method="L-BFGS-B", options=options).x
    return minimum


def _blocks(kind: str, users: int, targets: int) -> dict[str, np.ndarray]:
    """The blocks of a model by name, each float (U * T, K): which of its K weights each user and target has."""
    user, target = np.divmod(np.arange(users * targets), targets)
    blocks = {
        "shared": np.ones((users * targets, 1)),
        "target": np.eye(targets)[target],
        "user": np.eye(users)[user],
        "cell": np.eye(users * targets),
    }
    names = {"bt_global": ["shared", "target"], "bt_user": ["cell"]}.get(kind, list(blocks))
    return {name: blocks[name] for name in names}


def fit_bradley_terry(data: Comparisons, folds: np.ndarray, kind: str, position_bias: bool = True) -> LinearModel:
    """Fit one of the linear models by L-BFGS; its penalties are those of lowest validation CE on a small grid.

    Args:
        data: All rows.
        folds: int8 (R,), train and validation are used.
        kind: "bt_global" (w0 + b: one taste for all), "bt_user" (c alone: users and targets separate), "bt_hier" (all
            blocks) or "bt_lowrank" (w = V c, with free c, from the leading directions of the best "bt_hier").
        position_bias: Give each user a bias towards the first position.
    """
    train, valid = np.flatnonzero(folds == TRAIN), np.flatnonzero(folds == VALID)
    users, targets = len(data.users), len(data.targets)
    # Rows of train as indices of a table of ordered pairs x cells, a cell being a user and a target.
    ordered, number = np.unique(data.a[train] * len(data.items) + data.b[train], return_inverse=True)
    first, second = np.divmod(ordered, len(data.items))
    at = torch.from_numpy((number * users + data.user[train]) * targets + data.target[train])
    user, y = torch.from_numpy(data.user[train]), torch.from_numpy(data.y[train])
    trained = np.unique(data.user[train])
    known = np.where(np.isin(data.user, trained), data.user, -1)[valid]

    def loss(gaps: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Summed CE in nats of gaps (P, r), cells' weights (C, r) and biases (U,), and the penalty of the latter."""
        bias = bias * position_bias
        logit = (gaps @ weights.T.float()).flatten()[at].double() + bias[user]
        return _ce(logit, y) + 0.5 * BIAS_PENALTY * bias @ bias

    def evaluate(
        scaling: tuple[np.ndarray, np.ndarray],
        weights: np.ndarray,
        crowd: np.ndarray,
        bias: np.ndarray,
        basis: np.ndarray,
        settings: dict[str, float],
    ) -> tuple[float, LinearModel]:
        """Validation CE of a fit, and the fit; users without answers in train get `crowd` (T, r)."""
        user_weights = np.broadcast_to(crowd, (users + 1, *crowd.shape)).copy()
        user_weights[trained] = weights.reshape(users, *crowd.shape)[trained]
        user_bias = np.zeros(users + 1)
        user_bias[trained] = bias[trained]
        penalty = np.array(settings["penalty"] * settings.get("pooling", 1.0))
        model = LinearModel(*scaling, user_weights, user_bias, basis, penalty, settings)
        return float(cross_entropy(data.y[valid], model.predict(data, valid, known)).mean()), model

    def gaps_of(scaling: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
        z = (data.features - scaling[0]) @ scaling[1]
        return torch.from_numpy(z[first] - z[second])

    blocks = _blocks(kind, users, targets)
    mixing = torch.from_numpy(np.concatenate(list(blocks.values()), axis=1))  # (C, K)
    sizes = [block.shape[1] for block in blocks.values()]
    fits: list[tuple[float, LinearModel]] = []

    def fit_blocks(components: int, pooling: float) -> None:
        """Fit each penalty, starting at the previous fit."""
        scaling = principal_components(data, train, components)
        gaps, width = gaps_of(scaling), scaling[1].shape[1]
        start = np.zeros(sum(sizes) * width + users)
        for shared in PENALTIES:
            scales = {"shared": 1.0, "target": 2.0, "user": pooling, "cell": 2 * pooling if len(blocks) > 1 else 1.0}
            # The search is over blocks times the root of their penalty, and biases.
            root = 1 / np.sqrt(np.repeat([shared * scales[name] for name in blocks], sizes))[:, None]
            unit = np.concatenate([np.repeat(root, width), np.ones(users)])
            shrink = mixing * torch.from_numpy(root.T)

            def pooled(x: torch.Tensor, shrink: torch.Tensor = shrink) -> torch.Tensor:
                theta = x[:-users].view(-1, width)
                return loss(gaps, shrink @ theta, x[-users:]) + 0.5 * theta.square().sum()

            start = unit * _minimise(pooled, start / unit)
            theta, bias = start[:-users].reshape(-1, width), start[-users:]
            crowd = theta[0] + theta[1 : 1 + targets] if "shared" in blocks else np.zeros((targets, width))
            settings = {"components": width, "penalty": shared, "pooling": pooling}
            fits.append(evaluate(scaling, mixing.numpy() @ theta, crowd, bias, np.eye(width), settings))

    counts = sorted({min(count, data.features.shape[1]) for count in COMPONENTS})
    for components in progress(counts, "choosing components", unit="values"):
        fit_blocks(components, POOLING[0])
    if "user" in blocks:
        components = int(min(fits, key=lambda fit: fit[0])[1].chosen["components"])
        for pooling in POOLING[1:]:
            fit_blocks(components, pooling)
    best = _best(fits)
    if kind != "bt_lowrank":
        return best
    scaling, width = (best.mean, best.projection), best.projection.shape[1]
    left, size, right = np.linalg.svd(best.weights[:-1].reshape(-1, width), full_matrices=False)
    gaps, fits = gaps_of(scaling), []
    tried = list(product(RANKS, STRENGTHS))
    for max_rank, strength in progress(tried, "choosing ranks", unit="values"):
        rank = min(max_rank, len(size))
        c, v = left[:, :rank] * np.sqrt(size[:rank]), right[:rank] * np.sqrt(size[:rank])[:, None]  # (C, B), (B, r)
        penalty = float(strength * best.chosen["penalty"] * np.square(size).sum() / size.sum())

        def low_rank(x: torch.Tensor, rank: int = rank, penalty: float = penalty) -> torch.Tensor:
            c, v, bias = x.split([users * targets * rank, rank * width, users])
            prior: torch.Tensor = 0.5 * penalty * (c @ c + v @ v)
            return loss(gaps, c.view(-1, rank) @ v.view(rank, -1), bias) + prior

        x = _minimise(low_rank, np.concatenate([c.ravel(), v.ravel(), best.bias[:-1]]), 100)
        c, v, bias = x[: c.size].reshape(c.shape), x[c.size : -users].reshape(v.shape), x[-users:]
        crowd = c.reshape(users, targets, -1)[trained].mean(axis=0) @ v
        settings = {"components": width, "rank": max_rank, "strength": strength, "penalty": penalty}
        fits.append(evaluate(scaling, c @ v, crowd, bias, v.T, settings))
    return _best(fits)


def _best(fits: list[tuple[float, LinearModel]]) -> LinearModel:
    """The fit of lowest validation CE, with the table of all that were tried."""
    tried = [{**model.chosen, "validation_ce": ce} for ce, model in fits]
    _, best = min(fits, key=lambda fit: fit[0])
    best.chosen = {**best.chosen, "tried": tried}
    return best


class PairNetwork(nn.Module):
    """Encoder of an item for a user, and a head per target.

    Args:
        width: Dimensions of the item vectors, D.
        users: Number of users, U. User U is an unseen one, with the mean of the vectors of users in train.
        targets: Number of targets, T.
        siamese: Score each item and compare scores, instead of concatenating the pair.
        activation: Name of the activation.
        dropout: Share of units dropped after every block, the last too.
        embedding_std: Standard deviation of the user vectors at the start.
        position_bias: Siamese: a bias of each user towards the first position. Without it P(a,b) + P(b,a) = 1.
    """

    def __init__(
        self,
        width: int,
        users: int,
        targets: int,
        *,
        siamese: bool = False,
        activation: str = "leaky_relu",
        dropout: float = DROPOUT,
        embedding_std: float = 1.0,
        position_bias: bool = False,
    ) -> None:
        super().__init__()
        sizes = (width + USER_WIDTH, *WIDTHS)
        self.width, self.siamese, self.dropout = width, siamese, dropout
        self.activation = _ACTIVATIONS[activation]
        self.first = nn.Linear(*sizes[:2])
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size, momentum=0.19) for size in WIDTHS)
        self.user_vectors = nn.Parameter(torch.randn(users, USER_WIDTH) * embedding_std)
        self.known: torch.Tensor
        self.register_buffer("known", torch.ones(users, dtype=torch.bool))
        self.heads = nn.Linear(WIDTHS[-1] * (1 if siamese else 2), targets, bias=not siamese)
        self.bias = nn.Parameter(torch.zeros(users)) if siamese and position_bias else None

    def encode(self, items: torch.Tensor, item: torch.Tensor, user: torch.Tensor) -> torch.Tensor:
        """Codes float32 (S, 32) of `item` (S,) of the table `items` (N, D), for `user` (S,)."""
        people = torch.cat([self.user_vectors, self.user_vectors[self.known].mean(0, keepdim=True)])
        weight, bias = self.first.weight, self.first.bias
        x = functional.embedding(item, items @ weight[:, : self.width].T)
        x = x + functional.embedding(user, functional.linear(people, weight[:, self.width :], bias))
        for layer, norm in zip([nn.Identity(), *self.layers], self.norms, strict=True):
            x = functional.dropout(self.activation(norm(layer(x))), self.dropout, self.training)
        return x

    def pair_logits(
        self, items: torch.Tensor, a: torch.Tensor, b: torch.Tensor, user: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (C, T) that a wins over b, and, unless the model is Siamese, the same with the items swapped."""
        first, second = self.encode(items, torch.cat([a, b]), torch.cat([user, user])).chunk(2)
        if self.siamese:
            gap = self.heads(first) - self.heads(second)
            if self.bias is not None:
                gap = gap + torch.cat([self.bias, self.bias.new_zeros(1)])[user][:, None]
            return gap, None
        return self.heads(torch.cat([first, second], 1)), self.heads(torch.cat([second, first], 1))


@dataclass
class MlpModel(PreferenceModel):
    """A trained network with the scaling of its features.

    Attributes:
        network: In evaluation mode.
        mean: float32 (D,).
        spread: float32 (D,).
        unit: Whether vectors are normalised to length 1 first.
    """

    network: PairNetwork
    mean: np.ndarray
    spread: np.ndarray
    unit: bool

    def __post_init__(self) -> None:
        """Start with an empty history."""
        self.parameters = sum(value.numel() for value in self.network.parameters())
        self.history = {"train_loss": [], "val_loss": [], "val_accuracy": []}

    def table(self, features: np.ndarray) -> torch.Tensor:
        """The features as inputs of the network, float32 (N, D)."""
        if self.unit:
            features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        return torch.from_numpy(((features - self.mean) / self.spread).astype(np.float32))

    def predict(self, data: Comparisons, rows: np.ndarray, user: np.ndarray) -> np.ndarray:
        """See `PreferenceModel.predict`."""
        user = np.where(user < 0, len(data.users), user)
        key = data.comparison[rows] * (len(data.users) + 1) + user  # one encoding for all targets of a comparison
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        items, out = self.table(data.features), []
        self.network.eval()
        with torch.no_grad():
            for part in np.array_split(first, max(1, len(first) // 8192)):
                columns = (data.a[rows[part]], data.b[rows[part]], user[part])
                logits, _ = self.network.pair_logits(items, *(torch.from_numpy(column) for column in columns))
                out.append(torch.sigmoid(logits).numpy())
        p: np.ndarray = np.concatenate(out)[number, data.target[rows]].astype(np.float64)
        return p

    def utilities(self, features: np.ndarray) -> np.ndarray | None:
        """Score of each item for each user and target, float64 (U + 1, T, N); None for a concatenating network."""
        if not self.network.siamese:
            return None
        items, users = self.table(features), len(self.network.user_vectors) + 1
        self.network.eval()
        with torch.no_grad():
            item = torch.arange(len(items))
            codes = (self.network.encode(items, item, torch.full_like(item, user)) for user in range(users))
            scores: np.ndarray = torch.stack([self.network.heads(code).T for code in codes]).double().numpy()
        return scores

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are stored."""
        state = {f"network.{name}": value.numpy() for name, value in self.network.state_dict().items()}
        return {"mean": self.mean, "spread": self.spread, **state}


def train_mlp(
    data: Comparisons,
    folds: np.ndarray,
    *,
    siamese: bool,
    seed: int,
    published: bool = False,
    activation: str = "leaky_relu",
    scale: str = "standardize",
    embedding_std: float = 0.1,
    position_bias: bool = True,
    batch_size: int = 1024,
    max_epochs: int = 200,
    patience: int = 10,
) -> MlpModel:
    """Train a network until validation stops it; it has its best weights then, and keeps its last.

    Args:
        data: All rows.
        folds: int8 (R,), train and validation are used.
        siamese: Score each item and compare scores, instead of concatenating the pair.
        seed: Seed of the weights, the batches and dropout.
        published: Train as published: raw features, user vectors from N(0, 1), one step per target on all its rows, and
            a stop by the mean of the targets' validation CE in place of the mean over rows.
        activation: Name of the activation.
        scale: Scaling of the features: "none", "standardize" or "l2".
        embedding_std: Standard deviation of the user vectors at the start.
        position_bias: Siamese: a bias of each user towards the first position.
        batch_size: Comparisons per optimiser step, with all targets.
        max_epochs: Most epochs.
        patience: Epochs without improvement before the stop.

    Raises:
        ConfigError: If the validation loss becomes NaN, or a target has fewer than two rows to train on.
    """
    scale, embedding_std = ("none", 1.0) if published else (scale, embedding_std)
    shape: dict[str, Any] = {"siamese": siamese, "activation": activation, "dropout": DROPOUT}
    shape |= {"position_bias": position_bias, "embedding_std": embedding_std}
    settings = shape | {"scale": scale, "learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    settings |= {"batch_size": batch_size, "max_epochs": max_epochs, "patience": patience}
    settings |= {"full_batch": published, "monitor": "macro_target" if published else "pooled"}
    torch.manual_seed(seed)
    train, valid = np.flatnonzero(folds == TRAIN), np.flatnonzero(folds == VALID)
    users, width = len(data.users), data.features.shape[1]
    network = PairNetwork(width, users, len(data.targets), **shape)
    trained = np.unique(data.user[train])
    network.known[:] = torch.from_numpy(np.isin(np.arange(users), trained))
    scaling = standardisation(data, train) if scale == "standardize" else (np.float32(0), np.float32(1))
    mean, spread = (np.zeros(width, dtype=np.float32) + part for part in scaling)
    model = MlpModel(network, mean, spread, scale == "l2")
    model.settings = settings
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    rng, items = np.random.default_rng([seed, 11]), model.table(data.features)
    answers, user = data.take(valid), np.where(np.isin(data.user, trained), data.user, -1)[valid]

    def batches() -> list[np.ndarray]:
        """The rows of each step of one epoch; a comparison's targets stay together."""
        if published:
            return [train[data.target[train] == t] for t in range(len(data.targets))]
        comparisons, number = np.unique(data.comparison[train], return_inverse=True)
        position = rng.permutation(len(comparisons))[number]
        order = np.argsort(position, kind="stable")
        count = max(1, round(len(comparisons) / batch_size))
        borders = np.searchsorted(position[order], np.linspace(0, len(comparisons), count + 1)[1:-1])
        return [train[part] for part in np.split(order, borders)]

    def step(rows: np.ndarray) -> float:
        """Take one step on some rows; return their mean CE in nats before it."""
        _, first, number = np.unique(data.comparison[rows], return_index=True, return_inverse=True)
        parts = (torch.from_numpy(column[rows[first]]) for column in (data.a, data.b, data.user))
        at = (torch.from_numpy(number), torch.from_numpy(data.target[rows]))
        y = torch.from_numpy(data.y[rows]).float()
        logits, swapped = network.pair_logits(items, *parts)
        loss = functional.binary_cross_entropy_with_logits(logits[at], y)
        if swapped is not None:
            loss = (loss + functional.binary_cross_entropy_with_logits(swapped[at], 1 - y)) / 2
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        return float(loss.detach())

    if min(len(rows) for rows in batches()) < 2:
        raise ConfigError("a target has fewer than 2 rows to train on; BatchNorm needs more. Drop it from targets.")
    best_loss, waited, best_state = float("inf"), 0, dict[str, torch.Tensor]()
    for epoch in progress(range(max_epochs), "training", unit="epochs"):
        network.train()
        train_loss = float(np.mean([step(rows) for rows in batches()]))
        p = model.predict(data, valid, user)
        ce = cross_entropy(answers.y, p)
        groups = [ce[answers.target == t].mean() for t in np.unique(answers.target)]
        loss = float(np.mean(groups) if published else ce.mean())
        measured = (train_loss, loss, float(((p > 0.5) == (answers.y == 1)).mean()))
        for values, value in zip(model.history.values(), measured, strict=True):
            values.append(value)
        model.last_epoch = epoch
        if not np.isfinite(loss):
            raise ConfigError(f"validation loss is {loss} after epoch {epoch}. Check the features.")
        waited += 1
        if loss < best_loss - MIN_DELTA:  # smaller gains do not count, however they add up
            best_loss, waited, model.best_epoch = loss, 0, epoch
            best_state = {name: value.detach().clone() for name, value in network.state_dict().items()}
        if waited >= patience:
            break
    model.last = MlpModel(deepcopy(network).eval(), mean, spread, model.unit)
    network.load_state_dict(best_state)
    network.eval()
    return model


def save_model(folder: Path, model: PreferenceModel, users: list[str], targets: list[str]) -> None:
    """Write the arrays of a model, if it has any, with its users and targets."""
    arrays = model.arrays()
    if arrays:
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, folder / ARRAYS)
        about = {"settings": dict(model.settings), "users": users, "targets": targets}
        write_json(folder / ABOUT, about)


def load_model(run: str | Path, name: str) -> tuple[PreferenceModel, list[str], list[str]]:
    """A fitted model of a run, with its users and targets.

    Returns:
        The model (a network in evaluation mode), user ids, target names. An unseen user is user -1 of `predict`, with
        the weights shared by all.

    Raises:
        ArtefactError: If there is no such run, or it has no such model.
    """
    from safetensors.numpy import load_file

    folder = Path(run) / name
    read_manifest(run, PreferenceConfig.kind)
    if not (folder / ARRAYS).is_file():
        raise ArtefactError(
            f"{run}: has no model {name!r} to load. Name one of its `models` that learns from features."
        )
    about = read_json(folder / ABOUT)
    arrays: dict[str, Any] = load_file(folder / ARRAYS)
    users, targets, settings = about["users"], about["targets"], about["settings"]
    if "weights" in arrays:
        return LinearModel(**arrays), users, targets
    same = {key: settings[key] for key in ("siamese", "activation", "position_bias")}
    with torch.device("meta"):
        network = PairNetwork(len(arrays["mean"]), len(users), len(targets), **same)
    state = {key[8:]: torch.from_numpy(value) for key, value in arrays.items() if key.startswith("network.")}
    fill_weights(network, state)
    model = MlpModel(network.eval(), arrays["mean"], arrays["spread"], settings["scale"] == "l2")
    model.settings = settings
    return model, users, targets
