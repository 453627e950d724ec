"""Beam search by `generate` of transformers over the trie: slow, what our own search is held against.

Tests and benchmarks use it; `StockRanker` recommends by it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.beam import BeamResult
from minionerec.models.decoding.branches import SearchModel, check_search, pad_left
from minionerec.models.decoding.trie import Trie
from minionerec.recommend.rankers.language import LanguageRanker

# The trie as a constraint for stock `generate`: the same catalogue, the slower search.

_OUTSIDE, _ENDED = -1, -2


class TrieLogitsProcessor(LogitsProcessor):
    """Leaves only tokens that go on along the trie; everything else gets minus infinity.

    Nothing is remembered between calls: where a row stands in the trie is found from the tokens after the prompt.

    Stock beam search fills ranks for which there is no candidate (more beams than children) with prefixes outside of
    the trie, at a score of minus infinity. Such a row is masked whole, as long as another beam of its prompt is
    inside the trie; without one there is nothing left to generate, which is an error.

    Args:
        trie: SIDs of the catalogue.
        prompt_length: Tokens in front of the generated part, padding included; the same for all rows.
        end: Token ids that follow a complete SID, the last of which ends the sequence (a newline and the end token);
            empty where generation is stopped by length.
        num_beams: Rows of a prompt, which lie side by side; 1 for greedy search and sampling.

    Raises:
        ConfigError: If a number is out of range, or the trie needs an end token to tell SIDs apart.
    """

    def __init__(self, trie: Trie, prompt_length: int, end: Sequence[int] = (), num_beams: int = 1):
        if prompt_length < 1 or num_beams < 1:
            raise ConfigError(f"prompt_length {prompt_length} and num_beams {num_beams} must be at least 1.")
        if trie.mixed_ends and not end:
            raise ConfigError("some SIDs begin other SIDs, so only an end token tells where one ends; give end.")
        self.trie = trie.with_tail(end)
        self.end = end[-1] if end else None
        self.prompt_length, self.num_beams = prompt_length, num_beams

    def nodes_of(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Where each row stands: its node of the trie, -1 outside of it, -2 after the end of a complete SID.

        Args:
            input_ids: int64 (R, T), prompts and what has been generated.

        Returns:
            int64 (R,).
        """
        nodes = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
        for depth, tokens in enumerate(input_ids[:, self.prompt_length :].unbind(1)):
            if depth >= self.trie.levels:
                nodes = nodes.masked_fill(self._complete(nodes), _ENDED)
                nodes = nodes.masked_fill(nodes >= 0, _OUTSIDE)
                break
            children, present = self.trie.children(nodes)  # (R, W)
            match = present & (self.trie.tokens(children, depth + 1) == tokens.unsqueeze(1))
            found = torch.where(match.any(1), children.gather(1, match.long().argmax(1, True)).squeeze(1), _OUTSIDE)
            ended = (nodes == _ENDED) | self._complete(nodes)
            nodes = found.masked_fill(ended, _ENDED)
        return nodes

    def _complete(self, nodes: torch.Tensor) -> torch.Tensor:
        """Whether an SID and its end lie after a row."""
        if self.end is None:
            return torch.zeros_like(nodes, dtype=torch.bool)
        return (nodes >= 0) & (self.trie.sid[nodes.clamp(min=0)] >= 0)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask scores.

        Args:
            input_ids: int64 (R, T).
            scores: (R, V), logits or log-probabilities of the next token.

        Returns:
            (R, V), minus infinity at every token that does not go on along the trie.

        Raises:
            ConfigError: If the trie was built for another vocabulary.
            DataError: If nothing is allowed; the message names the row and what was generated there.
        """
        self.trie.check_vocabulary(scores.shape[1])
        self.trie = self.trie.to(scores.device)
        nodes = self.nodes_of(input_ids)
        children, present = self.trie.children(nodes)  # (R, W)
        tokens = self.trie.tokens(children)
        masked = torch.full_like(scores, -torch.inf)
        rows = torch.arange(len(scores), device=scores.device).unsqueeze(1).expand_as(tokens)
        masked[rows[present], tokens[present]] = scores[rows[present], tokens[present]]
        alive = present.any(1)
        if self.end is not None:
            done = (nodes == _ENDED) | self._complete(nodes)
            masked[done, self.end] = scores[done, self.end]
            alive = alive | done
        groups = alive.view(-1, self.num_beams)
        stuck = (~alive & (nodes >= 0)).view_as(groups) | ~groups.any(1, keepdim=True)
        if stuck.any():
            row = int(stuck.flatten().nonzero()[0])
            raise DataError(
                f"row {row} of the batch: no token may follow {input_ids[row, self.prompt_length :].tolist()} after a "
                f"prompt of {self.prompt_length} tokens. Check prompt_length, stop after {self.trie.levels} tokens, "
                "or give the tokens that end a completion."
            )
        return masked


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


def _settings(num_beams: int, steps: int, end: int | None) -> GenerationConfig:
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
    if num_beams == 1:  # greedy search has no use for it, and says so
        del fields["length_penalty"]
    return GenerationConfig(**fields)


def _after_end(tokens: torch.Tensor, end: Sequence[int]) -> torch.Tensor:
    """Which generated tokens are padding after an end token: bool (R, T)."""
    if not end:
        return torch.zeros_like(tokens, dtype=torch.bool)
    ended = (tokens == end[-1]).long()
    return ended.cumsum(1) > ended


def _greedy_scores(tokens: torch.Tensor, logits: Sequence[torch.Tensor], end: Sequence[int]) -> torch.Tensor:
    """Summed log-probabilities of generated tokens, float32 (R,): with one beam stock search does not give them."""
    steps = torch.stack(list(logits), 1).float().log_softmax(-1)  # (R, T, V)
    chosen = steps.gather(2, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(_after_end(tokens, end), 0).sum(1)


def _sid_numbers(tokens: torch.Tensor, trie: Trie, end: Sequence[int]) -> torch.Tensor:
    """The SID that each row of generated tokens begins with: int64 (R,), -1 where there is none."""
    tokens = tokens.masked_fill(_after_end(tokens, end), -1)
    nodes = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    for token in tokens[:, : trie.levels].unbind(1):
        onward = trie.find(nodes, token)
        nodes = torch.where(onward >= 0, onward, nodes)  # after a shorter SID its end follows
    return trie.sid[nodes].long()


def _without_fillers(numbers: torch.Tensor, scores: torch.Tensor) -> BeamResult:
    """Lists in which empty entries come last."""
    scores = scores.masked_fill(numbers < 0, -torch.inf)
    order = (numbers < 0).long().argsort(dim=1, stable=True)
    return BeamResult(numbers.gather(1, order), scores.gather(1, order))


class StockRanker(LanguageRanker):
    """A checkpoint that recommends by `stock_search`; without filters, bonus or assistant."""

    def _search_model(
        self, model: SearchModel, prompts: Sequence[Sequence[int]], width: int, sids: torch.Tensor | None
    ) -> BeamResult:
        return stock_search(model, prompts, self.trie, width, self.end if self.search.score_end else ())
