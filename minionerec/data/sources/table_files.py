"""A table of interactions as a file or as a folder of files of one kind."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from minionerec.core.errors import DataError
from minionerec.core.parquet import readable
from minionerec.core.remote import parts_of
from minionerec.data.files import PACKED, check_file

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET, LINES = ".parquet", ".jsonl"
KINDS = (*SEPARATORS, LINES, PARQUET)
"""Endings of tables; those of text may be packed, with .gz after them."""


def kind_of(path: Path) -> str:
    """The ending of a table's name, in small letters, without that of a packed text.

    Example:
        >>> kind_of(Path("Items.CSV.gz")), kind_of(Path("items.parquet")), kind_of(Path("items.parquet.gz"))
        ('.csv', '.parquet', '.gz')
    """
    kind = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if kind == PACKED and inner in (*SEPARATORS, LINES) else kind


def row_location(path: Path, row: int) -> str:
    """Position, for messages, of a row by its index from 0: the line of a text file, the row of a parquet file."""
    return f"{path}, {'row' if kind_of(path) == PARQUET else 'line'} {row + 1}"


@dataclass(frozen=True)
class TableFiles:
    """The files of a table, in the order of its rows.

    Attributes:
        where: Name of the table in messages: the file, or the folder.
        files: The files.
    """

    where: str
    files: tuple[Path, ...]

    @classmethod
    def at(cls, path: "str | os.PathLike[str] | TableFiles") -> "TableFiles":
        """A path as a table: of a folder the files in it (`minionerec.core.remote`).

        Raises:
            ArtefactError: If a folder holds no file, or a folder.
            DataError: As `of_parts`.
        """
        if isinstance(path, TableFiles):
            return path
        path = Path(path)
        return cls.of_parts(str(path), parts_of(path)) if path.is_dir() else cls(str(path), (path,))

    @classmethod
    def of_parts(cls, folder: str, files: Sequence[Path]) -> "TableFiles":
        """The files of a folder as one table; empty text files, as Spark writes of empty parts, hold no rows.

        Raises:
            DataError: If files are of several kinds, of an unknown one, or all empty.
        """
        first = files[0]
        for path in files:
            kind = kind_of(path)
            if kind not in KINDS:
                raise DataError(
                    f"{path}: is no table ({', '.join(KINDS)}), but lies in {folder}, which is read as one. Move it "
                    "away, or begin its name with an underscore."
                )
            if kind != kind_of(first):
                raise DataError(
                    f"{path}: is of another type than {first.name} in the same folder, and {folder} is read as one "
                    "table. Keep one type per folder."
                )
        kept = tuple(path for path in files if kind_of(path) == PARQUET or path.stat().st_size)
        if not kept:
            raise DataError(f"{folder}: every file in it is empty. Expected a header and a row a line.")
        return cls(folder, kept)

    @property
    def kind(self) -> str:
        """The kind of its files, see `kind_of`."""
        return kind_of(self.files[0])


def check_names(names: Iterable[str], path: Path, first: Iterable[str], first_path: Path) -> None:
    """Check that a file of a folder has the columns of its first file, in whatever order.

    Raises:
        DataError: Naming both files and their columns.
    """
    names, first = list(names), list(first)
    if sorted(names) != sorted(first):
        raise DataError(
            f"{path}: has the columns {', '.join(names)}, but {first_path.name} beside it has {', '.join(first)}. "
            "Write all files of a folder with the same columns."
        )


readable_table = partial(readable, error=DataError, remedy="Write it again.")
"""`minionerec.core.parquet.readable` for a table of a user."""


def read_schema(path: Path) -> pa.Schema:
    """The columns of a parquet file.

    Raises:
        DataError: If it is none.
    """
    check_file(path, "Give the path of a csv, tsv, jsonl or parquet table.")
    with readable_table(path):
        return pq.read_schema(path)


def common_schema(files: TableFiles, names: Iterable[str]) -> pa.Schema:
    """The schema of the first of some parquet files, which the others share as far as they are read.

    Args:
        files: The files.
        names: The columns that are read.

    Raises:
        DataError: If a file is no parquet file, has other columns than the first, or one of `names` of another type.
    """
    first_path = files.files[0]
    first = read_schema(first_path)
    for path in files.files[1:]:
        schema = read_schema(path)
        check_names(schema.names, path, first.names, first_path)
        for name in names:
            if first.names.count(name) != 1:  # reported where the column is read
                continue
            kind, wanted = (_same(one.field(name).type) for one in (schema, first))
            if kind != wanted:
                raise DataError(
                    f"{path}: column {name!r} is {kind}, but {wanted} in {first_path.name} beside it. Write all files "
                    "of a folder with the same types."
                )
    return first


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without its dictionary."""
    return kind.value_type if pt.is_dictionary(kind) else kind


def _same(kind: pa.DataType) -> pa.DataType:
    """A type as far as the values go: texts are texts, however they are held."""
    kind = plain(kind)
    return pa.string() if pt.is_large_string(kind) or pt.is_string_view(kind) else kind
