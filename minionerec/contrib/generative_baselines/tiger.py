"""TIGER: an encoder-decoder that reads the semantic IDs of a history and generates that of the next item.

Rajput et al., "Recommender Systems with Generative Retrieval" (NeurIPS 2023), section 3.2: a T5 (Raffel et al., 2020)
whose vocabulary consists of the codes of the SIDs. The encoder reads the history in both directions, the decoder
generates the next SID code by code after a start token. The model is that of transformers; this module adds the
vocabulary, the wording, and the branches for searches.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

from minionerec.models.backbone.build import EOS, PAD
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.decoding.branches import OpensBranches, candidate_scores, pad_left
from minionerec.models.decoding.trie import Trie
from minionerec.models.nn.layers import replace_linear
from minionerec.models.prompts.wording import TaskWording, Wording
from minionerec.sid.table import SidTable

# The shape of a TIGER.


class TigerConfig(T5Config):
    """Shape of a `TigerModel`: that of a T5, whose decoder starts at the padding token.

    The defaults are the published ones: encoder and decoder of 4 layers, 128 wide, 6 heads of 64, 1,024 inside.

    Raises:
        ValueError: If the vocabulary has no padding token, or the buckets of relative positions do not fit.
    """

    model_type = "minionerec_tiger"
    attribute_map = T5Config.attribute_map | {"intermediate_size": "d_ff"}  # what language models call it

    d_model: int = 128
    d_ff: int = 1024
    num_layers: int = 4
    num_heads: int = 6

    def __post_init__(self, **kwargs: Any) -> None:
        """Check settings that no tensor's shape determines."""
        prepare: Callable[..., None] = super().__post_init__
        prepare(**{**kwargs, "decoder_start_token_id": self.pad_token_id})
        if self.pad_token_id is None or not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id is {self.pad_token_id}, but there are {self.vocab_size} tokens")
        if not 4 <= self.relative_attention_num_buckets < 2 * self.relative_attention_max_distance:
            raise ValueError(
                f"relative_attention_num_buckets is {self.relative_attention_num_buckets}, expected from 4 to less "
                f"than twice relative_attention_max_distance {self.relative_attention_max_distance}"
            )


# The model: T5 of transformers, which opens branches of its own.

# Branches of an encoder-decoder.
#
# The encoder reads each distinct prompt once, and each layer of the decoder computes its keys and values once. A branch
# is a path from the decoder's start token; its queries attend only to the keys of the tokens on that path, gathered by
# their slots, so the cost of a branch does not depend on the number of branches:
#
# slots      0 start | 1 a0  2 a1 | 3 b0  4 b1        b1's parent is a0
# path of b1: 0, 1, 4                                  relative positions -2, -1, 0


