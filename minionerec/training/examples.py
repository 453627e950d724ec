"""Training examples in files: written once, mapped as a data set, and read in an order that follows from the seed.

A small corpus gives one part a task, its examples in the corpus's order. One that stays in its files gives a part a
task and shard, and the processes of a launch share the parts. Each part remembers how far it is: a run that was killed
continues with the next few thousand examples, and ends with the same ones.

    ExampleMaker   corpus ─▶ lists of numbers, a batch at a time      a subclass defines the columns
    write_examples ─▶ flat columns of each part (`minionerec.data.columns`)
    read_examples  ─▶ `datasets.Dataset` over the mapped columns      nothing is copied
"""

import copy
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable

from minionerec.core.errors import DataError
from minionerec.core.processes import process_rank, wait_for_everyone, world_size
from minionerec.data.chains import Chains
from minionerec.data.columns import ColumnWriter, are_finished, open_columns
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples, joined
from minionerec.data.shards import read_shard
from minionerec.models.prompts.examples import ITEM_TASKS, ExampleBuilder

_AT_ONCE = 16_384  # examples, or interactions, that are made before the next commit
_LOOK_AGAIN = 0.2  # seconds
_SALT = 0x5EED
_ENDS = "_offsets"


Ragged = tuple[np.ndarray, np.ndarray]
"""Lists of numbers: one after another, (T,) of one dtype, and how many each has, int64 (R,)."""
Columns = Mapping[str, Ragged | np.ndarray]
"""Some examples: name to a list each, or a number each."""


def ragged(lists: Sequence[Sequence[float]], dtype: Any = np.int32) -> Ragged:
    """Lists one after another, and their lengths."""
    lengths = np.array([len(part) for part in lists], dtype=np.int64)
    return np.fromiter((number for part in lists for number in part), dtype, int(lengths.sum())), lengths


@dataclass(frozen=True)
class ExamplePart:
    """Examples that one process makes.

    Attributes:
        task: Of which task.
        number: Number of the part, of which its seeds are made.
        shard: File of sequences; None for a task about items, and for a whole task.
        share: Which part of the examples, drawn by chance; of a whole task its weight.
        times: How often an epoch sees each.
        folder: Folder of the columns.
        most: Tokens that its examples may have; None for any number.
        whole: Whether it is all of a task, of a corpus in memory.
    """

    task: str
    number: int
    shard: Path | None
    share: float
    times: int
    folder: Path
    most: int | None = None
    whole: bool = False


def plan_parts(files: Sequence[Path], tasks: Mapping[str, float], folder: Path, most: int = 0) -> list[ExamplePart]:
    """The parts to make: of each task one; of each task and shard all examples as often as its weight, and some more.

    Args:
        files: The shards; none for a corpus in memory.
        tasks: Task to its weight; of one task of weight 1 alone where `most` is given.
        folder: Folder of the examples.
        most: Tokens that all examples may have, of each shard as many; 0 for any number.
    """
    parts: list[ExamplePart] = []
    for task, weight in tasks.items():
        if not files:
            parts.append(ExamplePart(task, len(parts), None, weight, 1, folder / task, whole=True))
            continue
        shards: Sequence[Path | None] = [None] if task in ITEM_TASKS else files
        for share, times, name in ((1.0, int(weight), "all"), (weight - int(weight), 1, "some")):
            for number, shard in enumerate(shards if share and times else ()):
                path = folder / f"{task}-{name}-{number:05d}"
                own = most // len(shards) + (number < most % len(shards)) if most else None
                parts.append(ExamplePart(task, len(parts), shard, share, times, path, own))
    return parts


