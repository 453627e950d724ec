"""Rows that supervised fine-tuning trains on: token ids, and labels where there is a loss."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.data.windows import user_windows
from minionerec.prompts.examples import Example, ExampleBuilder, encode_completion, encode_prompt
from minionerec.training.config import SftConfig
from minionerec.training.plan import choose_examples


@dataclass
class Rows:
    """Tokenised rows.

    Attributes:
        input_ids: Token ids of each row.
        labels: Its labels, as many: -100 where there is no loss.
        cut: How many prompts were too long and lost their first tokens.
    """

    input_ids: list[list[int]] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    cut: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.input_ids)

    @property
    def columns(self) -> dict[str, list[list[int]]]:
        """The rows as a data set has them."""
        return {"input_ids": self.input_ids, "labels": self.labels}

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.input_ids))

    @property
    def losses(self) -> int:
        """Tokens that have a loss."""
        return sum(label >= 0 for row in self.labels for label in row)


def tokenise_examples(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], max_prompt_length: int) -> Rows:
    """Token ids, and labels that are -100 at prompt tokens, of examples."""
    prompts = encode_prompt(tokenizer, [example.prompt for example in examples], max_prompt_length)
    completions = encode_completion(tokenizer, [example.completion for example in examples])
    return Rows(
        [p + c for p, c in zip(prompts.ids, completions, strict=True)],
        [[-100] * len(p) + c for p, c in zip(prompts.ids, completions, strict=True)],
        prompts.cut,
    )


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


def tokenise_windows(tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder) -> Rows:
    """User windows as rows with a loss at every target item (`user_windows`)."""
    check_all_positions(builder)
    start = encode_prompt(tokenizer, [builder.prompt("next_sid", history=[])], None).ids[0]
    items = [tokenizer.convert_tokens_to_ids(list(tokens)) for tokens in builder.table.token_tuples]
    rows = Rows()
    for window in user_windows(builder.corpus):
        ids, labels = list(start), [-100] * len(start)
        for place, item in enumerate(window.items.tolist()):
            ids += items[item]
            labels += items[item] if place >= window.first_target else [-100] * len(items[item])
        rows.input_ids.append(ids)
        rows.labels.append(labels)
    return rows


def training_rows(
    tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, config: SftConfig
) -> tuple[Rows, dict[str, int]]:
    """The training rows of all tasks by their weights, and the number of rows of each task."""
    chosen, counts = Rows(), {}
    for task, weight in config.tasks.items():
        if task == "next_sid" and config.all_positions:
            rows = tokenise_windows(tokenizer, builder)
        else:
            rows = tokenise_examples(tokenizer, builder.build(task, "train"), config.max_prompt_length)
        places = choose_examples(len(rows), weight, config.seed)
        counts[task] = len(places)
        chosen.input_ids += [rows.input_ids[place] for place in places]
        chosen.labels += [rows.labels[place] for place in places]
        chosen.cut += rows.cut
    return chosen, counts
