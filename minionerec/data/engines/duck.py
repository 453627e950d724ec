"""DuckDB: SQL in this process; data beyond memory spill to this machine's disk (https://duckdb.org)."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from minionerec.core.errors import ConfigError, DataError, one_line
from minionerec.core.machine import usable_cores
from minionerec.data.engines.engine import Engine

BATCH = 1 << 18
"""Rows handed over at a time."""


class Duck(Engine):
    """An engine that keeps its tables in memory and, beyond the memory that it is given, in a folder.

    Args:
        folder: A folder on this machine.
        memory: Most bytes that it may take; this process's own data come on top.

    Raises:
        ConfigError: If DuckDB takes the folder or the memory for none.
    """

    name = "duckdb"
    divide = "//"

    def __init__(self, folder: Path, memory: int) -> None:
        super().__init__(folder, memory)
        settings: dict[str, Any] = {
            "memory_limit": f"{memory}B",
            "temp_directory": str(folder / "spill"),
            "threads": usable_cores(),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
        }
        try:
            self._session = duckdb.connect(":memory:", config=settings)
        except duckdb.Error as error:
            raise ConfigError(
                f"{folder.parent}: DuckDB cannot start there ({one_line(error)}). Give another "
                "engine_folder, or less engine_memory."
            ) from None

    def hexadecimal(self, text: str) -> str:
        """See `Engine`."""
        return f"CAST('0x' || {text} AS BIGINT)"

    def load(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """See `Engine`."""
        failed: list[BaseException] = []

        def read() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except BaseException as error:
                failed.append(error)
                raise

        self._session.register("incoming", pa.RecordBatchReader.from_batches(schema, read()))
        try:
            self.table(name, "SELECT * FROM incoming")
        except DataError as error:
            raise failed[0] if failed else error from None
        finally:
            self._session.unregister("incoming")

    def table(self, name: str, sql: str) -> None:
        """See `Engine`."""
        self._run(f"CREATE OR REPLACE TABLE {name} AS {sql}")

    def view(self, name: str, sql: str) -> None:
        """See `Engine`."""
        self._run(f"CREATE OR REPLACE VIEW {name} AS {sql}")

    def numbered(self, name: str, sql: str, order: str, column: str) -> None:
        """See `Engine`; rows are numbered as the sort gives them, in a third of the time of a window over the order."""
        self.table(name, f"SELECT *, row_number() OVER () - 1 AS {column} FROM ({sql} ORDER BY {order}) AS sorted")

    def drop(self, name: str) -> None:
        """See `Engine`."""
        self._run(f"DROP TABLE IF EXISTS {name}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """See `Engine`."""
        found: list[tuple[Any, ...]] = self._run(sql).fetchall()
        return found

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """See `Engine`."""
        cursor = self._session.cursor()
        try:
            yield from cursor.sql(sql).to_arrow_reader(BATCH)
        except duckdb.Error as error:
            raise self._failed(error) from None
        finally:
            cursor.close()

    def close(self) -> None:
        """See `Engine`."""
        self._session.close()

    def _run(self, sql: str) -> Any:
        try:
            return self._session.execute(sql)
        except duckdb.Error as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"DuckDB failed ({one_line(error)}). Give it more engine_memory, or an engine_folder with more space."
        )
