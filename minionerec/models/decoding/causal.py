"""One prompt, many branches: a prompt's keys and values are computed once and read by all its branches in place.

The branches of a prompt lie side by side in the sequence behind it, and a 4-D attention mask lets each token see the
prompt, its own ancestors and itself:

    position in the sequence:  [ pad pad p0 p1 p2 | a0 a1 a2 | b0 b1 b2 ]     b1's parent is a0
    b1 sees:                   [  .   .  x  x  x  | x  .  .  | .  x  .  ]

Rotary positions are given explicitly (every a has position 3, every b position 4), so that the scores are those of the
replicated sequences. Only public interfaces are used: `get_decoder`, cache classes, `position_ids`, 4-D masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.masks import attention_mask_4d, pad_left, positions_of, prompt_visibility
from minionerec.models.decoding.scoring import candidate_scores

# Prompts run once: keys, values and the last hidden state of each, with little spent on padding.

# Padding tokens that a prefill may spend for each prompt token, and tokens that fill a device whatever their padding.
_PADDING_SHARE = 0.1
_FULL_PASS = {"cpu": 128, "cuda": 4096}


@dataclass
class PromptState:
    """A batch of prompts after prefill.

    Attributes:
        cache: Keys and values of the prompts, and of the branch tokens that are run behind them.
        mask: bool (B, P), True at prompt tokens (prompts are padded on the left).
        lengths: int64 (B,), prompt lengths.
        hidden: (B, D), last hidden state of each prompt's last token.
    """

    cache: DynamicCache
    mask: torch.Tensor
    lengths: torch.Tensor
    hidden: torch.Tensor

    def keep(self, order: torch.Tensor) -> None:
        """Keep some of the branch tokens behind the prompts, in a given order.

        Args:
            order: int64 (B, W), their places among the branch tokens.
        """
        layer: Any
        for layer in self.cache.layers:
            index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            for name in ("keys", "values"):
                prompt, branches = getattr(layer, name).tensor_split([self.mask.shape[1]], 2)
                setattr(layer, name, torch.cat([prompt, branches.gather(2, index)], 2))


def prefill_groups(lengths: Sequence[int], full_pass: int) -> list[list[int]]:
    """Split prompts into groups that are prefilled together, so that little is spent on padding.

    A prompt joins the group of the next longer ones while the group's padding stays under a tenth of its tokens, or
    while the whole group is too small to fill the device anyway.

    Args:
        lengths: Prompt lengths.
        full_pass: Tokens that fill the device.

    Returns:
        Groups of places, longest prompts first; equal lengths stay in their order.

    Example:
        >>> prefill_groups([5, 80, 76, 300], full_pass=0)
        [[3], [1, 2], [0]]
    """
    groups: list[list[int]] = []
    longest = tokens = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        padded = longest * (len(groups[-1]) + 1) if groups else 0
        if groups and (padded <= (1 + _PADDING_SHARE) * (tokens + lengths[place]) or padded <= full_pass):
            groups[-1].append(place)
            tokens += lengths[place]
        else:
            groups.append([place])
            longest = tokens = lengths[place]
    return groups


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> PromptState:
    """Run each prompt once.

    Prompts of very different length are run in several passes, so that padding costs little.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty.

    Returns:
        The state that branches go on from.
    """
    device = torch.device(model.device)
    groups = prefill_groups([len(prompt) for prompt in prompts], _FULL_PASS.get(device.type, 4096))
    states = [_prefill_together(model, [prompts[place] for place in group]) for group in groups]
    order = torch.tensor([place for group in groups for place in group], device=device).argsort()
    if len(states) == 1:
        (state,) = states
        if groups[0] != list(range(len(prompts))):
            state.cache.batch_select_indices(order)
        return PromptState(state.cache, state.mask[order], state.lengths[order], state.hidden[order])
    return _joined(model, states, order)


def _joined(model: PreTrainedModel, states: Sequence[PromptState], order: torch.Tensor) -> PromptState:
    """Several passes as one batch.

    Args:
        model: Causal language model.
        states: The passes, each padded to its own longest prompt.
        order: int64 (B,), place of each prompt in the passes one after another.
    """
    width = max(state.mask.shape[1] for state in states)

    def together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([torch.nn.functional.pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])[order]

    cache = DynamicCache(config=model.config)
    for number, layers in enumerate(zip(*(state.cache.layers for state in states), strict=True)):
        cache.update(together([layer.keys for layer in layers]), together([layer.values for layer in layers]), number)
    mask = torch.cat([torch.nn.functional.pad(state.mask, (width - state.mask.shape[1], 0)) for state in states])[order]
    return PromptState(cache, mask, mask.sum(-1), torch.cat([state.hidden for state in states])[order])


def _prefill_together(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> PromptState:
    """One pass over a batch of prompts, padded to the longest."""
    ids, mask = pad_left(prompts, model.device)
    cache = DynamicCache(config=model.config)
    output = model.get_decoder()(
        input_ids=ids,
        attention_mask=attention_mask_4d(prompt_visibility(mask), model),
        position_ids=positions_of(mask),
        past_key_values=cache,
        use_cache=True,
    )
    return PromptState(cache, mask, mask.sum(-1), output.last_hidden_state[:, -1])


_HEAD_EXTRAS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def check_backbone(model: PreTrainedModel) -> None:
    """Check that logits are a plain linear map of hidden states, as the scores computed here assume.

    Raises:
        ConfigError: If the model caps or scales its logits, or sees only a window of its prompt.
    """
    settings = vars(model.config)
    if "sliding_attention" in (settings.get("layer_types") or ()):
        raise ConfigError(f"{type(model).__name__} uses sliding-window attention; set use_sliding_window to false.")
    for name in _HEAD_EXTRAS:
        if settings.get(name) not in (None, 1.0):
            raise ConfigError(
                f"{type(model).__name__} sets {name}, which this decoder does not apply. Use Qwen2/3 or Llama."
            )


class CausalBranches:
    """`Branches` of a causal language model: a batch of prompts and the tree of branch tokens behind each of them.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty; each is run once, here.
        levels: Most branch tokens on one path.

    Attributes:
        hidden: (B, D), last hidden state of each prompt's last token.
        count: Branch tokens that have been run for each prompt; the next to run get the slots from here on.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], levels: int):
        self.model = model
        self.state = prefill(model, prompts)
        self.hidden = self.state.hidden
        self.count = 0
        # Slots of the ancestors of each branch token, by depth; -1 where there is none.
        self.paths = torch.full((len(prompts), 0, levels), -1, dtype=torch.long, device=self.hidden.device)

    def run(
        self,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        depth: int | torch.Tensor,
        sees: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one more token behind each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the tokens before them; -1 behind the prompt itself.
            depth: Branch tokens before them on their paths: one number, or int64 (B, K).
            sees: bool (B, K, K), which of these tokens see which of them, each itself at least; None if no other. A
                token that sees others has, as its parent, the slot before the first of them, and is never a parent.

        Returns:
            Hidden states (B, K, D).
        """
        if self.count:
            index = parents.clamp(min=0).unsqueeze(-1).expand(-1, -1, self.paths.shape[2])
            paths = self.paths.gather(1, index).masked_fill(parents.unsqueeze(-1) < 0, -1)
        else:
            paths = self.paths.new_full((*tokens.shape, self.paths.shape[2]), -1)
        place = (paths >= 0).sum(-1, keepdim=True).clamp(max=paths.shape[2] - 1)
        paths = paths.scatter(2, place, parents.unsqueeze(-1))
        seen = torch.zeros(*tokens.shape, self.count + 1, dtype=torch.bool, device=tokens.device)
        ancestors = seen.scatter_(2, paths.masked_fill(paths < 0, self.count), True)[..., :-1]
        if sees is None:
            sees = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        hidden = _extend(self.model, self.state, tokens, torch.cat([ancestors, sees], -1), depth)
        self.paths = torch.cat([self.paths, paths], dim=1)
        self.count += tokens.shape[1]
        return hidden

    def compact(self, kept: torch.Tensor) -> torch.Tensor:
        """Forget branch tokens, so that later ones have fewer to look at.

        Args:
            kept: bool (B, count), the slots that stay, with every token the ancestors that it has.

        Returns:
            int64 (B, count), what each slot is called from now on, -1 if it is gone; `count` is what the fullest row
            has kept.
        """
        numbers = (kept.long().cumsum(1) - 1).masked_fill(~kept, -1)
        if kept.all():
            return numbers
        width = int(kept.sum(1).max())
        order = (~kept).byte().argsort(dim=1, stable=True)[:, :width]  # (B, width), the slots that stay first
        paths = self.paths.gather(1, order.unsqueeze(-1).expand(-1, -1, self.paths.shape[2]))
        named = numbers.gather(1, paths.clamp(min=0).flatten(1)).view_as(paths)
        self.paths = named.masked_fill(paths < 0, -1)
        self.state.keep(order)
        self.count = width
        return numbers

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens behind K branches, see `candidate_scores`.

        Args:
            hidden: (B, K, D), of `hidden` or `run`.
            tokens: int64 (B, K, W), vocabulary ids of the candidates.
            present: bool (B, K, W), which of them exist.
            normaliser: "full" or "renormalised".
            temperature: Logits are divided by it.

        Returns:
            float32 (B, K, W), minus infinity where there is no candidate.
        """
        states, ids, exist = (part.flatten(0, 1) for part in (hidden, tokens, present))
        return candidate_scores(self.model, states, ids, exist, normaliser, temperature).view(tokens.shape)


def _extend(
    model: PreTrainedModel, state: PromptState, tokens: torch.Tensor, sees: torch.Tensor, depth: int | torch.Tensor
) -> torch.Tensor:
    """Run one more token for each branch of each prompt, in place on the cache.

    Args:
        model: Causal language model.
        state: Prefilled prompts; its cache grows by K positions.
        tokens: int64 (B, K), one token a branch.
        sees: bool (B, K, E + K), which of the E branch positions added before, and of these, each token sees.
        depth: How many branch tokens lie between the prompt and these (0 for the first call); int64 (B, K) where they
            differ.

    Returns:
        Hidden states (B, K, D).
    """
    batch, beams = tokens.shape
    prompt = state.mask.unsqueeze(1).expand(batch, beams, -1)
    visible = torch.cat([prompt, sees], dim=-1)
    output = model.get_decoder()(
        input_ids=tokens,
        attention_mask=attention_mask_4d(visible, model),
        position_ids=(state.lengths.unsqueeze(1) + depth).expand(batch, beams),
        past_key_values=state.cache,
        use_cache=True,
    )
    hidden: torch.Tensor = output.last_hidden_state
    return hidden
