"""Flat arrays that grow on disk, batch by batch, and are mapped into memory when they are read.

with ColumnWriter(folder, {"tokens": "int32"}) as writer:
    for batch in batches[writer.state.get("batches", 0) :]:      # resumes after the last commit
        writer.append("tokens", batch)
        writer.commit({"batches": ...})
    writer.finish()
open_columns(folder)[0]["tokens"]                                  # read-only, in the files
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minionerec.core.artefacts import read_json, write_text_atomic
from minionerec.core.errors import ArtefactError

_RECORD = "columns.json"
_REMEDY = "Delete the folder of the unfinished run to begin again."


class ColumnWriter:
    """Writes arrays of one axis; values after the last commit of a killed writer are dropped.

    Args:
        folder: The folder; created where it is missing.
        kinds: Name → dtype of each column.

    Attributes:
        state: State of the last commit, also of an earlier writer.

    Raises:
        ArtefactError: If the folder holds other columns, or a file is shorter than was committed.
    """

    def __init__(self, folder: Path, kinds: Mapping[str, str]):
        self.folder, self.kinds = folder, {name: np.dtype(kind) for name, kind in kinds.items()}
        self.state: dict[str, Any] = {}
        self._sizes = dict.fromkeys(kinds, 0)
        self._files: dict[str, BinaryIO] = {}
        self._open = ExitStack()

    def __enter__(self) -> "ColumnWriter":
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / _RECORD).is_file():
            record = _read_record(self.folder)
            if record["kinds"] != {name: kind.name for name, kind in self.kinds.items()}:
                raise ArtefactError(f"{self.folder}: holds other columns than {', '.join(self.kinds)}. {_REMEDY}")
            self._sizes, self.state = record["sizes"], record["state"]
        for name, kind in self.kinds.items():
            path = _file(self.folder, name)
            path.touch()
            file = self._open.enter_context(path.open("r+b"))
            size = self._sizes[name] * kind.itemsize
            _check_size(path, size)
            file.truncate(size)
            file.seek(size)
            self._files[name] = file
        return self

    def append(self, name: str, values: np.ndarray) -> None:
        """Add values to a column; rows of two axes are added one after another."""
        values = np.ascontiguousarray(values, dtype=self.kinds[name])
        self._files[name].write(values.data)
        self._sizes[name] += values.size

    def size(self, name: str) -> int:
        """Values of a column so far."""
        return self._sizes[name]

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make added values durable, with the state for resuming."""
        for file in self._files.values():
            file.flush()
        self.state = dict(state)
        self._record(done=False)

    def finish(self) -> None:
        """Mark the columns as complete, as of the last commit."""
        self._record(done=True)

    def _record(self, done: bool) -> None:
        kinds = {name: kind.name for name, kind in self.kinds.items()}
        record = {"kinds": kinds, "sizes": self._sizes, "state": self.state, "done": done}
        write_text_atomic(self.folder / _RECORD, json.dumps(record) + "\n")

    def __exit__(self, *_: object) -> None:
        self._open.close()


def are_finished(folder: Path) -> bool:
    """Whether the columns of a folder are whole.

    Raises:
        ArtefactError: If their record cannot be read.
    """
    return (folder / _RECORD).is_file() and bool(_read_record(folder)["done"])


def open_columns(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a folder whose writer has finished, by name and mapped from their files, and its last state.

    Raises:
        ArtefactError: If it has not, or a file is shorter than was written.
    """
    if not are_finished(folder):
        raise ArtefactError(f"{folder}: its columns are not finished. {_REMEDY}")
    record = _read_record(folder)
    arrays = {}
    for name, kind in record["kinds"].items():
        size, path = record["sizes"][name], _file(folder, name)
        _check_size(path, size * np.dtype(kind).itemsize)
        # A plain view: slices of a memmap are memmaps, which take several times as long to make.
        arrays[name] = np.asarray(np.memmap(path, kind, "r", shape=(size,))) if size else np.zeros(0, kind)
    return arrays, record["state"]


def mapped_parts(
    folder: Path | None, kinds: Mapping[str, str], parts: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays of parts, one part after another, mapped from files that are written once.

    Args:
        folder: Folder of the arrays, for the caller alone; a temporary one, without names while mapped, if None.
        kinds: As of `ColumnWriter`.
        parts: Values of each column, some at a time, the same ones in every run; a killed run resumes at its part.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return mapped_parts(Path(temporary), kinds, parts)
    if not are_finished(folder):
        with ColumnWriter(folder, kinds) as writer:
            done = int(writer.state.get("groups", 0))
            for group, part in enumerate(parts):
                if group >= done:
                    for name, values in part.items():
                        writer.append(name, values)
                    writer.commit({"groups": group + 1})
            writer.finish()
    return open_columns(folder)[0]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"


def _check_size(path: Path, least: int) -> None:
    """Check the size of a file."""
    found = path.stat().st_size if path.is_file() else 0
    if found < least:
        raise ArtefactError(f"{path}: has {found:,} bytes, {least:,} were written. {_REMEDY}")


def _read_record(folder: Path) -> dict[str, Any]:
    record = read_json(folder / _RECORD)
    if not (isinstance(record, dict) and record.keys() == {"kinds", "sizes", "state", "done"}):
        raise ArtefactError(f"{folder / _RECORD}: does not list the columns. {_REMEDY}")
    return record
