"""Log-probabilities of many completions of each prompt from one pass over the prompt.

The completions of a prompt are a tree behind it: what they begin with in common is there once, and so is the prompt's
last token, which predicts all their first tokens. Groups (a prompt with its tree) stand one behind the other in a row.
Nodes are laid out depth first, so that everything that may see a position stands in one stretch behind it; `ends` says
where that stretch ends, and is the whole attention mask:

    sequence   p0 p1 p2 a0 a1 b1 c0 | q0 q1 d0      prompt p: a0 a1 _, a0 b1 _, c0 _; prompt q: d0 _
    position    0  1  2  3  4  4  3 |  0  1  2      a completion's last token predicts nothing and is left out
    end         7  7  7  6  5  6  7 | 10 10 10
    b1 sees     x  x  x  x  .  x  . |  .  .  .      k is seen by q where k <= q < end of k

Hidden states of the positions that predict something are picked before the head, which so computes its rows over the
vocabulary for them alone. Everything goes through the model's own forward, so that distributed wrappers stay at work.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from minionerec.core.errors import DataError
from minionerec.models.decoding.branches import attention_mask_4d

# Tokens of a row that several groups share. A dense mask makes attention quadratic in a row's length, and at this
# length it is still a small part of the work; a sparse one does not.
ROW_TOKENS = {"sdpa": 512, "eager": 512, "flex_attention": 8192}


@dataclass(frozen=True)
class PackedGroups:
    """Groups packed into rows.

    Attributes:
        input_ids: int64 (B, T), 0 at padding.
        position_ids: int64 (B, T), rotary positions, counted from each prompt's first token.
        ends: int64 (B, T), the position behind the last one that sees this one; a padding position sees itself alone.
        places: int64 (N,), for each completion token, in the order of groups, completions and tokens, the position
            that predicts it, counted through all rows.
        labels: int64 (N,), the completion tokens themselves.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    ends: torch.Tensor
    places: torch.Tensor
    labels: torch.Tensor


