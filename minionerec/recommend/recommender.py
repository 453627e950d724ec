"""The recommender: a trained model with its catalogue, queried by the user's own item ids."""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import fingerprint, is_artefact, own_corpus
from minionerec.core.errors import ArtefactError
from minionerec.core.paths import input_path
from minionerec.core.remote import local_path, look_again
from minionerec.data.contexts import OF_TIMES, RequestFeature
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.recommend.items import CHOICE, CatalogueItems
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker, Ranking, context_used, features_used
from minionerec.recommend.rankers.sequential import SequentialRanker
from minionerec.recommend.requests import (
    LONGER,
    Answer,
    Recommended,
    Request,
    RequestError,
    as_ids,
    name_shown,
    plain_time,
)

BEAMS = 50
"""Minimum number of beams of a language model."""


class Recommender:
    """Recommends items of a catalogue for histories of its items.

    Args:
        ranker: The ranker.
        items: The items, in the ranker's order.
        name: Name of the model.
        version: Identifies the model and its catalogue.
        max_history: Items of a history that the ranker reads, the newest.
        features: Request features that the ranker reads.
        event_names: Events by the numbers that the ranker reads.

    Example:
        from minionerec.recommend.recommender import Recommender
        recommender = Recommender.load("runs/demo/sft")
        answer = recommender.recommend(["P001", "P004"], k=5, exclude_seen=True, where={"department": "Hot Drinks"})
    """

    def __init__(
        self,
        ranker: Ranker,
        items: CatalogueItems,
        name: str,
        version: str,
        max_history: int,
        features: Sequence[RequestFeature] = (),
        event_names: Sequence[str] = (),
    ):
        self.ranker, self.items, self.name, self.version, self.max_history = ranker, items, name, version, max_history
        self.features, self.event_names = tuple(features), tuple(event_names)
        self.sids: Sequence[str] | None = ranker.table.sids if isinstance(ranker, LanguageRanker) else None
        self._lift = ranker.bonus_of_items if isinstance(ranker, LanguageRanker) else None

    @classmethod
    def load(
        cls,
        path: Any,
        *,
        corpus: Any = None,
        search: Search | None = None,
        dtype: str = "auto",
    ) -> "Recommender":
        """A recommender from the output of a training stage.

        Args:
            path: A checkpoint (`minionerec sft`, `grpo`, `train-catalogue`, `extend`), or a sequential model
                (`train-sequential`); its path, or the result of the function that made it.
            corpus: The corpus whose items are recommended; if None, the one that the model was trained on, from
                its manifest.
            search: The search of a checkpoint; beam search with at least 50 beams if None. Where the model scores every
                SID at once, exact search is used instead, which costs less there.
            dtype: Weights' dtype of a checkpoint: auto, float32, bfloat16, float16.

        Raises:
            ArtefactError: If there is no such model or corpus, its files were changed, or they do not belong together.
            DataError: If the checkpoint has other items.
            ConfigError: If the model or the corpus is no path.
        """
        look_again()
        path = local_path(input_path("path", path))
        folder = local_path(input_path("corpus", corpus)) if corpus is not None else own_corpus(path)
        begun = _version(path, folder) if is_artefact(path) and is_artefact(folder) else ""
        data = Corpus.load(folder)
        search = search or Search(beams=BEAMS)
        ranker = load_ranker(path, data, corpus_path=folder, search=search, dtype=dtype, in_memory=True)
        name = "sequential model"
        if isinstance(ranker, LanguageRanker):
            dense = isinstance(ranker.bundle.model, CatalogueModel)
            name = "catalogue model" if dense else "language model"
            if dense and ranker.search.method == "beam":
                ranker.search = replace(ranker.search, method="exact")
        elif isinstance(ranker, SequentialRanker):
            name = ranker.name
        version = _version(path, folder)
        if version != begun:
            raise ArtefactError(f"{path}: it or its corpus was replaced while it was read. Load it again.")
        given = name, version, data.max_history, features_used(ranker, data), data.event_names
        return cls(ranker, CatalogueItems.of(data), *given)

    @classmethod
    def of(
        cls,
        ranker: Ranker,
        corpus: Corpus,
        *,
        name: str = "own ranker",
    ) -> "Recommender":
        """A recommender with a user's own ranker.

        Args:
            ranker: A ranker of the items of the corpus.
            corpus: The corpus.
            name: Its name and version.
        """
        given = name, name, corpus.max_history, features_used(ranker, corpus), corpus.event_names
        return cls(ranker, CatalogueItems.of(corpus), *given)

    def recommend(self, history: Collection[str | int], k: int = 10, **more: Any) -> Answer:
        """The best items after one history.

        Args:
            history: Item ids, oldest first; integer ids may be given as such.
            k: Length of the list.
            more: The other fields of `minionerec.recommend.requests.Request`, by name; times may be dates of Python,
                numpy or pandas, too.

        Raises:
            RequestError: If the request is invalid, with the field.
        """
        return self.recommend_many([history], k, **more)[0]

    def recommend_many(self, histories: Sequence[Collection[str | int]], k: int = 10, **more: Any) -> list[Answer]:
        """The best items after each history, with the same options; see `recommend`.

        `times` are those of one history: for several with their own, see `answer`.
        """
        more |= {name: _as_times(more[name]) for name in ("times", "now") if more.get(name) is not None}
        return self.answer([Request(as_ids(history), k, **more) for history in histories])

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers to any requests, computed in one batch.

        Raises:
            RequestError: If a request is invalid, with the field of the first.
        """
        ranking, unknown, contexts = self.listed(requests)
        return [
            Answer(self._named(request, items, scores), missing, context)
            for request, items, scores, missing, context in zip(
                requests, ranking.items, ranking.scores, unknown, contexts, strict=True
            )
        ]

    def listed(self, requests: Sequence[Request]) -> tuple[Ranking, list[tuple[str, ...]], list[dict[str, str]]]:
        """Answers to any requests in item indices; see `answer`.

        Returns:
            The lists; and of each request the unknown ids, and the request features that the model was given.

        Raises:
            RequestError: If a request is invalid, with the field of the first.
        """
        understood = [self.understand(request) for request in requests]
        items: list[Sequence[int]] = [()] * len(requests)
        scores: list[Sequence[float]] = [()] * len(requests)
        lengths = [request.k * (LONGER if request.is_rearranged else 1) for request in requests]
        for k, indices in self._by_beams(lengths).items():
            each, masks, without, _ = zip(*(understood[index] for index in indices), strict=True)
            allowed = Allowed.of_masks(masks, without, len(self.items))
            ranking = self.ranker.rank(Queries.joined(each), k, None if allowed.unrestricted else allowed)
            for row, index in enumerate(indices):
                most = lengths[index]
                items[index], scores[index] = ranking.items[row][:most], ranking.scores[row][:most]
                if requests[index].is_rearranged:
                    items[index], scores[index] = self._rearranged(requests[index], items[index], scores[index])
        contexts = [
            {feature.name: feature.names[int(query.context[feature.name][0])] for feature in self.features}
            for query, *_ in understood
        ]
        return Ranking(items, scores), [unknown for *_, unknown in understood], contexts

    def _boosts(self, request: Request, items: Sequence[int]) -> np.ndarray:
        """The logarithm of the factor of each item: float64 (N,)."""
        boosts = np.zeros(len(items))
        for name, factors in (request.boost or {}).items():
            boosts += [math.log(factors.get(self.items.columns[name].at(item), 1.0)) for item in items]
        return boosts

    def _rearranged(
        self, request: Request, items: Sequence[int], scores: Sequence[float]
    ) -> tuple[Sequence[int], Sequence[float]]:
        """The list of a request with `boost`, `at_most` or `diversity` from a longer one, best first."""
        values = np.array(scores, dtype=np.float64) + self._boosts(request, items)
        order = np.argsort(-values, kind="stable").tolist()
        if request.diversity and len(items) and self._item_vectors is not None:
            order = _marginal_order(values, self._item_vectors[np.asarray(items)], request.diversity)
        limits = request.at_most or {}
        counts: Counter[tuple[str, Any]] = Counter()
        chosen: list[int] = []
        others: list[int] = []
        for position in order:
            cells = [(name, self.items.columns[name].at(items[position])) for name in limits]
            filled = [(name, value) for name, value in cells if value is not None]
            fits = all(counts[name, value] < limits[name] for name, value in filled)
            (chosen if fits else others).append(position)
            counts.update(filled if fits else ())
        listed = [*chosen, *others][: request.k]
        return [items[position] for position in listed], [float(values[position]) for position in listed]

    @cached_property
    def _item_vectors(self) -> np.ndarray | None:
        """Vectors of items in the model, of length 1, float32 (N, D); None where it has none."""
        vectors = getattr(self.ranker, "item_vectors", None)
        if vectors is None:
            return None
        unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    @property
    def context(self) -> frozenset[str]:
        """The fields of a request that the model reads besides the history; see `context_used`."""
        return context_used(self.ranker)

    def probabilities(
        self, items: Sequence[int] | np.ndarray, scores: Sequence[float] | np.ndarray
    ) -> np.ndarray | None:
        """Probabilities of the SIDs of items from scores, float64 (N,); None if these are not log-probabilities."""
        if self.sids is None:
            return None
        given = np.asarray(scores, dtype=np.float64)
        return np.exp(given if self._lift is None else given - self._lift[np.asarray(items, dtype=np.int64)])

    def _by_beams(self, ks: Sequence[int]) -> dict[int, list[int]]:
        """Requests by number of beams: those up to the minimum number together.

        Longer lists of a beam search are grouped by length, so that a list does not depend on other requests.
        """
        least = max(ks, default=1)
        if isinstance(self.ranker, LanguageRanker) and self.ranker.search.method != "exact":
            least = self.ranker.search.beams
        groups: dict[int, list[int]] = {}
        for index, k in enumerate(ks):
            groups.setdefault(min(max(k, least), len(self.items)), []).append(index)
        return groups

    def understand(self, request: Request) -> tuple[Queries, np.ndarray | None, Collection[int], tuple[str, ...]]:
        """A request in item indices.

        Returns:
            The ranker's query: the newest items of the history, the context, and all items of the history; the items
            that may be listed, bool (N,), None for all; items that may not be listed, regardless of these; and unknown
            ids.

        Raises:
            RequestError: If it is invalid, with the field.
        """
        missing: dict[str, None] = {}
        history = self._indices(request.history, "history", request.unknown, missing)
        context = self._context(request)
        self._check_columns(request)
        mask = self.items.mask(request.where) if request.where else None
        if request.only is not None:
            listed = np.zeros(len(self.items), dtype=bool)
            listed[self._indices(request.only, "only", request.unknown, missing)] = True
            mask = listed if mask is None else mask & listed
        without = self._indices(request.without, "without", request.unknown, missing)
        if request.exclude_seen:
            without = [*without, *history]
        newest = np.array(history[-self.max_history :], dtype=np.int32)
        query = Queries([newest], context, [np.array(history, dtype=np.int32)], self._events(request))
        return query, mask, without, tuple(missing)

    def _events(self, request: Request) -> list[np.ndarray] | None:
        """The events of the history's items that are in the catalogue, as of `Queries`; None where none are given."""
        if request.events is None or "events" not in self.context:
            return None
        numbers = {name: number for number, name in enumerate(self.event_names)}
        parts = zip(request.history, request.events, strict=True)
        known = [event for item, event in parts if self.items.index(item) is not None]
        return [np.array([numbers.get(event, -1) for event in known], dtype=np.int16)]

    def _check_columns(self, request: Request) -> None:
        """Check the columns that a request names.

        Raises:
            RequestError: If there is no such column, a boosted one holds no texts, or the model has no probabilities.
        """
        for position, name in enumerate(request.columns):
            self.items.column(name, f"columns[{position}]")
        for name in request.at_most or ():
            self.items.column(name, f"at_most.{name}")
        for name in request.boost or ():
            kind = self.items.column(name, f"boost.{name}").kind
            if kind != CHOICE:
                raise RequestError(f"boost.{name}", f"is a column of {kind} values; only texts can be boosted.")
        if request.diversity and self._item_vectors is None:
            raise RequestError("diversity", "compares vectors of items, which this model does not have. Leave it out.")
        if request.boost and self.sids is None:
            raise RequestError("boost", "multiplies probabilities, which this model does not have. Leave it out.")

    def _context(self, request: Request) -> dict[str, np.ndarray]:
        """The codes of a request's features, each int16 (1,), by name.

        What it does not give is derived from the time of the newest item of the history that the model reads, as in
        training, and from its own.

        Raises:
            RequestError: If it names no feature, gives an impossible value, or its times are invalid.
        """
        given = request.context or {}
        known = dict.fromkeys([*OF_TIMES, *(feature.name for feature in self.features)])
        for name in given:
            if name not in known:
                raise RequestError(f"context.{name_shown(name)}", f"is unknown; expected {', '.join(known)}.")
        codes, newest, now = dict[str, np.ndarray](), None, None
        if request.now is not None:
            seconds, now = request.seconds()
            pairs = zip(request.history, seconds, strict=False)  # without times there are no pairs
            times = [time for item, time in pairs if self.items.index(item) is not None]
            newest = times[-1] if times else None
        for feature in self.features:
            value, code = given.get(feature.name), UNKNOWN
            if value is not None:
                try:
                    code = feature.code(value)
                except ValueError as error:
                    raise RequestError(f"context.{feature.name}", f"is {request.shown(value)}; {error}.") from None
            if code == UNKNOWN and now is not None:
                code = feature.of_request(newest, now)
            codes[feature.name] = np.array([code], dtype=np.int16)
        return codes

    def _indices(self, ids: Collection[str], field: str, unknown: str, missing: dict[str, None]) -> list[int]:
        """Item indices of ids; unknown ids go to `missing`."""
        found: list[int] = []
        for index, item_id in enumerate(ids):
            item = self.items.index(item_id)
            if item is not None:
                found.append(item)
            elif unknown == "refuse":
                raise RequestError(f"{field}[{index}]", f"{item_id!r} is not an item of the catalogue.")
            else:
                missing[item_id] = None
        return found

    def _named(self, request: Request, items: Sequence[int], scores: Sequence[float]) -> tuple[Recommended, ...]:
        ids, titles, pairs = self.items.ids, self.items.titles, zip(items, scores, strict=True)
        chances = self.probabilities(items, np.array(scores, dtype=np.float64) - self._boosts(request, items))
        cells = [{name: self.items.columns[name].at(item) for name in request.columns} for item in items]
        known = [None] * len(items) if chances is None else chances.tolist()
        return tuple(
            Recommended(ids[item], titles[item], None if self.sids is None else self.sids[item], score, chance, own)
            for (item, score), chance, own in zip(pairs, known, cells, strict=True)
        )


