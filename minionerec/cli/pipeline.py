"""`minionerec run`: the steps of a recipe as a user would type them, one after another or several at a time."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minionerec.cli.launch import run_words, shown_command
from minionerec.cli.recipes import Step, between, read_recipe, steps_at_a_time, steps_before
from minionerec.cli.runner import Outcome, Runner, Work, check_launch, ending_by_signal, losses, print_line, words_of
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.places import shown_path
from minionerec.core.urls import is_remote

logger = get_logger(__name__)
_MOST = 2**20  # bytes of a log that are shown when its step has ended


def run_pipeline(
    recipe: str | os.PathLike[str], first: str | None = None, last: str | None = None, jobs: int | None = None
) -> None:
    """Run the steps of a recipe, print each command, its wall time, and at the end the report's table.

    Args:
        recipe: Folder with a `pipeline.yaml`, such a file itself, or the name of a shipped recipe.
        first: Name of the step to begin with; the earlier ones are taken as they are.
        last: Name of the step to end with.
        jobs: Steps at a time, each after those whose output it reads; as the recipe says if None. One at a time prints
            as it goes; of several, each one's words stand in `OUTPUT.log`, and are printed when it has ended.

    Raises:
        ConfigError: If the recipe is malformed or has no step of such a name, or several steps at a time would each
            start processes on all devices.
        SystemExit: With the status of the first stage that fails, or of the signal that ended the run.
    """
    steps = between(read_recipe(recipe), first, last, recipe)
    most = steps_at_a_time(recipe) if jobs is None else jobs
    if most < 1:
        raise ConfigError(f"--jobs {most}: expected a whole number of steps at a time, at least 1.")
    check_launch(most, steps[0].launch, recipe)
    start = time.monotonic()
    seconds, closing = _one_by_one(steps) if most == 1 else _several(steps, most)
    print("\nWall time")
    for name, took, note in seconds:
        print(f"  {name:<16}{took:8.1f} s  {note}".rstrip())
    print(f"  {'all':<16}{time.monotonic() - start:8.1f} s")
    if closing:
        print(f"\n{closing}", end="")
    sys.stdout.flush()


_Seconds = list[tuple[str, float, str]]


def _one_by_one(steps: Sequence[Step]) -> tuple[_Seconds, str]:
    """Run steps in order; name, seconds and a note of each, and what is to be shown again at the end."""
    seconds: _Seconds = []
    closing = ""
    for number, step in enumerate(steps, 1):
        print(f"\n[{number}/{len(steps)}] {step.name}", flush=True)
        start = time.monotonic()
        if step.is_current():
            print(f"{step.output} is up to date.", flush=True)
            seconds.append((step.name, time.monotonic() - start, "up to date"))
            continue
        shown = _run(step)
        closing = shown if number < len(steps) else ""
        seconds.append((step.name, time.monotonic() - start, ""))
    return seconds, closing


def _run(step: Step) -> str:
    """Run one step; what it printed, where a pipeline shows that again at its end."""
    words = step.words()
    print(f"$ {shown_command(words)}", flush=True)
    done = run_words(words, step.threads, subprocess.PIPE if step.spec.shown else None)
    if step.spec.shown:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        logger.error("Stage %s failed with status %d; mend it and run again to go on.", step.name, done.returncode)
        raise SystemExit(done.returncode)
    return done.stdout or ""


@dataclass(frozen=True)
class _StepWork:
    """A step of a recipe among others that run at the same time.

    Attributes:
        step: The step.
        needs: Names of the earlier steps whose output it reads, also through others.
        log: The file of what it says.
    """

    step: Step
    needs: tuple[str, ...]
    log: Path

    @property
    def title(self) -> str:
        """Its name."""
        return self.step.name

    def prepare(self) -> None:
        """Nothing: its settings are there."""


def _several(steps: Sequence[Step], most: int) -> tuple[_Seconds, str]:
    """Run steps, some at a time; what `_one_by_one` gives back."""
    with tempfile.TemporaryDirectory() as spare, ending_by_signal():
        work = {step.name: _work(step, steps[:place], Path(spare)) for place, step in enumerate(steps)}
        outcomes = Runner(most, print_line, _say_started, _show_words).run(work)
        _stop_at_failures(outcomes, work)
        shown = [name for name, outcome in outcomes.items() if work[name].step.spec.shown and outcome.word == "done"]
        closing = "".join(f"{line}\n" for line in words_of(work[shown[-1]].log, _MOST)) if shown else ""
    seconds = [
        (step.name, outcomes[step.name].seconds, "up to date" if outcomes[step.name].word != "done" else "")
        for step in steps
    ]
    return seconds, closing


def _work(step: Step, earlier: Sequence[Step], spare: Path) -> _StepWork:
    """A step with what it needs of earlier ones; the log of one that writes nothing here lies in a folder to spare."""
    needs = tuple(before.name for before in steps_before(earlier, step.settings))
    here = step.output and not is_remote(step.output)
    return _StepWork(step, needs, Path(f"{step.output}.log") if here else spare / f"{step.name}.log")


def _say_started(work: Work) -> None:
    print_line(f"$ {shown_command(work.step.words())}  > {shown_path(work.log)}")


def _show_words(work: Work) -> None:
    print_line("\n".join([*words_of(work.log, _MOST), ""]))


def _stop_at_failures(outcomes: Mapping[str, Outcome], work: Mapping[str, Work]) -> None:
    status = next((outcome.status for outcome in outcomes.values() if outcome.status), 0)
    if status:
        for line in losses(outcomes, work):
            logger.error("%s", line)
        logger.error("Mend it and run again to go on.")
        raise SystemExit(status)
