"""Baselines: popularity, newest items, transition counts, EASE, text and a mixture, chosen on validation examples.

The constants of a corpus are those of a grid with the highest NDCG@10 on its validation examples; test examples are
never read. `make_baselines` finds them and builds the rankers.

References: transition counts: Garcin et al. 2013 and the sequential rules of Ludewig and Jannach 2018, section 3.1;
EASE: Steck 2019, equation 8.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import chain, pairwise, product
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import TypeAdapter
from scipy.sparse import csr_array, eye_array

from minionerec.core.errors import ArtefactError, ConfigError, one_line
from minionerec.core.log import progress
from minionerec.data.corpus import Corpus
from minionerec.data.ease import count_together, ease_weights
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME
from minionerec.data.transitions import TransitionPairs, count_transitions
from minionerec.data.windows import Windows, padded_windows
from minionerec.metrics.ranking import ranking_metrics, ranks_in
from minionerec.models.nn.experts import EXPERTS, FEATURES
from minionerec.recommend.rankers.candidates import (
    CandidateGroups,
    candidate_maxima,
    first_candidates,
    list_items,
    ranked_items,
)
from minionerec.recommend.rankers.experts import pooled_log_probs
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker, Ranking
from minionerec.sid.embed.texts import joined_texts, nearest_texts
from minionerec.training.catalogue.windows import held_out_windows, older_sids
from minionerec.training.experts import corpus_experts, fit_experts
from minionerec.training.neighbours import text_likeness

SeenLast = bool | Literal["history"]
"""Which items are ranked after all others: True for all that the user had, "history" for the newest of them, those that
models read; False for none."""
_Constants = TypeVar("_Constants", "TransitionConstants", "TextConstants")

POPULARITY, RECENT, TRANSITIONS, EASE = "popularity", "most recent items", "transition counts", "EASE"
TEXT, MIXTURE = "neighbours by text", "mixture of baselines"
"""Names of the baselines, in tables and in files."""
NAMES = (POPULARITY, RECENT, TRANSITIONS, EASE, TEXT, MIXTURE)
ALL_PAIRS = 20_000
"""EASE, neighbours by text and the mixture compare all pairs of candidates; of more candidates they are left out."""
METRIC = "NDCG@10"
"""The metric that constants are chosen by, on validation examples."""

_ROWS_AT_ONCE = 1024
_PART = 1 << 18  # windows counted at a time
_NEWEST = 10  # items of a history that transition counts read
_EXAMPLES = 5000  # size of the fixed sample of validation examples for choosing constants
_FEWEST_EXAMPLES, _PRODUCT = 1000, 800_000_000  # fewer, so many at least, where times training examples they are more
_TRAINING = 1 << 22  # training examples from which constants are chosen
_NEAREST = 100  # most similar candidates of each, by their texts
_MIXED_EXAMPLES, _MIXED_VALUES = 3000, 20_000_000  # of the mixture's fit; where times candidates they are more, fewer
_MIXED_ROWS = 256  # queries that the mixture scores at a time
_RIDGE_ITEMS = 2000  # most popular candidates among which the ridge is chosen
_FIRST_EXAMPLES = 250, 500  # validation examples on which the search over transition counts begins: least and most


@dataclass(frozen=True)
class TransitionConstants:
    """Constants of the transition counts.

    The defaults suit Industrial_and_Scientific and are taken where there are no validation examples.

    Attributes:
        reach: How many items back a pair of training items counts.
        decay: Weight of each further step between the two, in counting.
        score_decay: Weight of each further step back in the history, in scoring.
        reverse: Weight of a pair the other way round.
        half_life: Age at which a training target counts half, as a share of all training targets by time; None where
            all count the same.
        popularity: Share of popularity in the score, from 0 to 1, with the half-life of the popularity baseline.
        exclude_seen: See `SeenLast`.
    """

    reach: int = 10
    decay: float = 0.6
    score_decay: float = 0.6
    reverse: float = 0.3
    half_life: float | None = None
    popularity: float = 0.0
    exclude_seen: SeenLast = False


@dataclass(frozen=True)
class TextConstants:
    """Constants of the neighbours by text.

    Attributes:
        score_decay: Weight of each further step back in the history.
        popularity: As of `TransitionConstants`.
        exclude_seen: See `SeenLast`.
    """

    score_decay: float = 0.8
    popularity: float = 0.0
    exclude_seen: SeenLast = True


@dataclass(frozen=True)
class MixtureConstants:
    """Constants of the mixture of baselines: weights of `minionerec.models.nn.experts.Experts`.

    Attributes:
        weights: (features, experts), weights of the experts by features of the history.
        least: (features,), minimum of each feature, to which it is clamped.
        most: (features,), maximum, likewise.
        typical: (experts,), weights at the mean of the features of validation examples.
    """

    weights: list[list[float]]
    least: list[float]
    most: list[float]
    typical: list[float]

    def __post_init__(self) -> None:
        """Check lengths.

        Raises:
            ValueError: If they are not those of the experts and of their features.
        """
        features = len(self.weights), len(self.least), len(self.most)
        experts = {len(row) for row in (*self.weights, self.typical)}
        if set(features) != {len(FEATURES)} or experts != {len(EXPERTS)}:
            raise ValueError(f"weights of a mixture are not {len(FEATURES)} x {len(EXPERTS)}.")

    def sentence(self) -> str:
        """The weights at the mean history."""
        parts = [f"{name} {weight:.2f}" for name, weight in zip(EXPERTS, self.typical, strict=True)]
        kept = [part for part, weight in zip(parts, self.typical, strict=True) if abs(weight) >= _LEAST_SHOWN]
        return f"weights at a mean history: {', '.join(kept)}"


_LEAST_SHOWN = 0.005  # weight that a sentence gives
COUNTING = ((1, 0.0), (5, 0.1), (5, 0.3), (10, 0.6), (10, 0.8))
"""Reach and decay of counting that are tried."""
REVERSE = (0.0, 0.1, 0.3, 1.0)
"""Weights of the other direction that are tried."""
SCORE_DECAY = (0.0, 0.1, 0.3, 0.6, 0.8)
"""Decays of scoring that are tried."""
TEXT_DECAY = (0.0, 0.3, 0.6, 0.8, 1.0)
"""The same of neighbours by text."""
SHARES = (0.0, 0.01, 0.1, 0.3)
"""Shares of popularity that are tried."""
HALF_LIVES = (None, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Half-lives of popularity that are tried, as shares of all training targets; the first without times or an order."""
COUNT_HALF_LIVES = (None, 0.3, 0.1)
"""Half-lives of transition counts that are tried."""
RIDGES = (10.0, 30.0, 100.0, 300.0, 1000.0)
"""Ridges of EASE that are tried."""


