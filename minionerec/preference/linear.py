"""Bradley-Terry models on item features, with partial pooling: convex, fitted by L-BFGS, the same every time.

A user's answer to a target is modelled as P(a) = sigmoid(w . (z_a - z_b) + beta), z the standardised features. The
weights are sums of blocks, w = w0 + a_user + b_target + c_user,target, each under its own L2 penalty (a Gaussian
prior); leaving blocks out gives the simpler models. `bt_lowrank` instead holds w = V c with few columns in V.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from minionerec.preference.data import Comparisons
from minionerec.preference.measures import cross_entropy
from minionerec.preference.model import About, FeatureModel
from minionerec.preference.splits import TRAIN, VALID

PENALTIES = (300.0, 1000.0, 3000.0, 10000.0)
POOLING = (0.3, 1.0, 3.0)
RANKS = (3, 8)
STRENGTHS = (0.03, 0.1, 0.3)
_BIAS_PENALTY = 10.0


@dataclass(frozen=True)
class LinearModel(FeatureModel):
    """Fitted weights.

    Attributes:
        mean: float32 (D,), subtracted from the features.
        scale: float32 (D,), by which they are then divided.
        weights: float64 (U + 1, T, D); the last user stands for a person not seen in training.
        bias: float64 (U + 1,), the pull of the first place; 0 for the unseen.
        basis: float64 (D, B), directions in which an unseen user may differ.
        basis_penalty: L2 penalty on those differences.
        chosen: Settings chosen on validation, and the table of what was tried.
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    basis: np.ndarray
    basis_penalty: float
    chosen: dict[str, Any] = field(default_factory=dict)

    @property
    def adapts(self) -> bool:
        """Whether a part is shared by all, from which an unseen user may differ."""
        return bool(self.weights[-1].any())

    def utilities(self, features: np.ndarray) -> np.ndarray:
        """Score of each item for each user and target, float64 (U + 1, T, N)."""
        scores: np.ndarray = self.weights @ ((features - self.mean) / self.scale).T.astype(np.float64)
        return scores

    def predict(self, data: Comparisons, user: np.ndarray | None = None, swap: bool = False) -> np.ndarray:
        """P(first item is chosen) for every row, float64 (R,); see `FeatureModel.predict`."""
        user = data.user if user is None else user
        score = self.utilities(data.features)
        gap = score[user, data.target, data.a] - score[user, data.target, data.b]
        p: np.ndarray = expit((-gap if swap else gap) + self.bias[user])
        return p

    def adapt(self, data: Comparisons, rows: np.ndarray) -> "LinearModel":
        """This model with the unseen user's weights fitted to a few answers, all else frozen.

        Args:
            data: Holds the answers.
            rows: int64 (k,), rows of one new user.
        """
        z = ((data.features - self.mean) / self.scale).astype(np.float64)
        gap = z[data.a[rows]] - z[data.b[rows]]
        offset = np.einsum("rd,rd->r", gap, self.weights[-1][data.target[rows]])
        design, y = gap @ self.basis, data.y[rows]

        def loss(step: np.ndarray) -> tuple[float, np.ndarray]:
            logit = offset + design @ step
            value = np.logaddexp(0, logit) @ np.ones(len(y)) - y @ logit + self.basis_penalty / 2 * step @ step
            return value, design.T @ (expit(logit) - y) + self.basis_penalty * step

        step = minimize(loss, np.zeros(self.basis.shape[1]), jac=True, method="L-BFGS-B").x
        weights = self.weights.copy()
        weights[-1] += self.basis @ step
        return LinearModel(self.mean, self.scale, weights, self.bias, self.basis, self.basis_penalty, self.chosen)

    def at_last_epoch(self) -> None:
        """None: there are no epochs."""

    def about(self) -> About:
        """Its numbers without those of the unseen user, and what was chosen."""
        return About(
            parameters=self.weights[:-1].size + self.bias[:-1].size,
            chosen=self.chosen,
            basis_penalty=self.basis_penalty,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored."""
        names = ("mean", "scale", "weights", "bias", "basis")
        return {name: np.ascontiguousarray(getattr(self, name), dtype=np.float32) for name in names}


@dataclass(frozen=True)
class _Problem:
    """Rows of one fold set in the shape the optimiser wants: pairs x cells, a cell being a user and a target."""

    gaps: np.ndarray  # float32 (P, D), z_a - z_b of each ordered pair
    at: np.ndarray  # (R,) place of each row in the flat (P, C) table
    user: np.ndarray
    y: np.ndarray
    shape: tuple[int, int]
    users: int

    def loss(self, weights: np.ndarray, bias: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Summed CE in nats, and its gradients to the cells' weights (C, D) and the users' biases (U,)."""
        logit = (self.gaps @ weights.T.astype(np.float32)).ravel()[self.at].astype(np.float64) + bias[self.user]
        residual = expit(logit) - self.y
        table = np.bincount(self.at, residual, minlength=self.shape[0] * self.shape[1]).reshape(self.shape)
        gradient = (table.T.astype(np.float32) @ self.gaps).astype(np.float64)
        return (
            float(np.logaddexp(0, logit).sum() - self.y @ logit),
            gradient,
            np.bincount(self.user, residual, minlength=len(bias)),
        )


def standardisation(data: Comparisons, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread, float32 (D,), over the items that occur in these rows."""
    seen = data.features[np.unique([data.a[rows], data.b[rows]])]
    spread = seen.std(axis=0)
    return seen.mean(axis=0), np.where(spread > 1e-8, spread, 1).astype(np.float32)


def _problem(data: Comparisons, rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> _Problem:
    z = (data.features - mean) / scale
    cells = len(data.users) * len(data.targets)
    ordered, place = np.unique(data.a[rows] * len(z) + data.b[rows], return_inverse=True)
    gaps = z[ordered // len(z)] - z[ordered % len(z)]
    cell = data.user[rows] * len(data.targets) + data.target[rows]
    return _Problem(gaps, place * cells + cell, data.user[rows], data.y[rows], (len(gaps), cells), len(data.users))


def _minimise(loss: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, steps: int) -> np.ndarray:
    found: np.ndarray = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "ftol": 1e-7}).x
    return found


def _fit_blocks(
    problem: _Problem, mixing: np.ndarray, penalty: np.ndarray, biased: bool, start: np.ndarray | None
) -> np.ndarray:
    """Minimise CE + penalty / 2 * |block|^2 over blocks (K, D), w = mixing (C, K) @ blocks, and the biases.

    Returns:
        float64, blocks and biases in one vector; blocks are divided by the root of their penalty for the search.
    """
    width, users = problem.gaps.shape[1], problem.users
    root = 1 / np.sqrt(penalty)[:, None]

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        blocks, bias = x[: len(penalty) * width].reshape(-1, width), x[len(penalty) * width :]
        value, weights, biases = problem.loss(mixing @ (root * blocks), bias)
        value += 0.5 * (np.square(blocks).sum() + _BIAS_PENALTY * bias @ bias)
        gradient = root * (mixing.T @ weights) + blocks
        biases = (biases + _BIAS_PENALTY * bias) * biased
        return value, np.concatenate([gradient.ravel(), biases])

    first = np.zeros(len(penalty) * width + users)
    if start is not None:
        first[:] = start
        first[: len(penalty) * width] = (start[: len(penalty) * width].reshape(-1, width) / root).ravel()
    x = _minimise(loss, first, 200)
    x[: len(penalty) * width] = (root * x[: len(penalty) * width].reshape(-1, width)).ravel()
    return x


class _Fits:
    """Fits of one grid, each measured on validation.

    Args:
        data: All rows.
        folds: int8 (R,).
        mean: float32 (D,).
        scale: float32 (D,).
    """

    def __init__(self, data: Comparisons, folds: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> None:
        self.data, self.mean, self.scale = data, mean, scale
        self.trained = np.unique(data.user[folds == TRAIN])
        self._valid = folds == VALID
        self._user = np.where(np.isin(data.user, self.trained), data.user, -1)
        self._models: list[LinearModel] = []
        self._tried: list[dict[str, Any]] = []

    def keep(
        self,
        weights: np.ndarray,
        crowd: np.ndarray,
        bias: np.ndarray,
        basis: np.ndarray,
        penalty: float,
        settings: dict[str, Any],
    ) -> None:
        """Take in one fit.

        Args:
            weights: float64 (U * T, D), one row a user and target.
            crowd: float64 (T, D), for users without answers in train.
            bias: float64 (U,).
            basis: float64 (D, B), directions in which an unseen user may differ.
            penalty: L2 penalty on those differences.
            settings: What was tried.
        """
        users, targets, width = len(self.data.users), len(self.data.targets), len(self.mean)
        every = np.broadcast_to(crowd, (users + 1, targets, width)).copy()
        every[self.trained] = weights.reshape(users, targets, width)[self.trained]
        pull = np.zeros(users + 1)
        pull[self.trained] = bias[self.trained]
        model = LinearModel(self.mean, self.scale, every, pull, basis, penalty, settings)
        p = model.predict(self.data, self._user)
        ce = float(cross_entropy(self.data.y[self._valid], p[self._valid]).mean())
        self._models.append(model)
        self._tried.append({**settings, "validation_ce": ce})

    def best(self) -> LinearModel:
        """The fit of least validation CE, with the table of what was tried."""
        best = self._models[int(np.argmin([row["validation_ce"] for row in self._tried]))]
        best.chosen["tried"] = self._tried
        return best


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
    """Fit one of the linear models; its penalties are those of least validation CE on a small grid.

    Args:
        data: All rows.
        folds: int8 (R,), train and validation are used.
        kind: "bt_global" (w0 + b: one taste for all), "bt_user" (c alone: every user and target apart), "bt_hier" (all
            blocks) or "bt_lowrank" (w = V c, with free c).
        position_bias: Give each user a pull towards the first place.
    """
    train = np.flatnonzero(folds == TRAIN)
    mean, scale = standardisation(data, train)
    problem = _problem(data, train, mean, scale)
    users, targets, width = len(data.users), len(data.targets), data.features.shape[1]
    blocks = _blocks(kind, users, targets)
    mixing = np.concatenate(list(blocks.values()), axis=1)
    fits = _Fits(data, folds, mean, scale)
    x: np.ndarray | None = None
    for shared, pooling in product(PENALTIES, POOLING if "user" in blocks else (1.0,)):
        scales = {"shared": 1.0, "target": 2.0, "user": pooling, "cell": 2 * pooling if len(blocks) > 1 else 1.0}
        penalty = np.repeat([shared * scales[name] for name in blocks], [block.shape[1] for block in blocks.values()])
        x = _fit_blocks(problem, mixing, penalty, position_bias, x)
        theta, bias = x[:-users].reshape(-1, width), x[-users:]
        crowd = theta[0] + theta[1 : 1 + targets] if "shared" in blocks else np.zeros((targets, width))
        settings = {"penalty": shared, "pooling": pooling}
        fits.keep(mixing @ theta, crowd, bias, np.eye(width), shared * pooling, settings)
    if kind != "bt_lowrank":
        return fits.best()
    parent, fits = fits.best(), _Fits(data, folds, mean, scale)
    for rank, strength in product(RANKS, STRENGTHS):
        _fit_lowrank(problem, parent, rank, strength, position_bias, fits)
    return fits.best()


def _fit_lowrank(problem: _Problem, parent: LinearModel, rank: int, strength: float, biased: bool, fits: _Fits) -> None:
    """From the leading directions of a pooled fit, search on over V (D, B) and all c (C, B) at once."""
    users, targets, width = parent.weights[:-1].shape[0], *parent.weights.shape[1:]
    left, size, right = np.linalg.svd(parent.weights[:-1].reshape(-1, width), full_matrices=False)
    rank = min(rank, len(size))
    root = np.sqrt(size[:rank])
    mine, basis = left[:, :rank] * root, right[:rank] * root[:, None]  # (C, B), (B, D)
    penalty = float(strength * parent.chosen["penalty"] * np.square(size).sum() / size.sum())

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        c, v = x[: mine.size].reshape(mine.shape), x[mine.size : mine.size + basis.size].reshape(basis.shape)
        bias = x[mine.size + basis.size :]
        value, weights, biases = problem.loss(c @ v, bias)
        value += 0.5 * penalty * (np.square(c).sum() + np.square(v).sum()) + 0.5 * _BIAS_PENALTY * bias @ bias
        parts = (weights @ v.T + penalty * c, c.T @ weights + penalty * v, (biases + _BIAS_PENALTY * bias) * biased)
        return value, np.concatenate([part.ravel() for part in parts])

    x = _minimise(loss, np.concatenate([mine.ravel(), basis.ravel(), parent.bias[:-1]]), 100)
    c, v = x[: mine.size].reshape(mine.shape), x[mine.size : mine.size + basis.size].reshape(basis.shape)
    of_user = c.reshape(users, targets, -1)
    crowd = of_user[fits.trained].mean(axis=0) @ v
    settings = {"rank": rank, "strength": strength, "penalty": penalty}
    fits.keep(c @ v, crowd, x[mine.size + basis.size :], v.T, penalty, settings)
