"""Beam search by `generate` of transformers: over the same trie, slow, as a check; or in free words."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel

from minionerec.core.errors import ConfigError
from minionerec.decoding.beam import BeamResult
from minionerec.decoding.branches import SearchModel, check_search
from minionerec.decoding.logits_processor import TrieLogitsProcessor
from minionerec.decoding.masks import pad_left, positions_of
from minionerec.decoding.trie import Trie

# What stock search gives to beams for which there is no candidate.
_NO_CANDIDATE = -1e8


@torch.no_grad()
def stock_search(
    model: SearchModel,
    prompts: Sequence[Sequence[int]],
    trie: Trie,
    num_beams: int,
    end: Sequence[int] = (),
) -> BeamResult:
    """Rank SIDs by stock beam search: the lists of `beam_search`, with the prompt paid for by every beam.

    Args:
        model: A model that can `generate`, in evaluation mode.
        prompts: B token id lists, none empty.
        trie: SIDs of the catalogue.
        num_beams: Beam width K.
        end: Token ids that follow every SID and are scored too, the last of which ends a completion; empty to stop by
            length.

    Returns:
        Up to K distinct SIDs a prompt.

    Raises:
        ConfigError: If the model cannot generate, or SIDs differ in length and there is no end token.
        DataError: If a prompt is empty or foreign.
    """
    if not isinstance(model, GenerationMixin):
        raise ConfigError(f"{type(model).__name__} cannot generate, so stock search does not apply. Take search beam.")
    if not end and len(set((trie.codes() >= 0).sum(1).tolist())) > 1:
        raise ConfigError(
            "SIDs of this table differ in length, so stock search needs an end token to tell where one ends. Take "
            "search beam, or a wording whose completions end in a token, with score_end true."
        )
    trie = check_search(model, prompts, trie)
    ids, mask = pad_left(prompts, model.device)
    stock: Any = model  # what generate gives depends on its settings, which types do not follow
    before = 1 if stock.config.is_encoder_decoder else ids.shape[1]  # a decoder's own sequence starts with one token
    output = stock.generate(
        ids,
        attention_mask=mask.long(),
        generation_config=_settings(num_beams, trie.levels + len(end), end[-1] if end else None),
        logits_processor=LogitsProcessorList([TrieLogitsProcessor(trie, before, end, num_beams)]),
    )
    tokens = output.sequences[:, before:]
    scores = output.sequences_scores if num_beams > 1 else _greedy_scores(tokens, output.logits, end)
    numbers = _sid_numbers(tokens, trie, end).view(len(prompts), -1)
    scores = scores.float().view(numbers.shape)
    return _without_fillers(numbers.masked_fill(scores < _NO_CANDIDATE, -1), scores)


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
        num_beams: Beam width.
        most: Most tokens of a text.
        end: The token that ends a text; None to stop by length alone.
        length_penalty: A finished beam's log-probability is divided by its length to this power.

    Returns:
        Token ids int64 (B, T), T at most `most`, the end token included; -1 behind it.
    """
    ids, mask = pad_left(prompts, model.device)
    stock: Any = model
    one = {"num_return_sequences": 1, "output_scores": False, "output_logits": False}
    settings = _settings(num_beams, most, end, length_penalty=length_penalty, **one)
    read = {}
    if ids.shape[1] > 1:  # the last token is run by the search
        before, visible = ids[:, :-1], mask[:, :-1]
        found = stock.base_model(
            before, attention_mask=visible.long(), position_ids=positions_of(visible), use_cache=True
        )
        found.past_key_values.batch_repeat_interleave(num_beams)
        read["past_key_values"] = found.past_key_values
    written = stock.generate(ids, attention_mask=mask.long(), generation_config=settings, **read)
    tokens: torch.Tensor = written.sequences[:, ids.shape[1] :]
    return tokens.masked_fill(_behind_end(tokens, [] if end is None else [end]), -1)


def _settings(num_beams: int, steps: int, end: int | None, **changes: Any) -> GenerationConfig:
    """Every field that ranks, so that nothing of the checkpoint's own file has a say."""
    fields: dict[str, Any] = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": steps,
        "do_sample": False,
        "length_penalty": 0.0,
        "early_stopping": False,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "eos_token_id": end,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": num_beams == 1,
    }
    fields |= changes
    if num_beams == 1:  # greedy search has no use for it, and says so
        del fields["length_penalty"]
    return GenerationConfig(**fields)


def _behind_end(tokens: torch.Tensor, end: Sequence[int]) -> torch.Tensor:
    """Which generated tokens are padding behind an end token: bool (R, T)."""
    if not end:
        return torch.zeros_like(tokens, dtype=torch.bool)
    ended = (tokens == end[-1]).long()
    return ended.cumsum(1) > ended


def _greedy_scores(tokens: torch.Tensor, logits: Sequence[torch.Tensor], end: Sequence[int]) -> torch.Tensor:
    """Summed log-probabilities of generated tokens, float32 (R,): with one beam stock search does not give them."""
    steps = torch.stack(list(logits), 1).float().log_softmax(-1)  # (R, T, V)
    chosen = steps.gather(2, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(_behind_end(tokens, end), 0).sum(1)


def _sid_numbers(tokens: torch.Tensor, trie: Trie, end: Sequence[int]) -> torch.Tensor:
    """The SID that each row of generated tokens begins with: int64 (R,), -1 where there is none."""
    tokens = tokens.masked_fill(_behind_end(tokens, end), -1)
    nodes = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    for token in tokens[:, : trie.levels].unbind(1):
        onward = trie.find(nodes, token)
        nodes = torch.where(onward >= 0, onward, nodes)  # behind a shorter SID its end follows
    return trie.sid[nodes].long()


def _without_fillers(numbers: torch.Tensor, scores: torch.Tensor) -> BeamResult:
    """Lists in which empty places stand last."""
    scores = scores.masked_fill(numbers < 0, -torch.inf)
    order = (numbers < 0).long().argsort(dim=1, stable=True)
    return BeamResult(numbers.gather(1, order), scores.gather(1, order))