@dataclass(frozen=True)
class Chosen:
    """The constants of the baselines of one corpus.

    Attributes:
        popularity_half_life: Age at which a training target counts half, as a share of all training targets by time;
            None where all count the same.
        transitions: Constants of the transition counts.
        ridge: Ridge of EASE; None where EASE is left out, of more than `ALL_PAIRS` candidates.
        popularity_exclude_seen: Which items popularity ranks after all others.
        ease_exclude_seen: Which EASE does.
        examples: Validation examples that they were chosen by; 0 where there are none, and these are the defaults.
        valid: NDCG@10 of each baseline on these examples, by name, in the unit of the evaluation.
        unit: That unit: "item", or what items share, e.g. "SID".
        text: Constants of the neighbours by text; None where these are left out, of more than `ALL_PAIRS` candidates
            or where no item has a text.
        mixture: Constants of the mixture of baselines; None where it is left out, of more than `ALL_PAIRS` candidates
            or of too few validation examples.
    """

    popularity_half_life: float | None = None
    transitions: TransitionConstants = TransitionConstants()
    ridge: float | None = 100.0
    popularity_exclude_seen: SeenLast = False
    ease_exclude_seen: SeenLast = False
    examples: int = 0
    valid: Mapping[str, float] | None = None
    unit: str = "item"
    text: TextConstants | None = TextConstants()
    mixture: MixtureConstants | None = None

    @property
    def names(self) -> list[str]:
        """The baselines that are not left out, in the order of `NAMES`."""
        optional = (EASE, self.ridge), (TEXT, self.text), (MIXTURE, self.mixture)
        left_out = {name for name, constants in optional if constants is None}
        return [name for name in NAMES if name not in left_out]

    @property
    def strongest(self) -> str | None:
        """The baseline that is best on validation; None without validation examples."""
        valid = self.valid or {}
        return max(valid, key=valid.__getitem__, default=None)

    def sentences(self) -> list[str]:
        """One line per baseline with constants, and one on how they were chosen."""
        counts, text, mixture = self.transitions, self.text, self.mixture
        many = f"left out, of more than {ALL_PAIRS:,} candidates"
        without_text = many if self.ridge is None else "left out, of items without texts"
        without_mixture = many if self.ridge is None else "left out, of too few validation examples"
        constants = {
            POPULARITY: _half_life(self.popularity_half_life) + _seen(self.popularity_exclude_seen),
            TRANSITIONS: f"reach {counts.reach}, decay {counts.decay:g} in counting and {counts.score_decay:g} in "
            f"scoring, reverse {counts.reverse:g}, {_half_life(counts.half_life)}, {counts.popularity:g} of popularity"
            f"{_seen(counts.exclude_seen)}",
            EASE: many if self.ridge is None else f"ridge {self.ridge:g}{_seen(self.ease_exclude_seen)}",
            TEXT: without_text
            if text is None
            else f"decay {text.score_decay:g}, {text.popularity:g} of popularity{_seen(text.exclude_seen)}",
            MIXTURE: without_mixture if mixture is None else mixture.sentence(),
        }
        valid = {name: f"; validation {METRIC} {value:.4f}" for name, value in (self.valid or {}).items()}
        how = f"chosen on {self.examples:,} validation examples, by {self.unit}"
        return [
            *(f"{name}: {sentence}{valid.get(name, '')}" for name, sentence in constants.items()),
            f"constants: {how if self.examples else 'defaults, for there are no validation examples'}",
        ]

    def to_json(self) -> dict[str, Any]:
        """The content of `baselines.json`."""
        return {**asdict(self), "metric": METRIC, "strongest": self.strongest}

    @classmethod
    def from_json(cls, content: Any, where: str) -> "Chosen":
        """Chosen constants from the result of `to_json`.

        Raises:
            ArtefactError: If it is something else.
        """
        try:
            optional = dict.fromkeys(("text", "mixture"))
            known = {name: {**optional, **content}[name] for name in cls.__dataclass_fields__}
            return TypeAdapter(cls).validate_json(json.dumps(known), strict=True)
        except (TypeError, KeyError, ValueError) as error:
            raise ArtefactError(
                f"{where}: holds no constants of baselines ({one_line(error)}). Evaluate again."
            ) from None


def _seen(excluded: SeenLast) -> str:
    if excluded == "history":
        return ", items of the history that models read after all others"
    return ", seen items after all others" if excluded else ""


def _half_life(value: float | None) -> str:
    return "no half-life" if value is None else f"half-life {100 * value:g} % of the training examples"


