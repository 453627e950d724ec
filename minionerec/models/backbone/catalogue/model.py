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

from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.roles import ColumnCode
from minionerec.models.backbone.catalogue import blocks
from minionerec.models.backbone.catalogue.blocks import BlockBranches, Blocks, mean_log_probs, newest_slots
from minionerec.models.backbone.catalogue.config import CatalogueConfig
from minionerec.models.backbone.catalogue.sampled import Sample, sampled_losses
from minionerec.models.backbone.catalogue.tower import SidInputs, Tower
from minionerec.models.decoding.branches import OpensBranches, pad_left
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.leaves import LeafBranches, LeafModel, node_log_probs
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.context import LearnedPopularity
from minionerec.models.nn.experts import Experts
from minionerec.models.nn.history import PairCounts, ScoredPositions
from minionerec.models.nn.layers import INIT_STD, CausalLayer, Dropout, check_heads
from minionerec.models.nn.rows import ColumnSubset


def read_tokens(trie: Trie, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the SIDs in token sequences; tokens that are no codes are ignored.

    Args:
        trie: SIDs of the catalogue.
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.

    Returns:
        The number of the SID that ends at each token (-1 for none), and the trie node of the unfinished SID after it (0
            for none); both int64 (B, T).
    """
    tokens = ids.masked_fill(~mask, -1)
    sids, nodes = torch.full_like(ids, -1), torch.zeros_like(ids)
    # Node of the prefix that began `depth` tokens before, -1 if the tokens since then are no prefix.
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


def newest_items(sids: torch.Tensor, events: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the newest SIDs of sequences with gaps, and their events.

    Args:
        sids: int64 (B, T), SID numbers, -1 in gaps.
        events: int64 (B, T), event of each SID, 0 where unknown.
        count: Maximum number of SIDs of a sequence.

    Returns:
        Two int64 (B, H): numbers from 1, 0 after the end; and events.
    """
    order = (sids < 0).long().argsort(dim=1, stable=True)[:, : max(1, int((sids >= 0).sum(1).max()))]
    packed, packed_events = sids.gather(1, order) + 1, events.gather(1, order)
    lengths, width = (packed > 0).sum(1, keepdim=True), min(packed.shape[1], count)
    positions = torch.arange(width, device=sids.device) + (lengths - width).clamp(min=0)
    newest = packed.gather(1, positions)
    return newest, packed_events.gather(1, positions).masked_fill(newest == 0, 0)


def prompt_events(ids: torch.Tensor, mask: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Event of the SID that ends at each token, int64 (B, T): that of the token behind it; from 1, 0 for none.

    Args:
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.
        tokens: Token ids of the events.
    """
    marked = torch.zeros_like(ids)
    for number, token in enumerate(tokens, start=1):
        marked = marked.masked_fill((ids == token) & mask, number)
    return nn.functional.pad(marked[:, 1:], (0, 1))


def prompt_contexts(
    ids: torch.Tensor, mask: torch.Tensor, sids: torch.Tensor, tokens: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Codes of request features at each token, int64 (B, T, F).

    They are those of the newest tokens of each feature after the newest SID, else unknown.

    Args:
        ids: int64 (B, T), token ids.
        mask: bool (B, T), False at padding.
        sids: int64 (B, T), see `read_tokens`.
        tokens: For each of F features the token ids of its known codes.
    """
    position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    codes = [torch.zeros((*ids.shape, 0), dtype=torch.int64, device=ids.device)]
    for of_feature in tokens:
        marked = torch.zeros_like(ids)
        for code, token in enumerate(of_feature, start=1):
            marked = marked.masked_fill((ids == token) & mask, code)
        newest = torch.where((marked > 0) | (sids >= 0), position, -1).cummax(1).values
        codes.append(torch.where(newest >= 0, marked.gather(1, newest.clamp(min=0)), 0)[..., None])
    return torch.cat(codes, 2)


class CatalogueModel(PreTrainedModel, GenerationMixin, OpensBranches):
    """The catalogue model (see the package), built by `build_catalogue` and loaded by `AutoModelForCausalLM`."""

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
        self.popularity = LearnedPopularity(config.context_sizes, size) if config.context_tokens else None
        self.experts = None
        if config.experts:
            self.experts = Experts(
                size,
                config.num_expert_counts,
                config.num_expert_neighbours,
                config.num_expert_ease,
                config.expert_width,
            )
        self.towers = nn.ModuleList(Tower(config, sizes) for _ in range(config.towers))
        PreTrainedModel.post_init(self)

    def flaw(self, codes: np.ndarray) -> str | None:
        """Describe the first inconsistency of a loaded model of the distinct SIDs `codes`, int (S, L); None without."""
        if not np.array_equal(self.codes.cpu().numpy(), codes):
            return "its SIDs differ"
        try:
            self.item_columns()
        except ArtefactError as error:
            return str(error)
        if self.config.code_vectors:
            largest, sizes = self.code_rows.amax(1).tolist(), list(self.config.code_sizes)
            fits = len(largest) == len(sizes) and all(row < size for row, size in zip(largest, sizes, strict=True))
            if not fits or int(self.code_rows.min()) < 0:
                return "its SIDs name code vectors that it does not have"
        flaw = None if self.pairs is None else self.pairs.flaw()
        return flaw if flaw or self.experts is None else self.experts.flaw()

    def each_tower(self) -> Iterator[Tower]:
        """Iterate over the towers."""
        for tower in self.towers:
            yield cast(Tower, tower)

    def item_columns(self) -> list[ColumnCode]:
        """The columns of the items whose codes are the last entries of `text`.

        Raises:
            ArtefactError: If the configuration describes no columns, or wider ones than the model has.
        """
        columns = [ColumnCode.read(stored, "item_columns of config.json") for stored in self.config.item_columns]
        if sum(column.width for column in columns) > self.config.text_width:
            raise ArtefactError("item_columns of config.json are wider than text_width")
        return columns

    @property
    def texts_width(self) -> int:
        """How many entries of `text` are of texts; those of columns follow."""
        return int(self.config.text_width) - sum(column.width for column in self.item_columns())

    def freeze(self) -> None:
        """Switch to evaluation mode and cache the vectors of all SIDs; training mode discards them."""
        torch.nn.Module.eval(self)
        for tower in self.each_tower():
            tower.freeze(self.given())

    def given(self) -> SidInputs:
        """Given vectors and rows of code vectors."""
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
        """Set the dropout of input vectors and of the sublayers' outputs; it is not saved in checkpoints."""
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
        events: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Compute next-token logits of token sequences, or the distribution over SIDs (or its loss) of histories.

        Args:
            input_ids: int64 (B, T), token ids; tokens that are no codes are ignored.
            attention_mask: int64 (B, T), 0 at padding.
            histories: int64 (B, T), numbers of SIDs from 1, padded with 0 on the right; instead of `input_ids`.
            labels: int64 (B, T), number from 1 of the SID after each position, -100 for none; with `histories`.
            weights: float32 (B, T), weight of each label's loss; all 1 if None.
            distribution: With labels: whether to return log-probabilities instead of the loss.
            leave_out: With labels: whether the windows were counted, so that each position excludes the counts of its
                own label and later ones.
            num_items_in_batch: Divisor of the summed loss; the number of labels if None.
            sample: With labels: SIDs from whose scores the loss is estimated; if None, the loss is exact.
            contexts: int64 (B, T, F), with `histories`: codes of the request features of the SID after each position;
                unknown if None.
            events: int64 (B, T), with `histories`: event of each item, from 1 by `config.event_tokens`, 0 where it is
                unknown; all unknown if None.

        Returns:
            For `input_ids`: logits float32 (B, T, vocabulary), log-probabilities of the codes that may follow and the
            lowest float elsewhere. For `histories`: with labels the loss, float scalar, mean over towers and labels of
            the negative log-probability; else as logits the log-probabilities of every SID, float32 (P, N), averaged
            over towers: after the newest item of each history, or with `distribution` at each label, row by row.

        Raises:
            ValueError: If neither `input_ids` nor `histories` is given.
        """
        if histories is None:
            if input_ids is None:
                raise ValueError("give input_ids or histories.")
            return CausalLMOutput(logits=self._token_logits(input_ids, attention_mask))
        if labels is None:
            context = None if contexts is None else contexts[newest_slots(histories)]
            return CausalLMOutput(logits=self.leaf_log_probs(histories, context, events=events))
        row, slot = (labels > 0).nonzero(as_tuple=True)
        contexts = None if contexts is None else contexts[row, slot].long()
        counted, targets = labels if leave_out else None, labels[row, slot] - 1
        if distribution:
            positions = self.positions(histories, row, slot, counted, contexts, events)
            return CausalLMOutput(logits=self._log_probs(histories, positions))
        at = ScoredPositions(row, slot, contexts=contexts, events=events)
        losses = self._losses(histories, at, targets, counted, sample)
        total = losses.sum() if weights is None else losses @ weights[row, slot]
        return CausalLMOutput(loss=total / (num_items_in_batch or max(1, len(targets))))

    def _losses(
        self,
        histories: torch.Tensor,
        at: ScoredPositions,
        targets: torch.Tensor,
        counted: torch.Tensor | None,
        sample: Sample | None,
    ) -> torch.Tensor:
        """Negative log-likelihood of the target at each position, averaged over towers: float32 (P,)."""
        if sample is not None:
            parts = Blocks(self, histories, at, counted).scores(sample[0])
            losses = [sampled_losses(scores, sample, at.row, targets) for scores in parts]
        elif self.by_blocks and not torch.is_grad_enabled() and counted is None:
            return Blocks(self, histories, at).losses(targets)
        else:
            losses = []
            positions = self.positions(histories, at.row, at.slot, counted, at.contexts, at.events)
            for scores in self.tower_scores(histories, positions):
                losses.append(nn.functional.cross_entropy(scores, targets, reduction="none"))
        return torch.stack(losses).mean(0)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *_: Any, attention_mask: torch.Tensor | None = None, **__: Any
    ) -> dict[str, Any]:
        """Inputs of a step of stock `generate`: whole sequences, since the model has no cache of keys and values."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def with_popularity(
        self, scores: torch.Tensor, contexts: torch.Tensor, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add the scores of `LearnedPopularity` to scores of all SIDs, or of those in `columns`."""
        return scores if self.popularity is None else self.popularity(scores, contexts, columns)

    def leaf_log_probs(
        self,
        histories: torch.Tensor,
        contexts: torch.Tensor | None = None,
        older: torch.Tensor | None = None,
        events: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Log-probabilities of all SIDs after the newest item: float32 (B, N), in the order of SID numbers.

        Args:
            histories: int64 (B, T), numbers from 1, padded with 0 on the right; rows may be empty.
            contexts: int64 (B, F), codes of the request features of the next SID; unknown if None.
            older: int64 (B, O), SIDs seen before each history; see `minionerec.models.nn.experts.Experts.terms`.
            events: int64 (B, T), see `forward`.
        """
        positions = self.positions(histories, *newest_slots(histories), contexts=contexts, events=events)
        return self._log_probs(histories, positions, older)

    def masses(
        self,
        histories: torch.Tensor,
        rows: torch.Tensor,
        slots: torch.Tensor,
        contexts: torch.Tensor | None = None,
        events: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Log-probabilities of all nodes of the trie at positions of histories, float32 (P, M); see `positions`."""
        positions = self.positions(histories, rows, slots, contexts=contexts, events=events)
        return self.node_log_probs(self._log_probs(histories, positions))

    def _log_probs(
        self, histories: torch.Tensor, positions: ScoredPositions, older: torch.Tensor | None = None
    ) -> torch.Tensor:
        mean = mean_log_probs([scores.log_softmax(-1) for scores in self.tower_scores(histories, positions)])
        return mean if self.experts is None else self.experts(mean, histories, positions.row, positions.slot, older)

    def tower_scores(self, histories: torch.Tensor, positions: ScoredPositions) -> list[torch.Tensor]:
        """Each tower's scores of all SIDs at `positions` of histories: float32 (P, N)."""
        return [
            self.with_popularity(tower.scores(histories, positions, self.given()), positions.known_contexts)
            for tower in self.each_tower()
        ]

    def positions(
        self,
        histories: torch.Tensor,
        row: torch.Tensor,
        slot: torch.Tensor,
        labels: torch.Tensor | None = None,
        contexts: torch.Tensor | None = None,
        events: torch.Tensor | None = None,
        columns: ColumnSubset | None = None,
    ) -> ScoredPositions:
        """Positions of histories with all inputs; see `PairCounts.positions` and `ScoredPositions`."""
        if self.pairs is None:
            return ScoredPositions(row, slot, contexts=contexts, events=events)
        positions = self.pairs.positions(histories, row, slot, labels, columns)
        return replace(positions, contexts=contexts, events=events)

    def row_tables(self, rows: torch.Tensor, columns: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Iterate over the parameters that a sampled loss indexes, with the indexed rows; see `Tower`."""
        for tower in self.each_tower():
            yield from tower.row_tables(rows, columns, self.given())

    @property
    def by_blocks(self) -> bool:
        """Whether the catalogue is so large that SIDs are scored block by block."""
        return bool(self.config.num_sids > blocks.SIDS_AT_ONCE)

    def node_log_probs(self, leaf_log_probs: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all nodes of the trie, float32 (B, M), from those of SIDs, float32 (B, N)."""
        return node_log_probs(self.trie, leaf_log_probs)

    def _token_logits(self, ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        sids, nodes = read_tokens(self.trie, ids, mask)
        logits = torch.full((*ids.shape, self.config.vocab_size), torch.finfo(torch.float32).min, device=ids.device)
        trie, contexts = self.trie, prompt_contexts(ids, mask, sids, self.config.context_tokens)
        for position in range(ids.shape[1]):
            known = slice(position + 1)
            events = prompt_events(ids[:, known], mask[:, known], self.config.event_tokens)
            histories, events = newest_items(sids[:, known], events, self.config.max_history)
            masses = self.node_log_probs(self.leaf_log_probs(histories, contexts[:, position], events=events))
            children, present = trie.children(nodes[:, position])
            steps = masses.gather(1, children) - masses.gather(1, nodes[:, position, None])
            row, child = present.nonzero(as_tuple=True)
            logits[row, position, trie.tokens(children[row, child])] = steps[row, child]
        return logits

    def read_prompts(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Read the SIDs, the codes of request features and the events of prompts.

        Returns:
            SIDs, int64 (B, H), numbers from 1, 0 after the end; codes, int64 (B, F); and the event of each SID,
            int64 (B, H), numbers from 1, 0 where unknown.

        Raises:
            DataError: If a prompt ends inside an SID.
        """
        ids, mask = pad_left(prompts, self.device)
        sids, nodes = read_tokens(self.trie, ids, mask)
        inside = nodes[:, -1].nonzero().flatten().tolist()
        if inside:
            raise DataError(f"prompt {inside[0]} of the batch ends inside an SID; give whole SIDs.")
        contexts = prompt_contexts(ids, mask, sids, self.config.context_tokens)[:, -1]
        events = prompt_events(ids, mask, self.config.event_tokens)
        histories, events = newest_items(sids, events, self.config.max_history)
        return histories, contexts, events

    @property
    def reads_seen(self) -> bool:
        """Whether the model uses SIDs before the newest `max_history`, which only its experts do."""
        return not self.by_blocks and self.experts is not None and not self.experts.are_off

    def knowing(self, prompts: Sequence[Sequence[int]], seen: Sequence[np.ndarray]) -> OpensBranches:
        """A model for these prompts whose experts read whole histories.

        Args:
            prompts: B token id lists, none empty.
            seen: For each prompt, the numbers of all SIDs seen, from 0, oldest first, those of the prompt last.

        Returns:
            The model itself if it does not use older SIDs, or there are none.

        Raises:
            DataError: If a prompt ends inside an SID.
        """
        if not self.reads_seen or all(len(past) <= self.config.max_history for past in seen):
            return self
        histories, contexts, events = self.read_prompts(prompts)
        lengths = (histories > 0).sum(1).tolist()
        older, _ = pad_left(
            [(past[: len(past) - length] + 1).tolist() for past, length in zip(seen, lengths, strict=True)], self.device
        )
        return LeafModel(self.leaf_log_probs(histories, contexts, older, events), self.vocab_size)

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
        histories, contexts, events = self.read_prompts(prompts)
        if self.by_blocks:
            return BlockBranches(self.trie, Blocks(self, histories, self._newest(histories, contexts, events)))
        return LeafBranches(self.trie, self.node_log_probs(self.leaf_log_probs(histories, contexts, events=events)))

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor | None:
        """Log-probabilities of all SIDs, float32 (B, N); None if the trie has other SIDs, or for large catalogues."""
        if self.by_blocks or not self._generates(trie):
            return None
        histories, contexts, events = self.read_prompts(prompts)
        return self.leaf_log_probs(histories, contexts, events=events)

    def best_sids(
        self, prompts: Sequence[Sequence[int]], trie: Trie, k: int, guide: Guide
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The best SIDs of a large catalogue, block by block; None for others, see `OpensBranches.best_sids`."""
        if not (self.by_blocks and self._generates(trie)):
            return None
        histories, contexts, events = self.read_prompts(prompts)
        return Blocks(self, histories, self._newest(histories, contexts, events)).best(k, guide)

    @staticmethod
    def _newest(histories: torch.Tensor, contexts: torch.Tensor, events: torch.Tensor) -> ScoredPositions:
        """The positions of the newest items."""
        return ScoredPositions(*newest_slots(histories), contexts=contexts, events=events)

    def values_at_once(self, trie: Trie) -> int:
        """Number of values in memory while one prompt is scored, without those of the layers."""
        return blocks.most_values(self.config.num_sids, len(self.trie.code), self.config.towers)

    def _generates(self, trie: Trie) -> bool:
        return torch.equal(trie.first_child, self.trie.first_child) and torch.equal(trie.token, self.trie.token)


AutoConfig.register(CatalogueConfig.model_type, CatalogueConfig)
AutoModelForCausalLM.register(CatalogueConfig, CatalogueModel)


def check_lengths(codes: np.ndarray) -> None:
    """Check that SIDs, int (N, L), are of one length, as a catalogue model requires.

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
    """Build a model with random weights for a catalogue.

    Args:
        config: Shape; fields that depend on the other arguments are overwritten.
        codes: int (N', L), codes of items; equal rows are one SID.
        code_tokens: int64 (L, C), vocabulary ids of codes (`minionerec.models.backbone.vocabulary.code_token_ids`).
        text: float32 (N, T), given vectors of the distinct SIDs, in the order of SID numbers: of texts, and of the
            columns that the configuration names; optional.
        transitions: Counts between SID numbers; optional.
        experts: The experts, by SID numbers; optional.

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
    config.num_expert_ease = 0 if experts is None else experts.ease_items.shape[1]
    config.expert_width = 0 if experts is None else experts.vectors.shape[1]
    # A vector for each prefix except the whole SID, and for the last code by itself.
    prefixes = [np.unique(distinct[:, :end], axis=0, return_inverse=True)[1] for end in range(1, config.levels)]
    code_rows = np.stack([*(numbers.reshape(-1) for numbers in prefixes), distinct[:, -1].astype(np.int64)])
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
        if transitions is not None and model.pairs is not None:  # None if no pair was counted
            model.pairs.set(transitions)
            for tower in model.each_tower():
                tower.history.start_counts(config.decay)
    return model
