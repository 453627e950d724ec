"""Which engine prepares a corpus: started in a folder of its own, and gone with it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minionerec.core.errors import ConfigError
from minionerec.core.machine import memory
from minionerec.data.engines.duck import Duck
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.sizes import LEAST_MEMORY, parse_size
from minionerec.data.engines.spark import Spark, submitted


@contextmanager
def started(name: str, size: str | None, parent: Path) -> Iterator[Engine]:
    """An engine with a folder of its own in another, which is removed in the end, whatever happened.

    Args:
        name: "duckdb" or "spark".
        size: Most memory that it may take, as text; half of this machine's if None.
        parent: The folder to make its folder in.

    Raises:
        ConfigError: If it is not installed, or the folder cannot be made.
    """
    if name == "spark" and submitted() and size is not None:
        raise ConfigError(
            f"engine_memory is {size!r}, but spark-submit has started Spark already. Give it --driver-memory instead."
        )
    wanted = max((memory() or 2**32) // 2, LEAST_MEMORY) if size is None else parse_size(size)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".minionerec-engine-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(f"{parent}: engine {name!r} cannot keep its tables there ({error.strerror}).") from None
    with folder as place:
        engine: Engine
        if name == "duckdb":
            engine = Duck(Path(place), wanted)
        else:
            engine = Spark(Path(place), None if submitted() else wanted)
        with engine:
            yield engine
