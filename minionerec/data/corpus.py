"""The corpus: the one form in which every later stage sees items and interactions."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minionerec.core.artefacts import open_artefact, write_artefact
from minionerec.core.errors import ArtefactError, DataError
from minionerec.core.log import get_logger
from minionerec.core.parquet import read_parquet
from minionerec.data.chains import Chains, chain_examples, concatenated
from minionerec.data.names import ITEM_COLUMNS, SPLITS
from minionerec.data.rows import SplitExamples, joined
from minionerec.data.shards import FOLDER, REMEDY, has_times, read_shard, shard_files, write_shards
from minionerec.data.windows import FlatWindows, flat_windows, row_windows, window_bounds

logger = get_logger(__name__)

ROWS_IN_MEMORY = 1 << 22
"""A corpus of more training examples is read from its files a row group at a time, wherever that is possible."""


def id_ranks(item_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Rank of each item in the order of ids as text, and as numbers where all are digits; equal numbers share one."""
    orders: dict[str, list[Any]] = {"text": list(item_ids)}
    if item_ids and all(one.isascii() and one.isdigit() for one in item_ids):
        plain = [one.lstrip("0") for one in item_ids]
        orders["number"] = [(len(digits), digits) for digits in plain]
    ranks = {}
    for name, keys in orders.items():
        number = {key: position for position, key in enumerate(sorted(set(keys)))}
        ranks[name] = np.array([number[key] for key in keys], dtype=np.int32)
    return ranks


