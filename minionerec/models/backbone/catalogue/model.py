"""The catalogue model: towers, their average, and its interface for searches and stock `generate`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.backbone.catalogue import blocks
from minionerec.models.backbone.catalogue.blocks import BlockBranches, Blocks, newest_slots
from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.backbone.catalogue.sampled import Sample, sampled_losses
from minionerec.models.backbone.catalogue.tower import SidBlock, Tower
from minionerec.models.decoding.branches import OpensBranches, pad_left
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import LeafBranches, LeafModel, node_log_probs
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.experts import Experts
from minionerec.models.nn.history import PairCounts, ScoredPositions
from minionerec.models.nn.layers import CausalLayer, Dropout, check_heads
from minionerec.models.nn.rows import ColumnSubset
from minionerec.models.nn.session import LearnedPopularity

# SIDs in a text of tokens, and the prefix that it has reached.


def read_tokens(trie: Trie, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read tokens from the left; those that are no codes are passed over.

    Args:
        trie: SIDs of the catalogue.
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.

    Returns:
        The SID that is complete at each token (-1 for none), and the prefix reached with it; both int64 (B, T).
    """
    tokens = ids.masked_fill(~mask, -1)
    sids, nodes = torch.full_like(ids, -1), torch.zeros_like(ids)
    # The prefix that began `depth` tokens before: one ends where the next token is none of its children, for another
    # can begin there but not continue.
    reached = torch.zeros_like(ids)
    for depth in range(min(trie.levels, ids.shape[1])):
        reached = trie.find(reached[:, : ids.shape[1] - depth].clamp(min=0), tokens[:, depth:]).where(
            (reached >= 0)[:, : ids.shape[1] - depth], -1
        )
        complete = torch.where(reached >= 0, trie.sid[reached.clamp(min=0)].long(), -1)
        sids[:, depth:] = torch.where(complete >= 0, complete, sids[:, depth:])
        reached = reached.masked_fill(complete >= 0, -1)
        nodes[:, depth:] = torch.where(reached >= 0, reached, nodes[:, depth:])
    return sids, nodes


def newest_items(sids: torch.Tensor, count: int) -> torch.Tensor:
    """The newest SIDs of rows with gaps.

    Args:
        sids: int64 (B, T), SID numbers, -1 in gaps.
        count: Most SIDs of a row.

    Returns:
        int64 (B, H), numbers from 1, 0 after the end.
    """
    order = (sids < 0).long().argsort(dim=1, stable=True)
    kept = (sids.gather(1, order) + 1)[:, : max(1, int((sids >= 0).sum(1).max()))]
    lengths, width = (kept > 0).sum(1, keepdim=True), min(kept.shape[1], count)
    positions = torch.arange(width, device=sids.device) + (lengths - width).clamp(min=0)
    return kept.gather(1, positions)


