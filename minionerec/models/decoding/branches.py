"""`Branches`: the interface between searches and models, and how models open them.

A search opens branches for a batch of prompts, requests scores of candidate tokens after them, and runs the tokens that
it selects; beam search, exact search and sampling use a model only through this interface. Causal language models get
`CausalBranches`, wrapped in `ForcedBranches` if the trie is deep. Any other model (the catalogue model, an
encoder-decoder, a mixture of two) inherits from `OpensBranches`.
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


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad prompts on the left with token 0: ids int64 (B, P) and mask bool (B, P)."""
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
    """4-D attention mask, (B, 1, Q, S), from bool (B, Q, S), for sdpa or eager attention; else a `ConfigError`."""
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
    """Causal visibility of prompt tokens, bool (B, P, P); padding tokens see only themselves and are not seen."""
    width = mask.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask.device)
    return (causal & mask.unsqueeze(1)) | itself


# Logits in memory at a time while the head's normaliser is computed; 8 MiB in float32 fit into a CPU's cache.
LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}


def candidate_scores(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    present: torch.Tensor,
    normaliser: str = "full",
) -> torch.Tensor:
    """Log-probabilities of candidate next tokens, without materialising logits over the vocabulary for all rows.

    The candidates' logits are computed from their rows of the head, and the normaliser over the whole vocabulary from
    slices of the head.

    Args:
        model: Causal language model.
        hidden: (R, D), hidden states.
        tokens: int64 (R, W), vocabulary ids of the candidates.
        present: bool (R, W), False for entries without a candidate.
        normaliser: "full": log-softmax over the whole vocabulary, as in stock beam search; "renormalised": over the
            row's candidates.

    Returns:
        float32 (R, W), minus infinity for entries without a candidate.
    """
    head: torch.nn.Module = model.get_output_embeddings()
    size = model.config.vocab_size
    at_once = LOGITS_AT_ONCE.get(hidden.device.type, 2**26)
    plain = head if isinstance(head, torch.nn.Linear) and head.weight.shape[0] == size else None
    if plain is None or (normaliser == "full" and hidden.shape[0] * size <= at_once):
        parts = []
        rows_per_step = max(1, at_once // size)
        for states, ids in zip(hidden.split(rows_per_step), tokens.split(rows_per_step), strict=True):
            logits = head(states).float()
            parts.append((logits.gather(1, ids), logits.logsumexp(-1, keepdim=True)))
        scores, total = (torch.cat(part) for part in zip(*parts, strict=True))
    else:
        weight, bias = plain.weight, plain.bias
        is_candidate = torch.zeros(size, dtype=torch.bool, device=tokens.device)
        is_candidate[tokens] = True
        ids = is_candidate.nonzero().squeeze(1)  # (I,) distinct candidates
        column = is_candidate.cumsum(0) - 1
        candidate_logits = torch.nn.functional.linear(hidden, weight[ids], None if bias is None else bias[ids])
        scores = candidate_logits.float().gather(1, column[tokens])
        if normaliser == "full":
            total = _log_normaliser(hidden, weight, bias, at_once)
    scores = scores.masked_fill(~present, -torch.inf)
    if normaliser != "full":
        total = scores.logsumexp(-1, keepdim=True)
    return (scores - total).masked_fill(~present, -torch.inf)


def _log_normaliser(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, at_once: int
) -> torch.Tensor:
    """Log-sum-exp of all logits of each row, float32 (R, 1), computed `at_once` logits at a time."""
    parts = []
    for states in hidden.split(1024):
        total = torch.full((len(states), 1), -torch.inf, device=hidden.device)
        step = max(256, at_once // len(states))
        for start in range(0, len(weight), step):
            piece = slice(start, start + step)
            logits = torch.nn.functional.linear(states, weight[piece], None if bias is None else bias[piece]).float()
            total = torch.logaddexp(total, logits.logsumexp(-1, True))
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

# Largest share of padding tokens in a prefill pass, and tokens up to which a pass is grouped whatever its padding.
_PADDING_SHARE = 0.1
_FULL_PASS = {"cpu": 128, "cuda": 4096}


def prefill_groups(lengths: Sequence[int], full_pass: int) -> list[list[int]]:
    """Split prompts into groups of similar length that are prefilled together.

    A prompt joins the group of the next longer ones while padding is under a tenth of the group's tokens, or while the
    padded group has at most `full_pass` tokens.

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
    """Run each of B prompts, none empty, once, in several passes if lengths differ much.

    Returns:
        Keys and values of the prompts, padded on the left; bool (B, P), True at prompt tokens; and (B, D), the last
            hidden state of each prompt's last token.
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
    for number, layers in enumerate(zip(*(part.layers for part in caches), strict=True)):
        cache.update(together([layer.keys for layer in layers]), together([layer.values for layer in layers]), number)
    return cache, mask, hidden


def _prefill_together(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
    """One pass over a batch of prompts, padded to the longest."""
    ids, mask = pad_left(prompts, model.device)
    # Without the configuration, so that no keys are dropped outside of a sliding window.
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

    The constructor runs each of the B prompts, none empty, once; `levels` is the longest path of branch tokens.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], levels: int):
        self.model = model
        self.cache, self._mask, self.hidden = prefill(model, prompts)
        self._lengths = self._mask.sum(-1)
        self.count = 0
        # Slots of the ancestors of each branch token, by depth; -1 for none.
        self.paths = torch.full((len(prompts), 0, levels), -1, dtype=torch.long, device=self.hidden.device)

    def run(
        self,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        depth: int | torch.Tensor,
        sees: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one more token after each of K branches; see `Branches.run`.

        `sees`, bool (B, K, K), is the visibility among these tokens, True on the diagonal; the identity if None. The
        parent of a token that sees others is the slot before the first of them, and such a token is never a parent.
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

    def compact(self, is_kept: torch.Tensor) -> torch.Tensor:
        """Drop branch tokens, so that later ones attend to fewer.

        Args:
            is_kept: bool (B, count), True for slots that stay; ancestors of a kept token must be kept.

        Returns:
            int64 (B, count), new slot of each old slot, -1 if dropped; `count` becomes the largest number of kept
            tokens of a row.
        """
        numbers = (is_kept.long().cumsum(1) - 1).masked_fill(~is_kept, -1)
        if is_kept.all():
            return numbers
        width = int(is_kept.sum(1).max())
        order = (~is_kept).byte().argsort(dim=1, stable=True)[:, :width]  # (B, width), the slots that stay first
        paths = self.paths.gather(1, order.unsqueeze(-1).expand(-1, -1, self.paths.shape[2]))
        renumbered = numbers.gather(1, paths.clamp(min=0).flatten(1)).view_as(paths)
        self.paths = renumbered.masked_fill(paths < 0, -1)
        layer: Any
        for layer in self.cache.layers:
            index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            for name in ("keys", "values"):
                prompt, branches = getattr(layer, name).tensor_split([self._mask.shape[1]], 2)
                setattr(layer, name, torch.cat([prompt, branches.gather(2, index)], 2))
        self.count = width
        return numbers

    def scores(
        self, hidden: torch.Tensor, tokens: torch.Tensor, present: torch.Tensor, normaliser: str = "full"
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens; see `Branches.scores` and `candidate_scores`."""
        states, ids, exist = (part.flatten(0, 1) for part in (hidden, tokens, present))
        return candidate_scores(self.model, states, ids, exist, normaliser).view(tokens.shape)


# Deep tries: forced tokens are run in one pass and not cached.
#
# The trie of a catalogue's titles has dozens of levels, but after a few of them a title has no siblings: every further
# token is forced. Run level by level, such a tail would take one pass per token and fill the cache with tokens that no
# other branch attends to. Here all forced tokens after a prefix are run in one pass, packed after their prompt, when
# the first of their scores is requested; searches get the scores level by level, so results do not change. A
# renormalised score of a forced token is 0 for every model, so the token is not run.
#
# level      1    2    3    4    5           pass 1: a, x    pass 2: b, c    pass 3: d and e f together
# a -> b -> d -> e -> f           (e f are forced after d)
# \> c -> ...                   what stays in the cache: a, x, b, c, ...

# Branch tokens are compacted once at most this share of them is still attended to.
_LIVE_SHARE = 0.8


class ForcedBranches:
    """`Branches` of a causal language model in a deep trie.

    Args:
        inner: Branches of the model, none run yet.
        trie: The trie to search, on the model's device; tokens outside of it are never run.

    Attributes:
        hidden: int64 (B, 1), slot of each prompt: -1.
        count: Number of branch tokens requested after each prompt.
    """

    def __init__(self, inner: CausalBranches, trie: Trie):
        self.inner, self.trie = inner, trie
        self.hidden = torch.full((len(inner.hidden), 1), -1, dtype=torch.long, device=inner.hidden.device)
        self.count = 0
        # For each slot: node (-1 outside of the trie) and depth; first slot of its run of forced tokens (itself if not
        # forced); inner slot of the preceding token; and, once run, its inner slot and the index of its state.
        names = ("node", "depth", "begin", "parent", "inner", "cached")
        self._slots = dict.fromkeys(names, self.hidden[:, :0])
        self._states = inner.hidden.unsqueeze(1)  # (B, T, D); the first is the prompt's
        self._live = self.hidden[:, :0].bool()  # (B, inner slots), True for slots that are still attended to

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Put one more token after each of K branches, see `Branches.run`: the slots, int64 (B, K, 1).

        The model is run when their scores are requested.
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
        self, hidden: torch.Tensor, tokens: torch.Tensor, present: torch.Tensor, normaliser: str = "full"
    ) -> torch.Tensor:
        """See `Branches.scores`."""
        slots = hidden[..., 0]
        begin = self._of("begin", slots, -1)
        self._run_model(begin, normaliser == "full")
        position = self._of("cached", begin, 0)
        further = self._of("depth", slots, 0) - self._of("depth", begin, 0)
        position = torch.where(
            position < 0, 0, position + further
        )  # tokens that were not run need no state, since their one candidate scores 0
        index = position.unsqueeze(-1).expand(-1, -1, self._states.shape[-1])
        return self.inner.scores(self._states.gather(1, index), tokens, present, normaliser)

    def _of(self, name: str, slots: torch.Tensor, otherwise: int) -> torch.Tensor:
        """A property of slots, int64 (B, K); `otherwise` for the prompt."""
        if not self.count:
            return torch.full_like(slots, otherwise)
        return self._slots[name].gather(1, slots.clamp(min=0)).masked_fill(slots < 0, otherwise)

    def _run_model(self, begin: torch.Tensor, forced_too: bool) -> None:
        """Run slots, int64 (B, K), that have not been run yet, each with the forced tokens after it."""
        node = self._of("node", begin, -1)
        single = self.trie.single[node.clamp(min=0)] & (node >= 0)
        is_pending = (begin >= 0) & (node >= 0) & (self._of("cached", begin, 0) < 0)
        if not forced_too:
            is_pending &= ~single
        if not is_pending.any():
            return
        counts = torch.where(single, self.trie.below[node.clamp(min=0)].clamp(min=1), 1).masked_fill(~is_pending, 0)
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
        if int(self._live.sum(1).max()) < _LIVE_SHARE * self.inner.count:
            self._compact()

    def _compact(self) -> None:
        """Hide forced tokens and padding from later tokens."""
        numbers = torch.nn.functional.pad(self.inner.compact(self._live), (0, 1), value=-1)
        self._live = torch.arange(self.inner.count, device=numbers.device) < self._live.sum(1, keepdim=True)
        for name in ("inner", "parent"):
            self._slots[name] = numbers.gather(1, self._slots[name] % numbers.shape[1])


# Levels above which a trie is deep; SIDs have fewer, titles have dozens.
_DEEP = 8


class Branches(Protocol):
    """Protocol of a batch of prompts with a growing tree of tokens after each.

    Every token that is run gets the next free slot of its prompt, counted from 0; later tokens name it as their parent
    by its slot.

    Attributes:
        hidden: (B, D), state of each prompt, as an argument of `scores`; opaque to the caller.
        count: Number of tokens run for each prompt: the first slot of the next call of `run`.
    """

    hidden: torch.Tensor
    count: int

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token after each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the preceding tokens; -1 directly after the prompt.
            depth: Number of preceding tokens on each path: one number, or int64 (B, K).

        Returns:
            (B, K, D), states of the K prefixes that end in these tokens, as arguments of `scores`.
        """
        ...

    def scores(
        self, hidden: torch.Tensor, tokens: torch.Tensor, present: torch.Tensor, normaliser: str = "full"
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens after K branches.

        Args:
            hidden: (B, K, D), from `hidden` or `run`.
            tokens: int64 (B, K, W), vocabulary ids of the candidates.
            present: bool (B, K, W), False for entries without a candidate.
            normaliser: "full" (over the whole vocabulary) or "renormalised" (over the candidates).

        Returns:
            float32 (B, K, W), minus infinity for entries without a candidate.
        """
        ...


class OpensBranches(ABC):
    """Base class of models that implement `Branches` themselves.

    A subclass that is also a `PreTrainedModel`, which defines `device`, names this class last among its bases.

    Attributes:
        row_bound: Whether the output for a prompt depends on its index in the batch, so that equal prompts must be
            decoded separately.
    """

    row_bound = False

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the model, to which tries are moved."""

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
        """Log-probabilities of all SIDs, for models that compute them directly, so that exact search needs no tree.

        Returns:
            float32 (B, S), by the trie's SID numbers; None if SIDs must be searched.
        """
        return None

    def best_sids(
        self, prompts: Sequence[Sequence[int]], trie: Trie, k: int, guide: Guide
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The K best SIDs, for models that rank all SIDs in blocks, so that exact search needs no tree.

        Returns:
            Scores float32 (B, K), descending, minus infinity for no allowed SID, and SID numbers int64 (B, K); None if
                SIDs must be searched.
        """
        return None

    def values_at_once(self, trie: Trie) -> int:
        """Number of values in memory while one prompt is scored, without those of the layers."""
        return 0


SearchModel = PreTrainedModel | OpensBranches


def is_row_bound(model: SearchModel) -> bool:
    """Whether equal prompts of a batch may get different results."""
    return isinstance(model, OpensBranches) and model.row_bound


def vocabulary_size(model: SearchModel) -> int:
    """Size of the vocabulary of a model's prompts and tries; a `ConfigError` for an unsupported architecture."""
    if isinstance(model, OpensBranches):
        return model.vocab_size
    check_architecture(model.config, type(model).__name__)
    size: int = model.config.vocab_size
    return size


def open_branches(model: SearchModel, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
    """Open branches of any searchable model."""
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
            invalid = next(token for token in prompt if not 0 <= token < vocabulary)
            raise DataError(
                f"prompt {row} of the batch holds token {invalid}, but the model has {vocabulary} tokens. "
                "Use the tokenizer of the model's own checkpoint."
            )


def check_search(model: SearchModel, prompts: Sequence[Sequence[int]], trie: Trie) -> Trie:
    """Check that a search is possible: the model's architecture, prompts and the trie's vocabulary.

    Returns:
        The trie, on the model's device.

    Raises:
        ConfigError: If the architecture is not supported or has too few positions for the prompts, or the trie is over
            another vocabulary.
        DataError: If a prompt is empty or has tokens outside of the vocabulary.
    """
    vocabulary = vocabulary_size(model)
    check_prompts(prompts, vocabulary)
    if isinstance(model, PreTrainedModel) and not isinstance(model, OpensBranches):
        check_length(model.config, max(map(len, prompts), default=0) + trie.levels, "Give prompts {} tokens shorter.")
    trie.check_vocabulary(vocabulary)
    return trie.to(model.device)


class BrokenScores(DataError):
    """Error for scores of a model that are NaN.

    Attributes:
        row: Index of the first prompt of the batch with such a score.
    """

    def __init__(self, row: int):
        super().__init__(
            f"the model's scores for prompt {row} of the batch are not numbers; its weights may be broken."
        )
        self.row = row


def broken_rows(scores: torch.Tensor) -> torch.Tensor:
    """Whether each prompt has a score, float (B, ...), that is NaN: bool (B,)."""
    return scores.isnan().flatten(1).any(1)


def check_rows(steps: Sequence[torch.Tensor]) -> None:
    """Check that no prompt has a score that is NaN, with one GPU sync for all steps (results of `broken_rows`).

    Raises:
        BrokenScores: Naming the first prompt of the first such step.
    """
    broken = torch.stack(list(steps))
    if broken.any():
        raise BrokenScores(int(broken.nonzero()[0, 1]))


def check_scores(scores: torch.Tensor) -> None:
    """Apply `check_rows` to the scores of one step, float (B, ...)."""
    check_rows([broken_rows(scores)])


@contextmanager
def evaluating(model: SearchModel) -> Iterator[None]:
    """Context manager that puts a model into evaluation mode and restores its mode."""
    if not isinstance(model, torch.nn.Module) or not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