@dataclass(frozen=True)
class Corpus:
    """Items and the examples of three splits; row i of `items` is item index i everywhere.

    A corpus is opened by `load`. A small one is read whole; one of more than `ROWS_IN_MEMORY` training examples stays
    in its files: `batches` and `windows` read it a row group at a time, `chosen` and `sample` pick some examples, and
    an attribute `train`, `valid` or `test` reads a whole split at first access.

    Attributes:
        items: Columns `item_id` (str, unique), `title` (str), `description` (str, "" where there is none), and the
            further ones of the source's items table, as texts (None where there is none).
        train: Examples in the order of the source, with times in all three splits or in none; single ones may be
            unknown, and of the published data with a file of times those of most training examples are.
        valid: Like `train`.
        test: Like `train`.
        split: Name of the split for result tables, e.g. "global time 8:1:1".
        max_history: Most items that a history holds.
        counts: Counts of the manifest.
        files: The files of sequences that it was read from; none where it was made in memory.
        in_files: Whether the examples stay there.
        leaves_two_out: Whether the last two items of each user are its targets of valid and test, and training examples
            need not have all others: windows are then taken from all of them, which are the histories of `valid`.
    """

    items: pd.DataFrame
    train: SplitExamples
    valid: SplitExamples
    test: SplitExamples
    split: str
    max_history: int
    counts: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()
    in_files: bool = False
    leaves_two_out: bool = False

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Corpus":
        """Open a corpus artefact.

        Raises:
            ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or
                cannot be read.
        """
        folder = Path(path)
        counts, items = _open(folder)
        corpus = cls(
            items,
            *(None, None, None),  # type: ignore[arg-type]
            split=counts["split"],
            max_history=counts["max_history"],
            counts=counts,
            files=sequence_files(folder),
            in_files=True,
        )
        if corpus.sizes["train"] > ROWS_IN_MEMORY:
            logger.info("%s has %s training examples: they stay in its files.", path, f"{corpus.sizes['train']:,}")
            return corpus
        train, valid, test = corpus._read()
        return replace(corpus, train=train, valid=valid, test=test, in_files=False)

    def _read(self) -> list[SplitExamples]:
        """The examples of all splits, in their own order.

        Raises:
            ArtefactError: If one is missing, or there twice.
        """
        chains = concatenated(list(self.chains()))
        found = []
        for split in SPLITS:
            numbers, rows = chains.split_examples(split, self.max_history, self.together)
            order = np.full(len(rows), -1, dtype=np.int64)
            inside = numbers < len(rows)
            order[numbers[inside]] = np.flatnonzero(inside)
            if (order < 0).any():
                missing = int(np.flatnonzero(order < 0)[0])
                names = " to ".join(dict.fromkeys(file.name for file in (self.files[0], self.files[-1])))
                raise ArtefactError(
                    f"{self._folder}: {split} example {missing} is in none of its files, {FOLDER}/{names}. {REMEDY}"
                )
            found.append(rows.take(order))
        return found

    @property
    def _folder(self) -> Path:
        """The folder of its files."""
        return self.files[0].parent.parent

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return len(self.items)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Split → number of its examples, which are counted by reading them where the manifest does not say."""
        if not self.in_files:
            return {split: len(rows) for split, rows in self.splits().items()}
        names = {split: f"{split}_rows" for split in SPLITS}
        if all(type(self.counts.get(name)) is int for name in names.values()):
            return {split: int(self.counts[name]) for split, name in names.items()}
        found = np.zeros(len(SPLITS) + 1, dtype=np.int64)
        for part in self.chains():
            found += np.bincount(part.splits + 1, minlength=len(found))
        return dict(zip(SPLITS, found[1:].tolist(), strict=True))

    @property
    def together(self) -> bool:
        """Whether items with one timestamp are one step, so that several examples of a user may share their history."""
        return self.counts.get("ties") == "together"

    @property
    def partly_targets(self) -> bool:
        """Whether items after a user's first need not be targets: with ties together, or where events are chosen."""
        return self.together or bool(self.counts.get("targets"))

    @property
    def has_times(self) -> bool:
        """Whether the examples of all splits have times, of which single ones may be unknown (`NO_TIME`)."""
        if self.in_files:
            return has_times(self.files[0])
        return all(rows.times is not None for rows in self.splits().values())

    def knows_contexts(self, split: str) -> bool:
        """Whether both times of any example of a split are known, and so its session context."""
        return self.has_times and any(
            rows.times is not None and bool(rows.times.known.any()) for _, rows in self.batches(split)
        )

    def splits(self) -> dict[str, SplitExamples]:
        """Split to its examples, which may be none (`rows` refuses that)."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def rows(self, split: str) -> SplitExamples:
        """All examples of one split, in their order.

        Raises:
            DataError: If the split is unknown or holds no example.
        """
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}.")
        if not self.sizes[split]:
            raise DataError(
                f"split {split!r} holds no example. Check the split's proportions and the source's {split} file."
            )
        rows: SplitExamples = getattr(self, split)
        return rows

    def batches(self, split: str) -> Iterator[tuple[np.ndarray, SplitExamples]]:
        """The examples of one split, some at a time: int64 numbers of examples, and the examples.

        In memory they come at once and in their order; from files a row group at a time, in file order.

        Raises:
            DataError: If the split is unknown.
            ArtefactError: If a file cannot be read.
        """
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}.")
        if not self.in_files:
            rows: SplitExamples = getattr(self, split)
            if len(rows):
                yield np.arange(len(rows)), rows
            return
        for part in self.chains():
            numbers, rows = part.split_examples(split, self.max_history, self.together)
            if len(rows):
                yield numbers, rows

    def windows(self, split: str, width: int = 0) -> Iterator[FlatWindows]:
        """The examples of one split as windows of at most `max_history` + 1 items, each target exactly once.

        In memory they come at once, in the order of each user's first example; from files a row group at a time.

        Args:
            split: Which examples.
            width: Most items of a history, older ones than `max_history` among them; `max_history` if 0.
        """
        width = width or self.max_history
        if self.in_files:
            for part in self.chains():
                yield flat_windows(part, width, self.together, {split: 0})
        elif self.leaves_two_out and split == "train":
            whole = self.valid
            bounds = window_bounds(whole.begins, whole.ends, np.ones_like(whole.begins), width)
            yield FlatWindows(whole.items, np.full(len(whole.items), -1), *bounds)
        elif self.sizes[split]:
            rows: SplitExamples = getattr(self, split)
            rows = replace(rows, begins=np.maximum(rows.firsts, rows.ends - width))
            found, sequences = row_windows(rows, width)
            if self.together:
                logger.info(
                    "Items with one timestamp are not in each other's history: %s of %s %s examples begin a window in "
                    "which the user's previous example is no target.",
                    f"{sequences - len(np.unique(rows.user_numbers)):,}",
                    f"{len(rows):,}",
                    split,
                )
            yield found

    def chosen(self, split: str, numbers: np.ndarray) -> SplitExamples:
        """Some examples of one split, in the order of `numbers`, int (R,), none twice.

        Raises:
            DataError: If the split is unknown, or has no such examples.
            ArtefactError: If a file cannot be read, or does not match the manifest's counts.
        """
        size, numbers = self.sizes.get(split, 0), np.asarray(numbers)
        if not len(numbers) and not size:
            return SplitExamples.none(self.has_times)
        order = np.argsort(numbers, kind="stable")
        wanted = numbers[order]
        if not len(wanted) or wanted[0] < 0 or wanted[-1] >= size:
            raise DataError(f"split {split!r} has examples 0 to {size - 1}; others were requested.")
        if not self.in_files:
            return self.splits()[split].take(numbers)
        parts, positions = [], []
        for found, rows in self.batches(split):
            at = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
            own = np.flatnonzero(wanted[at] == found)
            if len(own):
                parts.append(rows.take(own).compact())
                positions.append(order[at[own]])
        position = np.concatenate([np.zeros(0, np.int64), *positions])
        if len(position) != len(wanted):
            raise ArtefactError(f"{self._folder}: holds {len(position)} of {len(wanted)} {split} examples. {REMEDY}")
        return joined(parts).take(np.argsort(position, kind="stable"))

    def sample(self, split: str, count: int, seed: int) -> SplitExamples:
        """A fixed random sample of the examples of one split, in their own order; all where there are no more.

        Args:
            split: Which examples.
            count: How many; -1 for all.
            seed: Seed of the sample.
        """
        numbers = self.sample_numbers(split, count, seed)
        whole = len(numbers) == self.sizes[split] and not self.in_files
        return self.splits()[split] if whole else self.chosen(split, numbers)

    def sample_numbers(self, split: str, count: int, seed: int) -> np.ndarray:
        """The numbers of the examples of `sample`: int64 (R,), ascending."""
        size = self.sizes[split]
        if count < 0 or count >= size:
            return np.arange(size)
        return np.sort(np.random.default_rng(seed).choice(size, count, replace=False, shuffle=False))

    @cached_property
    def id_positions(self) -> np.ndarray:
        """Position of each item in the order of ids, which does not depend on how items are numbered: int64 (N,).

        Ids are ordered as numbers where all are digits, else as text. Of items that are otherwise equal, the one whose
        id comes first is listed first.
        """
        found = np.empty(self.n_items, dtype=np.int64)
        found[np.lexsort(list(id_ranks(self.items["item_id"].tolist()).values()))] = np.arange(self.n_items)
        return found

    def popularity(self) -> np.ndarray:
        """How often each item is the target of a training example: int64 (N,)."""
        return self._popularity.copy()

    @cached_property
    def _popularity(self) -> np.ndarray:
        counts = np.zeros(self.n_items, dtype=np.int64)
        for _, rows in self.batches("train"):
            counts += np.bincount(rows.targets, minlength=self.n_items)
        return counts

    def only_items(self) -> "Corpus":
        """The same corpus without an example: for stages that read only items."""
        none = SplitExamples.none()
        return replace(self, train=none, valid=none, test=none, files=(), in_files=False)

    def training_on(self, splits: Iterable[str]) -> "Corpus":
        """The same corpus with the examples of other splits as training examples too, after its own.

        Each user's examples keep their order where the split goes by time.

        Args:
            splits: The splits; train is always among them.
        """
        names = {"train", *splits}
        if names == {"train"}:
            return self
        every = joined([rows for name, rows in self.splits().items() if name in names and len(rows)])
        return replace(self, train=every, files=(), in_files=False)

    def all_counts(self) -> dict[str, Any]:
        """The counts with `items`, `split` and `max_history`, as the manifest keeps them and `load` reads them."""
        return {**self.counts, "items": self.n_items, "split": self.split, "max_history": self.max_history}

    def chains(self) -> Iterator[Chains]:
        """All examples as users' sequences: a row group at a time, or in the order of each user's first example.

        Raises:
            DataError: If a history is longer than `max_history`.
            ArtefactError: If a file cannot be read.
        """
        if not self.in_files:
            yield chain_examples(self.splits(), self.max_history, self.together)
        for file in self.files if self.in_files else ():
            yield from read_shard(file, self.n_items)

    def write(self, folder: Path) -> None:
        """Write the files of a corpus into a directory."""
        write_corpus(folder, self.items, concatenated(list(self.chains())))

    def save(self, path: str | os.PathLike[str], *, config: Any, inputs: Mapping[str, str | os.PathLike[str]]) -> None:
        """Write the corpus as an artefact of kind "corpus"."""
        with write_artefact(path, "corpus", config=config, inputs=inputs, counts=self.all_counts()) as folder:
            self.write(folder)


def _examples(split: str) -> property:
    """The examples of one split, as an attribute of a corpus: read from its files at first access."""

    def keep(corpus: Corpus, examples: SplitExamples | None) -> None:
        vars(corpus)[split] = examples

    def kept(corpus: Corpus) -> SplitExamples:
        if vars(corpus)[split] is None:
            keep(corpus, corpus.chosen(split, np.arange(corpus.sizes[split])))
        found: SplitExamples = vars(corpus)[split]
        return found

    return property(kept, keep)


for _split in SPLITS:
    setattr(Corpus, _split, _examples(_split))


def _open(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Check a corpus artefact and read its items: the manifest's counts, and the item table of `Corpus`.

    Raises:
        ArtefactError: See `Corpus.load`.
    """
    counts = open_artefact(path, "corpus", strangers=(".parquet",))["counts"]
    numbers = counts.get("max_history"), counts.get("truncated_histories", 0)
    if not isinstance(counts.get("split"), str) or any(type(number) is not int for number in numbers):
        raise ArtefactError(f"{path}: its manifest lacks the counts of a corpus. {REMEDY}")
    items = read_parquet(path / "items.parquet", dict.fromkeys(ITEM_COLUMNS, "text"), remedy=REMEDY)
    for name in items.columns:
        if not isinstance(items[name].dtype, pd.StringDtype):
            raise ArtefactError(f"{path / 'items.parquet'}: column {name!r} holds no texts. {REMEDY}")
    return counts, items


def write_corpus(folder: Path, items: pd.DataFrame, chains: Chains) -> None:
    """Write the files of a corpus: the item table of `Corpus`, and sequences, which may come in any order."""
    write_items(folder, items)
    write_shards(folder, chains)


def write_items(folder: Path, items: pd.DataFrame) -> None:
    """Write the item table of a corpus."""
    items.to_parquet(folder / "items.parquet", index=False)


def sequence_files(folder: Path) -> list[Path]:
    """The files of sequences of a corpus.

    Raises:
        ArtefactError: If there is none, or some have times and some have none.
    """
    files = shard_files(folder)
    if not files:
        raise ArtefactError(f"{folder}: holds no sequences; it may be of an earlier version. {REMEDY}")
    if len({has_times(file) for file in files}) > 1:
        raise ArtefactError(f"{folder}: some files of its sequences have times, and some have none. {REMEDY}")
    return files
