"""Spark: the same SQL on one machine or many (https://spark.apache.org), by PySpark."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.errors import ConfigError, DataError, one_line
from minionerec.data.engines.engine import Engine

HERE = "local[2]"
"""Spark's master without `spark-submit`: two threads of this machine."""
BATCH = 1 << 18


def submitted() -> bool:
    """Whether `spark-submit` started this process, and so sets Spark's machines and memory."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class Spark(Engine):
    """An engine whose tables are folders of parquet files.

    Args:
        folder: An empty folder that all machines of the cluster see under the same path.
        memory: Most bytes of the Java process, where `spark-submit` does not set it.

    Raises:
        ConfigError: If PySpark or Java is missing.
    """

    name = "spark"
    divide = "div"

    @classmethod
    def memory_limit(cls, size: str | None) -> int:
        """See `Engine`; a size is refused where `spark-submit` sets it."""
        if submitted() and size is not None:
            raise ConfigError(
                f"engine_memory is {size!r}, but spark-submit has started Spark already. Give it --driver-memory "
                "instead."
            )
        return super().memory_limit(size)

    def __init__(self, folder: Path, memory: int) -> None:
        super().__init__(folder, memory)
        self._numbers = count()
        self._paths: dict[str, Path] = {}
        try:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession
        except ImportError:
            raise ConfigError(
                "engine is 'spark', but PySpark is not installed. Install it: pip install 'minionerec[spark]'."
            ) from None
        self._error: type[Exception] = PySparkException
        builder = SparkSession.builder.appName("minionerec prepare-data")
        if not submitted():
            if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
                raise ConfigError("engine is 'spark', but Java is not installed. Install Java 17, or set JAVA_HOME.")
            spill = str((folder / "spill").absolute())
            if "," in spill:
                raise ConfigError(
                    f"{folder.parent}: engine 'spark' takes a comma for the end of a path. Give another engine_folder."
                )
            builder = builder.master(HERE).config("spark.ui.enabled", "false").config("spark.local.dir", spill)
            for name in ("spark.driver.host", "spark.driver.bindAddress"):  # nothing listens to other machines
                builder = builder.config(name, "127.0.0.1")
            builder = builder.config("spark.sql.shuffle.partitions", "8")
            builder = builder.config("spark.ui.showConsoleProgress", "false")
            builder = builder.config("spark.driver.memory", f"{memory // 2**20}m")
        try:
            self._session = builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise ConfigError(
                f"engine is 'spark', but Java does not start ({one_line(error, 300)}). Check JAVA_HOME, and give an "
                "engine_memory that this machine has."
            ) from None
        self._session.sparkContext.setLogLevel("OFF")  # what fails is raised
        self._session.conf.set("spark.sql.caseSensitive", "true")

    def hexadecimal(self, text: str) -> str:
        """See `Engine`."""
        return f"CAST(conv({text}, 16, 10) AS BIGINT)"

    def load(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """See `Engine`; Spark reads a file that this process writes."""
        path = self.folder / f"{name}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write(batch)
        self.table(name, f"SELECT * FROM parquet.`file://{_no_glob(path).replace('`', '``')}`")
        path.unlink(missing_ok=True)

    def table(self, name: str, sql: str) -> None:
        """See `Engine`."""
        self._store(name, self._run(sql))

    def view(self, name: str, sql: str) -> None:
        """See `Engine`."""
        self._run(f"CREATE OR REPLACE TEMP VIEW {name} AS {sql}")

    def numbered(self, name: str, sql: str, order: str, column: str) -> None:
        """See `Engine`; each part of the sorted rows is numbered by itself, after those of earlier parts."""
        with_ids = f"{name}_with_ids"
        sorted_rows = self._run(f"{sql} ORDER BY {order}")
        self._store(with_ids, sorted_rows.selectExpr("*", "monotonically_increasing_id() AS row_id"))
        sizes = self.rows(
            f"SELECT part, count(*) FROM (SELECT shiftright(row_id, 33) AS part FROM {with_ids}) GROUP BY part"
        )
        before, starts = 0, []
        for part, size in sorted(sizes):
            starts.append(f"WHEN {part} THEN {before - (part << 33)}")
            before += size
        shift = f"CASE shiftright(row_id, 33) {' '.join(starts)} END" if starts else "0"
        self.table(name, f"SELECT {', '.join(sorted_rows.columns)}, row_id + {shift} AS {column} FROM {with_ids}")
        self.drop(with_ids)

    def drop(self, name: str) -> None:
        """See `Engine`."""
        self._call(lambda: self._session.catalog.dropTempView(name))
        if (path := self._paths.pop(name, None)) is not None:
            shutil.rmtree(path, ignore_errors=True)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """See `Engine`."""
        return [tuple(row) for row in self._call(self._run(sql).collect)]

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """See `Engine`; Spark writes the rows, whose files are in order, and this process reads them."""
        folder = self._write(self._run(sql))
        for path in sorted(folder.glob("part-*.parquet")):
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(BATCH)
            path.unlink()
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """See `Engine`; the session is left to a process that had it before."""
        from py4j.protocol import Py4JError

        with suppress(DataError, Py4JError, OSError):  # Java has ended
            for name in list(self._paths):
                self.drop(name)
            if not submitted():
                self._session.stop()

    def _store(self, name: str, frame: Any) -> None:
        path = self._write(frame)
        self.drop(name)
        self._paths[name] = path
        reader = self._session.read.schema(frame.schema)
        self._call(lambda: reader.parquet(f"file://{_no_glob(path)}").createOrReplaceTempView(name))

    def _write(self, frame: Any) -> Path:
        path = self.folder / f"table{next(self._numbers)}"
        self._call(lambda: frame.write.parquet(f"file://{path.resolve()}", compression="zstd"))
        return path

    def _run(self, sql: str) -> Any:
        return self._call(lambda: self._session.sql(sql))

    def _call(self, work: Any) -> Any:
        from py4j.protocol import Py4JError

        try:
            return work()
        except (self._error, Py4JError, OSError) as error:
            reason = one_line(error, 600)
            raise DataError(
                f"Spark failed ({reason}). Give it more memory, or an engine_folder with more space."
            ) from None


def _no_glob(path: Path) -> str:
    """A path in which no sign stands for others."""
    return "".join(f"\\{sign}" if sign in "*?[]{}\\" else sign for sign in str(path.resolve()))
