"""How much popularity at the asked moment counts: found on held-out rows when training is over."""

from collections.abc import Mapping

import numpy as np
import torch

from minionerec.backbone.catalogue import CatalogueModel
from minionerec.backbone.catalogue.blocks import newest_slots
from minionerec.core.log import get_logger, progress
from minionerec.data.moments import MOMENTS, UNKNOWN
from minionerec.metrics.ranking import ranking_metrics
from minionerec.nn.moments import UNSOLD
from minionerec.training.catalogue.shards import parts_of
from minionerec.training.catalogue.windows import Windows

logger = get_logger(__name__)

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5)
"""The weights that are tried."""
_ROWS = 256  # rows that are scored at a time


def popularity_logs(windows: Windows, size: int) -> np.ndarray:
    """Logarithms of how often each SID was a target, by moment, newer ones counting as the loss counts them.

    Args:
        windows: Training windows, with their moments.
        size: Number of SIDs, N.

    Returns:
        float32 (3, N), in the order of `minionerec.data.moments.MOMENTS`; all targets where the moment is unknown.
    """
    found = np.zeros((len(MOMENTS), size))
    for part in parts_of(len(windows["labels"])):
        labels, weights, moments = (windows[name][part] for name in ("labels", "weights", "moments"))
        for moment in range(len(MOMENTS)):
            counted = (labels > 0) & ((moments == moment) | (moment == UNKNOWN))
            found[moment] += np.bincount(labels[counted] - 1, weights[counted], size)
    return np.log(found + UNSOLD).astype(np.float32)


@torch.no_grad()
def set_popularity(model: CatalogueModel, windows: Windows, weights: Mapping[str, float]) -> None:
    """Give a model the popularity of training targets, with given weights.

    Args:
        model: A model, changed in place; one without `popularity`, or of more than `SIDS_AT_ONCE` SIDs, stays as it is.
        windows: Training windows, with their moments.
        weights: Moment → weight; 0 for those that are not named.
    """
    if model.popularity is not None and not model.by_blocks:
        model.popularity.set(
            torch.from_numpy(popularity_logs(windows, model.config.num_sids)),
            torch.tensor([float(weights.get(name, 0.0)) for name in MOMENTS]),
        )


@torch.inference_mode()
def fit_popularity(model: CatalogueModel, windows: Windows, heldout: Windows) -> dict[str, float]:
    """Give a trained model popularity, by moment, with the weights that rank held-out targets best.

    Each weight is the one with the highest NDCG@10 of the rows of its moment, the smallest of equals; that of the
    unknown moment is found on all rows, with their moments hidden. Beyond `SIDS_AT_ONCE` SIDs nothing is done.

    Args:
        model: The model, changed in place.
        windows: Training windows, with their moments.
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
    moments = heldout["moments"][np.arange(len(last)), last].astype(np.int64)
    told, untold = (
        _gains(model, popularity.logs, heldout, asked) for asked in (moments, np.full_like(moments, UNKNOWN))
    )
    for moment in range(len(MOMENTS)):
        gains = untold if moment == UNKNOWN else told[:, moments == moment]
        if gains.shape[1]:
            popularity.weights[moment] = WEIGHTS[int(gains.mean(1).argmax())]
    model.train(training)
    found = {name: round(float(weight), 2) for name, weight in zip(MOMENTS, popularity.weights, strict=True)}
    logger.info("Popularity counts with a weight of %s.", ", ".join(f"{found[name]} ({name})" for name in MOMENTS))
    return found


def _gains(model: CatalogueModel, logs: torch.Tensor, heldout: Windows, moments: np.ndarray) -> np.ndarray:
    """NDCG@10 of each held-out row by each of the weights of logarithms, float32 (3, N): float64 (weights, R)."""
    found = np.zeros((len(WEIGHTS), len(moments)))
    for start in progress(range(0, len(moments), _ROWS), "weighing popularity", unit="parts"):
        part = slice(start, start + _ROWS)
        histories, labels, asked = (
            torch.from_numpy(np.array(values[part], dtype=np.int64)).to(model.device)
            for values in (heldout["histories"], heldout["labels"], moments)
        )
        row, slot = newest_slots(histories)
        towers = model.tower_scores(histories, row, slot, asked)
        wanted = labels[row, slot][:, None] - 1
        for number, weight in enumerate(WEIGHTS):
            added = weight * logs[asked]
            probable = torch.stack([(scores + added).log_softmax(-1) for scores in towers]).logsumexp(0)
            ranks = (probable > probable.gather(1, wanted)).sum(1).cpu().numpy() + 1
            found[number, part] = ranking_metrics(ranks, (10,))["NDCG@10"]
    return found
