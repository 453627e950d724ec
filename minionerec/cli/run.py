"""`minionerec run`: the jobs of a recipe's plan, and the tables of a recipe with cases."""

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from minionerec.cli.doctor import would_do
from minionerec.cli.launch import run_words, shown_command
from minionerec.cli.plan import (
    MEASURED,
    PREPARED,
    TRAINED,
    Filled,
    Job,
    Key,
    Plan,
    between,
    chosen,
    jobs_before,
    plan_of,
)
from minionerec.cli.recipes import Recipe, all_steps, at, read_recipe
from minionerec.cli.runner import Outcome, Runner, losses, print_line, words_of
from minionerec.cli.search import check_search, search_settings, with_winner
from minionerec.core.artefacts import seed_folders
from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger
from minionerec.core.paths import find_path, path_word, shown_path
from minionerec.core.processes import is_main_process, join_for_training, wait_for_everyone
from minionerec.core.settings import Settings, typed_values
from minionerec.core.stages import STAGES
from minionerec.core.values import read_yaml
from minionerec.data.config import PrepareConfig

# The final jobs of a recipe with cases: comparisons of its cases and the experiment log.

COMPARE, REPORT, LOG, PREFERENCE = "compare", "report", "experiment-log", "preference-report"
_OF_ENTRY = ("corpus", "items", "protocol", "sids", "reference", "split")
"""Settings of the log that each data set has."""


def check_tables(plan: Plan) -> None:
    """Check the settings of a recipe's tables and log, before anything is run.

    Raises:
        ConfigError: If a table is about a step without predictions, or its settings do not fit.
    """
    recipe = plan.recipe
    for data in recipe.data:
        for name in recipe.compare:
            _, stage, values = _table(plan, data, name)
            where = f"{recipe.file}: compare.{name}"
            at(
                where,
                partial(STAGES[stage].config_class(), **{**values, **_compared(stage, {"a": "a"}), "output": "a"}),
            )
    if recipe.log is not None:
        _log_settings(plan, {data: {"a": "a"} for data in recipe.data})


def _table(plan: Plan, data: str, name: str) -> tuple[str, str, dict[str, Any]]:
    """The step whose outputs a table compares, the stage that makes the table, and its other settings."""
    values, where = dict(plan.recipe.compare[name]), f"{plan.recipe.file}: compare.{name}"
    of = str(values.pop("of", name))
    stage = PREFERENCE if _measured(plan.recipe, of, where) == "preference" else REPORT
    return of, stage, _typed(stage, _filled(plan, data, values, where), where)


def _measured(recipe: Recipe, of: str, where: str) -> str:
    """The kind of artefact that a step of the cases makes, of those that tables compare."""
    steps = [step for case in recipe.cases.values() for step in all_steps(case, recipe.cases)]
    kinds = {step.name: getattr(step.kind, "kind", "") for step in steps}
    names = [name for name, kind in kinds.items() if kind in (*MEASURED, *TRAINED)]
    if of not in names:
        raise ConfigError(f"{where}.of is {of!r}; steps with predictions: {', '.join(sorted(names)) or 'none'}.")
    return kinds[of]


def tables(plan: Plan, say: Callable[[str], None]) -> Iterator[Job]:
    """The jobs of all tables and of the log, over the outputs that are up to date.

    Args:
        plan: That of the recipe.
        say: Called with a line about each case that is left out.
    """
    recipe = plan.recipe
    folders = partial(_folders, recipe, plan.all(), {})
    for data in recipe.data:
        for name in recipe.compare:
            of, stage, values = _table(plan, data, name)
            found = folders(data, of, say)
            if runs := {label: str(folder) for label, (folder, exists) in found.items() if exists}:
                values |= {**_compared(stage, runs), "output": str(recipe.folder / data / COMPARE / name)}
                yield _job(recipe, Key(data, COMPARE, name, None), stage, values)
    if recipe.log is not None:
        of = str(recipe.log.get("of", "test"))
        every = {data: folders(data, of, lambda line: None) for data in recipe.data}
        stages = {data: {label: str(folder) for label, (folder, _) in found.items()} for data, found in every.items()}
        stages = {data: folders for data, folders in stages.items() if folders}
        if any(exists for found in every.values() for _, exists in found.values()):
            yield _job(recipe, Key("all", "log", LOG, None), LOG, _log_settings(plan, stages))


def _job(recipe: Recipe, key: Key, stage: str, values: Mapping[str, Any]) -> Job:
    spec = STAGES[stage]
    output = Path(values["output"])
    file = output.with_name(f"{output.name}.yaml")
    return Job(
        key,
        spec,
        spec.config_class()(**values),
        str(file),
        values,
        threads=recipe.settings.threads,
        log=file.with_suffix(".log"),
    )


