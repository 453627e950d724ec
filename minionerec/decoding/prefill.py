"""Prompts run once: keys, values and the last hidden state of each, with little spent on padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from minionerec.decoding.masks import attention_mask_4d, pad_left, positions_of, prompt_visibility

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
