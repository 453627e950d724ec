"""Ranks, metrics and lists of a trained recommender on validation and test examples."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from minionerec.data.contexts import context_codes
from minionerec.data.names import UNKNOWN
from minionerec.data.protocols import Protocol
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked
from minionerec.metrics.ranking import ranking_metrics
from minionerec.metrics.statistics import estimate
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.training.sequential.inputs import ModelInputs


def rank_splits(model: SequentialModel, data: ModelInputs, seen: str, device: torch.device) -> dict[str, Ranked]:
    """Ranks of the targets of validation and test examples among the whole catalogue.

    Args:
        model: The model.
        data: The examples, and SIDs of the items, for ranks among distinct SIDs too.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
    """
    numbers = None if data.table is None else data.table.sid_numbers
    given = given_to(model, data)
    return {
        name: Ranked(
            users=rows.users.tolist(),
            targets=rows.targets,
            ranks=rank_rows(model, rows, seen, device, numbers, **data.further_inputs(model, rows)),
            list_length=None,
            given=given,
        )
        for name, rows in data.held_out.items()
    }


def given_to(model: SequentialModel, data: ModelInputs) -> tuple[str, ...]:
    """What a model is given of rows beyond their histories: the request features that it reads and some row has."""
    known = np.zeros(len(model.features), dtype=bool)
    for rows in data.held_out.values():
        known |= (context_codes(model.features, rows) != UNKNOWN).any(0)
    return tuple(feature.name for feature, is_known in zip(model.features, known, strict=True) if is_known)


def measure(ranked: Mapping[str, Ranked], protocol: Protocol, resamples: int) -> dict[str, Any]:
    """Metrics of several splits: split → level → metric → [mean, low, high], of 95 percent intervals by user."""
    metrics: dict[str, Any] = {}
    for name, split in ranked.items():
        metrics[name] = {}
        for level, ranks in split.ranks.items():
            values = ranking_metrics(ranks, protocol.ks, every_mrr=protocol.mrr)
            estimates = estimate(values, 0, resamples, split.users)
            metrics[name][level] = {metric: [e.mean, e.low, e.high] for metric, e in estimates.items()}
    return metrics


def list_predictions(
    model: SequentialModel, data: ModelInputs, name: str, seen: str, device: torch.device, length: int
) -> Predictions:
    """Ranked lists in the form that all recommenders share.

    Items are in the order of their own scores, so items that share an SID need not follow one another.

    Args:
        model: The model.
        data: The examples, and SIDs of the items; without them SIDs are "".
        name: Which of its splits.
        seen: See `minionerec.data.protocols.Protocol`.
        device: Where the model is.
        length: Length of the lists.
    """
    rows = data.held_out[name]
    items, scores = top_items(model, rows, seen, device, length, **data.further_inputs(model, rows))
    usable = np.isfinite(scores)
    return Predictions.of(
        rows,
        [row[ok].tolist() for row, ok in zip(items - 1, usable, strict=True)],
        [row[ok].tolist() for row, ok in zip(scores, usable, strict=True)],
        None if data.table is None else data.table.sids,
        given_to(model, data),
    )
