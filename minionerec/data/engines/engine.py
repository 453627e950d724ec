"""The interface of engines, and how one is started: in a folder of its own, which is removed with it."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.plugins import Registry

if TYPE_CHECKING:
    import pyarrow as pa

log = get_logger(__name__)

PREFIX = ".minionerec-engine-"
"""How the names of the folders of engines begin."""
LEAST_MEMORY = 256 * 2**20
"""Bytes below which no engine is started."""


class Engine(ABC):
    """Runs statements; its tables are in memory and in a folder of its own until it is closed.

    Args:
        folder: An empty folder.
        memory: Most bytes that it may take.

    Attributes:
        name: Its name in settings.
        folder: Folder for data beyond memory.
        divide: Its operator for dividing whole numbers, truncated towards zero.
    """

    name: str
    divide: str

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder = folder

    @classmethod
    def memory_limit(cls, size: str | None) -> int:
        """Most bytes that the engine may take, of the setting `engine_memory`; half of this machine's if None.

        Raises:
            ConfigError: If it is no size, or too little.
        """
        return max(psutil.virtual_memory().total // 2, LEAST_MEMORY) if size is None else parse_size(size)

    @abstractmethod
    def hexadecimal(self, text: str) -> str:
        """The expression of the whole number that a text of hexadecimal digits writes."""

    @abstractmethod
    def load(self, name: str, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
        """Make a table of this process's data, batch by batch; errors of the batches are raised as they are."""

    @abstractmethod
    def table(self, name: str, sql: str) -> None:
        """Make a table of a query's rows; one of that name, which the query may read, is replaced."""

    @abstractmethod
    def view(self, name: str, sql: str) -> None:
        """Call a query by a name; one of that name is replaced."""

    @abstractmethod
    def numbered(self, name: str, sql: str, order: str, column: str) -> None:
        """Make a table of a query's rows with one more column: their number, from 0, in an order without ties.

        Args:
            name: The table.
            sql: The query.
            order: Expressions that it can be sorted by; columns of them that it does not give are not kept.
            column: Name of the number.
        """

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a table."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query that gives few."""

    @abstractmethod
    def stream(self, sql: str) -> "Iterator[pa.RecordBatch]":
        """The rows of a query in batches, in its order, however many they are."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def row(self, sql: str) -> tuple[Any, ...]:
        """The only row of a query."""
        (found,) = self.rows(sql)
        return found


def parse_size(text: str) -> int:
    """Bytes of a size such as "4GB" (powers of ten) or "512MiB" (powers of two).

    Raises:
        ConfigError: If it is none, or less than `LEAST_MEMORY`.

    Example:
        >>> parse_size("4GB"), parse_size("512 MiB"), parse_size("1.5gb")
        (4000000000, 536870912, 1500000000)
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError  # slow to import

    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise ConfigError(f"engine_memory is {text!r}; it must be a size in bytes such as 4GB or 512MiB.") from None
    if size < LEAST_MEMORY:
        raise ConfigError(f"engine_memory is {text!r}; it must be at least {LEAST_MEMORY // 2**20}MiB.")
    return int(size)


@contextmanager
def started(name: str, size: str | None, parent: Path) -> Iterator[Engine]:
    """An engine with a folder of its own in another, which is always removed at the end.

    Args:
        name: "duckdb", or an entry point of the group `minionerec.engines`.
        size: Most memory that it may take, as text; half of this machine's if None.
        parent: The folder to make its folder in.

    Raises:
        ConfigError: If it is not installed, or the folder cannot be made.
    """
    from minionerec.data.engines.duck import Duck

    engines: Registry[type[Engine]] = Registry("minionerec.engines", {"duckdb": Duck})
    engine_class = engines[name]
    limit = engine_class.memory_limit(size)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(f"{parent}: engine {name!r} cannot keep its tables there ({error.strerror}).") from None
    others = sorted(str(other) for other in parent.glob(f"{PREFIX}*") if other != Path(folder.name))
    if others:
        log.warning("%s: left by interrupted runs, unless another run uses them now. Remove them.", ", ".join(others))
    with folder as path:
        engine = engine_class(Path(path), limit)
        try:
            yield engine
        finally:
            engine.close()
