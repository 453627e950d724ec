"""Experts' counts in training windows, and their state-dependent weights, fitted on held-out examples."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from minionerec.core.log import get_logger, progress
from minionerec.data.contexts import UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.models.decoding.branches import pad_left
from minionerec.models.nn.experts import (
    DECAYS,
    EXPERTS,
    REACH,
    Experts,
    item_features,
    mean_of_neighbours,
)
from minionerec.models.nn.rows import top_scores
from minionerec.training.catalogue.windows import SidWindows, parts_of, some_rows

logger = get_logger(__name__)

HALF_LIVES = (0.1, 0.01)
"""Half-lives of the two popularities, as shares of all training targets."""
TREND, NEWEST_TREND, TRANSITION_HALF_LIFE = 0.1, 0.03, 0.3
"""Half-lives of what describes items, and of transition counts."""
_PRIOR = 20.0  # further times that an item was in a history, with the share of all items
_ROWS = 256  # examples that are scored at a time
_MOST_EXAMPLES = 12_000  # examples that weights are fitted on
_FEWEST = 50  # of them with the target among the candidates, below which nothing is fitted
_START = dict(zip(EXPERTS, (1.0, 1.0, 0.5, 0.0, 0.1, 0.2, 0.5, 0.0, 0.0, 0.5, 2.0, 0.2, *[0.0] * 5), strict=True))
"""Weights of the experts at first, whatever the history."""
_FIXED = 2  # of them stay: that of the model, on which the others' depend, and what it has by neighbours
_CANDIDATES: tuple[tuple[int, dict[str, float]], ...] = (
    (40, {"model": 1}),
    (30, {"model": 1, "newest popularity": 0.5}),
    (20, {"model": 1, "popularity": 1}),
    (20, {"transitions": 1}),
    (20, {"neighbours": 1}),
    (20, {"text": 1}),
    (15, {"model": 1, "model by neighbours": 1, "unsold": 50}),
    (15, {"model": 1, "model by neighbours": 1, "neighbours of unsold": 5, "unsold": 50}),
    (10, {"popularity": 1, "unsold": 50}),
    (5, {"repeats": 1, "seen": 10}),
    (5, {"seen before": 1, "unsold and seen": 10}),
)
"""How many candidates are named by which weights of experts."""
_UNSOLD = 1.5  # a target without training examples counts for so many, as their share rises after training
_STEPS, _RATE, _SHARP = 80, 0.06, (0.3, 0.05)  # of fitting; the width of a step from rank to rank, at first and at last
_PENALTY = 45.0  # over the number of examples: of squared weights of features, each of variance 1, but the constant
_FOLDS = 3
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)  # of the way from the model alone to the weights; few examples bear less
_SCALES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
_SCALED_ROWS = 2048  # examples that the scale is chosen on


def _ages(weights: np.ndarray, newest: float, recency: float) -> np.ndarray:
    """Share of the training targets that are newer, by the weights of the loss, which tell it; 0 where they do not."""
    return -np.log(weights / newest) / recency if recency else np.zeros_like(weights)


def count_experts(windows: SidWindows, size: int, recency: float, neighbours: Sequence[csr_array]) -> Experts:
    """Experts by counts of the training targets; they are off.

    Args:
        windows: Training windows.
        size: Number of SIDs, N.
        recency: How fast the loss's weights fall with age, which tells the ages of targets; at 0 all count the same.
        neighbours: Similarities of the SIDs (`minionerec.training.catalogue.build.sid_neighbours`).
    """
    parts = list(parts_of(len(windows["labels"])))
    newest = max((float(windows["weights"][part].max()) for part in parts), default=1.0)
    by_age = {half_life: np.zeros(size) for half_life in (*HALF_LIVES, NEWEST_TREND, np.inf)}
    there, chosen = np.zeros(size + 1), np.zeros(size + 1)

    def weighed() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for part in parts:
            histories, labels = np.asarray(windows["histories"][part]), np.asarray(windows["labels"][part])
            ages = _ages(np.asarray(windows["weights"][part]), newest, recency)
            yield histories, np.maximum(labels, 0), 0.5 ** (ages / TRANSITION_HALF_LIFE)

    for part in parts:
        histories, labels, weights = (np.asarray(windows[name][part]) for name in ("histories", "labels", "weights"))
        has_target = labels > 0
        ages = _ages(weights, newest, recency)[has_target]
        for half_life, found in by_age.items():
            found += np.bincount(labels[has_target] - 1, 0.5 ** (ages / half_life), size)
        for slot in range(histories.shape[1]):
            row = has_target[:, slot]
            seen = np.sort(histories[row, : slot + 1], axis=1)
            first = np.diff(seen, axis=1, prepend=-1) > 0  # each item once
            there += np.bincount(seen[first], np.repeat(weights[row, slot], first.sum(1)), size + 1)
            again = (histories[row, : slot + 1] == labels[row, slot, None]).any(1)
            chosen += np.bincount(labels[row, slot][again], weights[row, slot][again], size + 1)
    there, chosen = there[1:], chosen[1:]
    share = (chosen.sum() + 1) / (there.sum() + size)  # never 0
    popularity = torch.from_numpy(np.stack([by_age[half_life] for half_life in HALF_LIVES]))
    unsold = torch.from_numpy(by_age[np.inf] == 0)
    alike = (torch.from_numpy(each) for each in (neighbours[0].indptr, neighbours[0].indices, neighbours[0].data))
    return Experts.of(
        [count_transitions(weighed(), size, REACH, decay, 0.0) for decay in DECAYS],
        mean_of_neighbours(popularity, unsold, *alike).float().numpy(),
        np.log((chosen + _PRIOR * share) / (there + _PRIOR) / share).astype(np.float32),
        item_features(by_age[np.inf], by_age[TREND], by_age[NEWEST_TREND]),
        neighbours,
    )


class _Candidates:
    """Values of the experts for some candidates of held-out examples, among them the target where one of them names it.

    Attributes:
        terms: float32 (E, M, experts), of the candidates of those E of R examples whose target is among them.
        of_target: float32 (E, experts), of the target.
        others: bool (E, M), whether a candidate competes with the target: once, and not itself.
        features: float32 (E, features).
        example: int64 (E,), which of the R examples.
        counting: float32 (E,), how often each example counts.
        count: R.
    """

    def __init__(self, model: CatalogueModel, examples: SidWindows, contexts: np.ndarray):
        found: list[tuple[torch.Tensor, ...]] = []
        experts = model.experts
        assert experts is not None
        self.count = len(contexts)
        for begin in progress(range(0, self.count, _ROWS), "querying experts", unit="parts"):
            part = slice(begin, begin + _ROWS)
            terms, features, wanted = _inputs(model, examples, contexts, part)
            chosen = []
            for most, weights in _CANDIDATES:
                pooled = sum(weight * terms[..., EXPERTS.index(name)] for name, weight in weights.items())
                chosen.append(top_scores(torch.as_tensor(pooled), most)[1])
            candidates = torch.cat(chosen, 1).sort(1).values
            again = torch.zeros_like(candidates, dtype=torch.bool)
            again[:, 1:] = candidates[:, 1:] == candidates[:, :-1]
            own = candidates == wanted[:, None]
            kept = own.any(1).nonzero()[:, 0]
            wide = candidates[kept][..., None].expand(-1, -1, len(EXPERTS))
            found.append(
                (
                    terms[kept].gather(1, wide),
                    terms[kept, wanted[kept]],
                    ~(again | own)[kept],
                    features[kept],
                    kept + begin,
                    torch.where(experts.items[wanted[kept], 3] > 0, _UNSOLD, 1.0),
                )
            )
        columns = [torch.cat(column).cpu() for column in zip(*found, strict=True)]
        self.terms, self.of_target, self.others, self.features, self.example, self.counting = columns

    def loss(self, weights: torch.Tensor, rows: torch.Tensor, width: float) -> torch.Tensor:
        """Minus the summed gain 1 / log2(1 + rank) of some examples, each step of rank smoothed by a sigmoid."""
        margins = torch.einsum("emk,ek->em", self.terms[rows] - self.of_target[rows][:, None], weights)
        above = (torch.sigmoid(margins / width) * self.others[rows]).sum(1)
        return -(self.counting[rows] / torch.log2(2 + above)).sum()

    def gains(self, weights: torch.Tensor, rows: torch.Tensor) -> np.ndarray:
        """NDCG@10 of some examples."""
        margins = torch.einsum("emk,ek->em", self.terms[rows] - self.of_target[rows][:, None], weights)
        ranks = ((margins > 0) & self.others[rows]).sum(1).numpy() + 1
        found: np.ndarray = np.asarray(ranking_metrics(ranks, (10,))["NDCG@10"])
        return found


def _inputs(
    model: CatalogueModel, examples: SidWindows, contexts: np.ndarray, part: slice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of some held-out examples: each expert's values for all SIDs, (E, N, experts), features, and targets from 0."""
    assert model.experts is not None
    histories, labels, given = (
        torch.from_numpy(np.array(values[part], dtype=np.int64)).to(model.device)
        for values in (examples["histories"], examples["labels"], contexts)
    )
    row, slot = newest_slots(histories)
    events = None
    if "events" in examples:
        events = torch.from_numpy(np.array(examples["events"][part], dtype=np.int64)).to(model.device)
    own = model.leaf_log_probs(histories, given, events=events)
    older = pad_left(examples["older"][part].tolist(), model.device)[0] if "older" in examples else None
    terms = torch.stack(list(model.experts.terms(own, histories, row, slot, older)), 2)
    return terms, model.experts.features(histories, row, slot, given), labels[row, slot] - 1


