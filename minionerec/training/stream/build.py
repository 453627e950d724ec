"""The rows of supervised fine-tuning of a corpus that stays on disk, tokenised into files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.data.chains import Chains
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import flat_windows, numbered_from
from minionerec.data.windows import FlatWindows, Recency, varied_windows
from minionerec.prompts.examples import ITEM_TASKS, ExampleBuilder
from minionerec.prompts.wording import NEXT_SID, NEXT_TITLE
from minionerec.training.config import SftConfig
from minionerec.training.rows import Rows, tokenise_examples, with_histories
from minionerec.training.stream.disk import KINDS, DiskRows, FlatRows
from minionerec.training.stream.jobs import Chance, Job, Made, builder_of, plan_jobs, rows_of, write_jobs
from minionerec.training.stream.windows import WindowTexts, window_rows, window_tokens


class RowMaker:
    """Makes rows of batches of sequences or items.

    Args:
        tokenizer: The model's tokenizer.
        builder: Makes the examples; its corpus has the items, and no training row.
        stored: The corpus.
        config: Tasks and how they are trained.
        splits: Whose rows are trained on.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        builder: ExampleBuilder,
        stored: StoredCorpus,
        config: SftConfig,
        splits: Sequence[str],
    ):
        self.tokenizer, self.builder, self.stored, self.config = tokenizer, builder, stored, config
        self.teacher = bool(config.teacher)
        self.numbered = numbered_from(stored, splits)
        self.recency = Recency(stored.split, sum(stored.sizes[split] for split in splits), config.recency)
        windowed = (NEXT_SID, NEXT_TITLE) if config.all_positions else ()
        self.texts = {task: WindowTexts.of(tokenizer, builder, task) for task in config.tasks if task in windowed}

    def make(self, job: Job, batch: Any, chance: Chance, seed: int) -> Made:
        """Rows of one batch of a job."""
        if job.task in self.texts:
            return self._of_windows(job.task, batch, chance, seed)
        return (
            self._of_items(job.task, batch, chance, seed)
            if job.task in ITEM_TASKS
            else self._of_rows(job.task, batch, chance, seed)
        )

    def _of_items(self, task: str, items: range, chance: Chance, seed: int) -> Made:
        examples = self.builder.some(task, "train", items)
        chosen = [examples[place] for place in chance(len(examples))]
        return self._made(tokenise_examples(self.tokenizer, chosen, self.config.max_prompt_length, seed))

    def _of_rows(self, task: str, chains: Chains, chance: Chance, seed: int) -> Made:
        numbers, taken = rows_of(chains, self.stored, self.numbered)
        if not len(taken):
            return self._made(Rows())
        builder = builder_of(self.builder, taken)
        examples = builder.some(task, "train")
        chosen = chance(len(examples))
        kept = [examples[place] for place in chosen]
        rows = tokenise_examples(self.tokenizer, kept, self.config.max_prompt_length, seed)
        if task == NEXT_SID:
            with_histories(rows, builder, taken.take(chosen), self.recency(numbers[chosen]))
        return self._made(rows)

    def _made(self, rows: Rows) -> Made:
        flat = FlatRows.of(rows, self.teacher)
        return flat, flat.counted(rows.cut, rows.cut_completions)

    def _of_windows(self, task: str, chains: Chains, chance: Chance, seed: int) -> Made:
        windows = flat_windows(chains, self.stored.max_history, self.stored.together, self.numbered)
        if self.config.variants:
            each = list(windows.each(self.stored.together))
            windows = FlatWindows.of([*each, *varied_windows(each, self.config.variants, seed)])
        taken = windows.take(chance(len(windows)))
        texts = self.texts[task]
        taken = taken.take(np.arange(chance.fitting(window_tokens(texts, taken))))
        flat = window_rows(texts, taken, self.recency, self.teacher, task == NEXT_SID)
        return flat, flat.counted()


def disk_rows(
    tokenizer: PreTrainedTokenizerBase,
    builder: ExampleBuilder,
    stored: StoredCorpus,
    config: SftConfig,
    folder: Path,
    splits: Sequence[str] = ("train",),
) -> DiskRows:
    """The training rows of all tasks by their weights, on disk; written where they are not yet.

    Every process of a launch must ask for them: each writes its share.

    Args:
        tokenizer: The model's tokenizer.
        builder: Makes the examples; its corpus has the items, and no training row.
        stored: The corpus.
        config: Tasks and how they are trained.
        folder: Where the rows lie, in the folder of the unfinished run.
        splits: Whose rows are trained on.

    Raises:
        DataError: If a task has no example.
        ConfigError: If the wording does not allow what is asked for.
        ArtefactError: If a file of the corpus cannot be read, or one of the rows is damaged.
    """
    maker = RowMaker(tokenizer, builder, stored, config, splits)
    jobs = plan_jobs(stored.files, config.tasks, folder, config.max_tokens)
    written = write_jobs(jobs, stored, KINDS, config.seed, maker.make)
    return DiskRows(written, sum(texts.cut for texts in maker.texts.values()))
