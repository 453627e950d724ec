"""Runs the jobs of a study: several at a time, each after what it needs, its words in a file; goes on past failures."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from types import FrameType

import yaml

from minionerec.cli.launch import shown_command, started_words
from minionerec.cli.study_plan import Job, Key
from minionerec.core.artefacts import write_text_atomic
from minionerec.core.places import shown_path
from minionerec.core.records import duration

_PAUSE = 0.05
_PATIENCE = 20.0
"""Seconds that a step gets to end before it is killed."""


class Interrupted(Exception):
    """A signal has ended the run.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Attributes:
        word: "done", "up to date", "failed" or "left out".
        status: Exit status of its process; 0 where there was none.
        said: Its last words, where it failed.
    """

    word: str
    status: int = 0
    said: str = ""

    @property
    def good(self) -> bool:
        """Whether its output stands."""
        return self.word in ("done", "up to date")


@dataclass
class _Running:
    process: Popen[bytes]
    since: float
    closing: ExitStack


@dataclass
class Runner:
    """Runs jobs.

    Attributes:
        most: Jobs at a time.
        say: What a line of progress goes to.
    """

    most: int
    say: Callable[[str], None]
    _signal: int | None = None
    _running: dict[Key, _Running] = field(default_factory=dict)

    def run(self, jobs: Mapping[Key, Job]) -> dict[Key, Outcome]:
        """Run jobs, each after those that it needs.

        Args:
            jobs: The jobs, those first that are to be started first; what one needs is among them.

        Returns:
            How each ended, in the order in which they did.

        Raises:
            Interrupted: After a signal to end; no process is left then.
        """
        outcomes: dict[Key, Outcome] = {}
        waiting = dict(jobs)
        with self._watched():
            while waiting or self._running:
                self._start_ready(waiting, outcomes, len(jobs))
                self._collect(jobs, outcomes)
                if self._signal is not None:
                    self._end_all()
                    raise Interrupted(self._signal)
                if self._running:
                    time.sleep(_PAUSE)
        return outcomes

    def _start_ready(self, waiting: dict[Key, Job], outcomes: dict[Key, Outcome], total: int) -> None:
        for key, job in list(waiting.items()):
            if self._signal is not None:
                return
            lost = next((need for need in job.needs if need in outcomes and not outcomes[need].good), None)
            if lost is not None:
                del waiting[key]
                outcomes[key] = Outcome("left out")
            elif len(self._running) < self.most and all(need in outcomes for need in job.needs):
                del waiting[key]
                if job.step.is_current():
                    outcomes[key] = Outcome("up to date")
                    self.say(f"[{len(outcomes)}/{total}] {key.title}: up to date")
                else:
                    self._running[key] = _start(job)

    def _collect(self, jobs: Mapping[Key, Job], outcomes: dict[Key, Outcome]) -> None:
        for key, running in list(self._running.items()):
            status = running.process.poll()
            if status is None:
                continue
            del self._running[key]
            running.closing.close()
            took = duration(time.monotonic() - running.since)
            if status == 0:
                outcomes[key] = Outcome("done")
                line = f"done in {took}"
            else:
                outcomes[key] = Outcome("failed", _status(status), last_words(jobs[key].log))
                line = f"failed with status {_status(status)} after {took}"
            self.say(f"[{len(outcomes)}/{len(jobs)}] {key.title}: {line}")

    def _end_all(self) -> None:
        """End every process that is at work, with all that it has started."""
        for running in self._running.values():
            _signal_group(running.process, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        for running in self._running.values():
            while running.process.poll() is None and time.monotonic() < until:
                time.sleep(_PAUSE)
            _signal_group(running.process, signal.SIGKILL)
            running.process.wait()
            running.closing.close()
        self._running.clear()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note signals to end, and never leave a process behind."""

        def note(number: int, _: FrameType | None) -> None:
            self._signal = number

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)


def _start(job: Job) -> _Running:
    """Write a job's settings, and start it."""
    words = job.step.words()
    file = job.step.config
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(file, f"# {job.key.title}\n{yaml.safe_dump(dict(job.values), sort_keys=False)}")
    with ExitStack() as opened:
        log = opened.enter_context(open(job.log, "ab"))
        log.write(f"$ {shown_command(words)}\n".encode(errors="backslashreplace"))
        log.flush()
        process = opened.enter_context(started_words(words, job.step.threads, log))
        return _Running(process, time.monotonic(), opened.pop_all())


def _signal_group(process: Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it and all that it had started have ended
        os.killpg(process.pid, number)


def _status(status: int) -> int:
    """An exit status as a shell says it, of a process that a signal ended too."""
    return 128 - status if status < 0 else status


def last_words(log: Path) -> str:
    """The last thing that a step said: its error, or else its last line."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    own = lines[len(lines) - next((n for n, line in enumerate(reversed(lines)) if line.startswith("$ ")), len(lines)) :]
    errors = [line for line in own if line.startswith("error: ")]
    return (errors or own or ["it said nothing"])[-1]


def losses(outcomes: Mapping[Key, Outcome], jobs: Mapping[Key, Job]) -> list[str]:
    """A line for each step that failed, and one for those that were left out for its sake."""
    lines, left = [], [key for key, outcome in outcomes.items() if outcome.word == "left out"]
    for key, outcome in outcomes.items():
        if outcome.word == "failed":
            where = shown_path(jobs[key].log)
            lines.append(f"{key.title}: failed with status {outcome.status}: {outcome.said} ({where})")
    if left:
        lines.append(f"left out, for they need what failed: {'; '.join(key.title for key in left)}")
    return lines


def print_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
