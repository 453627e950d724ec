"""One prompt, many branches: a prompt's keys and values are computed once and read by all its branches in place.

The branches of a prompt lie side by side in the sequence behind it, and a 4-D attention mask lets each token see the
prompt, its own ancestors and itself:

    position in the sequence:  [ pad pad p0 p1 p2 | a0 a1 a2 | b0 b1 b2 ]     b1's parent is a0
    b1 sees:                   [  .   .  x  x  x  | x  .  .  | .  x  .  ]

Rotary positions are given explicitly (every a has position 3, every b position 4), so that the scores are those of the
replicated sequences. Only public interfaces are used: `get_decoder`, cache classes, `position_ids`, 4-D masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from minionerec.core.errors import ConfigError, DataError
from minionerec.decoding.trie import Trie

_HEAD_EXTRAS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
# Padding tokens that a prefill may spend for each prompt token, and tokens that fill a device whatever their padding.
_PADDING_SHARE = 0.1
_FULL_PASS = {"cpu": 128, "cuda": 4096}
# Logits held at a time while the head's normaliser is summed up: 8 MiB in float32 stay in a CPU's cache.
_LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}


@dataclass
class PromptState:
    """A batch of prompts after prefill.

    Attributes:
        cache: Keys and values of the prompts, and of the branch tokens that `extend` adds.
        mask: bool (B, P), True at prompt tokens (prompts are padded on the left).
        lengths: int64 (B,), prompt lengths.
        hidden: (B, D), last hidden state of each prompt's last token.
    """

    cache: DynamicCache
    mask: torch.Tensor
    lengths: torch.Tensor
    hidden: torch.Tensor


def check_backbone(model: PreTrainedModel) -> None:
    """Check that logits are a plain linear map of hidden states, as the scores computed here assume.

    Raises:
        ConfigError: If the model caps or scales its logits, or sees only a window of its prompt.
    """
    if "sliding_attention" in (getattr(model.config, "layer_types", None) or ()):
        raise ConfigError(f"{type(model).__name__} uses sliding-window attention; set use_sliding_window to false.")
    for name in _HEAD_EXTRAS:
        if getattr(model.config, name, None) not in (None, 1.0):
            raise ConfigError(
                f"{type(model).__name__} sets {name}, which this decoder does not apply. Use Qwen2/3 or Llama."
            )


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


def check_search(model: PreTrainedModel, prompts: Sequence[Sequence[int]], trie: Trie) -> Trie:
    """Check that model, prompts and trie belong together, before any search.

    Returns:
        The trie, on the model's device.

    Raises:
        ConfigError: If the backbone is not one that is scored right here, or the trie is over another vocabulary.
        DataError: If a prompt is empty or foreign.
    """
    check_backbone(model)
    check_prompts(prompts, model.config.vocab_size)
    trie.check_vocabulary(model.config.vocab_size)
    return trie.to(model.device)


def length_groups(lengths: Sequence[int], full_pass: int) -> list[list[int]]:
    """Split prompts into groups that are prefilled together, so that little is spent on padding.

    A prompt joins the group of the next longer ones while the group's padding stays under a tenth of its tokens, or
    while the whole group is too small to fill the device anyway.

    Args:
        lengths: Prompt lengths.
        full_pass: Tokens that fill the device.

    Returns:
        Groups of places, longest prompts first; equal lengths stay in their order.

    Example:
        >>> length_groups([5, 80, 76, 300], full_pass=0)
        [[3], [1, 2], [0]]
    """
    groups: list[list[int]] = []
    longest = tokens = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        padded = longest * (len(groups[-1]) + 1) if groups else 0
        if groups and (padded <= (1 + _PADDING_SHARE) * (tokens + lengths[place]) or padded <= full_pass):
            groups[-1].append(place)
            tokens += lengths[place]
        else:
            groups.append([place])
            longest = tokens = lengths[place]
    return groups


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> PromptState:
    """Run each prompt once.

    Prompts of very different length are run in several passes, so that padding costs little.

    Args:
        model: Causal language model.
        prompts: B token id lists, none empty.

    Returns:
        The state that `extend` goes on from.
    """
    device = torch.device(model.device)
    groups = length_groups([len(prompt) for prompt in prompts], _FULL_PASS.get(device.type, 4096))
    states = [_prefill_together(model, [prompts[place] for place in group]) for group in groups]
    if len(states) == 1:
        order = torch.tensor(groups[0], device=device).argsort()
        if groups[0] != list(range(len(prompts))):
            states[0].cache.batch_select_indices(order)
        state = states[0]
        return PromptState(state.cache, state.mask[order], state.lengths[order], state.hidden[order])
    order = torch.tensor([place for group in groups for place in group], device=device).argsort()
    width = max(state.mask.shape[1] for state in states)
    cache = DynamicCache(config=model.config)
    for layer in range(len(states[0].cache.layers)):
        keys, values = (
            torch.cat(
                [
                    torch.nn.functional.pad(part, (0, 0, width - part.shape[2], 0))
                    for part in (getattr(state.cache.layers[layer], name) for state in states)
                ]
            )[order]
            for name in ("keys", "values")
        )
        cache.update(keys, values, layer)
    mask = torch.cat([torch.nn.functional.pad(state.mask, (width - state.mask.shape[1], 0)) for state in states])[order]
    return PromptState(cache, mask, mask.sum(-1), torch.cat([state.hidden for state in states])[order])


def _prefill_together(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> PromptState:
    """One pass over a batch of prompts, padded to the longest."""
    ids, mask = pad_left(prompts, model.device)
    cache = DynamicCache(config=model.config)
    output = model.get_decoder()(
        input_ids=ids,
        attention_mask=attention_mask_4d(prompt_visibility(mask), model),
        position_ids=positions_of(mask),
        past_key_values=cache,
        use_cache=True,
    )
    return PromptState(cache, mask, mask.sum(-1), output.last_hidden_state[:, -1])


def extend(
    model: PreTrainedModel, state: PromptState, tokens: torch.Tensor, ancestors: torch.Tensor, depth: int | torch.Tensor
) -> torch.Tensor:
    """Run one more token for each branch of each prompt, in place on the cache.

    Args:
        model: Causal language model.
        state: Prefilled prompts; its cache grows by K positions.
        tokens: int64 (B, K), one token a branch.
        ancestors: bool (B, K, E), which of the E branch positions added before each branch descends from.
        depth: How many branch tokens lie between the prompt and these (0 for the first call); int64 (B, K) where they
            differ.

    Returns:
        Hidden states (B, K, D).
    """
    batch, beams = tokens.shape
    prompt = state.mask.unsqueeze(1).expand(batch, beams, -1)
    itself = torch.eye(beams, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
    visible = torch.cat([prompt, ancestors, itself], dim=-1)
    output = model.get_decoder()(
        input_ids=tokens,
        attention_mask=attention_mask_4d(visible, model),
        position_ids=(state.lengths.unsqueeze(1) + depth).expand(batch, beams),
        past_key_values=state.cache,
        use_cache=True,
    )
    return output.last_hidden_state


class Branches:
    """A batch of prompts and the tree of branch tokens behind each of them.

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
        self.state = prefill(model, prompts)
        self.hidden = self.state.hidden
        self.count = 0
        # Slots of the ancestors of each branch token, by depth; -1 where there is none.
        self.paths = torch.full((len(prompts), 0, levels), -1, dtype=torch.long, device=self.hidden.device)

    def run(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int | torch.Tensor) -> torch.Tensor:
        """Run one more token behind each of K branches.

        Args:
            tokens: int64 (B, K).
            parents: int64 (B, K), slots of the tokens before them; -1 behind the prompt itself.
            depth: Branch tokens before them on their paths: one number, or int64 (B, K).

        Returns:
            Hidden states (B, K, D).
        """
        if self.count:
            index = parents.clamp(min=0).unsqueeze(-1).expand(-1, -1, self.paths.shape[2])
            paths = self.paths.gather(1, index).masked_fill(parents.unsqueeze(-1) < 0, -1)
        else:
            paths = self.paths.new_full((*tokens.shape, self.paths.shape[2]), -1)
        place = torch.as_tensor(depth, device=tokens.device).expand_as(tokens).unsqueeze(-1)
        paths = paths.scatter(2, (place - 1).clamp(min=0), parents.unsqueeze(-1))
        seen = torch.zeros(*tokens.shape, self.count + 1, dtype=torch.bool, device=tokens.device)
        ancestors = seen.scatter_(2, paths.masked_fill(paths < 0, self.count), True)[..., :-1]
        hidden = extend(self.model, self.state, tokens, ancestors, depth)
        self.paths = torch.cat([self.paths, paths], dim=1)
        self.count += tokens.shape[1]
        return hidden

    def scores(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        present: torch.Tensor,
        normaliser: str = "full",
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Log-probabilities of candidate next tokens behind K branches, see `candidate_scores`.

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


def open_branches(model: PreTrainedModel, prompts: Sequence[Sequence[int]], trie: Trie) -> Branches:
    """What a search grows its prefixes on: the model's own `branches(prompts, trie)` where it has them.

    A model that is no transformer over tokens gives an object with the attributes and methods of `Branches` that
    searches use: `hidden`, `count`, `run` and `scores`.
    """
    own = getattr(model, "branches", None)
    return Branches(model, prompts, trie.levels) if own is None else own(prompts, trie)


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
    at_once = _LOGITS_AT_ONCE.get(hidden.device.type, 2**26)
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
