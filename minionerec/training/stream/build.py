"""Rows of a corpus that stays on disk, tokenised once into files, a task and a shard at a time.

The processes of a launch share the shards. Each file remembers how far it is: a run that was killed goes on with the
next few thousand interactions, and ends with the same rows.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.core.processes import process_rank, wait_for_everyone, world_size
from minionerec.data.chains import Chains
from minionerec.data.columns import ColumnWriter, are_finished
from minionerec.data.rows import joined
from minionerec.data.shards import read_shard
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_windows import FlatWindows, flat_windows, numbered_from
from minionerec.data.windows import Recency, varied_windows
from minionerec.prompts.examples import ITEM_TASKS, ExampleBuilder
from minionerec.prompts.wording import NEXT_SID, NEXT_TITLE
from minionerec.training.config import SftConfig
from minionerec.training.rows import tokenise_examples, with_histories
from minionerec.training.stream.disk import KINDS, DiskRows, FlatRows, Part, Tally
from minionerec.training.stream.windows import WindowTexts, window_rows

logger = get_logger(__name__)

_AT_ONCE = 16_384  # interactions, or items, that are tokenised before the next commit
_LOOK_AGAIN = 0.2  # seconds
_SALT = 0x5EED


@dataclass(frozen=True)
class Job:
    """Rows that one process writes.

    Attributes:
        task: Of which task.
        number: Number of the job, part of its seeds.
        shard: File of sequences; None for a task about items.
        share: Which part of the examples, drawn by chance.
        times: How often an epoch sees each.
        place: Folder of the rows.
    """

    task: str
    number: int
    shard: Path | None
    share: float
    times: int
    place: Path


def plan_jobs(files: Sequence[Path], tasks: dict[str, float], folder: Path) -> list[Job]:
    """What there is to write: of each task and shard all examples where the weight is 1 or more, and a random rest."""
    jobs: list[Job] = []
    for task, weight in tasks.items():
        shards: Sequence[Path | None] = [None] if task in ITEM_TASKS else files
        for share, times, name in ((1.0, int(weight), "all"), (weight - int(weight), 1, "some")):
            for number, shard in enumerate(shards if share and times else ()):
                place = folder / f"{task}-{name}-{number:05d}"
                jobs.append(Job(task, len(jobs), shard, share, times, place))
    return jobs


@dataclass
class Chance:
    """Draws a share of examples, batch by batch, so that of all of them it is that share up to one."""

    share: float
    seen: int
    seed: Sequence[int]

    def __call__(self, count: int) -> np.ndarray:
        """Which of the next `count` examples: int64, ascending."""
        if self.share == 1:
            return np.arange(count)
        before, self.seen = self.seen, self.seen + count
        drawn = round(self.share * self.seen) - round(self.share * before)
        return np.sort(np.random.default_rng(list(self.seed)).permutation(count)[:drawn])


Made = tuple[FlatRows, int, int]
"""Rows, and how many prompts and completions were cut."""


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
        self.numbered = numbered_from(stored, splits)
        self.recency = Recency(stored.split, sum(stored.sizes[split] for split in splits), config.recency)
        windowed = (NEXT_SID, NEXT_TITLE) if config.all_positions else ()
        self.texts = {task: WindowTexts.of(tokenizer, builder, task) for task in config.tasks if task in windowed}

    def write(self, job: Job) -> None:
        """Write the rows of a job, from where an earlier run was; nothing where they are written."""
        if are_finished(job.place):
            return
        make = self._way(job)
        with ColumnWriter(job.place, KINDS) as writer:
            tally = Tally(**writer.state.get("tally", {}))
            done, seen = int(writer.state.get("batches", 0)), int(writer.state.get("seen", 0))
            for number, batch in enumerate(self._batches(job)):
                if number < done:
                    continue
                seeds = [self.config.seed, _SALT, job.number, number]
                chance = Chance(job.share, seen, seeds)
                rows, cut, cut_completions = make(
                    batch, chance, int(np.random.SeedSequence(seeds).generate_state(1)[0])
                )
                rows.write(writer)
                tally.add(rows, cut, cut_completions)
                seen = chance.seen
                writer.commit({"batches": number + 1, "seen": seen, "tally": asdict(tally)})
            writer.commit({**writer.state, "tally": asdict(tally)})
            writer.finish()

    def _batches(self, job: Job) -> Iterator[Any]:
        """Sequences of a job's shard, or ranges of items, a few thousand at a time."""
        if job.shard is None:
            for start in range(0, self.stored.n_items, _AT_ONCE):
                yield range(start, min(start + _AT_ONCE, self.stored.n_items))
            return
        for chains in read_shard(job.shard, self.stored.n_items):
            cuts = np.searchsorted(chains.offsets, np.arange(_AT_ONCE, chains.offsets[-1], _AT_ONCE))
            for part in np.split(np.arange(len(chains)), np.unique(cuts)):
                if len(part):
                    yield chains.take(part)

    def _way(self, job: Job) -> Callable[[Any, Chance, int], Made]:
        """What makes rows of a batch of a job."""
        if job.shard is None:
            return partial(self._of_items, job.task)
        if job.task in self.texts:
            return partial(self._of_windows, job.task)
        return partial(self._of_rows, job.task)

    def _of_items(self, task: str, items: range, chance: Chance, seed: int) -> Made:
        examples = self.builder.some(task, "train", items)
        chosen = [examples[place] for place in chance(len(examples))]
        rows = tokenise_examples(self.tokenizer, chosen, self.config.max_prompt_length, seed)
        return FlatRows.of(rows, bool(self.config.teacher)), rows.cut, rows.cut_completions

    def _of_rows(self, task: str, chains: Chains, chance: Chance, seed: int) -> Made:
        parts, numbers = [], [np.zeros(0, np.int64)]
        for split, start in self.numbered.items():
            found, rows = chains.split_rows(split, self.stored.max_history, self.stored.together)
            numbers.append(found + start)
            parts.append(rows)
        taken = joined(parts)
        if not len(taken):
            return FlatRows.of(tokenise_examples(self.tokenizer, [], 0), bool(self.config.teacher)), 0, 0
        builder = copy.copy(self.builder)
        builder.corpus = replace(self.builder.corpus, train=taken)
        examples = builder.some(task, "train")
        chosen = chance(len(examples))
        made = tokenise_examples(
            self.tokenizer, [examples[place] for place in chosen], self.config.max_prompt_length, seed
        )
        if task == NEXT_SID:
            weights = self.recency(np.concatenate(numbers)[chosen])
            with_histories(made, builder, taken.take(chosen).histories, weights)
        return FlatRows.of(made, bool(self.config.teacher)), made.cut, made.cut_completions

    def _of_windows(self, task: str, chains: Chains, chance: Chance, seed: int) -> Made:
        windows = flat_windows(chains, self.stored.max_history, self.stored.together, self.numbered)
        if self.config.variants:
            each = list(windows.each(self.stored.together))
            windows = FlatWindows.of([*each, *varied_windows(each, self.config.variants, seed)])
        taken = windows.take(chance(len(windows)))
        teacher = bool(self.config.teacher)
        return window_rows(self.texts[task], taken, self.recency, teacher, task == NEXT_SID), 0, 0


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
    jobs = plan_jobs(stored.files, config.tasks, folder)
    maker = RowMaker(tokenizer, builder, stored, config, splits)
    for job in jobs[process_rank() :: world_size()]:
        maker.write(job)
    # A barrier would give up where a shard takes longer than its patience.
    while not all(are_finished(job.place) for job in jobs):
        time.sleep(_LOOK_AGAIN)
    wait_for_everyone()
    parts: list[Part] = []
    counts = dict.fromkeys(config.tasks, 0)
    for job in jobs:
        part = Part.open(job.place)
        parts += [part] * job.times
        counts[job.task] += job.times * part.tally.rows
    for task, count in counts.items():
        if not count:
            raise DataError(f"task {task!r} has no example: no item has the text it needs. Leave the task out.")
    return DiskRows(parts, counts, sum(texts.cut for texts in maker.texts.values()))
