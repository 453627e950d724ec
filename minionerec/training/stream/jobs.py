"""What rows are made of a corpus that stays on disk, written once into files: a task and a shard at a time.

The processes of a launch share the shards. Each file remembers how far it is: a run that was killed goes on with the
next few thousand interactions, and ends with the same rows.
"""

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minionerec.core.errors import DataError
from minionerec.core.processes import process_rank, wait_for_everyone, world_size
from minionerec.data.chains import Chains
from minionerec.data.columns import Columns, ColumnWriter, are_finished, open_columns
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitRows, joined
from minionerec.data.shards import read_shard
from minionerec.models.prompts.examples import ITEM_TASKS, ExampleBuilder

_AT_ONCE = 16_384  # interactions, or items, that are tokenised before the next commit
_LOOK_AGAIN = 0.2  # seconds
_SALT = 0x5EED


@dataclass(frozen=True)
class WriterTask:
    """Rows that one process writes.

    Attributes:
        task: Of which task.
        number: Number of the job, part of its seeds.
        shard: File of sequences; None for a task about items.
        share: Which part of the examples, drawn by chance.
        times: How often an epoch sees each.
        place: Folder of the rows.
        most: Tokens that its rows may have; None for any number.
    """

    task: str
    number: int
    shard: Path | None
    share: float
    times: int
    place: Path
    most: int | None = None


def plan_jobs(files: Sequence[Path], tasks: Mapping[str, float], folder: Path, most: int = 0) -> list[WriterTask]:
    """What there is to write: of each task and shard all examples where the weight is 1 or more, and a random rest.

    Args:
        files: The shards.
        tasks: Task to its weight; of one task of weight 1 alone where `most` is given.
        folder: Where the rows lie.
        most: Tokens that all rows may have, of each shard as many; 0 for any number.
    """
    jobs: list[WriterTask] = []
    for task, weight in tasks.items():
        shards: Sequence[Path | None] = [None] if task in ITEM_TASKS else files
        for share, times, name in ((1.0, int(weight), "all"), (weight - int(weight), 1, "some")):
            for number, shard in enumerate(shards if share and times else ()):
                place = folder / f"{task}-{name}-{number:05d}"
                own = most // len(shards) + (number < most % len(shards)) if most else None
                jobs.append(WriterTask(task, len(jobs), shard, share, times, place, own))
    return jobs


@dataclass
class Chance:
    """Draws a share of examples, batch by batch, so that of all of them it is that share up to one.

    Attributes:
        share: The share.
        seen: How many examples there were before.
        seed: Seed of this batch.
        left: Tokens that may still be written; None for any number.
        full: Whether some row was left out because it has more than that.
    """

    share: float
    seen: int
    seed: Sequence[int]
    left: int | None = None
    full: bool = False

    def __call__(self, count: int) -> np.ndarray:
        """Which of the next `count` examples: int64, ascending."""
        if self.share == 1:
            return np.arange(count)
        before, self.seen = self.seen, self.seen + count
        drawn = round(self.share * self.seen) - round(self.share * before)
        return np.sort(np.random.default_rng(list(self.seed)).permutation(count)[:drawn])

    def fitting(self, tokens: np.ndarray) -> int:
        """How many of the next rows are written, of int (R,) tokens each: those before the first that is too much."""
        if self.left is None:
            return len(tokens)
        fit = int(np.searchsorted(np.cumsum(tokens), self.left, side="right"))
        self.full = fit < len(tokens)
        return fit


class Writable(Protocol):
    """Rows that know how they are written."""

    def write(self, writer: ColumnWriter) -> None:
        """Add them to columns."""


Made = tuple[Writable, Mapping[str, int]]
"""Rows, and what is counted of them: `rows` among it."""


@dataclass(frozen=True)
class Written:
    """Rows of one job.

    Attributes:
        job: The job.
        arrays: Their columns.
        tally: What was counted of them.
    """

    job: WriterTask
    arrays: Mapping[str, np.ndarray]
    tally: Mapping[str, int]

    @classmethod
    def open(cls, job: WriterTask) -> "Written":
        """Open what was finished.

        Raises:
            ArtefactError: If it was not, or is damaged.
        """
        columns: Columns = open_columns(job.place)
        return cls(job, columns.arrays, columns.state["tally"])


