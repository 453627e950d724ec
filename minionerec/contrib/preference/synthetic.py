"""Synthetic raters with known choice probabilities, so that every model can be compared with its ceiling.

Items are CLIP-like vectors: a common mean and a spectrum that falls with the rank of the latent dimension, rotated at
random. Utility depends on the first 40 latent dimensions, by a shared taste, a user's, a target's, and a user's for a
target, with a non-linear part. A choice adds noise of which a share `halo` is common to a user's targets on a pair.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtr, roots_hermitenorm

COMPARISONS, FEATURES, TRUTH, UTILITY = "comparisons.parquet", "features.npz", "truth.parquet", "utility.npz"
TARGETS = ("attractive", "smart", "trustworthy")
USER_SHARES = np.array([3701, 4588, 4602, 2812, 148, 299, 40, 25, 17, 12, 8]) / 4602
CEILINGS = (0.60, 0.70, 0.85, 0.82, 0.72, 0.72, 0.70, 0.70, 0.70, 0.70, 0.70)
LATENT = 40
# Variance of the linear utility: shared, user, target, user x target.
TASTES = (0.40, 0.30, 0.10, 0.20)
ONE_TASTE = (0.85, 0.0, 0.15, 0.0)


def make_population(
    kind: str, items: int, width: int, seed: int, halo: float = 0.6, nonlinear: float = 0.15, lapse: float = 0.0
) -> tuple[np.ndarray, np.ndarray, pd.DataFrame, pd.DataFrame]:
    """Draw items, tastes, pairs and answers.

    Args:
        kind: "halo"; "no_halo" (independent noise); "one_taste" (users differ in noise alone); "permuted" (answers
            shuffled over all rows, so that nothing can be learned).
        items: Number of items, and of pairs: each item is in exactly two.
        width: Dimensions of the vectors.
        seed: Seed of everything.
        halo: Share of the noise common to a user's targets on one pair.
        nonlinear: Share of utility's variance that no linear score reaches.
        lapse: Share of random answers.

    Returns:
        Vectors of items, float32 (N, D); each user's and target's true utility, float64 (U, T, N), of unit variance;
        the comparisons: comparison_id, user_id, item_a, item_b and the targets, as `read_comparisons` has them; and
        the truth, per comparison and target: comparison_id, target, `margin` m with P(a) = lapse/2 + (1 - lapse)
        Phi(m), halo and lapse.
    """
    rng = np.random.default_rng([seed, 7])
    halo = 0.0 if kind == "no_halo" else halo
    features, latent = _items(items, width, rng)
    shares = np.sqrt(ONE_TASTE if kind == "one_taste" else TASTES)
    utility = _utility(latent[:, : min(LATENT, width)], shares, nonlinear, rng)
    # A ring of pairs, its start shown to each user.
    ring = rng.permutation(items)
    pairs = np.stack([ring, np.roll(ring, -1)], axis=1)[rng.permutation(items)]
    flip = rng.random(items) < 0.5
    pairs[flip] = pairs[flip, ::-1]
    labelled = np.maximum(4, np.round(USER_SHARES * items).astype(int))
    user = np.repeat(np.arange(len(CEILINGS)), labelled)
    a, b = pairs[np.concatenate([np.arange(count) for count in labelled])].T
    margin = _margins(utility, user, a, b, lapse, rng)  # (C, T)
    shared = rng.normal(0, np.sqrt(halo), (len(margin), 1))
    chosen = margin + shared + rng.normal(0, np.sqrt(1 - halo), margin.shape) > 0
    toss = rng.random(margin.shape) < lapse
    chosen = np.where(toss, rng.random(margin.shape) < 0.5, chosen)
    if kind == "permuted":
        chosen = rng.permutation(chosen.ravel()).reshape(chosen.shape)
        margin, halo = np.zeros_like(margin), 0.0
    order = rng.permutation(len(user))
    names = {"user_id": ("user-{:06d}", user), "item_a": ("item-{}", a), "item_b": ("item-{}", b)}
    comparisons = pd.DataFrame({"comparison_id": [f"c{n}" for n in range(len(user))]})
    comparisons = comparisons.assign(
        **{name: [text.format(n) for n in of[order]] for name, (text, of) in names.items()}
    )
    comparisons = comparisons.assign(**dict(zip(TARGETS, np.where(chosen[order], "a", "b").T, strict=True)))
    truth = comparisons[["comparison_id"]].merge(pd.DataFrame({"target": TARGETS}), how="cross")
    truth = truth.assign(margin=margin[order].ravel(), halo=halo, lapse=lapse)
    return features, utility, comparisons, truth


def write_population(
    folder: Path, features: np.ndarray, utility: np.ndarray, comparisons: pd.DataFrame, truth: pd.DataFrame
) -> None:
    """Write the inputs of training (comparisons.parquet, features.npz) and the truth, which it never reads."""
    comparisons.to_parquet(folder / COMPARISONS)
    np.savez(folder / FEATURES, item_id=np.array([f"item-{n}" for n in range(len(features))]), features=features)
    truth.to_parquet(folder / TRUTH)
    np.savez(folder / UTILITY, utility=utility.astype(np.float32))


def _items(count: int, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Item vectors float32 (N, D) of norm about 10 around a mean of norm 9, and their latent dimensions (N, D)."""
    latent = rng.standard_normal((count, width))
    spread = np.arange(1, width + 1) ** -0.5
    spread *= np.sqrt(19 / np.square(spread).sum())
    rotation, _ = np.linalg.qr(rng.standard_normal((width, width)))
    mean = rng.standard_normal(width)
    mean *= 9 / np.linalg.norm(mean)
    return (mean + (latent * spread) @ rotation.T).astype(np.float32), latent


