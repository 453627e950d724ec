"""Trie of a catalogue's titles, for search by a model that generates titles.

Items with equal titles share a leaf, as items with equal SIDs do, so metrics of such a model have two readings, by
title and by item. A leaf includes the end tokens of a completion, so that a title may be a prefix of another.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import LONGEST_COMPLETION, ExampleBuilder, encode_completion
from minionerec.models.prompts.wording import NEXT_TITLE


@dataclass(frozen=True)
class Titles:
    """Distinct titles and their items, with the attributes of `SidTable` that evaluation reads.

    Attributes:
        trie: Trie of the distinct titles in the tokens of one tokenizer.
        sid_numbers: int64 (N,), leaf of each item.
        sids: N titles, one per item.
    """

    unit: ClassVar[str] = "title"

    trie: Trie
    sid_numbers: np.ndarray
    sids: Sequence[str]

    @classmethod
    def build(cls, tokens: Sequence[Sequence[int]], titles: Sequence[str]) -> "Titles":
        """Build the trie of N titles from the token ids of each, none empty; equal lists share a leaf.

        Example:
            >>> titles = Titles.build([[5, 6, 0], [5, 0], [5, 6, 0]], ["red cup", "red", "red cup"])
            >>> titles.sid_numbers.tolist(), titles.n_unique, titles.trie.levels
            ([1, 0, 1], 2, 3)
        """
        lengths = np.array([len(ids) for ids in tokens])
        words, positions = np.unique(np.concatenate([np.asarray(ids) for ids in tokens]), return_inverse=True)
        codes = np.full((len(lengths), int(lengths.max())), -1, dtype=np.int64)
        codes[np.arange(codes.shape[1]) < lengths[:, None]] = positions
        distinct, first, groups = np.unique(codes, axis=0, return_index=True, return_inverse=True)
        names = [titles[item] if titles[item].strip() else f"(no title: {titles[item]!r})" for item in first]
        groups = groups.reshape(-1).astype(np.int64)
        return cls(Trie.build(distinct, np.tile(words, (codes.shape[1], 1))), groups, [names[leaf] for leaf in groups])

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
