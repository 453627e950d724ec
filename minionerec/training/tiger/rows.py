"""What a TIGER trains on: the prompt of each row and its target's SID, equal rows once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from minionerec.prompts.examples import ExampleBuilder, encode_completion, encode_prompt

Columns = dict[str, list[Any]]


def distinct_rows(
    builder: ExampleBuilder, tokenizer: PreTrainedTokenizerBase, split: str, max_prompt_length: int
) -> tuple[Columns, int]:
    """Token ids of the distinct rows of a split, in the order in which they come first.

    A row that comes n times weighs n times as much as one that comes once; the mean weight is 1.

    Returns:
        `input_ids` and `labels`, token ids of prompts and of targets, and `weights`, float, a number a row; and how
        many prompts were cut.
    """
    examples = builder.build("next_sid", split)
    prompts = encode_prompt(tokenizer, [example.prompt for example in examples], max_prompt_length)
    targets = encode_completion(tokenizer, [example.completion for example in examples])
    times = Counter(zip(map(tuple, prompts.ids), map(tuple, targets), strict=True))
    mean = len(examples) / len(times)
    return {
        "input_ids": [list(prompt) for prompt, _ in times],
        "labels": [list(target) for _, target in times],
        "weights": [count / mean for count in times.values()],
    }, prompts.cut


def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch of rows, each column as wide as its longest.

    Returns:
        `input_ids` int64 (B, T), padded with 0 on the right; `labels` int64 (B, L), padded with -100; `weights`
        float32 (B,).
    """
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=filler
        )
        for name, filler in (("input_ids", 0), ("labels", -100))
    }
    return {**padded, "weights": torch.tensor([row["weights"] for row in rows], dtype=torch.float32)}
