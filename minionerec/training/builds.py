"""Locks that a killed build of an extension left behind: whoever needs the extension would wait for ever."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from minionerec.core.errors import ConfigError

_OLD = 600  # seconds, longer than DeepSpeed takes for an extension


def check_builds() -> None:
    """Check that DeepSpeed will not wait for a build that nobody is at work on.

    Torch builds extensions on first use, under a lock that is a mere file (torch.utils.file_baton). Its builder holds
    the file open; where none of the processes that can be looked at does, and it is older than ten minutes, the builder
    was killed.

    Raises:
        ConfigError: Naming the lock.
    """
    for lock in _locks():
        try:
            age = time.time() - lock.stat().st_mtime
        except OSError:  # was just released
            continue
        if age > _OLD and not _is_held(lock):
            raise ConfigError(
                f"{lock}: is {age / 60:.0f} minutes old and no living process holds it, so DeepSpeed would wait for "
                "ever for a build that was killed. Remove the file."
            )


def _locks() -> Iterator[Path]:
    """The locks of the builds that this process could wait for."""
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    told = os.environ.get("TORCH_EXTENSIONS_DIR")
    if told is not None:
        yield from sorted(Path(told).glob("*/lock"))
        return
    version = torch.version.hip or torch.version.cuda
    kind = ("rocm" if torch.version.hip else "cu") + version.replace(".", "") if version else "cpu"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    yield from sorted(Path(get_default_build_root()).glob(f"{python}*_{kind}/*/lock"))


def _is_held(lock: Path) -> bool:
    """Whether a process that can be looked at has the file open; where the system shows none, nobody has."""
    wanted = str(lock.resolve())
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(link) == wanted for link in folder.iterdir()):
                return True
        except OSError:  # another user's, or it has just ended
            continue
    return False
