"""`minionerec run`: the jobs of a recipe's plan."""

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.paths import path_word
from minionerec.core.processes import is_main_process, join_for_training, wait_for_everyone
from minionerec.core.values import parse_yaml, read_yaml
from minionerec.pipeline.cli.doctor import would_do
from minionerec.pipeline.cli.launch import run_words, shown_command
from minionerec.pipeline.cli.plan import Job, Key, Plan, jobs_before, plan_of, selected_jobs
from minionerec.pipeline.cli.recipes import Recipe, read_recipe
from minionerec.pipeline.cli.runner import failures, run_jobs
from minionerec.pipeline.settings import Settings

logger = get_logger(__name__)

SUMMARY = "Run the steps of a recipe, each after its dependencies"


def run_arguments(program: str) -> CommandParser:
    """The options of `minionerec run`."""
    parser = CommandParser(
        prog=program,
        description=f"{SUMMARY}. Up-to-date steps are skipped; the same command resumes after an interruption.",
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument("recipe", help="name of a shipped recipe, e.g. demo, or a YAML file (docs/how-to/recipes.md)")
    parser.add_argument("--dry-run", "--list", dest="dry", action="store_true", help="show what each step would do")
    parser.add_argument("--from", dest="first", metavar="STEP", help="begin with this step, e.g. grpo")
    parser.add_argument("--until", dest="last", metavar="STEP", help="end with this step, e.g. eval_sft")
    parser.add_argument("--only", nargs="+", action="extend", metavar="STEP", help="these steps and their dependencies")
    parser.add_argument(
        "--seeds", metavar="N,N,...", help="run trainings, and steps that read them, with each of these, e.g. 42,43,44"
    )
    parser.add_argument(
        "--set",
        dest="changes",
        nargs="+",
        action="extend",
        default=[],
        metavar="STEP.SETTING=VALUE",
        help="settings of steps that replace those of the recipe, e.g. sft.epochs=2",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="steps that run at a time, instead of the recipe's number"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each step, instead of the recipe's")
    return parser


def run_recipe(program: str, words: Sequence[str]) -> None:
    """Run, or list, the recipe that the command line names; without any word, print the usage.

    Args:
        program: Name of the command.
        words: The words after it.

    Raises:
        ConfigError: If the recipe or a name in it is wrong.
        SystemExit: With the status of the first step that failed, or of the signal that ended the run.
    """
    parser = run_arguments(program)
    if not words:
        print(parser.format_help(), end="")
        return
    options = parser.parse_args(words)
    changes = parsed_changes(options.changes)
    recipe = _with_numbers(read_recipe(options.recipe, changes), jobs=options.jobs, threads=options.threads)
    plan = Plan(recipe, parsed_seeds(options.seeds), in_files=bool(changes))
    jobs = selected_jobs(plan, options.only, options.first, options.last)
    if options.dry:
        print("\n".join(listed(jobs)))
    else:
        _run_steps(recipe, jobs)


def parsed_seeds(text: str | None) -> list[int]:
    """The seeds of `--seeds`; none without it.

    Raises:
        ConfigError: If it is not a list of different whole numbers from 0.
    """
    words = [] if text is None else text.split(",")
    if not all(word.isascii() and word.isdecimal() for word in words) or len(set(map(int, words))) < len(words):
        raise ConfigError(f"--seeds {text}: expected different whole numbers, such as 42,43,44.")
    return [int(word) for word in words]


def parsed_changes(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Step to the settings of `--set`.

    Raises:
        ConfigError: If a word is not STEP.SETTING=VALUE, with a value as in YAML.
    """
    changes: dict[str, dict[str, Any]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        step, _, setting = name.partition(".")
        if not (equals and step and setting):
            raise ConfigError(f"--set {word}: expected STEP.SETTING=VALUE, such as sft.epochs=2.")
        try:
            changes.setdefault(step, {})[setting] = parse_yaml(value)
        except ValueError as error:
            raise ConfigError(f"--set {word}: {error}") from None
    return changes


def _with_numbers(recipe: Recipe, **numbers: Any) -> Recipe:
    """A recipe with another number of steps at a time, or of threads.

    Raises:
        ConfigError: If a number is invalid, or several steps at a time would each start processes on all devices.
    """
    settings = replace(recipe.settings, **{name: number for name, number in numbers.items() if number is not None})
    processes = read_yaml(recipe.launch).get("num_processes", 1) if recipe.launch is not None else 1
    if settings.jobs > 1 and processes != 1:
        raise ConfigError(
            f"{recipe.name}: jobs is {settings.jobs}, but each launch by {settings.launch} starts {processes} "
            "processes; set jobs to 1."
        )
    return replace(recipe, settings=settings)


def listed(jobs: Mapping[Key, Job]) -> list[str]:
    """A line for each job: what it would do, and why."""
    width = max((len(key.title) for key in jobs), default=0)
    lines, current = [], set()
    for key, job in jobs.items():
        earlier = next((need for need in job.needs if need not in current), None)
        action = would_do(job.settings) if earlier is None else f"would run, after {earlier.title}"
        if action == "up to date":
            current.add(key)
        lines.append(f"{key.title:<{width}}  {action}")
    return [*lines, f"{len(current)} of {len(jobs)} steps are up to date."]


def _run_steps(recipe: Recipe, jobs: Mapping[Key, Job]) -> None:
    """Run the steps of a recipe, then print their times, and the report's table once more.

    One at a time prints as it runs; of several, each one's output is in `OUTPUT.log`, and is printed when it ends.
    """
    begun, is_live = time.monotonic(), recipe.settings.jobs == 1
    with tempfile.TemporaryDirectory() as folder:
        jobs = {key: replace(job, log=_log_file(job, is_live, Path(folder))) for key, job in jobs.items()}
        outcomes = run_jobs(jobs, recipe.settings.jobs)
    failed = failures(outcomes, jobs)
    if failed:
        for line in [*failed, "Fix it and run again to resume."]:
            logger.error("%s", line)
        raise SystemExit(next(outcome.status for outcome in outcomes.values() if outcome.status))
    print("\nWall time")
    for key in jobs:
        note = "" if outcomes[key].word == "done" else "up to date"
        print(f"  {key.title:<16}{outcomes[key].seconds:8.1f} s  {note}".rstrip())
    print(f"  {'all':<16}{time.monotonic() - begun:8.1f} s")
    done = [key for key, outcome in outcomes.items() if outcome.word == "done"]
    tables = [key for key in done if jobs[key].spec.shown]
    is_last = is_live and tables[-1:] == done[-1:]  # it stands right above
    closing = [*outcomes[tables[-1]].lines] if tables and not is_last else []
    closing += serving(recipe, jobs)
    if closing:
        print("", *closing, sep="\n", flush=True)


def serving(recipe: Recipe, jobs: Mapping[Key, Job]) -> list[str]:
    """The line on how to serve the model that a recipe names, if it is among the jobs."""
    folders = [job.folder for key, job in jobs.items() if key.step == recipe.settings.serve]
    return [f"Serve it: minionerec serve --checkpoint {shlex.quote(path_word(folder))}" for folder in folders[:1]]


def _log_file(job: Job, is_live: bool, folder: Path) -> Path | None:
    """The log file of a job, in a temporary folder where it has no output; None where it prints as it runs."""
    if is_live and not job.spec.shown:
        return None
    return folder / f"{job.title}.log" if is_live or job.output is None else Path(f"{job.output}.log")


def ensure_before(recipe: str, settings: Settings) -> None:
    """Make the outputs of a recipe that settings read, where they are missing or stale.

    In a launch of several processes the first one does it and the others wait. What the stages print goes to standard
    error, so that standard output holds the caller's own alone.

    Raises:
        SystemExit: With the status of the first stage that fails.
    """
    join_for_training()  # the group that a trainer may use later
    if is_main_process():
        for job in jobs_before(plan_of(recipe), settings).values():
            if job.is_current():
                continue
            logger.info("First %s: %s", job.title, shown_command(job.words()))
            done = run_words(job.words(), job.threads, sys.stderr)
            if done.returncode:
                logger.error("Stage %s, which this one needs, failed with status %d.", job.title, done.returncode)
                raise SystemExit(done.returncode)
    wait_for_everyone()