@dataclass(frozen=True)
class BaselineExamples:
    """The training examples that baselines are computed from.

    Attributes:
        data: The corpus.
        numbers: int64 (N,), candidate of each item: the number of its SID, or its own where there are no SIDs.
        unit: What a candidate is: "item", or what items share, e.g. "SID".
        masked: Whether items of the history may not be listed on validation examples.
    """

    data: Corpus
    numbers: np.ndarray
    unit: str
    masked: bool = False

    @classmethod
    def of(cls, data: Corpus, table: CandidateGroups | None = None, *, masked: bool = False) -> "BaselineExamples":
        """The training examples of a corpus.

        Args:
            data: The corpus; a large one is read a part at a time.
            table: SIDs of the same items; without them every item is a candidate of its own.
            masked: Whether items of the history may not be listed on validation examples.
        """
        if table is None:
            return cls(data, np.arange(data.n_items), "item", masked)
        return cls(data, table.sid_numbers, table.unit, masked)

    @property
    def seen_settings(self) -> tuple[SeenLast, ...]:
        """The values tried for ranking seen items last."""
        return (False,) if self.masked else (False, True, "history")

    @property
    def what(self) -> str:
        """The name of the candidates, for messages."""
        return "items" if self.unit == "item" else f"distinct {self.unit}s"

    @cached_property
    def size(self) -> int:
        """Number of candidates, C."""
        return int(self.numbers.max()) + 1

    @cached_property
    def are_many(self) -> bool:
        """Whether all pairs of candidates would be too many for memory."""
        held = 0
        for found in self.data.windows("train", self._width):
            held += len(found)
            if held > _PART:
                return True
        return False

    @cached_property
    def id_positions(self) -> np.ndarray:
        """Position of each candidate's first item in the order of ids: int64 (C,)."""
        found = np.full(self.size, len(self.numbers))
        np.minimum.at(found, self.numbers, self.data.id_positions)
        return found

    @cached_property
    def ordered(self) -> bool:
        """Whether it is known which training targets are older: by times, or without them by the order of examples."""
        return self.data.has_times or self._by_time

    @property
    def _by_time(self) -> bool:
        """Whether training examples are in the order of time."""
        return "global time" in self.data.split

    @property
    def _width(self) -> int:
        """Items of a history in which pairs are counted: those that models read, or all that are looked up."""
        return max(self.data.max_history, _NEWEST)

    @cached_property
    def _targets(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Item indices of all training targets, int32 (R,), and their times, int64 (R,), where these tell their order.

        Where some times are unknown the order of examples tells it, or else an unknown one counts as the oldest.
        """
        targets = np.zeros(self.data.sizes["train"], dtype=np.int32)
        found = np.zeros(len(targets), dtype=np.int64) if self.data.has_times else None
        for numbers, rows in self.data.batches("train"):
            targets[numbers] = rows.targets
            if found is not None and rows.times is not None:
                found[numbers] = rows.times.time
        if found is not None and self._by_time and (found == NO_TIME).any():
            found = None
        return targets, found

    @cached_property
    def ages(self) -> np.ndarray | None:
        """Share of the training targets that are newer than each: float32 (R,); None if unknown."""
        if not self.ordered:
            return None
        targets, times = self._targets
        by_time = np.arange(len(targets)) if times is None else np.argsort(times, kind="stable")
        found = np.empty(len(targets), dtype=np.float32)
        found[by_time] = np.arange(len(targets) - 1, -1, -1, dtype=np.float32) / max(1, len(targets))
        return found

    @cached_property
    def _weights(self) -> dict[float | None, np.ndarray]:
        """Cached results of `item_weights`."""
        return {}

    def item_weights(self, half_life: float | None) -> np.ndarray:
        """How often each item is a training target, newer targets counting more: float64 (N,)."""
        if half_life not in self._weights:
            if half_life is None or self.ages is None:
                self._weights[half_life] = self.data.popularity().astype(np.float64)
            else:
                weights = 0.5 ** (self.ages / half_life)
                self._weights[half_life] = np.bincount(self._targets[0], weights, len(self.numbers))
        return self._weights[half_life]

    def items_by_popularity(self, half_life: float | None) -> np.ndarray:
        """All items, the more popular first, then those whose id comes first: int64 (N,)."""
        return np.lexsort((self.data.id_positions, -self.item_weights(half_life)))

    def candidate_weights(self, half_life: float | None) -> np.ndarray:
        """`item_weights` summed for each candidate, in the order of ids: float64 (C,)."""
        by_id = np.argsort(self.data.id_positions)
        return np.bincount(self.numbers[by_id], self.item_weights(half_life)[by_id], self.size)

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Histories, targets and ages of windows, at most about `_PART` at a time: (W, L), candidates from 1."""
        of_item = np.concatenate([[0], self.numbers + 1]).astype(np.int32)  # by item from 1; 0 is padding
        for histories, targets, rows in self._window_parts():
            ages = np.zeros(targets.shape, dtype=np.float32)
            if self.ages is not None:
                ages = np.where(rows < 0, np.float32(0), self.ages[rows])
            yield of_item[histories], of_item[targets], ages

    def _window_parts(self) -> Iterator[Windows]:
        width, held = self._width, list[Windows]()

        def joined(parts: Sequence[Windows]) -> Windows:
            histories, targets, rows = map(np.concatenate, zip(*parts, strict=True))
            return histories, targets, rows

        for found in self.data.windows("train", width):
            for start in range(0, max(1, len(found)), _PART):
                held.append(padded_windows(found.take(slice(start, start + _PART)), width, "right"))
                if sum(len(histories) for histories, _, _ in held) >= _PART:
                    yield joined(held)
                    held = []
        if held:
            yield joined(held)

    def user_sets(self) -> Iterator[csr_array]:
        """Each user's candidates in training: float32 (users, C) of 0 and 1, some users at a time."""
        for _, rows in self.data.batches("train"):
            positions, owners = rows.held()
            users, items = np.concatenate([owners, rows.user_numbers]), [rows.items[positions], rows.targets]
            yield self.sets(users.astype(np.int64), np.concatenate(items), int(users.max(initial=-1)) + 1)

    def history_sets(self, histories: Sequence[np.ndarray]) -> csr_array:
        """The candidates of histories: float32 (R, C) of 0 and 1, in the order in which they are there."""
        owners = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
        return self.sets(owners, np.concatenate([*histories, np.zeros(0, np.int32)]), len(histories))

    def sets(self, owners: np.ndarray, items: np.ndarray, count: int) -> csr_array:
        """The candidates of items by their owners, int64 (P,) of each item: float32 (count, C) of 0 and 1."""
        pairs, firsts = np.unique(owners * self.size + self.numbers[items.astype(np.int64)], return_index=True)
        rows, chosen = np.divmod(pairs, self.size)
        chosen = chosen[np.lexsort((firsts, rows))]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
        return csr_array((np.ones(len(pairs), dtype=np.float32), chosen, offsets), shape=(count, self.size))

    def together(self) -> np.ndarray:
        """The number of users with both of two candidates: float32 (C, C)."""
        return count_together(self.user_sets(), self.size)

    def check_k(self, k: int) -> None:
        """Check the list length in candidates.

        Raises:
            ConfigError: If there are fewer.
        """
        if not 1 <= k <= self.size:
            raise ConfigError(f"k is {k}; expected 1 to {self.size}, the number of {self.what}. Give a smaller K.")


def _past(of: Queries | SplitExamples, last: SeenLast) -> Sequence[np.ndarray]:
    """The items of each query that `last` ranks after all others, if not False."""
    return of.histories if last == "history" else of.seen


def by_rank(lists: Sequence[Sequence[int]]) -> Ranking:
    """Lists whose scores only encode the rank."""
    return Ranking(lists, [[-float(position) for position in range(1, len(row) + 1)] for row in lists])


class Popularity:
    """Items by how often they are a training target, ties by item id; the same for all but items of the history.

    Args:
        rows: What it is counted from.
        half_life: See `TransitionConstants`.
        exclude_seen: Which candidates are ranked after all others.
        recent_first: Whether items of the history are ranked before all others, the most recent first.
    """

    def __init__(
        self,
        rows: BaselineExamples,
        half_life: float | None = None,
        exclude_seen: SeenLast = False,
        recent_first: bool = False,
    ):
        self.rows, self.exclude_seen, self.recent_first = rows, exclude_seen, recent_first
        self.items: list[int] = rows.items_by_popularity(half_life).tolist()

    def rank(self, queries: Queries, k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.recommend.rankers.protocol.Ranker`.

        Raises:
            ConfigError: If there are fewer than `k` candidates.
        """
        self.rows.check_k(k)
        if allowed is None and not (self.exclude_seen or self.recent_first):
            return by_rank([first_candidates(self.items, self.rows.numbers, k)] * len(queries))
        lists = [
            first_candidates(
                self._ordered(history), self.rows.numbers, k, None if allowed is None else allowed.row(row)
            )
            for row, history in enumerate(_past(queries, self.exclude_seen))
        ]
        return by_rank(lists)

    def _ordered(self, history: np.ndarray) -> Iterable[int]:
        """All items in the order of the list."""
        if self.recent_first:
            return chain(reversed(np.asarray(history).tolist()), self.items)
        if not self.exclude_seen:
            return self.items
        numbers = self.rows.numbers
        seen = set(numbers[np.asarray(history, dtype=np.int64)].tolist())
        return chain(
            (item for item in self.items if int(numbers[item]) not in seen),
            (item for item in self.items if int(numbers[item]) in seen),
        )


class _Scored:
    """Lists by the scores of candidates: of equal scores the more popular first, then the one whose id comes first.

    Args:
        rows: What popularity is counted from.
        half_life: Half-life of popularity.
        exclude_seen: Which candidates are ranked after all others.
    """

    def __init__(self, rows: BaselineExamples, half_life: float | None, exclude_seen: SeenLast = False):
        self.rows, self.exclude_seen = rows, exclude_seen
        weights = rows.candidate_weights(half_life)
        self.popularity = weights / max(math.fsum(weights), 1e-12)  # exact, and so the same in any order
        self.by_popularity = np.lexsort((rows.id_positions, -self.popularity))
        self.position = np.empty(rows.size, dtype=np.int64)
        self.position[self.by_popularity] = np.arange(rows.size)
        self.items_of = ranked_items(rows.numbers, rows.item_weights(half_life), rows.data.id_positions)
        self.masks = candidate_maxima(rows.numbers)

    def scores(self, queries: Queries) -> Iterator[np.ndarray]:
        """Scores of the candidates for each query: float (C,), which the caller may change."""
        raise NotImplementedError

    def rank(self, queries: Queries, k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.recommend.rankers.protocol.Ranker`.

        Raises:
            ConfigError: If there are fewer than `k` candidates.
        """
        self.rows.check_k(k)
        lists: list[list[int]] = []
        past = _past(queries, self.exclude_seen)
        for row, scores in enumerate(self.scores(queries)):
            if self.exclude_seen:
                scores[self.rows.numbers[past[row]]] = scores.min() - 1
            mask = None if allowed is None else allowed.row(row)
            if mask is not None:
                scores[~self.masks(mask[None])[0]] = -np.inf
            lists.append(list_items(self._best(scores, k).tolist(), self.items_of, k, mask)[0])
        return by_rank(lists)

    def scores_by_pairs(
        self, pairs: csr_array, weights: np.ndarray | None, how: "TransitionConstants | TextConstants", queries: Queries
    ) -> Iterator[np.ndarray]:
        """Scores by `history_scores` and popularity."""
        newest, share = _newest(queries.seen, self.rows.numbers), how.popularity
        for start in range(0, len(newest), _ROWS_AT_ONCE):
            found = history_scores(newest[start : start + _ROWS_AT_ONCE], pairs, how.score_decay, weights)
            for first, end in pairwise(found.indptr):
                scores = share * self.popularity
                scores[found.indices[first:end]] += (1 - share) * found.data[first:end]
                yield scores

    def _best(self, scores: np.ndarray, k: int) -> np.ndarray:
        """The best candidates of a row, without those at -inf: int64 (at most k,)."""
        if k < len(scores):
            least = np.partition(scores, -k)[-k]
            above = np.flatnonzero(scores > least)
            level = self.by_popularity[scores[self.by_popularity] == least][: k - len(above)]
            found = np.concatenate([above, level])
        else:
            found = np.arange(len(scores))
        found = found[np.lexsort((self.position[found], -scores[found]))]
        kept: np.ndarray = found[scores[found] > -np.inf]
        return kept


class TransitionCounts(_Scored):
    """Candidates by transition counts from those of the history, then the popular ones.

    A pair of training items counts 1, times `decay` for each item between them, up to `reach` items back, and `reverse`
    of that in the other direction. A history's items count 1, times `score_decay` for each step back, ten items at
    most, and each is divided by the square root of how often it was counted. The sums of a history are made to add up
    to 1, and `popularity` of them is given to the share of each candidate among the training targets. Of equal scores
    the candidate with the more popular items comes first.

    Of more than `_PART` windows only those pairs are counted, again for each query, that begin with an item which is
    in a history: all pairs of a hundred million interactions would not fit into memory.

    Args:
        rows: What pairs and popularity are counted from.
        constants: The constants.
        popularity_half_life: Half-life of popularity.
    """

    def __init__(
        self, rows: BaselineExamples, constants: TransitionConstants, popularity_half_life: float | None = None
    ):
        super().__init__(rows, popularity_half_life, constants.exclude_seen)
        self.constants = constants
        self.counts = None if rows.are_many else self._counted()

    def scores(self, queries: Queries) -> Iterator[np.ndarray]:
        """See `_Scored`."""
        counts = self.counts
        if counts is None:
            counts = self._counted(_newest(queries.seen, self.rows.numbers))
        return self.scores_by_pairs(counts, _rarity(counts), self.constants, queries)

    def _counted(self, some: Sequence[np.ndarray] | None = None) -> csr_array:
        """Counts of pairs: (C, C); only of the candidates in histories, if given."""
        sources = None
        if some is not None:
            sources = np.zeros(self.rows.size, dtype=bool)
            sources[np.concatenate([*some, np.zeros(0, np.int64)])] = True
        how = self.constants
        weighted = (
            (histories, targets, np.ones_like(ages) if how.half_life is None else 0.5 ** (ages / how.half_life))
            for histories, targets, ages in self.rows.parts()
        )
        return count_transitions(weighted, self.rows.size, how.reach, how.decay, how.reverse, sources)


def _newest(histories: Sequence[np.ndarray], numbers: np.ndarray) -> list[np.ndarray]:
    """The candidates read from each history, newest first."""
    return [numbers[np.asarray(history, dtype=np.int64)[::-1][:_NEWEST]] for history in histories]


def _rarity(counts: csr_array) -> np.ndarray:
    """Weights of candidates, the lower the more often they were counted: float64 (C,)."""
    return 1 / np.sqrt(np.asarray(counts.sum(1), dtype=np.float64).ravel() + 1)


def history_scores(
    newest: Sequence[np.ndarray], pairs: csr_array, decay: float, weights: np.ndarray | None = None
) -> csr_array:
    """Scores of what goes with the candidates of histories: float64 (R, C), each row summing to 1 if not empty.

    The entries of a row are in no order.

    Args:
        newest: R histories, newest first, at most `_NEWEST` candidates.
        pairs: (C, C), row i what came after candidate i, or is like it.
        decay: Weight of each further step back.
        weights: float64 (C,), of the candidates in histories; all 1 if None.
    """
    read = [history[:1] for history in newest] if not decay else newest
    lengths = np.array([len(history) for history in read], dtype=np.int64)
    known = np.concatenate([*read, np.zeros(0, np.int64)])
    back = np.concatenate([*(np.arange(length) for length in lengths), np.zeros(0, np.int64)])
    values = decay**back if weights is None else decay**back * weights[known]
    # Entries in the order of histories, which is that of summation: sums do not depend on how candidates are numbered.
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    history = csr_array((values, known, offsets), shape=(len(read), pairs.shape[0]))
    found, sums = history @ pairs, history @ np.asarray(pairs.sum(1, dtype=np.float64)).ravel()
    found.data /= np.repeat(np.where(sums > 0, sums, 1), np.diff(found.indptr))
    return found


class TextNeighbours(_Scored):
    """Candidates by how alike their texts are to those of the history, then the popular ones.

    The similarity of two candidates is the cosine of the TF-IDF weights of their words and word pairs; of each
    candidate the `_NEAREST` most similar ones count, and itself. The similarities to a history's items are summed, each
    step back counting `score_decay` of the one before, ten items at most. The sums are made to add up to 1, and
    popularity is given its share, as in `TransitionCounts`.

    Args:
        rows: What popularity is counted from.
        similarities: `text_similarities` of the candidates.
        constants: The constants.
        popularity_half_life: Half-life of popularity.
    """

    def __init__(
        self,
        rows: BaselineExamples,
        similarities: csr_array,
        constants: TextConstants,
        popularity_half_life: float | None = None,
    ):
        super().__init__(rows, popularity_half_life, constants.exclude_seen)
        self.similarities, self.constants = similarities, constants

    def scores(self, queries: Queries) -> Iterator[np.ndarray]:
        """See `_Scored`."""
        return self.scores_by_pairs(self.similarities, None, self.constants, queries)


def text_similarities(rows: BaselineExamples) -> csr_array | None:
    """Cosines of the texts of candidates, for `TextNeighbours`: float64 (C, C); None where it is left out."""
    texts = joined_texts(rows.data, rows.numbers) if rows.size <= ALL_PAIRS else []
    if not any(texts):
        return None
    return csr_array(nearest_texts(texts, _NEAREST) + eye_array(rows.size), dtype=np.float64)


class Ease(_Scored):
    """EASE: item-to-item weights in closed form, from users' sets of candidates in training.

    The least squares of the sets on themselves with a ridge, a candidate's weight to itself being 0 (Steck 2019,
    equation 8). A history counts as a set: neither order nor repeats are read.

    Args:
        rows: What popularity is counted from.
        weights: `ease_weights` of `rows.together()`.
        popularity_half_life: Half-life of popularity, which breaks ties.
        exclude_seen: Which candidates are ranked after all others.
    """

    def __init__(
        self,
        rows: BaselineExamples,
        weights: np.ndarray,
        popularity_half_life: float | None = None,
        exclude_seen: SeenLast = False,
    ):
        super().__init__(rows, popularity_half_life, exclude_seen)
        self.weights = weights

    def scores(self, queries: Queries) -> Iterator[np.ndarray]:
        """See `_Scored`."""
        for start in range(0, len(queries), _ROWS_AT_ONCE):
            yield from self.rows.history_sets(queries.seen[start : start + _ROWS_AT_ONCE]) @ self.weights


class MixtureOfBaselines(_Scored):
    """Candidates by a log-linear pool of transition counts, EASE, popularity, repeats and likeness of items.

    The pool is that of a model's experts, without a model (`minionerec.models.nn.experts`). Of equal scores the
    candidate with the more popular items comes first.

    Args:
        rows: What popularity is counted from.
        counts: `MixedCounts` of the candidates.
        constants: The weights.
        popularity_half_life: Half-life of popularity, which breaks ties.
    """

    def __init__(
        self,
        rows: BaselineExamples,
        counts: "MixedCounts",
        constants: MixtureConstants,
        popularity_half_life: float | None = None,
    ):
        super().__init__(rows, popularity_half_life)
        self.counts, self.experts = counts, counts.experts.with_weights(asdict(constants))

    def scores(self, queries: Queries) -> Iterator[np.ndarray]:
        """See `_Scored`."""
        for start in range(0, len(queries), _MIXED_ROWS):
            part = queries.take(range(start, min(start + _MIXED_ROWS, len(queries))))
            yield from pooled_log_probs(self.experts, self.counts.numbers, part).numpy()[:, self.counts.position]


class MixedCounts:
    """Counts of the mixture of baselines, of candidates in the order of ids, so that numbering makes no difference.

    Args:
        rows: What is counted.

    Attributes:
        position: int64 (C,), position of each candidate in the order of ids.
        numbers: int64 (N,), the same of each item's candidate.
        experts: The counts, by position.
    """

    def __init__(self, rows: BaselineExamples):
        self.rows = rows
        self.position = np.empty(rows.size, dtype=np.int64)
        self.position[np.argsort(rows.id_positions)] = np.arange(rows.size)
        self.numbers = self.position[rows.numbers]
        alike = text_likeness(joined_texts(rows.data, self.numbers))
        self.experts = corpus_experts(rows.data, self.numbers, alike)

    def fit(self, examples: SplitExamples) -> tuple[MixtureConstants, float] | None:
        """Fit the weights of the mixture of baselines.

        Args:
            examples: Validation examples, of which a fixed sample is read.

        Returns:
            The constants, and NDCG@10 of the examples, each by weights that were fitted to others; None of too few.
        """
        most = max(1, min(_MIXED_EXAMPLES, _MIXED_VALUES // self.rows.size))
        if len(examples) > most:
            examples = examples.take(np.sort(np.random.default_rng(0).choice(len(examples), most, replace=False)))
        count = len(examples)
        if self.rows.masked:  # seen items may not be listed: an example of one is lost
            targets = self.rows.numbers[examples.targets]
            pasts = zip(targets.tolist(), examples.seen, strict=True)
            examples = examples.take(np.flatnonzero([target not in self.rows.numbers[past] for target, past in pasts]))
        heldout = held_out_windows(examples, self.numbers, self.rows.data.max_history)
        heldout["older"] = older_sids(examples, self.numbers, self.rows.data.max_history)
        fitted = fit_experts(self.experts, heldout, None)
        if fitted is None:
            return None
        constants = MixtureConstants(fitted.weights, fitted.least, fitted.most, fitted.typical)
        return constants, float(fitted.gains.sum()) / count


def _examples_of(trained: int) -> int:
    """The number of validation examples read, by the number of training examples."""
    return min(_EXAMPLES, max(_FEWEST_EXAMPLES, _PRODUCT // max(1, trained)))


def _validation(rows: BaselineExamples) -> SplitExamples | None:
    """A fixed sample of the validation examples, by which constants are chosen; None without any."""
    most = _examples_of(rows.data.sizes["train"])
    return rows.data.sample("valid", most, 0) if rows.data.sizes["valid"] else None


def _ndcg(ranks: np.ndarray) -> float:
    """Mean NDCG@10 of ranks from 0; -1 where there is none."""
    return float(ranking_metrics(ranks + 1, [10])["NDCG@10"].mean())


def valid_ndcg(ranker: Ranker, rows: BaselineExamples, examples: SplitExamples) -> float:
    """NDCG@10 of a ranker's lists on validation examples."""
    seen = examples.seen.tolist()
    allowed = Allowed.leaving_out(seen, len(rows.numbers)) if rows.masked else None
    lists = ranker.rank(Queries(examples.histories.tolist(), seen=seen), min(10, rows.size), allowed).items
    candidates = [rows.numbers[np.asarray(items, dtype=np.int64)].tolist() for items in lists]
    return _ndcg(ranks_in(candidates, rows.numbers[examples.targets]) - 1)


class _Grid(Generic[_Constants]):
    """NDCG@10 of scores of histories, mixed with popularity, on validation examples, without lists.

    Args:
        rows: What popularity is counted from.
        examples: The validation examples.
        popularity_half_life: Half-life of popularity.
        whole: A grid of more examples, these among them.
    """

    def __init__(
        self,
        rows: BaselineExamples,
        examples: SplitExamples,
        popularity_half_life: float | None,
        whole: "_Grid[Any] | None" = None,
    ):
        self.rows, self.examples, self.half_life = rows, examples, popularity_half_life
        if whole is not None and whole.half_life == popularity_half_life:
            self.scored: _Scored = whole.scored
        else:
            self.scored = _Scored(rows, popularity_half_life)
        self.newest, self.targets = _newest(examples.seen, rows.numbers), rows.numbers[examples.targets]
        ranked_last: tuple[SeenLast, ...] = (True, "history")
        self.past = {last: rows.history_sets(_past(examples, last)) for last in ranked_last}
        self.known: dict[_Constants, float] = {}
        self._scores: tuple[_Constants, csr_array, np.ndarray, np.ndarray] | None = None

    def history_scores(self, how: _Constants) -> csr_array:
        """Scores of the examples' histories, without popularity: (R, C)."""
        raise NotImplementedError

    def value(self, constants: _Constants) -> float:
        """NDCG@10 with some constants."""
        if constants not in self.known:
            self.known[constants] = _ndcg(self.ranks(constants))
        return self.known[constants]

    def ranks(self, how: _Constants) -> np.ndarray:
        """Rank of each target, from 0: int64 (R,); not exact beyond the first ten."""
        found, popular, position = self._found(how)
        targets, share = self.targets, how.popularity
        hidden = self.past[True] if self.rows.masked else self.past.get(how.exclude_seen)
        values = found.data if not share else (1 - share) * found.data + share * popular
        own = share * self.scored.popularity[targets]
        own[position >= 0] = values[position[position >= 0]]
        better = np.empty(len(targets), dtype=np.int64)  # candidates whose score is above that of the target
        for row, (first, end) in enumerate(pairwise(found.indptr.tolist())):
            better[row] = np.count_nonzero(values[first:end] > own[row])
        needed = 10 + (0 if hidden is None else np.diff(hidden.indptr))
        rows = np.flatnonzero(better < needed)
        ranks = np.full(len(targets), max(10, self.rows.size))
        valued = csr_array((values, found.indices, found.indptr), found.shape)[rows]
        ranks[rows] = self._ranks_of(rows, valued, own[rows], share, None if hidden is None else hidden[rows])
        return ranks

    def _ranks_of(
        self, rows: np.ndarray, found: csr_array, own: np.ndarray, share: float, hidden: csr_array | None
    ) -> np.ndarray:
        """Rank of the targets of some examples, from 0: int64 (R,); C where it may not be listed.

        Args:
            rows: int64 (R,), numbers of the examples.
            found: Scores of candidates from their histories: (R, C).
            own: float64 (R,), score of each target.
            share: Share of popularity.
            hidden: (R, C), the candidates that come after all others, or may not be listed; None where there are none.
        """
        popular, position, targets = self.scored.popularity, self.scored.position, self.targets[rows]
        size, count, sizes = self.rows.size, len(rows), np.diff(found.indptr)
        found.sort_indices()
        owner, to_beat = np.repeat(np.arange(count), sizes), np.repeat(own, sizes)

        def beats(value: np.ndarray, candidate: np.ndarray, row: np.ndarray, to_beat: np.ndarray) -> np.ndarray:
            won: np.ndarray = value > to_beat
            level = np.flatnonzero(value == to_beat)
            won[level] = position[candidate[level]] < position[targets[row[level]]]
            return won

        # Everyone as if nothing had a score by the history, less those who are found, and those who are found.
        falling = -share * popular[self.scored.by_popularity]
        more = np.searchsorted(falling, -own, side="left")
        ranks: np.ndarray = np.where(own == share * popular[targets], position[targets], more)
        won = beats(share * popular[found.indices], found.indices, owner, to_beat)
        ranks = ranks - np.bincount(owner[won], minlength=count)
        won = beats(found.data, found.indices, owner, to_beat)
        if hidden is not None:
            row, candidate = np.repeat(np.arange(count), np.diff(hidden.indptr)), hidden.indices
            index, there = _lookup(owner * size + found.indices, row * size + candidate)
            won[index[there]] = False
            gone = row[candidate == targets[row]]
            row, candidate = row[~there], candidate[~there]
            lost = beats(share * popular[candidate], candidate, row, own[row])
            ranks = ranks - np.bincount(row[lost], minlength=count)
        ranks = ranks + np.bincount(owner[won], minlength=count)
        if hidden is not None:
            ranks[gone] = size
        return ranks

    def _found(self, how: _Constants) -> tuple[csr_array, np.ndarray, np.ndarray]:
        """Scores of the histories, the popularity of each entry, and the position of each target, -1 if none."""
        scoring = replace(how, popularity=0.0, exclude_seen=False)
        if self._scores is None or self._scores[0] != scoring:
            found = self.history_scores(how)
            position = np.full(len(self.newest), -1)
            for row, (first, end) in enumerate(pairwise(found.indptr.tolist())):
                hit = np.flatnonzero(found.indices[first:end] == self.targets[row])
                if len(hit):
                    position[row] = first + hit[0]
            self._scores = scoring, found, self.scored.popularity[found.indices], position
        return self._scores[1:]


class TransitionGrid(_Grid[TransitionConstants]):
    """NDCG@10 of transition counts on validation examples, for any constants of the grid.

    Args:
        rows: What pairs are counted from.
        examples: The validation examples.
        popularity_half_life: Half-life of popularity.
        whole: A grid of more examples, these among them: what it has counted is not counted again.
    """

    def __init__(
        self,
        rows: BaselineExamples,
        examples: SplitExamples,
        popularity_half_life: float | None,
        whole: "TransitionGrid | None" = None,
    ):
        super().__init__(rows, examples, popularity_half_life, whole)
        sources = np.zeros(rows.size, dtype=bool)
        sources[np.concatenate([*self.newest, np.zeros(0, np.int64)])] = True
        if whole is None:
            self.pairs = TransitionPairs(self._parts(), rows.size, max(reach for reach, _ in COUNTING), sources)
        else:
            self.pairs = whole.pairs.only(sources)
        self._counted: tuple[Any, csr_array] | None = None

    def history_scores(self, how: TransitionConstants) -> csr_array:
        """See `_Grid`."""
        counting = how.reach, how.decay, how.reverse, how.half_life
        if self._counted is None or self._counted[0] != counting:
            self._counted = counting, self.pairs.counts(*counting)
        counts = self._counted[1]
        return history_scores(self.newest, counts, how.score_decay, _rarity(counts))

    def _parts(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The training windows, the first that hold `_TRAINING` targets."""
        held = 0
        for part in self.rows.parts():
            yield part
            held += int((part[1] > 0).sum())
            if held >= _TRAINING:
                return

    def best(self) -> TransitionConstants:
        """The best point by coordinate descent; the first of several that are level.

        It begins at two points of the grid; of many examples first on a quarter of them (500 at most), at whose best
        point the descent on all of them begins.
        """
        starts: tuple[TransitionConstants, ...] = (
            TransitionConstants(5, 0.3, 0.1, 0.1, None, 0.01, False),
            TransitionConstants(10, 0.6, 0.6, 0.3, None, 0.1, False),
        )
        least, most = _FIRST_EXAMPLES
        if len(self.examples) >= 4 * least:
            count = min(most, len(self.examples) // 4)
            drawn = np.sort(np.random.default_rng(0).choice(len(self.examples), count, replace=False))
            first = self.examples.take(drawn)
            starts = (TransitionGrid(self.rows, first, self.half_life, self).best(),)
        return max((self._descend(start) for start in starts), key=self.value)

    def _descend(self, point: TransitionConstants) -> TransitionConstants:
        half_lives = COUNT_HALF_LIVES if self.rows.ordered else (None,)
        moves: list[Callable[[TransitionConstants], list[TransitionConstants]]] = [
            lambda at: [replace(at, score_decay=value) for value in SCORE_DECAY],
            lambda at: [
                replace(at, popularity=share, exclude_seen=last) for share in SHARES for last in self.rows.seen_settings
            ],
            lambda at: [replace(at, reach=reach, decay=decay) for reach, decay in COUNTING],
            lambda at: [replace(at, reverse=value) for value in REVERSE],
            lambda at: [replace(at, half_life=value) for value in half_lives],
        ]
        value, unchanged = self.value(point), 0
        while unchanged < len(moves):
            for move in moves:
                values = progress(move(point), "choosing constants of transition counts", unit="values")
                other = max(values, key=self.value)
                unchanged += 1
                if self.value(other) > value:
                    point, value, unchanged = other, self.value(other), 0
                if unchanged >= len(moves):
                    break
        return point


class _TextGrid(_Grid[TextConstants]):
    """NDCG@10 of neighbours by text on validation examples, for any constants.

    Args:
        similarities: `text_similarities`.
        whole: A grid of the same examples.
    """

    def __init__(self, similarities: csr_array, whole: _Grid[Any]):
        super().__init__(whole.rows, whole.examples, whole.half_life, whole)
        self.similarities = similarities

    def history_scores(self, how: TextConstants) -> csr_array:
        """See `_Grid`."""
        return history_scores(self.newest, self.similarities, how.score_decay)

    def best(self) -> TextConstants:
        """The best of all constants that are tried, the first of several that are level."""
        tried = [TextConstants(*each) for each in product(TEXT_DECAY, SHARES, self.rows.seen_settings)]
        return max(progress(tried, "choosing constants of neighbours by text", unit="values"), key=self.value)


def _lookup(ordered: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of numbers among ascending ones, int64 (W,), and whether they occur, bool (W,)."""
    position = np.searchsorted(ordered, wanted)
    there = position < len(ordered)
    there[there] = ordered[position[there]] == wanted[there]
    return position, there


def _ridge_values(
    rows: BaselineExamples, examples: SplitExamples, scored: _Scored, together: np.ndarray
) -> dict[tuple[float, SeenLast], float]:
    """NDCG@10 of EASE among the most popular candidates, by ridge and by which items are ranked last."""
    kept = scored.by_popularity[:_RIDGE_ITEMS]
    gram = together[np.ix_(kept, kept)]
    past = {last: rows.history_sets(_past(examples, last))[:, kept] for last in (False, *rows.seen_settings)}
    position = np.full(rows.size, -1)
    position[kept] = np.arange(len(kept))
    targets = position[rows.numbers[examples.targets]]
    inside = np.flatnonzero(targets >= 0)
    past, targets = {last: sets[inside] for last, sets in past.items()}, targets[inside]
    found: dict[tuple[float, SeenLast], float] = {}
    for ridge in progress(RIDGES, "choosing the ridge of EASE", unit="values"):
        every = past[False] @ ease_weights(gram, ridge)
        for last in rows.seen_settings:
            scores = every.copy()
            if last or rows.masked:
                scores[past[last].nonzero()] = -np.inf
            own = scores[np.arange(len(targets)), targets][:, None]
            above = (scores > own) | ((scores == own) & (np.arange(len(kept)) < targets[:, None]))
            ranks = np.full(len(examples), 10)
            ranks[inside] = np.where(own[:, 0] > -np.inf, above.sum(1), 10)
            found[ridge, last] = _ndcg(ranks)
    return found


def make_baselines(
    data: Corpus,
    table: CandidateGroups | None = None,
    chosen: Chosen | None = None,
    *,
    masked: bool = False,
) -> tuple[Chosen, dict[str, Ranker]]:
    """The constants that are best on the validation examples, and the baselines with them; test examples are not read.

    Half-lives are tried where times or an order of the training examples are known. Popularity comes first, and its
    half-life is that of the popularity in the transition counts, whose other constants are found by coordinate descent
    over the grid. EASE, neighbours by text and the mixture are left out of more than `ALL_PAIRS` candidates.

    Args:
        data: A corpus, whose training examples are counted.
        table: SIDs of the same items; with them lists hold distinct SIDs, and NDCG@10 is theirs, without them items.
        chosen: The constants, where they are known.
        masked: Whether seen items may not be listed, as some protocols have it.

    Returns:
        The constants, the defaults where there are no validation examples; and the baselines by name.
    """
    rows = BaselineExamples.of(data, table, masked=masked)
    together = cache(rows.together)
    weights = cache(lambda ridge: ease_weights(together(), ridge))
    mixed_counts = cache(lambda: MixedCounts(rows))
    alike = None if chosen is not None and chosen.text is None else text_similarities(rows)
    if chosen is not None:
        return chosen, _rankers(rows, chosen, weights, alike, mixed_counts)
    examples, with_ease = _validation(rows), rows.size <= ALL_PAIRS
    if examples is None:
        ridge, text = Chosen.ridge if with_ease else None, None if alike is None else Chosen.text
        chosen = Chosen(ridge=ridge, unit=rows.unit, text=text)
        return chosen, _rankers(rows, chosen, weights, alike, mixed_counts)
    settings = product(HALF_LIVES if rows.ordered else HALF_LIVES[:1], rows.seen_settings)
    by_setting = {setting: valid_ndcg(Popularity(rows, *setting), rows, examples) for setting in settings}
    half_life, popularity_last = max(by_setting, key=by_setting.__getitem__)
    grid = TransitionGrid(rows, examples, half_life)
    transitions = grid.best()
    chosen = Chosen(half_life, transitions, None, popularity_last, examples=len(examples), unit=rows.unit, text=None)
    reached = {POPULARITY: by_setting[half_life, popularity_last], TRANSITIONS: grid.value(transitions)}
    if with_ease:
        by_ridge = _ridge_values(rows, examples, grid.scored, together())
        ridge, ease_last = max(by_ridge, key=by_ridge.__getitem__)
        chosen = replace(chosen, ridge=ridge, ease_exclude_seen=ease_last)
    if alike is not None:
        texts = _TextGrid(alike, grid)
        text = texts.best()
        chosen, reached[TEXT] = replace(chosen, text=text), texts.value(text)
    if rows.size <= ALL_PAIRS and (mixed := mixed_counts().fit(examples)) is not None:
        constants, reached[MIXTURE] = mixed
        chosen = replace(chosen, mixture=constants)
    rankers = _rankers(rows, chosen, weights, alike, mixed_counts)
    valid = {
        name: reached[name] if name in reached else valid_ndcg(ranker, rows, examples)
        for name, ranker in rankers.items()
        if not rows.masked or name != RECENT
    }
    chosen = replace(chosen, valid=valid)
    return chosen, rankers


def _rankers(
    rows: BaselineExamples,
    chosen: Chosen,
    weights: Callable[[float], np.ndarray],
    alike: csr_array | None,
    mixed_counts: Callable[[], MixedCounts],
) -> dict[str, Ranker]:
    """The baselines with some constants.

    Args:
        rows: What they are computed from.
        chosen: Their constants.
        weights: Weights of EASE by its ridge.
        alike: `text_similarities`.
        mixed_counts: Counts of the mixture.
    """
    half_life = chosen.popularity_half_life
    found: dict[str, Ranker] = {
        POPULARITY: Popularity(rows, half_life, chosen.popularity_exclude_seen),
        RECENT: Popularity(rows, half_life, recent_first=True),
        TRANSITIONS: TransitionCounts(rows, chosen.transitions, half_life),
    }
    if chosen.ridge is not None:
        found[EASE] = Ease(rows, weights(chosen.ridge), half_life, chosen.ease_exclude_seen)
    if chosen.text is not None and alike is not None:
        found[TEXT] = TextNeighbours(rows, alike, chosen.text, half_life)
    if chosen.mixture is not None:
        found[MIXTURE] = MixtureOfBaselines(rows, mixed_counts(), chosen.mixture, half_life)
    return found