class TigerBranches:
    """`minionerec.models.decoding.branches.Branches` of a T5.

    Args:
        model: The model, in evaluation mode.
        prompts: B token id lists, none empty.
        levels: Maximum number of tokens on a path, L.

    Attributes:
        hidden: float (B, D), the decoder's state at the start token, as input of the head.
        count: Number of branch tokens run for each prompt.
    """

    def __init__(self, model: T5ForConditionalGeneration, prompts: Sequence[Sequence[int]], levels: int):
        self.model, self.count = model, 0
        self._blocks: list[Any] = list(model.decoder.block)
        distinct: dict[tuple[int, ...], int] = {}
        order = torch.tensor([distinct.setdefault(tuple(p), len(distinct)) for p in prompts], device=model.device)
        ids, mask = pad_left(list(distinct), model.device)
        states = model.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        self._read = mask[order][:, None, None]  # (B, 1, 1, S)
        # Per layer, keys and values of the prompt (B, H, S, d), and of the slots so far (B, slots, H, d).
        self._cross = [
            [self._heads(part(states)).transpose(1, 2)[order] for part in (attention.k, attention.v)]
            for attention in (block.layer[1].EncDecAttention for block in self._blocks)
        ]
        empty = states.new_zeros(len(prompts), 0, model.config.num_heads, model.config.d_kv)
        self._cache = [[empty, empty] for _ in self._blocks]
        # Slots on the path of each slot, by depth from the start token; 0 after its end.
        self._paths = torch.zeros(len(prompts), 0, levels + 1, dtype=torch.long, device=model.device)
        bias = self._blocks[0].layer[0].SelfAttention.compute_bias(levels + 1, levels + 1)  # (1, H, L + 1, L + 1)
        self._bias = bias[0].permute(1, 2, 0)  # (query's depth, key's depth, H)
        start = order.new_full((len(prompts), 1), model.config.decoder_start_token_id)
        self.hidden = self._grow(start, self._paths.new_zeros(len(prompts), 1, levels + 1), torch.zeros_like(start))[
            :, 0
        ]

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token after each of K branches; see `minionerec.models.decoding.branches.Branches.run`.

        Returns:
            float (B, K, D), the decoder's states, as the head takes them.
        """
        position = torch.as_tensor(depth, device=tokens.device).expand_as(tokens) + 1
        above = (parents + 1).unsqueeze(-1).expand(-1, -1, self._paths.shape[2])  # slot 0 is the start token's
        hidden = self._grow(tokens, self._paths.gather(1, above), position)
        self.count += tokens.shape[1]
        return hidden

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens; see `minionerec.models.decoding.branches.Branches.scores`."""
        states, ids, exist = (part.flatten(0, 1) for part in (hidden, tokens, present))
        return candidate_scores(self.model, states, ids, exist, normaliser).view(tokens.shape)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Split float (..., H d) into (..., H, d)."""
        return x.view(*x.shape[:-1], self.model.config.num_heads, self.model.config.d_kv)

    def _grow(self, tokens: torch.Tensor, above: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Run one token after each of K paths through the decoder.

        Args:
            tokens: int64 (B, K).
            above: int64 (B, K, L + 1), the paths before them.
            position: int64 (B, K), their depths, 0 for the start token.

        Returns:
            float (B, K, D).
        """
        slots = self._paths.shape[1] + torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        paths = above.scatter(2, position.unsqueeze(-1), slots.unsqueeze(-1))
        self._paths = torch.cat([self._paths, paths], 1)
        width = int(position.max()) + 1
        is_later = torch.arange(width, device=tokens.device) > position.unsqueeze(-1)  # (B, K, W)
        bias = self._bias[position, :width].masked_fill(is_later.unsqueeze(-1), -torch.inf)  # (B, K, W, H)
        x: torch.Tensor = self.model.shared(tokens)
        for block, cache, cross in zip(self._blocks, self._cache, self._cross, strict=True):
            x = x + self._attend_path(block.layer[0], x, cache, paths[..., :width], bias)
            x = x + self._attend_prompt(block.layer[1], x, *cross)
            x = block.layer[2](x)
        x = self.model.decoder.final_layer_norm(x)
        return x * self.model.model_dim**-0.5 if self.model.config.scale_decoder_outputs else x

    def _attend_path(
        self, layer: Any, x: torch.Tensor, cache: list[torch.Tensor], paths: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Self-attention over the tokens of each path; appends the keys and values of these tokens to `cache`."""
        attention, normed = layer.SelfAttention, layer.layer_norm(x)
        query = self._heads(attention.q(normed))  # (B, K, H, d)
        for index, part in enumerate((attention.k, attention.v)):
            cache[index] = torch.cat([cache[index], self._heads(part(normed))], 1)
        batch = torch.arange(len(x), device=x.device)[:, None, None]
        keys, values = (stored[batch, paths] for stored in cache)  # (B, K, W, H, d)
        weights = ((query.unsqueeze(2) * keys).sum(-1) + bias).softmax(2)  # (B, K, W, H)
        mixed: torch.Tensor = attention.o((weights.unsqueeze(-1) * values).sum(2).flatten(-2))
        return mixed

    def _attend_prompt(self, layer: Any, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention over the prompt, which has no position bias; T5 does not divide scores by the root of the width."""
        attention = layer.EncDecAttention
        query = self._heads(attention.q(layer.layer_norm(x))).transpose(1, 2)  # (B, H, K, d)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=self._read, scale=1.0)
        read: torch.Tensor = attention.o(mixed.transpose(1, 2).flatten(-2))
        return read


class TigerModel(T5ForConditionalGeneration, OpensBranches):
    """A T5 over semantic IDs, built by `build_tiger` and loaded by `AutoModelForCausalLM`."""

    config_class = TigerConfig
    config: TigerConfig

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary of prompts and tries."""
        size: int = self.config.vocab_size
        return size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> TigerBranches:
        """Branches for the project's searches (`minionerec.models.decoding.branches.open_branches`)."""
        return TigerBranches(self, prompts, trie.levels)


AutoConfig.register(TigerConfig.model_type, TigerConfig)
AutoModelForCausalLM.register(TigerConfig, TigerModel)


TIGER_WORDING = Wording("tiger", "", " ; ", {"next_sid": TaskWording(("{history}{eos}",), "{sid}")})
"""The encoder reads the SIDs of a history, oldest first, and an end token; the decoder generates only the SID."""


def sid_tokenizer(table: SidTable) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is the padding token (0), the end token (1) and one token for each code of a level.

    Example:
        >>> import numpy as np
        >>> tokenizer = sid_tokenizer(SidTable(np.array([[0, 1], [2, 1]]), ["x", "y"]))
        >>> tokenizer("<a_2><b_1><|eos|>")["input_ids"], len(tokenizer)
        ([3, 4, 1], 5)
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({PAD: 0, EOS: 1}, unk_token=PAD)),
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    add_code_tokens(tokenizer, table)
    return tokenizer


def build_tiger(tokenizer: PreTrainedTokenizerBase, seed: int, **shape: Any) -> TigerModel:
    """Build a TIGER with random weights, initialised as in T5, with the vocabulary of a tokenizer.

    Args:
        tokenizer: The tokenizer (`sid_tokenizer`).
        seed: Seed of the weights.
        shape: Settings of `TigerConfig`.
    """
    set_seed(seed)
    config = TigerConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, **shape
    )
    return replace_linear(TigerModel(config))
