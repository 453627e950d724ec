"""Prompts of a corpus that stays on disk, tokenised into files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.data.columns import ColumnWriter
from minionerec.data.stored import StoredCorpus
from minionerec.prompts.examples import ITEM_TASKS, ExampleBuilder, encode_completion, encode_prompt
from minionerec.training.grpo.config import GrpoConfig
from minionerec.training.grpo.rows import PromptRows, Row, check_task
from minionerec.training.stream.disk import Numbered, Ragged, span
from minionerec.training.stream.jobs import (
    Chance,
    Job,
    Made,
    Written,
    builder_of,
    count_tasks,
    plan_jobs,
    rows_of,
    write_jobs,
)

_ENDS = {"prompts": "prompt_ends", "tails": "tail_ends", "histories": "history_ends"}
KINDS = {
    "targets": "int32",
    **{name: kind for values, ends in _ENDS.items() for name, kind in ((values, "int32"), (ends, "int64"))},
}


@dataclass(frozen=True)
class FlatPrompts:
    """Prompts in a few arrays, as `minionerec.training.grpo.rows.Row` has them.

    Attributes:
        targets: int (R,), SID numbers.
        lists: `prompts`, `tails` and `histories`.
    """

    targets: np.ndarray
    lists: dict[str, Ragged]

    def write(self, writer: ColumnWriter) -> None:
        """Add the rows to columns of `KINDS`."""
        writer.append("targets", self.targets)
        for name, part in self.lists.items():
            writer.append(_ENDS[name], writer.size(name) + np.cumsum(part.lengths))
            writer.append(name, part.values)


class DiskPrompts(Sequence[Row]):
    """All prompts of a training, filled up to whole steps, read from disk when they are asked for.

    Args:
        written: Their parts.
        step: Prompts of a step.
        seed: Says which prompts fill up the last step.
    """

    def __init__(self, written: Sequence[Written], step: int, seed: int):
        self._rows = Numbered(written)
        self.distinct = len(self._rows)
        missing = -self.distinct % step
        self._again: list[int] = np.random.default_rng(seed).integers(self.distinct, size=missing).tolist()

    def __len__(self) -> int:
        """Number of rows of whole steps."""
        return self.distinct + len(self._again)

    def __getitem__(self, row: Any) -> Any:
        """One row."""
        part, number = self._rows.find(row if row < self.distinct else self._again[row - self.distinct])
        found = {
            name: part.arrays[name][slice(*span(part.arrays[ends], number))].tolist() for name, ends in _ENDS.items()
        }
        history = None if part.job.task in ITEM_TASKS else found["histories"]
        target = int(part.arrays["targets"][number])
        return Row(prompt=found["prompts"], target=target, tail=found["tails"], history=history)


def disk_prompts(
    builder: ExampleBuilder,
    tokenizer: PreTrainedTokenizerBase,
    stored: StoredCorpus,
    config: GrpoConfig,
    max_prompt_length: int,
    folder: Path,
) -> PromptRows:
    """The prompts of all tasks by their weights, on disk; written where they are not yet.

    Every process of a launch must ask for them: each writes its share.

    Args:
        builder: Makes the examples; its corpus has the items, and no training row.
        tokenizer: The model's tokenizer.
        stored: The corpus.
        config: Tasks, prompts of a step, seed.
        max_prompt_length: Prompts are cut to this many last tokens.
        folder: Where the rows lie, in the folder of the unfinished run.

    Raises:
        ConfigError: If a task's completion is not an SID.
        ArtefactError: If a file of the corpus cannot be read, or one of the rows is damaged.
    """
    for task in config.tasks:
        check_task(task)

    def make(job: Job, batch: Any, chance: Chance, seed: int) -> Made:
        own, histories, items = builder, None, None
        if job.task in ITEM_TASKS:
            items = batch
        else:
            _, rows = rows_of(batch, stored, {"train": 0})
            own, histories = builder_of(builder, rows), rows.histories
        examples = own.some(job.task, "train", items) if histories is None or len(histories) else []
        chosen = [int(place) for place in chance(len(examples))]
        asked = encode_prompt(tokenizer, [examples[place].prompt for place in chosen], max_prompt_length)
        targets = [examples[place].target for place in chosen]
        tails = [examples[place].completion[len(own.table.sids[examples[place].target]) :] for place in chosen]
        lists = {
            "prompts": Ragged.of(asked.ids),
            "tails": Ragged.of(encode_completion(tokenizer, tails)),
            "histories": Ragged.of([[] if histories is None else histories[place].tolist() for place in chosen]),
        }
        flat = FlatPrompts(own.table.sid_numbers[np.array(targets, dtype=np.int64)], lists)
        return flat, {"rows": len(chosen), "cut": asked.cut}

    written = write_jobs(plan_jobs(stored.files, config.tasks, folder), stored, KINDS, config.seed, make)
    rows = DiskPrompts(written, config.prompts_per_step, config.seed)
    return PromptRows(rows, count_tasks(written), Numbered(written).total("cut"))
