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
    most: int,
    end: int | None = None,
    length_penalty: float = 0.0,
) -> torch.Tensor:
    """The best text after each prompt by stock beam search over the whole vocabulary.

    A prompt runs through the model once, not once for each of its beams.

    Args:
        model: A language model without an encoder, in evaluation mode.
        prompts: B token id lists, none empty.
        num_beams: Number of beams.
        most: Most tokens of a text.
        end: The token that ends a text; None to stop by length alone.
        length_penalty: A finished beam's log-probability is divided by its length to this power.

    Returns:
        Token ids int64 (B, T), T at most `most`, the end token included; -1 after it.
    """
    ids, mask = pad_left(prompts, model.device)
    generator: Any = model  # what generate gives depends on its settings, which types do not follow
    # Every field that ranks, so that nothing of the checkpoint's own file has an effect.
    fields: dict[str, Any] = {
        "num_beams": num_beams,
        "num_return_sequences": 1,
        "max_new_tokens": most,
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
    read = {}
    if ids.shape[1] > 1:  # the last token is run by the search
        before, visible = ids[:, :-1], mask[:, :-1]
        found = generator.base_model(
            before, attention_mask=visible.long(), position_ids=positions_of(visible), use_cache=True
        )
        found.past_key_values.batch_repeat_interleave(num_beams)
        read["past_key_values"] = found.past_key_values
    written = generator.generate(ids, attention_mask=mask.long(), generation_config=GenerationConfig(**fields), **read)
    tokens: torch.Tensor = written.sequences[:, ids.shape[1] :]
    if end is None:
        return tokens
    ended = (tokens == end).long()
    return tokens.masked_fill(ended.cumsum(1) > ended, -1)


def fitting_free_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], beams: int, most: int, memory: int | None = None
) -> int:
    """How many prompts fit into half of a given memory, see `minionerec.models.decoding.decoder.fitting_batch_size`.

    Each of the K beams holds the keys and values of its prompt and of its text, so S = K (P + M), and W is the size of
    the vocabulary.

    Args:
        model: The model, where it is to run.
        prompts: R token id lists.
        beams: K.
        most: Most tokens of a text, M.
        memory: Bytes; what is free on the model's device, if None.
    """
    longest: int = max(map(len, prompts))
    span = beams * (longest + most) - longest
    return fitting_prompts(model, prompts, beams, span, model.config.get_text_config().vocab_size, 0, memory)
