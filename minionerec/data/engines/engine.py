"""What an engine must be able to do, and the little in which their dialects of SQL differ."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DIGITS = 8
"""Digits of a number in `linked_name`."""


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
    def parquet_folder(self, folder: Path) -> str:
        """All parquet files of a folder, with the same columns in any order, as what may stand behind FROM."""

    @abstractmethod
    def row_number(self) -> str:
        """The column of `parquet` and `parquet_folder` that counts the rows of a file from 0."""

    @abstractmethod
    def file_name(self) -> str:
        """The column of `parquet_folder` that names the file of a row; what stands before the name is of no account."""

    @abstractmethod
    def identifier(self, name: str) -> str:
        """A column's name, whatever signs are in it."""

    @abstractmethod
    def since_1970(self, column: str, unit: str) -> str:
        """A column of timestamps of parquet as whole numbers since 1970: nanoseconds if "ns", else microseconds."""

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

    def parquet_files(self, paths: Sequence[Path]) -> str:
        """Parquet files, wherever they lie, as what may stand behind FROM; file n is called `linked_name(n)`."""
        folder = self.folder / "given"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number, path in enumerate(paths):
            (folder / linked_name(number)).symlink_to(path.resolve())
        return self.parquet_folder(folder)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def linked_name(number: int) -> str:
    """The name by which an engine reads file `number` of several."""
    return f"{number:0{DIGITS}}.parquet"


def quoted(text: str, sign: str) -> str:
    """A name or text between signs, those inside doubled, as SQL wants it."""
    return f"{sign}{text.replace(sign, sign * 2)}{sign}"
