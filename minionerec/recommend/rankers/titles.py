"""Checkpoints that speak titles as rankers."""

from functools import cached_property

import torch

from minionerec.models.decoding.titles import Titles
from minionerec.models.decoding.trie import Trie
from minionerec.recommend.rankers.language import LanguageRanker


class TitleRanker(LanguageRanker):
    """A checkpoint's search over the distinct titles of the catalogue; see `LanguageRanker`, of which SIDs are titles.

    Items of one title follow one another, the more popular in training first, then the lower item index. What ends a
    title is part of it, and so of every score.
    """

    @cached_property
    def table(self) -> Titles:
        """The titles that it speaks."""
        return Titles.of(self.bundle.tokenizer, self.builder)

    @cached_property
    def trie(self) -> Trie:
        """Their trie, where the model is."""
        return self.table.trie.to(torch.device(self.bundle.model.device))

    def spoken(self, trie: Trie, node: int) -> str:
        """What the model says to reach a node of its trie: a piece of a title."""
        return str(self.bundle.tokenizer.decode([int(trie.token[node])]))

    @property
    def end(self) -> list[int]:
        """Nothing: titles end as completions do."""
        return []
