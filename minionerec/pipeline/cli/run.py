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
from minionerec.core.paths import find_path, path_word, shown_path
from minionerec.core.processes import is_main_process, join_for_training, wait_for_everyone
from minionerec.core.values import parse_yaml, read_yaml
from minionerec.pipeline.cli.doctor import would_do
from minionerec.pipeline.cli.launch import run_words, shown_command
from minionerec.pipeline.cli.plan import Job, Key, Plan, between, chosen, jobs_before, plan_of
from minionerec.pipeline.cli.recipes import Recipe, read_recipe
from minionerec.pipeline.cli.runner import Outcome, Runner, losses, print_line, words_of
from minionerec.pipeline.settings import Settings

logger = get_logger(__name__)

SUMMARY = "Run the steps of a recipe, each after its dependencies"
_MOST = 2**20  # bytes of a log that are printed when its step has ended


def run_arguments(program: str) -> CommandParser:
    """The options of `minionerec run`."""
    parser = CommandParser(
        prog=program,
        description=f"{SUMMARY}. Up-to-date steps are skipped; the same command resumes after an interruption.",
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument("recipe", help="name of a shipped recipe, e.g. demo, or a YAML file (docs/recipes.md)")
    parser.add_argument("--dry-run", "--list", dest="dry", action="store_true", help="show what each step would do")
    parser.add_argument("--from", dest="first", metavar="STEP", help="begin with this step, e.g. grpo")
    parser.add_argument("--until", dest="last", metavar="STEP", help="end with this step, e.g. eval_sft")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        metavar="STEP",
        help="these steps and their dependencies",
    )
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
    given = parser.parse_args(words)
    changes = parsed_changes(given.changes)
    recipe = with_numbers(read_recipe(given.recipe, changes), given.jobs, given.threads)
    plan = Plan(recipe, parsed_seeds(given.seeds), in_files=bool(changes))
    jobs = between(wanted_jobs(plan, given.only), given.first, given.last, given.recipe)
    if given.dry:
        print("\n".join(listed(jobs)))
        return
    status = _run_steps(recipe, jobs)
    if status:
        raise SystemExit(status)


def parsed_seeds(text: str | None) -> tuple[int, ...]:
    """The seeds of `--seeds`; none without it.

    Raises:
        ConfigError: If it is not a list of different whole numbers from 0.
    """
    words = [] if text is None else text.split(",")
    if not all(word.isascii() and word.isdecimal() for word in words) or len(set(map(int, words))) < len(words):
        raise ConfigError(f"--seeds {text}: expected different whole numbers, such as 42,43,44.")
    return tuple(map(int, words))


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


def with_numbers(recipe: Recipe, jobs: int | None, threads: int | None) -> Recipe:
    """A recipe with another number of steps at a time, or of threads.

    Raises:
        ConfigError: If a number is invalid, or several steps at a time would each start processes on all devices.
    """
    before = recipe.settings
    settings = replace(
        before, jobs=before.jobs if jobs is None else jobs, threads=before.threads if threads is None else threads
    )
    launch = settings.launch if settings.jobs > 1 else None
    processes = read_yaml(find_path(launch)).get("num_processes", 1) if launch else 1
    if processes != 1:
        raise ConfigError(
            f"{recipe.name}: jobs is {settings.jobs}, but each launch by {launch} starts {processes} processes; set "
            "jobs to 1."
        )
    return replace(recipe, settings=settings)


def wanted_jobs(plan: Plan, only: Sequence[str] | None) -> dict[Key, Job]:
    """The jobs of a plan that the command line selects; everything in the file is checked.

    Raises:
        ConfigError: If there is no such step, or the file is wrong.
    """
    jobs = plan.all()
    for name in only or ():
        if name not in plan.recipe.steps:
            known = ", ".join(plan.recipe.steps)
            raise ConfigError(f"--only {name}: {plan.recipe.file} has no such step. Its steps: {known}.")
    return chosen(jobs, [key for key in jobs if only is None or key.step in only])


def listed(jobs: Mapping[Key, Job]) -> list[str]:
    """A line for each job: what it would do, and why."""
    width = max((len(key.title) for key in jobs), default=0)
    lines, current = [], set()
    for key, job in jobs.items():
        later = next((need for need in job.needs if need not in current), None)
        if later is None:
            action = would_do(job.settings)
            if action == "up to date":
                current.add(key)
        else:
            action = f"would run, after {later.title}"
        lines.append(f"{key.title:<{width}}  {action}")
    return [*lines, f"{len(current)} of {len(jobs)} steps are up to date."]


def _run_steps(recipe: Recipe, jobs: Mapping[Key, Job]) -> int:
    """Run the steps of a recipe, then print their times, and the report's table once more.

    One at a time prints as it runs; of several, each one's output is in `OUTPUT.log`, and is printed when it ends.
    """
    live = recipe.settings.jobs == 1
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as spare:
        jobs = {key: _with_log(job, live, Path(spare)) for key, job in jobs.items()}
        outcomes = Runner(recipe.settings.jobs, print_line, _say_started, _show_words).run(jobs)
        lost = losses(outcomes, jobs)
        ended = [key for key, outcome in outcomes.items() if outcome.word == "done"]
        shown = [key for key in ended if jobs[key].spec.shown]
        again = shown and (shown[-1] != ended[-1] or not live)
        closing = _words(jobs[shown[-1]]) if again else []
    if lost:
        for line in [*lost, "Fix it and run again to resume."]:
            logger.error("%s", line)
        return _status(outcomes)
    print("\nWall time")
    for key in jobs:
        note = "up to date" if outcomes[key].word != "done" else ""
        print(f"  {key.title:<16}{outcomes[key].seconds:8.1f} s  {note}".rstrip())
    print(f"  {'all':<16}{time.monotonic() - begun:8.1f} s")
    closing += serving(recipe, jobs)
    print("".join(f"\n{line}" for line in closing), end="\n" if closing else "")
    sys.stdout.flush()
    return 0


def serving(recipe: Recipe, jobs: Mapping[Key, Job]) -> list[str]:
    """How to serve the model that the recipe names.

    Args:
        recipe: The recipe.
        jobs: The jobs that were run.
    """
    found = [job for job in jobs.values() if job.key.step == recipe.settings.serve]
    if not found:
        return []
    return [f"Serve it: {shlex.join(['minionerec', 'serve', '--checkpoint', path_word(found[0].folder)])}"]


def _with_log(job: Job, live: bool, spare: Path) -> Job:
    if live:
        return replace(job, log=spare / f"{job.key.step}.log") if job.spec.shown else job
    return replace(job, log=spare / f"{job.key.step}.log" if job.output is None else Path(f"{job.output}.log"))


def _say_started(job: Job) -> None:
    log = f"  > {shown_path(job.log)}" if job.log is not None and not job.spec.shown else ""
    print_line(f"$ {shown_command(job.words())}{log}")


def _words(job: Job) -> list[str]:
    return [] if job.log is None else words_of(job.log, _MOST)


def _show_words(job: Job) -> None:
    print_line("\n".join([*_words(job), ""]))


def _status(outcomes: Mapping[Key, Outcome]) -> int:
    return next((outcome.status for outcome in outcomes.values() if outcome.status), 1)


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
