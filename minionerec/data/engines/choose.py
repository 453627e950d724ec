"""Which engine prepares a corpus: started in a folder of its own, and gone with it."""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.machine import memory
from minionerec.data.engines.duck import Duck
from minionerec.data.engines.engine import Engine
from minionerec.data.engines.sizes import LEAST_MEMORY, parse_size
from minionerec.data.engines.spark import Spark, submitted

log = get_logger(__name__)

PREFIX = ".minionerec-engine-"
"""How the names of the folders of engines begin."""
_LOCK = "in-use"


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
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(f"{parent}: engine {name!r} cannot keep its tables there ({error.strerror}).") from None
    left = sorted(str(each) for each in parent.glob(f"{PREFIX}*") if each != Path(folder.name) and not _in_use(each))
    if left:
        log.warning(
            "%s: left by runs that were killed, unless another machine works there. Remove them.", ", ".join(left)
        )
    with folder as place, open(Path(place) / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        engine: Engine
        if name == "duckdb":
            engine = Duck(Path(place), wanted)
        else:
            engine = Spark(Path(place), None if submitted() else wanted)
        with engine:
            yield engine
