"""How often the items of a history are chosen again: counted in training windows, used where validation rows gain."""

import numpy as np
import torch

from minionerec.core.log import get_logger, progress
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.training.catalogue.windows import SidWindows, parts_of

logger = get_logger(__name__)

SHIFTS = (0.0, -1.0, -0.5, 0.5, 1.0)
"""What is tried to be added to the logarithms of counted shares; the first of equals is taken."""
_PRIOR = 20.0  # further times that an item was in a history, with the share of all items
_ROWS = 256  # rows that are scored at a time


def repeat_logs(windows: SidWindows, size: int) -> tuple[np.ndarray, float]:
    """In what share of the times that an SID was in a history of training it was chosen, by the weights of the loss.

    Args:
        windows: Training windows.
        size: Number of SIDs, N.

    Returns:
        Logarithms of the shares, float32 (N,), smoothed by 20 times with the share of all SIDs; and that one's.
    """
    there, chosen = np.zeros(size + 1), np.zeros(size + 1)
    for part in parts_of(len(windows["labels"])):
        histories, labels, weights = (np.asarray(windows[name][part]) for name in ("histories", "labels", "weights"))
        for slot in range(histories.shape[1]):
            asked = labels[:, slot] > 0
            seen = np.sort(histories[asked, : slot + 1], axis=1)
            first = np.diff(seen, axis=1, prepend=-1) > 0  # each item once
            there += np.bincount(seen[first], np.repeat(weights[asked, slot], first.sum(1)), size + 1)
            again = (histories[asked, : slot + 1] == labels[asked, slot, None]).any(1)
            chosen += np.bincount(labels[asked, slot][again], weights[asked, slot][again], size + 1)
    there, chosen = there[1:], chosen[1:]
    share = (chosen.sum() + 1) / (there.sum() + size)  # never 0
    logs = np.log((chosen + _PRIOR * share) / (there + _PRIOR)).astype(np.float32)
    return logs, float(np.log(share))


def set_repeats(model: CatalogueModel, windows: SidWindows, shift: float | None) -> None:
    """Give a model what was counted, with a shift; None leaves its own probabilities.

    Args:
        model: A model, changed in place; one without `repeats`, or of more than `SIDS_AT_ONCE` SIDs, stays as it is.
        windows: Training windows.
        shift: What is added to the logarithms.
    """
    if model.repeats is not None and not model.by_blocks:
        logs, prior = repeat_logs(windows, model.config.num_sids)
        model.repeats.set(torch.from_numpy(logs), prior, -np.inf if shift is None else shift)


@torch.inference_mode()
def fit_repeats(model: CatalogueModel, windows: SidWindows, heldout: SidWindows) -> float | None:
    """Give a trained model what was counted, with the shift that ranks held-out targets best.

    Args:
        model: The model, changed in place.
        windows: Training windows.
        heldout: Validation rows in the same form.

    Returns:
        The shift; None where the model's own probabilities rank at least as well, or it has no `repeats`.
    """
    if model.repeats is None or model.by_blocks:
        return None
    set_repeats(model, windows, None)
    training = model.training
    torch.nn.Module.eval(model)
    gains = np.zeros(1 + len(SHIFTS))
    for start in progress(range(0, len(heldout["labels"]), _ROWS), "weighing repeats", unit="parts"):
        part = {
            name: torch.from_numpy(np.array(values[start : start + _ROWS], dtype=np.int64)).to(model.device)
            for name, values in heldout.items()
            if name != "weights"
        }
        row, slot = newest_slots(part["histories"])
        moments = part["moments"][row, slot] if "moments" in part else None
        model.repeats.shift.fill_(-torch.inf)
        own = model.leaf_log_probs(part["histories"], moments)
        wanted = part["labels"][row, slot][:, None] - 1
        for number, shift in enumerate((None, *SHIFTS)):
            probable = own
            if shift is not None:
                model.repeats.shift.fill_(shift)
                probable = model.repeats(own, part["histories"], row, slot)
            ranks = (probable > probable.gather(1, wanted)).sum(1).cpu().numpy() + 1
            gains[number] += ranking_metrics(ranks, (10,))["NDCG@10"].sum()
    best = int(gains.argmax())
    found = (None, *SHIFTS)[best]
    model.repeats.shift.fill_(-torch.inf if found is None else found)
    model.train(training)
    rows = max(1, len(heldout["labels"]))
    logger.info(
        "Repeats as counted: validation NDCG@10 %.4f without, %.4f with a shift of %s.",
        gains[0] / rows,
        gains[1:].max() / rows,
        SHIFTS[int(gains[1:].argmax())],
    )
    return found
