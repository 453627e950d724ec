"""Synthetic raters with known choice probabilities, so that every model can be held against its ceiling.

Items are CLIP-like vectors: a common mean and a spectrum that falls with the rank of the latent dimension, rotated at
random. Utility hangs on the first 40 latent dimensions, by a shared taste, a user's, a target's, and a user's for a
target, with a non-linear part. A choice adds noise of which a share `halo` is common to a user's targets on a pair.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtr, roots_hermitenorm

from minionerec.core.stage import Stage
from minionerec.preference.config import WorldConfig
from minionerec.preference.jobs import standing

COMPARISONS, FEATURES = "comparisons.parquet", "features.npz"
TRUTH, UTILITY = "truth.parquet", "utility.npz"
TARGETS = ("attractive", "smart", "trustworthy")
USER_SHARES = np.array([3701, 4588, 4602, 2812, 148, 299, 40, 25, 17, 12, 8]) / 4602
CEILINGS = (0.60, 0.70, 0.85, 0.82, 0.72, 0.72, 0.70, 0.70, 0.70, 0.70, 0.70)
LATENT = 40
# Variance of the linear utility: shared, user, target, user x target.
TASTES = (0.40, 0.30, 0.10, 0.20)
ONE_TASTE = (0.85, 0.0, 0.15, 0.0)


@dataclass(frozen=True)
class World:
    """One synthetic population.

    Attributes:
        features: float32 (N, D).
        utility: float64 (U, T, N), each user's and target's true utility, of unit variance.
        comparisons: comparison_id, user_id, item_a, item_b and the targets, as the data contract has them.
        truth: per comparison and target: comparison_id, target, `margin` m with P(a) = lapse/2 + (1 - lapse) Phi(m).
        halo: Share of the noise that a pair's targets have in common.
        lapse: Share of answers by tossing a coin.
    """

    features: np.ndarray
    utility: np.ndarray
    comparisons: pd.DataFrame
    truth: pd.DataFrame
    halo: float
    lapse: float


def make_items(count: int, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Item vectors float32 (N, D) of norm about 10 around a mean of norm 9, and their latent dimensions (N, D)."""
    latent = rng.standard_normal((count, width))
    spread = np.arange(1, width + 1) ** -0.5
    spread *= np.sqrt(19 / np.square(spread).sum())
    rotation, _ = np.linalg.qr(rng.standard_normal((width, width)))
    mean = rng.standard_normal(width)
    mean *= 9 / np.linalg.norm(mean)
    return (mean + (latent * spread) @ rotation.T).astype(np.float32), latent


def make_world(kind: str, items: int, width: int, halo: float, nonlinear: float, lapse: float, seed: int) -> World:
    """Draw items, tastes, pairs and choices.

    Args:
        kind: "halo"; "no_halo" (independent noise); "one_taste" (users differ in noise alone); "permuted" (answers
            shuffled over all rows, so that nothing can be learned).
        items: Number of items, and of pairs: each item is in exactly two.
        width: Width of the vectors.
        halo: Share of the noise common to a user's targets on one pair.
        nonlinear: Share of utility's variance that no linear score reaches.
        lapse: Share of answers by tossing a coin.
        seed: Seed of everything.
    """
    rng = np.random.default_rng([seed, 7])
    halo = 0.0 if kind == "no_halo" else halo
    features, latent = make_items(items, width, rng)
    shares = np.sqrt(ONE_TASTE if kind == "one_taste" else TASTES)
    utility = _utility(latent[:, : min(LATENT, width)], shares, nonlinear, rng)
    user, a, b = _pairs(items, rng)
    margin = _margins(utility, user, a, b, lapse, rng)
    chosen = _choices(margin, halo, lapse, rng)
    if kind == "permuted":
        chosen = rng.permutation(chosen.ravel()).reshape(chosen.shape)
        margin = np.zeros_like(margin)
        halo = 0.0
    order = rng.permutation(len(user))
    comparisons = pd.DataFrame({"comparison_id": [f"c{n}" for n in range(len(user))]})
    comparisons["user_id"] = [f"user-{n:06d}" for n in user[order]]
    comparisons["item_a"] = [f"item-{n}" for n in a[order]]
    comparisons["item_b"] = [f"item-{n}" for n in b[order]]
    truth = []
    for number, name in enumerate(TARGETS):
        comparisons[name] = np.where(chosen[order, number], "a", "b")
        columns = {"comparison_id": comparisons["comparison_id"], "target": name, "margin": margin[order, number]}
        truth.append(pd.DataFrame(columns))
    return World(features, utility, comparisons, pd.concat(truth, ignore_index=True), halo, lapse)


def _utility(z: np.ndarray, shares: np.ndarray, nonlinear: float, rng: np.random.Generator) -> np.ndarray:
    """Each user's and target's utility of unit variance, float64 (U, T, N).

    Args:
        z: float64 (N, L), the latent dimensions that count.
        shares: float64 (4,), weights of the shared taste, the users', the targets' and that of both.
        nonlinear: Share of variance that no linear score reaches.
        rng: Draws the tastes.
    """
    users, targets = len(CEILINGS), len(TARGETS)

    def parts(*shape: int) -> np.ndarray:
        linear = z @ rng.standard_normal((*shape, z.shape[1], 1))
        bent = np.tanh(1.5 * z @ rng.standard_normal((z.shape[1], 60)) / np.sqrt(z.shape[1]))
        bent = bent @ rng.standard_normal((*shape, 60, 1))
        # What is left of the bent part after its best linear fit.
        basis = np.column_stack([np.ones(len(z)), z])
        bent -= basis @ np.linalg.lstsq(basis, bent.reshape(-1, len(z)).T, rcond=None)[0].T.reshape(*shape, -1, 1)
        linear, bent = (v / v.std(axis=-2, keepdims=True) for v in (linear, bent))
        mixed: np.ndarray = np.sqrt(1 - nonlinear) * linear + np.sqrt(nonlinear) * bent
        return mixed[..., 0]

    utility = shares[0] * parts() + shares[1] * parts(users, 1) + shares[2] * parts(1, targets)
    utility = utility + shares[3] * parts(users, targets)
    scaled: np.ndarray = (utility - utility.mean(-1, keepdims=True)) / utility.std(-1, keepdims=True)
    return scaled


