"""What an engine must be able to do, and the little in which their dialects of SQL differ."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d{1,15})(\.\d{1,3})? ?([A-Za-z]*)")
LEAST_MEMORY = 256 * 2**20
"""Bytes below which no engine is started."""


def parse_size(text: str, name: str = "engine_memory") -> int:
    """Bytes of a size such as "4GB" (powers of ten) or "512MiB" (powers of two).

    Raises:
        ConfigError: If it is none, or less than `LEAST_MEMORY`.

    Example:
        >>> parse_size("4GB"), parse_size("512 MiB"), parse_size("1.5gb")
        (4000000000, 536870912, 1500000000)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[3].upper()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"{name} is {text!r}; it must be a size in bytes such as 4GB or 512MiB.")
    size = int(float(found[1] + (found[2] or "")) * unit)
    if size < LEAST_MEMORY:
        raise ConfigError(f"{name} is {text!r}; it must be at least {LEAST_MEMORY // 2**20}MiB.")
    return size


class Engine(ABC):
    """Runs statements; what it makes lies in a folder of its own until it is closed.

    Attributes:
        name: What settings call it.
        folder: Where it keeps tables and what memory does not hold.
        divide: Its operator for dividing whole numbers, the fraction cut off towards zero.
    """

    name: str
    divide: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def parquet(self, path: Path) -> str:
        """A parquet file as what may stand behind FROM."""

    @abstractmethod
    def row_number(self) -> str:
        """The column of `parquet` that counts the rows of a file from 0."""

    @abstractmethod
    def nanoseconds(self, column: str, unit: str) -> str:
        """A column of timestamps of parquet ("ms", "us" or "ns") as whole nanoseconds since 1970."""

    @abstractmethod
    def hexadecimal(self, text: str) -> str:
        """A text of hexadecimal digits as the whole number that they write."""

    @abstractmethod
    def table(self, name: str, sql: str) -> None:
        """Make a table of what a query gives; one of that name is replaced."""

    @abstractmethod
    def numbered(self, name: str, sql: str, order: str, column: str) -> None:
        """Make a table of what a query gives, with one more column: its place, from 0, in an order without ties."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a table."""

    @abstractmethod
    def rename(self, name: str, new: str) -> None:
        """Call a table by a new name, which none has."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query that gives few."""

    @abstractmethod
    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query in parts, in its order, however many they are."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    def row(self, sql: str) -> tuple[Any, ...]:
        """The only row of a query."""
        (found,) = self.rows(sql)
        return found

    def load(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        """Make a table of what this process has, part by part."""
        path = self.folder / f"{name}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write(batch)
        self.table(name, f"SELECT * FROM {self.parquet(path)}")
        path.unlink(missing_ok=True)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quoted(text: str, sign: str) -> str:
    """A name or text between signs, those inside doubled, as SQL wants it."""
    return f"{sign}{text.replace(sign, sign * 2)}{sign}"
