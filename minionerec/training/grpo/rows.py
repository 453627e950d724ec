"""What a step begins with: prompts as token ids, each with the number of its own target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.models.prompts.examples import ITEM_TASKS, ExampleBuilder, encode_completion, encode_prompt
from minionerec.models.prompts.wording import COMPLETION_FIELDS
from minionerec.training.plan import choose_examples


class PromptSettings(Protocol):
    """The settings that say which prompts there are: tasks with weights, prompts a step, and the seed."""

    tasks: dict[str, float]
    prompts_per_step: int
    seed: int


class Row(TypedDict):
    """A prompt, and what is known about it.

    Attributes:
        prompt: Token ids.
        target: SID number of the target.
        tail: Token ids that follow the SID in a completion.
        history: Item indices, oldest first; None where the prompt is about an item, not a user.
    """

    prompt: list[int]
    target: int
    tail: list[int]
    history: list[int] | None


@dataclass(frozen=True)
class PromptRows:
    """The prompts to train on.

    Attributes:
        rows: One a prompt, in memory or read when asked for; as many as fill whole steps.
        counts: Prompts of each task, before some are repeated to fill the last step.
        cut: How many of those were too long and lost their first tokens.
    """

    rows: Sequence[Row]
    counts: dict[str, int]
    cut: int

    @property
    def filled_up(self) -> int:
        """How many rows are there a second time."""
        return len(self.rows) - sum(self.counts.values())


def check_task(task: str) -> None:
    """Check that a task answers with an SID.

    Raises:
        ConfigError: If it does not.
    """
    fields = COMPLETION_FIELDS.get(task, ("sid",))
    if fields != ("sid",):
        raise ConfigError(f"task {task!r} answers with a {' and a '.join(fields)}; take tasks that answer with an SID.")


def grpo_rows(
    builder: ExampleBuilder, tokenizer: PreTrainedTokenizerBase, config: PromptSettings, max_prompt_length: int
) -> PromptRows:
    """The prompts of all tasks by their weights.

    They are filled up to whole steps by repeating some in a fixed random order, so that none is dropped.

    Args:
        builder: Makes the examples.
        tokenizer: The model's tokenizer.
        config: Tasks, prompts of a step, seed.
        max_prompt_length: Prompts are cut to this many last tokens.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """
    rows: list[Row] = []
    counts, cut = {}, 0
    for task, weight in config.tasks.items():
        check_task(task)
        examples = builder.build(task, "train")
        histories = None if task in ITEM_TASKS else builder.corpus.rows("train").histories
        chosen = choose_examples(len(examples), weight, config.seed)
        counts[task] = len(chosen)
        prompts = encode_prompt(tokenizer, [examples[place].prompt for place in chosen], max_prompt_length)
        cut += prompts.cut
        for place, prompt in zip(chosen, prompts.ids, strict=True):
            target, completion = examples[place].target, examples[place].completion
            tail = completion[len(builder.table.sids[target]) :]
            rows.append(
                Row(
                    prompt=prompt,
                    target=int(builder.table.sid_numbers[target]),
                    tail=encode_completion(tokenizer, [tail])[0],
                    history=None if histories is None else histories[place].tolist(),
                )
            )
    missing = -len(rows) % config.prompts_per_step
    again = np.resize(np.random.default_rng(config.seed).permutation(len(rows)), missing)
    return PromptRows(rows + [rows[place] for place in again], counts, cut)
