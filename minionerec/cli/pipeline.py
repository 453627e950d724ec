"""`minionerec run`: the steps of a recipe one after another, as a user would type them."""

import os
import subprocess
import sys
import time

from minionerec.cli.launch import run_words, shown_command
from minionerec.cli.recipes import Step, between, read_recipe
from minionerec.core.log import get_logger

logger = get_logger(__name__)


def run_pipeline(recipe: str | os.PathLike[str], first: str | None = None, last: str | None = None) -> None:
    """Run the steps of a recipe in order, print each command, its wall time, and at the end the report's table.

    Args:
        recipe: Folder with a `pipeline.yaml`, such a file itself, or the name of a shipped recipe.
        first: Name of the step to begin with; the earlier ones are taken as they are.
        last: Name of the step to end with.

    Raises:
        ConfigError: If the recipe is malformed or has no step of such a name.
        SystemExit: With the status of the first stage that fails.
    """
    steps = between(read_recipe(recipe), first, last, recipe)
    seconds: list[tuple[str, float, str]] = []
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
    print("\nWall time")
    for name, duration, note in seconds:
        print(f"  {name:<16}{duration:8.1f} s  {note}".rstrip())
    print(f"  {'all':<16}{sum(duration for _, duration, _ in seconds):8.1f} s")
    if closing:
        print(f"\n{closing}", end="")
    sys.stdout.flush()


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
