"""The rows of supervised fine-tuning of a corpus that stays on disk, tokenised into files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.data.chains import Chains
from minionerec.data.corpus import Corpus
from minionerec.data.rows import ranges
from minionerec.data.windows import FlatWindows, Recency, flat_windows, varied_windows
from minionerec.models.prompts.examples import ITEM_TASKS, ExampleBuilder
from minionerec.models.prompts.wording import NEXT_SID, NEXT_TITLE
from minionerec.training.config import SftConfig
from minionerec.training.rows import TokenizedExamples, tokenise_examples, window_texts, with_histories
from minionerec.training.stream.disk import KINDS, NO_LOSS, DiskRows, FlatRows, Ragged
from minionerec.training.stream.jobs import Chance, Made, WriterTask, builder_of, plan_jobs, rows_of, write_jobs

# Windows of items as token ids with a loss at every target, without a loop over items.


@dataclass(frozen=True)
class WindowTexts:
    """What windows are made of.

    Attributes:
        values: int32, the token ids of all items one after another, and what a window begins with behind them.
        offsets: int64 (N + 2,), where each begins; the last two are those of the beginning.
        said: bool (N,), whether there is a loss at an item.
        numbers: int32 (N,), SID number of each item, from 1.
        cut: How many items' texts were too long and lost their last tokens.
    """

    values: np.ndarray
    offsets: np.ndarray
    said: np.ndarray
    numbers: np.ndarray
    cut: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, builder: ExampleBuilder, task: str) -> "WindowTexts":
        """Tokenise all items once.

        Raises:
            ConfigError: If the wording's prompt is not the bare history (`check_all_positions`).
        """
        start, items, cut = window_texts(tokenizer, builder, task)
        flat = Ragged.of([*items, start])
        said = np.array([task == NEXT_SID or bool(title.strip()) for title in builder.titles])
        offsets = np.concatenate([[0], np.cumsum(flat.lengths)])
        return cls(flat.values, offsets, said, (builder.table.sid_numbers + 1).astype(np.int32), cut)


def window_tokens(texts: WindowTexts, windows: FlatWindows) -> np.ndarray:
    """How many tokens each window has: int64 (W,)."""
    lengths = np.diff(texts.offsets)
    before = np.concatenate([[0], np.cumsum(lengths[:-1][windows.items])])
    found: np.ndarray = before[windows.ends] - before[windows.begins] + lengths[-1]
    return found


def window_rows(
    texts: WindowTexts,
    windows: FlatWindows,
    weigh: Callable[[np.ndarray], np.ndarray],
    teacher: bool,
    by_sid: bool,
) -> FlatRows:
    """Windows as rows: those of `minionerec.training.rows.tokenise_windows`.

    Args:
        texts: What they are made of.
        windows: The windows.
        weigh: Gives weights for numbers of rows.
        teacher: Whether a teacher is asked.
        by_sid: Whether it has a say.
    """
    sizes = windows.ends - windows.begins
    heads = np.cumsum(sizes) - sizes
    places = ranges(windows.begins, windows.ends)
    items, numbers = windows.items[places], windows.rows[places]
    is_target = np.arange(len(items)) - np.repeat(heads, sizes) >= np.repeat(windows.firsts, sizes)
    weights = np.where(numbers >= 0, weigh(np.maximum(numbers, 0)), np.float32(1))
    weights = np.where(is_target & texts.said[items], weights, np.float32(NO_LOSS))
    # A window is its beginning and its items: one entry of the texts each.
    units = np.insert(items, heads, len(texts.offsets) - 2)
    lengths = np.diff(texts.offsets)[units]
    tokens = texts.values[ranges(texts.offsets[units], texts.offsets[units + 1])]
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(sizes + 1)]
    histories = slots = None
    if teacher:
        said = sizes if by_sid else np.zeros_like(sizes)
        read = ranges(heads, np.maximum(heads, heads + said - 1))
        histories = Ragged(texts.numbers[items[read]], np.maximum(said - 1, 0))
        firsts = windows.firsts if by_sid else np.zeros_like(sizes)
        slots = Ragged(ranges(firsts - 1, said - 1).astype(np.int32), said - firsts)
    rows = Ragged(tokens, np.diff(ends, prepend=0))
    return FlatRows(rows, np.repeat(np.insert(weights, heads, NO_LOSS), lengths), histories, slots)


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
        stored: Corpus,
        config: SftConfig,
        splits: Sequence[str],
    ):
        self.tokenizer, self.builder, self.stored, self.config = tokenizer, builder, stored, config
        self.teacher = bool(config.teacher)
        before = np.cumsum([0, *(stored.sizes[split] for split in splits)]).tolist()
        self.numbered = dict(zip(splits, before, strict=False))
        self.recency = Recency(stored.split, sum(stored.sizes[split] for split in splits), config.recency)
        windowed = (NEXT_SID, NEXT_TITLE) if config.all_positions else ()
        self.texts = {task: WindowTexts.of(tokenizer, builder, task) for task in config.tasks if task in windowed}

    def make(self, job: WriterTask, batch: Any, chance: Chance, seed: int) -> Made:
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
            return self._made(TokenizedExamples())
        builder = builder_of(self.builder, taken)
        examples = builder.some(task, "train")
        chosen = chance(len(examples))
        kept = [examples[place] for place in chosen]
        rows = tokenise_examples(self.tokenizer, kept, self.config.max_prompt_length, seed)
        if task == NEXT_SID:
            with_histories(rows, builder, taken.take(chosen), self.recency(numbers[chosen]))
        return self._made(rows)

    def _made(self, rows: TokenizedExamples) -> Made:
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
    stored: Corpus,
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
