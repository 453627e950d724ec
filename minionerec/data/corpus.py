"""The corpus: the one form in which every later stage sees items and interactions."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
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
from minionerec.data.windows import FlatWindows, row_windows, window_bounds

logger = get_logger(__name__)

BLOCK = 1 << 22
"""Training examples of a block, about: a corpus of no more is one block, which is read whole."""


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
class Block:
    """Examples of some users of a corpus, all of them for each user.

    Attributes:
        rows: Split → the examples, in the order of their numbers.
        numbers: Split → int64 (R,), the number of each example in its split of the corpus, ascending.
        together: Whether items with one timestamp are one step.
    """

    rows: Mapping[str, SplitExamples]
    numbers: Mapping[str, np.ndarray]
    together: bool
    _windows: dict[tuple[str, int], FlatWindows] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        files: Sequence[Path],
        n_items: int,
        max_history: int,
        together: bool,
        contexts: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> "Block":
        """Read files of sequences; `contexts` as of `minionerec.data.shards.read_shard`.

        Raises:
            ArtefactError: If one cannot be read.
        """
        chains = concatenated([part for file in files for part in read_shard(file, n_items, contexts)])
        rows, numbers = {}, {}
        for split in SPLITS:
            numbers[split], rows[split] = chains.split_examples(split, max_history, together)
        return cls(rows, numbers, together)

    def training_on(self, splits: Sequence[str], starts: Mapping[str, int]) -> "Block":
        """The same block with the examples of some splits, one split after another, as training examples.

        Args:
            splits: The splits.
            starts: Split → number of its first example among all training examples.
        """
        filled = [name for name in splits if len(self.rows[name])]
        if not filled:
            return self
        numbers = np.concatenate([self.numbers[name] + starts[name] for name in filled])
        every = joined([self.rows[name] for name in filled])
        return Block({**self.rows, "train": every}, {**self.numbers, "train": numbers}, self.together)

    def windows(self, split: str, max_history: int) -> FlatWindows:
        """The examples of one split as windows of at most `max_history` + 1 items, each target exactly once.

        They come in the order of each user's first example, and are kept.

        Args:
            split: Which examples.
            max_history: Most items of a history, older ones than those of the examples among them.
        """
        if (split, max_history) not in self._windows:
            rows = self.rows[split]
            rows = replace(rows, begins=np.maximum(rows.firsts, rows.ends - max_history))
            found, sequences = row_windows(rows, max_history)
            if self.together:
                logger.info(
                    "Items with one timestamp are not in each other's history: %s of %s %s examples begin a window in "
                    "which the user's previous example is no target.",
                    f"{sequences - len(np.unique(rows.user_numbers)):,}",
                    f"{len(rows):,}",
                    split,
                )
            numbers = np.append(self.numbers[split], -1)[found.rows]
            self._windows[split, max_history] = replace(found, rows=numbers)
        return self._windows[split, max_history]


@dataclass(frozen=True)
class Corpus:
    """Items and the examples of three splits; row i of `items` is item index i everywhere.

    Examples are read block by block (`blocks`, `batches`, `windows`, `chosen`, `sample`). A corpus made in memory, and
    one of at most `BLOCK` training examples, is one block; a larger one has several, of which one at a time is in
    memory. An attribute `train`, `valid` or `test` reads a whole split at first access.

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
        groups: Files of each block; none where the examples are in memory, as one block.
        trained: Splits whose examples of `groups` are its training examples.
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
    groups: Sequence[Sequence[Path]] = ()
    trained: Sequence[str] = ("train",)
    leaves_two_out: bool = False

    @classmethod
    def load(cls, path: str | os.PathLike[str], block: int = 0) -> "Corpus":
        """Open a corpus artefact.

        Args:
            path: Its folder.
            block: Training examples of a block, about; `BLOCK` if 0.

        Raises:
            ArtefactError: If `path` is not a finished corpus, or a file of it was changed since it was written, or
                cannot be read.
        """
        folder = Path(path)
        counts, items = _open(folder)
        files = sequence_files(folder)
        opened = cls(
            items,
            *(None, None, None),  # type: ignore[arg-type]
            split=counts["split"],
            max_history=counts["max_history"],
            counts=counts,
            files=files,
            groups=[files],
        )
        count = min(len(files), -(-opened.sizes["train"] // (block or BLOCK)))
        if count > 1:
            logger.info(
                "%s has %s training examples: %d blocks, read one after another.",
                path,
                f"{opened.sizes['train']:,}",
                count,
            )
            ends = [number * len(files) // count for number in range(count + 1)]
            return opened._of_files([files[start:end] for start, end in pairwise(ends)], opened.trained)
        (whole,) = opened.blocks()
        for split, numbers in whole.numbers.items():
            known = np.zeros(len(numbers), dtype=bool)
            known[numbers[numbers < len(numbers)]] = True
            if not known.all():
                names = " to ".join(dict.fromkeys(file.name for file in (files[0], files[-1])))
                raise ArtefactError(
                    f"{folder}: {split} example {int(np.flatnonzero(~known)[0])} is in none of its files, "
                    f"{FOLDER}/{names}. {REMEDY}"
                )
        train, valid, test = whole.rows.values()
        return replace(opened, train=train, valid=valid, test=test, groups=())

    def _of_files(self, groups: Sequence[Sequence[Path]], trained: Sequence[str]) -> "Corpus":
        """The same corpus with other blocks and training examples, of which none is read."""
        return Corpus(
            self.items,
            *(None, None, None),  # type: ignore[arg-type]
            split=self.split,
            max_history=self.max_history,
            counts=self.counts,
            files=self.files,
            groups=groups,
            trained=trained,
        )

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return max(1, len(self.groups))

    def block(self, number: int) -> Block:
        """One block, by its number from 0.

        Raises:
            ArtefactError: If a file cannot be read.
        """
        if not self.groups:
            return self._whole
        found = Block.read(self.groups[number], self.n_items, self.max_history, self.together, self.context_values)
        return found if len(self.trained) == 1 else found.training_on(self.trained, self._starts(self.trained))

    def blocks(self) -> Iterator[Block]:
        """All blocks, one after another.

        Raises:
            ArtefactError: If a file cannot be read.
        """
        return map(self.block, range(self.n_blocks))

    @cached_property
    def _whole(self) -> Block:
        """The only block of a corpus in memory."""
        numbers = {split: np.arange(len(rows)) for split, rows in self.splits().items()}
        return Block(self.splits(), numbers, self.together)

    def _starts(self, splits: Sequence[str]) -> dict[str, int]:
        """Split → number of its first example where the examples of some splits are numbered one after another."""
        sizes = self._stored_sizes if self.groups else self.sizes
        return dict(zip(splits, np.cumsum([0, *(sizes[name] for name in splits)]).tolist(), strict=False))

    @property
    def n_items(self) -> int:
        """Number of items, N."""
        return len(self.items)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Split → number of its examples, which are counted by reading them where the manifest does not say."""
        if not self.groups:
            return {split: len(rows) for split, rows in self.splits().items()}
        stored = self._stored_sizes
        return {**stored, "train": sum(stored[name] for name in self.trained)}

    @cached_property
    def _stored_sizes(self) -> dict[str, int]:
        """Split → number of its examples in the files."""
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
    def roles(self) -> dict[str, str]:
        """The role of each further column of the items (`minionerec.data.roles`)."""
        return dict(self.counts.get("roles", {}))

    @property
    def event_names(self) -> list[str]:
        """The events of interactions by number (`minionerec.data.rows.ItemEvents`); none where there are none."""
        return list(self.counts.get("event_names", ()))

    @property
    def context_values(self) -> dict[str, list[str]]:
        """The columns of interactions that are request features, and the names of their values by code from 1."""
        return dict(self.counts.get("context_values", {}))

    @property
    def has_times(self) -> bool:
        """Whether the examples of all splits have times, of which single ones may be unknown (`NO_TIME`)."""
        if self.groups:
            return has_times(self.files[0])
        return all(rows.times is not None for rows in self.splits().values())

    def splits(self) -> dict[str, SplitExamples]:
        """Split to its examples, which may be none (`rows` refuses that)."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def rows(self, split: str) -> SplitExamples:
        """All examples of one split, in their order.

        Raises:
            DataError: If the split is unknown or holds no example.
        """
        self.check_filled(split)
        rows: SplitExamples = getattr(self, split)
        return rows

    def check_filled(self, split: str) -> None:
        """Check that a split has examples.

        Raises:
            DataError: If the split is unknown or holds no example.
        """
        _check_split(split)
        if not self.sizes[split]:
            raise DataError(
                f"split {split!r} holds no example. Check the split's proportions and the source's {split} file."
            )

    def batches(self, split: str) -> Iterator[tuple[np.ndarray, SplitExamples]]:
        """The examples of one split, block by block: int64 numbers of examples, ascending, and the examples.

        Raises:
            DataError: If the split is unknown.
            ArtefactError: If a file cannot be read.
        """
        _check_split(split)
        for block in self.blocks():
            if len(block.rows[split]):
                yield block.numbers[split], block.rows[split]

    def windows(self, split: str, width: int = 0) -> Iterator[FlatWindows]:
        """The examples of one split as windows of at most `max_history` + 1 items, each target exactly once.

        They come block by block, and in a block in the order of each user's first example.

        Args:
            split: Which examples.
            width: Most items of a history, older ones than `max_history` among them; `max_history` if 0.
        """
        for block in self.blocks():
            if len(block.rows[split]):
                yield self.block_windows(block, split, width)

    def block_windows(self, block: Block, split: str = "train", width: int = 0) -> FlatWindows:
        """The windows of one block; the other arguments are those of `windows`."""
        width = width or self.max_history
        if self.leaves_two_out and split == "train":
            whole = self.valid
            bounds = window_bounds(whole.begins, whole.ends, np.ones_like(whole.begins), width)
            return FlatWindows(whole.items, np.full(len(whole.items), -1), *bounds)
        return block.windows(split, width)

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
        if not self.groups:
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
            raise ArtefactError(
                f"{self.files[0].parent.parent}: holds {len(position)} of {len(wanted)} {split} examples. {REMEDY}"
            )
        return joined(parts).take(np.argsort(position, kind="stable"))

    def sample(self, split: str, count: int, seed: int) -> SplitExamples:
        """A fixed random sample of the examples of one split, in their own order; all where there are no more.

        Args:
            split: Which examples.
            count: How many; -1 for all.
            seed: Seed of the sample.
        """
        numbers = self.sample_numbers(split, count, seed)
        rows: SplitExamples = getattr(self, split) if len(numbers) == self.sizes[split] else self.chosen(split, numbers)
        return rows

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

    def training_on(self, splits: Iterable[str]) -> "Corpus":
        """The same corpus with the examples of other splits as training examples too, after its own.

        Each user's examples keep their order where the split goes by time.

        Args:
            splits: The splits; train is always among them.
        """
        names = [name for name in SPLITS if name in {"train", *splits}]
        if names == ["train"]:
            return self
        if self.groups:
            return self._of_files(self.groups, names)
        whole = self._whole.training_on(names, self._starts(names))
        return replace(self, train=whole.rows["train"], files=())

    def all_counts(self) -> dict[str, Any]:
        """The counts with `items`, `split` and `max_history`, as the manifest keeps them and `load` reads them."""
        return {**self.counts, "items": self.n_items, "split": self.split, "max_history": self.max_history}

    def chains(self) -> Iterator[Chains]:
        """All examples as users' sequences: a row group at a time, or in the order of each user's first example.

        Raises:
            DataError: If a history is longer than `max_history`.
            ArtefactError: If a file cannot be read.
        """
        if not self.groups:
            yield chain_examples(self.splits(), self.max_history, self.together)
        for file in self.files if self.groups else ():
            yield from read_shard(file, self.n_items, self.context_values)

    def write(self, folder: Path) -> None:
        """Write the files of a corpus into a directory."""
        write_corpus(folder, self.items, concatenated(list(self.chains())))

    def save(self, path: str | os.PathLike[str], *, config: Any, inputs: Mapping[str, str | os.PathLike[str]]) -> None:
        """Write the corpus as an artefact of kind "corpus"."""
        with write_artefact(path, "corpus", config=config, inputs=inputs, counts=self.all_counts()) as folder:
            self.write(folder)


def check_filled(sizes: Mapping[str, int], where: str) -> None:
    """Check that no split is empty.

    Args:
        sizes: Split → number of examples.
        where: Name of the source in messages.

    Raises:
        DataError: Naming the source and the first empty split.
    """
    for split, size in sizes.items():
        if not size:
            shown = ", ".join(f"{name} {rows}" for name, rows in sizes.items())
            raise DataError(
                f"{where}: split {split!r} holds no example ({shown}). Give more interactions or another split."
            )


def _check_split(split: str) -> None:
    """Check the name of a split."""
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}.")


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
