"""What run records say of machine, command and checkout."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from minionerec.core import machine
from minionerec.core.urls import without_query

SIGNED = "https://host/a?sig=secret"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["minionerec sft", "--config", "a b.yaml"], ("minionerec", "sft", "--config", "a b.yaml")),
        (["/opt/env/bin/minionerec", "run"], ("minionerec", "run")),
        (["scripts/sft.py", "--epochs", "1"], ("python", "scripts/sft.py", "--epochs", "1")),
        (["/x/pytest/__main__.py", "-q"], ("python", "-m", "pytest", "-q")),
        ([""], ("python",)),
        (["minionerec embed", "--output", "caf\udce9"], ("minionerec", "embed", "--output", "caf\\udce9")),
        (["minionerec build-sids", SIGNED], ("minionerec", "build-sids", without_query(SIGNED))),
    ],
)
def test_the_command_as_it_was_typed(monkeypatch, words, shown):
    monkeypatch.setattr(sys, "argv", words)
    assert machine.command_words() == shown


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository as the package's own; what it is asked is not remembered."""
    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    git(tmp_path, "init")
    return tmp_path


def test_the_commit_and_whether_files_were_changed(checkout, monkeypatch):
    ask = machine.source_commit.__wrapped__
    assert ask() is None  # nothing was ever committed
    (checkout / "file").write_text("1")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "one")
    git(checkout, "tag", "v1")
    commit = git(checkout, "rev-parse", "HEAD")
    assert ask() == commit
    (checkout / "mine").write_text("of no repository")
    assert ask() == commit
    monkeypatch.setenv("GIT_DIR", str(checkout / "elsewhere"))
    assert ask() == commit
    (checkout / "file").write_text("2")
    assert ask() == f"{commit}-dirty"
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert ask() is None  # no git
    (checkout / "site-packages").mkdir()
    monkeypatch.setattr(machine, "_ROOT", checkout / "site-packages")
    assert ask() is None  # an installed package


def test_the_machine_is_asked_without_torch():
    code = (
        "import sys; from minionerec.core.machine import *; before, block = peak_memory(), bytearray(100_000_000); "
        "del block; found = this_machine(); more, card = peak_memory() - before, peak_gpu_memory(); "
        "print(found.processor, found.cores, found.threads, found.gpus, card, more, 'torch' in sys.modules, sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    processor, cores, threads, gpus, card, more, torch = done.stdout.strip().split("|")
    assert processor and int(cores) >= 1 and int(threads) >= 1
    assert (gpus, card, torch) == ("()", "None", "False")
    assert int(more) > 80_000_000  # the peak stays when the memory has gone


@pytest.mark.parametrize("used", [True, False])
def test_cards_are_named_where_they_were_used(monkeypatch, used):
    """Of two cards as torch shows them."""
    cuda = SimpleNamespace(is_initialized=lambda: used, device_count=lambda: 2)
    cuda.get_device_properties = lambda number: SimpleNamespace(name="a card", total_memory=2**36)
    cuda.max_memory_allocated = lambda number: 100 + number
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, get_num_threads=lambda: 3))
    found = machine.this_machine()
    assert found.threads == 3
    assert [(card.name, card.memory_bytes) for card in found.gpus] == [("a card", 2**36)] * (2 if used else 0)
    assert machine.peak_gpu_memory() == (101 if used else None)
