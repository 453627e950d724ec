"""`minionerec study STUDY.yaml`: data sets, cases, seeds and changed settings as one run that ends in tables."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from minionerec.cli.doctor import would_do
from minionerec.cli.runner import Runner, check_launch, ending_by_signal, losses, print_line
from minionerec.cli.study_file import read_study
from minionerec.cli.study_plan import Job, Key, Plan, chosen
from minionerec.cli.study_search import check_search, search_settings, with_winner
from minionerec.cli.study_settings import Study
from minionerec.cli.study_tables import COMPARE, check_tables, tables
from minionerec.core.commands import CommandParser
from minionerec.core.errors import ConfigError
from minionerec.core.log import get_logger

logger = get_logger(__name__)

SUMMARY = "Run a study: cases, data sets and seeds in one resumable run that ends in tables"


def study_arguments(program: str) -> CommandParser:
    """The options of `minionerec study`."""
    parser = CommandParser(
        prog=program,
        description=f"{SUMMARY}. What is up to date is left as it is; the same command goes on after an interruption.",
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument("study", help="YAML file (docs/studies.md), or the name of a shipped one")
    parser.add_argument("--dry-run", "--list", dest="dry", action="store_true", help="say what each step would do, why")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases, and what they need")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="these seeds of the study's")
    parser.add_argument("--jobs", type=int, metavar="N", help="steps that run at a time, instead of the file's number")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each step, instead of the file's")
    return parser


def run_study(program: str) -> None:
    """Run, or list, the study that the command line names.

    Raises:
        ConfigError: If the file or a name in it is wrong, or another run of the study is at work.
        SystemExit: With the status of the first step that failed, or of the signal that ended the run.
    """
    given = study_arguments(program).parse_args()
    study = with_changes(read_study(given.study), given.jobs, given.threads)
    check_search(study)
    jobs = wanted_jobs(with_winner(study), given.only, given.seeds)
    if given.dry:
        print("\n".join(listed(study, jobs)))
        return
    study.place.mkdir(parents=True, exist_ok=True)
    lock = FileLock(study.place / ".study.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{study.place}: another run of this study is at work. Wait for it.") from None
    try:
        with ending_by_signal():
            status = _run(study, given.only, given.seeds)
    finally:
        lock.release()
    if status:
        raise SystemExit(status)


def with_changes(study: Study, jobs: int | None, threads: int | None) -> Study:
    """A study with another number of steps at a time, or of threads.

    Raises:
        ConfigError: If a number is none, or several steps at a time would each start processes on all devices.
    """
    settings = replace(study.settings, jobs=study.settings.jobs if jobs is None else jobs)
    settings = replace(settings, threads=settings.threads if threads is None else threads)
    check_launch(settings.jobs, settings.launch, study.file)
    return replace(study, settings=settings)


def wanted_jobs(study: Study, only: Sequence[str] | None, seeds: Sequence[int] | None) -> dict[Key, Job]:
    """The jobs of a study, as far as the command line asks for them; everything in the file is checked.

    Raises:
        ConfigError: If there is no such case or seed, or the file is wrong.
    """
    known = [*study.cases, *([study.search.name] if study.search else [])]
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise ConfigError(f"--only {unknown[0]}: {study.file} has no such case. Its cases: {', '.join(known)}.")
    strange = [seed for seed in seeds or () if seed not in study.settings.seeds]
    if strange:
        seeds_known = ", ".join(map(str, study.settings.seeds))
        raise ConfigError(f"--seeds {strange[0]}: {study.file} has no such seed. Its seeds: {seeds_known}.")
    found = Plan(study).all()
    check_tables(study)
    if seeds is not None:
        found = Plan(study, tuple(seed for seed in study.settings.seeds if seed in seeds)).all()
    return chosen(found, [key for key in found if only is None or key.case in only])


def listed(study: Study, jobs: Mapping[Key, Job]) -> list[str]:
    """What each step would do, and why, a line each."""
    width = max((len(key.title) for key in jobs), default=0)
    lines, current = [], set()
    if study.search is not None:
        lines.append(f"search: {study.search.trials} trials; the winner is the case {study.search.name}")
    for key, job in jobs.items():
        later = next((need for need in job.needs if need not in current), None)
        if later is None:
            said = would_do(job.step)
            if said == "up to date":
                current.add(key)
        else:
            said = f"would run, after {later.title}"
        lines.append(f"{key.title:<{width}}  {said}")
    ends = [f"compare {name}" for name in study.compare] + ["the experiment log"] * (study.log is not None)
    return [*lines, f"{len(current)} of {len(jobs)} steps are up to date. Then: {', '.join(ends)}."]


def _run(study: Study, only: Sequence[str] | None, seeds: Sequence[int] | None) -> int:
    """Run the search, the steps, then the tables; the status of the whole."""
    runner = Runner(study.settings.jobs, print_line)
    lost: list[str] = []
    if study.search is not None and study.search.name in (only or [study.search.name]):
        lost += search_settings(study, study.search, runner)
    study = with_winner(study)
    jobs = wanted_jobs(study, only, seeds)
    outcomes = dict(runner.run(jobs))
    ending = {job.key: job for job in tables(study, print_line)}
    outcomes |= runner.run(ending)
    lost += losses(outcomes, {**jobs, **ending})
    for key, job in ending.items():
        if outcomes[key].good and key.case == COMPARE:
            print_line(f"\n{_page(job)}\n")
    for key, job in ending.items():
        if outcomes[key].good:
            print_line(f"{key.case} {key.step}: {job.output}")
    if not lost:
        return 0
    bad = sum(not outcome.good for outcome in outcomes.values())
    logger.error("%d of %d steps have no result; mend what failed and run again to go on:", bad, len(outcomes))
    for line in lost:
        logger.error("  %s", line)
    return next((outcome.status for outcome in outcomes.values() if outcome.status), 1)


def _page(job: Job) -> str:
    from minionerec.reports.compare import MARKDOWN_FILE

    return (Path(job.output) / MARKDOWN_FILE).read_text(encoding="utf-8").rstrip()
