"""Experts' counts in training examples, and their state-dependent weights, fitted on held-out examples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from minionerec.core.log import get_logger, progress
from minionerec.data.corpus import Corpus
from minionerec.data.ease import count_together, ease_weights, largest_weights
from minionerec.data.names import UNKNOWN
from minionerec.data.transitions import count_transitions
from minionerec.metrics.ranking import ranking_metrics
from minionerec.models.backbone.catalogue.blocks import newest_slots
from minionerec.models.decoding.branches import pad_left
from minionerec.models.nn.experts import (
    DECAYS,
    EXPERTS,
    REACH,
    Experts,
    ItemLikeness,
    item_features,
    mean_of_neighbours,
)
from minionerec.models.nn.rows import top_scores
from minionerec.training.catalogue.windows import SidWindows, corpus_parts, some_rows

logger = get_logger(__name__)

WindowParts = Callable[[], Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]]
"""Iterates from the beginning over histories, labels and weights of training windows, (W, H), some windows at a time
(`minionerec.training.catalogue.windows.window_parts`, `corpus_parts`)."""
Score = Callable[[np.ndarray, np.ndarray], tuple[torch.Tensor, torch.Tensor | None]]
"""A model's log-probabilities after held-out examples: takes their numbers, int64 (E,), and codes of request features,
int64 (E, F), and returns float32 (E, N) and which SIDs the model has scored, bool (E, N), None for all."""

HALF_LIVES = (0.1, 0.01)
"""Half-lives of the two popularities, as shares of all training targets."""
TREND, NEWEST_TREND, TRANSITION_HALF_LIFE = 0.1, 0.03, 0.3
"""Half-lives of what describes items, and of transition counts."""
RECENCY = 3.0
"""How fast the weights of targets fall with their age (`minionerec.data.windows.recency_of`), for a model that was
trained without such weights."""
EASE_SIDS = 20_000
"""EASE compares all pairs of SIDs; of more SIDs it is left out."""
MOST_EXAMPLES = 12_000
"""Held-out examples that weights are fitted on, at most."""
_PRIOR = 20.0  # further times that an item was in a history, with the share of all items
_EASE_RIDGE, _EASE_WEIGHTS = 100.0, 200  # of EASE, and how many weights of an SID are kept
_ROWS = 256  # examples that are scored at a time
_FEWEST = 50  # of them with the target among the candidates, below which nothing is fitted
_OF_MODEL = EXPERTS[:2]  # those that are 0 without a model
_MODEL_ALONE = {"model": 1.0}
_COUNTS_ALONE = {"transitions": 1.0, "popularity": 0.5}  # what is used without a model where nothing ranks better
_CANDIDATES: tuple[tuple[int, dict[str, float]], ...] = (
    (40, {"model": 1}),
    (30, {"model": 1, "newest popularity": 0.5}),
    (20, {"model": 1, "popularity": 1}),
    (20, {"transitions": 1}),
    (20, {"neighbours": 1}),
    (20, {"text": 1}),
    (20, {"EASE": 1}),
    (20, {"likeness to the history": 1}),
    (15, {"model": 1, "model by neighbours": 1, "unsold": 50}),
    (15, {"model": 1, "model by neighbours": 1, "neighbours of unsold": 5, "unsold": 50}),
    (10, {"popularity": 1, "unsold": 50}),
    (5, {"repeats": 1, "seen": 10}),
    (5, {"seen before": 1, "unsold and seen": 10}),
)
"""How many candidates are named by which weights of experts."""
_UNSOLD = 1.5  # a target without training examples counts for so many, as their share rises after training
_PENALTY, _PENALTY_OF_FEATURES = 4.0, 2000.0  # of squared weights, for experts and features of variance 1
_STEPS = 100  # of L-BFGS, at most
_LEAST_SPREAD = 1e-6
_FOLDS = 3


def _ages(weights: np.ndarray, newest: float, recency: float) -> np.ndarray:
    """Share of the training targets that are newer, by the weights of the loss, which tell it; 0 where they do not."""
    return -np.log(weights / newest) / recency if recency else np.zeros_like(weights)


def count_experts(parts: WindowParts, size: int, recency: float, alike: ItemLikeness) -> Experts:
    """Experts by counts of the training targets; they are off.

    Args:
        parts: Training windows.
        size: Number of SIDs, N.
        recency: How fast the windows' weights fall with age, which tells the ages of targets; at 0 all count the same.
        alike: Similarities of the SIDs (`minionerec.training.neighbours.sid_likeness`).
    """
    newest = max((float(weights.max()) for _, _, weights in parts()), default=1.0)
    by_age = {half_life: np.zeros(size) for half_life in (*HALF_LIVES, NEWEST_TREND, np.inf)}
    there, chosen = np.zeros(size + 1), np.zeros(size + 1)

    def weighed() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for histories, labels, weights in parts():
            ages = _ages(weights, newest, recency)
            yield histories, np.maximum(labels, 0), 0.5 ** (ages / TRANSITION_HALF_LIFE)

    for histories, labels, weights in parts():
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
    table = alike.by_all
    similarities = (torch.from_numpy(values) for values in (table.indptr, table.indices, table.data))
    return Experts.of(
        [count_transitions(weighed(), size, REACH, decay, 0.0) for decay in DECAYS],
        mean_of_neighbours(popularity, unsold, *similarities).float().numpy(),
        np.log((chosen + _PRIOR * share) / (there + _PRIOR) / share).astype(np.float32),
        item_features(by_age[np.inf], by_age[TREND], by_age[NEWEST_TREND]),
        alike,
        _ease(parts, size),
    )


def _ease(parts: WindowParts, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of EASE from the sets of SIDs in training windows, as of `Experts.of`; none of more than `EASE_SIDS`."""
    if size > EASE_SIDS:
        return np.zeros((size, 0), dtype=np.int32), np.zeros((size, 0), dtype=np.float32)

    def sets() -> Iterator[csr_array]:
        for histories, labels, _ in parts():
            entries = np.sort(np.concatenate([histories, np.maximum(labels, 0)], axis=1), axis=1)
            first = np.diff(entries, axis=1, prepend=0) > 0  # each SID once, no padding
            offsets = np.concatenate([[0], first.sum(1).cumsum()])
            chosen = entries[first] - 1
            yield csr_array((np.ones(len(chosen), np.float32), chosen, offsets), shape=(len(entries), size))

    return largest_weights(ease_weights(count_together(sets(), size), _EASE_RIDGE), _EASE_WEIGHTS)


