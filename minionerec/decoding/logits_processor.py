"""The trie as a constraint for stock `generate`: the same catalogue, the slower search."""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from minionerec.core.errors import ConfigError, DataError
from minionerec.decoding.trie import Trie

_OUTSIDE, _ENDED = -1, -2


class TrieLogitsProcessor(LogitsProcessor):
    """Leaves only tokens that go on along the trie; everything else gets minus infinity.

    Nothing is remembered between calls: where a row stands in the trie is found from the tokens behind the prompt.

    Stock beam search fills places for which there is no candidate (more beams than children) with prefixes outside of
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

    def places(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Where each row stands: its node of the trie, -1 outside of it, -2 behind the end of a complete SID.

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
        """Whether an SID and its end lie behind a row."""
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
        nodes = self.places(input_ids)
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
                f"row {row} of the batch: no token may follow {input_ids[row, self.prompt_length :].tolist()} behind a "
                f"prompt of {self.prompt_length} tokens. Check prompt_length, stop after {self.trie.levels} tokens, "
                "or give the tokens that end a completion."
            )
        return masked
