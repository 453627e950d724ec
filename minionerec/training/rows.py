"""Rows that supervised fine-tuning trains on: token ids, and labels where there is a loss."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.data.windows import user_windows
from minionerec.prompts.examples import Example, ExampleBuilder, encode_completion, encode_prompt
from minionerec.training.config import SftConfig
from minionerec.training.plan import choose_examples

Columns = dict[str, list[list[int]]]


def tokenise_examples(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], max_prompt_length: int
) -> Columns:
    """Token ids, and labels that are -100 at prompt tokens, of examples.

    Returns:
        Columns `input_ids` and `labels`.
    """
    prompts = encode_prompt(tokenizer, [example.prompt for example in examples], max_prompt_length).ids
    completions = encode_completion(tokenizer, [example.completion for example in examples])
    return {
        "input_ids": [p + c for p, c in zip(prompts, completions, strict=True)],
        "labels": [[-100] * len(p) + c for p, c in zip(prompts, completions, strict=True)],
    }


def check_all_positions(builder: ExampleBuilder) -> None:
    """Check that a history with its target is again a prompt, so that one row can hold a loss at every item.

    Raises:
        ConfigError: If the wording puts anything but the history into the prompt, or marks the end of completions.
    """
    first = builder.prompt("next_sid", history=[])
    item = 0
    grown = first + builder.completion("next_sid", item)
    again = builder.prompt("next_sid", history=[item])
    if grown != again or again + builder.completion("next_sid", item) != builder.prompt(
        "next_sid", history=[item, item]
    ):
        raise ConfigError(
            f"all_positions needs a wording whose prompt is the bare history, but in {builder.wording.name!r} the "
            f"prompt and completion of an item ({grown!r}) are not the next prompt ({again!r}). Use wording compact."
        )


def tokenise_windows(tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder) -> Columns:
    """User windows as rows with a loss at every target item (`user_windows`).

    Returns:
        Columns `input_ids` and `labels`.
    """
    check_all_positions(builder)
    start = encode_prompt(tokenizer, [builder.prompt("next_sid", history=[])], None).ids[0]
    items = [tokenizer.convert_tokens_to_ids(list(tokens)) for tokens in builder.table.token_tuples]
    columns: Columns = {"input_ids": [], "labels": []}
    for window in user_windows(builder.corpus):
        ids, labels = list(start), [-100] * len(start)
        for place, item in enumerate(window.items.tolist()):
            ids += items[item]
            labels += items[item] if place >= window.first_target else [-100] * len(items[item])
        columns["input_ids"].append(ids)
        columns["labels"].append(labels)
    return columns


def training_columns(
    tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, config: SftConfig
) -> tuple[Columns, dict[str, Any]]:
    """The training rows of all tasks by their weights.

    Returns:
        Columns `input_ids` and `labels`, and counts: `rows` of each task, `tokens`, and those with a loss (`losses`).
    """
    columns: Columns = {"input_ids": [], "labels": []}
    counts = {}
    for task, weight in config.tasks.items():
        if task == "next_sid" and config.all_positions:
            rows = tokenise_windows(tokenizer, builder)
        else:
            rows = tokenise_examples(tokenizer, builder.build(task, "train"), config.max_prompt_length)
        chosen = choose_examples(len(rows["input_ids"]), weight, config.seed)
        counts[task] = len(chosen)
        for name, values in rows.items():
            columns[name] += [values[place] for place in chosen]
    tokens = sum(map(len, columns["input_ids"]))
    losses = sum(label >= 0 for row in columns["labels"] for label in row)
    return columns, {"rows": counts, "tokens": tokens, "losses": losses}
