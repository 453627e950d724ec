"""Training examples in files: written once, mapped as a data set, and read in an order that follows from the seed.

Each task and block of the corpus gives a part, its examples in the corpus's order, and the processes of a launch share
the parts. Each part remembers how far it is: a run that was killed continues with the next few thousand examples, and
ends with the same ones.

    ExampleMaker   block ─▶ lists of numbers, some examples at a time   a subclass defines the columns
    write_examples ─▶ flat columns of each part (`minionerec.data.columns`)
    read_examples  ─▶ `datasets.Dataset` over the mapped columns      nothing is copied
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable

from minionerec.core.errors import DataError
from minionerec.core.processes import process_rank, wait_for_everyone, world_size
from minionerec.data.columns import ColumnWriter, are_finished, open_columns
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.models.prompts.examples import ITEM_TASKS, ExampleBuilder

_AT_ONCE = 16_384  # examples that are made before the next commit
_LOOK_AGAIN = 0.2  # seconds
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
        block: Number of the corpus's block; 0 for a task about items.
        folder: Folder of the columns.
    """

    task: str
    block: int
    folder: Path


def plan_parts(n_blocks: int, tasks: Iterable[str], folder: Path) -> list[ExamplePart]:
    """The parts to make: of each task about items one, of any other one for each of the corpus's blocks."""
    return [
        ExamplePart(task, block, folder / f"{task}-{block:05d}")
        for task in tasks
        for block in range(1 if task in ITEM_TASKS else n_blocks)
    ]


@dataclass(frozen=True)
class TaskExamples:
    """Examples of one task to be made.

    Attributes:
        task: The task.
        items: Item indices, int64 (R,), of a task about items; else None.
        rows: The examples of the corpus; None of a task about items.
        numbers: int64 (R,), their numbers in the corpus.
        seed: Seed of what else is drawn.
        positions: int64 (R,), which they are of the `count` that `seed` is drawn for.
        count: See `positions`.
    """

    task: str
    items: np.ndarray | None
    rows: SplitExamples | None
    numbers: np.ndarray
    seed: Sequence[int]
    positions: np.ndarray
    count: int


MadeColumns = tuple[Columns, Mapping[str, int]]
"""The columns of some examples, and what is counted of them: `rows` among it."""


def choose_examples(count: int, weight: float, seed: int | Sequence[int]) -> np.ndarray:
    """Which of a task's examples an epoch sees, int64, ascending: each floor(weight) times, and a random rest.

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
        builder: Makes prompts and completions.
        corpus: The corpus, read block by block.
        tasks: Task to its weight.
        seed: Seed of all that is drawn.
    """

    lists: ClassVar[Mapping[str, str]]
    """Name to dtype of what an example has a list of."""
    scalars: ClassVar[Mapping[str, str]] = {}
    """Name to dtype of what an example has one of."""
    why_none = "no item has the text it needs. Leave the task out."
    """Why a task may have no example."""

    def __init__(self, builder: ExampleBuilder, corpus: Corpus, tasks: Mapping[str, float], seed: int):
        self.builder, self.corpus, self.tasks, self.seed = builder, corpus, tasks, seed

    @abstractmethod
    def examples(self, requested: TaskExamples) -> MadeColumns:
        """Some examples of one task."""

    def opened(self, task: str, number: int = 0) -> tuple[np.ndarray, Callable[[np.ndarray], MadeColumns]]:
        """The examples of one task and block: which of them an epoch sees, int64, and what makes some of these.

        Args:
            task: The task.
            number: Number of the block; 0 for a task about items.
        """
        able, seed = self.builder.answerable(task), [self.seed, number]
        if task in ITEM_TASKS:
            rows, numbers, known = None, np.arange(len(able)), np.flatnonzero(able)
        else:
            self.corpus.check_filled("train")
            block = self.corpus.block(number)
            rows, numbers = block.rows["train"], block.numbers["train"]
            known = np.flatnonzero(able[rows.targets])

        def make(positions: np.ndarray) -> MadeColumns:
            chosen = known[positions]
            examples = None if rows is None else rows.take(chosen)
            items = chosen if rows is None else None
            return self.examples(TaskExamples(task, items, examples, numbers[chosen], seed, positions, len(known)))

        return choose_examples(len(known), self.tasks[task], seed), make


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
        """The examples, part after part."""
        tables = [
            self._table(arrays, state["tally"]["rows"]) for arrays, state in self.stored if state["tally"]["rows"]
        ]
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
            counts[part.task] = counts.get(part.task, 0) + state["tally"]["rows"]
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
        return sum(state["tally"].get(name, 0) for _, state in self.stored)


def training_set(maker: ExampleMaker, folder: Path) -> TrainingSet:
    """The training examples of all tasks by their weights; made where they are not yet, each process its share.

    Every process of a launch must call this. `folder` is in that of the unfinished run.

    Raises:
        DataError: If a task has no example.
        ArtefactError: If a file of the corpus cannot be read, or one of the examples is damaged.
    """
    parts = plan_parts(maker.corpus.n_blocks, maker.tasks, folder)
    for part in parts[process_rank() :: world_size()]:
        if not are_finished(part.folder):
            _write(part, maker)
    # A barrier would give up where a part takes longer than its patience.
    while not all(are_finished(part.folder) for part in parts):
        time.sleep(_LOOK_AGAIN)
    found = TrainingSet(parts, [open_columns(part.folder) for part in parts], list(maker.lists), list(maker.scalars))
    wait_for_everyone()  # one that is refused from here on removes the folder
    for task, count in found.counts.items():
        if not count:
            raise DataError(f"task {task!r} has no example: {maker.why_none}")
    return found


def _write(part: ExamplePart, maker: ExampleMaker) -> None:
    """Write the examples of a part, from where an earlier run was."""
    kinds = {**maker.lists, **dict.fromkeys((name + _ENDS for name in maker.lists), "int64"), **maker.scalars}
    with ColumnWriter(part.folder, kinds) as writer:
        tally = Counter(writer.state.get("tally", {"rows": 0}))
        done = int(writer.state.get("done", 0))
        positions, make = maker.opened(part.task, part.block)
        for start in range(done, len(positions), _AT_ONCE):
            some = positions[start : start + _AT_ONCE]
            columns, counted = make(some)
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
            writer.commit({"done": start + len(some), "tally": dict(tally)})
        writer.commit({**writer.state, "tally": dict(tally)})
        writer.finish()