def _utility(z: np.ndarray, shares: np.ndarray, nonlinear: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the utility of unit variance for each user and target, float64 (U, T, N).

    Args:
        z: float64 (N, L), the latent dimensions that count.
        shares: float64 (4,), weights of the shared taste, the users', the targets' and that of both.
        nonlinear: Share of variance that no linear score reaches.
        rng: Draws the tastes.
    """
    users, targets = len(CEILINGS), len(TARGETS)
    basis = np.column_stack([np.ones(len(z)), z])

    def part(*shape: int) -> np.ndarray:
        linear = z @ rng.standard_normal((*shape, z.shape[1], 1))
        bent = np.tanh(1.5 * z @ rng.standard_normal((z.shape[1], 60)) / np.sqrt(z.shape[1]))
        bent = bent @ rng.standard_normal((*shape, 60, 1))
        # What is left of the non-linear part after its best linear fit.
        bent -= basis @ np.linalg.lstsq(basis, bent.reshape(-1, len(z)).T, rcond=None)[0].T.reshape(*shape, -1, 1)
        linear, bent = (v / v.std(axis=-2, keepdims=True) for v in (linear, bent))
        mixed: np.ndarray = np.sqrt(1 - nonlinear) * linear + np.sqrt(nonlinear) * bent
        return mixed[..., 0]

    utility = shares[0] * part() + shares[1] * part(users, 1) + shares[2] * part(1, targets)
    utility = utility + shares[3] * part(users, targets)
    scaled: np.ndarray = (utility - utility.mean(-1, keepdims=True)) / utility.std(-1, keepdims=True)
    return scaled


def _margins(
    utility: np.ndarray, user: np.ndarray, a: np.ndarray, b: np.ndarray, lapse: float, rng: np.random.Generator
) -> np.ndarray:
    """Margin of the first item, float64 (C, T), scaled so that each user reaches their ceiling."""
    bias = rng.normal(0, 0.1, len(utility))
    gap = utility[user, :, a] - utility[user, :, b]  # (C, T)
    margin: np.ndarray = np.empty_like(gap)

    def excess(slope: float, rows: np.ndarray, number: int) -> float:
        p = probability(slope * gap[rows] + bias[number], lapse)
        return float(np.maximum(p, 1 - p).mean()) - CEILINGS[number]

    for number in range(len(CEILINGS)):
        rows = user == number
        margin[rows] = brentq(excess, 0.0, 200.0, args=(rows, number)) * gap[rows] + bias[number]
    return margin


def probability(margin: np.ndarray, lapse: float) -> np.ndarray:
    """True probability of choosing the first item, given nothing else about the answer."""
    p: np.ndarray = lapse / 2 + (1 - lapse) * ndtr(margin)
    return p


def sibling_probability(margin: np.ndarray, y: np.ndarray, known: np.ndarray, halo: float, lapse: float) -> np.ndarray:
    """Probability of each answer, given the user's known answers to the other targets on the same comparison.

    The ceiling of a model that has seen those answers. The common noise is integrated out by
    Gauss-Hermite quadrature with 40 nodes.

    Args:
        margin: float (C, T).
        y: float (C, T), the answers; NaN where there is none.
        known: bool (C, T), answers that are in train.
        halo: Share of the noise in common.
        lapse: Share of random answers.

    Returns:
        float64 (C, T).
    """
    nodes, weights = roots_hermitenorm(40)
    p = probability((margin[..., None] + np.sqrt(halo) * nodes) / np.sqrt(1 - halo), lapse)  # (C, T, nodes)
    answer = np.where(y[..., None] == 1, p, 1 - p)
    likelihood = np.where((known & ~np.isnan(y))[..., None], answer, 1.0)
    out = np.empty_like(margin)
    for target in range(margin.shape[1]):
        others = np.delete(likelihood, target, axis=1).prod(axis=1) * weights
        out[:, target] = (others * p[:, target]).sum(-1) / others.sum(-1)
    return out