def _lay_out(prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """One group: tokens, positions and ends; and the positions that predict each completion's tokens."""
    tokens, positions = list(prompt), list(range(len(prompt)))
    ends = [0] * len(prompt)
    places: list[list[int]] = [[] for _ in completions]
    path: list[int] = []  # nodes from the prompt down to where we are
    before: Sequence[int] = ()
    for number in sorted(range(len(completions)), key=lambda number: list(completions[number])):
        completion = completions[number]
        depth = 0
        while depth < len(path) and depth < len(completion) - 1 and before[depth] == completion[depth]:
            depth += 1
        for node in path[depth:]:
            ends[node] = len(tokens)
        del path[depth:]
        for token in completion[depth:-1]:
            path.append(len(tokens))
            tokens.append(token)
            positions.append(len(prompt) + len(path) - 1)
            ends.append(0)
        if completion:
            places[number] = [len(prompt) - 1, *path]
        before = completion
    return [tokens, positions, [end or len(tokens) for end in ends]], places


def _fill_rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Put groups into rows: the longest first, each into the first row that has room (first fit decreasing)."""
    capacity = max(row_tokens, *lengths)
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        row = next((row for row, left in enumerate(room) if left >= lengths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(number)
        room[row] -= lengths[number]
    return rows


def pack_groups(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Sequence[int]]], row_tokens: int
) -> PackedGroups:
    """Pack prompts and the completions of each into rows.

    Args:
        prompts: Token ids of each prompt, none empty.
        completions: Token ids of each prompt's completions; equal ones and empty ones are allowed.
        row_tokens: Groups share a row up to this many tokens; a longer group has a row of its own.

    Raises:
        DataError: If a prompt is empty, or there is none.

    Example:
        >>> packed = pack_groups([[1, 2], [3]], [[[4, 5], [4, 6]], [[7]]], row_tokens=8)
        >>> packed.input_ids.tolist(), packed.ends.tolist()
        ([[1, 2, 4, 3]], [[3, 3, 3, 4]])
        >>> packed.places.tolist(), packed.labels.tolist()
        ([1, 2, 1, 2, 3], [4, 5, 4, 6, 7])
    """
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise DataError(f"{len(prompts)} prompts, and each needs at least one token.")
    groups = [_lay_out(prompt, answers) for prompt, answers in zip(prompts, completions, strict=True)]
    rows = _fill_rows([len(layout[0]) for layout, _ in groups], row_tokens)
    width = max(sum(len(groups[number][0][0]) for number in row) for row in rows)
    columns: list[list[list[int]]] = [[], [], []]
    starts = [0] * len(groups)
    for row, numbers in enumerate(rows):
        tokens: list[int] = []
        positions: list[int] = []
        ends: list[int] = []
        for number in numbers:
            start = len(tokens)
            starts[number] = row * width + start
            layout = groups[number][0]
            tokens += layout[0]
            positions += layout[1]
            ends += [start + end for end in layout[2]]
        padding = range(len(tokens), width)
        tokens += [0] * len(padding)
        positions += [0] * len(padding)
        ends += [place + 1 for place in padding]
        for column, values in zip(columns, (tokens, positions, ends), strict=True):
            column.append(values)
    input_ids, position_ids, all_ends = (torch.tensor(column) for column in columns)
    return PackedGroups(
        input_ids=input_ids,
        position_ids=position_ids,
        ends=all_ends,
        places=torch.tensor(
            [
                start + place
                for start, (_, places) in zip(starts, groups, strict=True)
                for own in places
                for place in own
            ],
            dtype=torch.long,
        ),
        labels=torch.tensor([token for answers in completions for one in answers for token in one], dtype=torch.long),
    )


def tree_mask(ends: torch.Tensor, backbone: PreTrainedModel) -> Any:
    """The attention mask of packed groups in the form that the model's attention takes.

    Args:
        ends: int64 (B, T).
        backbone: The model, with sdpa, eager or flex_attention attention.

    Returns:
        A dense mask (B, 1, T, T) for sdpa and eager, a `BlockMask` for flex_attention.
    """
    batch, width = ends.shape
    if backbone.config._attn_implementation == "flex_attention":

        def sees(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (key <= query) & (query < ends[row, key])

        return create_block_mask(sees, batch, None, width, width, device=ends.device)
    place = torch.arange(width, device=ends.device)
    visible = (place <= place.unsqueeze(1)) & (place.unsqueeze(1) < ends.unsqueeze(1))  # (B, Q, K)
    return attention_mask_4d(visible, backbone)


@contextmanager
def picked_hidden_states(backbone: PreTrainedModel, places: torch.Tensor) -> Iterator[None]:
    """Let the head see the hidden states at `places` alone, as one row (1, N, D)."""

    def pick(_module: Any, _inputs: Any, output: Any) -> BaseModelOutputWithPast:
        hidden = output.last_hidden_state.flatten(0, 1).index_select(0, places)
        return BaseModelOutputWithPast(last_hidden_state=hidden.unsqueeze(0))

    hook = backbone.base_model.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()


def picked_logits(model: Any, backbone: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Logits at the picked places of packed rows.

    Args:
        model: Causal language model, or a distributed wrapper of one.
        backbone: The model itself, without wrapper.
        batch: `input_ids`, `position_ids`, `ends` and `places`, see `PackedGroups`.

    Returns:
        float (N, V).
    """
    with picked_hidden_states(backbone, batch["places"]):
        logits: torch.Tensor = model(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            attention_mask=tree_mask(batch["ends"], backbone),
            use_cache=False,
        ).logits[0]
    return logits


def shared_prefix_logps(
    model: Any,
    backbone: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Sequence[int]]],
    row_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities, with gradient, of completions under a model with TRL's fused language-model head.

    Equal to scoring each prompt with each of its completions on its own, up to rounding.

    Args:
        model: Causal language model (or a distributed wrapper of one) that has `trl.trainer.utils.add_fused_lm_head`.
        backbone: The model itself, without wrapper.
        prompts: Token ids of each prompt, none empty.
        completions: Token ids of each prompt's completions.
        row_tokens: Groups share a row up to this many tokens; `ROW_TOKENS` of the model's attention if None.

    Returns:
        Log-probabilities float32 (N,) of all completion tokens, in the order of groups, completions and tokens, and
        entropies (N,) of the distributions they were drawn from, where the head computes them.
    """
    attention = backbone.config._attn_implementation
    packed = pack_groups(prompts, completions, ROW_TOKENS.get(attention, 512) if row_tokens is None else row_tokens)
    device = backbone.device
    with picked_hidden_states(backbone, packed.places.to(device)):
        outputs = model(
            input_ids=packed.input_ids.to(device),
            position_ids=packed.position_ids.to(device),
            attention_mask=tree_mask(packed.ends.to(device), backbone),
            shift_labels=packed.labels.unsqueeze(0).to(device),
            fused_lm_head=True,
        )
    return outputs.log_probs[0], None if outputs.entropy is None else outputs.entropy[0]
