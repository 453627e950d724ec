"""Checkpoints that generate semantic IDs or titles (language models, the catalogue model) as rankers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import numpy as np
import torch

from minionerec.core.errors import ConfigError
from minionerec.data.contexts import RequestFeature
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.beam import BeamResult, beam_search
from minionerec.models.decoding.branches import SearchModel, evaluating, vocabulary_size
from minionerec.models.decoding.decoder import Decode, decode_batches, fitting_batch_size
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import LeafModel, Mixture, rerank
from minionerec.models.decoding.names import (
    SCORES,
    SEARCHES,
    check_length_penalty,
)
from minionerec.models.decoding.titles import Titles
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt, special_texts
from minionerec.models.prompts.wording import NEXT_SID
from minionerec.recommend.rankers.candidates import CandidateGroups, candidate_maxima, list_items, ranked_items
from minionerec.recommend.rankers.experts import ExpertSearch
from minionerec.recommend.rankers.protocol import Allowed, Assistant, Queries, Ranking, context_used
from minionerec.sid.table import code_token

_BEAMS_STEP = 16

# Ranks SIDs for all prompts, in whatever batches, given the number K of beams and what decodes the prompts at some
# positions; see `decode_batches`.
DecodeAll = Callable[[Sequence[Sequence[int]], int, Decode], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Search:
    """The settings of a search over SIDs.

    Attributes:
        method: "beam", or "exact", the true best of the whole catalogue.
        scores: "full" or "renormalised", see `minionerec.models.decoding.branches.candidate_scores`.
        score_end: Whether to also score the tokens after the SID in a completion.
        batch_size: Prompts per batch; 0: as many as memory holds, see `fitting_batch_size`.
        beams: Minimum number of beams; a list of K is the head of one of max(K, beams).
        length_penalty: Scores are divided by the number of tokens to this power, by beam search alone.
    """

    method: str = "beam"
    scores: str = "full"
    score_end: bool = False
    batch_size: int = 0
    beams: int = 1
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            ConfigError: If a name is unknown, or settings do not fit the search.
        """
        for name, value, known in (("search", self.method, SEARCHES), ("scores", self.scores, SCORES)):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; known: {', '.join(known)}.")
        check_length_penalty(self.method, self.length_penalty)