@dataclass
class Chance:
    """Draws a share of examples, batch by batch, so that of all of them it is that share up to one.

    Attributes:
        share: The share.
        seen: How many examples there were before.
        seed: Seed of this batch.
        left: Tokens that may still be written; None for any number.
        full: Whether some example was left out because it has more than that.
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
        """How many of the next examples are written, of int (R,) tokens each: all before the first that is too much."""
        if self.left is None:
            return len(tokens)
        fit = int(np.searchsorted(np.cumsum(tokens), self.left, side="right"))
        self.full = fit < len(tokens)
        return fit


@dataclass(frozen=True)
class TaskExamples:
    """Examples of one task to be made.

    Attributes:
        task: The task.
        items: Item indices, int64 (R,), of a task about items; else None.
        rows: The examples of the corpus; None of a task about items.
        numbers: int64 (R,), their numbers, counted through all splits that are trained on.
        seed: Seed of what else is drawn.
        positions: int64 (R,), which they are of the `count` that `seed` is drawn for.
        count: See `positions`.
    """

    task: str
    items: np.ndarray | None
    rows: SplitExamples | None
    numbers: np.ndarray
    seed: int
    positions: np.ndarray
    count: int

    def builder(self, builder: ExampleBuilder) -> ExampleBuilder:
        """The same builder, of a corpus with these as its training examples."""
        if self.rows is None:
            return builder
        own = copy.copy(builder)
        own.corpus = replace(builder.corpus, train=self.rows, files=(), in_files=False)
        return own


def choose_examples(count: int, weight: float, seed: int) -> np.ndarray:
    """Which of a task's examples an epoch sees, for a task weight: each floor(weight) times, and a random rest.

    Returns:
        int64 indices, ascending.

    Example:
        >>> choose_examples(4, 1.0, 0).tolist(), len(choose_examples(4, 2.5, 0))
        ([0, 1, 2, 3], 10)
    """
    whole = np.tile(np.arange(count), int(weight))
    rest = round((weight - int(weight)) * count)
    drawn = np.random.default_rng(seed).permutation(count)[:rest]
    return np.sort(np.concatenate([whole, drawn]))


class ExampleMaker(ABC):
    """Makes the training examples of a corpus, some at a time.

    Args:
        builder: Makes prompts and completions. Of a corpus whose examples are read from files its own corpus has the
            items and no training example.
        corpus: The corpus.
        tasks: Task to its weight.
        splits: Splits whose examples are trained on.
        seed: Seed of all that is drawn.
        by_shard: Whether examples are read from the corpus's files.
    """

    lists: ClassVar[Mapping[str, str]]
    """Name to dtype of what an example has a list of."""
    scalars: ClassVar[Mapping[str, str]] = {}
    """Name to dtype of what an example has one of."""

    def __init__(
        self,
        builder: ExampleBuilder,
        corpus: Corpus,
        tasks: Mapping[str, float],
        seed: int,
        splits: Sequence[str] = ("train",),
        *,
        by_shard: bool = False,
    ):
        self.builder, self.corpus, self.tasks, self.seed, self.by_shard = builder, corpus, tasks, seed, by_shard
        before = np.cumsum([0, *(corpus.sizes[split] for split in splits)]).tolist()
        self.numbered, self.count = dict(zip(splits, before, strict=False)), before[-1]
        self._positions: dict[str, np.ndarray] = {}

    @abstractmethod
    def examples(self, requested: TaskExamples) -> tuple[Columns, Mapping[str, int]]:
        """The columns of some examples, and what is counted of them: `rows` among it."""

    def whole_count(self, task: str) -> int:
        """Number of examples of a task, of a corpus in memory."""
        return len(self._able_items(task)) if task in ITEM_TASKS else len(self._able_rows(task))

    def whole(self, task: str, positions: np.ndarray) -> tuple[Columns, Mapping[str, int]]:
        """Some examples of a task, by their indices among all that it has, of a corpus in memory."""
        count = self.whole_count(task)
        if task in ITEM_TASKS:
            items = self._able_items(task)[positions]
            return self.examples(TaskExamples(task, items, None, items, self.seed, positions, count))
        numbers = self._able_rows(task)[positions]
        rows = self.corpus.rows("train").take(numbers)
        return self.examples(TaskExamples(task, None, rows, numbers, self.seed, positions, count))

    def _able_items(self, task: str) -> np.ndarray:
        return np.flatnonzero(self.builder.answerable(task))

    def _able_rows(self, task: str) -> np.ndarray:
        return np.flatnonzero(self.builder.answerable(task)[self.corpus.rows("train").targets])

    def batches(self, part: ExamplePart) -> Iterator[Any]:
        """A few thousand examples at a time: indices of a whole task, ranges of items, or sequences of a shard.

        Where not all are wanted, row groups come in a random order: neighbours in a file have similar names.
        """
        if part.whole:
            if part.task not in self._positions:
                self._positions[part.task] = choose_examples(self.whole_count(part.task), part.share, self.seed)
            positions = self._positions[part.task]
            for start in range(0, len(positions), _AT_ONCE):
                yield positions[start : start + _AT_ONCE]
        elif part.shard is None:
            for start in range(0, self.corpus.n_items, _AT_ONCE):
                yield np.arange(start, min(start + _AT_ONCE, self.corpus.n_items))
        else:
            order = None if part.most is None else [self.seed, _SALT, part.number]
            for chains in read_shard(part.shard, self.corpus.n_items, order):
                borders = np.searchsorted(chains.offsets, np.arange(_AT_ONCE, chains.offsets[-1], _AT_ONCE))
                for some in np.split(np.arange(len(chains)), np.unique(borders)):
                    if len(some):
                        yield chains.take(some)

    def make(self, part: ExamplePart, batch: Any, chance: Chance, seed: int) -> tuple[Columns, Mapping[str, int]]:
        """The examples of one batch of a part."""
        if part.whole:
            return self.whole(part.task, batch)
        able = self.builder.answerable(part.task)
        if part.shard is None:
            known = batch[able[batch]]
            items = known[chance(len(known))]
            return self.examples(TaskExamples(part.task, items, None, items, seed, np.arange(len(items)), len(items)))
        numbers, rows = self.rows_of(batch)
        known = np.flatnonzero(able[rows.targets])
        chosen = known[chance(len(known))]
        positions = np.arange(len(chosen))
        return self.examples(
            TaskExamples(part.task, None, rows.take(chosen), numbers[chosen], seed, positions, len(chosen))
        )

    def rows_of(self, chains: Chains) -> tuple[np.ndarray, SplitExamples]:
        """The examples of sequences: their numbers, int64 (R,), counted through all splits, and the examples."""
        parts, numbers = [], []
        for split, start in self.numbered.items():
            found, rows = chains.split_examples(split, self.corpus.max_history, self.corpus.together)
            numbers.append(found + start)
            parts.append(rows)
        return np.concatenate(numbers), joined(parts)


@dataclass(frozen=True)
class TrainingSet:
    """All examples of a training.

    Attributes:
        parts: The parts.
        stored: Columns of each, mapped from files, and a state whose `tally` are their counts.
        lists: Columns with a list an example.
        scalars: Columns with one value an example.
        again: int64 (A,), examples that are repeated after all others, to fill up the last step.
    """

    parts: Sequence[ExamplePart]
    stored: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]
    lists: Sequence[str]
    scalars: Sequence[str]
    again: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @cached_property
    def rows(self) -> Dataset:
        """The examples, part after part; a part that is trained on twice is there twice."""
        tables = []
        for part, (arrays, state) in zip(self.parts, self.stored, strict=True):
            if state["tally"]["rows"]:
                tables += [self._table(arrays, state["tally"]["rows"])] * part.times
        whole = pa.concat_tables(tables, promote_options="default")
        for name in set(self.lists) - set(whole.column_names):
            whole = whole.append_column(name, pa.nulls(len(whole), pa.large_list(pa.int32())))
        if len(self.again):
            whole = pa.concat_tables([whole, whole.take(pa.array(self.again))])
        return Dataset(InMemoryTable(whole), fingerprint="training-examples")  # its own would read all of them

    def _table(self, arrays: Mapping[str, np.ndarray], rows: int) -> pa.Table:
        """One part as a table over the mapped arrays; lists that no example has are left out."""
        columns: dict[str, pa.Array] = {name: pa.array(arrays[name]) for name in self.scalars}
        for name in self.lists:
            offsets, values = arrays[name + _ENDS], pa.array(arrays[name])
            if not len(offsets):
                continue
            found = pa.LargeListArray.from_arrays(pa.array(offsets), values)
            if len(found) > rows:  # several lists an example
                outer = np.arange(rows + 1) * (len(found) // rows)
                found = pa.LargeListArray.from_arrays(pa.array(outer), found)
            columns[name] = found
        return pa.table(columns)

    def __len__(self) -> int:
        """Number of examples of an epoch, with those repeated."""
        return self.total("rows") + len(self.again)

    @property
    def counts(self) -> dict[str, int]:
        """Task → number of examples of an epoch, without those repeated."""
        counts: dict[str, int] = {}
        for part, (_, state) in zip(self.parts, self.stored, strict=True):
            counts[part.task] = counts.get(part.task, 0) + part.times * state["tally"]["rows"]
        return counts

    def longest(self, name: str) -> int:
        """Length of the longest list of a column; 0 where no example has one."""
        ends = [arrays[name + _ENDS] for arrays, _ in self.stored]
        return max((int(np.diff(offsets).max(initial=0)) for offsets in ends if len(offsets)), default=0)

    def described(self, noun: str) -> str:
        """Their number, and those of each task, as text."""
        tasks = ", ".join(f"{task} {count:,}" for task, count in self.counts.items())
        return f"{self.total('rows'):,} {noun} ({tasks})"

    def total(self, name: str) -> int:
        """Sums of the counts of all examples of an epoch, without those repeated."""
        stored = zip(self.parts, self.stored, strict=True)
        return sum(part.times * state["tally"].get(name, 0) for part, (_, state) in stored)


def training_set(maker: ExampleMaker, folder: Path, max_tokens: int = 0) -> TrainingSet:
    """The training examples of all tasks by their weights; made where they are not yet, each process its share.

    Every process of a launch must call this.

    Args:
        maker: Makes them.
        folder: Their folder, in that of the unfinished run.
        max_tokens: Tokens that they may have; 0 for any number.

    Raises:
        DataError: If a task has no example.
        ArtefactError: If a file of the corpus cannot be read, or one of the examples is damaged.
    """
    parts = plan_parts(maker.corpus.files if maker.by_shard else (), maker.tasks, folder, max_tokens)
    for part in parts[process_rank() :: world_size()]:
        if not are_finished(part.folder):
            _write(part, maker)
    # A barrier would give up where a part takes longer than its patience.
    while not all(are_finished(part.folder) for part in parts):
        time.sleep(_LOOK_AGAIN)
    found = TrainingSet(parts, [open_columns(part.folder) for part in parts], list(maker.lists), list(maker.scalars))
    wait_for_everyone()  # one that is refused from here on removes the folder
    for task, count in found.counts.items():
        if not count and max_tokens:
            raise DataError(f"task {task!r}: max_tokens has no room for a single window. Give more tokens.")
        if not count:
            raise DataError(f"task {task!r} has no example: no item has the text it needs. Leave the task out.")
    return found


def _write(part: ExamplePart, maker: ExampleMaker) -> None:
    """Write the examples of a part, from where an earlier run was."""
    kinds = {**maker.lists, **dict.fromkeys((name + _ENDS for name in maker.lists), "int64"), **maker.scalars}
    with ColumnWriter(part.folder, kinds) as writer:
        tally = Counter(writer.state.get("tally", {"rows": 0}))
        done, seen = int(writer.state.get("batches", 0)), int(writer.state.get("seen", 0))
        full = bool(writer.state.get("full", False))
        for number, batch in enumerate(maker.batches(part)):
            if full:
                break
            if number < done:
                continue
            seeds = [maker.seed, _SALT, part.number, number]
            chance = Chance(part.share, seen, seeds, None if part.most is None else part.most - tally["tokens"])
            columns, counted = maker.make(part, batch, chance, int(np.random.SeedSequence(seeds).generate_state(1)[0]))
            for name, values in columns.items():
                if isinstance(values, tuple):
                    numbers, lengths = values
                    if not writer.size(name + _ENDS):
                        writer.append(name + _ENDS, np.zeros(1, np.int64))
                    writer.append(name + _ENDS, writer.size(name) + np.cumsum(lengths))
                    writer.append(name, numbers)
                else:
                    writer.append(name, values)
            tally.update(counted)
            seen, full = chance.seen, chance.full
            filled = {"full": True} if full else {}
            writer.commit({"batches": number + 1, "seen": seen, "tally": dict(tally), **filled})
        writer.commit({**writer.state, "tally": dict(tally)})
        writer.finish()
