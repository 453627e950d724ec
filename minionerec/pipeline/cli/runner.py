"""Running steps: several at a time, each after its dependencies, with log files; continues after failures."""

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

from minionerec.core.paths import shown_path
from minionerec.core.records import duration
from minionerec.pipeline.cli.launch import shown_command, started_words
from minionerec.pipeline.cli.plan import Job, Key

_PAUSE = 0.05
_PATIENCE = 20.0
"""Seconds that a step gets to end before it is killed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step.

    Attributes:
        word: "done", "up to date", "failed" or "left out".
        status: Exit status of its process; 0 where there was none.
        message: Its last message, where it failed.
        seconds: Its time.
    """

    word: str
    status: int = 0
    message: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether its output is up to date."""
        return self.word in ("done", "up to date")


@dataclass
class Runner:
    """Runs steps. A signal to end ends them, and then the command, with the status that a shell expects.

    Attributes:
        most: Steps at a time.
        say: Called with each line of progress.
        started: Called with each step when it is started.
        ended: Called with each step that was started, when it has ended.
    """

    most: int
    say: Callable[[str], None]
    started: Callable[[Job], None] | None = None
    ended: Callable[[Job], None] | None = None
    _signal: int | None = None
    _running: dict[Key, tuple[Popen[bytes], float, ExitStack]] = field(default_factory=dict)

    def run(self, jobs: Mapping[Key, Job]) -> dict[Key, Outcome]:
        """Run jobs, each after its dependencies.

        Args:
            jobs: The jobs in the order in which they are started; all dependencies are among them.

        Returns:
            The outcome of each, in the order in which they ended.

        Raises:
            KeyboardInterrupt: After an interruption; no process is left then.
            SystemExit: Likewise after another signal to end.
        """
        outcomes: dict[Key, Outcome] = {}
        waiting = dict(jobs)
        with self._watched():
            while waiting or self._running:
                self._start_ready(waiting, outcomes, len(jobs))
                self._collect(jobs, outcomes)
                if self._signal is not None:
                    self._end_all()
                    if self._signal == signal.SIGINT:
                        raise KeyboardInterrupt
                    sys.stderr.write("ended by a signal; run the same command again to resume\n")
                    raise SystemExit(128 + self._signal)
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
                if job.is_current():
                    outcomes[key] = Outcome("up to date")
                    self.say(f"[{len(outcomes)}/{total}] {job.title}: up to date")
                else:
                    if self.started is not None:
                        self.started(job)
                    self._running[key] = _start(job)

    def _collect(self, jobs: Mapping[Key, Job], outcomes: dict[Key, Outcome]) -> None:
        for key, job in jobs.items():
            if key not in self._running or (status := self._running[key][0].poll()) is None:
                continue
            _, since, closing = self._running.pop(key)
            closing.close()
            took = time.monotonic() - since
            if status == 0:
                outcomes[key] = Outcome("done", seconds=took)
                line = f"done in {duration(took)}"
            else:
                outcomes[key] = Outcome("failed", _status(status), last_words(job.log), took)
                line = f"failed with status {_status(status)} after {duration(took)}"
            self.say(f"[{len(outcomes)}/{len(jobs)}] {job.title}: {line}")
            if self.ended is not None:
                self.ended(job)

    def _end_all(self) -> None:
        """End every running process, with all that it has started."""
        for process, _, _ in self._running.values():
            _signal_group(process, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        for process, _, closing in self._running.values():
            while process.poll() is None and time.monotonic() < until:
                time.sleep(_PAUSE)
            _signal_group(process, signal.SIGKILL)
            process.wait()
            closing.close()
        self._running.clear()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note signals to end, and leave no process running."""

        def note(number: int, _: FrameType | None) -> None:
            self._signal = number

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)


def _start(job: Job) -> tuple[Popen[bytes], float, ExitStack]:
    """Start a step: its process, when it began, and what is closed when it has ended."""
    words = job.words()
    job.prepare()
    with ExitStack() as opened:
        log = None
        if job.log is not None:
            job.log.parent.mkdir(parents=True, exist_ok=True)
            log = opened.enter_context(open(job.log, "ab"))
            log.write(f"$ {shown_command(words)}\n".encode(errors="backslashreplace"))
            log.flush()
        process = opened.enter_context(started_words(words, job.threads, log))
        return process, time.monotonic(), opened.pop_all()


def _signal_group(process: Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it and all that it had started have ended
        os.killpg(process.pid, number)


def _status(status: int) -> int:
    """An exit status as a shell reports it, also of a process that a signal ended."""
    return 128 - status if status < 0 else status


def words_of(log: Path, most: int = 16_384) -> list[str]:
    """The lines that a step printed in its last run.

    Args:
        log: Its log file.
        most: Bytes that are read, from the end of the file.
    """
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - most))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[
        len(lines) - next((n for n, line in enumerate(reversed(lines)) if line.startswith("$ ")), len(lines)) :
    ]


def last_words(log: Path | None) -> str:
    """The last message of a step: its error, or else its last line; of one without a log where to look for it."""
    if log is None:
        return "its output is above"
    own = [line.strip() for line in words_of(log) if line.strip()]
    errors = [line for line in own if line.startswith("error: ")]
    return (errors or own or ["no output"])[-1]


def losses(outcomes: Mapping[Key, Outcome], jobs: Mapping[Key, Job]) -> list[str]:
    """A line for each step that failed, and one for those that were left out because of it."""
    lines, left = [], [key for key, outcome in outcomes.items() if outcome.word == "left out"]
    for key, outcome in outcomes.items():
        if outcome.word == "failed":
            log = jobs[key].log
            where = "" if log is None else f" ({shown_path(log)})"
            lines.append(f"{jobs[key].title}: failed with status {outcome.status}: {outcome.message}{where}")
    if left:
        lines.append(f"left out, since they need what failed: {'; '.join(jobs[key].title for key in left)}")
    return lines


def print_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
