"""Batches of supervised examples without padding and without doing anything twice.

The examples of a batch form a tree: what several begin with in common (the words of a task, a shared history) is
computed once, and every example sees its own tokens alone, at their own positions. So the loss and its gradient are
those of the examples one by one. The head is computed at the positions whose next token has a label, and nowhere else.

    examples   u v a b | u v c        row   u v a c        (b and the last c predict nothing and are left out)
    labels     . . a b | . . c        head  at v, a and v for a, b and c
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import TrainerState

from minionerec.data.moments import UNKNOWN
from minionerec.training.shared_prefix import pack_groups

# A common beginning of fewer tokens is not worth tying two examples to one row for.
_WORTH_SHARING = 8
# Room that a row has beyond the mean, so that examples of different lengths fit together.
_SLACK = 1.03


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


def asked_in_turn(example: dict[str, Any], epoch: int) -> dict[str, Any]:
    """An example as one epoch asks it: where it has several `prompts`, they take turns (all its labels are behind)."""
    prompts = example.get("prompts")
    if not prompts:
        return example
    prompt = prompts[epoch % len(prompts)]
    start = next(place for place, label in enumerate(example["labels"]) if label >= 0)
    return {
        **example,
        "input_ids": [*prompt, *example["input_ids"][start:]],
        "labels": [*[-100] * len(prompt), *example["labels"][start:]],
        "weights": [*[1.0] * len(prompt), *example["weights"][start:]],
    }


@dataclass
class TreeCollator:
    """Collates examples (the columns of `minionerec.training.rows.SftExamples`) into packed rows.

    Attributes:
        row_tokens: About how many tokens a row is to have. Longer rows have less waste at their ends and share more;
            their attention mask is larger.
        asks_teacher: Whether the batch says what a teacher is to be asked.
        epoch: The epoch, from 0, that is being trained: it says how examples with several prompts are asked.
    """

    row_tokens: int
    asks_teacher: bool = False
    epoch: int = 0

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Pack one batch.

        Returns:
            `input_ids`, `position_ids` and `ends` int64 (B, T), see `PackedGroups`; `places` int64 (N,), the positions
            that predict a labelled token, counted through all rows; `labels` int64 (1, N), those tokens; `weights`
            float32 (N,), of each one's loss; and, for a teacher, `histories`, `rows`, `slots`, `moments`
            and `levels` (`teacher_questions`).
        """
        examples = [asked_in_turn(example, self.epoch) for example in examples]
        order = sorted(range(len(examples)), key=lambda place: examples[place]["input_ids"])
        ids = [examples[place]["input_ids"] for place in order]
        shared = [0, *(common_prefix(one, two) for one, two in pairwise(ids))]
        new = [len(row) - prefix for row, prefix in zip(ids, shared, strict=True)]
        total = sum(new)
        rows = -(-total // self.row_tokens)
        prompts: list[list[int]] = []
        completions: list[list[list[int]]] = []
        used, row_before = 0, -1
        for sequence, prefix, tokens in zip(ids, shared, new, strict=True):
            row = (used + tokens // 2) * rows // total
            if row != row_before or prefix < _WORTH_SHARING:
                prompts.append(sequence[:1])
                completions.append([])
            completions[-1].append(sequence[1:])
            used, row_before = used + tokens, row
        packed = pack_groups(prompts, completions, int(total / rows * _SLACK))
        labelled = torch.tensor([label >= 0 for place in order for label in examples[place]["labels"][1:]])
        weights = torch.tensor([weight for place in order for weight in examples[place]["weights"][1:]])
        return {
            "input_ids": packed.input_ids,
            "position_ids": packed.position_ids,
            "ends": packed.ends,
            "places": packed.places[labelled],
            "labels": packed.labels[labelled].unsqueeze(0),
            "weights": weights[labelled],
            **(teacher_questions([examples[place] for place in order]) if self.asks_teacher else {}),
        }


class HasEpoch(Protocol):
    """What goes by epochs."""

    epoch: int


class TellEpoch(TrainerCallback):
    """Tells a collator, and an order of rows, of each epoch before its first batch, also if a run goes on inside one.

    Accelerate tells samplers too, as far as it finds them in what they were wrapped into.

    Args:
        told: Those who have an `epoch`.
    """

    def __init__(self, *told: HasEpoch | None):
        self.told = [one for one in told if one is not None]

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch begins, or is gone on with."""
        for one in self.told:
            one.epoch = int(state.epoch or 0)


def teacher_questions(examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What a teacher is asked about examples, in their order.

    Returns:
        `histories` int64 (R, H), SID numbers from 1, padded with 0 on the right, of the examples that a teacher speaks
        about; `rows` and `slots` int64 (P,), history and place in it behind which each target stands; `moments` int64
        (P,), what is told of each one's moment; `levels` int64 (N,), for each labelled token of all examples the place
        in its target's completion, -1 where no teacher has a say. The tokens of a target follow one another, and
        targets stand in the order of `rows` and `slots`.
    """
    asked = [example for example in examples if max(example["slots"], default=-1) >= 0]
    histories = torch.zeros(len(asked), max((len(row["histories"]) for row in asked), default=1), dtype=torch.long)
    for row, example in zip(histories, asked, strict=True):
        row[: len(example["histories"])] = torch.tensor(example["histories"])
    places = [(row, slot) for row, example in enumerate(asked) for slot in example["slots"] if slot >= 0]
    told = [example.get("moments") or [UNKNOWN] * len(example["slots"]) for example in asked]
    moments = [
        moment
        for example, own in zip(asked, told, strict=True)
        for slot, moment in zip(example["slots"], own, strict=True)
        if slot >= 0
    ]
    levels: list[int] = []
    for example in examples:
        count = sum(label >= 0 for label in example["labels"][1:])
        targets = example["slots"] or [-1]
        size = count // len(targets)
        levels += [level if slot >= 0 else -1 for slot in targets for level in range(size)]
    return {
        "histories": histories,
        "rows": torch.tensor([row for row, _ in places], dtype=torch.long),
        "slots": torch.tensor([slot for _, slot in places], dtype=torch.long),
        "moments": torch.tensor(moments, dtype=torch.long),
        "levels": torch.tensor(levels, dtype=torch.long),
    }


def good_row_length(model: PreTrainedModel) -> int:
    """The row length at which attention under a dense mask is about 6 % of a block's arithmetic.

    A block multiplies each token by about 12 D² weights; its attention is about 2 D multiplications for each token of
    the row: T = 3/8 D gives 2 D T / 12 D² = 6 %.
    """
    width: int = model.config.hidden_size
    return max(64, 3 * width // 8)
