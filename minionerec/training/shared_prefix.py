"""Log-probabilities of many completions of each prompt from one pass over the prompt.

A row of the packed batch is a prompt without its last token, then one branch for each completion: the prompt's last
token again, and the completion without its own last token. Each branch position predicts one completion token, so the
labels are given unshifted:

    sequence   p0 p1 | p2 a0 a1 | p2 b0 b1 |        prompt p0 p1 p2, completions a0 a1 a2 and b0 b1 b2
    label       .  . | a0 a1 a2 | b0 b1 b2 |
    position    0  1 |  2  3  4 |  2  3  4 |
    b0 sees     x  x |  .  .  . |  x  x  . |

Going through the model's own forward keeps distributed wrappers at work.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from minionerec.decoding.prefix import attention_mask_4d, prompt_visibility


def pack_groups(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, completion_width: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Pack completions of equal prompts behind one copy of the prompt.

    Args:
        input_ids: int64 (R, P + C), prompts padded on the left, completions padded on the right.
        attention_mask: int64 or bool (R, P + C).
        completion_width: C.

    Returns:
        Model inputs of U rows, one a distinct prompt (`input_ids`, `position_ids`, `shift_labels` (U, T), and a bool
        `visible` (U, T, T)); the packed row of each of the R completions, int64 (R,); and the first packed position
        of each, int64 (R,).
    """
    width = completion_width
    prompts, completions = input_ids[:, :-width], input_ids[:, -width:]
    prompt_mask, completion_mask = attention_mask[:, :-width].bool(), attention_mask[:, -width:].bool()
    unique, row = torch.unique(prompts.masked_fill(~prompt_mask, -1), dim=0, return_inverse=True)
    order = torch.argsort(row, stable=True)
    counts = torch.bincount(row, minlength=len(unique))
    slot = torch.empty_like(row)
    starts = counts.cumsum(0) - counts
    slot[order] = torch.arange(len(row), device=row.device) - starts[row[order]]
    branches = int(counts.max())
    mask = unique >= 0  # (U, P)
    tokens = unique.clamp(min=0)
    last = mask.sum(-1) - 1  # position of each prompt's last token
    shape = (len(unique), branches, width)
    branch_tokens = torch.zeros(shape, dtype=input_ids.dtype, device=input_ids.device)
    branch_labels = torch.full(shape, -100, dtype=input_ids.dtype, device=input_ids.device)
    branch_mask = torch.zeros(shape, dtype=torch.bool, device=input_ids.device)
    branch_tokens[row, slot, 0] = prompts[:, -1]
    branch_tokens[row, slot, 1:] = completions[:, :-1]
    branch_labels[row, slot] = completions.masked_fill(~completion_mask, -100)
    branch_mask[row, slot] = completion_mask
    steps = torch.arange(width, device=input_ids.device)
    positions = last.view(-1, 1, 1) + steps.view(1, 1, -1).expand(*shape)
    prefix_mask, prefix = mask[:, :-1], tokens[:, :-1]
    n_prefix, n_branch = prefix.shape[1], branches * width
    visible = torch.zeros(
        len(unique), n_prefix + n_branch, n_prefix + n_branch, dtype=torch.bool, device=input_ids.device
    )
    visible[:, :n_prefix, :n_prefix] = prompt_visibility(prefix_mask)
    visible[:, n_prefix:, :n_prefix] = prefix_mask.unsqueeze(1)
    own = torch.arange(n_branch, device=input_ids.device) // width
    earlier = torch.ones(n_branch, n_branch, dtype=torch.bool, device=input_ids.device).tril()
    visible[:, n_prefix:, n_prefix:] = (own.unsqueeze(0) == own.unsqueeze(1)) & earlier
    packed = {
        "input_ids": torch.cat([prefix, branch_tokens.flatten(1)], 1),
        "position_ids": torch.cat([(prefix_mask.long().cumsum(-1) - 1).clamp(min=0), positions.flatten(1)], 1),
        "shift_labels": torch.cat([torch.full_like(prefix, -100), branch_labels.flatten(1)], 1),
        "visible": visible,
    }
    return packed, row, n_prefix + slot * width


def shared_prefix_logps(
    model: Any, backbone: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, completion_width: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities, with gradient, of completions under a model with TRL's fused language-model head.

    Equal to scoring each row on its own, up to rounding.

    Args:
        model: Causal language model (or a distributed wrapper of one) with the fused head of TRL's trainers.
        backbone: The model itself, without wrapper.
        input_ids: int64 (R, P + C), prompts padded on the left, completions padded on the right.
        attention_mask: (R, P + C).
        completion_width: C.

    Returns:
        Log-probabilities float (R, C), 0 at padding, and entropies (R, C) where the head computes them.
    """
    packed, row, first = pack_groups(input_ids, attention_mask, completion_width)
    visible = packed.pop("visible")
    outputs = model(**packed, attention_mask=attention_mask_4d(visible, backbone), fused_lm_head=True)
    places = first.unsqueeze(1) + torch.arange(completion_width, device=first.device)
    logps = outputs.log_probs[row.unsqueeze(1), places]
    entropies = None if outputs.entropy is None else outputs.entropy[row.unsqueeze(1), places]
    return logps, entropies
