"""The result of every reader of raw data: items and interactions, and the count of rows that it refused."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from minionerec.core.errors import DataError
from minionerec.core.log import get_logger
from minionerec.data.files import read_text

log = get_logger(__name__)


BATCH = 1 << 20
"""Interactions of a batch at most."""


class InteractionBatch(NamedTuple):
    """Some interactions, in the order of their source.

    Attributes:
        users: B texts, the user of each.
        items: int32 (B,), rows of the item table; -1 leaves an interaction out.
        times: int64 or float64 (B,), in ticks; None where there are none.
        events: int16 (B,), numbers of the source's events; None where it has none.
        contexts: Name of each column that may be a request feature → int16 (B,), numbers of its values, -1 where there
            is none; all batches have the same.
    """

    users: pa.Array
    items: np.ndarray
    times: np.ndarray | None = None
    events: np.ndarray | None = None
    contexts: Mapping[str, np.ndarray] = MappingProxyType({})


class InteractionSource(Protocol):
    """Items and interactions of a reader, before any filter, in batches that are read once.

    `ticks`, `counts`, `events` and `contexts` are known when all batches were read.
    """

    @property
    def items(self) -> pd.DataFrame:
        """The items of `minionerec.data.corpus.Corpus`; row i is item index i."""

    @property
    def where(self) -> str:
        """The name of the interactions in messages, e.g. the file's path."""

    @property
    def timed(self) -> bool:
        """Whether there are times; else the file's order is all that is known."""

    @property
    def ticks(self) -> int | None:
        """Ticks of times in a second (1 for seconds since 1970); None for numbers that are a mere order."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers for the manifest."""

    @property
    def events(self) -> Sequence[str]:
        """Names of the events by number, such as "view" and "purchase"; none where interactions have no events."""

    @property
    def contexts(self) -> Mapping[str, Sequence[str] | str]:
        """The columns of `InteractionBatch.contexts`: the values of each by number, or why it is no request feature.

        Columns that batches do not have may be among them with the reason.
        """

    def batches(self) -> Iterator[InteractionBatch]:
        """The interactions, in the order of the file.

        Raises:
            DataError: Naming the first row that cannot be used, as far as bad rows are not allowed.
        """


@dataclass(frozen=True)
class Source:
    """Items and interactions that a reader holds in memory.

    Attributes:
        items: See `InteractionSource`.
        users: int32 (M,), user number of each interaction, in the order of the file.
        item_index: int32 (M,), item index of each interaction.
        times: int64 or float64 (M,), in ticks; None where the file's order is all that is known.
        user_ids: U strings; user number u is `user_ids[u]`.
        where: See `InteractionSource`.
        ticks: Ticks of `times` in a second; None for numbers that are a mere order.
        counts: Numbers for the manifest.
        events: See `InteractionSource`.
        contexts: See `InteractionSource`; none.
        event_numbers: int16 (M,), the event of each interaction; None where there are none.
    """

    items: pd.DataFrame
    users: np.ndarray
    item_index: np.ndarray
    times: np.ndarray | None
    user_ids: pa.Array | pa.ChunkedArray
    where: str
    ticks: int | None = 1
    counts: dict[str, int] = field(default_factory=dict)
    events: Sequence[str] = ()
    contexts: Mapping[str, Sequence[str] | str] = field(default_factory=dict)
    event_numbers: np.ndarray | None = None

    @property
    def timed(self) -> bool:
        """Whether there are times."""
        return self.times is not None

    def batches(self) -> Iterator[InteractionBatch]:
        """See `InteractionSource`."""
        for start in range(0, len(self.users), BATCH):
            some = slice(start, start + BATCH)
            users = self.user_ids.take(pa.array(self.users[some]))
            users = users.combine_chunks() if isinstance(users, pa.ChunkedArray) else users
            times, events = (None if each is None else each[some] for each in (self.times, self.event_numbers))
            yield InteractionBatch(users, self.item_index[some], times, events)


class BadRows:
    """Counts rows that cannot be used, and raises when there are more than allowed.

    Args:
        allowed: How many rows may be dropped; 0 makes the first one an error.
    """

    def __init__(self, allowed: int = 0) -> None:
        self.allowed = allowed
        self.kinds: Counter[str] = Counter()

    def add(self, kind: str, message: str, n: int = 1) -> None:
        """Count rows of one kind.

        Args:
            kind: Key of the count, e.g. "malformed".
            message: Error of the first of them, with its position and remedy.
            n: Number of rows.

        Raises:
            DataError: With the message, if more rows than allowed are bad by now.
        """
        self.kinds[kind] += n
        total = sum(self.kinds.values())
        if total > self.allowed:
            more = f" That makes {total} bad rows, and max_bad_rows is {self.allowed}." if self.allowed else ""
            raise DataError(f"{message}{more}")
        if self.kinds[kind] == n:
            log.warning("Dropped, as max_bad_rows allows: %s%s", message, f" ({n} such rows)" if n > 1 else "")

    def counts(self) -> dict[str, int]:
        """`bad_rows` and, for each kind met, `bad_rows_{kind}`."""
        return {"bad_rows": sum(self.kinds.values()), **{f"bad_rows_{kind}": n for kind, n in self.kinds.items()}}


def item_table(item_ids: list[str] | np.ndarray, **columns: list[str] | np.ndarray | pd.Series) -> pd.DataFrame:
    """An item table of text columns; title and description are "" unless given."""
    blank = [""] * len(item_ids)
    filled = {"item_id": item_ids, "title": blank, "description": blank, **columns}
    return pd.DataFrame({name: pd.Series(np.asarray(texts, object), dtype="str") for name, texts in filled.items()})


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a UTF-8 text file without their ends.

    Raises:
        DataError: If the file is missing or is not UTF-8; the message names the line.
    """
    return read_text(path, "Give the path of the interactions.").replace("\r\n", "\n").split("\n")
