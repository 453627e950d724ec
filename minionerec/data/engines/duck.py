"""DuckDB: SQL in this process, on this machine's disk (https://duckdb.org)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from minionerec.core.errors import ConfigError, DataError
from minionerec.core.machine import usable_cores
from minionerec.data.engines.engine import Engine, quoted

BATCH = 1 << 18
"""Rows handed over at a time."""
FILE = "minionerec_read_from"
"""The column of the file's name, which no table has itself."""


class Duck(Engine):
    """An engine that keeps its tables in a file and writes what memory does not hold beside it.

    Args:
        folder: An empty folder on this machine.
        memory: Most bytes that it may take; what this process holds itself comes on top.

    Raises:
        ConfigError: If DuckDB is not installed, or takes the folder or the memory for none.
    """

    name = "duckdb"
    divide = "//"

    def __init__(self, folder: Path, memory: int) -> None:
        super().__init__(folder)
        try:
            import duckdb
        except ImportError:
            raise ConfigError(
                "engine is 'duckdb', but DuckDB is not installed. Install it: pip install 'minionerec[duckdb]'."
            ) from None
        self._error: type[Exception] = duckdb.Error
        settings: dict[str, Any] = {
            "memory_limit": f"{memory}B",
            "temp_directory": str(folder / "spill"),
            "threads": usable_cores(),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
        }
        try:
            self._session = duckdb.connect(str(folder / "tables.duckdb"), config=settings)
        except duckdb.Error as error:
            raise ConfigError(
                f"{folder.parent}: DuckDB cannot begin there ({' '.join(str(error).split())}). Give an engine_folder "
                "without backslashes in its path, or less engine_memory."
            ) from None

    def parquet(self, path: Path) -> str:
        """See `Engine`."""
        return f"read_parquet([{quoted(_no_glob(path), chr(39))}], file_row_number = true)"

    def parquet_folder(self, folder: Path) -> str:
        """See `Engine`."""
        files = quoted(f"{_no_glob(folder)}/*.parquet", "'")
        return f"read_parquet({files}, file_row_number = true, filename = {FILE!r}, union_by_name = true)"

    def file_name(self) -> str:
        """See `Engine`."""
        return FILE

    def row_number(self) -> str:
        """See `Engine`."""
        return "file_row_number"

    def identifier(self, name: str) -> str:
        """See `Engine`."""
        return quoted(name, '"')

    def since_1970(self, column: str, unit: str) -> str:
        """See `Engine`."""
        return f"epoch_ns({column})" if unit == "ns" else f"epoch_us({column})"

    def hexadecimal(self, text: str) -> str:
        """See `Engine`."""
        return f"CAST('0x' || {text} AS BIGINT)"

    def table(self, name: str, sql: str) -> None:
        """See `Engine`."""
        self._run(f"CREATE OR REPLACE TABLE {name} AS {sql}")

    def numbered(self, name: str, sql: str, order: str, column: str) -> None:
        """See `Engine`."""
        self.table(name, f"SELECT *, row_number() OVER (ORDER BY {order}) - 1 AS {column} FROM ({sql}) AS found")

    def drop(self, name: str) -> None:
        """See `Engine`."""
        self._run(f"DROP TABLE IF EXISTS {name}")

    def rename(self, name: str, new: str) -> None:
        """See `Engine`."""
        self._run(f"ALTER TABLE {name} RENAME TO {new}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """See `Engine`."""
        found: list[tuple[Any, ...]] = self._run(sql).fetchall()
        return found

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """See `Engine`."""
        cursor = self._session.cursor()
        try:
            yield from cursor.sql(sql).to_arrow_reader(BATCH)
        except self._error as error:
            raise self._failed(error) from None
        finally:
            cursor.close()

    def close(self) -> None:
        """See `Engine`."""
        self._session.close()

    def _run(self, sql: str) -> Any:
        try:
            return self._session.execute(sql)
        except self._error as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"DuckDB cannot go on ({' '.join(str(error).split())}). Give it more engine_memory, or an engine_folder "
            "with more room."
        )


def _no_glob(path: Path) -> str:
    """A path in which no sign stands for others."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path.resolve()))