def _fitted(candidates: _Candidates, features: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Weights (features, experts) that rank the targets of some examples best; the model's own are 1 throughout."""
    weights = torch.zeros(features.shape[1], len(EXPERTS))
    weights[0] = torch.tensor(list(_START.values()))
    weights.requires_grad_(True)
    optimizer = torch.optim.Adam([weights], lr=_RATE)
    for step in progress(range(_STEPS), "fitting experts", unit="steps"):
        done = step / max(1, _STEPS - 1)
        optimizer.param_groups[0]["lr"] = _RATE * (1 - 0.9 * done)
        optimizer.zero_grad()
        width = _SHARP[0] * (_SHARP[1] / _SHARP[0]) ** done
        loss = candidates.loss(features[rows] @ weights, rows, width) + _PENALTY * weights[1:].square().sum()
        loss = loss / candidates.count
        loss.backward()
        assert weights.grad is not None
        weights.grad[:, :_FIXED] = 0
        optimizer.step()
    return weights.detach()


def fit_experts(model: CatalogueModel, heldout: SidWindows, seed: int = 0) -> dict[str, Any] | None:
    """Fit the experts' weights, and use them where they rank held-out targets better.

    The weights maximise a smoothed NDCG@10 of targets among the candidates that the experts name, in which targets
    without a training example count 1.5 times. Of the way from the model alone to these weights goes the share, a
    quarter to all, that ranks best, by the same count, on three parts of the examples, consecutive in time, each by
    weights of the other two; if none ranks better than the model, nothing is used. At last all weights are scaled so
    that the targets are most likely, which changes no order.

    Args:
        model: A trained model, changed in place; one without experts stays as it is.
        heldout: Validation examples, with their session contexts if the model is conditioned on them, and with what
            is `older` (`minionerec.training.catalogue.windows.older_sids`); 12,000 of them at most are read.
        seed: Of their choice.

    Returns:
        `weights`, `least` and `most` of `minionerec.models.nn.experts.Experts`, with the `share` and NDCG@10 `before`
        and `after` on the parts; None where nothing is used.
    """
    experts = model.experts
    if experts is None:
        return None
    training = model.training
    torch.nn.Module.eval(model)
    experts.turn_off()
    chosen = some_rows(len(heldout["labels"]), _MOST_EXAMPLES, seed)
    examples = {name: values[chosen] for name, values in heldout.items()}
    count = len(chosen)
    unknown = np.full(count, UNKNOWN, dtype=np.int64)
    contexts = unknown
    if "contexts" in examples and count:  # once with contexts, and once without
        last = (examples["labels"] > 0).argmax(1)
        contexts = np.concatenate([unknown, examples["contexts"][np.arange(count), last]])
        examples = {name: np.concatenate([values, values]) for name, values in examples.items()}
    found = None
    if count:
        with torch.no_grad():
            candidates = _Candidates(model, examples, contexts)
        if len(candidates.example) >= _FEWEST:
            found = _fit(model, candidates, examples, contexts, len(contexts) // count)
    model.train(training)
    return found


def _fit(
    model: CatalogueModel, candidates: _Candidates, examples: SidWindows, contexts: np.ndarray, rounds: int
) -> dict[str, Any] | None:
    """See `fit_experts`; each example is there `rounds` times."""
    experts = model.experts
    assert experts is not None
    raw = candidates.features
    mean, spread = raw.mean(0), raw.std(0, correction=0)
    mean[0], spread[0] = 0, 1
    spread = torch.where(spread > 1e-6, spread, torch.inf)  # what is always the same tells nothing
    features = (raw - mean) / spread
    everything = torch.arange(len(raw))
    plain = torch.zeros(features.shape[1], len(EXPERTS))
    plain[0, 0] = 1
    distinct = candidates.count // rounds
    fold = candidates.example % distinct * _FOLDS // distinct
    gains = np.zeros((len(_SHARES), len(raw)))
    for number in range(_FOLDS):
        inside, outside = (fold == number).nonzero()[:, 0], (fold != number).nonzero()[:, 0]
        weights = _fitted(candidates, features, outside)
        for position, share in enumerate(_SHARES):
            gains[position, inside] = candidates.gains(features[inside] @ plain.lerp(weights, share), inside)
    best = int((gains @ candidates.counting.numpy()).argmax())
    share, (before, after) = _SHARES[best], gains[[0, best]].sum(1) / candidates.count
    if not share:
        logger.info("Experts are left out: the best share of them is 0, with validation NDCG@10 %.4f.", before)
        return None
    logger.info(
        "Validation NDCG@10 %.4f without experts, %.4f with them (share %g), by weights of other examples.",
        before,
        after,
        share,
    )
    weights = plain.lerp(_fitted(candidates, features, everything), share) / spread[:, None]
    weights[0] -= mean[1:] @ weights[1:]
    least, most = raw.min(0).values, raw.max(0).values
    scale = _scale(model, weights, examples, contexts)
    found = {
        "weights": (scale * weights).tolist(),
        "least": least.tolist(),
        "most": most.tolist(),
        "share": share,
        "before": round(float(before), 4),
        "after": round(float(after), 4),
    }
    set_weights(model, found)
    return found


@torch.inference_mode()
def _scale(model: CatalogueModel, weights: torch.Tensor, examples: SidWindows, contexts: np.ndarray) -> float:
    """Factor of all weights with which the targets of some examples are most likely."""
    weights, losses = weights.to(model.device), np.zeros(len(_SCALES))
    chosen = np.sort(np.random.default_rng(0).permutation(len(contexts))[:_SCALED_ROWS])
    examples = {name: values[chosen] for name, values in examples.items()}
    for begin in range(0, len(chosen), _ROWS):
        terms, features, wanted = _inputs(model, examples, contexts[chosen], slice(begin, begin + _ROWS))
        pooled = torch.einsum("enk,ek->en", terms, features @ weights)
        for position, scale in enumerate(_SCALES):
            losses[position] += float(torch.nn.functional.cross_entropy(scale * pooled, wanted, reduction="sum"))
    return _SCALES[int(losses.argmin())]


def set_weights(model: CatalogueModel, found: dict[str, Any] | None) -> None:
    """Give a model's experts the weights of `fit_experts`; None turns them off."""
    if model.experts is None:
        return
    model.experts.turn_off()
    if found is not None:
        for name in ("weights", "least", "most"):
            own = getattr(model.experts, name)
            own.copy_(torch.tensor(found[name], dtype=own.dtype))
