"""Batches of supervised examples without padding and without doing anything twice.

The examples of a batch form a tree: what several begin with in common (the words of a task, a shared history) is
computed once, and every example sees its own tokens alone, at their own positions. So the loss and its gradient are
those of the examples one by one. The head is computed at the positions whose next token has a label, and nowhere else.

    examples   u v a b | u v c        row   u v a c        (b and the last c predict nothing and are left out)
    labels     . . a b | . . c        head  at v, a and v for a, b and c
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import TrainerState

from minionerec.core.errors import DataError
from minionerec.data.names import UNKNOWN
from minionerec.models.decoding.branches import attention_mask_4d
from minionerec.training.memory import Share
from minionerec.training.sampling import NO_LABEL, EpochSampler

# Log-probabilities of many completions of each prompt from one pass over the prompt.
#
# The completions of a prompt are a tree after it: what they begin with in common is there once, and so is the prompt's
# last token, which predicts all their first tokens. Groups (a prompt with its tree) follow one another in a
# row. Nodes are laid out depth first, so that everything that may see a position is one stretch after it;
# `ends` is where that stretch ends, and is the whole attention mask:
#
#     sequence   p0 p1 p2 a0 a1 b1 c0 | q0 q1 d0      prompt p: a0 a1 _, a0 b1 _, c0 _; prompt q: d0 _
#     position    0  1  2  3  4  4  3 |  0  1  2      a completion's last token predicts nothing and is left out
#     end         7  7  7  6  5  6  7 | 10 10 10
#     b1 sees     x  x  x  x  .  x  . |  .  .  .      k is seen by q where k <= q < end of k
#
# Hidden states of the positions that predict something are picked before the head, which so computes its rows over the
# vocabulary for them alone. Everything goes through the model's own forward, so that distributed wrappers stay at work.

# Tokens of a row that several groups share. A dense mask makes attention quadratic in a row's length, and at this
# length it is still a small part of the work; a sparse one does not.
ROW_TOKENS = {"sdpa": 512, "eager": 512, "flex_attention": 8192}
# Logits that a supervised loss holds at most, by kind of device. Where a batch has more, TRL's fused head computes them
# in tiles, and once more in the backward pass; on a CPU that takes longer.
LOGITS_AT_ONCE = {"cpu": 2**27, "cuda": 2**25}


def _lay_out(prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """One group: tokens, positions and ends; and the positions that predict each completion's tokens."""
    tokens, positions = list(prompt), list(range(len(prompt)))
    ends = [0] * len(prompt)
    indices: list[list[int]] = [[] for _ in completions]
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
            indices[number] = [len(prompt) - 1, *path]
        before = completion
    return [tokens, positions, [end or len(tokens) for end in ends]], indices


def _fill_rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Put groups into rows: the longest first, each into the fullest row that has room (best fit decreasing)."""
    capacity = max(row_tokens, *lengths)
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # tokens that a row has room for, and its number; sorted
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        index = bisect_left(free, (lengths[number], 0))
        room, row = free.pop(index) if index < len(free) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        insort(free, (room - lengths[number], row))
    return rows


def pack_groups(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Sequence[int]]], row_tokens: int
) -> dict[str, torch.Tensor]:
    """Pack prompts and the completions of each into rows.

    Args:
        prompts: Token ids of each prompt, none empty.
        completions: Token ids of each prompt's completions; equal ones and empty ones are allowed.
        row_tokens: Groups share a row up to this many tokens; a longer group has a row of its own.

    Returns:
        `input_ids` int64 (B, T), 0 at padding; `position_ids` (B, T), rotary positions, counted from each prompt's
        first token; `ends` (B, T), the position after the last one that sees this one (a padding position sees itself
        alone); `positions` (N,), for each completion token, in the order of groups, completions and tokens, the
        position that predicts it, counted through all rows; and `labels` (N,), the completion tokens themselves.

    Raises:
        DataError: If a prompt is empty, or there is none.

    Example:
        >>> packed = pack_groups([[1, 2], [3]], [[[4, 5], [4, 6]], [[7]]], row_tokens=8)
        >>> packed["input_ids"].tolist(), packed["ends"].tolist()
        ([[1, 2, 4, 3]], [[3, 3, 3, 4]])
        >>> packed["positions"].tolist(), packed["labels"].tolist()
        ([1, 2, 1, 2, 3], [4, 5, 4, 6, 7])
    """
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise DataError(f"{len(prompts)} prompts, and each needs at least one token.")
    groups = [_lay_out(prompt, answers) for prompt, answers in zip(prompts, completions, strict=True)]
    rows = _fill_rows([len(layout[0]) for layout, _ in groups], row_tokens)
    width = max(sum(len(groups[number][0][0]) for number in row) for row in rows)
    columns: dict[str, list[list[int]]] = {"input_ids": [], "position_ids": [], "ends": []}
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
        ends += [position + 1 for position in padding]
        for column, values in zip(columns.values(), (tokens, positions, ends), strict=True):
            column.append(values)
    predicting = [
        start + position
        for start, (_, indices) in zip(starts, groups, strict=True)
        for own in indices
        for position in own
    ]
    labels = [token for answers in completions for one in answers for token in one]
    return {
        **{name: torch.tensor(column) for name, column in columns.items()},
        "positions": torch.tensor(predicting, dtype=torch.long),
        "labels": torch.tensor(labels, dtype=torch.long),
    }


def tree_mask(ends: torch.Tensor, backbone: PreTrainedModel) -> Any:
    """The attention mask of packed groups, with `ends` int64 (B, T), in the form that the model's attention takes.

    Returns:
        A dense mask (B, 1, T, T) for sdpa and eager, a `BlockMask` for flex_attention.
    """
    batch, width = ends.shape
    if backbone.config._attn_implementation == "flex_attention":

        def sees(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (key <= query) & (query < ends[row, key])

        return create_block_mask(sees, batch, None, width, width, device=ends.device)
    position = torch.arange(width, device=ends.device)
    visible = (position <= position.unsqueeze(1)) & (position.unsqueeze(1) < ends.unsqueeze(1))  # (B, Q, K)
    return attention_mask_4d(visible, backbone)


@contextmanager
def picked_hidden_states(backbone: PreTrainedModel, positions: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Let the head of a model see the hidden states at `positions`, int64 (N,), alone, as one row (1, N, D).

    Positions are counted through all rows. The list holds the states after a pass.
    """
    picked: list[torch.Tensor] = []

    def pick(_module: Any, _inputs: Any, output: Any) -> Any:
        picked.append(output.last_hidden_state.flatten(0, 1).index_select(0, positions))
        return type(output)(last_hidden_state=picked[-1].unsqueeze(0))

    hook = backbone.get_decoder().register_forward_hook(pick)
    try:
        yield picked
    finally:
        hook.remove()


