"""Artefacts that several tests begin with: made once for a whole run of tests, whichever worker asks first."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared(factory: pytest.TempPathFactory, make: Callable[..., object], *given: object) -> Path:
    """The folder that `make(folder, *given)` fills; a test that changes something in it takes a copy.

    Args:
        factory: That of the run, whose workers have a folder in common.
        make: Fills an empty folder.
        given: What it is given beside; with its name, this is what the folder is known by.
    """
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    key = hashlib.sha256(f"{make.__module__}.{make.__qualname__} {given!r}".encode()).hexdigest()[:16]
    folder = base / "shared" / key
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not Path(f"{folder}.made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder, *given)
            Path(f"{folder}.made").touch()
    return folder
