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

import torch
from transformers import DynamicCache, PreTrainedModel

from minionerec.core.errors import ConfigError

_HEAD_EXTRAS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


@dataclass
class PromptState:
    """A batch of prompts after prefill.

    Attributes:
        cache: Keys and values of the prompts, and of the branch tokens that `extend` adds.
        mask: bool (B, P), True at prompt tokens (prompts are padded on the left).
        lengths: int64 (B,), prompt lengths.
        hidden: (B, D), last hidden state of each prompt's last token.
    """

    cache: DynamicCache
    mask: torch.Tensor
    lengths: torch.Tensor
    hidden: torch.Tensor


def check_backbone(model: PreTrainedModel) -> None:
    """Check that logits are a plain linear map of hidden states, as the scores computed here assume.

    Raises:
        ConfigError: If the model caps or scales its logits.
    """
    for name in _HEAD_EXTRAS:
        if getattr(model.config, name, None) not in (None, 1.0):
            raise ConfigError(
                f"{type(model).__name__} sets {name}, which this decoder does not apply. Use Qwen2/3 or Llama."
            )


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


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> PromptState:
    """Run each prompt once.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty.

    Returns:
        The state that `extend` goes on from.
    """
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


def extend(
    model: PreTrainedModel, state: PromptState, tokens: torch.Tensor, ancestors: torch.Tensor, depth: int
) -> torch.Tensor:
    """Run one more token for each branch of each prompt, in place on the cache.

    Args:
        model: Causal language model.
        state: Prefilled prompts; its cache grows by K positions.
        tokens: int64 (B, K), one token a branch.
        ancestors: bool (B, K, E), which of the E branch positions added before each branch descends from.
        depth: How many branch tokens lie between the prompt and these (0 for the first call).

    Returns:
        Hidden states (B, K, D).
    """
    batch, beams = tokens.shape
    prompt = state.mask.unsqueeze(1).expand(batch, beams, -1)
    itself = torch.eye(beams, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
    visible = torch.cat([prompt, ancestors, itself], dim=-1)
    output = model.get_decoder()(
        input_ids=tokens,
        attention_mask=attention_mask_4d(visible, model),
        position_ids=(state.lengths + depth).unsqueeze(1).expand(batch, beams),
        past_key_values=state.cache,
        use_cache=True,
    )
    return output.last_hidden_state


def candidate_scores(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    present: torch.Tensor,
    normaliser: str = "full",
    chunk: int = 512,
) -> torch.Tensor:
    """Log-probabilities of candidate next tokens, without keeping logits over the vocabulary for all rows at once.

    Args:
        model: Causal language model.
        hidden: (R, D).
        tokens: int64 (R, W), vocabulary ids of the candidates.
        present: bool (R, W), which of them exist.
        normaliser: "full": log-softmax over the whole vocabulary, as stock beam search scores; "renormalised": over
            the row's candidates only.
        chunk: Rows whose logits are computed at a time.

    Returns:
        float32 (R, W), minus infinity where there is no candidate.
    """
    head = model.get_output_embeddings()
    parts = []
    for rows, ids, exists in zip(hidden.split(chunk), tokens.split(chunk), present.split(chunk), strict=True):
        logits = head(rows).float()
        scores = logits.gather(1, ids).masked_fill(~exists, -torch.inf)
        total = logits.logsumexp(-1, keepdim=True) if normaliser == "full" else scores.logsumexp(-1, keepdim=True)
        parts.append((scores - total).masked_fill(~exists, -torch.inf))
    return torch.cat(parts)
