"""`Branches`: the interface between searches and models, and how models open them.

A search opens branches for a batch of prompts, asks for the scores of candidate tokens after them, and runs the tokens
that it chose; beam search, exact search and sampling read nothing else of a model. Causal language models get
`CausalBranches`, and `ForcedBranches` around them where the trie is deep. Any other model (the catalogue model, an
encoder-decoder, a mixture of two) inherits from `OpensBranches` and opens its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import DynamicCache, PreTrainedModel

from minionerec.core.errors import ConfigError, DataError
from minionerec.models.decoding.architectures import check_architecture, check_length
from minionerec.models.decoding.guide import Guide
from minionerec.models.decoding.trie import Trie

# Batches of prompts padded on the left: their masks and positions.


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts as one batch, padded on the left with token 0.

    Returns:
        Token ids int64 (B, P) and mask bool (B, P).
    """
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = True
    return ids.to(device), mask.to(device)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Rotary positions of left-padded prompts: int64 (B, P), counted from each prompt's first token."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def attention_mask_4d(visible: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """A 4-D attention mask, (B, 1, Q, S), from bool (B, Q, S), in the form the model's attention takes.

    Raises:
        ConfigError: If the model's attention takes no 4-D mask.
    """
    implementation = model.config._attn_implementation
    if implementation == "sdpa":
        return visible.unsqueeze(1)
    if implementation == "eager":
        lowest = torch.finfo(model.dtype).min
        return (
            torch.zeros(visible.shape, dtype=model.dtype, device=visible.device)
            .masked_fill_(~visible, lowest)
            .unsqueeze(1)
        )
    raise ConfigError(f"attention {implementation!r} takes no 4-D mask; load the model with sdpa or eager attention.")


def prompt_visibility(mask: torch.Tensor) -> torch.Tensor:
    """Which prompt tokens see which: causal, padding unseen (a padding token sees itself alone). bool (B, P, P)."""
    width = mask.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask.device)
    return (causal & mask.unsqueeze(1)) | itself


# Log-probabilities of candidate tokens under a language model's head, without logits over the whole vocabulary.

# Logits held at a time while the head's normaliser is summed up: 8 MiB in float32 stay in a CPU's cache.
LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}


def candidate_scores(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    present: torch.Tensor,
    normaliser: str = "full",
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-probabilities of candidate next tokens, without ever keeping logits over the vocabulary for all rows.

    The candidates' logits come from their own rows of the head. The normaliser over the whole vocabulary is summed up
    over slices of the head; over the candidates alone the rest of the head is not touched.

    Args:
        model: Causal language model.
        hidden: (R, D).
        tokens: int64 (R, W), vocabulary ids of the candidates.
        present: bool (R, W), which of them exist.
        normaliser: "full": log-softmax over the whole vocabulary, as stock beam search scores; "renormalised": over
            the row's candidates only.
        temperature: Logits are divided by it.

    Returns:
        float32 (R, W), minus infinity where there is no candidate.
    """
    head: torch.nn.Module = model.get_output_embeddings()
    size = model.config.vocab_size
    at_once = LOGITS_AT_ONCE.get(hidden.device.type, 2**26)
    plain = head if isinstance(head, torch.nn.Linear) and head.weight.shape[0] == size else None
    if plain is None or (normaliser == "full" and hidden.shape[0] * size <= at_once):
        parts = []
        rows_at_once = max(1, at_once // size)
        for rows, ids in zip(hidden.split(rows_at_once), tokens.split(rows_at_once), strict=True):
            logits = head(rows).float() / temperature
            parts.append((logits.gather(1, ids), logits.logsumexp(-1, keepdim=True)))
        scores, total = (torch.cat(part) for part in zip(*parts, strict=True))
    else:
        weight, bias = plain.weight, plain.bias
        wanted = torch.zeros(size, dtype=torch.bool, device=tokens.device)
        wanted[tokens] = True
        ids = wanted.nonzero().squeeze(1)  # (I,) distinct candidates
        column = wanted.cumsum(0) - 1
        own = torch.nn.functional.linear(hidden, weight[ids], None if bias is None else bias[ids])
        scores = own.float().gather(1, column[tokens]) / temperature
        if normaliser == "full":
            total = _log_normaliser(hidden, weight, bias, temperature, at_once)
    scores = scores.masked_fill(~present, -torch.inf)
    if normaliser != "full":
        total = scores.logsumexp(-1, keepdim=True)
    return (scores - total).masked_fill(~present, -torch.inf)


def _log_normaliser(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, at_once: int
) -> torch.Tensor:
    """Log of the summed exponentials of all logits of each row, float32 (R, 1), `at_once` logits at a time."""
    parts = []
    for rows in hidden.split(1024):
        total = torch.full((len(rows), 1), -torch.inf, device=hidden.device)
        step = max(256, at_once // len(rows))
        for start in range(0, len(weight), step):
            piece = slice(start, start + step)
            logits = torch.nn.functional.linear(rows, weight[piece], None if bias is None else bias[piece]).float()
            total = torch.logaddexp(total, (logits / temperature if temperature != 1 else logits).logsumexp(-1, True))
        parts.append(total)
    return torch.cat(parts)


# One prompt, many branches: a prompt's keys and values are computed once and read by all its branches in place.
#
# The branches of a prompt are side by side in the sequence after it, and a 4-D attention mask lets each token see the
# prompt, its own ancestors and itself:
#
#     position in the sequence:  [ pad pad p0 p1 p2 | a0 a1 a2 | b0 b1 b2 ]     b1's parent is a0
#     b1 sees:                   [  .   .  x  x  x  | x  .  .  | .  x  .  ]
#
# Rotary positions are given explicitly (every a has position 3, every b position 4), so that the scores are those of
# the replicated sequences. Only public interfaces are used: `get_decoder`, cache classes, `position_ids`, 4-D masks.

# Prompts run once: keys, values and the last hidden state of each, with little spent on padding.

# Padding tokens that a prefill may spend for each prompt token, and tokens that fill a device whatever their padding.
_PADDING_SHARE = 0.1
_FULL_PASS = {"cpu": 128, "cuda": 4096}


def prefill_groups(lengths: Sequence[int], full_pass: int) -> list[list[int]]:
    """Split prompts into groups that are prefilled together, so that little is spent on padding.

    A prompt joins the group of the next longer ones while the group's padding stays under a tenth of its tokens, or
    while the whole group is too small to fill the device anyway.

    Args:
        lengths: Prompt lengths.
        full_pass: Tokens that fill the device.

    Returns:
        Groups of indices, longest prompts first; equal lengths stay in their order.

    Example:
        >>> prefill_groups([5, 80, 76, 300], full_pass=0)
        [[3], [1, 2], [0]]
    """
    groups: list[list[int]] = []
    longest = tokens = 0
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        padded = longest * (len(groups[-1]) + 1) if groups else 0
        if groups and (padded <= (1 + _PADDING_SHARE) * (tokens + lengths[position]) or padded <= full_pass):
            groups[-1].append(position)
            tokens += lengths[position]
        else:
            groups.append([position])
            longest = tokens = lengths[position]
    return groups


def prefill(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
    """Run each prompt once.

    Prompts of very different length are run in several passes, so that padding costs little.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty.

    Returns:
        What branches continue from: keys and values of the prompts; bool (B, P), True at their tokens (they are padded
        on the left); and (B, D), the last hidden state of each prompt's last token.
    """
    device = torch.device(model.device)
    groups = prefill_groups([len(prompt) for prompt in prompts], _FULL_PASS.get(device.type, 4096))
    passes = [_prefill_together(model, [prompts[position] for position in group]) for group in groups]
    order = torch.tensor([position for group in groups for position in group], device=device).argsort()
    caches, masks, states = zip(*passes, strict=True)
    width = max(mask.shape[1] for mask in masks)
    mask = torch.cat([torch.nn.functional.pad(mask, (width - mask.shape[1], 0)) for mask in masks])[order]
    hidden = torch.cat(states)[order]
    if len(passes) == 1:
        if groups[0] != list(range(len(prompts))):
            caches[0].batch_select_indices(order)
        return caches[0], mask, hidden

    def together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([torch.nn.functional.pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])[order]

    cache = DynamicCache()
    for number, layers in enumerate(zip(*(each.layers for each in caches), strict=True)):
        cache.update(together([layer.keys for layer in layers]), together([layer.values for layer in layers]), number)
    return cache, mask, hidden


def _prefill_together(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
    """One pass over a batch of prompts, padded to the longest."""
    ids, mask = pad_left(prompts, model.device)
    # Given the configuration, it would drop keys outside of a sliding window, and count branches to its tokens.
    cache = DynamicCache()
    output = model.get_decoder()(
        input_ids=ids,
        attention_mask=attention_mask_4d(prompt_visibility(mask), model),
        position_ids=positions_of(mask),
        past_key_values=cache,
        use_cache=True,
    )
    return cache, mask, output.last_hidden_state[:, -1]


class CausalBranches:
    """`Branches` of a causal language model: a batch of prompts and the tree of branch tokens after each of them.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty; each is run once, here.
        levels: Most branch tokens on one path.

    Attributes:
        hidden: (B, D), last hidden state of each prompt's last token.
        count: Branch tokens that have been run for each prompt; the next to run get the slots from here on.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], levels: int):
        self.model = model
        self.cache, self._mask, self.hidden = prefill(model, prompts)
        self._lengths = self._mask.sum(-1)
        self.count = 0
        # Slots of the ancestors of each branch token, by depth; -1 where there is none.
        self.paths = torch.full((len(prompts), 0, levels), -1, dtype=torch.long, device=self.hidden.device)

    def run(
        self,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        depth: int | torch.Tensor,
        sees: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one more token after each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the tokens before them; -1 after the prompt itself.
            depth: Branch tokens before them on their paths: one number, or int64 (B, K).
            sees: bool (B, K, K), which of these tokens see which of them, each itself at least; None if no other. A
                token that sees others has, as its parent, the slot before the first of them, and is never a parent.

        Returns:
            Hidden states (B, K, D).
        """
        if self.count:
            index = parents.clamp(min=0).unsqueeze(-1).expand(-1, -1, self.paths.shape[2])
            paths = self.paths.gather(1, index).masked_fill(parents.unsqueeze(-1) < 0, -1)
        else:
            paths = self.paths.new_full((*tokens.shape, self.paths.shape[2]), -1)
        position = (paths >= 0).sum(-1, keepdim=True).clamp(max=paths.shape[2] - 1)
        paths = paths.scatter(2, position, parents.unsqueeze(-1))
        seen = torch.zeros(*tokens.shape, self.count + 1, dtype=torch.bool, device=tokens.device)
        ancestors = seen.scatter_(2, paths.masked_fill(paths < 0, self.count), True)[..., :-1]
        if sees is None:
            sees = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        prompt = self._mask.unsqueeze(1).expand(*tokens.shape, -1)
        output = self.model.get_decoder()(
            input_ids=tokens,
            attention_mask=attention_mask_4d(torch.cat([prompt, ancestors, sees], -1), self.model),
            position_ids=(self._lengths.unsqueeze(1) + depth).expand_as(tokens),
            past_key_values=self.cache,
            use_cache=True,
        )
        hidden: torch.Tensor = output.last_hidden_state
        self.paths = torch.cat([self.paths, paths], dim=1)
        self.count += tokens.shape[1]
        return hidden

    def compact(self, kept: torch.Tensor) -> torch.Tensor:
        """Drop branch tokens, so that later ones attend to fewer.

        Args:
            kept: bool (B, count), the slots that stay, with every token the ancestors that it has.

        Returns:
            int64 (B, count), what each slot is called from now on, -1 if it is gone; `count` is what the fullest row
            has kept.
        """
        numbers = (kept.long().cumsum(1) - 1).masked_fill(~kept, -1)
        if kept.all():
            return numbers
        width = int(kept.sum(1).max())
        order = (~kept).byte().argsort(dim=1, stable=True)[:, :width]  # (B, width), the slots that stay first
        paths = self.paths.gather(1, order.unsqueeze(-1).expand(-1, -1, self.paths.shape[2]))
        named = numbers.gather(1, paths.clamp(min=0).flatten(1)).view_as(paths)
        self.paths = named.masked_fill(paths < 0, -1)
        layer: Any
        for layer in self.cache.layers:
            index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            for name in ("keys", "values"):
                prompt, branches = getattr(layer, name).tensor_split([self._mask.shape[1]], 2)
                setattr(layer, name, torch.cat([prompt, branches.gather(2, index)], 2))
        self.count = width
        return numbers

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens after K branches, see `candidate_scores`.

        Args:
            hidden: (B, K, D), of `hidden` or `run`.
            tokens: int64 (B, K, W), vocabulary ids of the candidates.
            present: bool (B, K, W), which of them exist.
            normaliser: "full" or "renormalised".
            temperature: Logits are divided by it.

        Returns:
            float32 (B, K, W), minus infinity where there is no candidate.
        """
        states, ids, exist = (part.flatten(0, 1) for part in (hidden, tokens, present))
        return candidate_scores(self.model, states, ids, exist, normaliser, temperature).view(tokens.shape)


# Deep tries: what is forced is run at once, and nothing of it stays.
#
# The trie of a catalogue's titles has dozens of levels, but a title has no siblings after a few of them: from there on
# every token is forced. Level by level such a tail would take one pass a token, and fill the cache with tokens that
# no one else ever sees. Here all forced tokens after a prefix are run in one pass, packed after their prompt, when
# the first of their scores is requested; the searches then get them level by level, so that prefixes compete as they
# would have done anyway. Under renormalised scores a forced token scores 0 whatever the model, and is never run.
#
# level      1    2    3    4    5           pass 1: a, x    pass 2: b, c    pass 3: d and e f together
# a -> b -> d -> e -> f           (e f are forced after d)
# \> c -> ...                   what stays in the cache: a, x, b, c, ...

# Tokens are copied to leave others out once no more than this share of them is of use.
_WORTH_KEEPING = 0.8


class ForcedBranches:
    """Prefixes after a batch of prompts (`minionerec.models.decoding.branches.Branches`) in a deep trie.

    Args:
        inner: Branches of a causal language model, none run yet.
        trie: The trie to search, on the model's device; tokens that lead out of it are never run.

    Attributes:
        hidden: int64 (B, 1), the slot of each prompt: -1.
        count: Branch tokens that have been requested after each prompt.
    """

    def __init__(self, inner: CausalBranches, trie: Trie):
        self.inner, self.trie = inner, trie
        self.hidden = torch.full((len(inner.hidden), 1), -1, dtype=torch.long, device=inner.hidden.device)
        self.count = 0
        # Of each slot: its node (-1 outside of the trie) and depth; the slot that its forced tokens begin with (its own
        # where it is not forced); the inner slot of the token before it; and, where they have been run, its own inner
        # slot and the index of its state.
        names = ("node", "depth", "begin", "parent", "inner", "cached")
        self._slots = dict.fromkeys(names, self.hidden[:, :0])
        self._states = inner.hidden.unsqueeze(1)  # (B, T, D); the first is the prompt's
        self._live = self.hidden[:, :0].bool()  # (B, inner slots), those that hold a token

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more token after each of K branches; see `minionerec.models.decoding.branches.Branches.run`.

        Returns:
            int64 (B, K, 1), the slots themselves: the model is run when their scores are requested.
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
            "cached": torch.full_like(tokens, -1),
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
        position = self._of("cached", begin, 0)
        further = self._of("depth", slots, 0) - self._of("depth", begin, 0)
        position = torch.where(
            position < 0, 0, position + further
        )  # what was not run needs no state: its one token scores 0
        index = position.unsqueeze(-1).expand(-1, -1, self._states.shape[-1])
        return self.inner.scores(self._states.gather(1, index), tokens, present, normaliser, temperature)

    def _of(self, name: str, slots: torch.Tensor, otherwise: int) -> torch.Tensor:
        """A column of the slots, int64 (B, K); something else for the prompt."""
        if not self.count:
            return torch.full_like(slots, otherwise)
        return self._slots[name].gather(1, slots.clamp(min=0)).masked_fill(slots < 0, otherwise)

    def _run_model(self, begin: torch.Tensor, forced_too: bool) -> None:
        """Run what has not been run yet of some slots: int64 (B, K), each with what is forced after it."""
        node = self._of("node", begin, -1)
        single = self.trie.single[node.clamp(min=0)] & (node >= 0)
        wanted = (begin >= 0) & (node >= 0) & (self._of("cached", begin, 0) < 0)
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
        row, position = (exist & (step == 0)).nonzero(as_tuple=True)
        self._slots["cached"][row, slots[row, position]] = position + self._states.shape[1]
        self._slots["inner"][row, slots[row, position]] = position + self._live.shape[1]
        self._states = torch.cat([self._states, states], 1)
        self._live = torch.cat([self._live, exist & ~single.gather(1, branch)], 1)
        if int(self._live.sum(1).max()) < _WORTH_KEEPING * self.inner.count:
            self._compact()

    def _compact(self) -> None:
        """Hide forced tokens and padding from later tokens."""
        numbers = torch.nn.functional.pad(self.inner.compact(self._live), (0, 1), value=-1)
        self._live = torch.arange(self.inner.count, device=numbers.device) < self._live.sum(1, keepdim=True)
        for name in ("inner", "parent"):
            self._slots[name] = numbers.gather(1, self._slots[name] % numbers.shape[1])


# SIDs have no more levels than this; titles have dozens.
_DEEP = 8


class Branches(Protocol):
    """A batch of prompts, and the tree of tokens that grows after each of them.

    Every token that is run gets the next free slot of its prompt, counted from 0 along the calls of `run`; by its slot
    it is named as the parent of later ones.

    Attributes:
        hidden: (B, D), what `scores` needs to know of each prompt; its meaning is the object's own affair.
        count: Tokens that have been run for each prompt so far: the first of the next call's slots.
    """

    hidden: torch.Tensor
    count: int

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token after each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the tokens before them; -1 after the prompt itself.
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
        """Log-probabilities of candidate next tokens after K branches.

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
        row_bound: Whether its output for a prompt depends on the prompt's index in the batch, so that equal prompts
            are not decoded once.
    """

    row_bound = False

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the model; tries are moved there."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Size of the vocabulary of prompts and tries."""

    @abstractmethod
    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
        """Branches for a search.

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
            guide: Allowed SIDs of the prompts, and additions to log-probabilities.

        Returns:
            Scores float32 (B, K), descending, minus infinity where there is no SID that is allowed, and SID numbers
            int64 (B, K); None where they must be searched for.
        """
        return None

    def values_at_once(self, trie: Trie) -> int:
        """Values in memory for one prompt while it is scored, besides those of the layers."""
        return 0


SearchModel = PreTrainedModel | OpensBranches


def is_row_bound(model: SearchModel) -> bool:
    """Whether equal prompts of a batch may get different answers."""
    return isinstance(model, OpensBranches) and model.row_bound


def vocabulary_size(model: SearchModel) -> int:
    """Size of the vocabulary of a model's prompts and tries.

    Raises:
        ConfigError: If it is a causal language model of an architecture that is not supported.
    """
    if isinstance(model, OpensBranches):
        return model.vocab_size
    check_architecture(model.config, type(model).__name__)
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
        ConfigError: If the architecture is not supported or has too few positions for the prompts, or the trie is over
            another vocabulary.
        DataError: If a prompt is empty or foreign.
    """
    vocabulary = vocabulary_size(model)
    check_prompts(prompts, vocabulary)
    if isinstance(model, PreTrainedModel) and not isinstance(model, OpensBranches):
        check_length(model.config, max(map(len, prompts), default=0) + trie.levels, "Give prompts {} tokens shorter.")
    trie.check_vocabulary(vocabulary)
    return trie.to(model.device)


class BrokenScores(DataError):
    """A model's scores are not numbers.

    Attributes:
        row: The first prompt of the batch with such a score.
    """

    def __init__(self, row: int):
        super().__init__(
            f"the model's scores for prompt {row} of the batch are not numbers; its weights may be broken."
        )
        self.row = row


def broken_rows(scores: torch.Tensor) -> torch.Tensor:
    """Prompts with a score that is not a number: bool (B,).

    Args:
        scores: float (B, ...).
    """
    return scores.isnan().flatten(1).any(1)


def check_rows(steps: Sequence[torch.Tensor]) -> None:
    """Check that no prompt has a score that is not a number; a GPU is waited for once.

    Args:
        steps: bool (B,) of each step, of `broken_rows`.

    Raises:
        BrokenScores: If one has; it names the first prompt of the first such step.
    """
    broken = torch.stack(list(steps))
    if broken.any():
        raise BrokenScores(int(broken.nonzero()[0, 1]))


def check_scores(scores: torch.Tensor) -> None:
    """`check_rows` of the scores of one step, float (B, ...)."""
    check_rows([broken_rows(scores)])


@contextmanager
def evaluating(model: SearchModel) -> Iterator[None]:
    """Hold a model in evaluation mode, and restore its mode."""
    if not isinstance(model, torch.nn.Module) or not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