def _marginal_order(scores: np.ndarray, vectors: np.ndarray, diversity: float) -> list[int]:
    """The order of maximal marginal relevance; see `Request.diversity`.

    Args:
        scores: float64 (M,).
        vectors: float32 (M, D), of length 1.
        diversity: From 0 to 1.
    """
    lowest, span = scores.min(), scores.max() - scores.min()
    relevance = (1 - diversity) * ((scores - lowest) / span if span > 0 else np.ones(len(scores)))
    nearest = np.zeros(len(scores))  # cosine to the most similar item before; nothing is before the first
    left, order = np.ones(len(scores), dtype=bool), list[int]()
    for position in range(len(scores)):
        chosen = int(np.where(left, relevance - diversity * nearest, -np.inf).argmax())
        order.append(chosen)
        left[chosen] = False
        cosines = vectors @ vectors[chosen]
        nearest = cosines if position == 0 else np.maximum(nearest, cosines)
    return order


def _as_times(times: Any) -> Any:
    """A time, or the times of a history, as a request has them."""
    if isinstance(times, str | bytes | Mapping) or not isinstance(times, Iterable):
        return plain_time(times)
    return [plain_time(each) for each in times]


def _version(path: str | os.PathLike[str], corpus: Path) -> str:
    """12 hex digits that change with the model and the corpus."""
    return hashlib.sha256(f"{fingerprint(path)}\n{fingerprint(corpus)}\n".encode()).hexdigest()[:12]
