"""The interface of engines, and how one is started: in a folder of its own, which is removed with it."""

import fcntl
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.machine import memory
from minionerec.core.plugins import Registry

if TYPE_CHECKING:
    import pyarrow as pa

log = get_logger(__name__)

PREFIX = ".minionerec-engine-"
"""How the names of the folders of engines begin."""
LEAST_MEMORY = 256 * 2**20
"""Bytes below which no engine is started."""
_LOCK = "in-use"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d{1,15})(\.\d{1,3})? ?([A-Za-z]*)")


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
        return max((memory() or 2**32) // 2, LEAST_MEMORY) if size is None else parse_size(size)

    @abstractmethod
    def hexadecimal(self, text: str) -> str:
        """The expression of the whole number that a text of hexadecimal digits writes."""

    @abstractmethod
    def load(self, name: str, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
        """Make a table of this process's data, batch by batch; errors of the batches are raised as they are."""

    @abstractmethod
    def table(self, name: str, sql: str) -> None:
        """Make a table of a query's rows; one of that name is replaced."""

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
    def rename(self, name: str, new: str) -> None:
        """Rename a table; no table has the new name."""

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
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[3].upper()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"engine_memory is {text!r}; it must be a size in bytes such as 4GB or 512MiB.")
    size = int(float(found[1] + (found[2] or "")) * unit)
    if size < LEAST_MEMORY:
        raise ConfigError(f"engine_memory is {text!r}; it must be at least {LEAST_MEMORY // 2**20}MiB.")
    return size


def _in_use(folder: Path) -> bool:
    """Whether a run of this machine holds the folder of an engine."""
    try:
        with open(folder / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # none of these folders, or one of an earlier version
        return False
    return False


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
    left = sorted(str(each) for each in parent.glob(f"{PREFIX}*") if each != Path(folder.name) and not _in_use(each))
    if left:
        log.warning("%s: left by interrupted runs, unless another machine uses them. Remove them.", ", ".join(left))
    with folder as own, open(Path(own) / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        engine = engine_class(Path(own), limit)
        try:
            yield engine
        finally:
            engine.close()
