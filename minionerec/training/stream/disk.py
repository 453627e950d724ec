"""Tokenised rows on disk: how a batch of them is written, and a data set that reads them one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from minionerec.data.columns import Columns, ColumnWriter, open_columns
from minionerec.training.rows import Rows

NO_LOSS = -1.0
"""Weight of a token without a loss."""
KINDS = {
    "tokens": "int32",
    "weights": "float32",
    "ends": "int64",
    "histories": "int32",
    "history_ends": "int64",
    "slots": "int32",
    "slot_ends": "int64",
    "prompts": "int32",
    "prompt_ends": "int64",
}
_ENDS = {"tokens": "ends", "histories": "history_ends", "slots": "slot_ends", "prompts": "prompt_ends"}


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers: one after another, and how many each has.

    Attributes:
        values: int32 (T,).
        lengths: int64 (R,).
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Ragged":
        """From lists."""
        lengths = np.array([len(part) for part in lists], dtype=np.int64)
        return cls(np.fromiter((number for part in lists for number in part), np.int32, int(lengths.sum())), lengths)


@dataclass(frozen=True)
class FlatRows:
    """Tokenised rows, as `minionerec.training.rows.Rows` has them, in a few arrays.

    Attributes:
        tokens: Token ids of each row.
        weights: float32 (T,), the weight of each token's loss; `NO_LOSS` where there is none.
        histories: What a teacher reads of each row; None where there is no teacher.
        slots: Places in it; None where there is no teacher.
        prompts: Prompts of all rows, each with as many ways to ask; None where there is one way.
        ways: How many.
    """

    tokens: Ragged
    weights: np.ndarray
    histories: Ragged | None = None
    slots: Ragged | None = None
    prompts: Ragged | None = None
    ways: int = 0

    @classmethod
    def of(cls, rows: Rows, teacher: bool) -> "FlatRows":
        """From rows as lists, with or without what a teacher is asked."""
        tokens = Ragged.of(rows.input_ids)
        labelled = np.fromiter((label >= 0 for row in rows.labels for label in row), bool, len(tokens.values))
        weights = np.fromiter((weight for row in rows.weights for weight in row), np.float32, len(tokens.values))
        ways = max(map(len, rows.prompts), default=0)
        return cls(
            tokens,
            np.where(labelled, weights, np.float32(NO_LOSS)),
            Ragged.of(rows.histories) if teacher else None,
            Ragged.of(rows.slots) if teacher else None,
            Ragged.of([prompt for prompts in rows.prompts for prompt in prompts]) if ways else None,
            ways,
        )

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.tokens.lengths)

    def write(self, writer: ColumnWriter) -> None:
        """Add the rows to columns of `KINDS`."""
        parts = {"tokens": self.tokens, "histories": self.histories, "slots": self.slots, "prompts": self.prompts}
        for name, part in parts.items():
            if part is not None:
                writer.append(_ENDS[name], writer.size(name) + np.cumsum(part.lengths))
                writer.append(name, part.values)
        writer.append("weights", self.weights)


@dataclass
class Tally:
    """What was written: rows, tokens, tokens with a loss, prompts and completions that were cut, ways to ask."""

    rows: int = 0
    tokens: int = 0
    losses: int = 0
    cut: int = 0
    cut_completions: int = 0
    ways: int = 0

    def add(self, written: FlatRows, cut: int, cut_completions: int) -> None:
        """Count some more rows."""
        self.rows += len(written)
        self.tokens += len(written.tokens.values)
        self.losses += int((written.weights != NO_LOSS).sum())
        self.cut, self.cut_completions = self.cut + cut, self.cut_completions + cut_completions
        self.ways = max(self.ways, written.ways)


@dataclass(frozen=True)
class Part:
    """Rows of one folder.

    Attributes:
        columns: Its arrays (`KINDS`).
        tally: What they hold.
    """

    columns: Columns
    tally: Tally

    @classmethod
    def open(cls, place: Path) -> "Part":
        """Open what was finished.

        Raises:
            ArtefactError: If it was not, or is damaged.
        """
        columns = open_columns(place)
        return cls(columns, Tally(**columns.state["tally"]))

    def row(self, number: int) -> dict[str, list[Any]]:
        """A row as `minionerec.training.rows.Rows.columns` has it."""
        arrays = self.columns.arrays
        begin, end = _span(arrays["ends"], number)
        tokens, weights = arrays["tokens"][begin:end], arrays["weights"][begin:end]
        losses = weights != NO_LOSS
        found: dict[str, list[Any]] = {
            "input_ids": tokens.tolist(),
            "labels": np.where(losses, tokens, -100).tolist(),
            "weights": np.where(losses, weights, np.float32(1)).tolist(),
        }
        for name in ("histories", "slots"):
            ends = arrays[_ENDS[name]]
            found[name] = arrays[name][slice(*_span(ends, number))].tolist() if len(ends) else []
        ways = range(number * self.tally.ways, (number + 1) * self.tally.ways)
        found["prompts"] = [arrays["prompts"][slice(*_span(arrays["prompt_ends"], way))].tolist() for way in ways]
        return found


def _span(ends: np.ndarray, number: int) -> tuple[int, int]:
    """Where a list begins and ends."""
    return int(ends[number - 1]) if number else 0, int(ends[number])


@dataclass(frozen=True)
class DiskRows(Dataset[dict[str, list[Any]]]):
    """All rows of a training, read from disk when they are asked for.

    Attributes:
        parts: Folders of rows, one after another; one that is trained on twice is there twice.
        counts: Task → number of rows.
        cut_items: Items whose texts were too long for windows, and lost their last tokens.
    """

    parts: Sequence[Part]
    counts: Mapping[str, int]
    cut_items: int = 0
    _starts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Number the rows through."""
        object.__setattr__(self, "_starts", np.cumsum([0, *(part.tally.rows for part in self.parts)]))

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> dict[str, list[Any]]:
        """One row: token ids, labels, weights, and what there is beside them."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.parts[part].row(row - int(self._starts[part]))

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(part.tally.tokens for part in self.parts)

    @property
    def losses(self) -> int:
        """Tokens that have a loss."""
        return sum(part.tally.losses for part in self.parts)

    @property
    def cut(self) -> int:
        """Prompts that were too long and lost their first tokens."""
        return sum(part.tally.cut for part in self.parts)

    @property
    def cut_completions(self) -> int:
        """Completions that were too long and lost their last tokens."""
        return self.cut_items + sum(part.tally.cut_completions for part in self.parts)