def _run(
    model: Any, backbone: PreTrainedModel, batch: Mapping[str, torch.Tensor], **more: Any
) -> tuple[Any, torch.Tensor]:
    """Outputs of a pass over packed rows, and the hidden states (N, D) at their positions."""
    with picked_hidden_states(backbone, batch["positions"]) as picked:
        outputs = model(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            attention_mask=tree_mask(batch["ends"], backbone),
            use_cache=False,
            **more,
        )
    return outputs, picked[0]


def picked_logits(model: Any, backbone: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Logits at the selected positions of packed rows, float (N, V); arguments as of `picked_losses`."""
    logits: torch.Tensor = _run(model, backbone, batch)[0].logits[0]
    return logits


LogitsOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes K of N positions and tokens int64 (K, W); gives the logits of those tokens there, float32 (K, W)."""


def picked_losses(
    model: Any, backbone: PreTrainedModel, batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, LogitsOf]:
    """Cross-entropy of each label of packed rows, and the logits of any tokens at their positions.

    Where there are more logits than `LOGITS_AT_ONCE`, they never all exist: TRL's fused head computes the losses in
    tiles.

    Args:
        model: Causal language model with `trl.trainer.utils.add_fused_lm_head`, or a distributed wrapper of one.
        backbone: The model itself, without wrapper.
        batch: See `TreeCollator`.

    Returns:
        float32 (N,) with gradient, and a function whose result has one too.
    """
    labels = batch["labels"]
    logits_count = labels.numel() * backbone.config.get_text_config().vocab_size
    if logits_count <= LOGITS_AT_ONCE.get(labels.device.type, 0):
        logits = picked_logits(model, backbone, batch).float()
        losses = torch.nn.functional.cross_entropy(logits, labels[0], reduction="none")
        return losses, lambda positions, tokens: logits[positions].gather(1, tokens)
    outputs, hidden = _run(model, backbone, batch, shift_labels=labels, fused_lm_head=True)
    return -outputs.log_probs[0], partial(_token_logits, backbone, hidden)


def _token_logits(
    backbone: PreTrainedModel, hidden: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """Logits of chosen tokens, float32 (K, W), from the head's rows of those tokens alone.

    Args:
        backbone: The model.
        hidden: float (N, D), hidden states.
        positions: int64 (K,), of N.
        tokens: int64 (K, W).
    """
    head: Any = backbone.get_output_embeddings()
    ids, columns = tokens.unique(return_inverse=True)
    weight, bias = head.weight[ids], None if head.bias is None else head.bias[ids]
    logits = torch.nn.functional.linear(hidden[positions].to(weight.dtype), weight, bias)
    return logits.float().gather(1, columns)


def shared_prefix_scores(
    model: Any,
    backbone: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Sequence[int]]],
    row_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, LogitsOf]:
    """Scores, with gradient, of completions under a model with TRL's fused language-model head.

    Equal to scoring each prompt with each of its completions on its own, up to rounding.

    Args:
        model: Causal language model (or a distributed wrapper of one) that has `trl.trainer.utils.add_fused_lm_head`.
        backbone: The model itself, without wrapper.
        prompts: Token ids of each prompt, none empty.
        completions: Token ids of each prompt's completions.
        row_tokens: Groups share a row up to this many tokens; `ROW_TOKENS` of the model's attention if None.

    Returns:
        Log-probabilities float32 (N,) of all completion tokens, in the order of groups, completions and tokens;
        entropies (N,) of the distributions they were drawn from, where the head computes them; and the logits of any
        tokens in place of them.
    """
    attention = backbone.config._attn_implementation
    packed = pack_groups(prompts, completions, ROW_TOKENS.get(attention, 512) if row_tokens is None else row_tokens)
    batch = {name: values.to(backbone.device) for name, values in packed.items()}
    outputs, hidden = _run(model, backbone, batch, shift_labels=batch["labels"].unsqueeze(0), fused_lm_head=True)
    entropies = None if outputs.entropy is None else outputs.entropy[0]
    return outputs.log_probs[0], entropies, partial(_token_logits, backbone, hidden)