class LanguageRanker:
    """A checkpoint's search over the SIDs of the catalogue.

    Items that share an SID follow one another, the more popular in training first, then the one whose id comes first.

    Args:
        bundle: The checkpoint, with its model on the device.
        corpus: Items, and training examples for popularity.
        search: The search.
        bonus: float32 (S,), added to the log-probability of each SID; nothing if None.

    Attributes:
        experts: The pool of the checkpoint's experts with its search; None for a checkpoint without experts, and for a
            catalogue model, which pools them itself. It is not combined with an assistant.
        assistant: A second recommender mixed into the search (`minionerec.models.decoding.leaves`); None without one.
        share: With an assistant, weight of the checkpoint's log-probabilities; the assistant's have the rest.
        combine: "steps": both score every step of the search; "rerank": the checkpoint is searched alone, and its list
            is reranked by the same weighted sum.

    Raises:
        DataError: If corpus and checkpoint have different items.
    """

    def __init__(
        self,
        bundle: Bundle,
        corpus: Corpus,
        search: Search | None = None,
        bonus: np.ndarray | None = None,
    ):
        self.bundle, self.search = bundle, search or Search()
        self.builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
        self.items_of = ranked_items(self.table.sid_numbers, corpus.popularity(), corpus.id_positions)
        self.bonus = None if bonus is None else torch.from_numpy(np.asarray(bonus, dtype=np.float32))
        self.assistant: Assistant | None = None
        self.share, self.combine = 1.0, "steps"
        self.experts: ExpertSearch | None = None
        if bundle.experts is not None and not bundle.experts.are_off:
            self.experts = ExpertSearch(self, bundle.experts)

    @property
    def bonus_of_items(self) -> np.ndarray | None:
        """The bonus of each item's SID, float32 (N,), in log-probability; None without one."""
        return None if self.bonus is None else self.bonus.numpy()[self.table.sid_numbers]

    @cached_property
    def table(self) -> CandidateGroups:
        """The SIDs that it generates."""
        return self.bundle.table

    @cached_property
    def item_vectors(self) -> np.ndarray | None:
        """The vector of each item's SID in the model, float32 (N, D).

        It is that of all towers of a catalogue model, side by side; of a language model the mean of the input vectors
        of the SID's tokens.
        """
        table, model = self.bundle.table, self.bundle.model
        with torch.inference_mode():
            if isinstance(model, CatalogueModel):
                parts = [tower.matrix(model.given())[1:] for tower in model.each_tower()]
                vectors = torch.cat(parts, 1)
            else:
                codes, present = torch.from_numpy(table.distinct_codes), torch.from_numpy(table.distinct_codes >= 0)
                ids = torch.from_numpy(self.bundle.code_ids)[torch.arange(codes.shape[1]), codes.clamp(min=0)]
                rows = cast(torch.Tensor, model.get_input_embeddings().weight)[ids.to(model.device)].float().cpu()
                vectors = (rows * present[..., None]).sum(1) / present.sum(1, keepdim=True)
        found: np.ndarray = vectors.float().cpu().numpy()[table.sid_numbers]
        return found

    @cached_property
    def trie(self) -> Trie:
        """Their trie, on the model's device."""
        return Trie.build(self.bundle.table.codes, self.bundle.code_ids).to(torch.device(self.bundle.model.device))

    def token_text(self, trie: Trie, node: int) -> str:
        """The token of a node of its trie."""
        return code_token(int(trie.depth[node]) - 1, int(trie.code[node]))

    @cached_property
    def end(self) -> list[int]:
        """Token ids that follow an SID in a completion."""
        completion, sid = self.builder.completion("next_sid", 0), self.table.sids[0]
        ending = completion[completion.index(sid) + len(sid) :]
        return encode_completion(self.bundle.tokenizer, [ending])[0] if ending else []

    @cached_property
    def searched(self) -> Trie:
        """The trie that is searched, with the tokens after an SID if these are scored."""
        return self.trie.with_tail(self.end) if self.search.score_end else self.trie

    @property
    def context(self) -> frozenset[str]:
        """The context of queries that it or its assistant reads."""
        own = frozenset(["events"] * bool(self.builder.wording.events))
        own |= {feature.name for feature in self.features}
        return own if self.assistant is None else own | context_used(self.assistant)

    @property
    def features(self) -> tuple[RequestFeature, ...]:
        """The request features that it or its assistant reads."""
        own = self.builder.wording.context if self.bundle.task == NEXT_SID else ()
        return own if self.assistant is None else tuple(dict.fromkeys([*own, *self.assistant.features]))

    def prompts(self, queries: Queries) -> tuple[list[str], list[list[int]], int]:
        """The prompt of the model for each query, its token ids, and how many were truncated."""
        codes = queries.codes([feature.name for feature in self.builder.wording.context])
        texts = [
            self.builder.prompt(self.bundle.task, history=history, context=context, events=events)
            for history, context, events in zip(queries.histories, codes.tolist(), queries.history_events, strict=True)
        ]
        return texts, *encode_prompt(self.bundle.tokenizer, texts, self.bundle.max_prompt_length)

    def model_after(self, queries: Queries, prompts: Sequence[Sequence[int]]) -> SearchModel:
        """The model for the prompts of queries; the experts of a catalogue model know all that was seen."""
        model = self.bundle.model
        if not isinstance(model, CatalogueModel):
            return model
        return model.knowing(prompts, [self.table.sid_numbers[past] for past in queries.seen])

    @cached_property
    def _candidates(self) -> Callable[[np.ndarray], np.ndarray]:
        return candidate_maxima(self.table.sid_numbers)

    def rank(self, queries: Queries, k: int, allowed: Allowed | None = None) -> Ranking:
        """See `minionerec.recommend.rankers.protocol.Ranker`; candidates are distinct SIDs."""
        return self.rank_prompts(queries, self.prompts(queries)[1], k, allowed)

    def rank_prompts(
        self,
        queries: Queries,
        prompts: Sequence[Sequence[int]],
        k: int,
        allowed: Allowed | None = None,
        decode_all: DecodeAll | None = None,
    ) -> Ranking:
        """The best items for prompts.

        The number of beams grows with the number of excluded items, in steps of 16, as these tend to rank high. Rows
        with the same number of beams are searched together, so that a list does not depend on other queries.

        Args:
            queries: R queries, which an assistant reads.
            prompts: Token ids of their prompts; equal ones with the same allowed items are searched once, unless an
                assistant, experts, or what was seen before, distinguishes their queries.
            k: Distinct SIDs of each list.
            allowed: Items that may be listed, per row; all if None.
            decode_all: Decodes all distinct prompts, with the largest number of beams; in batches, here, if None.
        """
        if allowed is not None and allowed.unrestricted:
            allowed = None
        model = self.bundle.model
        by_seen = isinstance(model, CatalogueModel) and model.reads_seen
        named = [
            self.assistant is not None or self.experts is not None or (by_seen and len(seen) > len(history))
            for history, seen in zip(queries.histories, queries.seen, strict=True)
        ]
        firsts: dict[object, int] = {}  # the first row of each distinct query
        keys = [
            (
                tuple(ids),
                None if allowed is None else allowed.key(row),
                queries.key(row) if named[row] else None,
            )
            for row, ids in enumerate(prompts)
        ]
        for row, key in enumerate(keys):
            firsts.setdefault(key, row)
        first_rows, index_of = list(firsts.values()), {key: position for position, key in enumerate(firsts)}
        counts = [self.num_beams(k, 0 if allowed is None else len(allowed.without[row])) for row in first_rows]
        if decode_all is not None:
            counts = [max(counts)] * len(counts)
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for num_beams in sorted(set(counts)):
            positions = [position for position, own in enumerate(counts) if own == num_beams]
            rows = [first_rows[position] for position in positions]
            decode = partial(self._decode, queries, prompts, allowed, num_beams, rows)
            sids, scores = (decode_all or self.decode_all)([prompts[row] for row in rows], num_beams, decode)
            found |= {position: (sids[at], scores[at]) for at, position in enumerate(positions)}
        items: list[list[int]] = []
        values: list[list[float]] = []
        for row, key in enumerate(keys):
            numbers, own_scores = found[index_of[key]]
            candidates = [number for number in numbers.tolist() if number >= 0]
            listed, chosen = list_items(candidates, self.items_of, k, None if allowed is None else allowed.row(row))
            items.append(listed)
            values.append([float(own_scores[at]) for at in chosen])
        return Ranking(items, values)

    def num_beams(self, k: int, left_out: int) -> int:
        """Number of beams for a list of `k`, by the number of excluded items."""
        beams = max(k, self.search.beams)
        if left_out:
            beams = -(-(beams + left_out) // _BEAMS_STEP) * _BEAMS_STEP
        return min(beams, self.table.n_unique)

    def _decode(
        self,
        queries: Queries,
        prompts: Sequence[Sequence[int]],
        allowed: Allowed | None,
        num_beams: int,
        rows: Sequence[int],
        positions: Sequence[int],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lists of some of these rows, by their positions among them; see `Decode`."""
        chosen = [rows[position] for position in positions]
        sids = None if allowed is None else torch.from_numpy(self._candidates(allowed.rows(chosen)))
        with evaluating(self.bundle.model):
            found = self._search(queries, chosen, [prompts[row] for row in chosen], num_beams, sids)
        return found.sids.cpu().numpy(), found.scores.float().cpu().numpy()

    def _search(
        self,
        queries: Queries,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        num_beams: int,
        sids: torch.Tensor | None,
    ) -> BeamResult:
        model = self.model_after(queries.take(rows), prompts)
        if self.experts is not None:
            return self.experts.search(queries.take(rows), model, prompts, num_beams, sids)
        if self.assistant is None:
            return self.search_model(model, prompts, num_beams, sids)
        log_probs = self.assistant.log_probs(queries.take(rows)).to(model.device)
        if self.combine == "steps":
            mixture = Mixture(model, LeafModel(log_probs, vocabulary_size(model)), self.share)
            return self.search_model(mixture, prompts, num_beams, sids)
        if self.bonus is not None:
            log_probs = log_probs + self.bonus.to(model.device)
        if self.search.length_penalty:
            lengths = self.searched.depth[self.searched.node_of_sid]
            log_probs = log_probs / lengths**self.search.length_penalty
        return rerank(self.search_model(model, prompts, num_beams, sids), log_probs, self.share)

    def search_model(
        self, model: SearchModel, prompts: Sequence[Sequence[int]], num_beams: int, sids: torch.Tensor | None
    ) -> BeamResult:
        """The search of a model alone.

        Args:
            model: The model.
            prompts: Token ids of B prompts.
            num_beams: Length of the lists, and of beam search the number of beams.
            sids: bool (B, S), SIDs that may be listed; all if None.
        """
        how = self.search
        guide = None if sids is None and self.bonus is None else Guide.of(self.searched, sids, self.bonus)
        if how.method == "exact":
            return exact_search(model, prompts, self.searched, num_beams, how.scores, guide=guide)
        return beam_search(model, prompts, self.searched, num_beams, how.scores, guide, how.length_penalty)

    def decode_all(
        self, prompts: Sequence[Sequence[int]], num_beams: int, decode: Decode
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search for all prompts, those of similar length together.

        Returns:
            SID numbers int64 (R, K), -1 after the end of shorter lists, and scores float32 (R, K).
        """
        return decode_batches(decode, prompts, num_beams, self.batch_size(prompts, num_beams), "recommending")

    def batch_size(self, prompts: Sequence[Sequence[int]], num_beams: int) -> int:
        """Prompts per batch."""
        beams = num_beams if self.experts is None else self.experts.beams(num_beams)
        return self.search.batch_size or fitting_batch_size(self.bundle.model, self.searched, prompts, beams)


class TitleRanker(LanguageRanker):
    """A checkpoint's search over the distinct titles of the catalogue; see `LanguageRanker`, titles in place of SIDs.

    Items of one title follow one another, the more popular in training first, then the one whose id comes first. The
    end of a title is part of it and of its score.
    """

    item_vectors = None

    @cached_property
    def table(self) -> Titles:
        """The titles that it generates."""
        return Titles.of(self.bundle.tokenizer, self.builder)

    @cached_property
    def trie(self) -> Trie:
        """Their trie, on the model's device."""
        return self.table.trie.to(torch.device(self.bundle.model.device))

    def token_text(self, trie: Trie, node: int) -> str:
        """The token of a node of its trie: a piece of a title."""
        return str(self.bundle.tokenizer.decode([int(trie.token[node])]))

    @property
    def end(self) -> list[int]:
        """Nothing: titles end as completions do."""
        return []
