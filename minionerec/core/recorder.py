"""The clock of a stage at work: phases, what a run that was cut off had needed before, and the record at the end."""

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from minionerec.core.artefacts import read_json, read_manifest, write_text_atomic
from minionerec.core.errors import ArtefactError
from minionerec.core.log import get_logger
from minionerec.core.machine import command_words, peak_gpu_memory, peak_memory, source_commit, this_machine
from minionerec.core.manifests import DIGEST
from minionerec.core.processes import is_main_process, world_size
from minionerec.core.records import Batch, RunRecord, parse_record, record_path, to_json

logger = get_logger(__name__)

KEPT_FILE = "record.json"
"""What an unfinished run had recorded, in its folder."""


class Clock(Protocol):
    """Who wants to know what a long computation is at: a stage at work (`minionerec.core.stage.Work`), or nobody."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count what is done inside for a phase."""

    def reached(self, step: int) -> None:
        """Hear how much is safe from a kill: at the beginning, and whenever it is more."""


class NoClock:
    """Nobody wants to know."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count nothing."""
        return nullcontext()

    def reached(self, step: int) -> None:
        """Hear nothing."""


NOBODY = NoClock()


class Recorder:
    """Counts what a run takes; only that of the first process of a launch writes.

    Args:
        output: The artefact's directory.
        folder: Folder of the unfinished run. What lies there was recorded by the parts before this one.
    """

    def __init__(self, output: Path, folder: Path):
        self._output, self._folder = output, folder
        self._began = self._turned = time.monotonic()
        self._started = _now()
        self._seconds: dict[str, float] = {}
        self._phases: list[str] = []
        self._done = not is_main_process()
        self._commit = source_commit() if is_main_process() else None
        self._before = _kept(folder) if is_main_process() else None
        self._resumed_from = None if self._before is None else 0
        self._reached = self._warned = False
        self.batch: Batch | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is done inside for a phase; one within another stops the outer one's clock."""
        self._turn()
        self._phases.append(name)
        try:
            yield
        finally:
            self._turn()
            self._phases.pop()

    def reached(self, step: int) -> None:
        """Hear how much is safe from a kill; what is told first is what the run went on from."""
        if not self._reached and (step or self._before is not None):
            self._resumed_from = step
        self._reached = True
        self.keep()

    def _turn(self) -> None:
        """Give the time since the last turn to the innermost phase."""
        now = time.monotonic()
        if self._phases:
            name = self._phases[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._turned
        self._turned = now

    def now(self) -> RunRecord:
        """The record as it is now, with what earlier parts of the run had recorded."""
        self._turn()
        seconds = {"all": time.monotonic() - self._began, **self._seconds}
        found = RunRecord(
            command=command_words(),
            commit=self._commit,
            started=self._started,
            ended=_now(),
            seconds=seconds,
            parts=1,
            resumed_from=self._resumed_from,
            machine=this_machine(),
            processes=world_size(),
            batch=self.batch,
            peak_memory_bytes=peak_memory(),
            peak_gpu_memory_bytes=peak_gpu_memory(),
        )
        found = found if self._before is None else _together(self._before, found)
        return replace(found, seconds={name: round(value, 3) for name, value in found.seconds.items()})

    def keep(self) -> None:
        """Write what is recorded so far into the folder of the unfinished run, where there is one."""
        if not self._done and self._folder.is_dir():
            self._write(self._folder / KEPT_FILE, None)

    def finish(self) -> None:
        """Write the record beside the finished artefact."""
        if self._done:
            return
        path = record_path(self._output)
        if path.is_symlink() or (path.exists() and _kept(path.parent, path.name) is None):
            logger.warning("%s: is no run record, so that of this run is not written. Move it away.", path)
        else:
            self._write(path, self._output)
        self.keep()
        self._done = True

    def _write(self, path: Path, artefact: Path | None) -> None:
        """Write a record; nothing that goes wrong here may cost a run."""
        try:
            said = to_json(self.now())
            if artefact is not None:
                said["artefact"] = read_manifest(artefact)[DIGEST]
            write_text_atomic(path, json.dumps(said, indent=1) + "\n")
        except Exception as error:
            if not self._warned:
                logger.warning("The run goes on without its record: %s", error)
            self._warned = True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _kept(folder: Path, name: str = KEPT_FILE) -> RunRecord | None:
    """The record in a file; None where there is none."""
    try:
        given = read_json(folder / name)
    except ArtefactError:
        return None
    return parse_record(given) if isinstance(given, dict) else None


def _together(before: RunRecord, last: RunRecord) -> RunRecord:
    """The record of a run in parts: times add up, the largest peak stays, of the rest the last part speaks."""
    names = [*before.seconds, *(name for name in last.seconds if name not in before.seconds)]
    return replace(
        last,
        started=before.started,
        seconds={name: before.seconds.get(name, 0.0) + last.seconds.get(name, 0.0) for name in names},
        parts=before.parts + last.parts,
        batch=last.batch or before.batch,
        peak_memory_bytes=_largest(before.peak_memory_bytes, last.peak_memory_bytes),
        peak_gpu_memory_bytes=_largest(before.peak_gpu_memory_bytes, last.peak_gpu_memory_bytes),
    )


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
