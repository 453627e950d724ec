"""The model: T5 of transformers, which opens branches of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, T5ForConditionalGeneration

from minionerec.models.backbone.tiger.config import TigerConfig
from minionerec.models.decoding.branches import OpensBranches
from minionerec.models.decoding.masks import pad_left
from minionerec.models.decoding.scoring import candidate_scores
from minionerec.models.decoding.trie import Trie

# What searches grow prefixes on, where an encoder has read the prompt and a decoder speaks behind it.
#
# The encoder reads each distinct prompt once, and each layer of the decoder turns it into keys and values once. A
# branch is a path from the decoder's start token; its queries meet the keys of the tokens on that path, gathered by
# their slots, and nothing else, so that a step costs the same however many branches there are beside it:
#
# slots      0 start | 1 a0  2 a1 | 3 b0  4 b1        b1's parent is a0
# path of b1: 0, 1, 4                                  relative positions -2, -1, 0


class TigerBranches:
    """`minionerec.models.decoding.branches.Branches` of a T5.

    Args:
        model: The model, in evaluation mode.
        prompts: B token id lists, none empty.
        levels: Most tokens on one path, L.

    Attributes:
        hidden: float (B, D), the decoder's state at the start token, as the head takes it.
        count: Branch tokens that have been run for each prompt.
    """

    def __init__(self, model: T5ForConditionalGeneration, prompts: Sequence[Sequence[int]], levels: int):
        self.model, self.count = model, 0
        self._blocks: list[Any] = list(model.decoder.block)
        distinct: dict[tuple[int, ...], int] = {}
        order = torch.tensor([distinct.setdefault(tuple(p), len(distinct)) for p in prompts], device=model.device)
        ids, mask = pad_left(list(distinct), model.device)
        states = model.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        self._read = mask[order][:, None, None]  # (B, 1, 1, S)
        # Of each layer, keys and values of the prompt (B, H, S, d), and those of the slots so far (B, slots, H, d).
        self._cross = [
            [self._heads(part(states)).transpose(1, 2)[order] for part in (attention.k, attention.v)]
            for attention in (block.layer[1].EncDecAttention for block in self._blocks)
        ]
        empty = states.new_zeros(len(prompts), 0, model.config.num_heads, model.config.d_kv)
        self._own = [[empty, empty] for _ in self._blocks]
        # Slots on the path of each slot, by depth from the start token; 0 behind its end.
        self._paths = torch.zeros(len(prompts), 0, levels + 1, dtype=torch.long, device=model.device)
        bias = self._blocks[0].layer[0].SelfAttention.compute_bias(levels + 1, levels + 1)  # (1, H, L + 1, L + 1)
        self._bias = bias[0].permute(1, 2, 0)  # (query's depth, key's depth, H)
        start = order.new_full((len(prompts), 1), model.config.decoder_start_token_id)
        self.hidden = self._grow(start, self._paths.new_zeros(len(prompts), 1, levels + 1), torch.zeros_like(start))[
            :, 0
        ]

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token behind each of K branches; see `minionerec.models.decoding.branches.Branches.run`.

        Returns:
            float (B, K, D), the decoder's states, as the head takes them.
        """
        place = torch.as_tensor(depth, device=tokens.device).expand_as(tokens) + 1
        above = (parents + 1).unsqueeze(-1).expand(-1, -1, self._paths.shape[2])  # slot 0 is the start token's
        hidden = self._grow(tokens, self._paths.gather(1, above), place)
        self.count += tokens.shape[1]
        return hidden

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens; see `minionerec.models.decoding.branches.Branches.scores`."""
        states, ids, exist = (part.flatten(0, 1) for part in (hidden, tokens, present))
        return candidate_scores(self.model, states, ids, exist, normaliser, temperature).view(tokens.shape)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Split float (..., H d) into (..., H, d)."""
        return x.view(*x.shape[:-1], self.model.config.num_heads, self.model.config.d_kv)

    def _grow(self, tokens: torch.Tensor, above: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Run one token behind each of K paths through the decoder.

        Args:
            tokens: int64 (B, K).
            above: int64 (B, K, L + 1), the paths before them.
            place: int64 (B, K), their depths, 0 for the start token.

        Returns:
            float (B, K, D).
        """
        slots = self._paths.shape[1] + torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        paths = above.scatter(2, place.unsqueeze(-1), slots.unsqueeze(-1))
        self._paths = torch.cat([self._paths, paths], 1)
        width = int(place.max()) + 1
        behind = torch.arange(width, device=tokens.device) > place.unsqueeze(-1)  # (B, K, W)
        bias = self._bias[place, :width].masked_fill(behind.unsqueeze(-1), -torch.inf)  # (B, K, W, H)
        x: torch.Tensor = self.model.shared(tokens)
        for block, own, cross in zip(self._blocks, self._own, self._cross, strict=True):
            x = x + self._attend_path(block.layer[0], x, own, paths[..., :width], bias)
            x = x + self._attend_prompt(block.layer[1], x, *cross)
            x = block.layer[2](x)
        x = self.model.decoder.final_layer_norm(x)
        return x * self.model.model_dim**-0.5 if self.model.config.scale_decoder_outputs else x

    def _attend_path(
        self, layer: Any, x: torch.Tensor, own: list[torch.Tensor], paths: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Self-attention over the tokens of each path; `own` gets the keys and values of these tokens."""
        attention, normed = layer.SelfAttention, layer.layer_norm(x)
        query = self._heads(attention.q(normed))  # (B, K, H, d)
        for which, part in enumerate((attention.k, attention.v)):
            own[which] = torch.cat([own[which], self._heads(part(normed))], 1)
        rows = torch.arange(len(x), device=x.device)[:, None, None]
        keys, values = (kept[rows, paths] for kept in own)  # (B, K, W, H, d)
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
    """A T5 over semantic IDs; see the package. It is built by `build_tiger`, and read by `AutoModelForCausalLM`."""

    config_class = TigerConfig
    config: TigerConfig

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that prompts and tries speak in."""
        size: int = self.config.vocab_size
        return size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> TigerBranches:
        """What the project's searches grow prefixes on (`minionerec.models.decoding.branches.open_branches`)."""
        return TigerBranches(self, prompts, trie.levels)


AutoConfig.register(TigerConfig.model_type, TigerConfig)
AutoModelForCausalLM.register(TigerConfig, TigerModel)
