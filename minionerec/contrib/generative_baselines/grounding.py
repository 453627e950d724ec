"""Grounding: ranking items by the distance of a text's vector to those of the titles (BIGRec, Bao et al. 2023).

Candidates are distinct titles, so items with equal titles share a rank. Distances are computed directly in double
precision, not from products of vectors, so that equal vectors have distance 0.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from minionerec.metrics.ranking import ranking_metrics


def clean_text(text: str) -> str:
    """A title, or generated text, without surrounding quotes and white space; runs of spaces become one.

    Example:
        >>> clean_text(' "Oak table,  small" ')
        'Oak table, small'
    """
    return " ".join(text.split()).strip("\"' ")


def title_distances(titles: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Euclidean distances of texts to titles.

    A title of zeros is as far as the farthest of the others. A text of zeros is at distance 0 from every title.

    Args:
        titles: float (T, D), row t of title t; zeros for empty titles.
        texts: float (B, D).

    Returns:
        float64 (B, T).
    """
    of_texts, of_titles = (torch.from_numpy(np.asarray(part, dtype=np.float64)) for part in (texts, titles))
    distances = torch.cdist(of_texts, of_titles, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    known = titles.any(axis=1)
    if not known.all():
        distances[:, ~known] = distances[:, known].max(axis=1, initial=0.0)[:, None]
    distances[~texts.any(axis=1)] = 0.0
    return distances


def row_min_max(values: np.ndarray) -> np.ndarray:
    """Scale each row to the range from 0 to 1; a constant row becomes 0.

    Args:
        values: float (..., T).

    Returns:
        float64 (..., T).
    """
    values = np.asarray(values, dtype=np.float64)
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    scaled: np.ndarray = (values - low) / np.where(high > low, high - low, 1.0)
    return scaled


def reweight(distances: np.ndarray, weights: np.ndarray, gamma: float) -> np.ndarray:
    """Reweight distances by popularity or another model: row min-max of the distance, times (1 + W)^-gamma.

    The nearest title is at 0 for every gamma, so the first rank never changes. With gamma 0 the order is that of the
    distances.

    Args:
        distances: float64 (B, T).
        weights: float64 (T,) or (B, T), from 0 to 1.
        gamma: The exponent.

    Returns:
        float64 (B, T), the smaller the better; zeros for a row of equal distances.
    """
    reweighted: np.ndarray = row_min_max(distances) * (1.0 + weights) ** -gamma
    return reweighted


def best_titles(scores: np.ndarray, tie_order: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best titles of each row.

    Args:
        scores: float64 (B, T), the smaller the better.
        tie_order: int64 (T,), all titles in the order that breaks ties.
        k: Number of titles.

    Returns:
        int64 (B, K) titles, best first, and their scores, float64 (B, K).
    """
    positions = np.argsort(scores[:, tie_order], axis=1, kind="stable")[:, :k]
    titles = tie_order[positions]
    return titles, np.take_along_axis(scores, titles, axis=1)


def choose_gamma(
    parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], tie_order: np.ndarray, gammas: Sequence[float]
) -> tuple[float, dict[float, float]]:
    """The exponent with the best NDCG@10 by title.

    Args:
        parts: Examples in parts: distances float64 (B, T), weights (T,) or (B, T), and target titles,
            int64 (B,).
        tie_order: int64 (T,), all titles in the order that breaks ties.
        gammas: The values to choose from.

    Returns:
        The best exponent, ties to the smallest, and the NDCG@10 of each.
    """
    ranks: dict[float, list[np.ndarray]] = {gamma: [] for gamma in sorted(gammas)}
    for distances, weights, targets in parts:
        for gamma, gamma_ranks in ranks.items():
            titles, _ = best_titles(reweight(distances, weights, gamma), tie_order, 10)
            hits = titles == targets[:, None]
            gamma_ranks.append(np.where(hits.any(axis=1), 1 + hits.argmax(axis=1), 0))
    ndcg = {
        gamma: float(ranking_metrics(np.concatenate(gamma_ranks), [10])["NDCG@10"].mean())
        for gamma, gamma_ranks in ranks.items()
    }
    return max(ndcg, key=lambda gamma: (ndcg[gamma], -gamma)), ndcg