def _compared(stage: str, runs: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a table that name its inputs."""
    return {"runs": runs} if stage == PREFERENCE else {"predictions": runs, "layout": "comparison"}


def _typed(stage: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in ("runs", "predictions", "layout", "entries", "output"):
        if key in values:
            raise ConfigError(f"{where}: {key} is set by the recipe itself; leave it out.")
    return typed_values(STAGES[stage].config_class(), values, where)


def _filled(plan: Plan, data: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings with the placeholders of a data set filled."""
    text = Filled(plan, Key(data, PREPARED, "", None), None, None)
    return {key: text.of(value, f"{where}: {key}") for key, value in values.items()}


def _log_settings(plan: Plan, stages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The settings of the experiment log: one entry per data set.

    Args:
        plan: That of the recipe.
        stages: Data set to label to the folder of predictions.
    """
    recipe = plan.recipe
    where, raw = f"{recipe.file}: log", dict(recipe.log or {})
    _measured(recipe, str(raw.pop("of", "test")), where)
    entries: dict[str, Any] = {}
    for data, folders in stages.items():
        own = {key: value for key, value in raw.items() if key in _OF_ENTRY}
        entries[data] = {**_filled(plan, data, own, where), "stages": dict(folders)}
    values = _typed(LOG, {key: value for key, value in raw.items() if key not in _OF_ENTRY}, where)
    values |= {"entries": entries, "output": str(recipe.folder / "log")}
    at(where, lambda: STAGES[LOG].config_class()(**values))
    return values


def _folders(
    recipe: Recipe, jobs: Mapping[Key, Job], known: dict[Key, bool], data: str, of: str, say: Callable[[str], None]
) -> dict[str, tuple[Path, bool]]:
    """Label of each case with such a step to the folder of its seeds, and whether it holds predictions.

    Args:
        recipe: The recipe.
        jobs: Its jobs, all of them.
        known: Which of them are up to date, with all of their dependencies, as far as that was asked.
        data: The data set.
        of: Name of the step.
        say: Called with a line about each case that is left out.
    """

    def is_current(key: Key) -> bool:
        if key not in known:
            known[key] = all(map(is_current, jobs[key].needs)) and jobs[key].is_current()
        return known[key]

    found = {}
    for case in recipe.cases.values():
        if data not in case.data or all(step.name != of for step in case.steps):
            continue
        own = {key.seed: job for key, job in jobs.items() if key[:3] == (data, case.name, of)}
        job = next(iter(own.values()))
        trained = getattr(type(job.settings), "kind", "") in TRAINED
        folder = job.folder.parent if trained else job.folder.parent.parent
        seeds = list(seed_folders(folder, "predictions"))
        stale = [seed for seed in seeds if seed not in own or seed not in case.seeds or not is_current(own[seed].key)]
        if stale:
            say(
                f"{data}, {of}: {case.label} is left out of the table: {folder}/seed-{stale[0]} is of other "
                "settings or inputs, or of a seed that the recipe does not name. Run the recipe, or remove it."
            )
        else:
            found[case.label] = (folder, bool(seeds))
    return found


logger = get_logger(__name__)

SUMMARY = "Run the steps of a recipe, each after its dependencies"
_MOST = 2**20  # bytes of a log that are printed when its step has ended
_Wanted = Callable[[Plan], dict[Key, Job]]


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
        metavar="NAME",
        help="these cases, or steps without cases, and their dependencies",
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="these seeds of the recipe's")
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
        ConfigError: If the recipe or a name in it is wrong, or another run of its cases is running.
        SystemExit: With the status of the first step that failed, or of the signal that ended the run.
    """
    parser = run_arguments(program)
    if not words:
        print(parser.format_help(), end="")
        return
    given = parser.parse_args(words)
    recipe = with_changes(read_recipe(given.recipe), given.jobs, given.threads)
    plan = Plan(recipe)
    check_search(plan)

    def wanted(plan: Plan) -> dict[Key, Job]:
        return between(wanted_jobs(plan, given.only, given.seeds), given.first, given.last, given.recipe)

    jobs = wanted(with_winner(plan))
    if given.dry:
        print("\n".join(listed(recipe, jobs)))
        return
    with ExitStack() as held:
        if not recipe.has_cases:
            status = _run_steps(recipe, jobs)
        else:
            held.callback(_locked(recipe).release)
            status = _run_cases(plan, given.only, wanted)
    if status:
        raise SystemExit(status)


def _locked(recipe: Recipe) -> FileLock:
    recipe.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(recipe.folder / ".run.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{recipe.folder}: another run of this recipe is running. Wait for it.") from None
    return lock


def with_changes(recipe: Recipe, jobs: int | None, threads: int | None) -> Recipe:
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


def wanted_jobs(plan: Plan, only: Sequence[str] | None, seeds: Sequence[int] | None) -> dict[Key, Job]:
    """The jobs of a plan that the command line selects; everything in the file is checked.

    Raises:
        ConfigError: If there is no such case, step or seed, or the file is wrong.
    """
    recipe = plan.recipe
    if seeds is not None and not recipe.settings.seeds:
        raise ConfigError(f"--seeds {seeds[0]}: {recipe.name} has no `seeds`; its steps set their own.")
    strange = [seed for seed in seeds or () if seed not in recipe.settings.seeds]
    if strange:
        seeds_known = ", ".join(map(str, recipe.settings.seeds))
        raise ConfigError(f"--seeds {strange[0]}: {recipe.file} has no such seed. Its seeds: {seeds_known}.")
    found = plan.all()
    searched = [recipe.search.name] if recipe.search else []
    known = [*recipe.cases, *searched] if recipe.has_cases else [key.step for key in found]
    unknown = [name for name in only or () if name not in known]
    if unknown:
        what = "case" if recipe.has_cases else "step"
        raise ConfigError(f"--only {unknown[0]}: {recipe.file} has no such {what}. Its {what}s: {', '.join(known)}.")
    check_tables(plan)
    if seeds is not None:
        some = tuple(seed for seed in recipe.settings.seeds if seed in seeds)
        found = replace(plan, seeds=some, jobs={}).all()
    wanted = [key for key in found if only is None or (key.case if recipe.has_cases else key.step) in only]
    return chosen(found, wanted)


def listed(recipe: Recipe, jobs: Mapping[Key, Job]) -> list[str]:
    """A line for each step: what it would do, and why."""
    width = max((len(key.title) for key in jobs), default=0)
    lines, current = [], set()
    if recipe.search is not None:
        lines.append(f"search: {recipe.search.trials} trials; the best settings are the case {recipe.search.name}")
    for key, job in jobs.items():
        later = next((need for need in job.needs if need not in current), None)
        if later is None:
            action = would_do(job.settings)
            if action == "up to date":
                current.add(key)
        else:
            action = f"would run, after {later.title}"
        lines.append(f"{key.title:<{width}}  {action}")
    ends = [f"compare {name}" for name in recipe.compare] + ["the experiment log"] * (recipe.log is not None)
    then = f" Then: {', '.join(ends)}." if ends else ""
    return [*lines, f"{len(current)} of {len(jobs)} steps are up to date.{then}"]


def _run_steps(recipe: Recipe, jobs: Mapping[Key, Job]) -> int:
    """Run the steps of a recipe without cases, then print their times, and the report's table once more.

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
    """How to serve the model that the recipe names, with the items table as columns to filter by, where it fits.

    Args:
        recipe: The recipe.
        jobs: The jobs that were run.
    """
    found = [job for job in jobs.values() if job.key.step == recipe.settings.serve]
    if not found:
        return []
    words = ["minionerec", "serve", "--checkpoint", path_word(found[0].folder)]
    for need in found[0].needs:
        data = jobs[need].settings if need in jobs else None
        if isinstance(data, PrepareConfig) and data.items and data.item_column == "item_id":
            words += ["--items", path_word(data.items)]
    return [f"Serve it: {shlex.join(words)}"]


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


def _run_cases(plan: Plan, only: Sequence[str] | None, wanted: _Wanted) -> int:
    """Run the search, the steps of all cases, then the tables; the status of the whole."""
    recipe = plan.recipe
    runner = Runner(recipe.settings.jobs, print_line)
    lost: list[str] = []
    if recipe.search is not None and recipe.search.name in (only or [recipe.search.name]):
        lost += search_settings(plan, recipe.search, runner)
    plan = with_winner(plan)
    jobs = wanted(plan)
    outcomes = dict(runner.run(jobs))
    ending = {job.key: job for job in tables(plan, print_line)}
    outcomes |= runner.run(ending)
    lost += losses(outcomes, {**jobs, **ending})
    for key, job in ending.items():
        if outcomes[key].good and key.case == COMPARE:
            print_line(f"\n{(job.folder / 'report.md').read_text(encoding='utf-8').rstrip()}\n")
    for key, job in ending.items():
        if outcomes[key].good:
            print_line(f"{key.case} {key.step}: {job.output}")
    if not lost:
        return 0
    bad = sum(not outcome.good for outcome in outcomes.values())
    logger.error("%d of %d steps have no result; fix what failed and run again to resume:", bad, len(outcomes))
    for line in lost:
        logger.error("  %s", line)
    return _status(outcomes)


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