# A common beginning of fewer tokens is not worth tying two examples to one row for.
_WORTH_SHARING = 2
# Longest rows that are tried, by the length asked for. Longer ones are cut at fewer places, and fill better or worse.
_LONGEST = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25)
# Attention under a dense mask by a block's other arithmetic, where a row has the length asked for (`good_row_length`).
_ATTENTION = 0.06


def common_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common.

    Example:
        >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
        2
    """
    length = 0
    for first, second in zip(one, two, strict=False):
        if first != second:
            break
        length += 1
    return length


def prompt_in_turn(example: dict[str, Any], epoch: int) -> dict[str, Any]:
    """An example as in one epoch: several `prompts` take turns (all its labels are after them)."""
    prompts = example.get("prompts")
    if not prompts:
        return example
    prompt = prompts[epoch % len(prompts)]
    start = next(position for position, label in enumerate(example["labels"]) if label >= 0)
    return {
        **example,
        "input_ids": [*prompt, *example["input_ids"][start:]],
        "labels": [*[NO_LABEL] * len(prompt), *example["labels"][start:]],
        "weights": [*[1.0] * len(prompt), *example["weights"][start:]],
    }


@dataclass
class TreeCollator:
    """Collates examples (the columns of `minionerec.training.rows.SftExamples`) into packed rows.

    Attributes:
        row_tokens: About how many tokens a row is to have; up to a quarter more where that takes less arithmetic.
            Longer rows have less waste at their ends and share more; their attention mask is larger.
        with_teacher: Whether the batch holds a teacher's inputs.
        epoch: The epoch, from 0, that is being trained: it selects one of several prompts.
    """

    row_tokens: int
    with_teacher: bool = False
    epoch: int = 0

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Pack one batch.

        Returns:
            `input_ids`, `position_ids` and `ends` int64 (B, T), see `pack_groups`; `positions` int64 (N,), of the
            tokens that predict a labelled one, counted through all rows; `labels` and `shift_labels` int64 (1, N),
            those tokens; `weights` float32 (N,), of each one's loss; and, for a teacher, `histories`, `rows`, `slots`,
            `contexts`, `events` and `levels` (`teacher_questions`).
        """
        return self.pack(*self.in_order(examples))

    def share(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Collate a device's share of a step without packing it: in order, and its labels, which are counted.

        Returns:
            `share`, a `Share` whose parts are packed batches, and int64 (1, N) twice: `labels` and `shift_labels`.
        """
        found, shared = self.in_order(examples)
        new = [len(example["input_ids"]) - prefix for example, prefix in zip(found, shared, strict=True)]
        labels = torch.tensor([[label for example in found for label in example["labels"][1:] if label >= 0]])
        share = Share(new, lambda part: self.pack(found[part], [0, *shared[part][1:]]))
        return {"share": share, "labels": labels, "shift_labels": labels}

    def pack(self, examples: Sequence[dict[str, Any]], shared: Sequence[int]) -> dict[str, torch.Tensor]:
        """Pack examples that are in order already, each with how many tokens it shares with the one before."""
        ids = [example["input_ids"] for example in examples]
        capacities = {int(longest * self.row_tokens) for longest in _LONGEST}
        _, capacity, pieces = min(self._pieces(ids, shared, capacity) for capacity in capacities)
        packed = pack_groups(
            [ids[piece[0]][:1] for piece in pieces], [[ids[row][1:] for row in piece] for piece in pieces], capacity
        )
        labelled = torch.tensor([label >= 0 for example in examples for label in example["labels"][1:]])
        labels = packed["labels"][labelled].unsqueeze(0)
        weights = torch.tensor([weight for example in examples for weight in example["weights"][1:]])
        return {
            **packed,
            "positions": packed["positions"][labelled],
            "labels": labels,
            "shift_labels": labels,  # else the trainer's count leaves out the first
            "weights": weights[labelled],
            **(teacher_questions(examples) if self.with_teacher else {}),
        }

    def _pieces(
        self, ids: Sequence[Sequence[int]], shared: Sequence[int], capacity: int
    ) -> tuple[float, int, list[range]]:
        """Neighbours that become one group each, as many as a row holds: what their rows cost, its tokens, and they."""
        starts: list[int] = []
        sizes: list[int] = []
        for number, row in enumerate(ids):  # the first shares nothing
            new = len(row) - 1 - min(shared[number], len(ids[number - 1]) - 1)
            if shared[number] < _WORTH_SHARING or sizes[-1] + new > capacity:
                starts.append(number)
                sizes.append(max(1, len(row) - 1))
            else:
                sizes[-1] += new
        used = [sum(sizes[piece] for piece in pieces) for pieces in _fill_rows(sizes, capacity)]
        width = max(used)
        cost = len(used) * width * (1 + _ATTENTION * width / self.row_tokens)
        return cost, capacity, [range(start, end) for start, end in pairwise([*starts, len(ids)])]

    def in_order(self, examples: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
        """Examples as in the epoch, sorted by their tokens, and how many of them each shares with the one before."""
        found = [prompt_in_turn(example, self.epoch) for example in examples]
        found.sort(key=lambda example: example["input_ids"])
        pairs = pairwise(example["input_ids"] for example in found)
        return found, [0, *(common_prefix(one, two) for one, two in pairs)]


class SetEpoch(TrainerCallback):
    """Sets the `epoch` of collators and orders of rows before its first batch, also in a resumed run."""

    def __init__(self, *receivers: TreeCollator | EpochSampler):
        self.receivers = list(receivers)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch begins, or is resumed."""
        for one in self.receivers:
            one.epoch = int(state.epoch or 0)


def teacher_questions(examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Inputs of a teacher for examples, in their order.

    Returns:
        `histories` int64 (R, H), SID numbers from 1, padded with 0 on the right, of examples that a teacher is queried
        about; `rows` and `slots` int64 (P,), history and position in it before each target; `contexts` int64 (P, F),
        the codes of request features of each; `events` int64 (R, H), the event of each SID of `histories`, from 1, 0
        where unknown; `levels` int64 (N,), for each labelled token of all examples the position in its target's
        completion, -1 where no teacher applies. The tokens of a target follow one another, and
        targets are in the order of `rows` and `slots`.
    """
    distilled = [example for example in examples if max(example["slots"], default=-1) >= 0]
    histories = torch.zeros(
        len(distilled), max((len(row["histories"]) for row in distilled), default=1), dtype=torch.long
    )
    events = torch.zeros_like(histories)
    for row, row_events, example in zip(histories, events, distilled, strict=True):
        row[: len(example["histories"])] = torch.tensor(example["histories"])
        if known_events := example.get("events"):
            row_events[: len(known_events)] = torch.tensor(known_events)
    positions = [(row, slot) for row, example in enumerate(distilled) for slot in example["slots"] if slot >= 0]
    widths = [len(row.get("contexts") or ()) // len(row["slots"]) for row in distilled]
    contexts = np.full((len(positions), max(widths, default=0)), UNKNOWN, dtype=np.int64)
    begin = 0
    for row, width in zip(distilled, widths, strict=True):
        codes = np.array(row.get("contexts") or (), dtype=np.int64).reshape(len(row["slots"]), width)
        codes = codes[np.array(row["slots"]) >= 0]
        contexts[begin : begin + len(codes), :width] = codes
        begin += len(codes)
    levels: list[int] = []
    for example in examples:
        count = sum(label >= 0 for label in example["labels"][1:])
        targets = example["slots"] or [-1]
        size = count // len(targets)
        levels += [level if slot >= 0 else -1 for slot in targets for level in range(size)]
    return {
        "histories": histories,
        "rows": torch.tensor([row for row, _ in positions], dtype=torch.long),
        "slots": torch.tensor([slot for _, slot in positions], dtype=torch.long),
        "contexts": torch.from_numpy(contexts),
        "events": events,
        "levels": torch.tensor(levels, dtype=torch.long),
    }


def good_row_length(model: PreTrainedModel) -> int:
    """The row length at which attention under a dense mask is about 6 % of a block's arithmetic.

    A block multiplies each token by about 12 D² weights; its attention is about 2 D multiplications for each token of
    the row: T = 3/8 D gives 2 D T / 12 D² = 6 %.
    """
    width: int = model.config.hidden_size
    return max(64, 3 * width // 8)
