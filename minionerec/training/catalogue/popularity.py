"""The weight of popularity in a catalogue model, by session context, found on held-out rows after training."""

from collections.abc import Mapping

import numpy as np
import torch

from minionerec.core.log import get_logger, progress
from minionerec.data.contexts import SESSION_CONTEXTS, UNKNOWN
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.models.nn.session import UNSOLD
from minionerec.training.catalogue.windows import SidWindows, parts_of

logger = get_logger(__name__)

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5)
"""The weights that are tried."""
_ROWS = 256  # rows that are scored at a time


def popularity_logs(windows: SidWindows, size: int) -> np.ndarray:
    """Logarithms of how often each SID was a target of training, by context.

    Args:
        windows: Training windows, with their session contexts if the model is conditioned on them.
        size: Number of SIDs, N.

    Returns:
        float32 (3, N), in the order of `minionerec.data.contexts.SESSION_CONTEXTS`; all targets where it is unknown.
    """
    found = np.zeros((len(SESSION_CONTEXTS), size))
    for part in parts_of(len(windows["labels"])):
        labels, weights = windows["labels"][part], windows["weights"][part]
        contexts = windows["contexts"][part] if "contexts" in windows else np.full(labels.shape, UNKNOWN)
        for context in range(len(SESSION_CONTEXTS)):
            counted = (labels > 0) & ((contexts == context) | (context == UNKNOWN))
            found[context] += np.bincount(labels[counted] - 1, weights[counted], size)
    return np.log(found + UNSOLD).astype(np.float32)


@torch.no_grad()
def set_popularity(
    model: CatalogueModel,
    windows: SidWindows,
    weights: Mapping[str, float],
) -> None:
    """Give a model the popularity of training targets, with given weights.

    Args:
        model: A model, changed in place; one without `popularity`, or of more than `SIDS_AT_ONCE` SIDs, stays as it is.
        windows: Training windows, with their session contexts if the model is conditioned on them.
        weights: Moment → weight; 0 for those that are not named.
    """
    if model.popularity is not None and not model.by_blocks:
        model.popularity.set(
            torch.from_numpy(popularity_logs(windows, model.config.num_sids)),
            torch.tensor([float(weights.get(name, 0.0)) for name in SESSION_CONTEXTS]),
        )


@torch.inference_mode()
def fit_popularity(
    model: CatalogueModel,
    windows: SidWindows,
    heldout: SidWindows,
) -> dict[str, float]:
    """Give a trained model popularity, by context, with the weights that rank held-out targets best.

    Each weight is the one with the highest NDCG@10 of the rows of its context, the smallest of equals; that of the
    unknown context is found on all rows, with their contexts hidden. Beyond `SIDS_AT_ONCE` SIDs nothing is done.

    Args:
        model: The model, changed in place.
        windows: Training windows, with their session contexts if the model is conditioned on them.
        heldout: Validation rows in the same form.

    Returns:
        Moment → weight.
    """
    if model.popularity is None or model.by_blocks:
        return {}
    popularity = model.popularity
    set_popularity(model, windows, {})
    training = model.training
    torch.nn.Module.eval(model)
    last = (heldout["labels"] > 0).argmax(1)
    unconditioned = _gains(model, popularity.logs, heldout, np.full(len(last), UNKNOWN, dtype=np.int64))
    contexts, conditioned = np.full(len(last), UNKNOWN, dtype=np.int64), unconditioned
    if "contexts" in heldout:
        contexts = heldout["contexts"][np.arange(len(last)), last].astype(np.int64)
        conditioned = _gains(model, popularity.logs, heldout, contexts)
    for context in range(len(SESSION_CONTEXTS)):
        gains = unconditioned if context == UNKNOWN else conditioned[:, contexts == context]
        if gains.shape[1]:
            popularity.weights[context] = WEIGHTS[int(gains.mean(1).argmax())]
    model.train(training)
    found = {name: round(float(weight), 2) for name, weight in zip(SESSION_CONTEXTS, popularity.weights, strict=True)}
    weights = [f"{weight} (session context {name})" for name, weight in found.items()]
    logger.info(
        "Popularity counts with a weight of %s.",
        ", ".join(weights) if "contexts" in heldout else found[SESSION_CONTEXTS[UNKNOWN]],
    )
    return found


def _gains(model: CatalogueModel, logs: torch.Tensor, heldout: SidWindows, contexts: np.ndarray) -> np.ndarray:
    """NDCG@10 of each held-out example by each of the weights of logarithms, float32 (3, N): float64 (weights, R)."""
    found = np.zeros((len(WEIGHTS), len(contexts)))
    for start in progress(range(0, len(contexts), _ROWS), "weighing popularity", unit="parts"):
        part = slice(start, start + _ROWS)
        histories, labels, given = (
            torch.from_numpy(np.array(values[part], dtype=np.int64)).to(model.device)
            for values in (heldout["histories"], heldout["labels"], contexts)
        )
        row, slot = newest_slots(histories)
        towers = model.tower_scores(histories, row, slot, given)
        wanted = labels[row, slot][:, None] - 1
        for number, weight in enumerate(WEIGHTS):
            added = weight * logs[given]
            probable = torch.stack([(scores + added).log_softmax(-1) for scores in towers]).logsumexp(0)
            ranks = (probable > probable.gather(1, wanted)).sum(1).cpu().numpy() + 1
            found[number, part] = ranking_metrics(ranks, (10,))["NDCG@10"]
    return found
