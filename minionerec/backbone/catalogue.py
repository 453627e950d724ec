"""A generative recommender whose next-code probabilities come from one distribution over the whole catalogue.

A causal transformer reads a history item by item and gives every SID of the catalogue a score. The softmax of the
scores is a distribution over the leaves of the trie of SIDs; a prefix has the summed probability of the leaves below
it, and so every code has a probability given the codes before it:

    p(c | a, b) = sum of p(leaf) below (a, b, c)  /  sum of p(leaf) below (a, b)

So the model speaks SIDs code by code like a language model (`forward` gives next-token logits, stock `generate` and
the project's searches decode it), while it is trained with one exact softmax over SIDs and never names an SID that
does not exist. A hierarchical softmax (Morin and Bengio, 2005) has its probabilities the other way round: there the
leaf is the product of learned steps, here the steps follow from the leaf.

An SID's score has four sources, each of which can be left out:

1. its vector against the transformer's state, with a bias. The vector is the sum of a learned one, a linear map of
   text (shared by items that never sold), and vectors of its codes (shared by its neighbours in the trie); input and
   output share it;
2. a pointer: SIDs of the history get an additional score that depends on the state and on how long ago they came, as in
   pointer networks (Vinyals et al., 2015), added to the scores instead of mixed into the probabilities;
3. counts: g log(1 + e^b A), where A is how often the SID followed the history's items in training, weighted by distance
   and by how common the item is; g and b depend on the state. In training a position leaves out what its own target
   and later ones added to the counts, so that nothing is read off its own answer;
4. several towers, trained side by side from different starts, whose probabilities are averaged: an ensemble
   (Lakshminarayanan et al., 2017) in one checkpoint and one search.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils import ModelOutput

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.transitions import Transitions
from minionerec.decoding.branches import OpensBranches
from minionerec.decoding.masks import pad_left
from minionerec.decoding.trie import Trie
from minionerec.nn.causal import CausalLayer
from minionerec.nn.dropout import Dropout
from minionerec.nn.history import HistoryScores, PairCounts, Places
from minionerec.nn.layers import causal_mask, check_heads
from minionerec.nn.linear import Linear, linear
from minionerec.nn.padding import length_groups

INIT_STD = 0.02


class CatalogueConfig(PreTrainedConfig):
    """Shape of a `CatalogueModel`.

    Attributes:
        vocab_size: Tokens of its tokenizer.
        num_sids: Distinct SIDs of the catalogue, N.
        levels: Levels of the SIDs, L.
        max_code: Largest code.
        max_history: Most items that are read.
        hidden_size: Width D of a tower.
        num_hidden_layers: Layers of a tower.
        num_attention_heads: Heads of a tower.
        intermediate_size: Width of its position-wise networks.
        towers: Number of towers.
        text_width: Width of the text vectors; 0 for none.
        learned_vectors: Whether SIDs have a vector of their own.
        code_vectors: Whether codes have vectors.
        code_sizes: Rows of each table of code vectors.
        pointer: Whether SIDs of the history get an additional score.
        num_transitions: Stored counts, E; 0 for none.
        reach: Items back that pairs are counted, and looked up.
        decay: Weight of each further step back in the counts.
        reverse: Weight of a pair in the other direction in the counts.
    """

    model_type = "minionerec_catalogue"

    def __init__(
        self,
        vocab_size: int = 1,
        num_sids: int = 1,
        levels: int = 1,
        max_code: int = 0,
        max_history: int = 10,
        hidden_size: int = 128,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        intermediate_size: int = 512,
        towers: int = 1,
        text_width: int = 0,
        learned_vectors: bool = True,
        code_vectors: bool = True,
        code_sizes: Sequence[int] = (),
        pointer: bool = True,
        num_transitions: int = 0,
        reach: int = 10,
        decay: float = 0.6,
        reverse: float = 0.0,
        **kwargs: Any,
    ):
        self.vocab_size = vocab_size
        self.num_sids = num_sids
        self.levels = levels
        self.max_code = max_code
        self.max_history = max_history
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.towers = towers
        self.text_width = text_width
        self.learned_vectors = learned_vectors
        self.code_vectors = code_vectors
        self.code_sizes = list(code_sizes)
        self.pointer = pointer
        self.num_transitions = num_transitions
        self.reach = reach
        self.decay = decay
        self.reverse = reverse
        super().__init__(**kwargs)


@dataclass
class CatalogueOutput(ModelOutput):
    """What the model says of histories.

    Attributes:
        loss: float scalar, mean over towers and labels of the negative log-probability; only with labels.
        log_probs: float32 (P, N), of every SID, averaged over towers: after the newest item of each history, or with
            `distribution` at each label, row by row.
    """

    loss: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None


class Tower(nn.Module):
    """One transformer with its item vectors and its scores of all SIDs.

    Args:
        config: Shape.
        code_sizes: Number of rows of each table of code vectors.
    """

    def __init__(self, config: CatalogueConfig, code_sizes: Sequence[int]):
        super().__init__()
        width, size = config.hidden_size, config.num_sids
        self.items = nn.Embedding(size, width) if config.learned_vectors else None
        self.text_map = Linear(config.text_width, width, bias=False) if config.text_width else None
        self.codes = nn.ModuleList(nn.Embedding(rows, width) for rows in code_sizes)
        self.bias = nn.Parameter(torch.zeros(size))
        self.dropout = Dropout(0.0)
        self.layers = nn.ModuleList(
            CausalLayer(width, config.num_attention_heads, config.intermediate_size, 0.0, 0.0, rotary=True)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.history = HistoryScores(
            width, config.max_history if config.pointer else 0, config.reach if config.num_transitions else 0
        )

    def matrix(self, text: torch.Tensor | None, code_rows: torch.Tensor | None) -> torch.Tensor:
        """Vectors of padding (zeros, row 0) and of all SIDs: float (N + 1, D)."""
        total: Any = 0
        if self.items is not None:
            total = self.items.weight
        if self.text_map is not None:
            total = total + self.text_map(text)
        for table, rows in zip(self.codes, () if code_rows is None else code_rows, strict=True):
            total = total + table(rows)
        return nn.functional.pad(total, (0, 0, 1, 0))

    def scores(
        self,
        histories: torch.Tensor,
        places: Places,
        text: torch.Tensor | None,
        code_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Scores of all SIDs at the asked positions.

        Args:
            histories: int64 (B, T), SIDs from 1, 0 is padding on the right.
            places: The positions.
            text: float32 (N, T'), text vectors.
            code_rows: int64 (tables, N).

        Returns:
            float (P, N).
        """
        matrix = self.matrix(text, code_rows)
        first = torch.zeros(len(histories), dtype=torch.int64, device=histories.device)  # of each row, in `flat`
        parts, count = [], 0
        for rows, columns in length_groups(histories, "right"):
            part = histories[rows, columns]
            first[rows] = count + torch.arange(len(rows), device=rows.device) * part.shape[1]
            count += part.numel()
            x, mask = self.dropout(nn.functional.embedding(part, matrix)), causal_mask(part)
            for layer in self.layers:
                x = layer(x, mask)
            parts.append(x.flatten(0, 1))
        flat = torch.cat(parts)
        state = self.norm(flat[first[places.row] + places.slot])  # (P, D)
        scores = linear(state, matrix[1:], self.bias)
        return self.history(scores, state, histories, places)