def prompt_contexts(ids: torch.Tensor, mask: torch.Tensor, sids: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """The session context that texts give up to each token: the newest token for it since the newest SID.

    Args:
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.
        sids: int64 (B, T), see `read_tokens`.
        tokens: Token ids of the known contexts, in the order of `minionerec.data.contexts.SESSION_CONTEXTS`.

    Returns:
        int64 (B, T), indices into `minionerec.data.contexts.SESSION_CONTEXTS`.
    """
    marked = torch.zeros_like(ids)
    for context, token in enumerate(tokens, start=1):
        marked = marked.masked_fill((ids == token) & mask, context)
    position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    newest = torch.where((marked > 0) | (sids >= 0), position, -1).cummax(1).values
    return torch.where(newest >= 0, marked.gather(1, newest.clamp(min=0)), 0)


INIT_STD = 0.02


class CatalogueModel(PreTrainedModel, GenerationMixin, OpensBranches):
    """The model; see the package. It is built by `build_catalogue`, and read by `AutoModelForCausalLM`.

    Args:
        config: Shape.
    """

    config_class = CatalogueConfig
    config: CatalogueConfig
    main_input_name = "input_ids"
    text: torch.Tensor
    codes: torch.Tensor
    code_tokens: torch.Tensor
    code_rows: torch.Tensor

    def __init__(self, config: CatalogueConfig):
        super().__init__(config)
        check_heads(config.hidden_size, config.num_attention_heads)
        size = config.num_sids
        if config.text_width:
            self.register_buffer("text", torch.zeros(size, config.text_width))
        self.register_buffer("codes", torch.zeros(size, config.levels, dtype=torch.int32))
        self.register_buffer("code_tokens", torch.full((config.levels, config.max_code + 1), -1))
        if config.code_vectors:
            self.register_buffer("code_rows", torch.zeros(config.levels, size, dtype=torch.int64))
        self.pairs = None
        if config.num_transitions:
            self.pairs = PairCounts(size, config.num_transitions, config.reach, config.decay, config.reverse)
        sizes = config.code_sizes if config.code_vectors else []
        self.popularity = LearnedPopularity(size) if config.session_tokens else None
        self.experts = None
        if config.experts:
            self.experts = Experts(size, config.num_expert_counts, config.num_expert_neighbours)
        self.towers = nn.ModuleList(Tower(config, sizes) for _ in range(config.towers))
        PreTrainedModel.post_init(self)

    def flaw(self, codes: np.ndarray) -> str | None:
        """The error in a model that was read from files; None if there is none.

        Args:
            codes: int (S, L), the distinct SIDs of the model.
        """
        if not np.array_equal(self.codes.cpu().numpy(), codes):
            return "its SIDs differ"
        if self.config.code_vectors:
            most, sizes = self.code_rows.amax(1).tolist(), list(self.config.code_sizes)
            fits = len(most) == len(sizes) and all(row < size for row, size in zip(most, sizes, strict=True))
            if not fits or int(self.code_rows.min()) < 0:
                return "its SIDs name code vectors that it does not have"
        flaw = None if self.pairs is None else self.pairs.flaw()
        return flaw if flaw or self.experts is None else self.experts.flaw()

    def each_tower(self) -> Iterator[Tower]:
        """The towers, one after another."""
        for tower in self.towers:
            yield cast(Tower, tower)

    def freeze(self) -> None:
        """Compute the vectors of all SIDs once, for a model whose weights will not change; training mode undoes it."""
        text, rows = self.given()
        torch.nn.Module.eval(self)
        for tower in self.each_tower():
            tower.freeze(text, rows)

    def given(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Text vectors and rows of code vectors, where there are any."""
        return self.text if self.config.text_width else None, self.code_rows if self.config.code_vectors else None

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INIT_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @property
    def trie(self) -> Trie:
        """The SIDs of the model, on its device."""
        if self._trie.code.device != self.device:
            self._trie = self._trie.to(self.device)
        return self._trie

    @cached_property
    def _trie(self) -> Trie:
        return Trie.build(self.codes.cpu().numpy(), self.code_tokens.cpu().numpy())

    def set_dropout(self, probability: float) -> None:
        """Set the dropout of item vectors at the input and after each part of a layer; checkpoints do not keep it."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.p = probability
        for module in self.modules():
            if isinstance(module, CausalLayer):
                module.attention_dropout.p = 0.0

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        histories: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        distribution: bool = False,
        leave_out: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
        sample: Sample | None = None,
        contexts: torch.Tensor | None = None,
        candidates: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Next-token logits of token sequences, or the distribution over SIDs (or its loss) of histories.

        Args:
            input_ids: int64 (B, T), token ids; SIDs in them are read, other tokens are passed over.
            attention_mask: int64 (B, T), 0 at padding.
            histories: int64 (B, T), numbers of SIDs from 1, padded with 0 on the right; instead of `input_ids`.
            labels: int64 (B, T), number from 1 of the SID after each position, -100 where there is none; with
                `histories`.
            weights: float32 (B, T), weight of each label's loss; all 1 if None.
            distribution: With labels: give log-probabilities instead of the loss.
            leave_out: With labels: whether these are windows that were counted, so that each position leaves out what
                its own label and later ones added to the counts.
            num_items_in_batch: Labels that the loss is divided by; those of this batch if None.
            sample: With labels: the SIDs whose scores the loss is estimated from; all, and exactly, if None.
            contexts: int64 (B, T), with `histories`: session context of the SID after each position. Unknown if
                None.
            candidates: bool (N,), with labels and no sample: the SIDs that the loss is normalised over, every label
                among them; all if None.

        Returns:
            For `input_ids`: logits float32 (B, T, vocabulary), log-probabilities of the codes that may follow and the
            lowest float elsewhere. For `histories`: with labels the loss, float scalar, mean over towers and labels of
            the negative log-probability; else as logits the log-probabilities of every SID, float32 (P, N), averaged
            over towers: after the newest item of each history, or with `distribution` at each label, row by row.

        Raises:
            ValueError: If there is neither.
        """
        if histories is None:
            if input_ids is None:
                raise ValueError("give input_ids or histories.")
            return CausalLMOutput(logits=self._token_logits(input_ids, attention_mask))
        if labels is None:
            newest = newest_slots(histories)
            return CausalLMOutput(logits=self.leaf_log_probs(histories, None if contexts is None else contexts[newest]))
        row, slot = (labels > 0).nonzero(as_tuple=True)
        contexts = None if contexts is None else contexts[row, slot].long()
        counted, wanted = labels if leave_out else None, labels[row, slot] - 1
        if distribution:
            positions = self._positions(histories, row, slot, counted, contexts)
            return CausalLMOutput(logits=self._log_probs(histories, positions))
        losses = self._losses(
            histories, ScoredPositions(row, slot, contexts=contexts), wanted, counted, sample, candidates
        )
        total = losses.sum() if weights is None else losses @ weights[row, slot]
        return CausalLMOutput(loss=total / (num_items_in_batch or max(1, len(wanted))))

    def _losses(
        self,
        histories: torch.Tensor,
        at: ScoredPositions,
        wanted: torch.Tensor,
        counted: torch.Tensor | None,
        sample: Sample | None,
        candidates: torch.Tensor | None,
    ) -> torch.Tensor:
        """Negative log-likelihood of the SID wanted at each position, the mean of the towers': float32 (P,)."""
        row, slot, contexts = at.row, at.slot, at.contexts
        if sample is not None:
            columns, _ = sample
            positions = self.positions_at(histories, row, slot, columns, counted, contexts)
            part = SidBlock.of(histories, columns, positions)
            found = (tower.scores_at(part, *self.given()) for tower in self.each_tower())
            scores = [self.with_popularity(each, positions.known_contexts, columns.numbers) for each in found]
            return torch.stack([sampled_losses(each, sample, row, wanted) for each in scores]).mean(0)
        if self.by_blocks and not torch.is_grad_enabled() and counted is None:
            return Blocks(self, histories, row, slot, contexts).losses(wanted)
        scores = self._scores(histories, self._positions(histories, row, slot, counted, contexts))
        if candidates is not None:
            scores = [each.masked_fill(~candidates, -torch.inf) for each in scores]
        losses = [nn.functional.cross_entropy(each.float(), wanted, reduction="none") for each in scores]
        return torch.stack(losses).mean(0)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *_: Any, attention_mask: torch.Tensor | None = None, **__: Any
    ) -> dict[str, Any]:
        """Whole sequences at every step of stock `generate`, for there are no keys and values to continue from."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def with_popularity(
        self, scores: torch.Tensor, contexts: torch.Tensor, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores of SIDs, of some if `columns` names them, with what popularity adds; see `LearnedPopularity`."""
        return scores if self.popularity is None else self.popularity(scores, contexts, columns)

    def leaf_log_probs(
        self, histories: torch.Tensor, contexts: torch.Tensor | None = None, older: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log-probabilities of all SIDs after the newest item.

        Args:
            histories: int64 (B, T), numbers from 1, padded with 0 on the right; a row without items is scored by the
                biases alone, but for what the layers make of nothing.
            contexts: int64 (B,), session context of the next SID; None: unknown.
            older: int64 (B, O), SIDs that were seen before each history, which the experts alone read; see
                `minionerec.models.nn.experts.Experts.terms`.

        Returns:
            float32 (B, N), in the order of SID numbers.
        """
        positions = self._positions(histories, *newest_slots(histories), contexts=contexts)
        return self._log_probs(histories, positions, older)

    def masses(
        self, histories: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, contexts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log-probabilities of all nodes of the trie at positions of histories, as they are when recommending.

        Args:
            histories: int64 (B, T), numbers from 1, padded with 0 on the right.
            rows: int64 (P,), the history of each position.
            slots: int64 (P,), its column.
            contexts: int64 (P,), session context of the SID after each; None: unknown.

        Returns:
            float32 (P, M).
        """
        return self.node_log_probs(
            self._log_probs(histories, self._positions(histories, rows, slots, contexts=contexts))
        )

    def _log_probs(
        self, histories: torch.Tensor, positions: ScoredPositions, older: torch.Tensor | None = None
    ) -> torch.Tensor:
        found = [scores.float().log_softmax(-1) for scores in self._scores(histories, positions)]
        mean = found[0] if len(found) == 1 else torch.stack(found).logsumexp(0) - float(np.log(len(found)))
        return (
            mean
            if self.experts is None
            else self.experts(mean, histories, positions.row, positions.slot, positions.known_contexts, older)
        )

    def _scores(self, histories: torch.Tensor, positions: ScoredPositions) -> list[torch.Tensor]:
        found = (tower.scores(histories, positions, *self.given()) for tower in self.each_tower())
        return [self.with_popularity(scores, positions.known_contexts) for scores in found]

    def tower_scores(
        self, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor, contexts: torch.Tensor
    ) -> list[torch.Tensor]:
        """Each tower's scores of all SIDs at positions of histories, float32 (P, N); arguments as of `masses`."""
        return [
            scores.float() for scores in self._scores(histories, self._positions(histories, row, slot, None, contexts))
        ]

    def _positions(
        self,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        labels: torch.Tensor | None = None,
        contexts: torch.Tensor | None = None,
    ) -> ScoredPositions:
        """Positions, their counts and contexts; with labels, without what a position's own and later ones added."""
        positions = (
            ScoredPositions(row, slot) if self.pairs is None else self.pairs.positions(histories, row, slot, labels)
        )
        return replace(positions, contexts=contexts)

    def positions_at(
        self,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        columns: ColumnSubset,
        labels: torch.Tensor | None = None,
        contexts: torch.Tensor | None = None,
    ) -> ScoredPositions:
        """Positions for the scores of some SIDs alone; see `minionerec.models.nn.history.PairCounts.positions_at`."""
        if self.pairs is None:
            return ScoredPositions(row, slot, contexts=contexts)
        return replace(self.pairs.positions_at(histories, row, slot, columns, labels), contexts=contexts)

    def row_tables(self, rows: torch.Tensor, columns: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Each parameter of which a sampled loss takes rows, with the rows, some of them repeatedly.

        Args:
            rows: int64 (R,), SIDs whose vectors are taken.
            columns: int64 (C,), SIDs that are scored.
        """
        for tower in self.each_tower():
            yield from tower.row_tables(rows, columns, self.given()[1])

    @property
    def by_blocks(self) -> bool:
        """Whether there are so many SIDs that they are scored block by block."""
        return bool(self.config.num_sids > blocks.SIDS_AT_ONCE)

    def node_log_probs(self, leaf_log_probs: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all nodes of the trie, the root's being 0.

        Args:
            leaf_log_probs: float32 (B, N).

        Returns:
            float32 (B, M).
        """
        return node_log_probs(self.trie, leaf_log_probs)

    def _token_logits(self, ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        sids, nodes = read_tokens(self.trie, ids, mask)
        logits = torch.full((*ids.shape, self.config.vocab_size), torch.finfo(torch.float32).min, device=ids.device)
        trie, contexts = self.trie, prompt_contexts(ids, mask, sids, self.config.session_tokens)
        for position in range(ids.shape[1]):
            histories = newest_items(sids[:, : position + 1], self.config.max_history)
            masses = self.node_log_probs(self.leaf_log_probs(histories, contexts[:, position]))
            children, present = trie.children(nodes[:, position])
            steps = masses.gather(1, children) - masses.gather(1, nodes[:, position, None])
            row, which = present.nonzero(as_tuple=True)
            logits[row, position, trie.tokens(children[row, which])] = steps[row, which]
        return logits

    def questions_of(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The SIDs of prompts, and the session contexts that they give.

        Returns:
            int64 (B, H), numbers from 1, 0 after the end; and int64 (B,), indices into
            `minionerec.data.contexts.SESSION_CONTEXTS`.

        Raises:
            DataError: If a prompt ends inside an SID.
        """
        ids, mask = pad_left(prompts, self.device)
        sids, nodes = read_tokens(self.trie, ids, mask)
        inside = nodes[:, -1].nonzero().flatten().tolist()
        if inside:
            raise DataError(f"prompt {inside[0]} of the batch ends inside an SID; give whole SIDs.")
        contexts = prompt_contexts(ids, mask, sids, self.config.session_tokens)[:, -1]
        return newest_items(sids, self.config.max_history), contexts

    @property
    def reads_seen(self) -> bool:
        """Whether it makes use of what was seen before the newest `max_history` SIDs: its experts do."""
        return not self.by_blocks and self.experts is not None and not self.experts.are_off

    def knowing(self, prompts: Sequence[Sequence[int]], seen: Sequence[np.ndarray]) -> OpensBranches:
        """The model after these prompts, whose experts know all that was seen.

        Args:
            prompts: B token id lists, none empty.
            seen: For each the numbers of all SIDs that were seen, from 0, oldest first, those of the prompt last.

        Returns:
            The model itself where it has no use for older SIDs, or there are none.

        Raises:
            DataError: If a prompt ends inside an SID.
        """
        if not self.reads_seen or all(len(past) <= self.config.max_history for past in seen):
            return self
        histories, contexts = self.questions_of(prompts)
        lengths = (histories > 0).sum(1).tolist()
        older, _ = pad_left(
            [(past[: len(past) - length] + 1).tolist() for past, length in zip(seen, lengths, strict=True)], self.device
        )
        return LeafModel(self.leaf_log_probs(histories, contexts, older), self.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary of prompts and tries."""
        return self.config.vocab_size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> LeafBranches:
        """Branches for the project's searches (`minionerec.models.decoding.branches.open_branches`).

        Raises:
            ConfigError: If the trie holds SIDs that the model does not have.
        """
        if trie.levels > self.config.levels or trie.max_token > self.trie.max_token:
            raise ConfigError("the trie's SIDs are longer than the model's: it scores nothing after an SID.")
        histories, contexts = self.questions_of(prompts)
        if self.by_blocks:
            return BlockBranches(self.trie, Blocks(self, histories, *newest_slots(histories), contexts))
        return LeafBranches(self.trie, self.node_log_probs(self.leaf_log_probs(histories, contexts)))

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor | None:
        """Log-probabilities of all SIDs, float32 (B, N); None where the trie's SIDs are others, or very many."""
        if self.by_blocks or not self._generates(trie):
            return None
        return self.leaf_log_probs(*self.questions_of(prompts))

    def best_sids(
        self, prompts: Sequence[Sequence[int]], trie: Trie, k: int, guide: Guide
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The best SIDs of very many, block by block; see `best_sids`."""
        if not (self.by_blocks and self._generates(trie)):
            return None
        histories, contexts = self.questions_of(prompts)
        return Blocks(self, histories, *newest_slots(histories), contexts).best(k, guide)

    def values_at_once(self, trie: Trie) -> int:
        """Values in memory for one prompt while it is scored, besides those of the layers."""
        return blocks.most_values((self.config.num_sids, len(self.trie.code), self.config.towers))

    def _generates(self, trie: Trie) -> bool:
        own = self.trie
        return torch.equal(trie.first_child, own.first_child) and torch.equal(trie.token, own.token)


AutoConfig.register(CatalogueConfig.model_type, CatalogueConfig)
AutoModelForCausalLM.register(CatalogueConfig, CatalogueModel)


# A model with random weights, for a catalogue.


def check_lengths(codes: np.ndarray) -> None:
    """Check that SIDs are of one length, as a catalogue model needs them.

    Args:
        codes: int (N, L), -1 after shorter SIDs.

    Raises:
        ConfigError: If one is shorter.
    """
    if codes.min() < 0:
        raise ConfigError("a catalogue model needs SIDs of one length; resolve collisions by relocation or keep them.")


def build_catalogue(
    config: CatalogueConfig,
    codes: np.ndarray,
    code_tokens: np.ndarray,
    text: np.ndarray | None = None,
    transitions: csr_array | None = None,
    experts: Experts | None = None,
) -> CatalogueModel:
    """A model with random weights for a catalogue.

    Args:
        config: Shape; what follows from the other arguments is set here.
        codes: int (N', L), codes of items; equal rows are one SID.
        code_tokens: int64 (L, C), vocabulary ids of codes (`minionerec.models.backbone.vocabulary.code_token_ids`).
        text: float32 (N, T), text vectors of the distinct SIDs, in the order of SID numbers; None for none.
        transitions: Counts between SID numbers; None for none.
        experts: The experts, by SID numbers; None for none.

    Raises:
        ConfigError: If SIDs differ in length, or the text vectors do not fit.
    """
    distinct = np.unique(codes, axis=0)
    check_lengths(distinct)
    if text is not None and len(text) != len(distinct):
        raise ConfigError(f"there are {len(text)} text vectors for {len(distinct)} SIDs.")
    config.num_sids, config.levels, config.max_code = len(distinct), distinct.shape[1], code_tokens.shape[1] - 1
    config.text_width = 0 if text is None else text.shape[1]
    config.num_transitions = 0 if transitions is None else transitions.nnz
    config.experts = experts is not None
    config.num_expert_counts = 0 if experts is None else len(experts.followers)
    config.num_expert_neighbours = 0 if experts is None else len(experts.neighbours)
    # A vector for each prefix but the whole SID, and for the last code by itself.
    rows = [np.unique(distinct[:, : level + 1], axis=0, return_inverse=True)[1] for level in range(config.levels - 1)]
    code_rows = np.stack([*(row.reshape(-1) for row in rows), distinct[:, -1].astype(np.int64)])
    config.code_sizes = (code_rows.max(1) + 1).tolist()
    model = CatalogueModel(config)
    with torch.no_grad():
        model.codes.copy_(torch.from_numpy(distinct))
        model.code_tokens.copy_(torch.from_numpy(code_tokens))
        if config.code_vectors:
            model.code_rows.copy_(torch.from_numpy(code_rows))
        if text is not None:
            model.text.copy_(torch.from_numpy(text))
        if experts is not None and model.experts is not None:
            model.experts.load_state_dict(experts.state_dict())
        if transitions is not None and model.pairs is not None:  # there are none of them where no pair was counted
            model.pairs.set(transitions)
            for tower in model.each_tower():
                tower.history.start_counts(config.decay)
    return model
