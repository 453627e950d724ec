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
from typing import Any

import torch
from transformers import PreTrainedModel

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


@dataclass(frozen=True)
class TreeCollator:
    """Collates examples (`input_ids` and `labels`, -100 where there is no loss) into packed rows.

    Attributes:
        row_tokens: About how many tokens a row is to have. Longer rows have less waste at their ends and share more;
            their attention mask is larger.
    """

    row_tokens: int

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Pack one batch.

        Returns:
            `input_ids`, `position_ids` and `ends` int64 (B, T), see `PackedGroups`; `places` int64 (N,), the positions
            that predict a labelled token, counted through all rows; `labels` int64 (1, N), those tokens.
        """
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
        return {
            "input_ids": packed.input_ids,
            "position_ids": packed.position_ids,
            "ends": packed.ends,
            "places": packed.places[labelled],
            "labels": packed.labels[labelled].unsqueeze(0),
        }


def good_row_length(model: PreTrainedModel) -> int:
    """The row length at which attention under a dense mask is about 6 % of a block's arithmetic.

    A block multiplies each token by about 12 D² weights; its attention is about 2 D multiplications for each token of
    the row: T = 3/8 D gives 2 D T / 12 D² = 6 %.
    """
    width: int = model.config.hidden_size
    return max(64, 3 * width // 8)