class CatalogueModel(PreTrainedModel, GenerationMixin, OpensBranches):
    """The model; see the module. It is built by `build_catalogue`, and read by `AutoModelForCausalLM`.

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
        self.towers = nn.ModuleList(Tower(config, sizes) for _ in range(config.towers))
        self.post_init()

    def _towers(self) -> Iterator["Tower"]:
        for tower in self.towers:
            yield cast(Tower, tower)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INIT_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @property
    def trie(self) -> Trie:
        """The SIDs that the model speaks, on its device."""
        return self._trie.to(self.device)

    @cached_property
    def _trie(self) -> Trie:
        return Trie.build(self.codes.cpu().numpy(), self.code_tokens.cpu().numpy())

    def set_dropout(self, probability: float) -> None:
        """Set the dropout of item vectors at the input and behind each part of a layer; checkpoints do not keep it."""
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
        **_: Any,
    ) -> CausalLMOutput | CatalogueOutput:
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

        Returns:
            For `input_ids`: logits float32 (B, T, vocabulary), log-probabilities of the codes that may follow and the
            lowest float elsewhere. For `histories`: `CatalogueOutput`.

        Raises:
            ValueError: If there is neither.
        """
        if histories is None:
            if input_ids is None:
                raise ValueError("give input_ids or histories.")
            return CausalLMOutput(logits=self._token_logits(input_ids, attention_mask))
        if labels is None:
            return CatalogueOutput(log_probs=self.leaf_log_probs(histories))
        row, slot = (labels > 0).nonzero(as_tuple=True)
        places = self._places(histories, row, slot, labels if leave_out else None)
        if distribution:
            return CatalogueOutput(log_probs=self._log_probs(histories, places))
        wanted = labels[row, slot] - 1
        losses = torch.stack(
            [
                nn.functional.cross_entropy(scores.float(), wanted, reduction="none")
                for scores in self._scores(histories, places)
            ]
        ).mean(0)
        total = losses.sum() if weights is None else losses @ weights[row, slot]
        return CatalogueOutput(loss=total / (num_items_in_batch or max(1, len(wanted))))

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *_: Any, attention_mask: torch.Tensor | None = None, **__: Any
    ) -> dict[str, Any]:
        """Whole sequences at every step of stock `generate`, for there are no keys and values to go on from."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def leaf_log_probs(self, histories: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all SIDs after the newest item.

        Args:
            histories: int64 (B, T), numbers from 1, padded with 0 on the right; a row without items is scored by the
                biases alone, but for what the layers make of nothing.

        Returns:
            float32 (B, N), in the order of SID numbers.
        """
        slot = ((histories > 0).sum(1) - 1).clamp(min=0)
        return self._log_probs(histories, self._places(histories, torch.arange(len(slot), device=slot.device), slot))

    def _log_probs(self, histories: torch.Tensor, places: Places) -> torch.Tensor:
        found = [scores.float().log_softmax(-1) for scores in self._scores(histories, places)]
        return found[0] if len(found) == 1 else torch.stack(found).logsumexp(0) - float(np.log(len(found)))

    def _scores(self, histories: torch.Tensor, places: Places) -> list[torch.Tensor]:
        text = self.text if self.config.text_width else None
        rows = self.code_rows if self.config.code_vectors else None
        return [tower.scores(histories, places, text, rows) for tower in self._towers()]

    def _places(
        self, histories: torch.Tensor, row: torch.Tensor, slot: torch.Tensor, labels: torch.Tensor | None = None
    ) -> Places:
        """Positions and their counts; with labels, without what a position's own and later ones added."""
        return Places(row, slot) if self.pairs is None else self.pairs.places(histories, row, slot, labels)

    def node_log_probs(self, leaf_log_probs: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all nodes of the trie, the root's being 0.

        Args:
            leaf_log_probs: float32 (B, N).

        Returns:
            float32 (B, M).
        """
        trie = self.trie
        above = self._ancestors.to(leaf_log_probs.device)  # (N, L + 1)
        highest = leaf_log_probs.detach().amax(1, keepdim=True)
        leaves = (leaf_log_probs - highest).exp()
        mass = leaves.new_zeros(len(leaves), len(trie.code))
        for depth in range(above.shape[1]):
            mass = mass.index_add(1, above[:, depth], leaves)
        return mass.log() + highest

    @cached_property
    def _ancestors(self) -> torch.Tensor:
        """Nodes from the root to the leaf of each SID: int64 (N, L + 1)."""
        trie, codes = self._trie, self.codes.cpu()
        nodes = torch.zeros(len(codes), codes.shape[1] + 1, dtype=torch.int64)
        for depth in range(codes.shape[1]):
            nodes[:, depth + 1] = trie.find(nodes[:, depth], trie.code_tokens[depth][codes[:, depth].long()])
        return nodes

    def _walk(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read tokens: the SID that is complete at each (-1 for none), and the prefix reached; both int64 (B, T)."""
        trie = self.trie
        node = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        sids, nodes = torch.full_like(ids, -1), torch.zeros_like(ids)
        for place in range(ids.shape[1]):
            token = ids[:, place].masked_fill(~mask[:, place], -1)
            onward, anew = trie.find(node, token), trie.find(torch.zeros_like(node), token)
            node = torch.where(onward >= 0, onward, anew).clamp(min=0)
            sids[:, place] = torch.where(node > 0, trie.sid[node].long(), -1)
            node = node.masked_fill(sids[:, place] >= 0, 0)
            nodes[:, place] = node
        return sids, nodes

    def _read(self, sids: torch.Tensor) -> torch.Tensor:
        """The newest items of rows of SIDs with gaps (-1): int64 (B, H), numbers from 1, 0 behind the end."""
        order = (sids < 0).long().argsort(dim=1, stable=True)
        kept = (sids.gather(1, order) + 1)[:, : max(1, int((sids >= 0).sum(1).max()))]
        lengths, width = (kept > 0).sum(1, keepdim=True), min(kept.shape[1], self.config.max_history)
        places = torch.arange(width, device=sids.device) + (lengths - width).clamp(min=0)
        return kept.gather(1, places)

    def _token_logits(self, ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        sids, nodes = self._walk(ids, mask)
        logits = torch.full((*ids.shape, self.config.vocab_size), torch.finfo(torch.float32).min, device=ids.device)
        trie = self.trie
        for place in range(ids.shape[1]):
            masses = self.node_log_probs(self.leaf_log_probs(self._read(sids[:, : place + 1])))
            children, present = trie.children(nodes[:, place])
            steps = masses.gather(1, children) - masses.gather(1, nodes[:, place, None])
            row, which = present.nonzero(as_tuple=True)
            logits[row, place, trie.tokens(children[row, which])] = steps[row, which]
        return logits

    def histories_of(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """The SIDs that prompts speak of: int64 (B, H), numbers from 1, 0 behind the end.

        Raises:
            DataError: If a prompt ends inside an SID.
        """
        sids, nodes = self._walk(*pad_left(prompts, self.device))
        inside = nodes[:, -1].nonzero().flatten().tolist()
        if inside:
            raise DataError(f"prompt {inside[0]} of the batch ends inside an SID; give whole SIDs.")
        return self._read(sids)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that prompts and tries speak in."""
        return self.config.vocab_size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> "CatalogueBranches":
        """What the project's searches grow prefixes on (`minionerec.decoding.branches.open_branches`).

        Raises:
            ConfigError: If the trie holds SIDs that the model does not speak.
        """
        if trie.levels > self.config.levels or trie.max_token > self.trie.max_token:
            raise ConfigError("the trie's SIDs are longer than the model's: it scores nothing behind an SID.")
        return CatalogueBranches(self, self.node_log_probs(self.leaf_log_probs(self.histories_of(prompts))))


class CatalogueBranches:
    """Prefixes behind a batch of prompts, scored from the probabilities of all nodes of the trie.

    Attributes:
        hidden: int64 (B, 1), the prefix that stands behind each prompt: the root.
        count: Branch tokens that have been run for each prompt.
    """

    def __init__(self, model: CatalogueModel, masses: torch.Tensor):
        self.trie, self.masses = model.trie, masses
        self.hidden = torch.zeros(len(masses), 1, dtype=torch.int64, device=masses.device)
        self.count = 0
        self._nodes = self.hidden[:, :0]  # (B, slots)

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more code behind each of K prefixes; see `minionerec.decoding.branches.Branches.run`.

        Returns:
            int64 (B, K, 1), the prefixes reached, 0 where there is none.
        """
        if self.count:
            before = self._nodes.gather(1, parents.clamp(min=0)).masked_fill(parents < 0, 0)
        else:
            before = torch.zeros_like(tokens)
        nodes = self.trie.find(before, tokens).clamp(min=0)
        self._nodes = torch.cat([self._nodes, nodes], 1)
        self.count += tokens.shape[1]
        return nodes.unsqueeze(-1)

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate codes; see `minionerec.decoding.branches.Branches.scores`.

        Only codes that exist have a probability, so both normalisers agree but where candidates are left out.
        """
        node = hidden.expand(tokens.shape)
        child = self.trie.find(node, tokens)
        present = present & (child >= 0)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        steps = (self.masses[rows, child.clamp(min=0)] - self.masses[rows, node]) / temperature
        steps = steps.masked_fill(~present, -torch.inf)
        if normaliser != "full" or temperature != 1:
            steps = (steps - steps.logsumexp(-1, keepdim=True)).masked_fill(~present, -torch.inf)
        return steps


def build_catalogue(
    config: CatalogueConfig,
    codes: np.ndarray,
    code_tokens: np.ndarray,
    text: np.ndarray | None = None,
    transitions: Transitions | None = None,
) -> CatalogueModel:
    """A model with random weights for a catalogue.

    Args:
        config: Shape; what follows from the other arguments is set here.
        codes: int (N', L), codes of items; equal rows are one SID.
        code_tokens: int64 (L, C), vocabulary ids of codes (`minionerec.backbone.vocabulary.code_token_ids`).
        text: float32 (N, T), text vectors of the distinct SIDs, in the order of SID numbers; None for none.
        transitions: Counts between SID numbers; None for none.

    Raises:
        ConfigError: If SIDs differ in length, or the text vectors do not fit.
    """
    distinct = np.unique(codes, axis=0)
    if distinct.min() < 0:
        raise ConfigError("a catalogue model needs SIDs of one length; resolve collisions by relocation or keep them.")
    if text is not None and len(text) != len(distinct):
        raise ConfigError(f"there are {len(text)} text vectors for {len(distinct)} SIDs.")
    config.num_sids, config.levels, config.max_code = len(distinct), distinct.shape[1], code_tokens.shape[1] - 1
    config.text_width = 0 if text is None else text.shape[1]
    config.num_transitions = 0 if transitions is None else len(transitions.counts)
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
        if transitions is not None and model.pairs is not None:  # there are none of them where no pair was counted
            model.pairs.set(transitions)
            for tower in model._towers():
                tower.history.start_counts(config.decay)
    return model


AutoConfig.register(CatalogueConfig.model_type, CatalogueConfig)
AutoModelForCausalLM.register(CatalogueConfig, CatalogueModel)
