"""Inputs of GRPO: prompts as token ids, each with the number of its own target."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import ConfigError
from minionerec.data.contexts import context_codes
from minionerec.models.prompts.examples import ExampleBuilder, encode_completion, encode_prompt
from minionerec.models.prompts.wording import COMPLETION_FIELDS
from minionerec.training.examples import (
    ExampleMaker,
    MadeColumns,
    Ragged,
    TaskExamples,
    TrainingSet,
    ragged,
    training_set,
)


class PromptExamples(ExampleMaker):
    """Makes prompts of all tasks, each with the number of its target.

    Args:
        tokenizer: The model's tokenizer.
        max_prompt_length: Prompts are truncated to this many last tokens.
        about: The other arguments are those of `ExampleMaker`.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """

    lists: ClassVar[Mapping[str, str]] = {"prompt": "int32", "tail": "int32", "history": "int32", "contexts": "int32"}
    scalars: ClassVar[Mapping[str, str]] = {"target": "int32"}

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int, *about: Any, **more: Any):
        super().__init__(*about, **more)
        self.tokenizer, self.max_prompt_length = tokenizer, max_prompt_length
        for task in self.tasks:
            fields = COMPLETION_FIELDS.get(task, ("sid",))
            if fields != ("sid",):
                raise ConfigError(
                    f"task {task!r} answers with a {' and a '.join(fields)}; take tasks that answer with an SID."
                )

    def examples(self, requested: TaskExamples) -> MadeColumns:
        """Prompts of one task."""
        builder = self.builder
        made = builder.some(requested.task, requested.items, requested.rows)
        prompts, truncated = encode_prompt(self.tokenizer, [example.prompt for example in made], self.max_prompt_length)
        targets = np.array([example.target for example in made], dtype=np.int64)
        tails = [example.completion[len(builder.table.sids[example.target]) :] for example in made]
        found: dict[str, Ragged | np.ndarray] = {
            "target": builder.table.sid_numbers[targets],
            "prompt": ragged(prompts),
            "tail": ragged(encode_completion(self.tokenizer, tails)),
        }
        if requested.rows is not None and builder.wording.context:
            found["contexts"] = ragged(context_codes(builder.wording.context, requested.rows).tolist())
        if requested.rows is not None:
            found["history"] = requested.rows.flat_histories()[0], requested.rows.lengths
        return found, {"rows": len(made), "truncated": truncated}


def grpo_examples(
    builder: ExampleBuilder,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Mapping[str, float],
    prompts_per_step: int,
    seed: int,
    max_prompt_length: int,
    folder: Path,
) -> TrainingSet:
    """The prompts (`Row`) of all tasks by their weights, truncated to their last `max_prompt_length` tokens.

    They are filled up to whole steps by repeating some in a fixed random order, so that none is dropped. `folder` is
    written where they do not exist yet.

    Raises:
        ConfigError: If a task's completion is not an SID.
    """
    found = training_set(PromptExamples(tokenizer, max_prompt_length, builder, builder.corpus, tasks, seed), folder)
    missing = -len(found) % prompts_per_step
    return replace(found, again=np.resize(np.random.default_rng(seed).permutation(len(found)), missing))