def write_jobs(
    jobs: Sequence[WriterTask],
    stored: Corpus,
    kinds: Mapping[str, str],
    seed: int,
    make: Callable[[WriterTask, Any, Chance, int], Made],
) -> list[Written]:
    """Write the rows of all jobs, each process its share, and open them when all are written.

    Args:
        jobs: The jobs.
        stored: The corpus.
        kinds: Columns of the rows.
        seed: Seed of all that is drawn.
        make: Makes rows of a job's batch of sequences or range of items, with the draw of its share and a seed.

    Raises:
        DataError: If a task has no example.
        ArtefactError: If a file of the corpus cannot be read, or one of the rows is damaged.
    """
    for job in jobs[process_rank() :: world_size()]:
        if not are_finished(job.place):
            _write(job, stored, kinds, seed, make)
    # A barrier would give up where a shard takes longer than its patience.
    while not all(are_finished(job.place) for job in jobs):
        time.sleep(_LOOK_AGAIN)
    wait_for_everyone()
    written = [Written.open(job) for job in jobs]
    for task, count in count_tasks(written).items():
        if not count and any(part.job.most is not None for part in written):
            raise DataError(f"task {task!r}: max_tokens has no room for a single row. Give more tokens.")
        if not count:
            raise DataError(f"task {task!r} has no example: no item has the text it needs. Leave the task out.")
    return written


def count_tasks(written: Sequence[Written]) -> dict[str, int]:
    """Task → number of rows of an epoch."""
    counts: dict[str, int] = {}
    for part in written:
        counts[part.job.task] = counts.get(part.job.task, 0) + part.job.times * part.tally["rows"]
    return counts


def _write(
    job: WriterTask,
    stored: Corpus,
    kinds: Mapping[str, str],
    seed: int,
    make: Callable[[WriterTask, Any, Chance, int], Made],
) -> None:
    """Write the rows of a job, from where an earlier run was."""
    with ColumnWriter(job.place, kinds) as writer:
        tally = Counter(writer.state.get("tally", {"rows": 0}))
        done, seen = int(writer.state.get("batches", 0)), int(writer.state.get("seen", 0))
        full = bool(writer.state.get("full", False))
        for number, batch in enumerate(_batches(job, stored, seed)):
            if full:
                break
            if number < done:
                continue
            seeds = [seed, _SALT, job.number, number]
            chance = Chance(job.share, seen, seeds, None if job.most is None else job.most - tally["tokens"])
            rows, counted = make(job, batch, chance, int(np.random.SeedSequence(seeds).generate_state(1)[0]))
            rows.write(writer)
            tally.update(counted)
            seen, full = chance.seen, chance.full
            told = {"full": True} if full else {}
            writer.commit({"batches": number + 1, "seen": seen, "tally": dict(tally), **told})
        writer.commit({**writer.state, "tally": dict(tally)})
        writer.finish()


def _batches(job: WriterTask, stored: Corpus, seed: int) -> Iterator[Any]:
    """Sequences of a job's shard, or ranges of items, a few thousand at a time.

    Where not all are wanted, row groups come in a random order: neighbours in a file have similar names.
    """
    if job.shard is None:
        for start in range(0, stored.n_items, _AT_ONCE):
            yield range(start, min(start + _AT_ONCE, stored.n_items))
        return
    order = None if job.most is None else [seed, _SALT, job.number]
    for chains in read_shard(job.shard, stored.n_items, order):
        cuts = np.searchsorted(chains.offsets, np.arange(_AT_ONCE, chains.offsets[-1], _AT_ONCE))
        for part in np.split(np.arange(len(chains)), np.unique(cuts)):
            if len(part):
                yield chains.take(part)


def rows_of(chains: Chains, stored: Corpus, numbered: Mapping[str, int]) -> tuple[np.ndarray, SplitRows]:
    """The rows of some splits: their numbers, int64 (R,), counted through all those splits, and the rows.

    Args:
        chains: Sequences.
        stored: Their corpus.
        numbered: Split → what its rows are numbered from.
    """
    parts, numbers = [], []
    for split, start in numbered.items():
        found, rows = chains.split_rows(split, stored.max_history, stored.together)
        numbers.append(found + start)
        parts.append(rows)
    return np.concatenate(numbers), joined(parts)


def builder_of(builder: ExampleBuilder, rows: SplitRows) -> ExampleBuilder:
    """The same builder, of a corpus with these training rows."""
    own = copy.copy(builder)
    own.corpus = replace(builder.corpus, train=rows)
    return own
