"""What a trained recommender says of validation and test rows: ranks, metrics, lists."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from minionerec.data.moments import UNKNOWN
from minionerec.data.protocols import Protocol
from minionerec.data.sequences import Split
from minionerec.metrics.predictions import SESSION_CONTEXT, Predictions
from minionerec.metrics.ranked import Ranked
from minionerec.metrics.ranking import estimate, ranking_metrics
from minionerec.sequential.model import SequentialModel
from minionerec.sequential.rank import rank_rows, top_items
from minionerec.sid.table import SidTable

MEASURED = ("valid", "test")


def rank_splits(
    model: SequentialModel, split: Split, seen: str, device: torch.device, table: SidTable | None = None
) -> dict[str, Ranked]:
    """Where the targets of validation and test rows stand in the ranking of the whole catalogue.

    Args:
        model: The model.
        split: The rows.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        table: SIDs of the items, for ranks among distinct SIDs too.
    """
    numbers = None if table is None else table.sid_numbers
    return {
        name: Ranked(
            users=split.users(name),
            targets=split.targets(name),
            ranks=rank_rows(model, split.rows(name), seen, device, numbers),
            width=None,
            given=given_to(model, split),
        )
        for name in MEASURED
    }


def given_to(model: SequentialModel, split: Split) -> tuple[str, ...]:
    """What a model is given of rows beyond their histories: the session context of some row, where it reads that."""
    known = (split.rows(name).moments for name in MEASURED)
    told = any(moments is not None and bool((moments != UNKNOWN).any()) for moments in known)
    return (SESSION_CONTEXT,) if told and model.moment_states is not None else ()


def measure(ranked: Mapping[str, Ranked], protocol: Protocol, resamples: int) -> dict[str, Any]:
    """Metrics of several splits: split → level → metric → [mean, low, high], of 95 percent intervals by user."""
    metrics: dict[str, Any] = {}
    for name, found in ranked.items():
        metrics[name] = {}
        for level, ranks in found.ranks.items():
            values = ranking_metrics(ranks, protocol.ks, every_mrr=protocol.mrr)
            estimates = estimate(values, 0, resamples, found.users)
            metrics[name][level] = {metric: [e.mean, e.low, e.high] for metric, e in estimates.items()}
    return metrics


def list_predictions(
    model: SequentialModel,
    split: Split,
    name: str,
    seen: str,
    device: torch.device,
    length: int,
    table: SidTable | None = None,
) -> Predictions:
    """Ranked lists in the form that all recommenders share.

    Items stand in the order of their own scores, so items that share an SID need not follow one another.

    Args:
        model: The model.
        split: The rows.
        name: Which of its splits.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        length: Length of the lists.
        table: SIDs of the items; without it SIDs are "".
    """
    items, scores = top_items(model, split.rows(name), seen, device, length)
    items -= 1
    usable = np.isfinite(scores)
    sids = np.array(["", *(table.sids if table else [""] * split.num_items)], dtype=object)
    targets = split.targets(name)
    lists = [(row[ok], values[ok]) for row, values, ok in zip(items, scores, usable, strict=True)]
    return Predictions(
        users=split.users(name),
        targets=targets,
        target_sids=sids[targets + 1].tolist(),
        items=[row.tolist() for row, _ in lists],
        sids=[sids[row + 1].tolist() for row, _ in lists],
        scores=[values.tolist() for _, values in lists],
        given=given_to(model, split),
    )
