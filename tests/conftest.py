"""What all tests share: no network, one thread a process, a device, and where the published data lie."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

# Before anything imports a library that reads them; child processes inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A GPU adds up in other orders than a CPU, so tests are of the CPU unless somebody asks (`make test-gpu`).
if os.environ.get("MINIONEREC_TEST_DEVICE") == "cuda":
    os.environ.setdefault("MINIONEREC_DETERMINISTIC", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
else:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
if os.environ.get("MINIONEREC_DATA"):
    os.environ["MINIONEREC_DATA"] = str(Path(os.environ["MINIONEREC_DATA"]).resolve())

import pytest
from support.preloaded import python
from support.quick import quicken

# Compiled modules are kept whatever the environment says: a run starts many processes, which would compile them again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


BUILT = Path(__file__).parents[1] / ".pytest_cache" / "torch_extensions"
"""DeepSpeed's extension as an earlier run has built it, which takes a minute; ninja rebuilds what is out of date."""


def pytest_configure() -> None:
    """Collect no garbage while modules are imported, and give the run its copy of the extension.

    Its workers share it. A build that is killed leaves a lock, so no two runs build in one folder.
    """
    gc.disable()
    if "TORCH_EXTENSIONS_DIR" not in os.environ:
        folder = os.environ["TORCH_EXTENSIONS_DIR"] = tempfile.mkdtemp(prefix="torch-extensions-")
        if BUILT.is_dir():
            shutil.copytree(BUILT, folder, dirs_exist_ok=True)
        atexit.register(keep_extension, Path(folder))


def keep_extension(folder: Path) -> None:
    """Keep what a run has built whole for the next one."""
    if any(folder.rglob("*.so")) and not any(folder.rglob("lock")):
        shutil.rmtree(BUILT, ignore_errors=True)
        shutil.copytree(folder, BUILT)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Workers are forked from the server of imported packages, which tests that start processes need in any case."""
    for spec in specs:
        spec.python = python()


def pytest_collectstart() -> None:
    """No example of a property test has a deadline, which a busy machine would miss."""
    from hypothesis import settings  # here, as a process that only starts workers need not import it

    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests that train come before the others, so that no process is left with a slow file at the end."""
    items.sort(key=lambda item: "/unit/" in item.nodeid and "/unit/training/" not in item.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    """All modules are imported by now; the interpreter ends as ever."""
    gc.enable()
    quicken()
    atexit.register(gc.unfreeze)


def pytest_runtest_logfinish() -> None:
    """Nor is what a test has imported looked through after it."""
    quicken()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the published data; the test is skipped, saying so, where there is none."""
    given = os.environ.get("MINIONEREC_DATA")
    if not given or not (Path(given) / "Amazon").is_dir():
        pytest.skip("MINIONEREC_DATA is not set to the published files; data/README.md says where to get them")
    return Path(given)


@pytest.fixture(scope="session")
def industrial(data_root: Path):
    """The published corpus of Industrial_and_Scientific, read once; nothing may change it."""
    from minionerec.data.published import read_published

    return read_published(data_root / "Amazon", "Industrial_and_Scientific")
