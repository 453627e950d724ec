"""Batches of prompts padded on the left: their masks and positions."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from minionerec.core.errors import ConfigError


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts as one batch, padded on the left with token 0.

    Returns:
        Token ids int64 (B, P) and mask bool (B, P).
    """
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = True
    return ids.to(device), mask.to(device)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Rotary positions of left-padded prompts: int64 (B, P), counted from each prompt's first token."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def attention_mask_4d(visible: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """A 4-D attention mask, (B, 1, Q, S), from bool (B, Q, S), in the form the model's attention takes.

    Raises:
        ConfigError: If the model's attention takes no 4-D mask.
    """
    implementation = model.config._attn_implementation
    if implementation == "sdpa":
        return visible.unsqueeze(1)
    if implementation == "eager":
        lowest = torch.finfo(model.dtype).min
        return (
            torch.zeros(visible.shape, dtype=model.dtype, device=visible.device)
            .masked_fill_(~visible, lowest)
            .unsqueeze(1)
        )
    raise ConfigError(f"attention {implementation!r} takes no 4-D mask; load the model with sdpa or eager attention.")


def prompt_visibility(mask: torch.Tensor) -> torch.Tensor:
    """Which prompt tokens see which: causal, padding unseen (a padding token sees itself alone). bool (B, P, P)."""
    width = mask.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask.device)
    return (causal & mask.unsqueeze(1)) | itself
