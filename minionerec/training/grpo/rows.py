"""What a step begins with: prompts as token ids, each with the number of its own target."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt
from minionerec.models.prompts.wording import COMPLETION_FIELDS
from minionerec.training.examples import Asked, Columns, ExampleMaker, Ragged, training_set


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
        rows: One a prompt (`Row`), mapped from files; as many as fill whole steps.
        counts: Prompts of each task, before some are repeated to fill the last step.
        cut: How many of those were too long and lost their first tokens.
    """

    rows: Dataset
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


class PromptExamples(ExampleMaker):
    """Makes prompts of all tasks, each with the number of its target.

    Args:
        tokenizer: The model's tokenizer.
        max_prompt_length: Prompts are cut to this many last tokens.
        about: The other arguments are those of `ExampleMaker`.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """

    lists: ClassVar[Mapping[str, str]] = {"prompt": "int32", "tail": "int32", "history": "int32"}
    scalars: ClassVar[Mapping[str, str]] = {"target": "int32"}

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int, *about: Any, **more: Any):
        super().__init__(*about, **more)
        self.tokenizer, self.max_prompt_length = tokenizer, max_prompt_length
        for task in self.tasks:
            check_task(task)

    def examples(self, asked: Asked) -> tuple[Columns, Mapping[str, int]]:
        """Prompts of one task."""
        builder = asked.builder(self.builder)
        made = builder.some(asked.task, "train", asked.items) if len(asked.numbers) else []
        prompts = encode_prompt(self.tokenizer, [example.prompt for example in made], self.max_prompt_length)
        targets = np.array([example.target for example in made], dtype=np.int64)
        tails = [example.completion[len(builder.table.sids[example.target]) :] for example in made]
        found: dict[str, Ragged | np.ndarray] = {
            "target": builder.table.sid_numbers[targets],
            "prompt": Ragged.of(prompts.ids),
            "tail": Ragged.of(encode_completion(self.tokenizer, tails)),
        }
        if asked.rows is not None:
            found["history"] = Ragged(asked.rows.flat_histories()[0], asked.rows.lengths)
        return found, {"rows": len(made), "cut": prompts.cut}


def grpo_rows(
    builder: ExampleBuilder,
    tokenizer: PreTrainedTokenizerBase,
    config: PromptSettings,
    max_prompt_length: int,
    folder: Path,
    corpus: Corpus | None = None,
) -> PromptRows:
    """The prompts of all tasks by their weights.

    They are filled up to whole steps by repeating some in a fixed random order, so that none is dropped.

    Args:
        builder: Makes the examples.
        tokenizer: The model's tokenizer.
        config: Tasks, prompts of a step, seed.
        max_prompt_length: Prompts are cut to this many last tokens.
        folder: Where the prompts lie, and are written where they do not yet.
        corpus: A corpus whose examples are read from its files; that of the builder if None.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """
    about = (builder, corpus or builder.corpus, config.tasks, config.seed)
    found = training_set(PromptExamples(tokenizer, max_prompt_length, *about, by_shard=corpus is not None), folder)
    missing, rng = -len(found) % config.prompts_per_step, np.random.default_rng(config.seed)
    if corpus is None:
        again = np.resize(rng.permutation(len(found)), missing)
    else:
        again = rng.integers(len(found), size=missing)
    return PromptRows(found.dataset(again), found.counts, found.total("cut"))
