"""A catalogue's titles as the leaves of a trie for search by a model of titles; and unconstrained generation.

Items of one title share a leaf, as items of one SID do; so every figure of such a model has two readings, by title and
by item. A leaf ends with the tokens that end a completion, so that a title that begins another one can be reached.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from minionerec.models.decoding.branches import pad_left, positions_of
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import LONGEST_COMPLETION, ExampleBuilder, encode_completion
from minionerec.models.prompts.wording import NEXT_TITLE


@dataclass(frozen=True)
class Titles:
    """Distinct titles and their items; of groups of items, what `SidTable` says of theirs.

    Attributes:
        trie: The distinct titles in the tokens of one tokenizer.
        sid_numbers: int64 (N,), the leaf of each item.
        sids: N texts, what the group of each item is called: the title itself.
    """

    unit: ClassVar[str] = "title"

    trie: Trie
    sid_numbers: np.ndarray
    sids: Sequence[str]

    @classmethod
    def build(cls, tokens: Sequence[Sequence[int]], titles: Sequence[str]) -> "Titles":
        """The trie of tokenised titles.

        Args:
            tokens: Token ids of each item's title, N lists, none empty; equal lists share a leaf.
            titles: The N titles.

        Example:
            >>> titles = Titles.build([[5, 6, 0], [5, 0], [5, 6, 0]], ["red cup", "red", "red cup"])
            >>> titles.sid_numbers.tolist(), titles.n_unique, titles.trie.levels
            ([1, 0, 1], 2, 3)
        """
        lengths = np.array([len(ids) for ids in tokens])
        words, positions = np.unique(np.concatenate([np.asarray(ids) for ids in tokens]), return_inverse=True)
        codes = np.full((len(lengths), int(lengths.max())), -1, dtype=np.int64)
        codes[np.arange(codes.shape[1]) < lengths[:, None]] = positions
        rows, first, groups = np.unique(codes, axis=0, return_index=True, return_inverse=True)
        called = [titles[item] if titles[item].strip() else f"(no title: {titles[item]!r})" for item in first]
        groups = groups.reshape(-1).astype(np.int64)
        return cls(Trie.build(rows, np.tile(words, (codes.shape[1], 1))), groups, [called[leaf] for leaf in groups])

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder) -> "Titles":
        """The titles of a catalogue as completions of the task title_history_to_title, truncated as in training."""
        texts = [builder.completion(NEXT_TITLE, item) for item in range(len(builder.titles))]
        return cls.build([ids[:LONGEST_COMPLETION] for ids in encode_completion(tokenizer, texts)], builder.titles)

    @property
    def n_unique(self) -> int:
        """Number of distinct titles."""
        return self.trie.n_sids

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the items' titles, which shows whether two artefacts have the same ones."""
        return hashlib.sha256("\0".join(self.sids).encode()).hexdigest()


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
