"""Running jobs: several at a time, each after its dependencies, with log files; continues after failures."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO

from minionerec.core.paths import shown_path
from minionerec.core.records import duration
from minionerec.pipeline.cli.launch import shown_command, started_words
from minionerec.pipeline.cli.plan import Job, Key

_PAUSE = 0.05
_PATIENCE = 20.0
"""Seconds that a process gets to end before it is killed."""
_MOST = 2**20
"""Bytes of a log that are printed when its job has ended."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        word: "done", "up to date", "failed" or "left out".
        status: Exit status of its process; 0 where there was none.
        seconds: Duration.
        lines: Output of a job with a log file.
    """

    word: str
    status: int = 0
    seconds: float = 0.0
    lines: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """Whether its output is up to date."""
        return self.word in ("done", "up to date")


class _Process:
    """A started job; what it prints goes to the job's log, or to this process's own streams."""

    def __init__(self, job: Job):
        words = job.words()
        job.prepare()
        self._begin = time.monotonic()
        self._log: BinaryIO | None = None
        with ExitStack() as opened:
            if job.log is not None:
                job.log.parent.mkdir(parents=True, exist_ok=True)
                self._log = opened.enter_context(open(job.log, "a+b"))
                self._log.write(f"$ {shown_command(words)}\n".encode(errors="backslashreplace"))
                self._log.flush()
            self._offset = 0 if self._log is None else self._log.tell()
            self._process = opened.enter_context(started_words(words, job.threads, self._log))
            self.close = opened.pop_all().close

    def outcome(self) -> Outcome | None:
        """Outcome of the job; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        lines: list[str] = []
        if self._log is not None:
            self._log.seek(max(self._offset, self._log.seek(0, os.SEEK_END) - _MOST))
            lines = self._log.read().decode(errors="replace").splitlines()
        status = 128 - status if status < 0 else status  # as a shell reports a signal
        return Outcome("failed" if status else "done", status, time.monotonic() - self._begin, lines)

    def end(self, deadline: float) -> None:
        """Wait for the process, which was asked to end, and kill it after a deadline."""
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        self.send(signal.SIGKILL)
        self._process.wait()
        self.close()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it has started."""
        with suppress(ProcessLookupError, PermissionError):  # they have ended
            os.killpg(self._process.pid, number)


def run_jobs(jobs: Mapping[Key, Job], most: int) -> dict[Key, Outcome]:
    """Run jobs, each after its dependencies, and print what happens.

    A signal to end ends them, and then the command, with the status that a shell expects.

    Args:
        jobs: The jobs in the order in which they are started; all dependencies are among them.
        most: Jobs at a time.

    Returns:
        The outcome of each, in the order in which they ended.

    Raises:
        KeyboardInterrupt: After an interruption; no process is left then.
        SystemExit: Likewise after another signal to end.
    """
    outcomes: dict[Key, Outcome] = {}
    waiting, running = dict(jobs), dict[Key, _Process]()

    def end(key: Key, outcome: Outcome, text: str) -> None:
        outcomes[key] = outcome
        print(f"[{len(outcomes)}/{len(jobs)}] {key.title}: {text}", flush=True)

    with _noted_signals() as signals, _ended_at_exit(running):
        while (waiting or running) and not signals:
            for key, job in [item for item in waiting.items() if outcomes.keys() >= set(item[1].needs)]:
                if not all(outcomes[need].good for need in job.needs):
                    outcomes[key] = Outcome("left out")
                elif signals or len(running) == most:
                    continue
                elif job.is_current():
                    end(key, Outcome("up to date"), "up to date")
                else:
                    log = "" if job.log is None or job.spec.shown else f"  > {shown_path(job.log)}"
                    print(f"$ {shown_command(job.words())}{log}", flush=True)
                    running[key] = _Process(job)
                del waiting[key]
            for key, outcome in [(key, process.outcome()) for key, process in running.items()]:
                if outcome is not None:
                    running.pop(key).close()
                    text = f"failed with status {outcome.status} after" if outcome.status else "done in"
                    end(key, outcome, f"{text} {duration(outcome.seconds)}")
                    print("\n".join([*outcome.lines, ""]), flush=True)
            time.sleep(_PAUSE if running else 0)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if signals:
        sys.stderr.write("ended by a signal; run the same command again to resume\n")
        raise SystemExit(128 + signals[0])
    return outcomes


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Collect signals to end, in place of what they do otherwise."""
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)

    handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _ended_at_exit(running: dict[Key, _Process]) -> Iterator[None]:
    """Leave no process running: end those that are, and kill them where they take too long."""
    try:
        yield
    finally:
        for process in running.values():
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        for process in running.values():
            process.end(deadline)


def failures(outcomes: Mapping[Key, Outcome], jobs: Mapping[Key, Job]) -> list[str]:
    """A line for each job that failed, with its last message, and one for those that were left out because of it."""
    lines = []
    for key, outcome in outcomes.items():
        if outcome.word == "failed":
            printed = [line.strip() for line in outcome.lines if line.strip()] or ["no output"]
            last = [line for line in printed if line.startswith("error: ")] or printed
            log = jobs[key].log
            message = "its output is above" if log is None else f"{last[-1]} ({shown_path(log)})"
            lines.append(f"{key.title}: failed with status {outcome.status}: {message}")
    left_out = "; ".join(key.title for key, outcome in outcomes.items() if outcome.word == "left out")
    return [*lines, f"left out, since they need what failed: {left_out}"] if left_out else lines
