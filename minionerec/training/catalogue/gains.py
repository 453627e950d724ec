"""What each of its inputs is worth to a trained catalogue model: columns of items, request features and events."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from minionerec.core.log import progress
from minionerec.data.names import UNKNOWN
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.models.decoding.branches import evaluating, pad_left
from minionerec.training.catalogue.windows import SidWindows

_ROWS = 256  # examples that are scored together
EVENT = "event"
"""Name of the events of history items among the inputs."""
MOST_EXAMPLES = 5_000
"""Validation examples that are read, at most."""


def target_ndcg(model: CatalogueModel, heldout: SidWindows) -> np.ndarray:
    """NDCG@10 of each held-out example among all SIDs: float64 (R,).

    Args:
        model: The model.
        heldout: Windows with a label at the newest item alone (`minionerec.training.catalogue.windows`), with `older`
            if its experts are to know what is before the windows.
    """
    ranks = []
    for begin in range(0, len(heldout["labels"]), _ROWS):
        part = slice(begin, begin + _ROWS)
        given = {
            name: torch.from_numpy(np.array(heldout[name][part], dtype=np.int64)).to(model.device)
            for name in ("histories", "labels", "contexts", "events")
            if name in heldout
        }
        row, slot = newest_slots(given["histories"])
        contexts = given["contexts"][row, slot] if "contexts" in given else None
        older = pad_left(heldout["older"][part].tolist(), model.device)[0] if "older" in heldout else None
        scores = model.leaf_log_probs(given["histories"], contexts, older, given.get("events"))
        target = scores.gather(1, given["labels"][row, slot, None] - 1)
        ranks.append((scores > target).sum(1).cpu().numpy() + 1)
    gains: np.ndarray = np.asarray(ranking_metrics(np.concatenate(ranks), (10,))["NDCG@10"])
    return gains


@torch.inference_mode()
def input_gains(model: CatalogueModel, heldout: SidWindows, features: Sequence[str] = ()) -> dict[str, Any]:
    """Measure a model with all its inputs, and with each hidden.

    Of a hidden column of the items every SID has the mean; a hidden request feature and hidden events are unknown.

    Args:
        model: A trained model; not modified.
        heldout: Validation examples, as of `target_ndcg`; the first `MOST_EXAMPLES` are read.
        features: Names of the request features in `heldout`.

    Returns:
        "examples", their number, "NDCG@10" with all inputs, and "without", the name of each input to NDCG@10 without
        it; empty where the model has no such input, or scores its SIDs block by block.
    """
    columns = model.item_columns()
    if model.by_blocks or not len(heldout["labels"]) or not (columns or features or "events" in heldout):
        return {}
    heldout = {name: values[:MOST_EXAMPLES] for name, values in heldout.items()}
    begins = model.texts_width + np.cumsum([0, *(column.width for column in columns)])
    whole, without = model.text.clone() if columns else torch.empty(0), {}
    for tower in model.each_tower():
        tower.thaw()

    def measure(examples: SidWindows) -> float:
        return round(float(target_ndcg(model, examples).mean()), 4)

    with evaluating(model):
        everything = measure(heldout)
        for column, begin in zip(progress(columns, "hiding columns", unit="columns"), begins, strict=False):
            hidden = slice(begin, begin + column.width)
            model.text[:, hidden] = whole[:, hidden].mean(0)
            without[column.name] = measure(heldout)
            model.text.copy_(whole)
        for number, name in enumerate(features):
            contexts = np.array(heldout["contexts"])
            contexts[..., number] = UNKNOWN
            without[name] = measure({**heldout, "contexts": contexts})
        if "events" in heldout:
            without[EVENT] = measure({**heldout, "events": np.zeros_like(heldout["events"])})
    return {"examples": len(heldout["labels"]), "NDCG@10": everything, "without": without}
