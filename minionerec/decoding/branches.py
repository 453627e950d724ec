"""`Branches`: what searches grow prefixes on, and the models that open them.

A search opens branches for a batch of prompts, asks for the scores of candidate tokens behind them, and runs the tokens
that it chose; beam search, exact search and sampling read nothing else of a model. Causal language models get
`CausalBranches`, and `ForcedBranches` around them where the trie is deep. Any other model (the catalogue model, an
encoder-decoder, a mixture of two) inherits from `OpensBranches` and opens its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from transformers import PreTrainedModel

from minionerec.core.errors import DataError
from minionerec.decoding.causal import CausalBranches, check_backbone
from minionerec.decoding.forced import ForcedBranches
from minionerec.decoding.guide import Guide
from minionerec.decoding.trie import Trie

# SIDs have no more levels than this; titles have dozens.
_DEEP = 8


class Branches(Protocol):
    """A batch of prompts, and the tree of tokens that grows behind each of them.

    Every token that is run gets the next free slot of its prompt, counted from 0 along the calls of `run`; by its slot
    it is named as the parent of later ones.

    Attributes:
        hidden: (B, D), what `scores` needs to know of each prompt; its meaning is the object's own affair.
        count: Tokens that have been run for each prompt so far: the first of the next call's slots.
    """

    hidden: torch.Tensor
    count: int

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token behind each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the tokens before them; -1 behind the prompt itself.
            depth: Tokens before them on their paths: one number, or int64 (B, K).

        Returns:
            (B, K, D), what `scores` needs to know of the K prefixes that end in these tokens.
        """
        ...

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens behind K branches.

        Args:
            hidden: (B, K, D), of `hidden` or `run`.
            tokens: int64 (B, K, W), vocabulary ids of the candidates.
            present: bool (B, K, W), which of them exist.
            normaliser: "full" (over the whole vocabulary) or "renormalised" (over the candidates).
            temperature: Logits are divided by it.

        Returns:
            float32 (B, K, W), minus infinity where there is no candidate.
        """
        ...


class OpensBranches(ABC):
    """A model that opens branches of its own.

    A model class that also is a `PreTrainedModel` names this class last among its bases, and has `device` from there.

    Attributes:
        row_bound: Whether what it says of a prompt depends on the prompt's place in the batch, so that equal prompts
            are not decoded once.
    """

    row_bound = False

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model lies; tries are brought there."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that prompts and tries speak in."""

    @abstractmethod
    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
        """What searches grow prefixes on.

        Args:
            prompts: B token id lists, none empty.
            trie: SIDs of the catalogue, on the model's device.

        Raises:
            ConfigError: If the model cannot score the trie's SIDs.
            DataError: If a prompt cannot be read.
        """

    def sid_log_probs(self, prompts: Sequence[Sequence[int]], trie: Trie) -> torch.Tensor | None:
        """Log-probabilities of all SIDs, where the model has them at once: exact search then needs no tree.

        Args:
            prompts: B token id lists, none empty.
            trie: SIDs of the catalogue, on the model's device.

        Returns:
            float32 (B, S), by the trie's SID numbers; None where they must be searched for.
        """
        return None

    def best_sids(
        self, prompts: Sequence[Sequence[int]], trie: Trie, k: int, guide: Guide
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The best SIDs, where the model ranks all of them by parts: exact search then needs no tree.

        Args:
            prompts: B token id lists, none empty.
            trie: SIDs of the catalogue, on the model's device.
            k: How many; fewer are given where there are fewer.
            guide: What the prompts may get, and what is added to log-probabilities.

        Returns:
            Scores float32 (B, K), descending, minus infinity where there is no SID that is allowed, and SID numbers
            int64 (B, K); None where they must be searched for.
        """
        return None

    def values_at_once(self, trie: Trie) -> int:
        """Numbers that the model holds of one prompt while it scores it, beside what its layers do."""
        return 0


SearchModel = PreTrainedModel | OpensBranches


def is_row_bound(model: SearchModel) -> bool:
    """Whether equal prompts of a batch may get different answers."""
    return isinstance(model, OpensBranches) and model.row_bound


def vocabulary_size(model: SearchModel) -> int:
    """Tokens of the vocabulary that a model's prompts and tries speak in.

    Raises:
        ConfigError: If it is a causal language model of a kind that is not scored right here.
    """
    if isinstance(model, OpensBranches):
        return model.vocab_size
    check_backbone(model)
    size: int = model.config.vocab_size
    return size


def open_branches(model: SearchModel, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
    """The branches of any model that can be searched."""
    if isinstance(model, OpensBranches):
        return model.branches(prompts, trie)
    branches = CausalBranches(model, prompts, trie.levels)
    return ForcedBranches(branches, trie) if trie.levels > _DEEP else branches


def check_prompts(prompts: Sequence[Sequence[int]], vocabulary: int) -> None:
    """Check that prompts can be embedded.

    Raises:
        DataError: If a prompt is empty or holds a token outside of the vocabulary; the message names its row.
    """
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise DataError(f"prompt {row} of the batch is empty; a prompt needs at least one token.")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            wrong = next(token for token in prompt if not 0 <= token < vocabulary)
            raise DataError(
                f"prompt {row} of the batch holds token {wrong}, but the model has {vocabulary} tokens. "
                "Use the tokenizer of the model's own checkpoint."
            )


def check_search(model: SearchModel, prompts: Sequence[Sequence[int]], trie: Trie) -> Trie:
    """Check that model, prompts and trie belong together, before any search.

    Returns:
        The trie, on the model's device.

    Raises:
        ConfigError: If the backbone is not one that is scored right here, or the trie is over another vocabulary.
        DataError: If a prompt is empty or foreign.
    """
    vocabulary = vocabulary_size(model)
    check_prompts(prompts, vocabulary)
    trie.check_vocabulary(vocabulary)
    return trie.to(model.device)


class BrokenScores(DataError):
    """A model gave scores that are not numbers.

    Attributes:
        row: The first prompt of the batch with such a score.
    """

    def __init__(self, row: int):
        super().__init__(
            f"the model's scores for prompt {row} of the batch are not numbers; its weights may be broken."
        )
        self.row = row


def check_scores(scores: torch.Tensor) -> None:
    """Check scores of candidates.

    Args:
        scores: float (B, K, W).

    Raises:
        BrokenScores: If one is not a number.
    """
    broken = torch.isnan(scores)
    if broken.any():
        raise BrokenScores(int(broken.flatten(1).any(1).nonzero()[0]))


@contextmanager
def evaluating(model: SearchModel) -> Iterator[None]:
    """Hold a model in evaluation mode, and leave it in the mode that it was in."""
    if not isinstance(model, torch.nn.Module) or not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
