"""Texts that a language model generates without constraint, by stock beam search."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from minionerec.models.decoding.branches import pad_left, positions_of
from minionerec.models.decoding.decoder import fitting_prompts


@torch.no_grad()
def write_freely(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    num_beams: int,
    max_tokens: int,
    end: int | None = None,
    length_penalty: float = 0.0,
) -> torch.Tensor:
    """Generate the best text after each prompt by stock beam search over the whole vocabulary.

    A prompt is run once, not once per beam.

    Args:
        model: A language model without an encoder, in evaluation mode.
        prompts: B token id lists, none empty.
        num_beams: Number of beams.
        max_tokens: Maximum number of tokens of a text.
        end: The token that ends a text; None to stop only by length.
        length_penalty: A finished beam's log-probability is divided by its length to this power.

    Returns:
        Token ids int64 (B, T), T at most `max_tokens`, including the end token; -1 after it.
    """
    ids, mask = pad_left(prompts, model.device)
    generator: Any = model  # what generate gives depends on its settings, which types do not follow
    # All fields that affect the ranking, so that the checkpoint's generation config has no effect.
    fields: dict[str, Any] = {
        "num_beams": num_beams,
        "num_return_sequences": 1,
        "max_new_tokens": max_tokens,
        "do_sample": False,
        "early_stopping": False,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "eos_token_id": end,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
    }
    if num_beams > 1:  # greedy search has no use for it, and warns
        fields["length_penalty"] = length_penalty
    past = {}
    if ids.shape[1] > 1:  # the last token is run by the search
        before, visible = ids[:, :-1], mask[:, :-1]
        output = generator.base_model(
            before, attention_mask=visible.long(), position_ids=positions_of(visible), use_cache=True
        )
        output.past_key_values.batch_repeat_interleave(num_beams)
        past["past_key_values"] = output.past_key_values
    written = generator.generate(ids, attention_mask=mask.long(), generation_config=GenerationConfig(**fields), **past)
    tokens: torch.Tensor = written.sequences[:, ids.shape[1] :]
    if end is None:
        return tokens
    ended = (tokens == end).long()
    return tokens.masked_fill(ended.cumsum(1) > ended, -1)


def fitting_free_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], beams: int, max_tokens: int, memory: int | None = None
) -> int:
    """Number of prompts that fit into half of the memory, as in `fitting_batch_size` of the decoder.

    Each of the K beams stores keys and values of its prompt and text, so S = K (P + M), and W is the size of the
    vocabulary.

    Args:
        model: The model, on its device.
        prompts: R token id lists.
        beams: Number of beams, K.
        max_tokens: Maximum number of tokens of a text, M.
        memory: Available bytes; the free memory of the model's device if None.
    """
    longest: int = max(map(len, prompts))
    span = beams * (longest + max_tokens) - longest
    return fitting_prompts(model, prompts, beams, span, model.config.get_text_config().vocab_size, 0, memory)