def _pairs(items: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """User, first item and second item of each comparison, int64 (C,): a ring of pairs, its start shown to each."""
    ring = rng.permutation(items)
    pairs = np.stack([ring, np.roll(ring, -1)], axis=1)[rng.permutation(items)]
    flip = rng.random(items) < 0.5
    pairs[flip] = pairs[flip, ::-1]
    labelled = np.maximum(4, np.round(USER_SHARES * items).astype(int))
    user = np.repeat(np.arange(len(CEILINGS)), labelled)
    a, b = pairs[np.concatenate([np.arange(count) for count in labelled])].T
    return user, a, b


def _margins(
    utility: np.ndarray, user: np.ndarray, a: np.ndarray, b: np.ndarray, lapse: float, rng: np.random.Generator
) -> np.ndarray:
    """Margin of the first item, float64 (C, T), as steep as gives each user that user's ceiling."""
    bias = rng.normal(0, 0.1, len(utility))
    gap = utility[user, :, a] - utility[user, :, b]  # (C, T)
    margin: np.ndarray = np.empty_like(gap)
    for number, ceiling in enumerate(CEILINGS):
        rows = user == number
        slope = brentq(lambda s, r=rows, n=number, c=ceiling: _ceiling(s * gap[r] + bias[n], lapse) - c, 0.0, 200.0)
        margin[rows] = slope * gap[rows] + bias[number]
    return margin


def _choices(margin: np.ndarray, halo: float, lapse: float, rng: np.random.Generator) -> np.ndarray:
    """Whether the first item is chosen, bool (C, T): margin and noise, part of it common to a comparison's targets."""
    shared = rng.normal(0, np.sqrt(halo), (len(margin), 1))
    chosen = margin + shared + rng.normal(0, np.sqrt(1 - halo), margin.shape) > 0
    toss = rng.random(margin.shape) < lapse
    drawn: np.ndarray = np.where(toss, rng.random(margin.shape) < 0.5, chosen)
    return drawn


def _ceiling(margin: np.ndarray, lapse: float) -> float:
    p = probability(margin, lapse)
    return float(np.maximum(p, 1 - p).mean())


def probability(margin: np.ndarray, lapse: float) -> np.ndarray:
    """True probability of choosing the first item, before anything else is known about the answer."""
    p: np.ndarray = lapse / 2 + (1 - lapse) * ndtr(margin)
    return p


def sibling_probability(margin: np.ndarray, y: np.ndarray, known: np.ndarray, halo: float, lapse: float) -> np.ndarray:
    """Probability of each answer, given the user's known answers to the other targets on the same comparison.

    What a model can reach at most that has looked up those answers. The common noise is integrated out by
    Gauss-Hermite quadrature with 40 nodes.

    Args:
        margin: float (C, T).
        y: float (C, T), the answers; NaN where there is none.
        known: bool (C, T), answers that lie in train.
        halo: Share of the noise in common.
        lapse: Share of answers by tossing a coin.

    Returns:
        float64 (C, T).
    """
    nodes, weights = roots_hermitenorm(40)
    shifted = (margin[..., None] + np.sqrt(halo) * nodes) / np.sqrt(1 - halo)
    p = probability(shifted, lapse)  # (C, T, nodes)
    answer = np.where(y[..., None] == 1, p, 1 - p)
    likelihood = np.where((known & ~np.isnan(y))[..., None], answer, 1.0)
    out = np.empty_like(margin)
    for target in range(margin.shape[1]):
        others = np.delete(likelihood, target, axis=1).prod(axis=1) * weights
        out[:, target] = (others * p[:, target]).sum(-1) / others.sum(-1)
    return out


def write_world(config: WorldConfig) -> Path:
    """Write a world as an artefact: what a trainer may read, and the truth, which it never opens.

    Files: comparisons.parquet and features.npz (the data contract); truth.parquet and utility.npz.

    Returns:
        Its directory; one that is up to date is left as it is.
    """
    stage = Stage(config)
    if standing(stage) is not None:
        return stage.output
    with stage.work() as work:
        world = make_world(
            config.world, config.items, config.width, config.halo, config.nonlinear, config.lapse, config.seed
        )
        with work.finish(seed=config.seed, counts={"comparisons": len(world.comparisons)}) as place:
            world.comparisons.to_parquet(place / COMPARISONS)
            items = np.array([f"item-{n}" for n in range(len(world.features))])
            np.savez(place / FEATURES, item_id=items, features=world.features)
            world.truth.assign(halo=world.halo, lapse=world.lapse).to_parquet(place / TRUTH)
            np.savez(place / UTILITY, utility=world.utility.astype(np.float32))
    return stage.output
