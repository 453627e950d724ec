"""Tokenised rows on disk: how a batch of them is written, and a data set that reads them one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from minionerec.data.columns import ColumnWriter
from minionerec.training.rows import TokenizedExamples
from minionerec.training.stream.jobs import Written, count_tasks

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
    "moments": "int32",
    "moment_ends": "int64",
    "prompts": "int32",
    "prompt_ends": "int64",
}
_ENDS = {
    "tokens": "ends",
    "histories": "history_ends",
    "slots": "slot_ends",
    "moments": "moment_ends",
    "prompts": "prompt_ends",
}


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
    """Tokenised rows, as `minionerec.training.rows.TokenizedExamples` has them, in a few arrays.

    Attributes:
        tokens: Token ids of each row.
        weights: float32 (T,), the weight of each token's loss; `NO_LOSS` where there is none.
        histories: What a teacher reads of each row; None where there is no teacher.
        slots: Places in it; None where there is no teacher.
        moments: What a teacher is told of them; None where it is told nothing.
        prompts: Prompts of all rows, each with as many ways to ask; None where there is one way.
    """

    tokens: Ragged
    weights: np.ndarray
    histories: Ragged | None = None
    slots: Ragged | None = None
    moments: Ragged | None = None
    prompts: Ragged | None = None

    @classmethod
    def of(cls, rows: TokenizedExamples, teacher: bool) -> "FlatRows":
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
            Ragged.of(rows.moments) if teacher and any(rows.moments) else None,
            Ragged.of([prompt for prompts in rows.prompts for prompt in prompts]) if ways else None,
        )

    def __len__(self) -> int:
        """Number of rows, R."""
        return len(self.tokens.lengths)

    def write(self, writer: ColumnWriter) -> None:
        """Add the rows to columns of `KINDS`."""
        for name, ends in _ENDS.items():
            part: Ragged | None = getattr(self, name)
            if part is not None:
                writer.append(ends, writer.size(name) + np.cumsum(part.lengths))
                writer.append(name, part.values)
        writer.append("weights", self.weights)

    def counted(self, cut: int = 0, cut_completions: int = 0) -> dict[str, int]:
        """How many rows, tokens, and tokens with a loss there are, and what was cut."""
        return {
            "rows": len(self),
            "tokens": len(self.tokens.values),
            "losses": int((self.weights != NO_LOSS).sum()),
            "cut": cut,
            "cut_completions": cut_completions,
        }


def read_row(arrays: Mapping[str, np.ndarray], number: int) -> dict[str, list[Any]]:
    """A row as `minionerec.training.rows.TokenizedExamples.columns` has it, from columns of `KINDS`."""
    begin, end = span(arrays["ends"], number)
    tokens, weights = arrays["tokens"][begin:end], arrays["weights"][begin:end]
    losses = weights != NO_LOSS
    found: dict[str, list[Any]] = {
        "input_ids": tokens.tolist(),
        "labels": np.where(losses, tokens, -100).tolist(),
        "weights": np.where(losses, weights, np.float32(1)).tolist(),
    }
    for name in ("histories", "slots", "moments"):
        ends = arrays[_ENDS[name]]
        found[name] = arrays[name][slice(*span(ends, number))].tolist() if len(ends) else []
    ways = len(arrays["prompt_ends"]) // len(arrays["ends"])
    asked = range(number * ways, (number + 1) * ways)
    found["prompts"] = [arrays["prompts"][slice(*span(arrays["prompt_ends"], way))].tolist() for way in asked]
    return found


def span(ends: np.ndarray, number: int) -> tuple[int, int]:
    """Where a list begins and ends, of lists one after another."""
    return int(ends[number - 1]) if number else 0, int(ends[number])


class Numbered:
    """The rows of several parts, numbered through; a part that is trained on twice is there twice.

    Args:
        written: The parts.
    """

    def __init__(self, written: Sequence[Written]):
        self.parts = [part for part in written for _ in range(part.job.times)]
        self.starts = np.cumsum([0, *(part.tally["rows"] for part in self.parts)])

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def find(self, row: int) -> tuple[Written, int]:
        """The part of a row, and its number there.

        Raises:
            IndexError: If there is no such row.
        """
        if not 0 <= row < len(self):
            raise IndexError(row)
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[part], row - int(self.starts[part])

    def total(self, name: str) -> int:
        """What was counted of all rows."""
        return sum(part.tally.get(name, 0) for part in self.parts)


class DiskRows(Dataset[dict[str, list[Any]]]):
    """All rows of a training, read from disk when they are asked for.

    Args:
        written: Their parts.
        cut_items: Items whose texts were too long for windows, and lost their last tokens.

    Attributes:
        counts: Task → number of rows.
        tokens: Tokens of all rows.
        losses: Tokens that have a loss.
        cut: Prompts that were too long and lost their first tokens.
        cut_completions: Completions that were too long and lost their last tokens.
    """

    def __init__(self, written: Sequence[Written], cut_items: int = 0):
        self._rows, self.counts = Numbered(written), count_tasks(written)
        self.tokens, self.losses, self.cut = (self._rows.total(name) for name in ("tokens", "losses", "cut"))
        self.cut_completions = cut_items + self._rows.total("cut_completions")

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, list[Any]]:
        """One row: token ids, labels, weights, and what there is beside them."""
        part, number = self._rows.find(row)
        return read_row(part.arrays, number)
