"""The weights of popularity in a catalogue model, by request feature, found on held-out rows after training."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from minionerec.core.log import get_logger, progress
from minionerec.data.contexts import RequestFeature
from minionerec.data.names import UNKNOWN
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.models.nn.context import UNSOLD
from minionerec.training.catalogue.windows import SidWindows, parts_of

logger = get_logger(__name__)

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5)
"""The weights that are tried."""
_ROWS = 256  # rows that are scored at a time


def popularity_logs(windows: SidWindows, sizes: Sequence[int], size: int) -> np.ndarray:
    """Logarithms of how often each SID was a target of training, by code of each request feature.

    Args:
        windows: Training windows, with their codes of request features.
        sizes: Number of codes of each of F features.
        size: Number of SIDs, N.

    Returns:
        float32 (S, N), for each code of each feature, feature after feature; of all targets where it is unknown.
    """
    counts = np.zeros((sum(sizes), size))
    starts = np.cumsum([0, *sizes])
    for part in parts_of(len(windows["labels"])):
        labels, weights, codes = (windows[name][part] for name in ("labels", "weights", "contexts"))
        is_target = labels > 0
        targets, weights, codes = labels[is_target] - 1, weights[is_target], codes[is_target]
        for column, start in enumerate(starts[:-1].tolist()):
            counts[start + UNKNOWN] += np.bincount(targets, weights, size)
            for code in np.unique(codes[:, column][codes[:, column] != UNKNOWN]).tolist():
                having = codes[:, column] == code
                counts[start + code] += np.bincount(targets[having], weights[having], size)
    return np.log(counts + UNSOLD).astype(np.float32)


@torch.no_grad()
def set_popularity(
    model: CatalogueModel,
    windows: SidWindows,
    features: Sequence[RequestFeature],
    weights: Mapping[str, Mapping[str, float]],
) -> None:
    """Give a model the popularity of training targets, with given weights.

    A model without `popularity`, or of more than `SIDS_AT_ONCE` SIDs, stays as it is.

    Args:
        model: A model, changed in place.
        windows: Training windows, with their codes of request features.
        features: The features.
        weights: Feature → name of a code → weight; 0 for those that are not named.
    """
    if model.popularity is not None and not model.by_blocks:
        given = [float(weights.get(of.name, {}).get(value, 0.0)) for of in features for value in of.names]
        logs = popularity_logs(windows, [feature.size for feature in features], model.config.num_sids)
        model.popularity.set(torch.from_numpy(logs), torch.tensor(given))


@torch.inference_mode()
def fit_popularity(
    model: CatalogueModel, windows: SidWindows, heldout: SidWindows, features: Sequence[RequestFeature]
) -> dict[str, dict[str, float]]:
    """Give a trained model popularity, by request feature, with the weights that rank held-out targets best.

    Features are fitted one after another, each with those before it. The weight of a code is the one with the highest
    NDCG@10 of the rows that have it, the smallest of equals; that of unknown codes is found for the first feature, on
    all rows with all codes hidden, and is 0 for the others. Beyond `SIDS_AT_ONCE` SIDs nothing is done.

    Args:
        model: The model, changed in place.
        windows: Training windows, with their codes of request features.
        heldout: Validation rows in the same form.
        features: The features.

    Returns:
        Feature → name of a code → weight.
    """
    if model.popularity is None or model.by_blocks:
        return {}
    popularity = model.popularity
    set_popularity(model, windows, features, {})
    training = model.training
    torch.nn.Module.eval(model)
    last = (heldout["labels"] > 0).argmax(1)
    codes = heldout["contexts"][np.arange(len(last)), last].astype(np.int64)
    gains = _gains(model, 0, heldout, np.full_like(codes, UNKNOWN))
    if gains.shape[1]:
        popularity.weights[UNKNOWN] = WEIGHTS[int(gains.mean(1).argmax())]
    fitted = dict[str, dict[str, float]]()
    for column, feature in enumerate(features):
        start = popularity.starts[column]
        gains = _gains(model, column, heldout, codes)
        for code in range(1, feature.size):
            having = codes[:, column] == code
            if having.any():
                popularity.weights[start + code] = WEIGHTS[int(gains[:, having].mean(1).argmax())]
        weights = popularity.weights[start : start + feature.size].tolist()
        fitted[feature.name] = {name: round(weight, 2) for name, weight in zip(feature.names, weights, strict=True)}
    model.train(training)
    texts = [f"{weight} ({name} {value})" for name, of in fitted.items() for value, weight in of.items()]
    logger.info("Popularity counts with a weight of %s.", ", ".join(texts))
    return fitted


def _gains(model: CatalogueModel, column: int, heldout: SidWindows, codes: np.ndarray) -> np.ndarray:
    """NDCG@10 of each held-out example by each weight of the popularity of one feature: float64 (weights, R).

    Args:
        model: The model, which counts the popularity of the features before this one.
        column: Index of the feature.
        heldout: The examples.
        codes: int64 (R, F), their codes.
    """
    found = np.zeros((len(WEIGHTS), len(codes)))
    assert model.popularity is not None
    own = slice(*model.popularity.starts[column : column + 2])
    kept = model.popularity.weights[own].clone()
    for start in progress(range(0, len(codes), _ROWS), "weighing popularity", unit="parts"):
        part = slice(start, start + _ROWS)
        histories, labels, given = (
            torch.from_numpy(np.array(values[part], dtype=np.int64)).to(model.device)
            for values in (heldout["histories"], heldout["labels"], codes)
        )
        row, slot = newest_slots(histories)
        model.popularity.weights[own] = 0
        towers = model.tower_scores(histories, model.positions(histories, row, slot, contexts=given))
        wanted = labels[row, slot][:, None] - 1
        logs = model.popularity.logs[own][given[:, column]]
        for number, weight in enumerate(WEIGHTS):
            probable = torch.stack([(scores + weight * logs).log_softmax(-1) for scores in towers]).logsumexp(0)
            ranks = (probable > probable.gather(1, wanted)).sum(1).cpu().numpy() + 1
            found[number, part] = ranking_metrics(ranks, (10,))["NDCG@10"]
    model.popularity.weights[own] = kept
    return found
