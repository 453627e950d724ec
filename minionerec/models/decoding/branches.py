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
from minionerec.models.decoding.causal import CausalBranches, check_backbone
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.trie import Trie

# Deep tries: what is forced is run at once, and nothing of it stays.
#
# The trie of a catalogue's titles has dozens of levels, but a title stands alone after a few of them: from there on
# every token is forced. Level by level such a tail would take one pass a token, and fill the cache with tokens that
# nobody else ever sees. Here all forced tokens behind a prefix are run in one pass, packed behind their prompt, when
# the first of their scores is asked for; the searches then get them level by level, so that prefixes compete as they
# would have done anyway. Under renormalised scores a forced token scores 0 whatever the model says, and is never run.
#
# level      1    2    3    4    5           pass 1: a, x    pass 2: b, c    pass 3: d and e f together
# a -> b -> d -> e -> f           (e f are forced behind d, as d is behind nobody else)
# \> c -> ...                   what stays in the cache: a, x, b, c, ...

# Tokens are copied to leave others out once no more than this share of them is of use.
_WORTH_KEEPING = 0.8


class ForcedBranches:
    """Prefixes behind a batch of prompts (`minionerec.models.decoding.branches.Branches`) in a deep trie.

    Args:
        inner: Branches of a causal language model, none run yet.
        trie: What is searched, on the model's device; tokens that lead out of it are never run.

    Attributes:
        hidden: int64 (B, 1), the slot of each prompt: -1.
        count: Branch tokens that have been asked for behind each prompt.
    """

    def __init__(self, inner: CausalBranches, trie: Trie):
        self.inner, self.trie = inner, trie
        self.hidden = torch.full((len(inner.hidden), 1), -1, dtype=torch.long, device=inner.hidden.device)
        self.count = 0
        # Of each slot: its node (-1 outside of the trie) and depth; the slot that its forced tokens begin with (its own
        # where it is not forced); the inner slot of the token before it; and, where they have been run, its own inner
        # slot and the place of its state.
        names = ("node", "depth", "begin", "parent", "inner", "place")
        self._slots = dict.fromkeys(names, self.hidden[:, :0])
        self._states = inner.hidden.unsqueeze(1)  # (B, T, D); the first is the prompt's
        self._live = self.hidden[:, :0].bool()  # (B, inner slots), those that hold a token

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more token behind each of K branches; see `minionerec.models.decoding.branches.Branches.run`.

        Returns:
            int64 (B, K, 1), the slots themselves: the model is run when their scores are asked for.
        """
        slots = torch.arange(self.count, self.count + tokens.shape[1], device=tokens.device).expand_as(tokens)
        before = self._of("node", parents, 0)
        node = self.trie.find(before.clamp(min=0), tokens).masked_fill(before < 0, -1)
        forced = (parents >= 0) & (node >= 0) & self.trie.single[before.clamp(min=0)]
        new = {
            "node": node,
            "depth": torch.as_tensor(depth, device=tokens.device).expand_as(tokens),
            "begin": torch.where(forced, self._of("begin", parents, -1), slots),
            "parent": self._of("inner", parents, -1),
            "inner": torch.full_like(tokens, -1),
            "place": torch.full_like(tokens, -1),
        }
        self._slots = {name: torch.cat([values, new[name]], 1) for name, values in self._slots.items()}
        self.count += tokens.shape[1]
        return slots.unsqueeze(-1)

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens; see `minionerec.models.decoding.branches.Branches.scores`."""
        slots = hidden[..., 0]
        begin = self._of("begin", slots, -1)
        self._run_model(begin, normaliser == "full")
        place = self._of("place", begin, 0)
        further = self._of("depth", slots, 0) - self._of("depth", begin, 0)
        place = torch.where(place < 0, 0, place + further)  # what was not run needs no state: its one token scores 0
        index = place.unsqueeze(-1).expand(-1, -1, self._states.shape[-1])
        return self.inner.scores(self._states.gather(1, index), tokens, present, normaliser, temperature)

    def _of(self, name: str, slots: torch.Tensor, otherwise: int) -> torch.Tensor:
        """A column of the slots, int64 (B, K); something else for the prompt."""
        if not self.count:
            return torch.full_like(slots, otherwise)
        return self._slots[name].gather(1, slots.clamp(min=0)).masked_fill(slots < 0, otherwise)

    def _run_model(self, begin: torch.Tensor, forced_too: bool) -> None:
        """Run what has not been run yet of some slots: int64 (B, K), each with what is forced behind it."""
        node = self._of("node", begin, -1)
        single = self.trie.single[node.clamp(min=0)] & (node >= 0)
        wanted = (begin >= 0) & (node >= 0) & (self._of("place", begin, 0) < 0)
        if not forced_too:
            wanted &= ~single
        if not wanted.any():
            return
        counts = torch.where(single, self.trie.below[node.clamp(min=0)].clamp(min=1), 1).masked_fill(~wanted, 0)
        longest = int(counts.max())
        path = [node.clamp(min=0)]
        for _ in range(longest - 1):
            path.append(self.trie.first_child[path[-1]].long().clamp(max=len(self.trie.code) - 1))
        exist = (torch.arange(longest, device=node.device) < counts.unsqueeze(-1)).flatten(1)
        order = (~exist).byte().argsort(dim=1, stable=True)[:, : int(exist.sum(1).max())]  # (B, T)
        exist, branch, step = exist.gather(1, order), order // longest, order % longest
        slots = begin.gather(1, branch)
        sees = (branch.unsqueeze(2) == branch.unsqueeze(1)) & (step.unsqueeze(2) >= step.unsqueeze(1))
        states = self.inner.run(
            self.trie.tokens(torch.stack(path, -1).flatten(1).gather(1, order)).clamp(min=0),
            self._of("parent", slots, -1),
            self._of("depth", slots, 0) + step,
            sees & exist.unsqueeze(1) | torch.eye(order.shape[1], dtype=torch.bool, device=node.device),
        )
        row, place = (exist & (step == 0)).nonzero(as_tuple=True)
        self._slots["place"][row, slots[row, place]] = place + self._states.shape[1]
        self._slots["inner"][row, slots[row, place]] = place + self._live.shape[1]
        self._states = torch.cat([self._states, states], 1)
        self._live = torch.cat([self._live, exist & ~single.gather(1, branch)], 1)
        if int(self._live.sum(1).max()) < _WORTH_KEEPING * self.inner.count:
            self._compact()

    def _compact(self) -> None:
        """Leave what was forced, and padding, out of what later tokens look at."""
        numbers = torch.nn.functional.pad(self.inner.compact(self._live), (0, 1), value=-1)
        self._live = torch.arange(self.inner.count, device=numbers.device) < self._live.sum(1, keepdim=True)
        for name in ("inner", "parent"):
            self._slots[name] = numbers.gather(1, self._slots[name] % numbers.shape[1])


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
