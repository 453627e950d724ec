"""The whole preference study: its runs, a page for each model, and the document that shows all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.log import get_logger
from minionerec.preference.against import read_against
from minionerec.preference.config import FLOORS, PreferenceConfig
from minionerec.preference.jobs import Job, document_sha256, study_jobs, study_stage, study_stands
from minionerec.preference.results import RunResults
from minionerec.preference.run import check_files, run_preference
from minionerec.reports.markdown import render_markdown
from minionerec.reports.page import write_page
from minionerec.reports.preference_run import run_page
from minionerec.reports.preference_study import study_page

logger = get_logger(__name__)


@dataclass(frozen=True)
class PreferenceStudy:
    """What `run_preference_study` made.

    Attributes:
        output: Where everything lies.
        reports: The document, if the settings name one, then each page in Markdown.
        done: How many runs were made now; the others stood already.
        up_to_date: Whether everything stood, so that nothing was written.
    """

    output: Path
    reports: list[Path]
    done: int = 0
    up_to_date: bool = False

    def lines(self) -> list[str]:
        """Where the reports lie."""
        return [f"report: {path}" for path in self.reports]


def run_preference_study(config: PreferenceConfig) -> PreferenceStudy:
    """Make every run, and write report.md and report.html of the first seed of each model and split.

    Runs that stand are kept, so a study that was cut off goes on where it was.

    Raises:
        DataError: If the data or a split of them do not serve.
        ConfigError: If training fails, another study is at work there, or an unfinished one has other settings.
        ArtefactError: If an input was changed since it was written, or an output cannot be written.
    """
    reports = _reports(config)
    if study_stands(config):
        logger.info("%s is up to date.", config.output)
        return PreferenceStudy(Path(config.output), reports, up_to_date=True)
    check_files(config)
    stage = study_stage(config)
    with stage.work() as work:
        with work.phase("runs"):
            result = run_preference(config, on_run=lambda: work.folder)  # from the first run on the settings are held
        counts: dict[str, object] = {"runs": len(result.jobs)}
        with work.finish(counts=counts) as place:
            for job in _shown(config, result.jobs):
                _write_page(config, job, place / _folder(job))
            if config.document:
                write_text_atomic(config.document, render_markdown(*study_page(config, result.jobs)))
            counts["document"] = document_sha256(config)
    logger.info("%s: finished.", config.output)
    return PreferenceStudy(Path(config.output), reports, result.done)


def _shown(config: PreferenceConfig, jobs: Sequence[Job]) -> Iterator[Job]:
    """The runs that have a page: of the first seed, and no floors."""
    for job in jobs:
        if job.seed == config.seeds[0] and job.model not in FLOORS:
            yield job


def _folder(job: Job) -> str:
    return "-".join((job.world, job.unit, job.model))


def _reports(config: PreferenceConfig) -> list[Path]:
    pages = [study_stage(config).output / _folder(job) / "report.md" for job in _shown(config, study_jobs(config))]
    return [Path(config.document), *pages] if config.document else pages


def _write_page(config: PreferenceConfig, job: Job, folder: Path) -> None:
    run = job.place(config.output)
    against = read_against(job.group(config.output), job.model)
    folder.mkdir()
    write_page(folder, "report", *run_page(RunResults.load(run), against, run))
