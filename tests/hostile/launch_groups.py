"""What the campaign does to launches: a training that is killed or stopped in one launch is continued by another."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import yaml
from hostile.groups import Group, holds
from support.kill import Point
from support.launched import HERE
from support.paths import ROOT
from support.small_shop import STAGES, make_shop
from support.training import nearly_same_weights

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import MinioneRecError
from minionerec.core.records import read_run_record

SECONDS = 300
"""Most that a launch may take."""
BATCH, EPOCHS, RATE = 12, 2, 3e-3
_FILES = ("sft", "sft.partial", "sft.finished", "sft.record.json")


@dataclass(frozen=True)
class Launch:
    """How a training is launched, and the settings that go with it.

    Attributes:
        processes: Their number.
        zero: Whether by ZeRO-2.
        device_batch: Examples that a process computes at a time; 0 for its whole share of a step.
        precision: Mixed precision that the launcher requests.
        mixed: Whether the settings request it.
    """

    processes: int = 1
    zero: bool = False
    device_batch: int = 2
    precision: str = "no"
    mixed: bool = False

    @property
    def divides(self) -> bool:
        """Whether a step divides among the processes and into their batches."""
        return BATCH % (self.processes * (self.device_batch or 1)) == 0

    @property
    def plain(self) -> bool:
        """Whether it can begin on CPUs, in the precision of its settings."""
        return self.divides and self.precision == "no" and not self.mixed


@dataclass(frozen=True)
class Pair:
    """Two launches of one training.

    Attributes:
        first: The launch that does not come to the end.
        then: The launch that is to continue.
        step: After how many steps the first is killed; 0 where it is made for one epoch and ends.
        dropout: Chance of dropout.
        other_device: Whether what the first has saved is reported to be of a GPU.
    """

    first: Launch
    then: Launch
    step: int
    dropout: float
    other_device: bool

    @property
    def alike(self) -> bool:
        """Whether the second launch must continue: as the first was, or by others where steps are the same."""
        same = self.first == self.then or (
            not self.dropout
            and not self.first.zero
            and self.first == replace(self.then, processes=self.first.processes)
        )
        return same and self.then.plain and not self.other_device

    @property
    def another_run(self) -> bool:
        """Whether the first launch has ended and the second has other settings: it may begin at its beginning."""
        settings = [(launch.device_batch, launch.mixed) for launch in (self.first, self.then)]
        return not self.step and settings[0] != settings[1]


def random_pair(rng: Random) -> Pair:
    """Two launches, of which half differ in nothing but the number of processes, or not even that."""

    def launch() -> Launch:
        precision, mixed = rng.choice([("no", False)] * 6 + [("bf16", False), ("bf16", True), ("fp16", False)])
        return Launch(rng.randint(1, 3), rng.random() < 0.25, rng.choice((0, 1, 2, 2, 4, 5)), precision, mixed)

    first = launch()
    if not first.plain and rng.random() < 0.8:  # one that begins
        first = replace(first, device_batch=2, precision="no", mixed=False)
    then = replace(first, processes=rng.randint(1, 3)) if rng.random() < 0.5 else launch()
    return Pair(first, then, rng.choice((0, rng.randint(1, 5))), rng.choice((0.0, 0.0, 0.1)), rng.random() < 0.1)


def _settings(launch: Launch, epochs: int, dropout: float) -> dict[str, object]:
    changes = {"epochs": epochs, "dropout": dropout, "device_batch_size": launch.device_batch, "schedule": "constant"}
    changes |= {"batch_size": BATCH, "learning_rate": RATE, "mixed_bf16": launch.mixed, "evals_per_epoch": 2}
    return {**STAGES["sft"], **changes}


def run_launch(folder: Path, launch: Launch, epochs: int, dropout: float, step: int = 0) -> tuple[bool, str]:
    """Train, as a launcher starts the processes, on CPUs.

    Args:
        folder: A small shop.
        launch: The launch.
        epochs: For how many epochs.
        dropout: Chance of dropout.
        step: After how many steps the first process dies, and the others with it; 0 for not.

    Returns:
        Whether it came to its end, or died; and otherwise the one line that it was refused in.
    """
    notes = folder / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    (folder / "sft.yaml").write_text(yaml.safe_dump(_settings(launch, epochs, dropout)), encoding="utf-8")
    die = Point("step", step) if step else None
    conditioned = {"notes": str(notes), "die": die, "rank": 0, "whole": False, "number": signal.SIGKILL}
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {
        **{key: value for key, value in os.environ.items() if not key.startswith("ACCELERATE_")},
        **{HERE: json.dumps(conditioned), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "ACCELERATE_MIXED_PRECISION": launch.precision},
        **{"WORLD_SIZE": str(launch.processes), "LOCAL_WORLD_SIZE": str(launch.processes)},
        "ACCELERATE_USE_CPU": str(not launch.zero).lower(),
    }
    if launch.zero:
        variables["ACCELERATE_USE_DEEPSPEED"] = "true"
        variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(ROOT / "ds_configs/zero2_cpu.json")
    words = [sys.executable, "-m", "support.launched", "sft", "--config", "sft.yaml"]
    children = []
    try:
        for rank in range(launch.processes):
            with open(notes / f"{rank}.txt", "wb") as reported:
                own = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen(words, cwd=folder, stdout=reported, stderr=reported, env=own))
        end = time.monotonic() + SECONDS
        while any(child.poll() is None for child in children) and not (notes / "died").exists():
            holds(time.monotonic() < end, f"{launch}: no end within {SECONDS} s")
            time.sleep(0.1)
        if (notes / "died").exists():
            return True, ""
    finally:
        for child in children:
            child.kill()
            child.wait()
    reported = [(notes / f"{rank}.txt").read_text(errors="replace") for rank in range(launch.processes)]
    return judged([child.returncode for child in children], reported, str(launch))


def judged(statuses: list[int], reported: list[str], launch: str) -> tuple[bool, str]:
    """What came of the processes of a launch: whether they ended well, and otherwise the one line.

    Args:
        statuses: Exit status of each.
        reported: What each wrote.
        launch: For the message of a launch that is broken.
    """
    if not any(statuses):
        return True, ""
    for rank, (status, text) in enumerate(zip(statuses, reported, strict=True)):
        holds("Traceback (most" not in text, f"{launch}: a traceback of process {rank}: {text[-300:]}")
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        holds(status > 0 and len(errors) == 1, f"{launch}: process {rank} ended with {status} and {len(errors)} errors")
    return False, next(line for line in reported[0].splitlines() if line.startswith("error: ")).removeprefix("error: ")


def _seen(folder: Path) -> list[tuple[str, int]]:
    files = [path for name in _FILES for path in (folder / name, *(folder / name).rglob("*")) if path.exists()]
    return sorted((str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in files)


def _make(folder: Path) -> None:
    """The inputs, and what one launch makes of them without an interruption."""
    make_shop(folder, ("prepare-data", "build-sids"))
    done, message = run_launch(folder, Launch(), EPOCHS, 0.0)
    assert done, message
    (folder / "sft").rename(folder / "whole")
    shutil.rmtree(folder / "sft.finished")  # from which a first launch would continue
    (folder / "sft.record.json").unlink()


def _strike_launches(rng: Random, clean: Path, folder: Path) -> str:
    """A training that did not end, launched again: continued with the same steps, or refused in one line."""
    pair = random_pair(rng)
    done, message = run_launch(folder, pair.first, EPOCHS if pair.step else 1, pair.dropout, pair.step)
    holds(not (done and pair.step and (folder / "sft").exists()), f"{pair}: the first launch ended before its death")
    if not done:
        holds(not pair.first.plain, f"{pair.first}: refused: {message}")
        holds(not _seen(folder), f"{pair.first}: was refused and has written")
        raise MinioneRecError(message)
    state = folder / ("sft.partial" if pair.step else "sft.finished")
    saved = [path for path in state.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    if pair.other_device and (state / "launch.json").is_file():
        about = json.loads((state / "launch.json").read_text())
        (state / "launch.json").write_text(json.dumps({**about, "device": "cuda"}))
    before = _seen(folder)
    done, message = run_launch(folder, pair.then, EPOCHS, pair.dropout)
    if not done:
        holds(not pair.alike, f"{pair}: refused: {message}")
        holds(_seen(folder) == before, f"{pair}: was refused and has written")
        raise MinioneRecError(message)
    record, steps = read_run_record(folder / "sft"), read_manifest(folder / "sft")["counts"]["steps"]
    goes_on = record is not None and bool(record.resumed_from)
    holds(goes_on or not saved or pair.another_run, f"{pair}: began again at step 0")
    wanted = read_manifest(folder / "whole")["counts"]["steps"]
    holds(steps == wanted, f"{pair}: {steps} steps, not {wanted}")
    if not (pair.dropout or pair.first.mixed or pair.then.mixed):
        same = nearly_same_weights(folder / "sft", folder / "whole", RATE)
        holds(same, f"{pair}: other weights than those of one launch")
    return "continued"


LAUNCHES = (Group("launches", _make, _strike_launches, 0.01, seconds=2 * SECONDS + 60),)