def corpus_experts(corpus: Corpus, numbers: np.ndarray, alike: ItemLikeness) -> Experts:
    """Experts of SIDs by counts of the training examples of a corpus; they are off.

    Targets are weighed by their ages with a `RECENCY` where the split is by time.

    Args:
        corpus: The corpus.
        numbers: int64 (I,), the SID of each of its items, from 0.
        alike: See `count_experts`.
    """
    recency = RECENCY if "global time" in corpus.split else 0.0
    return count_experts(partial(corpus_parts, corpus, numbers, recency), int(numbers.max()) + 1, recency, alike)


@dataclass(frozen=True)
class _Heldout:
    """Held-out examples that weights are fitted on.

    Attributes:
        numbers: int64 (R,), which examples, of all that are held out; each `rounds` times.
        histories: int64 (R, T), numbers of SIDs from 1, padded with 0 on the right.
        labels: int64 (R, T), number from 1 of the SID after the newest item, elsewhere -100.
        contexts: int64 (R, F), codes of request features.
        older: For each example what was seen before its history, numbers from 1; None where nothing is known.
        rounds: How often each example is there: without, and where the model reads some with, its request features.
    """

    numbers: np.ndarray
    histories: np.ndarray
    labels: np.ndarray
    contexts: np.ndarray
    older: Sequence[np.ndarray] | None
    rounds: int

    @classmethod
    def of(cls, heldout: SidWindows, most: int, seed: int) -> "_Heldout":
        """A seeded sample of examples (`held_out_windows`)."""
        numbers = some_rows(len(heldout["labels"]), most, seed)
        rounds, contexts = 1, np.full((len(numbers), 1), UNKNOWN, dtype=np.int64)
        if "contexts" in heldout and len(numbers):
            last = (heldout["labels"][numbers] > 0).argmax(1)
            contexts = heldout["contexts"][numbers, last].astype(np.int64)
            contexts = np.concatenate([np.full_like(contexts, UNKNOWN), contexts])
            numbers, rounds = np.concatenate([numbers, numbers]), 2
        histories, labels = (heldout[name][numbers].astype(np.int64) for name in ("histories", "labels"))
        return cls(
            numbers, histories, labels, contexts, heldout["older"][numbers] if "older" in heldout else None, rounds
        )

    def __len__(self) -> int:
        """Number of examples, R."""
        return len(self.numbers)

    def take(self, rows: np.ndarray) -> "_Heldout":
        """Some of the examples."""
        older = None if self.older is None else [self.older[row] for row in rows]
        return _Heldout(
            self.numbers[rows], self.histories[rows], self.labels[rows], self.contexts[rows], older, self.rounds
        )

    def inputs(
        self, experts: Experts, score: Score | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """What the fit reads of each example.

        Returns:
            Each expert's values for all SIDs, (R, N, experts); features, (R, features); targets from 0, int64 (R,);
            and the SIDs that the model has scored, bool (R, N), None for all.
        """
        device = experts.weights.device
        histories, labels = (torch.from_numpy(values).to(device) for values in (self.histories, self.labels))
        row, slot = newest_slots(histories)
        log_probs, scored = (None, None) if score is None else score(self.numbers, self.contexts)
        older = None if self.older is None else pad_left([past.tolist() for past in self.older], device)[0]
        terms = torch.stack(list(experts.terms(log_probs, histories, row, slot, older, scored)), 2)
        return terms, experts.features(histories, row, slot), labels[row, slot] - 1, scored


class _Candidates:
    """Values of the experts for some candidates of held-out examples, among them the target where one of them names it.

    Attributes:
        differences: float32 (E, M, experts), values of the candidates of those E of R examples whose target is among
            them, less those of the target.
        spread: float32 (experts,), standard deviation of the values of competing candidates; infinite where they are
            always the same.
        others: bool (E, M), whether a candidate competes with the target: once, and not itself.
        features: float32 (E, features).
        example: int64 (E,), which of the R examples.
        counting: float32 (E,), how often each example counts.
        count: R.
    """

    def __init__(self, experts: Experts, examples: _Heldout, score: Score | None):
        parts: list[tuple[torch.Tensor, ...]] = []
        self.count = len(examples)
        naming = _CANDIDATES
        if score is None:
            left = [(most, {name: by[name] for name in by if name not in _OF_MODEL}) for most, by in naming]
            naming = tuple((most, by) for most, by in left if by)
        for begin in progress(range(0, self.count, _ROWS), "querying experts", unit="parts"):
            rows = np.arange(begin, min(begin + _ROWS, self.count))
            terms, features, wanted, scored = examples.take(rows).inputs(experts, score)
            chosen = []
            for most, weights in naming:
                pooled = torch.as_tensor(
                    sum(weight * terms[..., EXPERTS.index(name)] for name, weight in weights.items())
                )
                pooled = pooled if scored is None else pooled.masked_fill(~scored, -torch.inf)
                chosen.append(top_scores(pooled, most)[1])
            candidates = torch.cat(chosen, 1).sort(1).values
            left_out = torch.zeros_like(candidates, dtype=torch.bool)
            left_out[:, 1:] = candidates[:, 1:] == candidates[:, :-1]
            if scored is not None:
                left_out |= ~scored.gather(1, candidates)
            is_target = candidates == wanted[:, None]
            kept = (is_target & ~left_out).any(1).nonzero()[:, 0]
            wide = candidates[kept][..., None].expand(-1, -1, len(EXPERTS))
            parts.append(
                (
                    terms[kept].gather(1, wide),
                    terms[kept, wanted[kept]],
                    ~(left_out | is_target)[kept],
                    features[kept],
                    kept + begin,
                    torch.where(experts.items[wanted[kept], 3] > 0, _UNSOLD, 1.0),
                )
            )
        columns = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
        terms, of_target, self.others, self.features, self.example, self.counting = columns
        competing = terms[self.others]
        spread = competing.std(0) if len(competing) > 1 else torch.zeros(len(EXPERTS))
        self.spread = torch.where(spread > _LEAST_SPREAD, spread, torch.inf)
        self.differences = terms - of_target[:, None]

    def gains(self, weights: torch.Tensor, rows: torch.Tensor) -> np.ndarray:
        """NDCG@10 of some examples."""
        margins = torch.einsum("emk,ek->em", self.differences[rows], weights)
        ranks = ((margins > 0) & self.others[rows]).sum(1).numpy() + 1
        gains: np.ndarray = np.asarray(ranking_metrics(ranks, (10,))["NDCG@10"])
        return gains


def _constant(weights: Mapping[str, float], features: int) -> torch.Tensor:
    """Weights (features, experts) that are the same whatever the history."""
    constant = torch.zeros(features, len(EXPERTS))
    constant[0] = torch.tensor([weights.get(name, 0.0) for name in EXPERTS])
    return constant


def _fitted(candidates: _Candidates, features: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Weights (features, experts) that make the targets of some examples most likely among their candidates."""
    differences, is_candidate = candidates.differences[rows], candidates.others[rows]
    counting, described = candidates.counting[rows], features[rows]
    weights = torch.zeros(features.shape[1], len(EXPERTS), requires_grad=True)
    penalties = torch.full((features.shape[1], 1), _PENALTY_OF_FEATURES)
    penalties[0] = _PENALTY
    optimizer = torch.optim.LBFGS([weights], max_iter=_STEPS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        margins = torch.einsum("emk,ek->em", differences, described @ (weights / candidates.spread))
        margins = torch.cat([torch.zeros(len(rows), 1), margins.masked_fill(~is_candidate, -torch.inf)], 1)
        total = (counting * margins.logsumexp(1)).sum() + (penalties * weights.square()).sum()
        value = total / len(rows)
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach() / candidates.spread


@dataclass(frozen=True)
class FittedExperts:
    """Weights that `fit_experts` has found.

    Attributes:
        weights: (features, experts), W of `minionerec.models.nn.experts.Experts`.
        least: (features,), its attribute of this name.
        most: (features,), likewise.
        before: NDCG@10 of the examples by the model alone, or by the counts that are used without one.
        after: The same by these weights; where they are fitted, each example by those that were fitted to others.
        typical: (experts,), weights at the mean of the examples' features.
        gains: float64 (R,), of each example what `after` is the mean of: all without request features, then, where
            these are given, all with them.
    """

    weights: list[list[float]]
    least: list[float]
    most: list[float]
    before: float
    after: float
    typical: list[float]
    gains: np.ndarray

    def counts(self) -> dict[str, Any]:
        """What a manifest keeps."""
        names = ("weights", "least", "most", "before", "after")
        return {name: getattr(self, name) for name in names}


def fit_experts(experts: Experts, heldout: SidWindows, score: Score | None, seed: int = 0) -> FittedExperts | None:
    """Fit the experts' weights, and use them where they rank held-out targets better.

    The weights are those of a conditional logit (McFadden, "Conditional logit analysis of qualitative choice behavior",
    1974) of the target among the candidates that the experts name, with a penalty on squared weights; targets without a
    training example count 1.5 times. They are used if NDCG@10, by the same count, is higher than by the model alone on
    three parts of the examples, consecutive in time, each ranked by weights of the other two.

    Without a model, transition counts with popularity are used if nothing ranks better.

    Args:
        experts: The experts, changed in place; while `score` is asked they select the model alone.
        heldout: Validation examples, with their request features if the model is conditioned on them, and with what
            is `older` (`minionerec.training.catalogue.windows.older_sids`).
        score: The model, on the device of the experts; None for experts alone.
        seed: Of the choice of examples.

    Returns:
        What was found; None where nothing is used, also where too few examples have their target among the candidates.
    """
    experts.turn_off()
    examples = _Heldout.of(heldout, MOST_EXAMPLES, seed)
    if not len(examples):
        return None
    with torch.no_grad():
        candidates = _Candidates(experts, examples, score)
    if len(candidates.example) < _FEWEST:
        logger.info(
            "Experts are left out: %d of %d validation examples have their target among the candidates, and %d are "
            "needed.",
            len(candidates.example),
            len(examples),
            _FEWEST,
        )
        return None
    return _fit(experts, candidates, examples, score)


def _fit(experts: Experts, candidates: _Candidates, examples: _Heldout, score: Score | None) -> FittedExperts | None:
    """See `fit_experts`."""
    raw = candidates.features
    mean, spread = raw.mean(0), raw.std(0, correction=0)
    mean[0], spread[0] = 0, 1
    spread = torch.where(spread > _LEAST_SPREAD, spread, torch.inf)  # what is always the same tells nothing
    features = (raw - mean) / spread
    everything = torch.arange(len(raw))
    plain = _constant(_COUNTS_ALONE if score is None else _MODEL_ALONE, features.shape[1])
    distinct = candidates.count // examples.rounds
    fold = candidates.example % distinct * _FOLDS // distinct
    gains = np.zeros((2, len(raw)))  # by plain weights, and by fitted ones
    gains[0] = candidates.gains(features @ plain, everything)
    for number in progress(range(_FOLDS), "fitting experts", unit="parts"):
        inside, outside = (fold == number).nonzero()[:, 0], (fold != number).nonzero()[:, 0]
        gains[1, inside] = candidates.gains(features[inside] @ _fitted(candidates, features, outside), inside)
    best = int((gains @ candidates.counting.numpy()).argmax())
    before, validated = gains.sum(1) / candidates.count
    if not best and score is not None:
        logger.info("Experts are left out: validation NDCG@10 %.4f without them, %.4f with them.", before, validated)
        return None
    if score is not None:
        logger.info(
            "Validation NDCG@10 %.4f without experts, %.4f with them, by weights of other examples.",
            before,
            validated,
        )
    standard = _fitted(candidates, features, everything) if best else plain
    weights = standard / spread[:, None]
    weights[0] -= mean[1:] @ weights[1:]
    of_examples = np.zeros(candidates.count)
    of_examples[candidates.example.numpy()] = gains[best]
    fitted = FittedExperts(
        weights=weights.tolist(),
        least=raw.min(0).values.tolist(),
        most=raw.max(0).values.tolist(),
        before=round(float(before), 4),
        after=round(float(validated if best else before), 4),
        typical=standard[0].tolist(),
        gains=of_examples,
    )
    set_weights(experts, fitted.counts())
    return fitted


def set_weights(experts: Experts, fitted: Mapping[str, Any] | None) -> None:
    """Give experts the weights of `FittedExperts.counts`; None turns them off."""
    experts.turn_off()
    if fitted is not None:
        for name in ("weights", "least", "most"):
            buffer = getattr(experts, name)
            buffer.copy_(torch.tensor(fitted[name], dtype=buffer.dtype))
